//! Lines of one event batch, written together: a thread that serves a hundred requests between two
//! waits makes one system call for their log lines.
//!
//! Invariant: a worker thread calls [`flush_batch`] before it waits, so no line outlives the batch.

use std::{cell::RefCell, sync::Arc};

use super::LogFile;

/// Batches are written early when they reach that many bytes.
const BATCH_BYTES: usize = 64 << 10;

thread_local! {
    static BATCH: RefCell<Vec<(Arc<LogFile>, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// Adds a line (with its line feed) to the batch of this thread.
pub fn append(file: &Arc<LogFile>, line: &[u8]) {
    BATCH.with_borrow_mut(|batch| {
        let index = match batch.iter().position(|(known, _)| Arc::ptr_eq(known, file)) {
            Some(index) => index,
            None => {
                batch.push((file.clone(), Vec::with_capacity(4096)));
                batch.len() - 1
            }
        };
        let lines = &mut batch[index].1;
        if lines.len() + line.len() > BATCH_BYTES {
            write_out(file, lines);
        }
        lines.extend_from_slice(line);
    });
}

/// Writes everything that this thread gathered.
pub fn flush_batch() {
    BATCH.with_borrow_mut(|batch| {
        for (file, lines) in batch.iter_mut().filter(|(_, lines)| !lines.is_empty()) {
            write_out(file, lines);
        }
        // A log that nobody else holds belongs to a configuration that is gone.
        batch.retain(|(file, _)| Arc::strong_count(file) > 1);
    });
}

fn write_out(file: &Arc<LogFile>, lines: &mut Vec<u8>) {
    // nginx: a failed write of the access log is told in the error log at most once a minute; the
    // access log itself cannot say more than that the lines are gone.
    let _ = file.write(lines);
    lines.clear();
}
