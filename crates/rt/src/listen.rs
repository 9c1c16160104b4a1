//! Listening sockets: addresses, `SO_REUSEPORT` groups, socket options (nginx: ngx_connection.c,
//! `listen` parameters of ngx_http_core_module).
//!
//! Each event-loop thread accepts from its own socket of a group, so that no thread waits on
//! another's accept queue. A unix socket has no such groups: its threads share one queue.
//! A group only ever grows: closing a member would reset the connections waiting in its queue.
//!
//! Invariant: knows sockets, not servers; which server answers an address is decided above.

#![allow(unsafe_code)] // one setsockopt that no safe crate offers

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{UnixAddr, getsockname};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::errno::Errno;

/// Where a socket listens. Shown as nginx shows it: `0.0.0.0:80`, `[::]:80`, `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Addr {
    /// An IPv4 or IPv6 address with its port.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// `so_keepalive=` of `listen`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keepalive {
    /// Not named: the system's setting stands.
    #[default]
    Default,
    /// `off`.
    Off,
    /// `on`, with the system's times.
    On,
    /// `[idle]:[interval]:[count]`; what is left out stays the system's.
    Params {
        /// `TCP_KEEPIDLE`, seconds.
        idle: Option<u32>,
        /// `TCP_KEEPINTVL`, seconds.
        intvl: Option<u32>,
        /// `TCP_KEEPCNT`, probes.
        cnt: Option<u32>,
    },
}

/// The socket parameters of `listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Connections; `None` takes the kernel's maximum ([`somaxconn`]), not nginx's 511.
    pub backlog: Option<i32>,
    /// Asks for a group even when one thread serves.
    pub reuseport: bool,
    /// `TCP_DEFER_ACCEPT`: the accept waits for the first data.
    pub deferred: bool,
    /// `TCP_FASTOPEN` queue length.
    pub fastopen: Option<i32>,
    /// Multipath TCP (RFC 8684), with clients that have it, too.
    pub multipath: bool,
    /// `SO_RCVBUF`, bytes.
    pub rcvbuf: Option<usize>,
    /// `SO_SNDBUF`, bytes.
    pub sndbuf: Option<usize>,
    /// `SO_KEEPALIVE` and its times.
    pub so_keepalive: Keepalive,
    /// `IPV6_V6ONLY`; set once, before the bind.
    pub ipv6only: bool,
    /// `TCP_NODELAY` on the listener: an accepted socket inherits it and saves a system call.
    pub nodelay: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            backlog: None,
            reuseport: false,
            deferred: false,
            fastopen: None,
            multipath: false,
            rcvbuf: None,
            sndbuf: None,
            so_keepalive: Keepalive::Default,
            ipv6only: true,
            nodelay: true,
        }
    }
}

/// Sockets that now listen.
#[derive(Debug)]
pub struct Opened {
    /// As many as were asked for: non-blocking, close-on-exec.
    pub sockets: Vec<OwnedFd>,
    /// What was asked for and is not in force. The sockets work nevertheless.
    pub warnings: Vec<Warning>,
}

/// Something asked for that the system did not grant; shown in nginx's words where it has any.
#[derive(Debug)]
pub enum Warning {
    /// The kernel cuts a longer accept queue silently (listen(2)).
    BacklogCut {
        /// The address.
        addr: Addr,
        /// The `backlog=` parameter.
        asked: i32,
        /// `net.core.somaxconn`.
        max: i32,
    },
    /// A socket that is open stays what it is.
    Multipath {
        /// The address.
        addr: Addr,
    },
    /// A call failed and nginx, too, goes on without it (ngx_configure_listening_sockets).
    Ignored {
        /// The call with its argument, and the address: `setsockopt(SO_RCVBUF, 10) [::]:80`.
        call: String,
        /// Why.
        source: io::Error,
    },
}

/// A socket that could not be opened, in nginx's words:
/// `bind() to 0.0.0.0:80 failed (98: Address already in use)`.
#[derive(Debug)]
pub struct OpenError {
    /// The call and the address.
    pub call: String,
    /// Why.
    pub source: io::Error,
}

impl OpenError {
    /// True when somebody else has the address: nginx tries these again for a while.
    pub fn in_use(&self) -> bool {
        self.source.raw_os_error() == Some(libc::EADDRINUSE)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed ({})", self.call, Errno(&self.source))
    }
}

impl std::error::Error for OpenError {}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::BacklogCut { addr, asked, max } => write!(
                f,
                "backlog {asked} of {addr} is cut to {max} by the kernel (net.core.somaxconn)"
            ),
            Warning::Multipath { addr } => {
                write!(f, "\"multipath\" of {addr} changes when the address is opened anew")
            }
            Warning::Ignored { call, source } => {
                write!(f, "{call} failed, ignored ({})", Errno(source))
            }
        }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp(addr) => addr.fmt(f),
            Addr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Addr {
    pub(crate) fn sock_addr(&self) -> io::Result<SockAddr> {
        match self {
            Addr::Tcp(addr) => Ok((*addr).into()),
            Addr::Unix(path) => SockAddr::unix(path),
        }
    }
}

/// Opens `count` listening sockets on `addr`.
///
/// The first one is bound without `SO_REUSEPORT`: so another process that listens there, even
/// with `SO_REUSEPORT`, is an error as with nginx, and two servers never share a port unawares.
/// Port 0 takes a free port; the whole group gets the same one.
pub fn open(addr: &Addr, opts: &Options, count: usize) -> Result<Opened, OpenError> {
    let count = count.max(1);
    match addr {
        Addr::Tcp(_) => open_tcp(addr, opts, count),
        Addr::Unix(path) => open_unix(addr, path, opts, count),
    }
}

/// Adds `more` sockets to the group of `first`, which listens on `addr` already: for a reload
/// or an upgrade that has more threads than sockets.
///
/// Where the system refuses a group (the socket came from a process of another user), the
/// threads share the queue of `first`.
pub fn extend(
    first: BorrowedFd<'_>,
    addr: &Addr,
    opts: &Options,
    more: usize,
) -> Result<Opened, OpenError> {
    let share = || {
        dup_all(first, more)
            .map_err(|source| OpenError { call: format!("dup() of {addr}"), source })
    };
    if matches!(addr, Addr::Unix(_)) || SockRef::from(&first).set_reuse_port(true).is_err() {
        return Ok(Opened { sockets: share()?, warnings: Vec::new() });
    }
    match open_members(addr, opts, more) {
        Err(err) if err.in_use() => Ok(Opened { sockets: share()?, warnings: Vec::new() }),
        other => other,
    }
}

/// Puts changed options on a socket that listens already (ngx_configure_listening_sockets), also
/// `backlog`, by another listen(2). `ipv6only` cannot change after the bind.
pub fn apply(fd: BorrowedFd<'_>, addr: &Addr, opts: &Options) -> Vec<Warning> {
    let mut warnings = configure(SockRef::from(&fd), addr, opts);
    let is_multipath = matches!(SockRef::from(&fd).protocol(), Ok(Some(Protocol::MPTCP)));
    if is_multipath != opts.multipath && matches!(addr, Addr::Tcp(_)) {
        warnings.push(Warning::Multipath { addr: addr.clone() });
    }
    let backlog = effective_backlog(addr, opts, &mut warnings);
    if let Err(source) = SockRef::from(&fd).listen(backlog) {
        let call = format!("listen() to {addr}, backlog {backlog}");
        warnings.push(Warning::Ignored { call, source });
    }
    warnings
}

/// The address that a socket is bound to, for sockets that came from outside.
///
/// Refuses what does not listen, and families other than IP and unix.
pub fn name_of(fd: BorrowedFd<'_>) -> io::Result<Addr> {
    let socket = SockRef::from(&fd);
    if !socket.is_listener()? {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    bound_to(&socket)
}

fn bound_to(socket: &Socket) -> io::Result<Addr> {
    let name = socket.local_addr()?;
    if let Some(addr) = name.as_socket() {
        return Ok(Addr::Tcp(addr));
    }
    match name.as_pathname() {
        Some(path) => Ok(Addr::Unix(path.to_path_buf())),
        None => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    }
}

/// The name that our end of a unix socket is bound to.
pub fn unix_path(socket: RawFd) -> Option<PathBuf> {
    let address: UnixAddr = getsockname(socket).ok()?;
    address.path().map(Path::to_owned)
}

/// Removes the file of a unix socket; nginx does so when the last process that listens exits
/// (ngx_close_listening_sockets). TCP addresses have nothing to remove.
pub fn unlink(addr: &Addr) -> io::Result<()> {
    match addr {
        Addr::Tcp(_) => Ok(()),
        Addr::Unix(path) => fs::remove_file(path),
    }
}

/// The longest accept queue that the kernel grants, connections (`net.core.somaxconn`).
pub fn somaxconn() -> i32 {
    fs::read_to_string("/proc/sys/net/core/somaxconn")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(libc::SOMAXCONN)
}

fn open_tcp(addr: &Addr, opts: &Options, count: usize) -> Result<Opened, OpenError> {
    let first = bound(addr, opts, false)?;
    let actual = bound_to(&first)
        .map_err(|source| OpenError { call: format!("getsockname() of {addr}"), source })?;
    if count > 1 || opts.reuseport {
        first.set_reuse_port(true).map_err(|source| OpenError {
            call: format!("setsockopt(SO_REUSEPORT) {addr}"),
            source,
        })?;
    }
    let warnings = start_listening(&first, &actual, opts)?;
    let mut sockets = vec![first.into()];
    sockets.append(&mut open_members(&actual, opts, count - 1)?.sockets);
    Ok(Opened { sockets, warnings })
}

/// Sockets that join the group which listens on `addr`.
fn open_members(addr: &Addr, opts: &Options, count: usize) -> Result<Opened, OpenError> {
    let mut opened = Opened { sockets: Vec::with_capacity(count), warnings: Vec::new() };
    for _ in 0..count {
        let member = bound(addr, opts, true)?;
        opened.warnings = start_listening(&member, addr, opts)?;
        opened.sockets.push(member.into());
    }
    Ok(opened)
}

fn open_unix(addr: &Addr, path: &Path, opts: &Options, count: usize) -> Result<Opened, OpenError> {
    let first = bound(addr, opts, false)?;
    // nginx makes its unix sockets open to all (ngx_open_listening_sockets); who may connect is
    // decided by the directory.
    let finish = || -> Result<Opened, OpenError> {
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(|source| {
            OpenError { call: format!("chmod() \"{}\"", path.display()), source }
        })?;
        let warnings = start_listening(&first, addr, opts)?;
        let mut sockets = dup_all(first.as_fd(), count - 1)
            .map_err(|source| OpenError { call: format!("dup() of {addr}"), source })?;
        sockets.push(
            first
                .as_fd()
                .try_clone_to_owned()
                .map_err(|source| OpenError { call: format!("dup() of {addr}"), source })?,
        );
        Ok(Opened { sockets, warnings })
    };
    finish().inspect_err(|_| {
        // The file is ours by now, and would make the next start fail.
        let _ = fs::remove_file(path);
    })
}

fn dup_all(fd: BorrowedFd<'_>, count: usize) -> io::Result<Vec<OwnedFd>> {
    (0..count).map(|_| fd.try_clone_to_owned()).collect()
}

/// A socket bound to `addr`, non-blocking and close-on-exec, that does not listen yet.
fn bound(addr: &Addr, opts: &Options, reuseport: bool) -> Result<Socket, OpenError> {
    let fail = |call: String| move |source: io::Error| OpenError { call, source };
    let name = addr.sock_addr().map_err(fail(format!("bind() to {addr}")))?;
    let tcp = if opts.multipath { Protocol::MPTCP } else { Protocol::TCP };
    let (domain, protocol) = match addr {
        Addr::Tcp(SocketAddr::V4(_)) => (Domain::IPV4, Some(tcp)),
        Addr::Tcp(SocketAddr::V6(_)) => (Domain::IPV6, Some(tcp)),
        Addr::Unix(_) => (Domain::UNIX, None),
    };
    let kind = if protocol == Some(Protocol::MPTCP) { "MPTCP " } else { "" };
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), protocol)
        .map_err(fail(format!("socket() {kind}{addr}")))?;
    if domain != Domain::UNIX {
        socket.set_reuse_address(true).map_err(fail(format!("setsockopt(SO_REUSEADDR) {addr}")))?;
    }
    if reuseport {
        socket.set_reuse_port(true).map_err(fail(format!("setsockopt(SO_REUSEPORT) {addr}")))?;
    }
    if domain == Domain::IPV6 {
        socket
            .set_only_v6(opts.ipv6only)
            .map_err(fail(format!("setsockopt(IPV6_V6ONLY) {addr}")))?;
    }
    socket.bind(&name).map_err(fail(format!("bind() to {addr}")))?;
    Ok(socket)
}

fn start_listening(
    socket: &Socket,
    addr: &Addr,
    opts: &Options,
) -> Result<Vec<Warning>, OpenError> {
    // Before listen(2), so that the first connection in the queue already has them.
    let mut warnings = configure(SockRef::from(socket), addr, opts);
    let backlog = effective_backlog(addr, opts, &mut warnings);
    socket.listen(backlog).map_err(|source| OpenError {
        call: format!("listen() to {addr}, backlog {backlog}"),
        source,
    })?;
    Ok(warnings)
}

fn effective_backlog(addr: &Addr, opts: &Options, warnings: &mut Vec<Warning>) -> i32 {
    let max = somaxconn();
    match opts.backlog {
        // DIFFERS(backlog-somaxconn): nginx's is 511.
        // listen(2): a negative length is taken as the maximum.
        None | Some(..0) => max,
        Some(asked) => {
            if asked > max {
                warnings.push(Warning::BacklogCut { addr: addr.clone(), asked, max });
            }
            asked
        }
    }
}

/// Sets the options that a failure of which nginx only logs (ngx_configure_listening_sockets).
fn configure(socket: SockRef<'_>, addr: &Addr, opts: &Options) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut check = |call: String, result: io::Result<()>| {
        if let Err(source) = result {
            warnings.push(Warning::Ignored { call: format!("setsockopt({call}) {addr}"), source });
        }
    };
    if let Some(bytes) = opts.rcvbuf {
        check(format!("SO_RCVBUF, {bytes}"), socket.set_recv_buffer_size(bytes));
    }
    if let Some(bytes) = opts.sndbuf {
        check(format!("SO_SNDBUF, {bytes}"), socket.set_send_buffer_size(bytes));
    }
    match &opts.so_keepalive {
        Keepalive::Default => {}
        Keepalive::Off => check("SO_KEEPALIVE, 0".into(), socket.set_keepalive(false)),
        Keepalive::On => check("SO_KEEPALIVE, 1".into(), socket.set_keepalive(true)),
        Keepalive::Params { idle, intvl, cnt } => {
            check("SO_KEEPALIVE, 1".into(), socket.set_keepalive(true));
            let times = keepalive_times(*idle, *intvl, *cnt);
            check("TCP_KEEPIDLE".into(), socket.set_tcp_keepalive(&times));
        }
    }
    if matches!(addr, Addr::Unix(_)) {
        return warnings;
    }
    if opts.nodelay {
        check("TCP_NODELAY".into(), socket.set_tcp_nodelay(true));
    }
    if let Some(length) = opts.fastopen {
        check(
            format!("TCP_FASTOPEN, {length}"),
            set_tcp_int(socket.as_fd(), libc::TCP_FASTOPEN, length),
        );
    }
    // One second, as nginx has it: how long a connection waited already is not known.
    let defer = i32::from(opts.deferred);
    check(
        format!("TCP_DEFER_ACCEPT, {defer}"),
        set_tcp_int(socket.as_fd(), libc::TCP_DEFER_ACCEPT, defer),
    );
    warnings
}

fn keepalive_times(idle: Option<u32>, intvl: Option<u32>, cnt: Option<u32>) -> TcpKeepalive {
    let seconds = |count: u32| Duration::from_secs(count.into());
    let mut times = TcpKeepalive::new();
    if let Some(idle) = idle {
        times = times.with_time(seconds(idle));
    }
    if let Some(intvl) = intvl {
        times = times.with_interval(seconds(intvl));
    }
    if let Some(cnt) = cnt {
        times = times.with_retries(cnt);
    }
    times
}

/// setsockopt(2) of a TCP option with an int, for the two that socket2 and rustix do not have.
fn set_tcp_int(fd: BorrowedFd<'_>, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, name, value)
}

/// setsockopt(2) of an option with an int.
pub(crate) fn set_int(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which lives through the call; the kernel
    // only reads it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn loopback() -> Addr {
        Addr::Tcp(([127, 0, 0, 1], 0).into())
    }

    fn dial(addr: &Addr) -> TcpStream {
        match addr {
            Addr::Tcp(addr) => TcpStream::connect(addr).unwrap(),
            Addr::Unix(_) => unreachable!(),
        }
    }

    /// Connects until each of `sockets` has got a connection.
    fn all_are_served(addr: &Addr, sockets: &[OwnedFd]) {
        let mut open = Vec::new();
        let mut served = vec![false; sockets.len()];
        while served.contains(&false) {
            assert!(open.len() < 1000, "{served:?}");
            open.push(dial(addr));
            for (socket, served) in sockets.iter().zip(&mut served) {
                *served |= SockRef::from(socket).accept().is_ok();
            }
        }
    }

    fn unix_path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("forebay-{name}-{}.sock", std::process::id()))
    }

    #[test]
    fn multipath_sockets_serve_plain_clients_and_stay_what_they_are() {
        let options = Options { multipath: true, ..Options::default() };
        let opened = match open(&loopback(), &options, 2) {
            Ok(opened) => opened,
            Err(err) if err.source.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
                assert!(err.to_string().starts_with("socket() MPTCP 127.0.0.1:0 failed (93: "));
                eprintln!("skipped: the kernel has no MPTCP");
                return;
            }
            Err(err) => panic!("{err}"),
        };
        let addr = name_of(opened.sockets[0].as_fd()).unwrap();
        let is_multipath =
            |fd: &OwnedFd| SockRef::from(fd).protocol().unwrap() == Some(Protocol::MPTCP);
        assert!(opened.sockets.iter().all(is_multipath));
        drop(dial(&addr));
        let plain = apply(opened.sockets[0].as_fd(), &addr, &Options::default());
        let told = format!("\"multipath\" of {addr} changes when the address is opened anew");
        assert!(plain.iter().any(|warning| warning.to_string() == told), "{plain:?}");
        assert!(apply(opened.sockets[0].as_fd(), &addr, &options).is_empty());
    }

    #[test]
    fn addresses_are_shown_as_nginx_shows_them() {
        for (addr, text) in [
            (Addr::Tcp("0.0.0.0:80".parse().unwrap()), "0.0.0.0:80"),
            (Addr::Tcp("[::]:80".parse().unwrap()), "[::]:80"),
            (Addr::Tcp("[2001:DB8::1]:443".parse().unwrap()), "[2001:db8::1]:443"),
            (Addr::Unix("/run/a b.sock".into()), "unix:/run/a b.sock"),
        ] {
            assert_eq!(addr.to_string(), text);
        }
    }

    #[test]
    fn every_socket_of_a_group_gets_connections() {
        let opened = open(&loopback(), &Options::default(), 3).unwrap();
        assert!(opened.warnings.is_empty(), "{:?}", opened.warnings);
        assert_eq!(opened.sockets.len(), 3);
        all_are_served(&name_of(opened.sockets[0].as_fd()).unwrap(), &opened.sockets);
    }

    #[test]
    fn group_grows_from_one_socket() {
        let mut sockets = open(&loopback(), &Options::default(), 1).unwrap().sockets;
        let addr = name_of(sockets[0].as_fd()).unwrap();
        let more = extend(sockets[0].as_fd(), &addr, &Options::default(), 2).unwrap();
        sockets.extend(more.sockets);
        assert_eq!(sockets.len(), 3);
        all_are_served(&addr, &sockets);
    }

    #[test]
    fn port_that_is_held_is_an_error_also_with_reuseport() {
        for count in [1, 2] {
            let held = open(&loopback(), &Options::default(), count).unwrap().sockets;
            let addr = name_of(held[0].as_fd()).unwrap();
            let opts = Options { reuseport: true, ..Options::default() };
            let err = open(&addr, &opts, 2).unwrap_err();
            assert!(err.in_use());
            let text = format!("bind() to {addr} failed (98: Address already in use)");
            assert_eq!(err.to_string(), text);
        }
    }

    #[test]
    fn accepted_sockets_inherit_nodelay() {
        let socket = open(&loopback(), &Options::default(), 1).unwrap().sockets.remove(0);
        let _client = dial(&name_of(socket.as_fd()).unwrap());
        let (accepted, _) = SockRef::from(&socket).accept().unwrap();
        assert!(accepted.tcp_nodelay().unwrap());
        let flags = rustix::io::fcntl_getfd(&socket).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert!(SockRef::from(&socket).nonblocking().unwrap());
    }

    #[test]
    fn options_are_in_force_and_change() {
        let opts = Options {
            deferred: true,
            fastopen: Some(5),
            rcvbuf: Some(20_000),
            sndbuf: Some(30_000),
            so_keepalive: Keepalive::Params { idle: Some(77), intvl: None, cnt: Some(3) },
            ..Options::default()
        };
        let opened = open(&loopback(), &opts, 1).unwrap();
        assert!(opened.warnings.is_empty(), "{:?}", opened.warnings);
        let socket = SockRef::from(&opened.sockets[0]);
        let addr = name_of(opened.sockets[0].as_fd()).unwrap();
        // The kernel doubles both (socket(7)).
        assert_eq!(socket.recv_buffer_size().unwrap(), 40_000);
        assert_eq!(socket.send_buffer_size().unwrap(), 60_000);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(77));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);

        // Deferred: a connection without data is not handed over; the kernel's own accept queue
        // stays empty until the data is there.
        let mut client = dial(&addr);
        assert!(socket.accept().is_err());
        client.write_all(b"x").unwrap();
        crate::signals::readable(&[opened.sockets[0].as_fd()], None).unwrap();
        socket.accept().unwrap();

        let opts = Options { so_keepalive: Keepalive::Off, ..Options::default() };
        let warnings = apply(opened.sockets[0].as_fd(), &addr, &opts);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert!(!socket.keepalive().unwrap());
        let _client = dial(&addr);
        socket.accept().unwrap();
    }

    #[test]
    fn the_default_backlog_is_the_kernel_s() {
        let backlog = |asked| {
            let options = Options { backlog: asked, ..Options::default() };
            effective_backlog(&loopback(), &options, &mut Vec::new())
        };
        assert_eq!((backlog(None), backlog(Some(-1))), (somaxconn(), somaxconn()));
        assert_eq!(backlog(Some(7)), 7);
    }

    #[test]
    fn backlog_above_the_kernels_is_reported() {
        let max = somaxconn();
        for (backlog, warned) in [(None, 0), (Some(1), 0), (Some(-1), 0), (Some(max + 1), 1)] {
            let opts = Options { backlog, ..Options::default() };
            let opened = open(&loopback(), &opts, 2).unwrap();
            assert_eq!(opened.warnings.len(), warned, "{backlog:?}");
            let shown = opened.warnings.iter().map(ToString::to_string).collect::<String>();
            assert_eq!(shown.contains(&format!("is cut to {max}")), warned == 1);
        }
    }

    #[test]
    fn unix_socket_is_open_to_all_and_a_leftover_fails() {
        let path = unix_path("all");
        let addr = Addr::Unix(path.clone());
        let opened = open(&addr, &Options::default(), 3).unwrap();
        assert_eq!((opened.sockets.len(), opened.warnings.len()), (3, 0));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666);
        for socket in &opened.sockets {
            assert_eq!(name_of(socket.as_fd()).unwrap(), addr);
            let _client = UnixStream::connect(&path).unwrap();
            SockRef::from(socket).accept().unwrap();
        }
        drop(opened);
        let err = open(&addr, &Options::default(), 1).unwrap_err();
        let text = format!("bind() to {addr} failed (98: Address already in use)");
        assert_eq!(err.to_string(), text);
        unlink(&addr).unwrap();
        open(&addr, &Options::default(), 1).unwrap();
        unlink(&addr).unwrap();
        assert!(unlink(&addr).is_err());
    }

    #[test]
    fn only_listening_sockets_have_a_name() {
        let path = unix_path("name");
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(name_of(listener.as_fd()).unwrap(), Addr::Unix(path.clone()));
        let client = UnixStream::connect(&path).unwrap();
        assert!(name_of(client.as_fd()).is_err());
        assert!(name_of(fs::File::open("/dev/null").unwrap().as_fd()).is_err());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn ipv6only_decides_whether_ipv4_is_taken_too() {
        for ipv6only in [true, false] {
            let addr = Addr::Tcp("[::]:0".parse().unwrap());
            let opts = Options { ipv6only, ..Options::default() };
            let Ok(opened) = open(&addr, &opts, 1) else {
                eprintln!("skipped: no IPv6 here");
                return;
            };
            assert_eq!(SockRef::from(&opened.sockets[0]).only_v6().unwrap(), ipv6only);
        }
    }

    #[test]
    fn path_that_is_too_long_is_an_error() {
        let addr = Addr::Unix(format!("/{}", "x".repeat(200)).into());
        assert!(open(&addr, &Options::default(), 1).is_err());
    }
}
