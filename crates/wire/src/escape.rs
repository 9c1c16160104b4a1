//! Escaping for the places a text can go to: URIs, HTML, JSON, log lines.
//! Answers ngx_escape_uri, ngx_unescape_uri, ngx_escape_html, ngx_escape_json (ngx_string.c) and
//! ngx_http_log_escape.
//!
//! *Invariant:* every function appends to `out` and leaves what is there.

use crate::class::{HEX, hex_value};

/// What an escaped text is for: the tables of ngx_escape_uri.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A path: space, `#`, `%`, `?` and what no URI may have (RFC 3986 §2).
    Uri,
    /// An argument: also `&`, `+` and `;`.
    Args,
    /// A component: all but letters, digits, `-`, `.`, `_` and `~`.
    UriComponent,
    /// A URI within HTML: what [`Kind::Uri`] escapes, but quotes in place of `?`.
    Html,
    /// The URL of a `Refresh`: space, quotes, and what no URI may have.
    Refresh,
    /// A memcached key: space, `%` and controls.
    Memcached,
    /// A header of the mail authentication protocol: as memcached.
    MailAuth,
}

/// A set of bytes below 0x80 in nginx's layout, and whether all above belong to it.
struct Set([u32; 4], bool);

impl Set {
    fn has(&self, ch: u8) -> bool {
        match self.0.get(usize::from(ch >> 5)) {
            Some(word) => word & (1 << (ch & 0x1f)) != 0,
            None => self.1,
        }
    }
}

static URI: Set = Set([!0, 0xd000_002d, 0x5000_0000, 0xb800_0001], true);
static ARGS: Set = Set([!0, 0xd800_086d, 0x5000_0000, 0xb800_0001], true);
static URI_COMPONENT: Set = Set([!0, 0xfc00_9fff, 0x7800_0001, 0xb800_0001], true);
static HTML: Set = Set([!0, 0x5000_00ad, 0x5000_0000, 0xb800_0001], true);
static REFRESH: Set = Set([!0, 0x5000_0085, 0x5000_0000, 0xd800_0001], true);
static MEMCACHED: Set = Set([!0, 0x0000_0021, 0, 0], false);
static LOG: Set = Set([!0, 0x0000_0004, 0x1000_0000, 0x8000_0000], true);

/// Appends `src` with the bytes that `kind` forbids as `%XX`.
pub fn escape(kind: Kind, src: &[u8], out: &mut Vec<u8>) {
    let set = match kind {
        Kind::Uri => &URI,
        Kind::Args => &ARGS,
        Kind::UriComponent => &URI_COMPONENT,
        Kind::Html => &HTML,
        Kind::Refresh => &REFRESH,
        Kind::Memcached | Kind::MailAuth => &MEMCACHED,
    };
    with_hex(set, b"%", src, out);
}

/// Appends `src` for a log line: controls, `"`, `\` and all above `~` as `\xXX`.
pub fn escape_log(src: &[u8], out: &mut Vec<u8>) {
    with_hex(&LOG, b"\\x", src, out);
}

fn with_hex(set: &Set, prefix: &[u8], src: &[u8], out: &mut Vec<u8>) {
    let mut rest = src;
    while let Some(len) = rest.iter().position(|&ch| set.has(ch)) {
        out.extend_from_slice(&rest[..len]);
        out.extend_from_slice(prefix);
        push_hex(rest[len], out);
        rest = &rest[len + 1..];
    }
    out.extend_from_slice(rest);
}

fn push_hex(ch: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(&[HEX[usize::from(ch >> 4)], HEX[usize::from(ch & 15)]]);
}

/// Appends `src` with `<`, `>`, `&` and `"` as entities.
pub fn escape_html(src: &[u8], out: &mut Vec<u8>) {
    for &ch in src {
        match ch {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            _ => out.push(ch),
        }
    }
}

/// Appends `src` as the inside of a JSON string.
///
/// DIFFERS(json-log-utf8): bytes that are not UTF-8 become U+FFFD; nginx copies them, and its line
/// is not JSON.
pub fn escape_json(src: &[u8], out: &mut Vec<u8>) {
    for chunk in src.utf8_chunks() {
        for &ch in chunk.valid().as_bytes() {
            match ch {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', ch]),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                0x08 => out.extend_from_slice(b"\\b"),
                0x0c => out.extend_from_slice(b"\\f"),
                0..=0x1f => {
                    out.extend_from_slice(b"\\u00");
                    push_hex(ch, out);
                }
                _ => out.push(ch),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

/// What ngx_unescape_uri decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unescape {
    /// Every `%XX`.
    All,
    /// Up to and with the first `?`, plain or decoded (NGX_UNESCAPE_URI).
    Uri,
    /// As [`Unescape::Uri`], and only what may stand in a URI (NGX_UNESCAPE_REDIRECT).
    Redirect,
}

/// Appends `src` with `%XX` decoded; a broken escape loses its `%`, as in nginx. Returns how many
/// bytes of `src` were read.
pub fn unescape(src: &[u8], kind: Unescape, out: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while let Some(&ch) = src.get(at) {
        at += 1;
        if ch != b'%' {
            out.push(ch);
            if ch == b'?' && kind != Unescape::All {
                return at;
            }
            continue;
        }
        let Some(&first) = src.get(at) else { break };
        at += 1;
        let Some(high) = hex_value(first) else {
            out.push(first);
            continue;
        };
        let Some(&second) = src.get(at) else { break };
        at += 1;
        let Some(low) = hex_value(second) else { continue };
        let decoded = high << 4 | low;
        match kind {
            Unescape::Redirect if decoded != b'?' && !(b'&'..0x7f).contains(&decoded) => {
                out.extend_from_slice(&[b'%', first, second]);
            }
            _ => out.push(decoded),
        }
        if decoded == b'?' && kind != Unescape::All {
            return at;
        }
    }
    at
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
    fn each_kind_escapes_its_own_bytes() {
        // All printable ASCII that some kind escapes, then a control and a byte above.
        let src = b"a \"#%&'+/:;<?@[\\]^`{|}~\x01\xe9";
        for (kind, want) in [
            (Kind::Uri, "a%20%22%23%25&'+/:;%3C%3F@[%5C]%5E%60%7B%7C%7D~%01%E9"),
            (Kind::Args, "a%20%22%23%25%26'%2B/:%3B%3C%3F@[%5C]%5E%60%7B%7C%7D~%01%E9"),
            (
                Kind::UriComponent,
                "a%20%22%23%25%26%27%2B%2F%3A%3B%3C%3F%40%5B%5C%5D%5E%60%7B%7C%7D~%01%E9",
            ),
            (Kind::Html, "a%20%22%23%25&%27+/:;%3C?@[%5C]%5E%60%7B%7C%7D~%01%E9"),
        ] {
            assert_eq!(text(|out| escape(kind, src, out)), want, "{kind:?}");
        }
        assert_eq!(text(|out| escape(Kind::Refresh, b"a \"'#<>", out)), "a%20%22%27#%3C%3E");
        assert_eq!(text(|out| escape(Kind::Memcached, b"a b%\n\"", out)), "a%20b%25%0A\"");
    }

    #[test]
    fn html_has_four_entities() {
        assert_eq!(
            text(|out| escape_html(b"<a href=\"x\">&'", out)),
            "&lt;a href=&quot;x&quot;&gt;&amp;'"
        );
    }

    #[test]
    fn json_is_valid_whatever_comes_in() {
        let src = b"q\"\\\n\r\t\x08\x0c\x01\x1f\xff\xc3\xa9\xc3";
        let want = "q\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001F\u{fffd}\u{e9}\u{fffd}";
        assert_eq!(text(|out| escape_json(src, out)), want);
    }

    #[test]
    fn log_lines_hold_no_control_and_no_quote() {
        assert_eq!(
            text(|out| escape_log(b"a\"\\\n\x7f\xe9 b", out)),
            "a\\x22\\x5C\\x0A\\x7F\\xE9 b"
        );
    }

    #[test]
    fn unescaping_follows_ngx_unescape_uri() {
        for (src, kind, want, read) in [
            ("a%41%62", Unescape::All, "aAb", 7),
            ("a?b%3fc", Unescape::All, "a?b?c", 7),
            ("a%zz%4", Unescape::All, "azz", 6),
            ("a%4zb", Unescape::All, "ab", 5),
            ("%41?%41", Unescape::Uri, "A?", 4),
            ("%41%3f%41", Unescape::Uri, "A?", 6),
            ("%41%20%3F%41", Unescape::Redirect, "A%20?", 9),
            ("%25%2F%7f", Unescape::Redirect, "%25/%7f", 9),
        ] {
            let mut out = Vec::new();
            assert_eq!(unescape(src.as_bytes(), kind, &mut out), read, "{src}");
            assert_eq!(String::from_utf8(out).unwrap(), want, "{src}");
        }
    }
}
