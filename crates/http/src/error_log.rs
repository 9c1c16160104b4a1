//! The error log line of a request: nginx's message and trailer.

use std::fmt;

use forebay_session::log::Severity;
use forebay_wire::h1::FieldId;

use crate::request::Request;

/// Text of a peer as a log line can hold it.
pub(crate) struct Lossy<'a>(pub &'a [u8]);

impl fmt::Display for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What a client sent may hold anything; a log line must stay one line of text.
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "\\x{:02X}", c as u32)? } else { write!(f, "{c}")? }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// Writes `MESSAGE, client: …, server: …, request: "…", host: "…"`
/// (`ngx_http_log_error_handler`).
#[cold]
pub fn write(r: &Request, severity: Severity, message: fmt::Arguments<'_>) {
    let log = &r.location().error_log;
    if !log.wants(severity) {
        return;
    }
    let input = &r.input;
    let server = Lossy(&r.server().name);
    let request = Lossy(input.text(input.head.request_line));
    let client = r.remote();
    let subrequest = r.subrequest.then(|| Lossy(&r.uri));
    let number = Some(r.connection.number);
    let host = input.field(FieldId::Host).map(Lossy);
    let referrer = input.field(FieldId::Referer).map(Lossy);
    struct Tail<T>(&'static str, Option<T>);
    impl<T: fmt::Display> fmt::Display for Tail<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match &self.1 {
                Some(text) => write!(f, ", {}: \"{text}\"", self.0),
                None => Ok(()),
            }
        }
    }
    log.write_about(
        severity,
        number,
        message,
        format_args!(
            ", client: {client}, server: {server}, request: \"{request}\"{}{}{}{}",
            Tail("subrequest", subrequest),
            Tail("upstream", r.upstream.asked()),
            Tail("host", host),
            Tail("referrer", referrer),
        ),
    );
}
