//! Variables of the request: target, fields, cookies, arguments, body, where it leads.

use std::{
    cell::RefCell, collections::hash_map::RandomState, hash::BuildHasher, os::unix::ffi::OsStrExt,
};

use forebay_rt::clock;
use forebay_session::var::Registry;
use forebay_wire::h1::{BodyLength, FieldId, Version};

use super::{put, put_joined, put_number, put_seconds, put_some};
use crate::{body_in::RequestBody, credentials, files, request::Request};

pub(super) fn register(registry: &mut Registry<Request>) {
    target(registry);
    registry.prefixed("arg_", |r, name, out| put_some(out, argument(&r.args, name)));
    registry.prefixed("cookie_", cookie);
    registry.prefixed("http_", |r, name, out| put_joined(out, r.input.fields(), name, b", "));
    // RFC 9113 §8.2.3: several Cookie fields are one list, whose separator is a semicolon.
    registry.builtin("http_cookie", |r, out| put_joined(out, r.input.fields(), b"cookie", b"; "));
    registry.builtin("content_length", content_length);
    registry.builtin("content_type", |r, out| put_some(out, r.field(FieldId::ContentType)));
    registry.builtin("document_root", |r, out| {
        files::document_root(r, out);
        true
    });
    registry.builtin("realpath_root", files::realpath_root);
    registry.builtin("request_filename", |r, out| {
        if files::is_alias_lost(r) {
            files::tell_alias_is_lost(r);
            return false;
        }
        files::request_filename(r, out);
        true
    });
    registry.builtin("https", |r, out| put(out, if r.connection.is_tls() { b"on" } else { b"" }));
    registry.builtin("scheme", |r, out| {
        put(out, if r.connection.is_tls() { b"https" } else { b"http" })
    });
    // `p` stood for a request that was pipelined; nginx keeps the name.
    registry.builtin("pipe", |r, out| put(out, if r.input.pipelined { b"p" } else { b"." }));
    registry.builtin("remote_user", |r, out| {
        credentials::basic(r.field(FieldId::Authorization))
            .is_some_and(|found| put(out, found.user()))
    });
    registry.kept_if_absent("request_body", |r, out| match &r.body {
        // One that was announced and is empty is a value, too.
        RequestBody::Memory(body) => {
            (!body.is_empty() || r.input.framing.body != BodyLength::None) && put(out, body)
        }
        _ => false,
    });
    registry.kept_if_absent("request_body_file", |r, out| {
        put_some(out, r.body.path().map(|path| path.as_os_str().as_bytes()))
    });
    registry.kept("request_id", request_id);
    registry.builtin("request_length", |r, out| put_number(out, r.bytes_read));
    registry.builtin("request_time", |r, out| {
        put_seconds(out, clock::now_ms().saturating_sub(r.input.start_ms))
    });
    registry.builtin("server_name", |r, out| put(out, &r.server().name));
}

/// What the request line and `Host` say, and what rewriting made of it.
fn target(registry: &mut Registry<Request>) {
    registry.assignable("args", args, |r, value| {
        r.is_as_sent = false;
        r.args.clear();
        r.args.extend_from_slice(value);
        r.has_args = true;
    });
    registry.builtin("query_string", args);
    for name in ["uri", "document_uri"] {
        registry.builtin(name, |r, out| {
            // A request line that is none has none; a path that is none is empty.
            (!r.uri.is_empty() || !r.input.head.method_span.is_empty()) && put(out, &r.uri)
        });
    }
    registry.builtin("is_args", |r, out| r.args.is_empty() || put(out, b"?"));
    registry.builtin("host", |r, out| match &r.input.host[..] {
        [] => put(out, &r.server().name),
        host => put(out, host),
    });
    registry.builtin("request_port", |r, out| {
        r.input.port.is_none_or(|port| put_number(out, port.into()))
    });
    registry.builtin("is_request_port", |r, out| r.input.port.is_none() || put(out, b":"));
    registry.builtin("request", |r, out| {
        // In HTTP/1, what came of a line is the line; empty ones before it are an empty one.
        let line = r.input.text(r.input.head.request_line);
        (!line.is_empty() || r.version() < Version::Http2) && put(out, line)
    });
    registry.builtin("request_method", |r, out| {
        // Subrequests tell that of their request.
        let method = match r.subrequest {
            true => r.input.text(r.input.head.method_span),
            false => r.method_name(),
        };
        !method.is_empty() && put(out, method)
    });
    registry.builtin("request_uri", |r, out| {
        let uri = r.unparsed_uri();
        !uri.is_empty() && put(out, uri)
    });
    registry.builtin("server_protocol", |r, out| {
        put_some(out, r.input.head.protocol.map(|protocol| r.input.text(protocol)))
    });
}

/// Where there are none, the log has a `-`; those that somebody emptied are a value.
fn args(r: &Request, out: &mut Vec<u8>) -> bool {
    (r.has_args || !r.args.is_empty()) && put(out, &r.args)
}

/// `Content-Length`; of a chunked body, what was read of it.
///
/// DIFFERS(content-length-of-chunked): nginx says 0 of a chunked body that it has thrown away.
fn content_length(r: &Request, out: &mut Vec<u8>) -> bool {
    if put_some(out, r.field(FieldId::ContentLength)) {
        return true;
    }
    match &r.body {
        // One that came in chunks has been counted, even if there was nothing in them.
        RequestBody::Memory(body)
            if !body.is_empty() || r.input.framing.body == BodyLength::Chunked =>
        {
            put_number(out, body.len() as u64)
        }
        RequestBody::File(file) => put_number(out, file.len),
        _ => false,
    }
}

/// The value of the first argument of that name, in any case (`ngx_http_arg`).
pub(crate) fn argument<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() {
        return None;
    }
    args.split(|byte| *byte == b'&').find_map(|argument| {
        let (found, rest) = argument.split_at_checked(name.len())?;
        let value = rest.strip_prefix(b"=")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

fn cookie(r: &Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let mut fields = r.input.head.headers.iter().filter(|field| field.id == FieldId::Cookie);
    let found = fields.find_map(|field| cookie_value(r.input.text(field.value), name));
    put_some(out, found)
}

/// The value of the first cookie of that name, in any case
/// (`ngx_http_parse_multi_header_lines`): a value goes up to the next `;`.
///
/// DIFFERS(cookie-without-value): nginx passes over what stands behind a name without `=`.
pub(crate) fn cookie_value<'a>(header: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = header;
    while !rest.is_empty() {
        if let Some((found, after)) = rest.split_at_checked(name.len())
            && found.eq_ignore_ascii_case(name)
            && let Some(value) = skip_spaces(after).strip_prefix(b"=")
        {
            let value = skip_spaces(value);
            let end = memchr::memchr(b';', value).unwrap_or(value.len());
            return Some(&value[..end]);
        }
        let next = memchr::memchr2(b';', b',', rest).map_or(rest.len(), |at| at + 1);
        rest = skip_spaces(&rest[next..]);
    }
    None
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|byte| **byte == b' ').count();
    &text[spaces..]
}

thread_local! {
    /// Keys that only this process knows, and how many numbers they made.
    static RANDOM: RefCell<(RandomState, u64)> = RefCell::new((RandomState::new(), 0));
}

/// 16 bytes that nobody can guess, in hexadecimal: SipHash of a counter under secret keys.
fn request_id(_: &Request, out: &mut Vec<u8>) -> bool {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    RANDOM.with_borrow_mut(|(keys, made)| {
        for _ in 0..2 {
            *made += 1;
            for byte in keys.hash_one(*made).to_be_bytes() {
                out.extend([HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_the_first_of_its_name() {
        let cases: [(&str, &str, Option<&str>); 14] = [
            ("a=1", "a", Some("1")),
            ("a=1&a=2", "a", Some("1")),
            ("b=0&A=1&c", "a", Some("1")),
            ("a=", "a", Some("")),
            ("a=1=2", "a", Some("1=2")),
            ("a", "a", None),
            ("a&a=1", "a", Some("1")),
            ("xa=1", "a", None),
            ("x;a=1", "a", None),
            ("", "a", None),
            ("=1", "", None),
            ("&&a=1", "a", Some("1")),
            ("a%3D1", "a", None),
            ("a", "abcdef", None),
        ];
        for (args, name, expected) in cases {
            let found = argument(args.as_bytes(), name.as_bytes());
            assert_eq!(found, expected.map(str::as_bytes), "{args} {name}");
        }
    }

    #[test]
    fn a_cookie_is_found_however_the_field_is_written() {
        let cases: [(&str, &str, Option<&str>); 16] = [
            ("a=1", "a", Some("1")),
            ("a=1; b=2", "b", Some("2")),
            ("a=1;b=2", "b", Some("2")),
            ("a=1, b=2", "b", Some("2")),
            ("a=1, b=2", "a", Some("1, b=2")),
            ("A = 1 ;b", "a", Some("1 ")),
            ("ab=1; a=2", "a", Some("2")),
            ("ba=1; a=2", "a", Some("2")),
            ("a; a=2", "a", Some("2")),
            ("a", "a", None),
            ("a=", "a", Some("")),
            (";;; ,,,a=1", "a", Some("1")),
            ("", "a", None),
            ("a=\"x;y\"", "a", Some("\"x")),
            ("\u{e9}=1;a=\u{e9}", "a", Some("\u{e9}")),
            ("=;=;=", "a", None),
        ];
        for (field, name, expected) in cases {
            let found = cookie_value(field.as_bytes(), name.as_bytes());
            assert_eq!(found, expected.map(str::as_bytes), "{field} {name}");
        }
    }

    #[test]
    fn hostile_cookies_and_arguments_take_linear_time() {
        for unit in ["a", "a ", "a=", ";", " ", "&", "aa=a;", "a=&a"] {
            let text = unit.repeat(1 << 20);
            assert_eq!(cookie_value(text.as_bytes(), b"zz"), None);
            assert_eq!(argument(text.as_bytes(), b"zz"), None);
        }
    }
}
