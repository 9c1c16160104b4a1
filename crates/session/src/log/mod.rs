//! Log files and the error log, shared by everything that writes lines.
//!
//! A log is named while the configuration loads, opened by whoever has the privileges, and handed
//! to its [`LogFile`] afterwards; rotation hands it another. Lines are whole: one write each, or one
//! write for all lines of an event batch.
//!
//! Answers nginx's `ngx_log.c` and the file half of `ngx_http_log_module.c`.

mod batch;
mod error;
mod file;

pub use batch::{append, flush_batch};
pub use error::{ErrorLog, Severity, write_prefix};
pub use file::{LogFile, LogSet};
