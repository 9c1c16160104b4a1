//! Writes the head of a request to an HTTP/2 upstream (`ngx_http_proxy_v2_create_request`): pseudo-header
//! fields and fields, compressed without a table, so that it is the same on every connection.
//!
//! `proxy_set_header Host` becomes `:authority`; what speaks of a connection (`Connection`, `Upgrade`,
//! `Keep-Alive`, `Transfer-Encoding`, `Proxy-Connection`, `HTTP2-Settings`, any `TE` but `trailers`) is
//! never sent, also where `proxy_set_header` sets it (RFC 9113 §8.2.2).
//!
//! Hot path: fields that never change are copied as one block.
//!
//! Invariant: names are in lower case and values are clean (RFC 9113 §8.2.1), wherever they come from.

use std::cell::RefCell;

use forebay_session::var::Template;
use forebay_wire::{
    h1::{
        FieldId,
        encode::{write_decimal, write_value},
        framing::tokens,
    },
    h2::{
        hpack::{known, write_field},
        request::is_name,
    },
    scan::line_end,
};

use super::request::{Length, Parts, Stays, length, method, pass_fields, write_target};
use crate::{request::Request, upstream::Outgoing};

/// A field that the configuration says.
enum Line {
    /// Fields that never change, compressed.
    Fixed(Vec<u8>),
    /// One whose value is worked out; an empty one is left out.
    Computed(Box<[u8]>, Template),
    /// `TE`: sent when it comes out as `trailers`.
    Trailers(Template),
}

/// What is sent besides method, scheme and path.
pub struct Fields {
    lines: Vec<Line>,
    /// `proxy_set_header Host`.
    authority: Option<Template>,
    stays: Stays,
    /// An empty `Content-Length` is asked for.
    no_length: bool,
    /// Whether a client's `TE: trailers` is passed on.
    passes_trailers: bool,
}

impl Fields {
    /// Compiles the `proxy_set_header`s of a level, in order.
    pub fn new(set: &[(Box<[u8]>, Template)]) -> Fields {
        let mut stays = Stays::new(set.iter().map(|(name, _)| &**name));
        stays.hide(b"HTTP2-Settings");
        let mut fields = Fields {
            lines: Vec::new(),
            authority: None,
            stays,
            no_length: false,
            passes_trailers: !set.iter().any(|(name, _)| FieldId::of(name) == FieldId::TE),
        };
        for (name, value) in set {
            fields.add(&name.to_ascii_lowercase(), value);
        }
        fields
    }

    fn add(&mut self, name: &[u8], value: &Template) {
        match FieldId::of(name) {
            FieldId::Host => self.authority = Some(value.clone()),
            FieldId::ContentLength => self.no_length |= value.as_text() == Some(b""),
            FieldId::Connection
            | FieldId::KeepAlive
            | FieldId::TransferEncoding
            | FieldId::Upgrade => {}
            FieldId::TE => self.lines.push(Line::Trailers(value.clone())),
            _ if matches!(name, b"proxy-connection" | b"http2-settings") || !is_name(name) => {}
            _ => match value.as_text() {
                Some(b"") => {}
                Some(text) => self.fixed(name, text),
                None => self.lines.push(Line::Computed(name.into(), value.clone())),
            },
        }
    }

    fn fixed(&mut self, name: &[u8], value: &[u8]) {
        if !matches!(self.lines.last(), Some(Line::Fixed(_))) {
            self.lines.push(Line::Fixed(Vec::new()));
        }
        if let Some(Line::Fixed(block)) = self.lines.last_mut() {
            put(block, name, value);
        }
    }
}

/// Writes the section. `None`: there is no URI to ask for.
pub fn write(
    r: &Request,
    parts: &Parts<'_>,
    fields: &Fields,
    body: &Outgoing,
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut scratch = SCRATCH.take();
    let written = write_all(r, parts, fields, body, out, &mut scratch);
    SCRATCH.set(scratch);
    written
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn write_all(
    r: &Request,
    parts: &Parts<'_>,
    fields: &Fields,
    body: &Outgoing,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Option<()> {
    write_pseudo(r, parts, fields, out, scratch)?;
    for line in &fields.lines {
        match line {
            Line::Fixed(block) => out.extend_from_slice(block),
            Line::Computed(name, template) => {
                scratch.clear();
                template.write(r, scratch);
                if !scratch.is_empty() {
                    put(out, name, scratch);
                }
            }
            Line::Trailers(template) => {
                if template.value(r).trim_ascii().eq_ignore_ascii_case(b"trailers") {
                    put(out, b"te", b"trailers");
                }
            }
        }
    }
    if let Length::Known(length) = length(r, fields.no_length, body) {
        scratch.clear();
        write_decimal(scratch, length);
        put(out, b"content-length", scratch);
    }
    if parts.pass_headers {
        if fields.passes_trailers && takes_trailers(r) {
            put(out, b"te", b"trailers");
        }
        pass_fields(r, &fields.stays, |name, value| {
            scratch.clear();
            scratch.extend(name.iter().map(u8::to_ascii_lowercase));
            // `ignore_invalid_headers off` lets through what HTTP/2 has no form for.
            if is_name(scratch) {
                put(out, scratch, value);
            }
        });
    }
    Some(())
}

fn write_pseudo(
    r: &Request,
    parts: &Parts<'_>,
    fields: &Fields,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Option<()> {
    scratch.clear();
    match method(r, parts, scratch) {
        b"GET" => out.push(known::METHOD_GET),
        b"POST" => out.push(known::METHOD_POST),
        other => put(out, b":method", other),
    }
    out.push(if parts.url.tls { known::SCHEME_HTTPS } else { known::SCHEME_HTTP });
    scratch.clear();
    write_target(r, parts, scratch)?;
    match &scratch[..] {
        b"/" => out.push(known::PATH_ROOT),
        path => put(out, b":path", path),
    }
    scratch.clear();
    match &fields.authority {
        None => scratch.extend_from_slice(&parts.url.host),
        Some(template) => template.write(r, scratch),
    }
    if !scratch.is_empty() {
        put(out, b":authority", scratch);
    }
    Some(())
}

/// Whether the client takes trailers (RFC 9110 §10.1.4).
fn takes_trailers(r: &Request) -> bool {
    let mut te = r.input.head.headers.iter().filter(|field| field.id == FieldId::TE);
    te.any(|field| {
        tokens(r.input.text(field.value)).any(|token| token.eq_ignore_ascii_case(b"trailers"))
    })
}

/// Fields that are secrets.
const SECRETS: [&[u8]; 3] = [b"authorization", b"cookie", b"proxy-authorization"];

/// Writes a field; what has no place in a value becomes a space, and none stands at its ends.
fn put(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let secret = SECRETS.contains(&name);
    if line_end(value).is_none() {
        return write_field(out, name, value.trim_ascii(), secret);
    }
    let mut clean = Vec::with_capacity(value.len());
    write_value(&mut clean, value);
    write_field(out, name, clean.trim_ascii(), secret);
}
