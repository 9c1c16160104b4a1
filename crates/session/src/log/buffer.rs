//! `buffer=`, `flush=`, `gzip=`: lines that stay in memory until there are enough of them.
//!
//! Every thread has its own buffer of a log, of the whole size, as every worker of nginx has
//! (`ngx_http_log_buf_t`). The log knows the buffers of all threads, so that whoever reopens it or
//! ends its configuration can write them out; the lock of a buffer is therefore hardly ever waited for.
//!
//! Invariant: a buffer holds whole lines, never more bytes than its size, and is written out before
//! its file is replaced, its configuration ends, or its thread does.

use std::{
    cell::RefCell,
    io::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use flate2::{Compression, write::GzEncoder};
use forebay_rt::{clock, task, timer};

use super::LogFile;

/// How lines to a file are kept back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffering {
    /// `buffer=`, in bytes.
    pub size: usize,
    /// `flush=`: how long a line may wait, in milliseconds.
    pub flush_ms: Option<u64>,
    /// `gzip=`: each write is one gzip member, compressed at this level (1 to 9).
    pub gzip: Option<u32>,
}

/// The lines of one thread.
#[derive(Debug, Default)]
pub(super) struct Buffer(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    /// When they are to be written at the latest, in [`clock::now_ms`].
    due_ms: Option<u64>,
    /// Whether a task looks after `due`.
    watched: bool,
}

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes out what is there.
    pub(super) fn flush(&self, file: &LogFile) {
        self.lock().flush(file);
    }
}

impl Lines {
    fn flush(&mut self, file: &LogFile) {
        file.emit(&mut self.bytes);
        self.due_ms = None;
    }
}

thread_local! {
    static MINE: RefCell<Mine> = const { RefCell::new(Mine(Vec::new())) };
}

/// The buffers of this thread. A `Weak` keeps the address of its log from being used again.
struct Mine(Vec<(Weak<LogFile>, Arc<Buffer>)>);

impl Drop for Mine {
    fn drop(&mut self) {
        for (file, buffer) in &self.0 {
            if let Some(file) = file.upgrade() {
                buffer.flush(&file);
            }
        }
    }
}

impl Mine {
    fn buffer(&mut self, file: &Arc<LogFile>) -> &Arc<Buffer> {
        let known = self.0.iter().position(|(weak, _)| Weak::as_ptr(weak) == Arc::as_ptr(file));
        let index = known.unwrap_or_else(|| {
            self.0.retain(|(file, _)| file.strong_count() > 0);
            let buffer = Arc::new(Buffer::default());
            file.adopt(buffer.clone());
            self.0.push((Arc::downgrade(file), buffer));
            self.0.len() - 1
        });
        &self.0[index].1
    }
}

/// Adds a line to this thread's buffer of the log; `false`: the log keeps nothing back.
pub(super) fn append(file: &Arc<LogFile>, line: &[u8]) -> bool {
    let Some(buffering) = file.buffering() else { return false };
    MINE.with_borrow_mut(|mine| {
        let buffer = mine.buffer(file);
        let mut lines = buffer.lock();
        // Only under the lock: whoever retires the log writes its buffers out after having said so.
        if file.is_retired() {
            return false;
        }
        if line.len() > buffering.size.saturating_sub(lines.bytes.len()) {
            lines.flush(file);
        }
        if line.len() > buffering.size {
            // As in nginx, a line that no buffer can hold is written at once.
            lines.bytes.extend_from_slice(line);
            lines.flush(file);
            return true;
        }
        if lines.bytes.is_empty()
            && let Some(flush_ms) = buffering.flush_ms
        {
            lines.due_ms = Some(clock::now_ms().saturating_add(flush_ms));
            if !lines.watched {
                lines.watched = watch(file, buffer);
            }
        }
        lines.bytes.extend_from_slice(line);
        true
    })
}

/// Starts a task that writes the buffer when it is due; `false`: no event loop runs here.
fn watch(file: &Arc<LogFile>, buffer: &Arc<Buffer>) -> bool {
    if !task::can_spawn() {
        return false;
    }
    let (file, buffer) = (Arc::downgrade(file), buffer.clone());
    task::spawn_local(async move {
        loop {
            let due = {
                let mut lines = buffer.lock();
                lines.watched = lines.due_ms.is_some();
                lines.due_ms
            };
            let Some(due) = due else { return };
            timer::sleep(due.saturating_sub(clock::now_ms())).await;
            let Some(file) = file.upgrade() else { return };
            let mut lines = buffer.lock();
            // Another line may have begun the buffer anew meanwhile: then it is due later.
            if lines.due_ms.is_some_and(|due| due <= clock::now_ms()) {
                lines.flush(&file);
            }
        }
    });
    true
}

/// One gzip member (`ngx_http_log_gzip`).
pub(super) fn gzip(lines: &[u8], level: u32) -> Vec<u8> {
    let out = Vec::with_capacity(lines.len() / 4 + 64);
    let mut encoder = GzEncoder::new(out, Compression::new(level));
    // Writing to a vector cannot fail.
    let _ = encoder.write_all(lines);
    encoder.finish().unwrap_or_default()
}
