//! Where a loader's files come from. Everything that a configuration names is read through [`Files`],
//! so that a worker without privileges can load the same configuration from what its master recorded.
//!
//! Invariant: nothing else in this crate opens a file.

use std::io;
use std::path::{Path, PathBuf};

use crate::glob;

/// Reads what a configuration names.
pub trait Files {
    /// The whole content of a file.
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>>;

    /// The names that match a mask, sorted by bytes; no match is an empty answer, not an error
    /// (`ngx_conf_include` sets `gl.test`).
    fn glob(&mut self, pattern: &str) -> io::Result<Vec<PathBuf>>;
}

/// Reads from the file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Files for Direct {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn glob(&mut self, pattern: &str) -> io::Result<Vec<PathBuf>> {
        glob::glob(pattern)
    }
}

/// Files in memory, for tests and embedded configurations.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    files: std::collections::BTreeMap<PathBuf, Vec<u8>>,
}

impl Memory {
    /// The same with one file more.
    pub fn with(mut self, path: impl Into<PathBuf>, text: impl AsRef<[u8]>) -> Memory {
        self.files.insert(path.into(), text.as_ref().to_vec());
        self
    }
}

impl Files for Memory {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        const ENOENT: i32 = 2;
        self.files.get(path).cloned().ok_or_else(|| io::Error::from_raw_os_error(ENOENT))
    }

    fn glob(&mut self, pattern: &str) -> io::Result<Vec<PathBuf>> {
        let matching = |p: &&PathBuf| glob::path_matches(pattern, p);
        Ok(self.files.keys().filter(matching).cloned().collect())
    }
}
