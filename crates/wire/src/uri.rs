//! Request URIs to paths: decoded once, slashes merged, dots resolved.
//! Answers ngx_http_parse_complex_uri and ngx_http_parse_unsafe_uri, byte for byte.
//!
//! *Invariant:* what [`normalize`] returns begins with `/`, has no NUL, and no `..` segment that
//! leads above the root; access rules and `open()` see this same string.

use std::ops::Range;

use crate::Reject;
use crate::class::{self, hex_value};

pub use crate::escape::{Kind, Unescape, escape, escape_html, escape_json, escape_log, unescape};

/// What [`normalize`] found besides the path.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Parsed {
    /// The arguments in the raw URI, without the `?` and without what follows a `#`.
    pub args: Option<Range<usize>>,
    /// What follows the last dot of the last segment, in the normalised path.
    pub ext: Option<Range<usize>>,
    /// Whether `%XX` occurred in the path.
    pub quoted: bool,
    /// Whether a `+` occurred in the path, plain or as `%2B`.
    pub plus_in: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Usual,
    Slash,
    Dot,
    DotDot,
}

/// How a raw path ended.
enum End {
    /// At its last byte.
    All,
    /// At a `?`; the arguments begin there.
    Args(usize),
    /// At a `#`.
    Fragment,
}

/// Normalises the path of `raw` (path and query, as in `Head::uri`) into `out`, which is cleared.
/// An empty path, as in `?a=b`, is `/`.
pub fn normalize(raw: &[u8], merge_slashes: bool, out: &mut Vec<u8>) -> Result<Parsed, Reject> {
    out.clear();
    let mut state = State::Usual;
    if raw.first() != Some(&b'/') {
        out.push(b'/');
        state = State::Slash;
    }
    let mut path = Path { out, state, ext: None, merge_slashes };
    let mut parsed = Parsed::default();
    let end = path.read(raw, &mut parsed)?;
    let ext = path.ext;
    parsed.ext = ext.map(|ext| ext..out.len());
    if let End::Args(start) = end {
        let len = memchr::memchr(b'#', &raw[start..]).unwrap_or(raw.len() - start);
        parsed.args = Some(start..start + len);
    }
    Ok(parsed)
}

struct Path<'a> {
    out: &'a mut Vec<u8>,
    state: State,
    ext: Option<usize>,
    merge_slashes: bool,
}

impl Path<'_> {
    fn read(&mut self, raw: &[u8], parsed: &mut Parsed) -> Result<End, Reject> {
        let mut at = 0;
        while at < raw.len() {
            if self.state == State::Usual {
                let run = class::usual_run(&raw[at..]);
                self.out.extend_from_slice(&raw[at..at + run]);
                at += run;
            }
            let Some(&ch) = raw.get(at) else { break };
            at += 1;
            match ch {
                b'?' | b'#' => {
                    self.finish()?;
                    return Ok(if ch == b'?' { End::Args(at) } else { End::Fragment });
                }
                b'%' => {
                    parsed.quoted = true;
                    let decoded = decode(raw.get(at..at + 2))?;
                    at += 2;
                    parsed.plus_in |= decoded == b'+';
                    match decoded {
                        // A decoded delimiter is a byte of the path, never again a delimiter.
                        b'%' | b'#' | b'?' => self.plain(decoded),
                        _ => self.byte(decoded)?,
                    }
                }
                _ => {
                    parsed.plus_in |= ch == b'+';
                    self.byte(ch)?;
                }
            }
        }
        self.finish()?;
        Ok(End::All)
    }

    fn plain(&mut self, ch: u8) {
        self.out.push(ch);
        self.state = State::Usual;
    }

    /// One decoded byte of the path.
    fn byte(&mut self, ch: u8) -> Result<(), Reject> {
        match (self.state, ch) {
            (_, 0) => return Err(Reject::InvalidRequest),
            (State::Usual, b'/') => {
                self.ext = None;
                self.out.push(ch);
                self.state = State::Slash;
            }
            (State::Usual, b'.') => {
                self.ext = Some(self.out.len() + 1);
                self.out.push(ch);
            }
            (State::Slash, b'/') if self.merge_slashes => {}
            (State::Slash, b'/') => self.out.push(ch),
            (State::Slash, b'.') => {
                self.out.push(ch);
                self.state = State::Dot;
            }
            (State::Dot, b'.') => {
                self.out.push(ch);
                self.state = State::DotDot;
            }
            (State::Dot | State::DotDot, b'/') => {
                self.finish()?;
                self.state = State::Slash;
            }
            _ => self.plain(ch),
        }
        Ok(())
    }

    /// Resolves a `.` or `..` that ended a segment.
    fn finish(&mut self) -> Result<(), Reject> {
        match self.state {
            State::Usual | State::Slash => {}
            State::Dot => {
                self.out.pop();
            }
            State::DotDot => {
                // From "/a/.." back to the slash before "a"; above the root there is none.
                let parent = self.out.len().checked_sub(3).ok_or(Reject::InvalidRequest)?;
                let slash = memchr::memrchr(b'/', &self.out[..parent]);
                self.out.truncate(slash.ok_or(Reject::InvalidRequest)? + 1);
            }
        }
        Ok(())
    }
}

fn decode(hex: Option<&[u8]>) -> Result<u8, Reject> {
    let Some(&[high, low]) = hex else { return Err(Reject::InvalidRequest) };
    match (hex_value(high), hex_value(low)) {
        (Some(high), Some(low)) => Ok(high << 4 | low),
        _ => Err(Reject::InvalidRequest),
    }
}

/// Splits a URI made by a back end or a configuration (`X-Accel-Redirect`, SSI, DAV's
/// `Destination`) into path and arguments, the path decoded once into `out`. `None` if it is
/// unsafe: empty, with a NUL, or with a `..` segment before or after decoding.
///
/// DIFFERS(unsafe-uri-dots-before-args): nginx overlooks a `..` segment that the `?` ends.
pub fn parse_unsafe(uri: &[u8], out: &mut Vec<u8>) -> Option<Option<Range<usize>>> {
    out.clear();
    let path_len = memchr::memchr(b'?', uri).unwrap_or(uri.len());
    let (path, args) =
        (&uri[..path_len], (path_len < uri.len()).then_some(path_len + 1..uri.len()));
    if path.is_empty() || is_unsafe(path) {
        return None;
    }
    if memchr::memchr(b'%', path).is_none() {
        out.extend_from_slice(path);
        return Some(args);
    }
    unescape(path, Unescape::All, out);
    (!is_unsafe(out)).then_some(args)
}

fn is_unsafe(path: &[u8]) -> bool {
    memchr::memchr(0, path).is_some()
        || path.split(|&ch| ch == b'/').any(|segment| segment == b"..")
}

/// Whether `path` is its own normal form, so that [`normalize`] need not be called: the test that
/// the request line's parser makes on its way (`UriFlags::is_simple`), for paths that did not
/// come from it.
pub fn is_simple(path: &[u8]) -> bool {
    let mut after_slash = false;
    if path.first() != Some(&b'/') {
        return false;
    }
    for &ch in path {
        match ch {
            b'%' | b'#' | b'?' | 0 => return false,
            b'/' | b'.' if after_slash => return false,
            _ => after_slash = ch == b'/',
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(raw: &str, merge: bool) -> Option<(String, Option<String>, Option<String>)> {
        let mut out = Vec::new();
        let parsed = normalize(raw.as_bytes(), merge, &mut out).ok()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let args = parsed.args.map(|args| text(&raw.as_bytes()[args]));
        Some((text(&out), args, parsed.ext.map(|ext| text(&out[ext]))))
    }

    #[test]
    fn paths_are_decoded_once_and_resolved() {
        for (raw, path, args) in [
            ("/", "/", None),
            ("/a/b", "/a/b", None),
            ("/a?b", "/a", Some("b")),
            ("/a?", "/a", Some("")),
            ("?x", "/", Some("x")),
            ("/a?b#c", "/a", Some("b")),
            ("/a?b?c/../d", "/a", Some("b?c/../d")),
            ("/a#b?c", "/a", None),
            ("//a///b", "/a/b", None),
            ("/./a/.", "/a/", None),
            ("/a/./b", "/a/b", None),
            ("/a/../b", "/b", None),
            ("/a/..", "/", None),
            ("/a/b/..?q", "/a/", Some("q")),
            ("/a/b/../../c", "/c", None),
            ("/a/b/..#x", "/a/", None),
            ("/.", "/", None),
            ("/.a/..b/...", "/.a/..b/...", None),
            ("/%61", "/a", None),
            ("/%2e%2E/../a", "", None),
            ("/a/%2e%2e/b", "/b", None),
            ("/a%2f..%2fb", "/b", None),
            ("/a%2fb//c/./d/../e?%41", "/a/b/c/e", Some("%41")),
            ("/%2561", "/%61", None),
            ("/a%3fb%23c", "/a?b#c", None),
            ("/a%20b", "/a b", None),
            ("/a/.%3f", "/a/.?", None),
            ("/a+b", "/a+b", None),
        ] {
            let got = check(raw, true);
            if path.is_empty() {
                assert_eq!(got, None, "{raw}");
                continue;
            }
            let (got_path, got_args, _) = got.expect(raw);
            assert_eq!((got_path.as_str(), got_args.as_deref()), (path, args), "{raw}");
        }
    }

    #[test]
    fn without_merge_slashes_each_slash_is_a_segment() {
        assert_eq!(check("//a//b", false).unwrap().0, "//a//b");
        assert_eq!(check("//..", false).unwrap().0, "/");
        assert_eq!(check("/a//../b", false).unwrap().0, "/a/b");
    }

    #[test]
    fn above_the_root_nul_and_broken_escapes_are_refused() {
        for raw in ["/..", "/../", "/a/../..", "/%2e%2e", "/.%2e/", "/%00", "/a%", "/a%4", "/%zz"] {
            assert_eq!(check(raw, true), None, "{raw}");
        }
    }

    #[test]
    fn the_extension_is_that_of_the_last_segment() {
        for (raw, ext) in [
            ("/a.html", Some("html")),
            ("/a.b/c", None),
            ("/a.tar.gz?x.y", Some("gz")),
            ("/.html", None),
            ("/a%2ehtml", Some("html")),
            ("/a.txt/..", None),
            ("/a.", Some("")),
            ("//a.x#y.z", Some("x")),
        ] {
            assert_eq!(check(raw, true).unwrap().2.as_deref(), ext, "{raw}");
        }
    }

    #[test]
    fn a_normal_path_is_simple_and_stays_as_it_is() {
        for path in ["/", "/a/b.c", "/a+b", "/a..b"] {
            assert!(is_simple(path.as_bytes()), "{path}");
            assert_eq!(check(path, true).unwrap().0, path);
        }
        for path in ["", "a", "//", "/.a", "/a/../b", "/%61", "/a#b", "/a?b"] {
            assert!(!is_simple(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn unsafe_uris_are_refused_before_and_after_decoding() {
        let parse = |uri: &[u8]| {
            let mut out = Vec::new();
            parse_unsafe(uri, &mut out).map(|args| (out, args.map(|args| uri[args].to_vec())))
        };
        assert_eq!(parse(b"/a%20b?c"), Some((b"/a b".to_vec(), Some(b"c".to_vec()))));
        assert_eq!(parse(b"a/b..c"), Some((b"a/b..c".to_vec(), None)));
        for uri in [&b""[..], b"?a", b"..", b"../a", b"/a/../b", b"/a/..", b"/%2e%2e/a", b"/a\0b"] {
            assert_eq!(parse(uri), None, "{uri:?}");
        }
        assert_eq!(parse(b"/a%00"), None);
    }
}
