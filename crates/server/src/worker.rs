//! The worker process: becomes the unprivileged user, loads the master's bundle, serves it with
//! its threads, and obeys signals and the master's messages (nginx: ngx_worker_process_cycle).
//!
//! Invariant: opens nothing that its bundle does not hold.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_conf::Replay;
use forebay_rt::channel::{Channel, Limits};
use forebay_rt::errno::Errno;
use forebay_rt::listen::Addr;
use forebay_rt::privileges::{self, StepError};
use forebay_rt::process::{self, Pid};
use forebay_rt::signals::{Received, Signal, Signals, readable};
use forebay_rt::title;
use forebay_session::log::Severity;

use crate::bundle::{Bundle, Message, Parts};
use crate::core::{Core, Fixed, RLimits};
use crate::cycle::install;
use crate::engine::{Engine, Progress};
use crate::load::{Settings, load};
use crate::log::Log;
use crate::site::Site;

/// What a worker is started with.
pub struct Start {
    /// Its configuration.
    pub bundle: Bundle,
    /// The bundle's descriptors.
    pub parts: Parts,
    /// What holds for its whole life.
    pub fixed: Fixed,
    /// Its nice value at first.
    pub priority: Option<i32>,
    /// Its limits at first.
    pub limits: RLimits,
    /// Its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The line to the master.
    pub channel: Channel,
    /// Who it says it is: `nginx` or `forebay`.
    pub program: &'static str,
    /// Until its own is loaded.
    pub log: Log,
}

/// Runs a worker; answers the code to exit with. 2 says that it cannot work and would not the
/// next time (ngx_worker_process_init).
pub fn run(start: Start) -> i32 {
    title::set(&format!("{}: worker process", start.program));
    let log = start.log.clone();
    let prepared = prepare(&start, &log).map_err(|err| emerg(err.to_string()));
    let worker = prepared.and_then(|()| Worker::begin(start));
    match worker {
        Ok(worker) => {
            // The file that it has open is the master's, and stays open after a rotation.
            drop(log);
            worker.serve()
        }
        Err((severity, problem)) => {
            log.write(severity, problem);
            FATAL
        }
    }
}

/// Why there is no worker, as bad as nginx calls it.
type Problem = (Severity, String);

fn emerg(text: String) -> Problem {
    (Severity::Emerg, text)
}

/// ngx_worker_process_init, up to the point where it is somebody else.
fn prepare(start: &Start, log: &Log) -> Result<(), StepError> {
    // As in nginx, limits that cannot be had are told, and life goes on.
    let told = |result: Result<(), StepError>| {
        if let Err(err) = result {
            log.alert(err);
        }
    };
    if let Err(err) = process::set_environment(&start.environment) {
        log.alert(format_args!("the environment stays as it is ({})", Errno(&err)));
    }
    if let Some(nice) = start.priority {
        told(privileges::set_priority(None, nice));
    }
    limit(None, &start.limits).into_iter().for_each(told);
    if let Some(user) = &start.fixed.user {
        privileges::become_user(user, start.fixed.transparent)?;
    }
    told(privileges::set_dumpable());
    Ok(())
}

/// `working_directory`.
fn enter(directory: &Path) -> Result<(), String> {
    std::env::set_current_dir(directory)
        .map_err(|err| format!("chdir(\"{}\") failed ({})", directory.display(), Errno(&err)))
}

/// Sets the limits of a worker process that the configuration names: before it gives up its
/// privileges or, at a reload, for its master.
pub fn limit(worker: Option<Pid>, limits: &RLimits) -> [Result<(), StepError>; 2] {
    let files = limits.nofile.map(|files| privileges::set_rlimit_nofile(worker, files));
    let core = limits.core.map(|bytes| privileges::set_rlimit_core(worker, bytes));
    [files.unwrap_or(Ok(())), core.unwrap_or(Ok(()))]
}

struct Worker {
    core: Core,
    /// Where it is unless `working_directory` says otherwise.
    home: PathBuf,
    /// How many files it might have open before it had threads.
    inherited_nofile: u64,
    /// Keeps the logs of the configuration in force.
    site: Site,
    engine: Engine,
    signals: Signals,
    channel: Option<Channel>,
    log: Log,
    program: &'static str,
    /// Set when quitting: when connections that are left are closed.
    quitting: Option<Option<Instant>>,
}

impl Worker {
    fn begin(start: Start) -> Result<Worker, Problem> {
        let signals =
            Signals::take().map_err(|err| emerg(format!("signalfd() failed ({})", Errno(&err))))?;
        let Start { bundle, parts, channel, program, .. } = start;
        let (Settings { core, site, .. }, log) = loaded(bundle, &parts.logs).map_err(emerg)?;
        let home = std::env::current_dir().unwrap_or_else(|_| "/".into());
        core.directory().map_or(Ok(()), enter).map_err(|text| (Severity::Alert, text))?;
        let inherited_nofile = privileges::nofile().unwrap_or(u64::MAX);
        allow_files(&core, inherited_nofile, &log);
        let engine = Engine::start(&core.scale(), &site, parts.sockets)
            .map_err(|err| emerg(format!("could not start threads ({})", Errno(&err))))?;
        let channel = Some(channel);
        let worker = Worker {
            core,
            home,
            inherited_nofile,
            site,
            engine,
            signals,
            channel,
            log,
            program,
            quitting: None,
        };
        worker.tell(&Message::Ready);
        Ok(worker)
    }

    fn serve(mut self) -> i32 {
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(err) => {
                    self.log.alert(format_args!("poll() failed ({})", Errno(&err)));
                    return FATAL;
                }
            };
            while let Ok(Some(received)) = self.signals.try_next() {
                if self.obey(received) {
                    return self.exit();
                }
            }
            if ready.channel {
                self.hear();
            }
            match self.engine.progress() {
                Progress::Running => {}
                Progress::Partly if self.quitting.is_some() => {}
                Progress::Ended if self.quitting.is_some() => return self.exit(),
                Progress::Partly | Progress::Ended => {
                    // A whole thread is gone with its connections; the master starts anew.
                    self.log.alert("a worker thread ended unexpectedly");
                    return CRASHED;
                }
            }
            if self.quitting.flatten().is_some_and(|end| Instant::now() >= end) {
                return self.exit();
            }
        }
    }

    fn wait(&self) -> io::Result<Ready> {
        let timeout =
            self.quitting.flatten().map(|end| end.saturating_duration_since(Instant::now()));
        let mut fds = vec![self.signals.as_fd(), self.engine.ended()];
        fds.extend(self.channel.as_ref().map(|channel| channel.as_fd()));
        let ready = readable(&fds, timeout)?;
        Ok(Ready { channel: ready.get(2).copied().unwrap_or(false) })
    }

    /// Obeys a signal; true to exit now (ngx_signal_handler, as for a worker).
    ///
    /// DIFFERS(worker-signals): logs are opened by the master alone, and there are no `debug_points`.
    fn obey(&mut self, received: Received) -> bool {
        let (action, exit) = match received.signal {
            Signal::Quit => (", shutting down", false),
            Signal::Terminate | Signal::Interrupt => (", exiting", true),
            Signal::Alarm | Signal::Child => ("", false),
            _ => (", ignoring", false),
        };
        self.log.notice(format_args!("{received}{action}"));
        if received.signal == Signal::Quit {
            self.quit();
        }
        exit
    }

    fn quit(&mut self) {
        if self.quitting.is_some() {
            return;
        }
        self.log.notice("gracefully shutting down");
        title::set(&format!("{}: worker process is shutting down", self.program));
        let timeout = self.core.worker_shutdown_timeout_ms.map(Duration::from_millis);
        self.quitting = Some(timeout.map(|timeout| Instant::now() + timeout));
        self.engine.quit();
    }

    fn exit(self) -> i32 {
        self.log.notice("exiting");
        self.engine.stop();
        self.log.notice("exit");
        0
    }

    /// Takes a message of the master. One that has gone, or is out of step, is heard no more:
    /// as in nginx, its worker serves on.
    fn hear(&mut self) {
        let Some(channel) = &self.channel else { return };
        let received = channel.receive(LIMITS, Some(PATIENCE));
        let Ok(Some(message)) = received else {
            self.channel = None;
            return;
        };
        let fds = message.fds;
        match Message::decode(&message.bytes) {
            Some(Message::Load(bundle)) => {
                let answer = match bundle.parts(fds).ok_or("incomplete bundle".to_string()) {
                    Ok(parts) => self.reload(*bundle, parts),
                    Err(problem) => Err(problem),
                };
                self.tell(&match answer {
                    Ok(()) => Message::Ready,
                    Err(problem) => Message::Failed(problem),
                });
            }
            Some(Message::Logs(paths)) => {
                let files: BTreeMap<PathBuf, File> =
                    paths.into_iter().zip(fds.into_iter().map(File::from)).collect();
                install(&self.core, &self.site, &files, &self.log);
            }
            Some(Message::Ready | Message::Failed(_)) | None => self.channel = None,
        }
    }

    fn reload(&mut self, bundle: Bundle, parts: Parts) -> Result<(), String> {
        let (Settings { core, site, .. }, log) = loaded(bundle, &parts.logs)?;
        let directory =
            |core: &Core| core.directory().map_or_else(|| self.home.clone(), Path::to_path_buf);
        let (before, directory) = (directory(&self.core), directory(&core));
        if directory != before {
            enter(&directory)?;
        }
        let taken = self.take(&core, &site, parts.sockets, &log);
        if taken.is_err() && directory != before {
            // What is refused changes nothing; that directory was there a moment ago.
            let _ = enter(&before);
        }
        taken?;
        (self.core, self.site, self.log) = (core, site, log);
        Ok(())
    }

    /// Lets the threads serve another configuration.
    fn take(
        &mut self,
        core: &Core,
        site: &Site,
        sockets: BTreeMap<Addr, Vec<OwnedFd>>,
        log: &Log,
    ) -> Result<(), String> {
        site.take_over(&self.site)?;
        allow_files(core, self.inherited_nofile, log);
        let reloaded = self.engine.reload(&core.scale(), site, sockets);
        reloaded.map_err(|err| format!("could not start threads ({})", Errno(&err)))
    }

    fn tell(&self, message: &Message) {
        if let Some(channel) = &self.channel {
            // A master that is gone is noticed by `hear`.
            let _ = channel.send(&message.encode(), &[], PATIENCE);
        }
    }
}

struct Ready {
    channel: bool,
}

/// Where the configuration names no limit, each thread may have as many open files as the process
/// might without threads, as far as the hard limit goes.
fn allow_files(core: &Core, inherited: u64, log: &Log) {
    if core.worker_rlimit_nofile.is_some() {
        return;
    }
    let files = inherited.saturating_mul(core.threads() as u64);
    if let Err(err) = privileges::set_soft_nofile(files) {
        log.alert(err);
    }
}

/// Loads a bundle as the master loaded it.
fn loaded(bundle: Bundle, logs: &BTreeMap<PathBuf, File>) -> Result<(Settings, Log), String> {
    let loaded = load(&bundle.request, &mut Replay(bundle.record));
    let Some(settings) = loaded.settings else {
        // The master had no error; what it read and we cannot have differs.
        let first = loaded.diags.iter().find(|error| error.level.is_error());
        return Err(first.map_or_else(
            || "the configuration could not be loaded".to_string(),
            |error| error.with_place(&loaded.sources),
        ));
    };
    let log = Log::configured(settings.error_log.clone(), settings.core.logs_to_stderr, false);
    install(&settings.core, &settings.site, logs, &log);
    Ok((settings, log))
}

/// Exit code of a worker that need not be started again.
const FATAL: i32 = 2;
/// Exit code of a worker that lost a thread.
const CRASHED: i32 = 1;
/// What a master may send: configurations with all that they include.
const LIMITS: Limits = Limits { bytes: 1 << 30, fds: 1 << 16 };
/// How long either side waits within a message.
const PATIENCE: Duration = Duration::from_secs(30);
