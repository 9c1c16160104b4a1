//! Where things are: the names that nginx's `configure` sets and `-p`, `-c` and `-e` change
//! (ngx_process_options).
//!
//! Two layouts. Without `-p`, that of a package: `/etc/nginx`, `/var/log/nginx`, `/run`. With
//! `-p`, that of nginx's own build: everything below the prefix, in `conf` and `logs`.
//!
//! DIFFERS(prefix-layout): a packaged nginx has full names compiled in, which `-p` does not change.
//!
//! Invariant: names only; nothing is opened here.

use std::path::{Path, PathBuf};

use forebay_http::module::DefaultPaths;

use crate::cli::Options;

/// The names that a start begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// What relative names in the configuration are relative to.
    pub prefix: PathBuf,
    /// The configuration file.
    pub conf: PathBuf,
    /// The error log until the configuration names one, and when it names none; `None` is
    /// standard error.
    pub error_log: Option<PathBuf>,
    /// The log of requests where the configuration names none.
    pub access_log: PathBuf,
    /// The pid file when the configuration names none.
    pub pid: PathBuf,
    /// The directory of the directories of temporary files where the configuration names none;
    /// `None`: each is in the prefix.
    pub temp: Option<PathBuf>,
}

/// `--prefix`.
pub const PREFIX: &str = "/etc/nginx";
/// `--conf-path`.
pub const CONF: &str = "/etc/nginx/nginx.conf";
/// `--error-log-path`.
pub const ERROR_LOG: &str = "/var/log/nginx/error.log";
/// `--http-log-path`.
pub const ACCESS_LOG: &str = "/var/log/nginx/access.log";
/// What `--http-client-body-temp-path` and the like are in.
pub const TEMP: &str = "/var/cache/nginx";
/// `--pid-path`.
pub const PID: &str = "/run/nginx.pid";
/// `--lock-path`.
pub const LOCK: &str = "/run/nginx.lock";

impl Paths {
    /// What the options make of the defaults. `cwd` is the current directory.
    ///
    /// DIFFERS(conf-file-at-hand): a relative `-c` that is not below the prefix is looked for in
    /// the current directory, where nginx gives up; `forebay -c nginx.conf` means the file at hand.
    pub fn new(options: &Options, cwd: &Path, exists: impl Fn(&Path) -> bool) -> Paths {
        let own = options.prefix.as_deref().map(|prefix| cwd.join(prefix));
        let prefix = own.clone().unwrap_or_else(|| PREFIX.into());
        let default = |packaged: &str, below: &str| match &own {
            Some(prefix) => prefix.join(below),
            None => packaged.into(),
        };
        let conf = match options.conf.as_deref() {
            None => default(CONF, "conf/nginx.conf"),
            Some(name) => match (prefix.join(name), cwd.join(name)) {
                (below, here) if !exists(&below) && exists(&here) => here,
                (below, _) => below,
            },
        };
        let error_log = match options.error_log.as_deref() {
            None => Some(default(ERROR_LOG, "logs/error.log")),
            Some(name) if name.as_os_str().is_empty() => None,
            Some(name) => Some(prefix.join(name)),
        };
        let access_log = default(ACCESS_LOG, "logs/access.log");
        let pid = default(PID, "logs/nginx.pid");
        let temp = own.is_none().then(|| TEMP.into());
        Paths { conf, error_log, access_log, pid, temp, prefix }
    }

    /// What of it concerns `http`.
    pub fn http(&self) -> DefaultPaths {
        DefaultPaths { access_log: self.access_log.clone(), temp: self.temp.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(options: Options, files: &[&str]) -> Paths {
        let exists = |path: &Path| files.iter().any(|file| Path::new(file) == path);
        Paths::new(&options, Path::new("/home/me"), exists)
    }

    #[test]
    fn packaged_names_hold_without_prefix() {
        let expected = Paths {
            prefix: PREFIX.into(),
            conf: CONF.into(),
            error_log: Some(ERROR_LOG.into()),
            access_log: ACCESS_LOG.into(),
            pid: PID.into(),
            temp: Some(TEMP.into()),
        };
        assert_eq!(paths(Options::default(), &[]), expected);
    }

    #[test]
    fn everything_is_below_a_given_prefix() {
        for (prefix, full) in [("/srv/x/", "/srv/x"), ("x", "/home/me/x")] {
            let options = Options { prefix: Some(prefix.into()), ..Options::default() };
            let full = Path::new(full);
            let expected = Paths {
                prefix: full.into(),
                conf: full.join("conf/nginx.conf"),
                error_log: Some(full.join("logs/error.log")),
                access_log: full.join("logs/access.log"),
                pid: full.join("logs/nginx.pid"),
                temp: None,
            };
            assert_eq!(paths(options, &[]), expected);
        }
    }

    #[test]
    fn relative_conf_is_below_the_prefix_or_else_at_hand() {
        let conf = |prefix: Option<&str>, files: &[&str]| {
            let options = Options {
                conf: Some("a.conf".into()),
                prefix: prefix.map(PathBuf::from),
                ..Options::default()
            };
            paths(options, files).conf
        };
        let here = "/home/me/a.conf";
        assert_eq!(conf(None, &[]), Path::new("/etc/nginx/a.conf"));
        assert_eq!(conf(None, &[here]), Path::new(here));
        assert_eq!(conf(None, &[here, "/etc/nginx/a.conf"]), Path::new("/etc/nginx/a.conf"));
        assert_eq!(conf(Some("/p"), &["/p/a.conf", here]), Path::new("/p/a.conf"));
        assert_eq!(conf(Some("/p"), &[here]), Path::new(here));
    }

    #[test]
    fn error_log_option_is_a_name_or_standard_error() {
        let log = |name: &str| {
            let error_log = Some(name.into());
            paths(Options { error_log, ..Options::default() }, &[]).error_log
        };
        assert_eq!(log("/a"), Some("/a".into()));
        assert_eq!(log("a"), Some("/etc/nginx/a".into()));
        assert_eq!(log(""), None);
    }
}
