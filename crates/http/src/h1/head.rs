//! Writes response heads (`ngx_http_header_filter_module.c`).
//!
//! Hot path: no `format!`, no allocation.

use std::{cell::RefCell, thread::LocalKey};

use forebay_rt::clock;
use forebay_wire::{
    date,
    h1::encode::{write_decimal, write_field, write_named, write_status_line, write_value},
};

use crate::{plan::Plan, request::Request, special};

/// How the body's end is found (RFC 9112 §6.3), and what becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Chunked; else by length, or by the end of the connection.
    pub chunked: bool,
    /// Whether the connection serves another request afterwards.
    pub keep_alive: bool,
    /// Whether no body follows, whatever the head says.
    pub bodiless: bool,
}

/// A moment, and its text.
type Written = RefCell<(i64, [u8; 29])>;

thread_local! {
    static DATE: Written = const { RefCell::new((i64::MIN, [0; 29])) };
    static MODIFIED: Written = const { RefCell::new((i64::MIN, [0; 29])) };
}

/// Writes the `Date` value, made once a second.
pub fn write_date(out: &mut Vec<u8>) {
    write_time(&DATE, (clock::wall_ms() / 1000) as i64, out);
}

/// Writes the `Last-Modified` value; that of a file that is asked for again and again is there already.
pub fn write_modified(modified: i64, out: &mut Vec<u8>) {
    write_time(&MODIFIED, modified, out);
}

fn write_time(written: &'static LocalKey<Written>, secs: i64, out: &mut Vec<u8>) {
    written.with_borrow_mut(|(at, text)| {
        if *at != secs {
            date::write_http_time(secs, text);
            *at = secs;
        }
        out.extend_from_slice(text);
    });
}

/// Writes the head of `r.response`.
pub fn write(plan: &Plan, r: &Request, framing: Framing, out: &mut Vec<u8>) {
    let response = &r.response;
    let core = &plan.location(r.location).core;
    match &response.reason {
        Some(reason) if reason.status == response.status => {
            out.extend_from_slice(b"HTTP/1.1 ");
            write_value(out, &reason.text);
            if reason.text.len() == 3 {
                // RFC 9112 §4: the space stays, whether or not a phrase follows.
                out.push(b' ');
            }
            out.extend_from_slice(b"\r\n");
        }
        _ => write_status_line(out, response.status),
    }
    if !response.has_server {
        special::write_server(r, out);
    }
    if !response.has_date {
        out.extend_from_slice(b"Date: ");
        write_date(out);
        out.extend_from_slice(b"\r\n");
    }
    match (&response.content_type_text, &response.content_type) {
        (Some((charset, text)), Some(content_type))
            if response.charset.as_ref() == Some(charset) && text.starts_with(content_type) =>
        {
            write_named(out, b"Content-Type: ", text);
        }
        (_, Some(content_type)) => {
            write_content_type(out, content_type, response.charset.as_deref());
        }
        _ => {}
    }
    if let Some(length) = response.content_length
        && !framing.chunked
    {
        out.extend_from_slice(b"Content-Length: ");
        write_decimal(out, length);
        out.extend_from_slice(b"\r\n");
    }
    // One in the list (`add_header Last-Modified …`) is written there, word for word. An error page
    // has none: its own time says nothing of the error (`ngx_http_header_filter`).
    if let Some(modified) = response.last_modified
        && matches!(response.status, 200 | 206 | 304)
        && response.field("Last-Modified").is_none()
    {
        out.extend_from_slice(b"Last-Modified: ");
        write_modified(modified, out);
        out.extend_from_slice(b"\r\n");
    }
    let mut location = response.location.as_ref();
    if let Some(path) = location.take_if(|location| special::is_relative(r, location)) {
        let mut url = Vec::new();
        special::write_location(r, path, &mut url);
        write_named(out, b"Location: ", &url);
    }
    if framing.chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if response.status == 101 {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    } else if framing.keep_alive {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
        if core.keepalive_header > 0 {
            out.extend_from_slice(b"Keep-Alive: timeout=");
            write_decimal(out, core.keepalive_header);
            out.extend_from_slice(b"\r\n");
        }
    } else if response.tunnel.is_none() {
        // What a CONNECT has opened is a message of its own no more.
        out.extend_from_slice(b"Connection: close\r\n");
    }
    if response.vary_accept_encoding {
        out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    // One that is sent as it is stands in nginx's list, whose first member it is.
    if let Some(location) = location {
        write_named(out, b"Location: ", location);
    }
    for field in &response.fields {
        write_field(out, &field.name, &field.value);
    }
    out.extend_from_slice(b"\r\n");
}

fn write_content_type(out: &mut Vec<u8>, content_type: &[u8], charset: Option<&[u8]>) {
    match charset {
        None => write_named(out, b"Content-Type: ", content_type),
        Some(charset) => {
            out.extend_from_slice(b"Content-Type: ");
            out.extend(content_type.iter().filter(|b| !matches!(b, b'\r' | b'\n' | 0)));
            out.extend_from_slice(b"; charset=");
            out.extend(charset.iter().filter(|b| !matches!(b, b'\r' | b'\n' | 0)));
            out.extend_from_slice(b"\r\n");
        }
    }
}
