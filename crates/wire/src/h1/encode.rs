//! What is written into an HTTP/1 message: status lines, fields, numbers, chunk sizes.
//! Answers ngx_http_header_filter_module.c. Hot path: no `format!`, only appends.
//!
//! *Invariant:* no function here writes a CR, LF or NUL that it was given (response splitting).

use crate::scan::{line_end, may_break, may_break_name};

/// The status line with CRLF and nginx's reason phrase; empty for a status that nginx has no
/// phrase for, see [`write_status_line`].
pub fn status_line(status: u16) -> &'static [u8] {
    match status {
        200 => b"HTTP/1.1 200 OK\r\n",
        201 => b"HTTP/1.1 201 Created\r\n",
        202 => b"HTTP/1.1 202 Accepted\r\n",
        204 => b"HTTP/1.1 204 No Content\r\n",
        206 => b"HTTP/1.1 206 Partial Content\r\n",
        301 => b"HTTP/1.1 301 Moved Permanently\r\n",
        302 => b"HTTP/1.1 302 Moved Temporarily\r\n",
        303 => b"HTTP/1.1 303 See Other\r\n",
        304 => b"HTTP/1.1 304 Not Modified\r\n",
        307 => b"HTTP/1.1 307 Temporary Redirect\r\n",
        308 => b"HTTP/1.1 308 Permanent Redirect\r\n",
        400 => b"HTTP/1.1 400 Bad Request\r\n",
        401 => b"HTTP/1.1 401 Unauthorized\r\n",
        402 => b"HTTP/1.1 402 Payment Required\r\n",
        403 => b"HTTP/1.1 403 Forbidden\r\n",
        404 => b"HTTP/1.1 404 Not Found\r\n",
        405 => b"HTTP/1.1 405 Not Allowed\r\n",
        406 => b"HTTP/1.1 406 Not Acceptable\r\n",
        408 => b"HTTP/1.1 408 Request Time-out\r\n",
        409 => b"HTTP/1.1 409 Conflict\r\n",
        410 => b"HTTP/1.1 410 Gone\r\n",
        411 => b"HTTP/1.1 411 Length Required\r\n",
        412 => b"HTTP/1.1 412 Precondition Failed\r\n",
        413 => b"HTTP/1.1 413 Request Entity Too Large\r\n",
        414 => b"HTTP/1.1 414 Request-URI Too Large\r\n",
        415 => b"HTTP/1.1 415 Unsupported Media Type\r\n",
        416 => b"HTTP/1.1 416 Requested Range Not Satisfiable\r\n",
        421 => b"HTTP/1.1 421 Misdirected Request\r\n",
        429 => b"HTTP/1.1 429 Too Many Requests\r\n",
        500 => b"HTTP/1.1 500 Internal Server Error\r\n",
        501 => b"HTTP/1.1 501 Not Implemented\r\n",
        502 => b"HTTP/1.1 502 Bad Gateway\r\n",
        503 => b"HTTP/1.1 503 Service Temporarily Unavailable\r\n",
        504 => b"HTTP/1.1 504 Gateway Time-out\r\n",
        505 => b"HTTP/1.1 505 HTTP Version Not Supported\r\n",
        507 => b"HTTP/1.1 507 Insufficient Storage\r\n",
        _ => b"",
    }
}

/// Appends the status line; without a phrase it is `HTTP/1.1 599 `, as in nginx.
pub fn write_status_line(out: &mut Vec<u8>, status: u16) {
    let line = status_line(status);
    if !line.is_empty() {
        out.extend_from_slice(line);
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    // nginx prints "%03ui".
    if status < 100 {
        out.extend_from_slice(if status < 10 { b"00" } else { b"0" });
    }
    write_decimal(out, u64::from(status));
    out.extend_from_slice(b" \r\n");
}

/// Appends `name: value` and CRLF. CR, LF and NUL in the value become spaces (RFC 9110 §5.5); a
/// name that is empty or has one of them or a colon writes nothing.
pub fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let splits = |name: &[u8]| name.iter().any(|ch| matches!(ch, b'\r' | b'\n' | 0 | b':'));
    if name.is_empty() || may_break_name(name) && splits(name) {
        return;
    }
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    write_value(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a field whose name is ours: `begin` is `Name: `. CR, LF and NUL in the value become spaces.
#[inline]
pub fn write_named(out: &mut Vec<u8>, begin: &'static [u8], value: &[u8]) {
    out.reserve(begin.len() + value.len() + 2);
    out.extend_from_slice(begin);
    write_value(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a field's value, or a part of it, with CR, LF and NUL as spaces.
pub fn write_value(out: &mut Vec<u8>, value: &[u8]) {
    let mut rest = value;
    if may_break(value) {
        while let Some(len) = line_end(rest) {
            out.extend_from_slice(&rest[..len]);
            out.push(b' ');
            rest = &rest[len + 1..];
        }
    }
    out.extend_from_slice(rest);
}

/// Appends the line before a chunk's data. The data is to be followed by CRLF; the last chunk is
/// `0` CRLF CRLF.
pub fn write_chunk_size(out: &mut Vec<u8>, size: u64) {
    write_hex(out, size);
    out.extend_from_slice(b"\r\n");
}

/// Appends a decimal number.
pub fn write_decimal(out: &mut Vec<u8>, number: u64) {
    write_radix(out, number, 10);
}

/// Appends a number in lower-case hexadecimal, as nginx's `%xO`.
pub fn write_hex(out: &mut Vec<u8>, number: u64) {
    write_radix(out, number, 16);
}

#[inline(always)]
fn write_radix(out: &mut Vec<u8>, mut number: u64, radix: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(number % radix) as usize];
        number /= radix;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn status_lines_are_those_of_nginx() {
        for (status, want) in [
            (200, "HTTP/1.1 200 OK\r\n"),
            (302, "HTTP/1.1 302 Moved Temporarily\r\n"),
            (408, "HTTP/1.1 408 Request Time-out\r\n"),
            (203, "HTTP/1.1 203 \r\n"),
            (599, "HTTP/1.1 599 \r\n"),
            (7, "HTTP/1.1 007 \r\n"),
        ] {
            assert_eq!(text(|out| write_status_line(out, status)), want);
        }
        for status in 0..=999 {
            let line = text(|out| write_status_line(out, status));
            assert_eq!(line[9..12].parse(), Ok(status));
            assert!(line.ends_with("\r\n"));
        }
    }

    #[test]
    fn no_field_splits_the_message() {
        assert_eq!(text(|out| write_field(out, b"A", b"b c")), "A: b c\r\n");
        assert_eq!(text(|out| write_field(out, b"A", b"\r\nB: c\0")), "A:   B: c \r\n");
        for len in 1..20 {
            for at in 0..len {
                for (byte, written) in
                    [(b'\r', b' '), (b'\n', b' '), (0, b' '), (b'\t', b'\t'), (0xff, 0xff)]
                {
                    let mut value = vec![b'x'; len];
                    value[at] = byte;
                    let mut out = Vec::new();
                    write_value(&mut out, &value);
                    value[at] = written;
                    assert_eq!(out, value, "{byte:#x} at {at} of {len}");
                }
            }
        }
        for name in [&b""[..], b"A\r\nB", b"A\nB", b"A\0", b"A:b"] {
            assert_eq!(text(|out| write_field(out, name, b"x")), "");
        }
    }

    #[test]
    fn numbers_are_written_without_padding() {
        for number in [0, 9, 10, 255, 1_000_000, u64::MAX] {
            assert_eq!(text(|out| write_decimal(out, number)), number.to_string());
            assert_eq!(text(|out| write_hex(out, number)), format!("{number:x}"));
        }
        assert_eq!(text(|out| write_chunk_size(out, 4096)), "1000\r\n");
    }
}
