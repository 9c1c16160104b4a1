//! A log file by path, whatever descriptor stands behind it at the moment.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwapOption;

/// A log: writes go to the file that was installed last.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: ArcSwapOption<File>,
}

impl LogFile {
    /// A log that nobody opened yet: what is written is lost until somebody does.
    pub fn new(path: PathBuf) -> LogFile {
        LogFile { path, file: ArcSwapOption::empty() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it an open file (start, reload, reopen). Writes under way go to the old one, whole.
    pub fn install(&self, file: File) {
        self.file.store(Some(Arc::new(file)));
    }

    /// The open file, if there is one.
    pub fn file(&self) -> Option<Arc<File>> {
        self.file.load_full()
    }

    /// Writes whole lines with one system call; the kernel appends them in one piece.
    pub fn write(&self, lines: &[u8]) -> io::Result<()> {
        let guard = self.file.load();
        let Some(file) = guard.as_deref() else { return Ok(()) };
        let mut file: &File = file;
        let written = loop {
            match file.write(lines) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if written < lines.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

/// All logs that one configuration names.
#[derive(Debug, Default)]
pub struct LogSet {
    files: Vec<Arc<LogFile>>,
}

impl LogSet {
    /// The log at that path, the same one for the same path.
    pub fn file(&mut self, path: PathBuf) -> Arc<LogFile> {
        if let Some(file) = self.files.iter().find(|file| file.path == path) {
            return file.clone();
        }
        let file = Arc::new(LogFile::new(path));
        self.files.push(file.clone());
        file
    }

    /// What is to be opened.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }

    /// All logs.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<LogFile>> {
        self.files.iter()
    }
}
