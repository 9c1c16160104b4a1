//! The head of a response: what its fields do here, and which of them reach the client
//! (`ngx_http_upstream_process_headers` and the table `ngx_http_upstream_headers_in`).
//!
//! Hot path: values are slices of what was read; nothing is copied.
//!
//! Invariant: fields of the connection (RFC 9110 §7.6.1) never pass; how the body ends is told anew.

use std::mem;

use bytes::Bytes;
use forebay_session::log::{Severity, Shown};
use forebay_wire::{
    Span,
    date::parse_http_time,
    h1::{
        BadResponse, Method, Nominees, ResponseField, ResponseFieldId as Id, ResponseFraming,
        ResponseHead,
    },
    uri,
};

use super::{Protocol, settings::Ignored};
use crate::{
    engine,
    handler::Flow,
    plan::LocId,
    request::Request,
    response::{Field, Reason},
};

const DOING: &str = "reading response header from upstream";
/// The same behind a message of its own.
const MEANWHILE: &str = " while reading response header from upstream";

/// Which fields of responses are not passed on.
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    /// Known fields, a bit of their number each.
    known: u64,
    /// Others, lower case.
    names: Vec<Box<[u8]>>,
}

impl Hidden {
    /// Those of the protocol and of `hide`, less those of `pass`, which has the last word
    /// (`ngx_http_upstream_hide_headers_hash`); both are lower case.
    pub fn new(usual: &[&str], pass: &[Box<[u8]>], hide: &[Box<[u8]>]) -> Hidden {
        let mut hidden = Hidden::default();
        let usual = usual.iter().map(|name| name.to_ascii_lowercase().into_bytes().into());
        for name in usual.chain(hide.iter().cloned()) {
            if !pass.contains(&name) {
                hidden.add(&name);
            }
        }
        hidden
    }

    fn add(&mut self, name: &[u8]) {
        match Id::of(name) {
            Id::Other => self.names.push(name.into()),
            id => self.known |= 1 << id as u8,
        }
    }

    fn hides(&self, id: Id) -> bool {
        self.known & (1 << id as u8) != 0
    }

    fn has(&self, field: &ResponseField, bytes: &[u8]) -> bool {
        match field.id {
            Id::Other if self.names.is_empty() => false,
            Id::Other => {
                let name = field.name.of(bytes);
                self.names.iter().any(|hidden| name.eq_ignore_ascii_case(hidden))
            }
            id => self.hides(id),
        }
    }
}

/// What becomes of a response.
pub enum Verdict {
    /// It is the answer.
    Respond {
        /// Whether its body is read ahead of the client.
        buffered: bool,
    },
    /// Something else is.
    Instead(Instead),
}

/// What is answered in a response's place.
pub enum Instead {
    /// An error page.
    Deny(u16),
    /// `X-Accel-Redirect`.
    Redirect,
    /// `X-Accel-Redirect: @name`.
    Named(LocId),
}

impl Instead {
    /// As the engine takes it.
    pub fn into_flow<'f>(self) -> Flow<'f> {
        match self {
            Instead::Deny(status) => Flow::Deny(status),
            Instead::Redirect => Flow::Redirect,
            Instead::Named(id) => Flow::Named(id),
        }
    }
}

/// Takes out the second and later lines of fields that have one value
/// (`ngx_http_upstream_process_header_line`).
pub fn drop_repeated(r: &Request, head: &mut ResponseHead, bytes: &[u8]) {
    let mut seen = 0u64;
    let repeats = |field: &ResponseField| {
        let (bit, before) = (1u64 << field.id as u8, seen);
        seen |= bit;
        has_one_value(field.id) && before & bit != 0
    };
    if !head.fields.iter().any(repeats) {
        return;
    }
    let mut firsts: Vec<ResponseField> = Vec::new();
    head.fields.retain(|field| {
        if !has_one_value(field.id) {
            return true;
        }
        let Some(first) = firsts.iter().find(|first| first.id == field.id) else {
            firsts.push(*field);
            return true;
        };
        let said = repeated(field, first, bytes);
        r.log_error(Severity::Warn, format_args!("{said}, ignored while {DOING}"));
        false
    });
}

fn repeated(field: &ResponseField, first: &ResponseField, bytes: &[u8]) -> String {
    let text = |span: Span| Shown(span.of(bytes));
    format!(
        "upstream sent duplicate header line: \"{}: {}\", previous value: \"{}: {}\"",
        text(field.name),
        text(field.value),
        text(first.name),
        text(first.value),
    )
}

/// What the log says of a head whose framing is refused, with the lines that are to blame
/// (`ngx_http_upstream_process_content_length`, `ngx_http_upstream_process_transfer_encoding`).
pub fn explain_framing(bad: BadResponse, head: &ResponseHead, bytes: &[u8]) -> String {
    let of = |id| head.fields.iter().filter(move |field| field.id == id);
    let said = match bad {
        BadResponse::DuplicateHeader => {
            [Id::ContentLength, Id::TransferEncoding].into_iter().find_map(|id| {
                let mut lines = of(id);
                let first = lines.next()?;
                lines.next().map(|field| repeated(field, first, bytes))
            })
        }
        BadResponse::UnknownTransferEncoding => of(Id::TransferEncoding)
            .map(|field| field.value.of(bytes))
            .find(|value| !value.eq_ignore_ascii_case(b"chunked"))
            .map(|value| format!("{bad}: \"{}\"", Shown(value))),
        _ => None,
    };
    said.unwrap_or_else(|| bad.to_string())
}

fn has_one_value(id: Id) -> bool {
    matches!(
        id,
        Id::ContentType
            | Id::ContentEncoding
            | Id::Date
            | Id::ETag
            | Id::Expires
            | Id::LastModified
            | Id::Location
            | Id::Refresh
            | Id::Server
            | Id::XAccelBuffering
            | Id::XAccelCharset
            | Id::XAccelExpires
            | Id::XAccelLimitRate
            | Id::XAccelRedirect
    )
}

/// Makes `r.response` of a head; the body is to be added.
pub fn apply<P: Protocol>(
    protocol: &P,
    r: &mut Request,
    job: &P::Job,
    head: &ResponseHead,
    bytes: &Bytes,
    framing: &ResponseFraming,
) -> Verdict {
    let settings = protocol.settings();
    for line in &head.skipped {
        let line = Shown(line.of(bytes));
        r.log_error(
            Severity::Info,
            format_args!(
                "upstream sent invalid header line: \"{line}\", ignored while reading response \
                 header from upstream"
            ),
        );
    }
    let buffered = orders(r, head, bytes, settings.ignore_headers).unwrap_or(settings.buffering);
    if settings.intercept_errors && intercepts(r, head.status) {
        if head.status == 401 {
            let asks = head.fields.iter().filter(|field| field.id == Id::WwwAuthenticate);
            asks.for_each(|field| r.response.fields.push(owned(field, bytes)));
        }
        return Verdict::Instead(Instead::Deny(head.status));
    }
    if !settings.ignore_headers.has(Ignored::REDIRECT)
        && let Some(target) = head.value(Id::XAccelRedirect)
    {
        return Verdict::Instead(redirect(protocol, r, job, head, bytes, target.of(bytes)));
    }
    r.response.status = head.status;
    r.response.reason = Reason::of(head.status, bytes, head.status_text);
    r.response.content_length = framing.length;
    r.response.not_modified_off = true;
    if settings.force_ranges {
        r.response.allow_ranges = true;
        r.response.single_range = true;
    }
    pass(protocol, r, job, head, bytes, framing);
    Verdict::Respond { buffered }
}

/// What `X-Accel-…` fields ask for; whether the body is to be buffered, where they say so.
fn orders(r: &mut Request, head: &ResponseHead, bytes: &[u8], ignored: Ignored) -> Option<bool> {
    let mut buffering = None;
    for field in &head.fields {
        let value = field.value.of(bytes);
        match field.id {
            Id::XAccelLimitRate if !ignored.has(Ignored::LIMIT_RATE) => {
                if let Some(rate) = forebay_conf::value::number(value) {
                    r.limit_rate = Some(rate);
                }
            }
            Id::XAccelBuffering if !ignored.has(Ignored::BUFFERING) => {
                if value.eq_ignore_ascii_case(b"no") {
                    buffering = Some(false);
                } else if value.eq_ignore_ascii_case(b"yes") {
                    buffering = Some(true);
                }
            }
            Id::XAccelCharset if !ignored.has(Ignored::CHARSET) => {
                r.response.override_charset = Some(Bytes::copy_from_slice(value));
            }
            _ => {}
        }
    }
    buffering
}

/// Whether there is an `error_page` for the status (`ngx_http_upstream_intercept_errors`).
fn intercepts(r: &Request, status: u16) -> bool {
    status >= 300
        && r.location().core.error_pages.iter().any(|page| page.status_for(status).is_some())
}

/// Leaves for the place that the upstream names; some fields go along, hidden or not
/// (`ngx_http_upstream_process_headers`).
fn redirect<P: Protocol>(
    protocol: &P,
    r: &mut Request,
    job: &P::Job,
    head: &ResponseHead,
    bytes: &Bytes,
    target: &[u8],
) -> Instead {
    for field in &head.fields {
        let value = match field.id {
            Id::ContentType => {
                content_type(r, slice(field.value, bytes));
                continue;
            }
            Id::SetCookie => protocol.rewrite(r, job, field.id, field.value.of(bytes)),
            Id::AcceptRanges if protocol.settings().force_ranges => continue,
            Id::AcceptRanges => {
                r.response.has_accept_ranges = true;
                None
            }
            Id::ContentDisposition | Id::CacheControl | Id::Expires => None,
            _ => continue,
        };
        let kept = owned(field, bytes);
        let value = value.map_or(kept.value, Bytes::from);
        r.response.fields.push(Field { name: kept.name, value });
    }
    if target.first() == Some(&b'@') {
        return match r.server().named.get(target).copied() {
            Some(id) if engine::may_redirect(r, target, MEANWHILE) => Instead::Named(id),
            Some(_) => Instead::Deny(500),
            None => {
                let name = Shown(target);
                let text = format_args!("could not find named location \"{name}\" while {DOING}");
                r.log_error(Severity::Error, text);
                Instead::Deny(500)
            }
        };
    }
    let mut path = Vec::new();
    let Some(args) = uri::parse_unsafe(target, &mut path) else {
        let shown = Shown(if path.is_empty() { target } else { &path });
        let text = format_args!("unsafe URI \"{shown}\" was detected while {DOING}");
        r.log_error(Severity::Error, text);
        return Instead::Deny(404);
    };
    let args = args.map(|args| target[args].to_vec());
    if !engine::may_redirect(r, &path, MEANWHILE) {
        return Instead::Deny(500);
    }
    r.set_target(&path, args.as_deref());
    if r.method != Method::Head {
        r.method = Method::Get;
    }
    Instead::Redirect
}

fn slice(span: forebay_wire::Span, bytes: &Bytes) -> Bytes {
    bytes.slice(span.start as usize..span.end as usize)
}

fn owned(field: &ResponseField, bytes: &Bytes) -> Field {
    Field { name: name(field, bytes), value: slice(field.value, bytes) }
}

/// A name as it came. What comes with nearly every response, in the case that it always has, is text of our
/// own: no reference to be counted.
fn name(field: &ResponseField, bytes: &Bytes) -> Bytes {
    let usual: &'static [u8] = match field.id {
        Id::LastModified => b"Last-Modified",
        Id::ETag => b"ETag",
        Id::AcceptRanges => b"Accept-Ranges",
        Id::CacheControl => b"Cache-Control",
        Id::SetCookie => b"Set-Cookie",
        Id::Expires => b"Expires",
        Id::Vary => b"Vary",
        _ => b"",
    };
    match field.name.of(bytes) == usual {
        true => Bytes::from_static(usual),
        false => slice(field.name, bytes),
    }
}

/// The fields that the client gets, in order.
fn pass<P: Protocol>(
    protocol: &P,
    r: &mut Request,
    job: &P::Job,
    head: &ResponseHead,
    bytes: &Bytes,
    framing: &ResponseFraming,
) {
    let settings = protocol.settings();
    let hidden = protocol.hidden();
    // Where the server's own pass, there is none in place of one that it does not send
    // (`ngx_http_proxy_process_header`).
    r.response.has_server = !hidden.hides(Id::Server);
    r.response.has_date = !hidden.hides(Id::Date);
    let nominees = match framing.nominates {
        true => Nominees::of_response(head, bytes),
        false => Nominees::default(),
    };
    // What a response left that led here (`X-Accel-Redirect`) counts where this one has none.
    let mut has_type = false;
    for field in &head.fields {
        if hidden.has(field, bytes) {
            continue;
        }
        match field.id {
            // DIFFERS(hop-by-hop-fields): nginx passes on some of these, and the next two.
            Id::ContentLength
            | Id::Connection
            | Id::KeepAlive
            | Id::TransferEncoding
            | Id::TE
            | Id::ProxyConnection => continue,
            Id::Upgrade if !framing.upgrade => continue,
            Id::Upgrade => {}
            Id::Trailer if !settings.pass_trailers => continue,
            Id::AcceptRanges if settings.force_ranges => continue,
            // RFC 9110 §7.6.1.
            // DIFFERS(nominated-fields): nginx passes on what `Connection` nominates.
            _ if nominees.has(field.name.of(bytes)) => continue,
            Id::ContentType => {
                if !mem::replace(&mut has_type, true) {
                    content_type(r, slice(field.value, bytes));
                }
                continue;
            }
            Id::Location | Id::Refresh | Id::SetCookie => {
                if field.id == Id::Location {
                    // DIFFERS(one-location): nginx sends that of the redirect, too, which this response
                    // is shown for.
                    r.response.location = None;
                }
                if let Some(value) = protocol.rewrite(r, job, field.id, field.value.of(bytes)) {
                    if field.id == Id::Location && value.first() == Some(&b'/') {
                        r.response.location = Some(value.into());
                        continue;
                    }
                    let name = name(field, bytes);
                    r.response.fields.push(Field { name, value: value.into() });
                    continue;
                }
            }
            Id::AcceptRanges => r.response.has_accept_ranges = true,
            // It stays in the list as it came; modules ask for the time.
            Id::LastModified => r.response.last_modified = parse_http_time(field.value.of(bytes)),
            _ => {}
        }
        r.response.fields.push(owned(field, bytes));
    }
}

/// The type and its charset (`ngx_http_upstream_copy_content_type`); the client gets the text as it
/// came, unless a filter names another charset.
fn content_type(r: &mut Request, value: Bytes) {
    if value.is_empty() {
        return;
    }
    let mut at = 0;
    while let Some(len) = memchr::memchr(b';', &value[at..]) {
        let semicolon = at + len;
        let rest = &value[semicolon + 1..];
        let spaces = rest.iter().take_while(|ch| **ch == b' ').count();
        at = semicolon + 1 + spaces;
        let is_it =
            value.get(at..at + 8).is_some_and(|name| name.eq_ignore_ascii_case(b"charset="));
        if !is_it {
            continue;
        }
        let (mut start, mut end) = (at + 8, value.len());
        if value.get(start) == Some(&b'"') {
            start += 1;
        }
        if end > start && value[end - 1] == b'"' {
            end -= 1;
        }
        let charset = value.slice(start..end);
        let response = &mut r.response;
        response.content_type = Some(value.slice(..semicolon));
        response.charset = Some(charset.clone());
        response.content_type_text = Some((charset, value));
        return;
    }
    r.response.content_type = Some(value);
    (r.response.content_type_text, r.response.charset) = (None, None);
}
