//! Variables of the response: status, bytes, fields that were or will be sent.

use forebay_conf::value;
use forebay_session::{
    log::{Severity, Shown},
    var::Registry,
};
use forebay_wire::{
    date,
    h1::{Method, Version},
};

use super::{put, put_joined, put_number, put_some};
use crate::{core::SizeValue, request::Request};

pub(super) fn register(registry: &mut Registry<Request>) {
    registry.kept("body_bytes_sent", |r, out| {
        put_number(out, r.bytes_sent.saturating_sub(r.head_sent))
    });
    registry.kept("bytes_sent", |r, out| put_number(out, r.bytes_sent));
    registry.assignable("limit_rate", limit_rate, set_limit_rate);
    registry.kept("request_completion", |r, out| put(out, if r.completed { b"OK" } else { b"" }));
    registry.builtin("status", status);
    registry.kept("sent_http_connection", |r, out| {
        // DIFFERS(connection-logged): ngx_http_set_keepalive clears `r->keepalive` before the log phase.
        put(
            out,
            match (r.response.status, r.keep_alive) {
                (101, _) => b"upgrade",
                (_, true) => b"keep-alive",
                (_, false) => b"close",
            },
        )
    });
    registry.kept("sent_http_content_length", |r, out| {
        // What is chunked, as trailers follow, is sent without it.
        let length = r.response.content_length.filter(|_| !r.response.chunked);
        length.is_some_and(|length| put_number(out, length))
    });
    registry.kept("sent_http_content_type", sent_content_type);
    registry.kept("sent_http_keep_alive", |r, out| {
        let seconds = r.location().core.keepalive_header;
        let kept = r.keep_alive && r.version() != Version::Http2;
        kept && seconds > 0 && put(out, b"timeout=") && put_number(out, seconds)
    });
    registry.kept("sent_http_last_modified", |r, out| {
        // ngx_http_header_filter forgets that of an error, once it goes out, if it is a time.
        let is_error = !matches!(r.response.status, 200 | 206 | 304);
        if let Some(value) = r.response.field("Last-Modified") {
            let forgotten = r.head_sent > 0 && is_error && date::parse_http_time(value).is_some();
            return !forgotten && put(out, value);
        }
        let Some(modified) = r.response.last_modified.filter(|_| r.head_sent == 0 || !is_error)
        else {
            return false;
        };
        let mut text = [0; 29];
        date::write_http_time(modified, &mut text);
        put(out, &text)
    });
    registry.kept("sent_http_location", sent_location);
    registry
        .kept("sent_http_transfer_encoding", |r, out| r.response.chunked && put(out, b"chunked"));
    registry.kept_prefixed("sent_http_", |r, name, out| {
        let fields = r.response.fields.iter().map(|field| (&field.name[..], &field.value[..]));
        put_joined(out, fields, name, b", ")
    });
    registry.kept_prefixed("sent_trailer_", |r, name, out| {
        if r.method == Method::Head || r.response.header_only || r.response.status == 304 {
            return false;
        }
        // One without a value is not sent.
        let trailers = r.response.trailers.iter().filter(|field| !field.value.is_empty());
        let fields = trailers.map(|field| (&field.name[..], &field.value[..]));
        put_joined(out, fields, name, b", ")
    });
}

/// Three digits; 009 stands for an HTTP/0.9 response, which has none, and 000 for no response.
fn status(r: &Request, out: &mut Vec<u8>) -> bool {
    let status = match (r.error_status, r.response.status, r.version()) {
        (0, 0, Version::Http09) => 9,
        (0, status, _) => status,
        (status, _, _) => status,
    };
    for unit in [100, 10, 1] {
        out.push(b'0' + (status / unit % 10) as u8);
    }
    true
}

/// With the charset once the head is out, as `ngx_http_header_filter` leaves it for the log.
fn sent_content_type(r: &Request, out: &mut Vec<u8>) -> bool {
    let response = &r.response;
    if let Some((charset, text)) = &response.content_type_text
        && response.content_type.is_some()
        && response.charset.as_ref() == Some(charset)
    {
        return put_some(out, Some(text));
    }
    if !put_some(out, response.content_type.as_deref()) {
        return false;
    }
    if let Some(charset) = response.charset.as_deref().filter(|_| r.head_sent > 0) {
        out.extend_from_slice(b"; charset=");
        out.extend_from_slice(charset);
    }
    true
}

/// As it was sent: complete with host and port once the head is out.
fn sent_location(r: &Request, out: &mut Vec<u8>) -> bool {
    let Some(location) = &r.response.location else {
        return put_some(out, r.response.field("Location").map(|value| &value[..]));
    };
    if r.head_sent > 0 {
        crate::special::write_location(r, location, out)
    } else {
        out.extend_from_slice(location)
    }
    true
}

/// What was set; what the location says only once the body is on its way, as
/// `ngx_http_write_filter` looks at it then.
fn limit_rate(r: &Request, out: &mut Vec<u8>) -> bool {
    let rate = match (r.limit_rate, &r.location().core.limit_rate) {
        (Some(rate), _) => rate,
        (None, _) if r.head_sent == 0 => 0,
        (None, SizeValue::Fixed(rate)) => *rate,
        (None, SizeValue::Computed(rate)) => value::size(&rate.value(r)).unwrap_or(0),
    };
    put_number(out, rate)
}

fn set_limit_rate(r: &mut Request, text: &[u8]) {
    match value::size(text) {
        Some(rate) => r.limit_rate = Some(rate),
        None => {
            let shown = Shown(text);
            r.log_error(Severity::Error, format_args!("invalid $limit_rate \"{shown}\""));
        }
    }
}
