//! The master process: keeps the privileges and the sockets, starts the worker and starts it
//! again when it dies, obeys signals (nginx: ngx_master_process_cycle, ngx_reap_children).
//!
//! It has one thread and waits for three things: signals, words of its workers, and time.
//!
//! Invariant: serves nobody, and gives a worker nothing that the configuration does not name.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use forebay_rt::channel::{self, Channel, Limits};
use forebay_rt::errno::Errno;
use forebay_rt::process::{self, Ending, Forked, Pid};
use forebay_rt::signals::{Received, Signal, Signals, readable};
use forebay_rt::systemd::{self, State};
use forebay_rt::title;
use forebay_session::log::Severity;

use crate::bundle::Message;
use crate::core::{Fixed, RLimits};
use crate::cycle::Cycle;
use crate::pid;
use crate::worker::Start;

/// How the program was started; the same for its whole life.
pub struct Launch {
    /// The command line.
    pub argv: Vec<OsString>,
    /// Who we say we are: `nginx` or `forebay`.
    pub program: &'static str,
    /// In the background, or started by a binary that is being upgraded.
    pub daemonized: bool,
    /// Started by a binary that is being upgraded.
    pub inherited: bool,
    /// Who started us.
    pub parent: Pid,
}

/// The master.
pub struct Master {
    pub(crate) launch: Launch,
    pub(crate) cycle: Cycle,
    pub(crate) workers: Vec<Worker>,
    /// The new binary, while it runs beside us.
    pub(crate) new_binary: Option<Pid>,
    signals: Signals,
    goal: Goal,
    /// Workers were told to end by WINCH; none is started until somebody says so.
    no_accepting: bool,
    /// A worker is to be started when this moment comes.
    start_at: Option<Instant>,
}

/// A worker process.
pub(crate) struct Worker {
    pub pid: Pid,
    /// `None` once it is closed.
    pub channel: Option<Channel>,
    pub fixed: Fixed,
    pub threads: usize,
    pub limits: RLimits,
    pub phase: Phase,
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Loading its configuration.
    Starting,
    /// Serving.
    Serving,
    /// Told to end.
    Leaving,
}

/// What the master works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Serve,
    /// QUIT: ends when its workers have.
    Quit,
    /// TERM: ends when its workers have, which are killed at that moment.
    Stop {
        kill_at: Instant,
    },
}

/// What a process that began as a master is in the end.
pub enum Outcome {
    /// A master that ends, with this code.
    Exit(i32),
    /// A forked child: the worker that it is to be. Nothing of the master is open in it.
    Worker(Box<Start>),
}

/// Something a master does, in which it may become its own child; that goes up to
/// [`Master::run`], which drops the master.
pub(crate) type Step<T = ()> = Result<T, Box<Start>>;

impl Master {
    /// A master for a configuration that is open.
    pub fn new(launch: Launch, cycle: Cycle, signals: Signals) -> Master {
        Master {
            launch,
            cycle,
            workers: Vec::new(),
            new_binary: None,
            signals,
            goal: Goal::Serve,
            no_accepting: false,
            start_at: None,
        }
    }

    /// Starts the worker and obeys signals until it is to end.
    pub fn run(mut self) -> Outcome {
        match self.cycle_forever() {
            Ok(code) => Outcome::Exit(code),
            Err(start) => Outcome::Worker(start),
        }
    }

    fn cycle_forever(&mut self) -> Step<i32> {
        let args: Vec<_> = self.launch.argv.iter().map(|arg| arg.to_string_lossy()).collect();
        title::set(&format!("{}: master process {}", self.launch.program, args.join(" ")));
        self.cycle.log.notice("start worker processes");
        self.start_worker()?;
        loop {
            if let Err(err) = self.wait() {
                self.cycle.log.alert(format_args!("poll() failed ({})", Errno(&err)));
                return Ok(self.exit(1));
            }
            while let Ok(Some(received)) = self.signals.try_next() {
                self.obey(received)?;
            }
            self.hear();
            self.on_time()?;
            if self.goal != Goal::Serve && self.workers.is_empty() {
                return Ok(self.exit(0));
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        let kill_at = match self.goal {
            Goal::Stop { kill_at } => Some(kill_at),
            Goal::Serve | Goal::Quit => None,
        };
        let next = [self.start_at, kill_at].into_iter().flatten().min();
        let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.signals.as_fd()];
        fds.extend(
            self.workers.iter().filter_map(|worker| worker.channel.as_ref()).map(AsFd::as_fd),
        );
        readable(&fds, timeout).map(drop)
    }

    fn on_time(&mut self) -> Step {
        let now = Instant::now();
        if let Goal::Stop { kill_at } = &mut self.goal
            && now >= *kill_at
        {
            *kill_at = now + KILL_AFTER;
            self.workers.iter().for_each(|worker| drop(process::send_kill(worker.pid)));
        }
        // What was put off may not be wanted any more by now.
        let is_due = self.start_at.take_if(|at| now >= *at).is_some();
        if is_due && self.goal == Goal::Serve && !self.no_accepting {
            self.start_worker()?;
        }
        Ok(())
    }

    /// ngx_signal_handler for a master, and what ngx_master_process_cycle then does.
    fn obey(&mut self, received: Received) -> Step {
        let log = self.cycle.log.clone();
        let tell = |action: &str| log.notice(format_args!("{received}{action}"));
        match received.signal {
            Signal::Child => {
                tell("");
                return self.reap();
            }
            Signal::Quit => {
                tell(", shutting down");
                self.quit();
            }
            Signal::Terminate | Signal::Interrupt => {
                tell(", exiting");
                self.stop();
            }
            // A terminal sends this when its size changes; it means nothing then.
            Signal::Winch if !self.launch.daemonized => tell(""),
            Signal::Alarm | Signal::Io => tell(""),
            Signal::Winch => {
                tell(", stop accepting connections");
                self.no_accepting = true;
                self.dismiss_workers(None);
            }
            Signal::Reload => {
                tell(", reconfiguring");
                return self.reload();
            }
            Signal::Reopen => {
                tell(", reopening logs");
                self.reopen();
            }
            Signal::Upgrade if self.is_beside_another() => {
                tell(", ignoring");
                log.write(
                    Severity::Crit,
                    "the changing binary signal is ignored: you should shutdown or terminate \
                     before either old or new binary's process",
                );
            }
            Signal::Upgrade => {
                tell(", changing binary");
                self.upgrade();
            }
        }
        Ok(())
    }

    /// Another binary may run: the old one that started us, or the new one that we started.
    /// As in nginx, who started us counts as the old one as long as it is there.
    fn is_beside_another(&self) -> bool {
        process::parent() == self.launch.parent || self.new_binary.is_some()
    }

    fn quit(&mut self) {
        if self.goal != Goal::Serve {
            return;
        }
        self.say_goodbye();
        self.goal = Goal::Quit;
        self.dismiss_workers(None);
        // The workers have stopped accepting or will in a moment; from now on nobody is let in.
        self.close_sockets();
    }

    fn stop(&mut self) {
        if self.goal == Goal::Serve {
            self.say_goodbye();
        }
        self.goal = Goal::Stop { kill_at: Instant::now() + KILL_AFTER };
        for worker in &mut self.workers {
            worker.phase = Phase::Leaving;
            signal(worker.pid, Signal::Terminate, &self.cycle.log);
        }
    }

    fn say_goodbye(&self) {
        self.tell_systemd(self.new_binary.map_or(State::Stopping, State::MainPid));
    }

    fn close_sockets(&mut self) {
        // ngx_close_listening_sockets: unix sockets stay for another binary that has them too.
        let shared = self.launch.inherited && process::parent() == self.launch.parent;
        if self.new_binary.is_none() && !shared {
            self.cycle.sockets.unlink_missing_from(None);
        }
        self.cycle.sockets = Default::default();
    }

    /// Tells all workers but one to finish what they have and end.
    pub(crate) fn dismiss_workers(&mut self, but: Option<Pid>) {
        for worker in self.workers.iter_mut().filter(|worker| Some(worker.pid) != but) {
            worker.phase = Phase::Leaving;
            signal(worker.pid, Signal::Quit, &self.cycle.log);
        }
    }

    fn reload(&mut self) -> Step {
        if self.goal != Goal::Serve {
            return Ok(());
        }
        // Beside a new binary, HUP calls our workers back (ngx_reconfigure).
        if self.new_binary.is_some() {
            self.no_accepting = false;
            return self.start_worker();
        }
        self.cycle.log.notice("reconfiguring");
        self.tell_systemd(State::Reloading);
        self.reconfigure()?;
        self.tell_systemd(State::Ready);
        Ok(())
    }

    fn reopen(&mut self) {
        self.cycle.log.notice("reopening logs");
        self.cycle.reopen();
        let message = Message::Logs(self.cycle.logs.keys().cloned().collect()).encode();
        let fds: Vec<BorrowedFd<'_>> = self.cycle.logs.values().map(AsFd::as_fd).collect();
        for channel in self.workers.iter().filter_map(|worker| worker.channel.as_ref()) {
            if let Err(err) = channel.send(&message, &fds, PATIENCE) {
                self.cycle.log.alert(format_args!("sendmsg() failed ({})", Errno(&err)));
            }
        }
    }

    /// Starts a worker under the current configuration, now or, if that fails, in a moment.
    pub(crate) fn start_worker(&mut self) -> Step {
        match self.spawn_worker()? {
            Some(worker) => self.workers.push(worker),
            None => self.start_at = Some(Instant::now() + PAUSE),
        }
        Ok(())
    }

    /// Starts a worker; `None`: it failed and is logged.
    pub(crate) fn spawn_worker(&mut self) -> Step<Option<Worker>> {
        let (fixed, limits) =
            (self.cycle.core.fixed(self.cycle.site.transparent()), self.cycle.core.limits());
        let threads = self.cycle.core.threads();
        let forked = self.prepare_worker(fixed.clone(), limits).and_then(|(start, ours)| {
            let forked = process::fork()?;
            Ok((forked, start, ours))
        });
        match forked {
            Ok((Forked::Child, start, _)) => Err(start),
            Ok((Forked::Parent(pid), _, channel)) => {
                self.cycle.log.notice(format_args!("start worker process {pid}"));
                let channel = Some(channel);
                let phase = Phase::Starting;
                Ok(Some(Worker { pid, channel, fixed, threads, limits, phase }))
            }
            Err(err) => {
                let cause = Errno(&err);
                self.cycle.log.alert(format_args!(
                    "fork() failed while spawning \"worker process\" ({cause})"
                ));
                Ok(None)
            }
        }
    }

    fn prepare_worker(&self, fixed: Fixed, limits: RLimits) -> io::Result<(Box<Start>, Channel)> {
        let (ours, channel) = channel::pair()?;
        let bundle = self.cycle.bundle(None);
        let fds = self.cycle.bundle_fds(&bundle);
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<_>>()?;
        let parts = bundle.parts(fds).ok_or_else(|| io::Error::other("incomplete bundle"))?;
        let environment = self.cycle.core.environment(std::env::vars_os());
        let (program, log) = (self.launch.program, self.cycle.log.clone());
        let priority = self.cycle.core.worker_priority;
        let start =
            Start { bundle, parts, fixed, priority, limits, environment, channel, program, log };
        Ok((Box::new(start), ours))
    }

    /// Hears each worker that has something to say, once a round: a talkative one must not keep
    /// us from signals.
    fn hear(&mut self) {
        for index in 0..self.workers.len() {
            let Some(channel) = &self.workers[index].channel else { continue };
            if !matches!(readable(&[channel.as_fd()], Some(Duration::ZERO)).as_deref(), Ok([true]))
            {
                continue;
            }
            match receive(channel, WORD) {
                Some(Message::Ready) => self.on_ready(index),
                // An answer to a reload that we no longer wait for.
                Some(Message::Failed(_)) => {}
                Some(_) | None => self.workers[index].channel = None,
            }
        }
    }

    /// A worker has loaded its configuration.
    pub(crate) fn on_ready(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if worker.phase == Phase::Starting {
            worker.phase = Phase::Serving;
            self.tell_systemd(State::Ready);
        }
    }

    fn tell_systemd(&self, state: State) {
        if let Err(err) = systemd::notify(state) {
            self.cycle.log.alert(format_args!("sd_notify() failed ({})", Errno(&err)));
        }
    }

    /// ngx_reap_children.
    fn reap(&mut self) -> Step {
        for (pid, ending) in process::reap() {
            if self.new_binary == Some(pid) {
                self.tell_ending("new binary process", pid, ending);
                self.on_new_binary_gone()?;
                continue;
            }
            let index = self.workers.iter().position(|worker| worker.pid == pid);
            let Some(index) = index else {
                self.tell_ending("unknown process", pid, ending);
                continue;
            };
            let worker = self.workers.remove(index);
            self.tell_ending("worker process", pid, ending);
            if worker.phase == Phase::Leaving || self.goal != Goal::Serve {
                continue;
            }
            if ending.is_fatal() {
                self.cycle.log.alert(format_args!(
                    "worker process {pid} exited with fatal code 2 and cannot be respawned"
                ));
            } else if worker.phase == Phase::Starting {
                // It died before it served anything; the next one may too, without end.
                self.start_at = Some(Instant::now() + PAUSE);
            } else {
                self.start_worker()?;
            }
        }
        Ok(())
    }

    fn tell_ending(&self, what: &str, pid: Pid, ending: Ending) {
        let severity = match ending {
            Ending::Code(_) => Severity::Notice,
            Ending::Signal { .. } => Severity::Alert,
        };
        self.cycle.log.write(severity, format_args!("{what} {pid} {ending}"));
    }

    /// The new binary has ended, so that we go on alone.
    fn on_new_binary_gone(&mut self) -> Step {
        self.new_binary = None;
        self.take_pid_file_back();
        if std::mem::take(&mut self.no_accepting) && self.goal == Goal::Serve {
            self.start_worker()?;
        }
        Ok(())
    }

    /// ngx_master_process_exit.
    fn exit(&mut self, code: i32) -> i32 {
        let file = match self.new_binary {
            Some(_) => pid::old_name(&self.cycle.pid),
            None => self.cycle.pid.clone(),
        };
        pid::delete(&file, &self.cycle.log);
        self.cycle.log.notice("exit");
        self.close_sockets();
        code
    }
}

/// A message of a worker; `None` when the line is closed or out of step.
pub(crate) fn receive(channel: &Channel, timeout: Duration) -> Option<Message> {
    let message = channel.receive(LIMITS, Some(timeout)).ok()??;
    Message::decode(&message.bytes)
}

fn signal(pid: Pid, signal: Signal, log: &crate::log::Log) {
    if let Err(err) = process::send(pid, signal) {
        // One that has just ended is reaped in a moment.
        log.alert(format_args!("kill({pid}, {}) failed ({})", signal.number(), Errno(&err)));
    }
}

/// What a worker may say: it has no privileges and may have been taken over.
const LIMITS: Limits = Limits { bytes: 1 << 16, fds: 0 };
/// How long a message may take once it has begun.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The same for a word of a worker that we did not ask for: we have other things to do.
const WORD: Duration = Duration::from_secs(1);
/// Between tries to start a worker that does not come to life.
const PAUSE: Duration = Duration::from_millis(200);
/// How long workers have to end after TERM; nginx's limit too.
const KILL_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{builtin, log::Log, sockets::Purpose};
    use forebay_rt::listen::Addr;

    fn master() -> Master {
        let (addr, socket) = builtin::free_port().unwrap();
        let request = builtin::welcome(&addr.to_string());
        let mut inherited = vec![(Addr::Tcp(addr), socket)];
        let log = Log::startup(None);
        let purpose = Purpose::Serve;
        let cycle = Cycle::make(&request, None, &mut inherited, purpose, &mut |_| {}, &log);
        let launch = Launch {
            argv: Vec::new(),
            program: "forebay",
            daemonized: false,
            inherited: false,
            parent: process::parent(),
        };
        Master::new(launch, cycle.expect("it is built in"), Signals::take().unwrap())
    }

    /// Whether a worker is started that was put off to this moment: it cannot be, beside the threads of
    /// this process, and is put off again.
    fn is_started(master: &mut Master) -> bool {
        master.start_at = Some(Instant::now());
        assert!(master.on_time().is_ok());
        master.start_at.is_some()
    }

    #[test]
    fn a_worker_that_was_put_off_is_not_started_when_it_is_no_longer_wanted() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let second = std::thread::spawn(move || held.recv());
        let mut master = master();
        assert!(is_started(&mut master));
        master.no_accepting = true;
        assert!(!is_started(&mut master), "after WINCH");
        master.no_accepting = false;
        master.goal = Goal::Quit;
        assert!(!is_started(&mut master), "after QUIT");
        drop(hold);
        let _ = second.join();
    }
}
