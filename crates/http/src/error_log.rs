//! The error log line of a request: nginx's message and trailer.

use std::fmt;

use forebay_session::log::{Severity, Shown};
use forebay_wire::h1::FieldId;

use crate::request::Request;

/// Writes `MESSAGE, client: …, server: …, request: "…", host: "…"`
/// (`ngx_http_log_error_handler`).
#[cold]
pub fn write(r: &Request, severity: Severity, message: fmt::Arguments<'_>) {
    let log = &r.location().error_log;
    if !log.wants(severity) {
        return;
    }
    let input = &r.input;
    let server = Shown(&r.server().name);
    let line = input.text(input.head.request_line);
    let request = (!line.is_empty()).then_some(Shown(line));
    let client = r.remote();
    let subrequest = r.subrequest.then(|| Shown(&r.uri));
    let number = Some(r.connection.number);
    let host = input.field(FieldId::Host).map(Shown);
    let referrer = input.field(FieldId::Referer).map(Shown);
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
            ", client: {client}, server: {server}{}{}{}{}{}",
            Tail("request", request),
            Tail("subrequest", subrequest),
            Tail("upstream", r.upstream.asked()),
            Tail("host", host),
            Tail("referrer", referrer),
        ),
    );
}
