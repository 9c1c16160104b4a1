//! The directives outside `http` (nginx: ngx_core_module in nginx.c, ngx_events_module and
//! ngx_event_core_module in ngx_event.c, ngx_thread_pool_module).
//!
//! What has no meaning here (`use`, `accept_mutex`, `pcre_jit` …) is checked, accepted, and told
//! of in an info line; what nginx can and Forebay must not (`load_module`, `debug_points`) is
//! refused.
//!
//! Invariant: settings only; nothing is opened and no process changed here.

mod directives;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use forebay_conf::Error;
use forebay_rt::affinity;
use forebay_rt::privileges::{self, Identity};
use forebay_session::log::{ErrorLog, LogSet};

pub use directives::{load_main, specs};

/// The settings; `None` where the configuration says nothing.
#[derive(Debug, Default)]
pub struct Core {
    /// `daemon`.
    pub daemon: Option<bool>,
    /// `master_process`.
    pub master_process: Option<bool>,
    /// `pid`, a full name; empty for the default.
    pub pid: Option<PathBuf>,
    /// `worker_processes`: event-loop threads; `Some(None)` is `auto`.
    pub worker_processes: Option<Option<usize>>,
    /// `user`; found when the directive is read.
    pub user: Option<Identity>,
    /// `worker_priority`, a nice value.
    pub worker_priority: Option<i32>,
    /// `worker_cpu_affinity`.
    pub worker_cpu_affinity: Option<Affinity>,
    /// `worker_rlimit_nofile`, files for each thread.
    pub worker_rlimit_nofile: Option<u64>,
    /// `worker_rlimit_core`, bytes.
    pub worker_rlimit_core: Option<u64>,
    /// `worker_shutdown_timeout`, milliseconds.
    pub worker_shutdown_timeout_ms: Option<u64>,
    /// `working_directory`; empty for none, see [`Core::directory`].
    pub working_directory: Option<PathBuf>,
    /// `env`: names, each with a value unless the one at hand is kept.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// `thread_pool`.
    pub thread_pools: Vec<ThreadPool>,
    /// `events`, once it is there.
    pub events: Option<Events>,
    /// `error_log`.
    pub error_log: Option<ErrorLog>,
    /// One of the error logs is standard error.
    pub logs_to_stderr: bool,
    /// The files of `error_log`.
    pub logs: LogSet,
    ignored: Ignored,
}

/// What is read to be checked, and changes nothing.
#[derive(Debug, Default)]
struct Ignored {
    accept_mutex: Option<bool>,
    accept_mutex_delay: Option<u64>,
    lock_file: Option<String>,
    multi_accept: Option<bool>,
    pcre_jit: Option<bool>,
    ssl_object_cache_inheritable: Option<bool>,
    timer_resolution: Option<u64>,
    use_method: Option<()>,
    worker_aio_requests: Option<u64>,
}

/// `events`.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// `worker_connections`, for each thread.
    pub worker_connections: Option<u64>,
}

/// `worker_cpu_affinity`; CPUs are numbered from zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// For each thread its CPUs; the last holds for the threads that follow.
    Masks(Vec<Vec<usize>>),
    /// Each thread gets one of these CPUs, in turn; of all that may be used if none are named.
    Auto(Option<Vec<usize>>),
}

/// `thread_pool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPool {
    /// Its name.
    pub name: String,
    /// `threads`.
    pub threads: usize,
    /// `max_queue`, tasks.
    pub max_queue: usize,
}

/// What a worker is made with and cannot change later: a reload that changes any of it starts a
/// new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Who it runs as; `None` stays who the master is.
    pub user: Option<Identity>,
    /// Whether it may use addresses that are not of this machine, all the same.
    pub transparent: bool,
    /// Its environment.
    pub env: Vec<(OsString, Option<OsString>)>,
}

/// How much a worker may use, which changes with a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Event-loop threads.
    pub threads: usize,
    /// Connections of each thread.
    pub connections: u64,
    /// CPUs of each thread.
    pub affinity: Option<Affinity>,
}

/// Limits of a worker process that the configuration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RLimits {
    /// Open files.
    pub nofile: Option<u64>,
    /// Bytes of a core file.
    pub core: Option<u64>,
}

impl Core {
    /// Event-loop threads.
    pub fn threads(&self) -> usize {
        match self.worker_processes {
            None => 1,
            Some(None) => affinity::online(),
            Some(Some(count)) => count,
        }
    }

    /// The pid file; `default` where none is named, or one without a name.
    pub fn pid_file<'p>(&'p self, default: &'p Path) -> &'p Path {
        self.pid.as_deref().filter(|path| !path.as_os_str().is_empty()).unwrap_or(default)
    }

    /// The directory that a worker enters.
    pub fn directory(&self) -> Option<&Path> {
        self.working_directory.as_deref().filter(|path| !path.as_os_str().is_empty())
    }

    /// What a worker is made with.
    pub fn fixed(&self, transparent: bool) -> Fixed {
        let user = self.user.clone().filter(|_| privileges::is_root());
        Fixed { transparent: transparent && user.is_some(), user, env: self.env.clone() }
    }

    /// How much a worker may use.
    pub fn scale(&self) -> Scale {
        let affinity = self.worker_cpu_affinity.clone();
        Scale { threads: self.threads(), connections: self.connections(), affinity }
    }

    /// Its limits.
    ///
    /// DIFFERS(nofile-per-thread): nginx's limit is that of a process with one event loop; ours has
    /// several, each of which may have as many.
    pub fn limits(&self) -> RLimits {
        let threads = self.threads() as u64;
        let nofile = self.worker_rlimit_nofile.map(|files| files.saturating_mul(threads));
        RLimits { nofile, core: self.worker_rlimit_core }
    }

    /// `worker_connections`, with its default.
    pub fn connections(&self) -> u64 {
        self.events.as_ref().and_then(|events| events.worker_connections).unwrap_or(512)
    }

    /// Without `user`, a master with privileges gives its worker to `nobody`, in the group that
    /// the system has for it (nginx's `configure` looks it up).
    pub fn default_user(&mut self) -> Result<(), Error> {
        if self.user.is_none() && privileges::is_root() {
            let found = privileges::lookup("nobody", None)
                .or_else(|_| privileges::lookup("nobody", Some("nogroup")));
            self.user = Some(found.map_err(|err| Error::global(err.to_string()))?);
        }
        Ok(())
    }

    /// The environment of workers (ngx_set_environment): what `env` names, and `TZ`.
    pub fn environment(
        &self,
        current: impl Iterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let current: BTreeMap<OsString, OsString> = current.collect();
        let tz = (OsString::from("TZ"), None);
        let has_tz = self.env.iter().any(|(name, _)| *name == tz.0);
        let named = (!has_tz).then_some(&tz).into_iter().chain(&self.env);
        let value = |(name, value): &(OsString, Option<OsString>)| {
            let value = value.clone().or_else(|| current.get(name).cloned())?;
            Some((name.clone(), value))
        };
        named.filter_map(value).collect()
    }

    /// What nginx says about settings that do not fit each other; called when all are read.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        // ngx_core_module_init_conf.
        if let Some(Affinity::Masks(masks)) = &self.worker_cpu_affinity
            && masks.len() != 1
            && masks.len() != self.threads()
        {
            remarks.push(
                "the number of \"worker_processes\" is not equal to the number of \
                 \"worker_cpu_affinity\" masks, using last mask for remaining worker processes"
                    .to_string(),
            );
        }
        // ngx_event_module_init: a limit of its own matters only where the present one is short.
        let connections = self.connections();
        if let Ok(present) = privileges::nofile()
            && connections > present
            && self.worker_rlimit_nofile.is_none_or(|limit| connections > limit)
        {
            let limit = self.worker_rlimit_nofile.unwrap_or(present);
            remarks.push(format!(
                "{connections} worker_connections exceed open file resource limit: {limit}"
            ));
        }
        remarks
    }
}

impl Affinity {
    /// The CPUs of a thread, by its number; empty for no binding (ngx_get_cpu_affinity).
    pub fn cpus(&self, thread: usize, allowed: &[usize]) -> Vec<usize> {
        match self {
            Affinity::Masks(masks) => {
                masks.get(thread).or(masks.last()).cloned().unwrap_or_default()
            }
            Affinity::Auto(mask) => {
                let cpus = mask.as_deref().unwrap_or(allowed);
                cpus.get(thread % cpus.len().max(1)).copied().into_iter().collect()
            }
        }
    }
}

#[cfg(test)]
mod tests;
