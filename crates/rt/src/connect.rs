//! Connecting to another server: `ngx_event_connect_peer`, without waiting.
//!
//! Invariant: `TCP_NODELAY` is on from the beginning: nothing that is sent to an upstream ever waits
//! for an acknowledgement.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    task::{Context, Poll, ready},
};

use socket2::{Domain, Protocol, Socket as Raw, Type};

use crate::{
    errno::Errno,
    listen::{Addr, set_int},
    transport::Socket,
};

/// `proxy_bind`: from which address to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bind {
    /// The local address; port 0 takes any.
    pub addr: SocketAddr,
    /// `transparent`: the address need not be one of this machine.
    pub transparent: bool,
}

impl Bind {
    /// What connections have in common that are made from there, and no others.
    #[cold]
    pub fn tag(self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// How to connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The local address.
    pub bind: Option<Bind>,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `SO_RCVBUF`, bytes.
    pub rcvbuf: Option<usize>,
    /// `SO_SNDBUF`, bytes.
    pub sndbuf: Option<usize>,
}

/// A call that failed, in nginx's words: `connect() to 127.0.0.1:80 failed`.
#[derive(Debug)]
pub struct ConnectError {
    /// The call: `socket()`, `bind(127.0.0.2:0)`, `connect() to unix:/x`.
    pub call: String,
    /// Why.
    pub source: io::Error,
    /// Whether the peer refused, and not this machine.
    pub by_peer: bool,
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed ({})", self.call, Errno(&self.source))
    }
}

impl std::error::Error for ConnectError {}

/// Begins to connect; within an event loop. Ask [`poll_connected`] when it is done.
pub fn start(addr: &Addr, options: &Options) -> Result<Socket, ConnectError> {
    let ours = |call: String| move |source| ConnectError { call, source, by_peer: false };
    let raw = open(addr, options)?;
    let to = addr.sock_addr().map_err(ours(format!("connect() to {addr}")))?;
    match raw.connect(&to) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        Err(source) => {
            let call = format!("connect() to {addr}");
            return Err(ConnectError { call, source, by_peer: true });
        }
    }
    Ok(Socket::new(OwnedFd::from(raw)))
}

/// Ready once a socket of [`start`] is connected, or why it is not.
pub fn poll_connected(socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    ready!(socket.poll_writable(cx))?;
    Poll::Ready(socket.pending_error())
}

fn open(addr: &Addr, options: &Options) -> Result<Raw, ConnectError> {
    let failed = |call: String| move |source| ConnectError { call, source, by_peer: false };
    let (domain, protocol) = match addr {
        Addr::Tcp(SocketAddr::V4(_)) => (Domain::IPV4, Some(Protocol::TCP)),
        Addr::Tcp(SocketAddr::V6(_)) => (Domain::IPV6, Some(Protocol::TCP)),
        Addr::Unix(_) => (Domain::UNIX, None),
    };
    let raw = Raw::new(domain, Type::STREAM.nonblocking().cloexec(), protocol)
        .map_err(failed("socket()".to_owned()))?;
    if options.keepalive {
        raw.set_keepalive(true).map_err(failed("setsockopt(SO_KEEPALIVE)".to_owned()))?;
    }
    if let Some(bytes) = options.rcvbuf {
        let call = format!("setsockopt(SO_RCVBUF, {bytes})");
        raw.set_recv_buffer_size(bytes).map_err(failed(call))?;
    }
    if let Some(bytes) = options.sndbuf {
        let call = format!("setsockopt(SO_SNDBUF, {bytes})");
        raw.set_send_buffer_size(bytes).map_err(failed(call))?;
    }
    if let Addr::Tcp(_) = addr {
        raw.set_tcp_nodelay(true).map_err(failed("setsockopt(TCP_NODELAY)".to_owned()))?;
        if let Some(from) = &options.bind {
            bind(&raw, from)?;
        }
    }
    Ok(raw)
}

fn bind(raw: &Raw, from: &Bind) -> Result<(), ConnectError> {
    let failed = |call: String| move |source| ConnectError { call, source, by_peer: false };
    if from.transparent {
        let result = match from.addr.ip() {
            IpAddr::V4(_) => raw.set_ip_transparent_v4(true),
            IpAddr::V6(_) => raw.set_ip_transparent_v6(true),
        };
        result.map_err(failed("setsockopt(IP_TRANSPARENT)".to_owned()))?;
    }
    if from.addr.port() == 0 {
        // Without it a port is taken when the address is bound, and two connections to different
        // servers cannot share one. What does not know the option works as before.
        let _ = set_int(raw.as_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    }
    let name = match from.addr.port() {
        0 => from.addr.ip().to_string(),
        _ => from.addr.to_string(),
    };
    raw.bind(&from.addr.into()).map_err(failed(format!("bind({name})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{task::block_on as run, transport::Transport};
    use std::{
        future::poll_fn,
        io::{IoSlice, Read},
        net::TcpListener,
    };

    #[test]
    fn a_connected_socket_carries_bytes_without_delay() {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = Addr::Tcp(listener.local_addr().unwrap());
            let bind = Bind { addr: "127.0.0.2:0".parse().unwrap(), transparent: false };
            let options = Options { bind: Some(bind), keepalive: true, ..Options::default() };
            let mut socket = start(&addr, &options).unwrap();
            poll_fn(|cx| poll_connected(&mut socket, cx)).await.unwrap();
            let (mut peer, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), "127.0.0.2");
            let written = poll_fn(|cx| socket.poll_write(cx, &[IoSlice::new(b"hi")], false)).await;
            assert_eq!(written.unwrap(), 2);
            let mut buf = [0; 2];
            peer.read_exact(&mut buf).unwrap();
            let fd = socket.into_fd().unwrap();
            assert!(socket2::SockRef::from(&fd).tcp_nodelay().unwrap());
        });
    }

    #[test]
    fn a_refusal_is_told_where_it_is_found() {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = Addr::Tcp(listener.local_addr().unwrap());
            drop(listener);
            let refused = match start(&addr, &Options::default()) {
                Ok(mut socket) => poll_fn(|cx| poll_connected(&mut socket, cx)).await.unwrap_err(),
                Err(error) => error.source,
            };
            assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED));
            let unix = Addr::Unix("/nowhere/at/all".into());
            let error = start(&unix, &Options::default()).err().unwrap();
            assert!(error.by_peer);
            let want = "connect() to unix:/nowhere/at/all failed (2: No such file or directory)";
            assert_eq!(error.to_string(), want);
        });
    }

    #[test]
    fn a_peer_that_closes_is_noticed_without_reading() {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = Addr::Tcp(listener.local_addr().unwrap());
            let mut socket = start(&addr, &Options::default()).unwrap();
            poll_fn(|cx| poll_connected(&mut socket, cx)).await.unwrap();
            let (peer, _) = listener.accept().unwrap();
            let open = poll_fn(|cx| std::task::Poll::Ready(socket.poll_peer_closed(cx))).await;
            assert!(open.is_pending());
            drop(peer);
            poll_fn(|cx| socket.poll_peer_closed(cx)).await;
        });
    }
}
