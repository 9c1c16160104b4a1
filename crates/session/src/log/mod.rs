//! Log files, syslog and the error log, shared by everything that writes lines.
//!
//! A log is named while the configuration loads, opened by whoever has the privileges, and handed
//! to its [`LogFile`] afterwards; rotation hands it another. Lines are whole: one write each, or one
//! write for all lines of an event batch or of a buffer.
//!
//! Answers nginx's `ngx_log.c`, `ngx_syslog.c` and the file half of `ngx_http_log_module.c`.
//!
//! Invariant: a log that cannot be written never holds up or fails what it tells of.

mod batch;
mod buffer;
mod error;
mod file;
mod shown;
mod syslog;
#[cfg(test)]
mod tests;
pub mod time;
mod trouble;

pub use batch::flush_batch;
pub use buffer::Buffering;
pub use error::{ErrorLog, Severity, write_prefix};
pub use file::{LogFile, LogSet};
pub use shown::Shown;
pub use syslog::Syslog;
pub use trouble::Trouble;

use std::sync::Arc;

/// Adds a line (with its line feed) to what this thread is going to write to the log: at the end of
/// the event batch, or when the log's buffer is full or old enough.
pub fn append(file: &Arc<LogFile>, line: &[u8]) {
    if !buffer::append(file, line) {
        batch::append(file, line);
    }
}
