//! systemd's protocols: readiness (sd_notify(3)) and socket activation (sd_listen_fds(3)).
//! Invariant: without systemd's variables nothing happens.

use std::ffi::OsStr;
use std::io;
use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::process::Pid;

/// What the service manager is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Serving; also the end of a reload.
    Ready,
    /// Reading the configuration again.
    Reloading,
    /// Ending.
    Stopping,
    /// Another process is the main one from now on (after an upgrade).
    MainPid(Pid),
}

/// Tells the service manager at `NOTIFY_SOCKET`, if there is one.
pub fn notify(state: State) -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(path) => notify_at(&path, state),
        None => Ok(()),
    }
}

/// The descriptors that systemd passed, by `LISTEN_PID` and `LISTEN_FDS`; none if they are meant
/// for another process.
pub fn listen_fds(listen_pid: Option<&str>, listen_fds: Option<&str>, pid: Pid) -> Vec<RawFd> {
    let meant = listen_pid.and_then(|text| text.parse::<Pid>().ok()) == Some(pid);
    let count = listen_fds.and_then(|text| text.parse::<RawFd>().ok()).unwrap_or(0);
    if !meant || !(1..=MAX_FDS).contains(&count) {
        return Vec::new();
    }
    (FIRST_FD..FIRST_FD + count).collect()
}

fn notify_at(path: &OsStr, state: State) -> io::Result<()> {
    let addr = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not stop us.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message(state).as_bytes(), &addr)?;
    Ok(())
}

fn message(state: State) -> String {
    match state {
        State::Ready => "READY=1\n".into(),
        State::Reloading => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
            format!("RELOADING=1\nMONOTONIC_USEC={usec}\n")
        }
        State::Stopping => "STOPPING=1\n".into(),
        State::MainPid(pid) => format!("MAINPID={pid}\n"),
    }
}

/// SD_LISTEN_FDS_START.
const FIRST_FD: RawFd = 3;
/// More than any unit passes; keeps a broken variable from becoming a long loop.
const MAX_FDS: RawFd = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_reach_an_abstract_socket() {
        let name = format!("forebay-notify-{}", std::process::id());
        let addr = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let manager = UnixDatagram::bind_addr(&addr).unwrap();
        let path = format!("@{name}");
        let received = |state| {
            notify_at(OsStr::new(&path), state).unwrap();
            let mut buf = [0; 200];
            let len = manager.recv(&mut buf).unwrap();
            String::from_utf8(buf[..len].to_vec()).unwrap()
        };
        assert_eq!(received(State::Ready), "READY=1\n");
        assert_eq!(received(State::Stopping), "STOPPING=1\n");
        assert_eq!(received(State::MainPid(7)), "MAINPID=7\n");
        let reloading = received(State::Reloading);
        let usec = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(usec.trim_end().parse::<u64>().unwrap() > 0);
    }

    #[test]
    fn sockets_for_another_process_are_left() {
        assert_eq!(listen_fds(Some("7"), Some("2"), 7), [3, 4]);
        for (pid, fds) in [
            (Some("8"), Some("2")),
            (None, Some("2")),
            (Some("7"), None),
            (Some("7"), Some("-1")),
            (Some("7"), Some("99999")),
            (Some("x"), Some("y")),
        ] {
            assert!(listen_fds(pid, fds, 7).is_empty(), "{pid:?} {fds:?}");
        }
    }
}
