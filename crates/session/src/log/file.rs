//! A log file by path, whatever descriptor stands behind it at the moment.
//!
//! Invariant: lines reach the kernel whole, in one write; what follows a line that the file system
//! cut off begins on a line of its own.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwapOption;
use forebay_rt::errno::Errno;

use super::{
    Buffering, ErrorLog, Severity, Trouble,
    buffer::{Buffer, gzip},
    error::WeakErrorLog,
};

/// A log: writes go to the file that was installed last.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    slot: Arc<Slot>,
    buffering: OnceLock<Buffering>,
    /// The buffers of all threads that wrote to it.
    buffers: Mutex<Vec<Arc<Buffer>>>,
    /// Its configuration was replaced: nothing is kept back any more.
    retired: AtomicBool,
    complaints: OnceLock<WeakErrorLog>,
}

/// What stands behind a path. All configurations that live at the same time share it, so that a
/// rotation reaches the requests that still run under an old one.
#[derive(Debug, Default)]
struct Slot {
    open: ArcSwapOption<Open>,
    /// The last write ended within a line.
    torn: AtomicBool,
    trouble: Trouble,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// A pipe or a terminal takes only [`ATOMIC_BYTES`] in one piece.
    regular: bool,
}

/// Linux's `PIPE_BUF`: what is not longer is not mixed with what others write.
const ATOMIC_BYTES: usize = 4096;

/// The slots of the process, by path.
static SLOTS: Mutex<BTreeMap<PathBuf, Weak<Slot>>> = Mutex::new(BTreeMap::new());

fn slot(path: &Path) -> Arc<Slot> {
    let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(slot) = slots.get(path).and_then(Weak::upgrade) {
        return slot;
    }
    slots.retain(|_, slot| slot.strong_count() > 0);
    let slot = Arc::new(Slot::default());
    slots.insert(path.to_path_buf(), Arc::downgrade(&slot));
    slot
}

impl LogFile {
    /// A log that nobody opened yet: what is written is lost until somebody does. If another
    /// configuration has it open, it is open.
    pub fn new(path: PathBuf) -> LogFile {
        LogFile {
            slot: slot(&path),
            path,
            buffering: OnceLock::new(),
            buffers: Mutex::default(),
            retired: AtomicBool::new(false),
            complaints: OnceLock::new(),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it an open file (start, reload, reopen). What is buffered goes to the one before;
    /// writes under way too, whole.
    pub fn install(&self, file: File) {
        self.flush();
        let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        self.slot.open.store(Some(Arc::new(Open { file, regular })));
        self.slot.torn.store(false, Relaxed);
        self.slot.trouble.forget();
    }

    /// Lines that are appended to it are kept back from now on.
    ///
    /// `Err`: it is to be buffered otherwise already; nothing changes.
    pub fn buffer(&self, buffering: Buffering) -> Result<(), Buffering> {
        let set = *self.buffering.get_or_init(|| buffering);
        if set == buffering { Ok(()) } else { Err(set) }
    }

    /// How lines are kept back, if they are.
    pub(super) fn buffering(&self) -> Option<Buffering> {
        self.buffering.get().copied()
    }

    /// Failed writes of appended lines are told there; the first one asked for stays. Held weakly:
    /// an error log may be this very file.
    pub fn complain_to(&self, log: &ErrorLog) {
        self.complaints.get_or_init(|| log.downgrade());
    }

    /// Takes a thread's buffer into care.
    pub(super) fn adopt(&self, buffer: Arc<Buffer>) {
        let mut buffers = self.buffers();
        // Those that only we hold belonged to threads that have ended, and are empty.
        buffers.retain(|buffer| Arc::strong_count(buffer) > 1);
        buffers.push(buffer);
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<Arc<Buffer>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes out the buffers of all threads.
    pub fn flush(&self) {
        for buffer in self.buffers().iter() {
            buffer.flush(self);
        }
    }

    /// Its configuration was replaced: the buffers are written out, and lines of requests that still
    /// run under it are no longer kept back.
    pub fn retire(&self) {
        self.retired.store(true, Relaxed);
        self.flush();
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }

    /// Writes gathered lines and empties the buffer. What fails is told in the error log, at most
    /// once a minute; the lines are gone, as in nginx.
    pub(super) fn emit(&self, lines: &mut Vec<u8>) {
        if lines.is_empty() {
            return;
        }
        let result = match self.buffering().and_then(|buffering| buffering.gzip) {
            Some(level) => self.write_piece(&gzip(lines, level)),
            None => self.write(lines),
        };
        lines.clear();
        if let Err(error) = result {
            self.complain(&error);
        }
    }

    fn complain(&self, error: &io::Error) {
        let Some(complaints) = self.complaints.get() else { return };
        if !self.slot.trouble.is_news() {
            return;
        }
        complaints.upgrade().write(
            Severity::Alert,
            None,
            format_args!("write() to \"{}\" failed ({})", self.path.display(), Errno(error)),
        );
    }

    /// Writes whole lines; the kernel appends them in one piece.
    pub fn write(&self, lines: &[u8]) -> io::Result<()> {
        let guard = self.slot.open.load();
        let Some(open) = guard.as_deref() else { return Ok(()) };
        if open.regular {
            return self.write_to(open, lines);
        }
        let mut rest = lines;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(whole_lines(rest));
            self.write_to(open, piece)?;
            rest = after;
        }
        Ok(())
    }

    /// Writes bytes that are no lines.
    fn write_piece(&self, bytes: &[u8]) -> io::Result<()> {
        let guard = self.slot.open.load();
        guard.as_deref().map_or(Ok(()), |open| self.write_to(open, bytes))
    }

    fn write_to(&self, open: &Open, bytes: &[u8]) -> io::Result<()> {
        let slot = &*self.slot;
        // As in nginx, a full disk is left alone for the rest of the second.
        if slot.trouble.is_full() {
            return Ok(());
        }
        if slot.torn.swap(false, Relaxed)
            && let Err(error) = write_all(&open.file, b"\n")
        {
            slot.torn.store(true, Relaxed);
            slot.trouble.note(&error.0);
            return Err(error.0);
        }
        write_all(&open.file, bytes).map_err(|(error, written)| {
            let torn = written > 0 && bytes[written - 1] != b'\n';
            slot.torn.fetch_or(torn, Relaxed);
            slot.trouble.note(&error);
            error
        })
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.flush();
    }
}

/// How much of the lines goes into one piece that is not mixed with what others write: as many lines
/// as fit, or else one.
fn whole_lines(lines: &[u8]) -> usize {
    let fits = &lines[..lines.len().min(ATOMIC_BYTES)];
    let end = memchr::memrchr(b'\n', fits).or_else(|| memchr::memchr(b'\n', lines));
    end.map_or(lines.len(), |at| at + 1)
}

/// On an error, how much was written before it.
fn write_all(mut file: &File, bytes: &[u8]) -> Result<(), (io::Error, usize)> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), written)),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((error, written)),
        }
    }
    Ok(())
}

/// All logs that one configuration names.
#[derive(Debug, Default)]
pub struct LogSet {
    files: Vec<Arc<LogFile>>,
    /// Whether an `error_log` names standard error, which has to stay what it is then (nginx's
    /// `log_use_stderr`).
    pub names_stderr: bool,
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

    /// The configuration was replaced: see [`LogFile::retire`].
    pub fn retire(&self) {
        self.files.iter().for_each(|file| file.retire());
    }
}
