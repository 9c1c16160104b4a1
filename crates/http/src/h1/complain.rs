//! What the error log says, at level info, of clients that break the rules of HTTP/1, in nginx's words.

use std::{fmt, mem};

use forebay_session::log::{Severity, Shown};
use forebay_wire::{
    Reject, Span,
    h1::{Field, FieldId},
};

use crate::request::{Connection, Request};

/// Tells why a head was refused. What stands after the fault was not read by nginx and is not told.
pub fn reject(r: &mut Request, reject: Reject) {
    if reject.in_request_line() {
        r.input_mut().head.headers.clear();
    }
    if reject == Reject::InvalidChunked {
        // Found when there was an answer already (`ngx_http_discard_request_body_filter`).
        return r.log_error(Severity::Error, format_args!("{}", reject.reason()));
    }
    let doing = match reject.in_request_line() {
        true if r.input.pipelined => "reading client pipelined request line",
        true => "reading client request line",
        false => "reading client request headers",
    };
    let detail = Detail { r, reject };
    r.log_error(Severity::Info, format_args!("{}{detail} while {doing}", reject.reason()));
}

/// Tells of the header lines that were passed over (`ignore_invalid_headers`), each as it was when nginx
/// came to it: without what stands behind it, and by the default server as long as no host was named. What
/// is behind the fault for which a head is refused was not read.
pub fn skipped_lines(r: &mut Request, refused: Option<Reject>) {
    if !r.input.head.skipped.is_empty() && !refused.is_some_and(Reject::in_request_line) {
        tell_skipped(r, refused);
    }
}

#[cold]
fn tell_skipped(r: &mut Request, refused: Option<Reject>) {
    let end = refused.and_then(|reject| fault(r, reject)).map_or(u32::MAX, |span| span.start);
    let found = (r.server, r.location);
    let first = (r.first_server, r.plan.server(r.first_server).location);
    let in_target = r.input.head.host.is_some();
    let input = r.input_mut();
    let (all, skipped) = (mem::take(&mut input.head.headers), input.head.skipped.clone());
    for line in skipped.iter().filter(|line| line.start < end) {
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

/// The line that a head is refused for as soon as it is read; what is wrong with all of them together is
/// found at the end.
fn fault(r: &Request, reject: Reject) -> Option<Span> {
    let headers = &r.input.head.headers;
    match reject {
        Reject::InvalidHost => headers.iter().find(|field| field.id == FieldId::Host),
        Reject::DuplicateHeader | Reject::DuplicateHost => {
            duplicate(headers, reject).map(|(_, second)| second)
        }
        _ => None,
    }
    .map(|field| field.name)
}

/// The first of two lines that may not both be there, and the other.
fn duplicate(headers: &[Field], reject: Reject) -> Option<(&Field, &Field)> {
    let host = reject == Reject::DuplicateHost;
    let is_it = |field: &Field| field.id.is_unique() && host == (field.id == FieldId::Host);
    let mut lines = headers.iter().enumerate().filter(|(_, field)| is_it(field));
    lines.find_map(|(i, second)| {
        let first = headers[..i].iter().find(|first| first.id == second.id)?;
        Some((first, second))
    })
}

/// Tells that a head took too long.
pub fn head_timed_out(r: &mut Request) {
    let input = r.input_mut();
    let in_line = input.head.request_line.is_empty();
    if in_line {
        input.head.request_line = first_line(&input.buf);
        // What there is of the target is not known to be all of it.
        input.head.uri = Span::default();
    }
    let doing =
        if in_line { "reading client request line" } else { "reading client request headers" };
    timed_out(r, doing);
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

/// As much of a request line as came, behind empty ones, is what logs show.
fn first_line(buf: &[u8]) -> Span {
    let ends = |ch: &u8| matches!(ch, b'\r' | b'\n');
    let start = buf.iter().take_while(|ch| ends(ch)).count();
    let len = buf[start..].iter().take_while(|ch| !ends(ch)).count();
    Span::new(start, start + len)
}

/// Tells that nothing came for too long.
pub fn timed_out(r: &Request, doing: &str) {
    r.log_error(
        Severity::Info,
        format_args!("client timed out (110: Connection timed out) while {doing}"),
    );
}

/// Tells that the client went away within a head.
pub fn gone(r: &mut Request) {
    let input = r.input_mut();
    let in_line = input.head.request_line.is_empty();
    if in_line {
        input.head.request_line = first_line(&input.buf);
    }
    let part = if in_line { "line" } else { "headers" };
    r.log_error(
        Severity::Info,
        format_args!("client prematurely closed connection while reading client request {part}"),
    );
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
}

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = &self.r.input.head;
        match self.reject {
            Reject::HeaderTooLong => match head.refused {
                Some(start) => write!(f, ": \"{}...\"", self.text(start)),
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
                let Some((first, second)) = duplicate(&head.headers, self.reject) else {
                    return Ok(());
                };
                let (line, before) = (self.line(second), self.line(first));
                write!(f, ": \"{line}\", previous value: \"{before}\"")
            }
            Reject::UnknownTransferEncoding => match self.of(FieldId::TransferEncoding) {
                Some(field) => write!(f, ": \"{}\"", self.text(field.value)),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
