//! What the error log says, at level info, of clients that break the rules of HTTP/1, in nginx's words.

use std::{fmt, io, mem};

use forebay_session::log::{Severity, Shown};
use forebay_tls::RecordError;
use forebay_wire::{
    Reject, Span,
    h1::{Field, FieldId},
};

use crate::{
    client::ReadFailed,
    request::{Connection, Request},
};

/// Tells why a head was refused; lines about the page for it say what was being read then, too.
pub fn reject(r: &Request, reject: Reject) {
    if reject == Reject::InvalidChunked {
        // Found when there was an answer already (`ngx_http_discard_request_body_filter`).
        return r.log_error(Severity::Error, format_args!("{}", reject.reason()));
    }
    let doing = reading(r, reject.in_request_line());
    let detail = Detail { r, reject };
    r.log_error(Severity::Info, format_args!("{}{detail}{doing}", reject.reason()));
    r.main.doing.set(doing);
}

/// Tells of the header lines that were passed over (`ignore_invalid_headers`), each as it was when nginx
/// came to it: without what stands behind it, and by the default server as long as no host was named. What
/// is behind the fault for which a head is refused was not read.
pub fn skipped_lines(r: &mut Request, refused: Option<Reject>) {
    if !r.input.head.skipped.is_empty() && !refused.is_some_and(Reject::in_request_line) {
        tell_skipped(r);
    }
}

#[cold]
fn tell_skipped(r: &mut Request) {
    let end = r.input.head.refused.map_or(u32::MAX, |line| line.start);
    let found = (r.server, r.location);
    let first = (r.first_server, r.plan.server(r.first_server).location);
    let in_target = r.input.head.host.is_some();
    let input = r.input_mut();
    let (all, skipped) = (mem::take(&mut input.head.headers), input.head.skipped.clone());
    for line in skipped.iter().filter(|line| line.start <= end) {
        let before = all.iter().filter(|field| field.name.start < line.start).copied();
        let headers = &mut r.input_mut().head.headers;
        headers.clear();
        headers.extend(before);
        let host_is_known = in_target || headers.iter().any(|field| field.id == FieldId::Host);
        (r.server, r.location) = if host_is_known { found } else { first };
        let line = Shown(r.input.text(*line));
        let text = format_args!(
            "client sent invalid header line: \"{line}\" while reading client request headers"
        );
        r.log_error(Severity::Info, text);
    }
    r.input_mut().head.headers = all;
    (r.server, r.location) = found;
}

/// Tells that a head took too long.
pub fn head_timed_out(r: &Request) {
    timed_out(r, reading(r, r.bytes_read == 0));
}

/// Which part of a head is being read, as [`crate::request::Main::doing`] has it.
fn reading(r: &Request, in_line: bool) -> &'static str {
    match in_line {
        true if r.input.pipelined => " while reading client pipelined request line",
        true => " while reading client request line",
        false => " while reading client request headers",
    }
}

/// Tells that nobody asked for anything, on a connection that is not kept.
pub fn timed_out_idle(connection: &Connection, listening: &dyn fmt::Display) {
    if connection.requests.get() > 0 {
        return;
    }
    let plan = connection.worker.plan();
    let client = &connection.remote;
    plan.location(Default::default()).error_log.write(
        Severity::Info,
        Some(connection.number),
        format_args!(
            "client timed out (110: Connection timed out) while waiting for request, client: {client}, \
             server: {listening}"
        ),
    );
}

/// Tells that nothing came for too long; `doing`: ` while …`.
pub fn timed_out(r: &Request, doing: &str) {
    r.log_error(
        Severity::Info,
        format_args!("client timed out (110: Connection timed out){doing}"),
    );
}

/// Tells that the client went away within a head, or that nothing can be read any more.
pub fn gone(r: &Request, error: Option<&io::Error>) {
    let doing = reading(r, r.bytes_read == 0);
    if let Some(error) = error {
        return r.log_error(Severity::Info, format_args!("{}{doing}", ReadFailed(error)));
    }
    r.log_error(Severity::Info, format_args!("client prematurely closed connection{doing}"));
}

/// Tells that the client went away before it asked for anything, or between two requests.
pub fn gone_idle(connection: &Connection, listening: &dyn fmt::Display) {
    let plan = connection.worker.plan();
    let log = &plan.location(Default::default()).error_log;
    let client = &connection.remote;
    let number = Some(connection.number);
    if connection.requests.get() > 0 {
        log.write(
            Severity::Info,
            number,
            format_args!("client {client} closed keepalive connection"),
        );
        return;
    }
    log.write(
        Severity::Info,
        number,
        format_args!(
            "client closed connection while waiting for request, client: {client}, server: {listening}"
        ),
    );
}

/// Tells that nothing can be read before a request, or between two. That a client resets a kept connection
/// is its right (`ngx_http_keepalive_handler`).
pub fn broken_idle(connection: &Connection, listening: &dyn fmt::Display, error: &io::Error) {
    let is_kept = connection.requests.get() > 0;
    if is_kept && RecordError::of(error).is_none() {
        return gone_idle(connection, listening);
    }
    let plan = connection.worker.plan();
    let client = &connection.remote;
    let why = ReadFailed(error);
    let doing = if is_kept { "keepalive" } else { "waiting for request" };
    plan.location(Default::default()).error_log.write(
        Severity::Info,
        Some(connection.number),
        format_args!("{why} while {doing}, client: {client}, server: {listening}"),
    );
}

/// As much of a line that is too long is shown (`NGX_MAX_ERROR_STR - 300`).
const MAX_SHOWN: usize = 2048 - 300;

/// The line that is at fault, where nginx shows it.
struct Detail<'a> {
    r: &'a Request,
    reject: Reject,
}

impl Detail<'_> {
    fn text(&self, span: Span) -> Shown<'_> {
        Shown(self.r.input.text(span))
    }

    fn line(&self, field: &Field) -> Shown<'_> {
        self.text(Span { start: field.name.start, end: field.value.end })
    }

    fn of(&self, id: FieldId) -> Option<&Field> {
        self.r.input.head.headers.iter().find(|field| field.id == id)
    }

    /// The first line of the same name.
    fn same_name(&self, line: Span) -> Option<&Field> {
        let line = self.r.input.text(line);
        self.r.input.head.headers.iter().find(|field| {
            let name = self.r.input.text(field.name);
            let (start, rest) = line.split_at_checked(name.len()).unwrap_or_default();
            start.eq_ignore_ascii_case(name) && rest.starts_with(b":")
        })
    }
}

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = &self.r.input.head;
        match self.reject {
            Reject::HeaderTooLong => match head.refused {
                Some(start) => {
                    let seen = self.r.input.text(start);
                    write!(f, ": \"{}...\"", Shown(&seen[..seen.len().min(MAX_SHOWN)]))
                }
                None => Ok(()),
            },
            Reject::InvalidHeader => match head.refused {
                Some(start) => {
                    let byte = self.r.input.buf.get(start.end as usize).unwrap_or(&0);
                    write!(f, ": \"{}\\x{byte:02x}...\"", self.text(start))
                }
                None => Ok(()),
            },
            Reject::DuplicateHeader | Reject::DuplicateHost => {
                let Some(line) = head.refused else { return Ok(()) };
                let Some(before) = self.same_name(line) else { return Ok(()) };
                write!(f, ": \"{}\", previous value: \"{}\"", self.text(line), self.line(before))
            }
            Reject::UnknownTransferEncoding => match self.of(FieldId::TransferEncoding) {
                Some(field) => write!(f, ": \"{}\"", self.text(field.value)),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
