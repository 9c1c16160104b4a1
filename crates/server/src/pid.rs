//! The pid file (nginx: ngx_create_pidfile, ngx_delete_pidfile, ngx_signal_process).

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_rt::errno::Errno;
use forebay_rt::process::{self, Pid};
use forebay_session::log::Severity;

use crate::log::Log;

/// Writes our id. False: it failed and is logged.
pub fn create(path: &Path, log: &Log) -> bool {
    let result = fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(path)
        .and_then(|mut file| writeln!(file, "{}", process::pid()));
    result.inspect_err(|err| log.emerg(failed("open()", path, err))).is_ok()
}

/// Whether one could be written, for `-t`; what is there stays.
pub fn probe(path: &Path, log: &Log) -> bool {
    let result =
        fs::File::options().write(true).create(true).truncate(false).mode(0o644).open(path);
    result.inspect_err(|err| log.emerg(failed("open()", path, err))).is_ok()
}

/// Removes it.
pub fn delete(path: &Path, log: &Log) {
    if let Err(err) = fs::remove_file(path) {
        log.alert(failed("unlink()", path, &err));
    }
}

/// Reads the id of a running master; the error is nginx's.
pub fn read(path: &Path) -> Result<Pid, (Severity, String)> {
    let mut file =
        fs::File::open(path).map_err(|err| (Severity::Error, failed("open()", path, &err)))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(|err| (Severity::Crit, failed("pread()", path, &err)))?;
    // ngx_signal_process drops trailing line ends and reads digits.
    let text = String::from_utf8_lossy(&text);
    let digits = text.trim_end_matches(['\r', '\n']);
    let pid = digits.parse::<Pid>().ok().filter(|pid| *pid > 0 && !digits.starts_with('+'));
    pid.ok_or_else(|| {
        let text = format!("invalid PID number \"{digits}\" in \"{}\"", path.display());
        (Severity::Error, text)
    })
}

/// Where the file of an old master waits while a new binary runs (NGX_OLDPID_EXT).
pub fn old_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".oldbin");
    name.into()
}

fn failed(call: &str, path: &Path, err: &std::io::Error) -> String {
    format!("{call} \"{}\" failed ({})", path.display(), Errno(err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_holds_our_id_until_deleted() {
        let path = std::env::temp_dir().join(format!("forebay-pid-{}", process::pid()));
        let log = Log::startup(None);
        assert!(create(&path, &log) && probe(&path, &log));
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", process::pid()));
        assert_eq!(read(&path), Ok(process::pid()));
        delete(&path, &log);
        let missing =
            format!("open() \"{}\" failed (2: No such file or directory)", path.display());
        assert_eq!(read(&path), Err((Severity::Error, missing)));
        let dir = std::env::temp_dir();
        let directory = format!("pread() \"{}\" failed (21: Is a directory)", dir.display());
        assert_eq!(read(&dir), Err((Severity::Crit, directory)));
    }

    #[test]
    fn what_is_no_id_is_refused_in_nginx_s_words() {
        let path = std::env::temp_dir().join(format!("forebay-bad-pid-{}", process::pid()));
        for text in ["", "x", "-1", "+1", "0", "1 2", "99999999999"] {
            fs::write(&path, format!("{text}\n")).unwrap();
            let error = format!("invalid PID number \"{text}\" in \"{}\"", path.display());
            assert_eq!(read(&path), Err((Severity::Error, error)));
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn old_name_has_nginx_s_ending() {
        assert_eq!(old_name(Path::new("/run/nginx.pid")), Path::new("/run/nginx.pid.oldbin"));
    }
}
