//! Renames, copies and deletes files and trees (`ngx_ext_rename_file`, `ngx_copy_file`,
//! `ngx_walk_tree`).
//!
//! Invariant: symbolic links within a tree are never followed: they are deleted as links, and not
//! copied.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use forebay_rt::{errno::Errno, task};
use forebay_session::log::{Severity, Shown};

use super::{failed, make_parents};
use crate::request::Request;

/// How many bytes are copied before others get their turn.
const STEP: usize = 256 << 10;

fn told(r: &Request, call: &str, path: &Path, error: &io::Error) -> u16 {
    let (path, error) = (Shown::path(path), Errno(error));
    r.log_error(Severity::Crit, format_args!("{call} \"{path}\" failed ({error})"));
    500
}

/// Deletes a file, or a directory with all that is in it.
pub fn delete(r: &Request, path: &Path, is_dir: bool) -> Result<(), u16> {
    let (call, result) = match is_dir {
        true => ("rmdir()", fs::remove_dir_all(path)),
        false => ("unlink()", fs::remove_file(path)),
    };
    result.map_err(|error| failed(r, call, path, &error, 403))
}

/// Moves a file, over the one that is there.
pub struct Rename {
    /// The permissions that it gets.
    pub access: Option<u32>,
    /// Those of the files in directories that are made for it.
    pub path_access: u32,
    /// Whether these are made.
    pub create_path: bool,
}

impl Rename {
    /// Does it.
    pub async fn run(&self, r: &Request, from: &Path, to: &Path) -> Result<(), u16> {
        if let Some(access) = self.access {
            fs::set_permissions(from, fs::Permissions::from_mode(access))
                .map_err(|error| told(r, "chmod()", from, &error))?;
        }
        let mut renamed = fs::rename(from, to);
        let missing = |result: &io::Result<()>| matches!(result, Err(e) if e.kind() == io::ErrorKind::NotFound);
        if self.create_path && missing(&renamed) {
            make_parents(to, self.path_access).map_err(|error| told(r, "mkdir()", to, &error))?;
            renamed = fs::rename(from, to);
        }
        match renamed {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                self.across(r, from, to).await
            }
            Err(error) => {
                let (from, to, error) = (Shown::path(from), Shown::path(to), Errno(&error));
                let text = format_args!("rename() \"{from}\" to \"{to}\" failed ({error})");
                r.log_error(Severity::Crit, text);
                Err(500)
            }
        }
    }

    /// To another file system: as a copy beside the destination, which takes its place at once.
    async fn across(&self, r: &Request, from: &Path, to: &Path) -> Result<(), u16> {
        let beside = beside(to);
        let copied = copy_file(r, from, &beside, self.access).await;
        let placed = copied.and_then(|()| {
            fs::rename(&beside, to).map_err(|error| told(r, "rename()", &beside, &error))
        });
        if placed.is_err() {
            // The half of it is nobody's; that it cannot be removed is no worse than that.
            let _ = fs::remove_file(&beside);
            return placed;
        }
        fs::remove_file(from).map_err(|error| told(r, "unlink()", from, &error))
    }
}

/// A name beside a path that nobody else takes.
fn beside(path: &Path) -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:010}", (number ^ u64::from(std::process::id()) << 32) % 10_000_000_000));
    name.into()
}

/// Copies a file with its time of modification; without `access`, with its permissions.
pub async fn copy_file(
    r: &Request,
    from: &Path,
    to: &Path,
    access: Option<u32>,
) -> Result<(), u16> {
    let open_failed = |path: &Path, error: io::Error| told(r, "open()", path, &error);
    // Nobody may ever be at the other end of a pipe: nginx waits for that, with all its connections.
    let no_wait = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let source = File::options().read(true).custom_flags(no_wait).open(from);
    let source = source.map_err(|error| open_failed(from, error))?;
    let stat = source.metadata().map_err(|error| told(r, "fstat()", from, &error))?;
    // What it has now: it may grow as fast as it is copied.
    let mut source = source.take(stat.len());
    let mode = access.unwrap_or(stat.permissions().mode() & 0o777);
    let mut options = File::options();
    options.write(true).create(true).truncate(true).custom_flags(no_wait);
    let target = options.mode(mode).open(to);
    let mut target = target.map_err(|error| open_failed(to, error))?;
    let mut buffer = vec![0; STEP];
    loop {
        let read = source.read(&mut buffer).map_err(|error| told(r, "read()", from, &error))?;
        if read == 0 {
            break;
        }
        target.write_all(&buffer[..read]).map_err(|error| failed(r, "write()", to, &error, 500))?;
        task::yield_now().await;
    }
    if let Ok(time) = stat.modified() {
        // As in nginx, a time that cannot be set is told, and no more.
        if let Err(error) = target.set_modified(time) {
            told(r, "utimes()", to, &error);
        }
    }
    Ok(())
}

/// Copies a directory with all regular files and directories in it.
pub async fn copy(r: &Request, from: &Path, to: &Path) -> Result<(), u16> {
    let stat = fs::metadata(from).map_err(|error| failed(r, "lstat()", from, &error, 404))?;
    make_dir(to, &stat).map_err(|error| failed(r, "mkdir()", to, &error, 404))?;
    let mut dirs = vec![(from.to_owned(), to.to_owned(), stat)];
    let mut at = 0;
    while let Some((from, to, _)) = dirs.get(at).cloned() {
        at += 1;
        let entries = fs::read_dir(&from).map_err(|error| told(r, "opendir()", &from, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| told(r, "readdir()", &from, &error))?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            let stat = entry.metadata().map_err(|error| told(r, "lstat()", &from, &error))?;
            if stat.is_dir() {
                make_dir(&to, &stat).map_err(|error| told(r, "mkdir()", &to, &error))?;
                dirs.push((from, to, stat));
            } else if stat.is_file() {
                copy_file(r, &from, &to, None).await?;
            }
        }
        task::yield_now().await;
    }
    // Files that were put in changed them.
    for (_, to, stat) in dirs.iter().rev() {
        if let (Ok(dir), Ok(time)) = (File::open(to), stat.modified()) {
            let _ = dir.set_modified(time);
        }
    }
    Ok(())
}

fn make_dir(path: &Path, like: &fs::Metadata) -> io::Result<()> {
    fs::DirBuilder::new().mode(like.permissions().mode() & 0o777).create(path)
}
