//! A new binary that takes over the listening sockets (USR2; ngx_exec_new_binary).
//! Invariant: the old master stays able to go on alone until it is told to end.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use forebay_rt::errno::Errno;
use forebay_rt::inherit::{self, nginx_variable};
use forebay_rt::process;

use crate::master::Master;
use crate::pid;

impl Master {
    /// Starts the file that we were started from, beside us. The pid file becomes
    /// `nginx.pid.oldbin`, so that the new master writes its own.
    pub(crate) fn upgrade(&mut self) {
        let log = self.cycle.log.clone();
        log.notice("changing binary");
        let name = self.launch.argv.first().cloned().unwrap_or_default();
        let shown = name.to_string_lossy().into_owned();
        let (file, old) = (self.cycle.pid.clone(), pid::old_name(&self.cycle.pid));
        if let Err(err) = fs::rename(&file, &old) {
            log.alert(renaming(&file, &old, "to", "before executing", &shown, &err));
            return;
        }
        let fds = self.cycle.sockets.all();
        let mut env = self.cycle.core.environment(std::env::vars_os());
        env.push((inherit::VARIABLE.into(), nginx_variable(&fds).into()));
        // Makes room for the new master's process title, which lies over the environment.
        env.push(("SPARE".into(), "X".repeat(SPARE).into()));
        // Without it systemd would not hear of the new master.
        env.extend(kept("NOTIFY_SOCKET"));
        let started = process::executable(&name)
            .and_then(|path| process::exec_upgrade(&path, &self.launch.argv, &env, &fds));
        match started {
            Ok(pid) => {
                log.notice(format_args!("start new binary process {pid}"));
                self.new_binary = Some(pid);
            }
            Err(err) => {
                let cause = Errno(&err);
                log.alert(format_args!(
                    "execve() failed while executing new binary process \"{shown}\" ({cause})"
                ));
                self.take_pid_file_back();
            }
        }
    }

    /// The pid file is ours again.
    pub(crate) fn take_pid_file_back(&self) {
        let (file, old) = (&self.cycle.pid, pid::old_name(&self.cycle.pid));
        if let Err(err) = fs::rename(&old, file) {
            let name = self.launch.argv.first().map(|name| name.to_string_lossy());
            let name = name.unwrap_or_default();
            let when = "after the new binary process exited, executing";
            self.cycle.log.alert(renaming(&old, file, "back to", when, &name, &err));
        }
    }
}

/// Bytes; as many as nginx spares.
const SPARE: usize = 304;

fn kept(name: &str) -> Option<(OsString, OsString)> {
    Some((name.into(), std::env::var_os(name)?))
}

fn renaming(
    from: &Path,
    to: &Path,
    how: &str,
    when: &str,
    binary: &str,
    err: &io::Error,
) -> String {
    let (from, to, cause) = (from.display(), to.display(), Errno(err));
    format!("rename() {from} {how} {to} failed {when} new binary process \"{binary}\" ({cause})")
}
