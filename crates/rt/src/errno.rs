//! System errors as nginx writes them in its log: `98: Address already in use` (ngx_log_errno).
//! Invariant: text only; what an error means is decided where the call was made.

use std::fmt;
use std::io;

/// Shows an error as `number: text`, the form nginx puts in brackets behind a message.
///
/// An error without a number (made by us, not by the kernel) shows its text alone.
pub struct Errno<'a>(pub &'a io::Error);

impl fmt::Display for Errno<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let Some(code) = self.0.raw_os_error() else {
            return f.write_str(&text);
        };
        // std appends " (os error N)" to the C library's text; nginx has the number in front.
        let text = text.strip_suffix(&format!(" (os error {code})")).unwrap_or(&text);
        write!(f, "{code}: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_error_has_number_in_front() {
        let err = io::Error::from_raw_os_error(libc::EADDRINUSE);
        assert_eq!(Errno(&err).to_string(), "98: Address already in use");
    }

    #[test]
    fn own_error_is_text_alone() {
        assert_eq!(Errno(&io::Error::other("cut short")).to_string(), "cut short");
    }
}
