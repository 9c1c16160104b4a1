//! A configuration in force, with all that it has opened: nginx's `ngx_cycle_t` (ngx_cycle.c).
//!
//! Invariant: making one changes nothing of the one before; only [`Cycle::replace`] ends it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use forebay_conf::{Direct, Record, Recording, Sources};
use forebay_rt::errno::Errno;
use forebay_rt::{privileges, process};
use forebay_session::log::Severity;

use crate::bundle::Bundle;
use crate::core::Core;
use crate::load::{Loaded, Request, Settings, load};
use crate::log::{Log, open_file};
use crate::pid;
use crate::site::Site;
use crate::sockets::{Inherited, Purpose, Sockets};

/// A configuration in force.
pub struct Cycle {
    /// What was asked for.
    pub request: Request,
    /// What its files said.
    pub record: Record,
    /// What stands outside `http`.
    pub core: Core,
    /// `http`.
    pub site: Site,
    /// The listening sockets.
    pub sockets: Sockets,
    /// The open log files, by name.
    pub logs: BTreeMap<PathBuf, File>,
    /// The error log.
    pub log: Log,
    /// The pid file.
    pub pid: PathBuf,
}

impl Cycle {
    /// Loads a configuration and opens what it names (ngx_init_cycle). Everything that goes wrong
    /// is logged, to `log` as long as the configuration's own is not open. `loaded` is called when
    /// all files are read and nothing is wrong with them.
    pub fn make(
        request: &Request,
        old: Option<&Cycle>,
        inherited: &mut Inherited,
        purpose: Purpose,
        loaded: &mut dyn FnMut(&Sources),
        log: &Log,
    ) -> Option<Cycle> {
        let mut files = Recording::new(Direct);
        let Loaded { settings, sources, diags } = load(request, &mut files);
        log.report(&diags, &sources, purpose == Purpose::Test);
        let settings = settings?;
        loaded(&sources);
        settings.check(&sources).map_err(|error| log.emerg(error)).ok()?;
        let wanted = settings.site.listeners();
        // ngx_event_process_init counts listening sockets among the connections, and one more.
        let (connections, sockets) = (settings.core.connections(), wanted.len());
        if connections <= sockets as u64 {
            log.emerg(format_args!(
                "{connections} worker_connections are not enough for {sockets} listening sockets"
            ));
            return None;
        }
        let pid = settings.core.pid_file(&request.paths.pid).to_path_buf();
        // A start makes it when it is in the background.
        let is_other = old.is_some_and(|old| old.pid != pid);
        if (is_other || purpose == Purpose::Test) && !pid::probe(&pid, log) {
            return None;
        }
        make_temp_dirs(&settings, log)?;
        let logs = open_logs(&settings, log)?;
        let Settings { core, site, error_log } = settings;
        // The start goes on with the configured log, and on the terminal as before.
        let log = Log::configured(error_log, core.logs_to_stderr, old.is_none());
        core.remarks().iter().for_each(|remark| log.warn(remark));
        let threads = if purpose == Purpose::Test { 1 } else { core.threads() };
        let before = old.map(|old| &old.sockets);
        let sockets = Sockets::open(&wanted, threads, before, inherited, purpose, &log)?;
        let record = files.into_record();
        Some(Cycle { request: request.clone(), record, core, site, sockets, logs, log, pid })
    }

    /// Ends the cycle before: its sockets close unless they are ours too, and changed options are
    /// put on those.
    pub fn replace(&self, old: &Cycle) {
        self.sockets.apply_changes(&old.sockets, &self.log);
        old.sockets.unlink_missing_from(Some(&self.sockets));
    }

    /// What a worker that has the sockets of `known` needs to serve this.
    pub fn bundle(&self, known: Option<&Sockets>) -> Bundle {
        let listeners = self.sockets.iter().map(|(addr, group)| {
            let has = known.is_some_and(|known| !known.of(addr).is_empty());
            (addr.clone(), if has { 0 } else { group.len() })
        });
        Bundle {
            request: self.request.clone(),
            record: self.record.clone(),
            listeners: listeners.collect(),
            logs: self.logs.keys().cloned().collect(),
        }
    }

    /// The descriptors of [`Cycle::bundle`], in its order.
    pub fn bundle_fds(&self, bundle: &Bundle) -> Vec<BorrowedFd<'_>> {
        let new = bundle.listeners.iter().filter(|(_, count)| *count > 0);
        let sockets = new.flat_map(|(addr, _)| self.sockets.of(addr)).map(|fd| fd.as_fd());
        sockets.chain(self.logs.values().map(AsFd::as_fd)).collect()
    }

    /// Opens the log files again, for a rotation (ngx_reopen_files). A file that cannot be opened
    /// stays as it is.
    pub fn reopen(&mut self) {
        for (path, file) in &mut self.logs {
            match open_file(path) {
                Ok(new) => {
                    give_to_worker(&new, path, &self.core, &self.log);
                    *file = new;
                }
                Err(err) => self.log.write(
                    Severity::Emerg,
                    format_args!("open() \"{}\" failed ({})", path.display(), Errno(&err)),
                ),
            }
        }
        install(&self.core, &self.site, &self.logs, &self.log);
        self.redirect_stderr();
    }

    /// Makes standard error the first error log (ngx_log_redirect_stderr): what a panic says is
    /// found there.
    pub fn redirect_stderr(&self) {
        let file = self.core.logs.paths().first().and_then(|path| self.logs.get(path));
        let is_a_log = self.core.logs_to_stderr || self.site.names_stderr();
        if let Some(file) = file.filter(|_| !is_a_log)
            && let Err(err) = process::redirect_stderr(file.as_fd())
        {
            self.log.alert(format_args!("dup2(STDERR) failed ({})", Errno(&err)));
        }
    }
}

/// Gives every log of a configuration its file, and every thread pool its size; logs without a file
/// stay as they are.
pub fn install(core: &Core, site: &Site, files: &BTreeMap<PathBuf, File>, log: &Log) {
    for pool in &core.thread_pools {
        forebay_rt::threads::configure(&pool.name, pool.threads, pool.max_queue);
    }
    for target in core.logs.iter().chain(site.logs()) {
        let Some(file) = files.get(target.path()) else { continue };
        match file.try_clone() {
            Ok(file) => target.install(file),
            Err(err) => log.alert(format_args!(
                "dup() of \"{}\" failed ({})",
                target.path().display(),
                Errno(&err)
            )),
        }
    }
}

/// Makes the directories of temporary files and gives them to the workers' user
/// (ngx_create_paths).
///
/// DIFFERS(temp-path-parents): nginx makes the last directory of a name only, and does not start if
/// those above are not there.
fn make_temp_dirs(settings: &Settings, log: &Log) -> Option<()> {
    let user = settings.core.user.as_ref().filter(|_| privileges::is_root());
    for path in settings.site.temp_paths() {
        let shown = path.display();
        let made = make_temp_dir(&path);
        // What is there already is looked at when it is needed, as in nginx.
        if let Err(err) = made
            && err.kind() != io::ErrorKind::AlreadyExists
        {
            log.emerg(format_args!("mkdir() \"{shown}\" failed ({})", Errno(&err)));
            return None;
        }
        let Some(user) = user else { continue };
        if let Err(err) = std::os::unix::fs::chown(&path, Some(user.uid), None) {
            let uid = user.uid;
            log.emerg(format_args!("chown(\"{shown}\", {uid}) failed ({})", Errno(&err)));
            return None;
        }
    }
    Some(())
}

/// It is the workers' alone; those above it, they pass through.
fn make_temp_dir(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(above)?;
    }
    fs::DirBuilder::new().mode(0o700).create(path)
}

fn open_logs(settings: &Settings, log: &Log) -> Option<BTreeMap<PathBuf, File>> {
    let mut files = BTreeMap::new();
    for path in settings.core.logs.paths().into_iter().chain(settings.site.log_paths()) {
        if files.contains_key(&path) {
            continue;
        }
        match open_file(&path) {
            Ok(file) => {
                files.insert(path, file);
            }
            Err(err) => {
                let path = path.display();
                log.emerg(format_args!("open() \"{path}\" failed ({})", Errno(&err)));
                return None;
            }
        }
    }
    install(&settings.core, &settings.site, &files, log);
    Some(files)
}

/// nginx gives a reopened log to the workers' user, who there opens it; we do, so that rotation
/// scripts meet the owner that they expect.
fn give_to_worker(file: &File, path: &Path, core: &Core, log: &Log) {
    let Some(user) = core.user.as_ref().filter(|_| privileges::is_root()) else { return };
    if let Err(err) = std::os::unix::fs::fchown(file, Some(user.uid), None) {
        let path = path.display();
        log.emerg(format_args!("chown(\"{path}\", {}) failed ({})", user.uid, Errno(&err)));
    }
}

#[cfg(test)]
mod tests {
    use forebay_rt::listen::Addr;

    use super::*;
    use crate::builtin;

    #[test]
    fn a_pid_file_that_cannot_be_made_fails_a_reload() {
        let (addr, socket) = builtin::free_port().unwrap();
        let mut request = builtin::welcome(&addr.to_string());
        let log = Log::startup(None);
        let make = |request: &Request, old: Option<&Cycle>, mut inherited: Inherited| {
            Cycle::make(request, old, &mut inherited, Purpose::Serve, &mut |_| {}, &log)
        };
        let old = make(&request, None, vec![(Addr::Tcp(addr), socket)]).expect("it is built in");
        assert!(make(&request, Some(&old), Vec::new()).is_some());
        request.paths.pid = "/nowhere/at/all".into();
        assert!(make(&request, Some(&old), Vec::new()).is_none());
    }
}
