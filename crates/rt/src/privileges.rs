//! What a worker gives up and takes on before it serves: user and group, priority, limits
//! (nginx: ngx_worker_process_init, ngx_set_user).
//! Invariant: never gives back a privilege.

use std::ffi::CString;
use std::fmt;
use std::io;

use nix::errno::Errno as Code;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Gid, Group, Uid, User, geteuid, initgroups, setgid, setuid};

use rustix::process::{
    Resource as Limited, Rlimit, getpriority_process, prlimit, setpriority_process,
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities};

use crate::errno::Errno;
use crate::process::Pid;

/// The user and group that a worker becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's name, for its supplementary groups.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A step that failed, in nginx's words: `setgid(33) failed (1: Operation not permitted)`.
#[derive(Debug)]
pub struct StepError {
    /// The call.
    pub call: String,
    /// Why; getpwnam(3) of an unknown name has no reason.
    pub source: Option<io::Error>,
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{} failed ({})", self.call, Errno(source)),
            None => write!(f, "{} failed", self.call),
        }
    }
}

impl std::error::Error for StepError {}

/// Finds a user and, unless named apart, the group of the same name, as the `user` directive does.
pub fn lookup(user: &str, group: Option<&str>) -> Result<Identity, StepError> {
    let uid = match User::from_name(user) {
        Ok(Some(found)) => found.uid.as_raw(),
        other => return Err(not_found("getpwnam", user, other.err())),
    };
    let group = group.unwrap_or(user);
    let gid = match Group::from_name(group) {
        Ok(Some(found)) => found.gid.as_raw(),
        other => return Err(not_found("getgrnam", group, other.err())),
    };
    Ok(Identity { name: user.to_string(), uid, gid })
}

/// True when we may become somebody else.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Becomes `identity`, for good: group, supplementary groups, user, in this order. `transparent`: may
/// use addresses that are not of this machine, as threads that it starts later may, and keeps
/// CAP_NET_RAW for that.
pub fn become_user(identity: &Identity, transparent: bool) -> Result<(), StepError> {
    let Identity { name, uid, gid } = identity;
    if transparent {
        let call = || "prctl(PR_SET_KEEPCAPS, 1)".to_owned();
        set_keep_capabilities(true)
            .map_err(|code| StepError { call: call(), source: Some(code.into()) })?;
    }
    setgid(Gid::from_raw(*gid)).map_err(step(format!("setgid({gid})")))?;
    let c_name = CString::new(name.as_str()).unwrap_or_default();
    initgroups(&c_name, Gid::from_raw(*gid)).map_err(step(format!("initgroups({name}, {gid})")))?;
    setuid(Uid::from_raw(*uid)).map_err(step(format!("setuid({uid})")))?;
    if !transparent {
        return Ok(());
    }
    let (raw, inheritable) = (CapabilitySet::NET_RAW, CapabilitySet::empty());
    set_capabilities(None, CapabilitySets { effective: raw, permitted: raw, inheritable })
        .map_err(|code| StepError { call: "capset()".to_owned(), source: Some(code.into()) })
}

/// Allows core files again, which a change of user had switched off (PR_SET_DUMPABLE).
pub fn set_dumpable() -> Result<(), StepError> {
    prctl::set_dumpable(true).map_err(step("prctl(PR_SET_DUMPABLE)".into()))
}

/// `worker_priority`: the nice value, -20 to 20, of the calling thread, which those that it starts
/// inherit; or of a process with all of its threads.
pub fn set_priority(process: Option<Pid>, nice: i32) -> Result<(), StepError> {
    let failed = |source| StepError { call: format!("setpriority({nice})"), source: Some(source) };
    let Some(process) = process else {
        return setpriority_process(None, nice).map_err(|code| failed(code.into()));
    };
    for entry in std::fs::read_dir(format!("/proc/{process}/task")).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok());
        let Some(thread) = thread.and_then(rustix::process::Pid::from_raw) else { continue };
        match setpriority_process(Some(thread), nice) {
            // It has ended meanwhile.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(code) => return Err(failed(code.into())),
        }
    }
    Ok(())
}

/// The nice value of the calling thread.
pub fn priority() -> Result<i32, StepError> {
    getpriority_process(None)
        .map_err(|code| StepError { call: "getpriority()".into(), source: Some(code.into()) })
}

/// `worker_rlimit_nofile` of a process (`None`: this one): both the soft and the hard limit, as nginx
/// sets them; at most what the kernel takes at all (`fs.nr_open`).
pub fn set_rlimit_nofile(process: Option<Pid>, files: u64) -> Result<(), StepError> {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let most = most.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    let files = files.min(most);
    let call = || format!("setrlimit(RLIMIT_NOFILE, {files})");
    set_limit(process, Limited::Nofile, (files, files), call)
}

/// Sets the soft limit of open files to so many, or as many as the hard limit allows.
pub fn set_soft_nofile(files: u64) -> Result<(), StepError> {
    let call = || "setrlimit(RLIMIT_NOFILE)".to_string();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(step(call()))?;
    set_limit(None, Limited::Nofile, (files.min(hard), hard), call)
}

/// `worker_rlimit_core` of a process, bytes.
pub fn set_rlimit_core(process: Option<Pid>, bytes: u64) -> Result<(), StepError> {
    let call = || format!("setrlimit(RLIMIT_CORE, {bytes})");
    set_limit(process, Limited::Core, (bytes, bytes), call)
}

fn set_limit(
    process: Option<Pid>,
    resource: Limited,
    (soft, hard): (u64, u64),
    call: impl FnOnce() -> String,
) -> Result<(), StepError> {
    let process = process.and_then(rustix::process::Pid::from_raw);
    let limits = Rlimit { current: Some(soft), maximum: Some(hard) };
    match prlimit(process, resource, limits) {
        Ok(_) => Ok(()),
        Err(err) => Err(StepError { call: call(), source: Some(err.into()) }),
    }
}

/// The soft limit of open files; nginx warns when `worker_connections` is above it.
pub fn nofile() -> io::Result<u64> {
    Ok(nofile_limits()?.0)
}

/// The limits of open files, soft and hard.
pub fn nofile_limits() -> io::Result<(u64, u64)> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?)
}

fn step(call: String) -> impl FnOnce(Code) -> StepError {
    move |code| StepError { call, source: Some(code.into()) }
}

fn not_found(call: &str, name: &str, code: Option<Code>) -> StepError {
    StepError { call: format!("{call}(\"{name}\")"), source: code.map(io::Error::from) }
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::setrlimit;

    use super::*;
    use crate::testing;

    #[test]
    fn users_and_groups_are_found_by_name() {
        let root = lookup("root", None).unwrap();
        assert_eq!(root, Identity { name: "root".into(), uid: 0, gid: 0 });
        let err = lookup("no-such-user", None).unwrap_err();
        assert_eq!(err.to_string(), "getpwnam(\"no-such-user\") failed");
        let err = lookup("root", Some("no-such-group")).unwrap_err();
        assert_eq!(err.to_string(), "getgrnam(\"no-such-group\") failed");
    }

    #[test]
    fn dropped_privileges_do_not_come_back() {
        if !is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        testing::in_child("privileges::tests::dropped_privileges_do_not_come_back", || {
            let identity = Identity { name: "nobody".into(), uid: 65534, gid: 65534 };
            set_rlimit_nofile(None, 1000).unwrap();
            set_soft_nofile(3000).unwrap();
            assert_eq!(nofile().unwrap(), 1000, "the hard limit holds");
            setrlimit(Resource::RLIMIT_NOFILE, 100, 200).unwrap();
            set_soft_nofile(100).unwrap();
            assert_eq!(nofile().unwrap(), 100);
            set_soft_nofile(200).unwrap();
            set_rlimit_core(None, 0).unwrap();
            set_priority(None, 3).unwrap();
            assert_eq!(priority().unwrap(), 3);
            become_user(&identity, false).unwrap();
            set_dumpable().unwrap();
            assert_eq!(nofile().unwrap(), 200);
            assert!(!is_root());
            assert!(setuid(Uid::from_raw(0)).is_err() && setgid(Gid::from_raw(0)).is_err());
            assert!(nix::unistd::getgroups().unwrap().iter().all(|gid| gid.as_raw() != 0));
            let err =
                become_user(&Identity { name: "root".into(), uid: 0, gid: 0 }, false).unwrap_err();
            assert_eq!(err.to_string(), "setgid(0) failed (1: Operation not permitted)");
            let err = set_rlimit_nofile(None, 4000).unwrap_err().to_string();
            assert_eq!(err, "setrlimit(RLIMIT_NOFILE, 4000) failed (1: Operation not permitted)");
        });
    }
}
