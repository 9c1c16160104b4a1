//! One process for both (`master_process off`, and the built-in configurations): serves in its
//! threads and obeys signals itself (nginx: ngx_single_process_cycle).
//! Invariant: keeps whatever privileges it was started with, as nginx does in this mode.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use forebay_rt::errno::Errno;
use forebay_rt::listen::Addr;
use forebay_rt::process;
use forebay_rt::signals::{Received, Signal, Signals, readable};
use forebay_rt::systemd::{self, State};

use crate::core::Fixed;
use crate::cycle::Cycle;
use crate::engine::{Engine, Progress};
use crate::pid;
use crate::sockets::{Purpose, Sockets};

/// The process.
pub struct Single {
    cycle: Cycle,
    fixed: Fixed,
    engine: Engine,
    signals: Signals,
    /// There is a pid file to remove.
    has_pid_file: bool,
    /// Set when quitting: when connections that are left are closed.
    quitting: Option<Option<Instant>>,
}

impl Single {
    /// Starts serving.
    pub fn start(cycle: Cycle, signals: Signals, has_pid_file: bool) -> io::Result<Single> {
        process::set_environment(&cycle.core.environment(std::env::vars_os()))?;
        let fixed = cycle.core.fixed(cycle.site.transparent());
        let sockets = sockets_new_to(&cycle, None)?;
        let scale = cycle.core.scale();
        let engine = Engine::start(&scale, &cycle.site, sockets)?;
        let single = Single { cycle, fixed, engine, signals, has_pid_file, quitting: None };
        single.tell_systemd(State::Ready);
        Ok(single)
    }

    /// Serves until told to end; answers the exit code.
    pub fn run(mut self) -> i32 {
        loop {
            let end = self.quitting.flatten();
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if let Err(err) = readable(&[self.signals.as_fd(), self.engine.ended()], left) {
                self.cycle.log.alert(format_args!("poll() failed ({})", Errno(&err)));
                return self.exit(1);
            }
            while let Ok(Some(received)) = self.signals.try_next() {
                if self.obey(received) {
                    return self.exit(0);
                }
            }
            match self.engine.progress() {
                Progress::Running => {}
                Progress::Partly if self.quitting.is_some() => {}
                Progress::Ended if self.quitting.is_some() => return self.exit(0),
                Progress::Partly | Progress::Ended => {
                    self.cycle.log.alert("a worker thread ended unexpectedly");
                    return self.exit(1);
                }
            }
            if self.quitting.flatten().is_some_and(|end| Instant::now() >= end) {
                return self.exit(0);
            }
        }
    }

    /// Obeys a signal; true to exit now.
    fn obey(&mut self, received: Received) -> bool {
        let action = match received.signal {
            Signal::Quit => ", shutting down",
            Signal::Terminate | Signal::Interrupt => ", exiting",
            Signal::Reload => ", reconfiguring",
            Signal::Reopen => ", reopening logs",
            Signal::Upgrade => ", ignoring",
            Signal::Winch | Signal::Child | Signal::Alarm | Signal::Io => "",
        };
        self.cycle.log.notice(format_args!("{received}{action}"));
        match received.signal {
            Signal::Terminate | Signal::Interrupt => return true,
            Signal::Quit => self.quit(),
            Signal::Reload => self.reload(),
            Signal::Reopen => {
                self.cycle.log.notice("reopening logs");
                self.cycle.reopen();
            }
            Signal::Upgrade | Signal::Winch | Signal::Child | Signal::Alarm | Signal::Io => {}
        }
        false
    }

    fn quit(&mut self) {
        if self.quitting.is_some() {
            return;
        }
        self.cycle.log.notice("gracefully shutting down");
        self.tell_systemd(State::Stopping);
        let timeout = self.cycle.core.worker_shutdown_timeout_ms.map(Duration::from_millis);
        self.quitting = Some(timeout.map(|timeout| Instant::now() + timeout));
        self.engine.quit();
        self.cycle.sockets.unlink_missing_from(None);
        self.cycle.sockets = Sockets::default();
    }

    fn reload(&mut self) {
        if self.quitting.is_some() {
            return;
        }
        self.cycle.log.notice("reconfiguring");
        self.tell_systemd(State::Reloading);
        let log = self.cycle.log.clone();
        let request = self.cycle.request.clone();
        let (old, purpose) = (Some(&self.cycle), Purpose::Serve);
        let made = Cycle::make(&request, old, &mut Vec::new(), purpose, &mut |_| {}, &log);
        if let Some(next) = made {
            next.log.tell_event_method();
            self.take(next);
        }
        self.tell_systemd(State::Ready);
    }

    fn take(&mut self, next: Cycle) {
        if next.core.fixed(next.site.transparent()) != self.fixed {
            next.log.warn(
                "what holds for the whole process (user, environment) changes with the next start",
            );
        }
        if let Err(why) = next.site.take_over(&self.cycle.site) {
            next.sockets.unlink_missing_from(Some(&self.cycle.sockets));
            return next.log.emerg(why);
        }
        let scale = next.core.scale();
        // The sockets are dealt out anew to another number of threads.
        let known = (self.cycle.core.threads() == scale.threads).then_some(&self.cycle.sockets);
        let sockets = sockets_new_to(&next, known);
        if let Err(err) = sockets.and_then(|new| self.engine.reload(&scale, &next.site, new)) {
            next.sockets.unlink_missing_from(Some(&self.cycle.sockets));
            return next.log.emerg(format_args!("could not start threads ({})", Errno(&err)));
        }
        next.replace(&self.cycle);
        if self.has_pid_file && next.pid != self.cycle.pid && pid::create(&next.pid, &next.log) {
            pid::delete(&self.cycle.pid, &self.cycle.log);
        }
        self.cycle = next;
    }

    fn tell_systemd(&self, state: State) {
        if let Err(err) = systemd::notify(state) {
            self.cycle.log.alert(format_args!("sd_notify() failed ({})", Errno(&err)));
        }
    }

    fn exit(self, code: i32) -> i32 {
        self.cycle.log.notice("exiting");
        self.engine.stop();
        if self.has_pid_file {
            pid::delete(&self.cycle.pid, &self.cycle.log);
        }
        self.cycle.sockets.unlink_missing_from(None);
        self.cycle.log.notice("exit");
        code
    }
}

/// Copies, for the threads, of the sockets that `known` does not have.
fn sockets_new_to(
    cycle: &Cycle,
    known: Option<&Sockets>,
) -> io::Result<BTreeMap<Addr, Vec<OwnedFd>>> {
    let new = |addr: &Addr| known.is_none_or(|known| known.of(addr).is_empty());
    let copied = |(addr, group): (&Addr, &[std::sync::Arc<OwnedFd>])| {
        let sockets = group.iter().map(|fd| fd.try_clone()).collect::<io::Result<_>>()?;
        Ok((addr.clone(), sockets))
    };
    cycle.sockets.iter().filter(|(addr, _)| new(addr)).map(copied).collect()
}
