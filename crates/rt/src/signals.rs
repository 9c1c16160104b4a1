//! The signals that steer nginx (<https://nginx.org/en/docs/control.html>), read from a
//! signalfd(2): no handler runs, so nothing is interrupted and nothing has to be reentrant.
//!
//! A blocked mask survives fork (the worker makes its own [`Signals`]) and exec, so
//! [`crate::process::exec_upgrade`] clears it.
//!
//! Invariant: receives only; what a signal means to a master or a worker is decided there.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal as Sig, pthread_sigmask, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// A signal that has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// HUP: read the configuration again.
    Reload,
    /// USR1: open the log files again.
    Reopen,
    /// USR2: start a new binary.
    Upgrade,
    /// WINCH: workers finish what they have and exit, the master stays.
    Winch,
    /// QUIT: finish what is under way, then exit.
    Quit,
    /// TERM: exit now.
    Terminate,
    /// INT: exit now.
    Interrupt,
    /// CHLD: a child ended.
    Child,
    /// ALRM: nothing; nginx has a timer of its own there.
    Alarm,
    /// IO: nothing, but unlike by default not the end either.
    Io,
}

/// A received signal, shown as nginx shows it: `signal 1 (SIGHUP) received from 42`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Which.
    pub signal: Signal,
    /// The process that sent it, where the kernel knows one.
    pub from: Option<i32>,
}

/// The receiver; a process has one.
pub struct Signals {
    fd: SignalFd,
}

const ALL: [(Signal, Sig); 10] = [
    (Signal::Reload, Sig::SIGHUP),
    (Signal::Reopen, Sig::SIGUSR1),
    (Signal::Upgrade, Sig::SIGUSR2),
    (Signal::Winch, Sig::SIGWINCH),
    (Signal::Quit, Sig::SIGQUIT),
    (Signal::Terminate, Sig::SIGTERM),
    (Signal::Interrupt, Sig::SIGINT),
    (Signal::Child, Sig::SIGCHLD),
    (Signal::Alarm, Sig::SIGALRM),
    (Signal::Io, Sig::SIGIO),
];

impl Signal {
    /// The number for kill(2).
    pub fn number(self) -> i32 {
        self.kernel() as i32
    }

    pub(crate) fn kernel(self) -> Sig {
        // The table holds every variant, which a test checks.
        ALL.iter().find(|(signal, _)| *signal == self).map_or(Sig::SIGTERM, |(_, sig)| *sig)
    }

    fn from_number(number: u32) -> Option<Signal> {
        ALL.iter().find(|(_, sig)| *sig as u32 == number).map(|(signal, _)| *signal)
    }
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sig = self.signal.kernel();
        write!(f, "signal {} ({}) received", sig as i32, sig.as_str())?;
        match self.from {
            Some(pid) => write!(f, " from {pid}"),
            None => Ok(()),
        }
    }
}

impl Signals {
    /// Takes the signals over. Call it before any thread starts: threads inherit the mask, and
    /// one without it would take the default action.
    ///
    /// PIPE and SYS are ignored, as in nginx: a write to a closed socket is an error, not the end.
    pub fn take() -> io::Result<Signals> {
        ignore(Sig::SIGPIPE)?;
        ignore(Sig::SIGSYS)?;
        let mask: SigSet = ALL.iter().map(|(_, sig)| *sig).collect();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&mask), None)?;
        let fd = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Signals { fd })
    }

    /// A signal that has come already, or `None`.
    pub fn try_next(&self) -> io::Result<Option<Received>> {
        while let Some(info) = self.fd.read_signal()? {
            if let Some(signal) = Signal::from_number(info.ssi_signo) {
                let from = i32::try_from(info.ssi_pid).ok().filter(|pid| *pid != 0);
                return Ok(Some(Received { signal, from }));
            }
        }
        Ok(None)
    }

    /// Waits for the next signal, at most `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Received>> {
        if let Some(received) = self.try_next()? {
            return Ok(Some(received));
        }
        readable(&[self.as_fd()], timeout)?;
        self.try_next()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Ends the blocking of signals in the calling thread, for what is about to be executed in it.
/// Allocates nothing: it runs between fork and exec.
pub(crate) fn let_through() -> io::Result<()> {
    Ok(pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
}

/// Waits until one of `fds` can be read or is at its end, at most `timeout`; says which.
///
/// For the master, which waits for signals and its worker's channel and has no event loop.
pub fn readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    wait_for(fds, PollFlags::POLLIN, timeout)
}

pub(crate) fn wait_for(
    fds: &[BorrowedFd<'_>],
    events: PollFlags,
    timeout: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, events)).collect();
    loop {
        let left = match deadline {
            None => PollTimeout::NONE,
            Some(deadline) => {
                // A part of a millisecond counts as one: zero would spin until the deadline.
                let left = deadline.saturating_duration_since(Instant::now());
                let ms = left.as_micros().div_ceil(1000);
                PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
            }
        };
        match poll(&mut polled, left) {
            Ok(0) if deadline.is_some_and(|deadline| Instant::now() < deadline) => {}
            Ok(_) => return Ok(polled.iter().map(|fd| fd.any().unwrap_or(true)).collect()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

#[allow(unsafe_code)]
fn ignore(sig: Sig) -> io::Result<()> {
    // SAFETY: SIG_IGN installs no code of ours.
    unsafe { signal(sig, SigHandler::SigIgn) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{process, testing};

    #[test]
    fn signals_arrive_with_their_sender() {
        testing::in_child("signals::tests::signals_arrive_with_their_sender", || {
            let signals = Signals::take().unwrap();
            assert_eq!(signals.wait(Some(Duration::ZERO)).unwrap(), None);
            for (signal, sig) in ALL {
                process::send(process::pid(), signal).unwrap();
                let received = signals.wait(None).unwrap().unwrap();
                assert_eq!(received, Received { signal, from: Some(process::pid()) });
                assert_eq!(signal.number(), sig as i32);
            }
            assert_eq!(signals.try_next().unwrap(), None);
        });
    }

    #[test]
    fn signal_is_shown_as_nginx_shows_it() {
        let received = Received { signal: Signal::Reload, from: Some(42) };
        assert_eq!(received.to_string(), "signal 1 (SIGHUP) received from 42");
        let received = Received { signal: Signal::Child, from: None };
        assert_eq!(received.to_string(), "signal 17 (SIGCHLD) received");
    }

    #[test]
    fn closed_line_is_readable_and_an_idle_one_is_not() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let (c, _d) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(b);
        let ready = readable(&[a.as_fd(), c.as_fd()], Some(Duration::from_secs(20))).unwrap();
        assert_eq!(ready, [true, false]);
        assert_eq!(readable(&[c.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
    }
}
