//! A directory that lives as long as its value, readable by an unprivileged worker.
//! Invariant: every path has the same length, so that two servers that print their prefix print
//! bodies of equal length.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory below the system's temporary directory, removed with its contents on drop.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes an empty directory with mode 0755.
    pub fn new() -> io::Result<TempDir> {
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed) % 100_000;
            let name = format!("forebay-{:07}-{n:05}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Ok(()) => {
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
                    return Ok(TempDir { path });
                }
                // Left behind by a killed process whose id was given out again.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Where the directory is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // KEEP_PREFIX leaves the configuration and the logs for a person to look at.
        if std::env::var_os("KEEP_PREFIX").is_none() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_goes_with_its_value() {
        let dir = TempDir::new().expect("temporary directory");
        let path = dir.path().to_owned();
        fs::write(path.join("file"), "x").expect("file");
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn paths_have_one_length() {
        let (a, b) = (TempDir::new().expect("a"), TempDir::new().expect("b"));
        assert_ne!(a.path(), b.path());
        assert_eq!(a.path().as_os_str().len(), b.path().as_os_str().len());
    }
}
