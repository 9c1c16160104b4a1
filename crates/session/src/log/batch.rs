//! Lines of one event batch, written together: a thread that serves a hundred requests between two
//! waits makes one system call for their log lines.
//!
//! Hot path: no allocation for a log that this thread wrote to before.
//! Invariant: a worker thread calls [`flush_batch`] before it waits, so no line outlives the batch;
//! one that ends without waiting again writes what it has.

use std::{
    cell::RefCell,
    sync::{Arc, Weak},
};

use super::LogFile;

/// Batches are written early when they reach that many bytes.
const BATCH_BYTES: usize = 64 << 10;

/// The lines of one log that are not written yet.
struct Pending {
    /// Which log; keeps its place in the batch as long as anybody has it.
    file: Weak<LogFile>,
    /// The same while there are lines: the configuration that named it may go before they do. Not
    /// longer, or threads would keep the logs of old configurations open for each other.
    held: Option<Arc<LogFile>>,
    lines: Vec<u8>,
}

thread_local! {
    static BATCH: RefCell<Batch> = const { RefCell::new(Batch(Vec::new())) };
}

struct Batch(Vec<Pending>);

impl Drop for Batch {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Batch {
    fn flush(&mut self) {
        for pending in &mut self.0 {
            if let Some(file) = pending.held.take() {
                file.emit(&mut pending.lines);
            }
        }
        self.0.retain(|pending| pending.file.strong_count() > 0);
    }
}

/// Adds a line (with its line feed) to the batch of this thread.
pub(super) fn append(file: &Arc<LogFile>, line: &[u8]) {
    BATCH.with_borrow_mut(|Batch(batch)| {
        let is_it = |pending: &Pending| std::ptr::eq(pending.file.as_ptr(), Arc::as_ptr(file));
        let index = match batch.iter().position(is_it) {
            Some(index) => index,
            None => {
                let lines = Vec::with_capacity(4096);
                batch.push(Pending { file: Arc::downgrade(file), held: None, lines });
                batch.len() - 1
            }
        };
        let pending = &mut batch[index];
        pending.held.get_or_insert_with(|| file.clone());
        if pending.lines.len() + line.len() > BATCH_BYTES {
            file.emit(&mut pending.lines);
        }
        pending.lines.extend_from_slice(line);
    });
}

/// Writes everything that this thread gathered.
pub fn flush_batch() {
    BATCH.with_borrow_mut(Batch::flush);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, sync::mpsc};

    #[test]
    fn lines_outlive_their_configuration_and_its_log_does_not() {
        let path = std::env::temp_dir().join(format!("forebay-batch-{}", std::process::id()));
        let log = Arc::new(LogFile::new(path.clone()));
        log.install(File::options().append(true).create(true).open(&path).unwrap());
        append(&log, b"one\n");
        flush_batch();
        // A thread that wrote to it too, and now waits for other work.
        let (done, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let theirs = log.clone();
        let thread = std::thread::spawn(move || {
            append(&theirs, b"two\n");
            drop(theirs);
            flush_batch();
            done.send(()).unwrap();
            let _ = ended.recv();
        });
        told.recv().unwrap();
        append(&log, b"three\n");
        let gone = Arc::downgrade(&log);
        drop(log);
        assert!(gone.upgrade().is_some());
        flush_batch();
        assert!(gone.upgrade().is_none(), "nobody holds it any more");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\n");
        assert_eq!(BATCH.with_borrow(|batch| batch.0.len()), 0);
        drop(end);
        thread.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
