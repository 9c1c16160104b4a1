//! Writes response heads and trailers as HEADERS frames (`ngx_http_v2_header_filter`).
//!
//! Hot path: no `format!`, no allocation.
//!
//! *Invariant:* no CR, LF or NUL, and no field that only HTTP/1 has, is ever written (RFC 9113 §8.2).

use std::cell::RefCell;

use forebay_wire::{
    h1::encode::write_decimal,
    h2::{
        Head,
        frame::{HEAD_BYTES, MAX_PAYLOAD, flag, kind},
        hpack::{Encoder, Indexing},
    },
    scan::line_end,
};

use crate::{
    h1,
    request::Request,
    response::{Field, Response},
    special,
};

/// Appends the head of `r.response`; returns the bytes of its frames.
pub fn write(
    r: &Request,
    stream: u32,
    end_stream: bool,
    max_payload: usize,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) -> usize {
    framed(stream, end_stream, max_payload, out, |out| {
        SCRATCH.with_borrow_mut(|scratch| fields(r, encoder, scratch, out));
    })
}

/// Appends an interim response (`100 Continue`, `103 Early Hints`); returns the bytes of its frames.
pub fn write_interim(
    status: u16,
    fields: &[Field],
    stream: u32,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) -> usize {
    framed(stream, false, MAX_PAYLOAD, out, |out| {
        encoder.begin(out);
        encoder.status(status, out);
        SCRATCH.with_borrow_mut(|scratch| {
            fields.iter().for_each(|field| list_field(field, encoder, scratch, out));
        });
    })
}

/// Appends the trailers of `r.response`, which end the stream; returns the bytes of their frames.
pub fn write_trailers(
    response: &Response,
    stream: u32,
    max_payload: usize,
    encoder: &mut Encoder,
    out: &mut Vec<u8>,
) -> usize {
    framed(stream, true, max_payload, out, |out| {
        encoder.begin(out);
        SCRATCH.with_borrow_mut(|scratch| {
            for field in response.trailers.iter().filter(|field| !field.value.is_empty()) {
                list_field(field, encoder, scratch, out);
            }
        });
    })
}

/// Whether trailers follow the body.
pub fn has_trailers(response: &Response) -> bool {
    response.trailers.iter().any(|field| !field.value.is_empty())
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Puts a frame head before a block, and CONTINUATION heads into one that is too long for a frame.
fn framed(
    stream: u32,
    end_stream: bool,
    max_payload: usize,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>),
) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    write(out);
    let len = out.len() - start - HEAD_BYTES;
    let end = if end_stream { flag::END_STREAM } else { 0 };
    let first = len.min(max_payload);
    let flags = end | if first == len { flag::END_HEADERS } else { 0 };
    let head = Head { len: first, kind: kind::HEADERS, flags, stream };
    out[start..start + HEAD_BYTES].copy_from_slice(&head.bytes());
    let mut at = start + HEAD_BYTES + first;
    while at < out.len() {
        let len = (out.len() - at).min(max_payload);
        let flags = if at + len == out.len() { flag::END_HEADERS } else { 0 };
        let head = Head { len, kind: kind::CONTINUATION, flags, stream };
        out.splice(at..at, head.bytes());
        at += HEAD_BYTES + len;
    }
    out.len() - start
}

fn fields(r: &Request, encoder: &mut Encoder, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    let response = &r.response;
    encoder.begin(out);
    encoder.status(response.status, out);
    if !response.has_server {
        let server = special::server_name(r);
        if !server.is_empty() {
            field(b"server", &server, Indexing::Kept, encoder, scratch, out);
        }
    }
    if !response.has_date {
        scratch.clear();
        h1::write_date(scratch);
        encoder.field(b"date", scratch, Indexing::Kept, out);
    }
    content_type(response, encoder, scratch, out);
    if let Some(length) = response.content_length {
        scratch.clear();
        write_decimal(scratch, length);
        encoder.field(b"content-length", scratch, Indexing::Once, out);
    }
    // As in HTTP/1: one in the list is written there, and an error has none.
    if let Some(modified) = response.last_modified
        && matches!(response.status, 200 | 206 | 304)
        && response.field("Last-Modified").is_none()
    {
        scratch.clear();
        h1::write_modified(modified, scratch);
        encoder.field(b"last-modified", scratch, Indexing::Once, out);
    }
    if let Some(location) = &response.location {
        let mut url = Vec::new();
        special::write_location(r, location, &mut url);
        clean(&mut url);
        encoder.field(b"location", &url, Indexing::Once, out);
    }
    if response.vary_accept_encoding {
        encoder.field(b"vary", b"Accept-Encoding", Indexing::Kept, out);
    }
    for listed in &response.fields {
        list_field(listed, encoder, scratch, out);
    }
}

fn content_type(
    response: &Response,
    encoder: &mut Encoder,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    let Some(content_type) = &response.content_type else { return };
    scratch.clear();
    match (&response.content_type_text, &response.charset) {
        // As another server wrote it, as long as it still says that.
        (Some((charset, text)), now)
            if now.as_ref() == Some(charset) && text.starts_with(content_type) =>
        {
            scratch.extend_from_slice(text);
        }
        (_, charset) => {
            scratch.extend_from_slice(content_type);
            if let Some(charset) = charset {
                scratch.extend_from_slice(b"; charset=");
                scratch.extend_from_slice(charset);
            }
        }
    }
    clean(scratch);
    encoder.field(b"content-type", scratch.trim_ascii(), Indexing::Kept, out);
}

/// A field of the list: its name in lower case, unless it belongs to HTTP/1 alone.
fn list_field(listed: &Field, encoder: &mut Encoder, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    let mut name = [0; 64];
    let long;
    let name = match name.get_mut(..listed.name.len()) {
        Some(name) => {
            name.copy_from_slice(&listed.name);
            name.make_ascii_lowercase();
            &*name
        }
        None => {
            long = listed.name.to_ascii_lowercase();
            &long[..]
        }
    };
    let is_name = |ch: &u8| matches!(ch, b'!'..=b'9' | b';'..=b'~' | 0x80..);
    if name.is_empty() || !name.iter().all(is_name) {
        return;
    }
    let indexing = match name {
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
            return;
        }
        b"set-cookie" => Indexing::Never,
        b"etag" | b"last-modified" | b"location" | b"content-range" | b"age" | b"expires"
        | b"content-length" => Indexing::Once,
        _ => Indexing::Kept,
    };
    field(name, &listed.value, indexing, encoder, scratch, out);
}

fn field(
    name: &[u8],
    value: &[u8],
    indexing: Indexing,
    encoder: &mut Encoder,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    let is_clean = line_end(value).is_none();
    // DIFFERS(h2-value-trimmed): RFC 9113 §8.2.1: no space at either end.
    let is_trimmed = value.trim_ascii().len() == value.len();
    if is_clean && is_trimmed {
        encoder.field(name, value, indexing, out);
        return;
    }
    scratch.clear();
    scratch.extend_from_slice(value);
    clean(scratch);
    encoder.field(name, scratch.trim_ascii(), indexing, out);
}

fn clean(value: &mut [u8]) {
    for byte in value.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        *byte = b' ';
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use forebay_wire::h2::hpack::Decoder;

    fn written(r: &Request, max_payload: usize) -> (Vec<(u8, u8, usize)>, String) {
        let (mut encoder, mut out) = (Encoder::default(), Vec::new());
        let len = write(r, 1, false, max_payload, &mut encoder, &mut out);
        assert_eq!(len, out.len());
        let (mut frames, mut block, mut rest) = (Vec::new(), Vec::new(), &out[..]);
        while let Some(head) = Head::parse(rest) {
            frames.push((head.kind, head.flags, head.len));
            block.extend_from_slice(&rest[HEAD_BYTES..HEAD_BYTES + head.len]);
            rest = &rest[HEAD_BYTES + head.len..];
        }
        let mut text = String::new();
        let show = |field: forebay_wire::h2::hpack::Field<'_>| {
            if field.name != b"date" {
                text += &format!("{}: {}\n", field.name.escape_ascii(), field.value.escape_ascii());
            }
        };
        Decoder::default().decode(&block, show).expect("a block");
        (frames, text)
    }

    #[test]
    fn a_head_has_what_http_1_would_have_and_nothing_of_its_own() {
        let mut r = testing::request("server_tokens off;", "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        r.respond(200, "text/html".into(), "abc".into());
        r.response.charset = Some("utf-8".into());
        r.response.last_modified = Some(0);
        for (name, value) in [
            ("ETag", "\"1\""),
            ("X-Split", "a\r\nb: c\0"),
            ("X-Space", " a "),
            ("Connection", "close"),
            ("Keep-Alive", "1"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("X Bad", "1"),
        ] {
            r.response.add(name, value);
        }
        let (frames, text) = written(&r, 16_384);
        assert_eq!(frames.len(), 1);
        assert_eq!(
            text,
            ":status: 200\nserver: nginx\ncontent-type: text/html; charset=utf-8\n\
             content-length: 3\nlast-modified: Thu, 01 Jan 1970 00:00:00 GMT\netag: \\\"1\\\"\n\
             x-split: a  b: c\nx-space: a\n"
        );
    }

    #[test]
    fn a_long_head_is_continued() {
        let mut r = testing::request("", "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        r.respond(200, "text/html".into(), "abc".into());
        r.response.add("X-Long", vec![b'x'; 2500]);
        let (frames, text) = written(&r, 1000);
        let kinds: Vec<_> = frames.iter().map(|(kind, flags, _)| (*kind, *flags)).collect();
        assert_eq!(
            kinds,
            [(kind::HEADERS, 0), (kind::CONTINUATION, 0), (kind::CONTINUATION, flag::END_HEADERS)]
        );
        assert!(text.contains(&"x".repeat(2500)));
    }
}
