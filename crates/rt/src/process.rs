//! Processes: fork, reap, daemon, signals to others, and the start of a new binary (nginx:
//! ngx_process.c, ngx_daemon.c).
//!
//! Invariant: forks only while one thread runs; the event-loop threads exist in workers, which
//! never fork.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::kill;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{ForkResult, dup2_stdin, dup2_stdout, setsid};
use rustix::process::{WaitOptions, WaitStatus, wait};

use crate::signals::{self, Signal};

/// A process id.
pub type Pid = i32;

/// How a process ended, shown as nginx shows it: `exited with code 0`, `exited on signal 9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// exit(2) with this code.
    Code(i32),
    /// Killed by this signal, perhaps with a core file.
    Signal {
        /// Its number.
        number: i32,
        /// A core file was written.
        core: bool,
    },
}

impl Ending {
    /// A worker that exits with 2 could not start and would not the next time
    /// (ngx_process_get_status).
    pub fn is_fatal(self) -> bool {
        self == Ending::Code(2)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Code(code) => write!(f, "exited with code {code}"),
            Ending::Signal { number, core } => {
                let core = if *core { " (core dumped)" } else { "" };
                write!(f, "exited on signal {number}{core}")
            }
        }
    }
}

/// On which side of a fork we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The old process; the new one has this id.
    Parent(Pid),
    /// The new process.
    Child,
}

/// Doubles the process. Everything the child does not need it should drop: descriptors count as
/// open until both have closed them.
///
/// Refused while other threads run: the child would have their locks and not them.
pub fn fork() -> io::Result<Forked> {
    Ok(match raw_fork()? {
        ForkResult::Parent { child } => Forked::Parent(child.as_raw()),
        ForkResult::Child => Forked::Child,
    })
}

/// Puts the process in the background (ngx_daemon): a child goes on in a session of its own with
/// `/dev/null` as input and output, the caller's process exits with 0. Standard error stays;
/// the log takes it over.
pub fn daemonize() -> io::Result<()> {
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    if fork()? != Forked::Child {
        std::process::exit(0);
    }
    setsid()?;
    umask(Mode::empty());
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok(())
}

/// Collects the children that have ended, without waiting.
pub fn reap() -> Vec<(Pid, Ending)> {
    let mut ended = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                ended.extend(ending(status).map(|ending| (pid.as_raw_nonzero().get(), ending)));
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(_) => return ended,
        }
    }
}

/// Sends a signal to a process.
pub fn send(pid: Pid, signal: Signal) -> io::Result<()> {
    Ok(kill(nix::unistd::Pid::from_raw(pid), signal.kernel())?)
}

/// Ends a process that does not listen to [`send`] (SIGKILL).
pub fn send_kill(pid: Pid) -> io::Result<()> {
    Ok(kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)?)
}

/// Our process id.
pub fn pid() -> Pid {
    nix::unistd::getpid().as_raw()
}

/// The id of the process that started us; 1 when it is gone.
pub fn parent() -> Pid {
    nix::unistd::getppid().as_raw()
}

/// Starts a new binary that takes over the sockets `fds` (ngx_exec_new_binary). They keep their
/// numbers; the caller names these in `env` (see [`crate::inherit::nginx_variable`]).
/// `argv[0]` is kept as it is, since the name decides how the binary behaves.
pub fn exec_upgrade(
    path: &Path,
    argv: &[OsString],
    env: &[(OsString, OsString)],
    fds: &[BorrowedFd<'_>],
) -> io::Result<Pid> {
    let mut command = Command::new(path);
    if let Some((name, args)) = argv.split_first() {
        command.arg0(name).args(args);
    }
    command.env_clear().envs(env.iter().map(|(name, value)| (name, value)));
    // In the child and not here: with the signals let through here, one would end us.
    let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let prepare = move || {
        signals::let_through()?;
        numbers.iter().try_for_each(|fd| keep_over_exec(*fd))
    };
    #[allow(unsafe_code)]
    // SAFETY: `prepare` makes system calls alone, and allocates and locks nothing.
    let pid = unsafe { command.pre_exec(prepare) }.spawn()?.id();
    Pid::try_from(pid).map_err(io::Error::other)
}

/// Replaces the environment (ngx_set_environment). Refused while other threads run, which could
/// read it.
pub fn set_environment(vars: &[(OsString, OsString)]) -> io::Result<()> {
    if !single_threaded() {
        return Err(io::Error::other("environment changed while other threads run"));
    }
    #[allow(unsafe_code)]
    // SAFETY: no other thread runs that could read the environment meanwhile.
    unsafe {
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_variable_name(name)) {
            std::env::remove_var(name);
        }
        for (name, value) in vars.iter().filter(|(name, _)| is_variable_name(name)) {
            std::env::set_var(name, value);
        }
    }
    Ok(())
}

/// Makes standard error a copy of `log`, so that what a library prints there is not lost
/// (ngx_log_redirect_stderr).
pub fn redirect_stderr(log: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::unistd::dup2_stderr(log)?)
}

/// Makes an inherited descriptor as ours are: close-on-exec and non-blocking.
pub fn adopt_flags(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// True while the process has one thread, or where /proc is not there to tell.
pub fn single_threaded() -> bool {
    fs::read_dir("/proc/self/task").map_or(true, |tasks| tasks.count() == 1)
}

/// The file that runs, for an upgrade: `argv0` as given when it has a slash, else as `PATH`
/// finds it. Not /proc/self/exe, which still names the file that was replaced.
pub fn executable(argv0: &OsStr) -> io::Result<std::path::PathBuf> {
    let path = Path::new(argv0);
    if path.components().count() > 1 {
        return Ok(path.to_path_buf());
    }
    let found = std::env::var_os("PATH").and_then(|dirs| {
        std::env::split_paths(&dirs).map(|dir| dir.join(path)).find(|file| file.is_file())
    });
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// Clears close-on-exec. By number, since it runs between fork and exec in a closure that must
/// outlive the borrows.
#[allow(unsafe_code)]
fn keep_over_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl(2) with an int argument touches no memory; a bad number is an error.
    match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What std takes as the name of a variable; others can come from a careless parent. Values need
/// no look: they come from C strings or the configuration, which have no NUL.
pub(crate) fn is_variable_name(name: &OsStr) -> bool {
    !name.is_empty() && !name.as_bytes().iter().any(|byte| matches!(byte, b'=' | 0))
}

fn ending(status: WaitStatus) -> Option<Ending> {
    if let Some(code) = status.exit_status() {
        return Some(Ending::Code(code));
    }
    // WCOREDUMP of wait(2), which rustix does not name.
    let core = status.as_raw() & 0x80 != 0;
    status.terminating_signal().map(|number| Ending::Signal { number, core })
}

#[allow(unsafe_code)]
fn raw_fork() -> io::Result<ForkResult> {
    if !single_threaded() {
        return Err(io::Error::other("fork while other threads run"));
    }
    // What is buffered would be written by both.
    io::stdout().flush()?;
    // SAFETY: no other thread runs, so no lock is held and no memory is half written that the
    // child could meet.
    Ok(unsafe { nix::unistd::fork() }?)
}

/// Keeps the kernel from backing this process with huge pages: a server's heap is small, and would
/// grow in steps of 2 MB whatever a connection needs. Best effort; children inherit it.
pub fn refuse_huge_pages() {
    // SAFETY: this prctl takes four numbers and touches no memory of the process.
    #[allow(unsafe_code)]
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Limits, pair};
    use crate::inherit::nginx_variable;
    use crate::listen::{Addr, Options, name_of, open};
    use crate::signals::Signals;
    use crate::testing;
    use std::os::fd::AsFd;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(20);

    /// Runs `body` in a child, which exits with the code that it returns.
    fn fork_child(body: impl FnOnce() -> i32) -> io::Result<Pid> {
        match fork()? {
            Forked::Parent(child) => Ok(child),
            Forked::Child => std::process::exit(body()),
        }
    }

    /// Waits for the next child of the current process to end.
    fn next_ending(signals: &Signals) -> (Pid, Ending) {
        loop {
            let received = signals.wait(Some(SOON)).unwrap().expect("a child ends");
            assert_eq!(received.signal, Signal::Child);
            if let Some(ended) = reap().pop() {
                return ended;
            }
        }
    }

    #[test]
    fn endings_are_told_as_nginx_tells_them() {
        for (ending, text) in [
            (Ending::Code(0), "exited with code 0"),
            (Ending::Code(2), "exited with code 2"),
            (Ending::Signal { number: 9, core: false }, "exited on signal 9"),
            (Ending::Signal { number: 11, core: true }, "exited on signal 11 (core dumped)"),
        ] {
            assert_eq!(ending.to_string(), text);
            assert_eq!(ending.is_fatal(), ending == Ending::Code(2));
        }
    }

    #[test]
    fn child_is_reaped_with_its_ending() {
        testing::in_child("process::tests::child_is_reaped_with_its_ending", || {
            let signals = Signals::take().unwrap();
            let pid = fork_child(|| 3).unwrap();
            assert_eq!(next_ending(&signals), (pid, Ending::Code(3)));

            // Waits for ever: its end of the line stays open in us.
            let (ours, theirs) = pair().unwrap();
            let limits = Limits { bytes: 1, fds: 0 };
            let pid = fork_child(|| theirs.receive(limits, None).is_ok().into()).unwrap();
            send_kill(pid).unwrap();
            assert_eq!(next_ending(&signals), (pid, Ending::Signal { number: 9, core: false }));
            drop(ours);
            assert!(reap().is_empty());
        });
    }

    #[test]
    fn fork_with_threads_is_refused() {
        testing::in_child("process::tests::fork_with_threads_is_refused", || {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || stopped.recv());
            assert!(fork_child(|| 0).is_err());
            drop(stop);
            let _ = thread.join();
        });
    }

    #[test]
    fn daemon_has_its_own_session_and_no_output() {
        testing::in_child("process::tests::daemon_has_its_own_session_and_no_output", || {
            let (ours, theirs) = pair().unwrap();
            let before = pid();
            fork_child(move || {
                daemonize().unwrap();
                let out = fs::read_link("/proc/self/fd/1").unwrap();
                let stat = fs::read_to_string("/proc/self/stat").unwrap();
                let session = stat.rsplit_once(')').unwrap().1.split(' ').nth(4).unwrap();
                let text = format!("{} {}", out.display(), session == pid().to_string());
                theirs.send(text.as_bytes(), &[], SOON).unwrap();
                0
            })
            .unwrap();
            assert_eq!(pid(), before);
            let limits = Limits { bytes: 1000, fds: 0 };
            let message = ours.receive(limits, Some(SOON)).unwrap().unwrap();
            assert_eq!(String::from_utf8(message.bytes).unwrap(), "/dev/null true");
        });
    }

    #[test]
    fn new_binary_gets_sockets_and_hears_signals() {
        testing::in_child("process::tests::new_binary_gets_sockets_and_hears_signals", || {
            let signals = Signals::take().unwrap();
            let addr = Addr::Tcp(([127, 0, 0, 1], 0).into());
            let socket = open(&addr, &Options::default(), 1).unwrap().sockets.remove(0);
            let variable = nginx_variable(&[socket.as_fd()]);
            let script = "test -e /proc/$$/fd/${NGINX%;} && test -z \"$HOME\" && kill -TERM $$";
            let argv = ["forebay".into(), "-c".into(), script.into()];
            let env = [("NGINX".into(), variable.into())];
            let sh = Path::new("/bin/sh");
            let pid = exec_upgrade(sh, &argv, &env, &[socket.as_fd()]).unwrap();
            // The shell ends on the signal that is blocked here: the mask was cleared.
            let ending = Ending::Signal { number: Signal::Terminate.number(), core: false };
            assert_eq!(next_ending(&signals), (pid, ending));
            assert!(name_of(socket.as_fd()).is_ok());
            let flags = fcntl(&socket, FcntlArg::F_GETFD).unwrap();
            assert_eq!(flags, FdFlag::FD_CLOEXEC.bits());

            let missing = exec_upgrade(Path::new("/nonexistent"), &argv, &env, &[]).unwrap_err();
            assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
        });
    }

    #[test]
    fn environment_is_what_was_set() {
        testing::in_child("process::tests::environment_is_what_was_set", || {
            let vars = [("A".into(), "1".into()), ("B=".into(), "2".into())];
            set_environment(&vars).unwrap();
            assert_eq!(std::env::vars_os().collect::<Vec<_>>(), vars[..1]);
        });
    }

    #[test]
    fn executable_without_slash_is_found_in_path() {
        assert_eq!(executable(OsStr::new("/a/forebay")).unwrap(), Path::new("/a/forebay"));
        assert_eq!(executable(OsStr::new("./forebay")).unwrap(), Path::new("./forebay"));
        assert!(executable(OsStr::new("sh")).unwrap().is_file());
        assert!(executable(OsStr::new("no-such-program-here")).is_err());
    }

    #[test]
    fn huge_pages_can_be_refused() {
        refuse_huge_pages();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let told = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
        assert!(told.is_none_or(|told| told.trim() == "0"), "{told:?}");
    }
}
