//! Writes the head of a request to an upstream (`ngx_http_proxy_create_request`), in HTTP/1; what
//! HTTP/2 shares with it is here, too.
//!
//! Hot path: lines that never change are copied as one block.
//!
//! Invariant: what reaches the upstream is one message: its length is told once and by us, and fields
//! of the client's connection stay there (RFC 9110 §7.6.1).
//! DIFFERS(proxy-framing-own): `proxy_set_header` of `Content-Length` or `Transfer-Encoding` changes
//! nothing but the case of no body, where an empty value leaves the field out.

use std::cell::{Cell, RefCell};

use forebay_session::var::Template;
use forebay_wire::{
    h1::{
        BodyLength, Field, FieldId, Nominees,
        encode::{write_decimal, write_field, write_value},
        framing::tokens,
    },
    uri,
};

use super::pass::Url;
use crate::{request::Request, upstream::Outgoing};

/// A line of the head that the configuration says.
pub enum Line {
    /// Lines that never change, complete.
    Fixed(Box<[u8]>),
    /// `Connection`, with this value.
    FixedConnection(Box<[u8]>),
    /// One whose value is worked out; an empty one is left out.
    Computed(Box<[u8]>, Template),
    /// `Host: $proxy_host`.
    Host,
    /// `Connection`, as the version and the group's `keepalive` ask for.
    Connection,
    /// How long the body is.
    Framing,
}

/// What is sent besides the request line.
pub struct Lines {
    /// In order.
    pub lines: Vec<Line>,
    stays: Stays,
    /// An empty `Content-Length` is asked for.
    no_length: bool,
}

/// Fields of the client that are not passed on.
#[derive(Default)]
pub struct Stays {
    /// Known ones, a bit of their number each.
    known: u64,
    /// Others, lower case.
    names: Vec<Box<[u8]>>,
}

/// Never passed on: they speak of the connection, or are written anew.
const OURS: [FieldId; 8] = [
    FieldId::Host,
    FieldId::Connection,
    FieldId::ContentLength,
    FieldId::TransferEncoding,
    FieldId::TE,
    FieldId::KeepAlive,
    FieldId::Expect,
    FieldId::Upgrade,
];

impl Lines {
    /// Compiles the `proxy_set_header`s of a level, in order (`ngx_http_proxy_init_headers`).
    pub fn new(set: &[(Box<[u8]>, Template)]) -> Lines {
        let stays = Stays::new(set.iter().map(|(name, _)| &**name));
        let mut lines = Lines { lines: Vec::new(), stays, no_length: false };
        let is_set = |name: &str| set.iter().any(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes()));
        for (name, value) in set {
            match FieldId::of(name) {
                FieldId::ContentLength => {
                    lines.no_length |= value.as_text() == Some(b"");
                    continue;
                }
                FieldId::TransferEncoding => continue,
                _ => {}
            }
            match value.as_text() {
                Some(b"") => {}
                Some(text) if FieldId::of(name) == FieldId::Connection => {
                    lines.lines.push(Line::FixedConnection(text.into()));
                }
                Some(text) => lines.fixed(name, text),
                None => lines.lines.push(Line::Computed(name.clone(), value.clone())),
            }
        }
        if !is_set("Host") {
            lines.lines.push(Line::Host);
        }
        if !is_set("Connection") {
            lines.lines.push(Line::Connection);
        }
        lines.lines.push(Line::Framing);
        lines
    }

    /// Whether a request for another protocol reaches the server as one.
    pub fn upgrades(&self) -> bool {
        self.lines.iter().any(|line| match line {
            Line::Computed(name, _) => FieldId::of(name) == FieldId::Upgrade,
            Line::Fixed(text) => text.split(|ch| *ch == b'\n').any(|line| {
                let name = line.split(|ch| *ch == b':').next();
                name.is_some_and(|name| FieldId::of(name) == FieldId::Upgrade)
            }),
            _ => false,
        })
    }

    fn fixed(&mut self, name: &[u8], value: &[u8]) {
        let mut text = Vec::new();
        if let Some(Line::Fixed(before)) = self.lines.last() {
            text.extend_from_slice(before);
            self.lines.pop();
        }
        write_field(&mut text, name, value);
        self.lines.push(Line::Fixed(text.into()));
    }
}

impl Stays {
    /// Those that are ours to say, and those that the configuration says.
    pub fn new<'a>(set: impl Iterator<Item = &'a [u8]>) -> Stays {
        let mut stays = Stays::default();
        OURS.iter().for_each(|id| stays.known |= 1 << *id as u8);
        // DIFFERS(hop-by-hop-fields): nginx passes it on.
        set.chain([&b"Proxy-Connection"[..]]).for_each(|name| stays.hide(name));
        stays
    }

    /// Another one.
    pub fn hide(&mut self, name: &[u8]) {
        match FieldId::of(name) {
            FieldId::Other => self.names.push(name.to_ascii_lowercase().into()),
            id => self.known |= 1 << id as u8,
        }
    }

    fn passes(&self, field: &Field, buf: &[u8]) -> bool {
        match field.id {
            FieldId::Other => {
                let name = field.name.of(buf);
                !self.names.iter().any(|hidden| name.eq_ignore_ascii_case(hidden))
            }
            id => self.known & (1 << id as u8) == 0,
        }
    }
}

/// What the head is written from.
pub struct Parts<'a> {
    /// Where it goes.
    pub url: &'a Url,
    /// The name of the location, which the URI part of `proxy_pass` replaces; empty where it does not
    /// (regular expressions, named locations).
    pub location: &'a [u8],
    /// Whether `proxy_pass` has variables: then its URI part replaces all.
    pub computed: bool,
    /// `proxy_method`.
    pub method: Option<&'a Template>,
    /// Whether connections to these servers are kept.
    pub keeps: bool,
    /// Is told whether the head says `Connection: close`.
    pub closes: &'a Cell<bool>,
    /// `proxy_pass_request_headers`.
    pub pass_headers: bool,
}

/// The method as it is sent.
pub fn method<'a>(r: &'a Request, parts: &Parts<'_>, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    if let Some(template) = parts.method {
        template.write(r, scratch);
        if !scratch.is_empty() {
            return scratch;
        }
    }
    r.method_name()
}

/// Writes the head. `None`: there is no URI to ask for.
pub fn write(
    r: &Request,
    parts: &Parts<'_>,
    (lines, http11): (&Lines, bool),
    body: &Outgoing,
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut scratch = Vec::new();
    write_value(out, method(r, parts, &mut scratch));
    out.push(b' ');
    write_target(r, parts, out)?;
    out.extend_from_slice(if http11 { b" HTTP/1.1\r\n" } else { b" HTTP/1.0\r\n" });
    for line in &lines.lines {
        write_line(r, parts, (line, lines, http11), body, out);
    }
    if parts.pass_headers {
        pass_fields(r, &lines.stays, |name, value| {
            // The parser let no CR, LF or NUL through.
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        });
    }
    out.extend_from_slice(b"\r\n");
    Some(())
}

/// Writes what is asked for, and tells the error log. `None`: nothing.
pub fn write_target(r: &Request, parts: &Parts<'_>, out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    write_uri(r, parts, out);
    if out.len() == start {
        return None;
    }
    sanitize_uri(out, start);
    r.upstream.set_uri(&out[start..]);
    Some(())
}

/// A URI that was rewritten or computed may hold anything.
fn sanitize_uri(out: &mut Vec<u8>, start: usize) {
    let wrong = |ch: &u8| *ch <= b' ' || *ch == 0x7f;
    if !out[start..].iter().any(wrong) {
        return;
    }
    // DIFFERS(proxy-uri-clean): nginx writes spaces and controls of a rewritten URI as they are, which
    // the server may take for the end of the request line.
    let raw = out.split_off(start);
    for ch in raw {
        if wrong(&ch) {
            let hex = b"0123456789ABCDEF";
            out.extend([b'%', hex[usize::from(ch >> 4)], hex[usize::from(ch & 15)]]);
        } else {
            out.push(ch);
        }
    }
}

fn write_uri(r: &Request, parts: &Parts<'_>, out: &mut Vec<u8>) {
    let replacement = &parts.url.uri;
    if parts.computed && !replacement.is_empty() {
        out.extend_from_slice(replacement);
        return;
    }
    if replacement.is_empty() && r.is_as_sent {
        out.extend_from_slice(r.unparsed_uri());
        return;
    }
    // (`valid_location`: a path that was rewritten in place no longer begins with the name.)
    let replaced = match replacement.is_empty() || r.rewritten_in_place {
        true => 0,
        false => parts.location.len().min(r.uri.len()),
    };
    if !r.rewritten_in_place {
        out.extend_from_slice(replacement);
    }
    let rest = &r.uri[replaced..];
    if r.uri_was_quoted || r.internal {
        uri::escape(uri::Kind::Uri, rest, out);
    } else {
        out.extend_from_slice(rest);
    }
    if !r.args.is_empty() {
        out.push(b'?');
        out.extend_from_slice(&r.args);
    }
}

thread_local! {
    static VALUE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn write_line(
    r: &Request,
    parts: &Parts<'_>,
    (line, lines, http11): (&Line, &Lines, bool),
    body: &Outgoing,
    out: &mut Vec<u8>,
) {
    match line {
        Line::Fixed(text) => out.extend_from_slice(text),
        Line::FixedConnection(value) => write_connection(parts, value, out),
        Line::Computed(name, template) => {
            let mut value = VALUE.take();
            value.clear();
            template.write(r, &mut value);
            if FieldId::of(name) == FieldId::Connection {
                write_connection(parts, &value, out);
            } else if !value.is_empty() {
                write_field(out, name, &value);
            }
            VALUE.set(value);
        }
        Line::Host => write_field(out, b"Host", &parts.url.host),
        Line::Connection => {
            if !http11 || !parts.keeps {
                write_connection(parts, b"close", out);
            }
        }
        Line::Framing => write_framing(r, lines, body, out),
    }
}

/// The server is told what becomes of the connection; then it is what becomes of it.
fn write_connection(parts: &Parts<'_>, value: &[u8], out: &mut Vec<u8>) {
    if tokens(value).any(|token| token.eq_ignore_ascii_case(b"close")) {
        parts.closes.set(true);
    }
    if !value.is_empty() {
        write_field(out, b"Connection", value);
    }
}

fn write_framing(r: &Request, lines: &Lines, body: &Outgoing, out: &mut Vec<u8>) {
    match length(r, lines.no_length, body) {
        Length::Unsaid => {}
        Length::Known(length) => {
            out.extend_from_slice(b"Content-Length: ");
            write_decimal(out, length);
            out.extend_from_slice(b"\r\n");
        }
        Length::Unknown => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
}

/// What is said of the length of a body.
pub enum Length {
    /// There is no body, and nothing said of it.
    Unsaid,
    /// So many bytes.
    Known(u64),
    /// It shows when it ends.
    Unknown,
}

/// `no_length`: an empty `Content-Length` is asked for.
pub fn length(r: &Request, no_length: bool, body: &Outgoing) -> Length {
    match body.length() {
        // A client that said 0 says so of this body, too.
        Some(0) if matches!(body, Outgoing::None) => {
            let said = r.input.framing.body == BodyLength::Length(0) && !r.subrequest;
            if said && !no_length { Length::Known(0) } else { Length::Unsaid }
        }
        Some(length) => Length::Known(length),
        None => Length::Unknown,
    }
}

/// The client's fields that are passed on.
pub fn pass_fields(r: &Request, stays: &Stays, mut pass: impl FnMut(&[u8], &[u8])) {
    let (buf, headers) = (&r.input.buf[..], &r.input.head.headers);
    let connection = headers.iter().filter(|field| field.id == FieldId::Connection);
    let nominees = Nominees::of(connection.map(|field| field.value.of(buf)));
    for field in headers {
        if stays.passes(field, buf) && !nominees.has(field.name.of(buf)) {
            pass(field.name.of(buf), field.value.of(buf));
        }
    }
}
