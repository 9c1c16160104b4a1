//! The request line, as the state machine of ngx_http_parse_request_line (nginx 1.29.4 and later
//! for the host). Hot path: runs of plain bytes are skipped by table, one state per stop byte.
//!
//! *Invariant:* a byte is looked at once, however the line is cut into reads.

use super::head::{Head, Version};
use super::method::Method;
use crate::class::{self, USUAL};
use crate::{Reject, Span};

/// Where in the request line the next byte belongs; nginx's `sw_*` of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum State {
    #[default]
    Start,
    Method,
    SpacesBeforeUri,
    Schema,
    /// One or two of the slashes of `://` are still to come.
    SchemaSlashes(u8),
    HostStart,
    Host,
    /// The second and third byte of a percent-encoded byte of the host.
    HostQuoted(u8),
    HostEnd,
    HostIpLiteral,
    Port,
    AfterSlash,
    CheckUri,
    Uri,
    Http09,
    /// So many bytes of `HTTP/` are read.
    Protocol(u8),
    FirstMajorDigit,
    MajorDigit,
    FirstMinorDigit,
    MinorDigit,
    SpacesAfterDigit,
    AlmostDone,
    Done,
}

/// Progress through one request line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestLine {
    state: State,
    /// Offset of the method: nginx's `request_start`.
    start: usize,
    /// Offset where the token being read began: schema, host or port.
    token: usize,
    /// Offset of the target.
    target: usize,
    uri: usize,
    ext: Option<usize>,
    minor: u32,
    protocol: Option<usize>,
    /// Where the line ended, if a CR has been seen.
    end: Option<usize>,
}

const PROTOCOL: &[u8; 5] = b"HTTP/";

impl RequestLine {
    /// Offset of the first byte that is not an empty line before the request.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Offset of the version.
    pub(super) fn protocol(&self) -> Option<usize> {
        self.protocol
    }

    /// Whether nothing but empty lines has been read.
    pub(super) fn is_blank(&self) -> bool {
        self.state == State::Start
    }

    /// Reads on at `*pos`; true when the line's LF was consumed.
    pub(super) fn advance(
        &mut self,
        buf: &[u8],
        pos: &mut usize,
        head: &mut Head,
    ) -> Result<bool, Reject> {
        while let Some(&ch) = buf.get(*pos) {
            let at = *pos;
            self.state = match self.state {
                State::Start => self.start_byte(ch, at)?,
                State::Method => {
                    let run = buf[at..].iter().position(|ch| !is_method(*ch));
                    *pos += run.unwrap_or(buf.len() - at);
                    match buf.get(*pos) {
                        None => return Ok(false),
                        Some(b' ') => self.method_end(buf, *pos, head),
                        Some(_) => return Err(Reject::InvalidMethod),
                    }
                }
                State::SpacesBeforeUri => self.before_uri(ch, at, head)?,
                State::Schema
                | State::SchemaSlashes(_)
                | State::HostStart
                | State::Host
                | State::HostQuoted(_)
                | State::HostEnd
                | State::HostIpLiteral
                | State::Port => self.authority(ch, at, head)?,
                State::AfterSlash => self.after_slash(ch, at, head)?,
                State::CheckUri => {
                    *pos += class::usual_run(&buf[at..]);
                    match buf.get(*pos) {
                        None => return Ok(false),
                        Some(&ch) => self.check_uri(ch, *pos, head)?,
                    }
                }
                State::Uri => {
                    *pos += class::usual_run(&buf[at..]);
                    match buf.get(*pos) {
                        None => return Ok(false),
                        Some(&ch) => self.in_uri(ch, *pos, head)?,
                    }
                }
                State::Http09 if buf[at..].starts_with(b"HTTP/1.1\r\n") => {
                    // What nearly every request has; the states below say the same bytewise.
                    (self.minor, self.protocol) = (1, Some(at));
                    self.end = Some(at + 8);
                    *pos += 9;
                    State::Done
                }
                _ => self.version(ch, at)?,
            };
            *pos += 1;
            if self.state == State::Done {
                self.finish(*pos - 1, head)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn start_byte(&mut self, ch: u8, at: usize) -> Result<State, Reject> {
        self.start = at;
        match ch {
            b'\r' | b'\n' => Ok(State::Start),
            ch if is_method(ch) => Ok(State::Method),
            _ => Err(Reject::InvalidMethod),
        }
    }

    fn method_end(&mut self, buf: &[u8], at: usize, head: &mut Head) -> State {
        head.method_span = Span::new(self.start, at);
        head.method = Method::of(head.method_span.of(buf));
        State::SpacesBeforeUri
    }

    /// `OPTIONS *` ends here with 400, as in nginx.
    ///
    /// DIFFERS(connect-authority): the target of CONNECT is an authority (RFC 9112 §3.2.3), which
    /// nginx knows since it has tunnels; before, it is a malformed URI.
    fn before_uri(&mut self, ch: u8, at: usize, head: &mut Head) -> Result<State, Reject> {
        self.target = at;
        match ch {
            b' ' => Ok(State::SpacesBeforeUri),
            b'/' => {
                self.uri = at;
                Ok(State::AfterSlash)
            }
            ch if head.method == Method::Connect => {
                self.state = State::HostStart;
                self.authority(ch, at, head)
            }
            ch if ch.is_ascii_alphabetic() => {
                self.token = at;
                Ok(State::Schema)
            }
            _ => Err(Reject::InvalidRequest),
        }
    }

    /// `schema://host:port` of an absolute-form target (RFC 3986 §3.2.2 decides the bytes).
    fn authority(&mut self, ch: u8, at: usize, head: &mut Head) -> Result<State, Reject> {
        match (self.state, ch) {
            (State::Schema, b'+' | b'-' | b'.') => Ok(State::Schema),
            (State::Schema, ch) if ch.is_ascii_alphanumeric() => Ok(State::Schema),
            (State::Schema, b':') => {
                head.schema = Some(Span::new(self.token, at));
                Ok(State::SchemaSlashes(2))
            }
            (State::SchemaSlashes(2), b'/') => Ok(State::SchemaSlashes(1)),
            (State::SchemaSlashes(1), b'/') => Ok(State::HostStart),
            (State::HostStart, b'[') => {
                self.token = at;
                Ok(State::HostIpLiteral)
            }
            (State::HostStart, ch) => {
                self.token = at;
                self.state = State::Host;
                self.authority(ch, at, head)
            }
            (State::Host, b'%') => Ok(State::HostQuoted(2)),
            (State::Host, ch) if is_reg_name(ch) => Ok(State::Host),
            (State::HostQuoted(2), ch) if ch.is_ascii_hexdigit() => Ok(State::HostQuoted(1)),
            (State::HostQuoted(1), ch) if ch.is_ascii_hexdigit() => Ok(State::Host),
            (State::HostIpLiteral, b']') => Ok(State::HostEnd),
            (State::HostIpLiteral, ch) if ch == b':' || is_reg_name(ch) => Ok(State::HostIpLiteral),
            (State::Host | State::HostEnd, ch) => {
                head.host = Some(Span::new(self.token, at));
                if ch == b':' {
                    self.token = at + 1;
                    return Ok(State::Port);
                }
                self.authority_end(ch, at, head)
            }
            (State::Port, b'0'..=b'9') => Ok(State::Port),
            (State::Port, ch) => {
                head.port = Some(Span::new(self.token, at));
                self.authority_end(ch, at, head)
            }
            _ => Err(Reject::InvalidRequest),
        }
    }

    fn authority_end(&mut self, ch: u8, at: usize, head: &mut Head) -> Result<State, Reject> {
        self.uri = at;
        match ch {
            // No path, no query, and never without a port (RFC 9110 §9.3.6).
            _ if head.method == Method::Connect => {
                if ch != b' ' || head.port.is_none_or(|port| port.is_empty()) {
                    return Err(Reject::InvalidRequest);
                }
                head.target = Span::new(self.target, at);
                Ok(State::Http09)
            }
            b'/' => Ok(State::AfterSlash),
            b'?' => {
                head.uri_flags.args_start = Some(at as u32 + 1);
                head.uri_flags.empty_path = true;
                Ok(State::Uri)
            }
            b' ' => {
                // As nginx does, the URI is the first slash of "://": a "/" that is in the buffer.
                let schema_end = head.schema.unwrap_or_default().end as usize;
                head.uri = Span::new(schema_end + 1, schema_end + 2);
                head.target = Span::new(self.target, at);
                Ok(State::Http09)
            }
            _ => Err(Reject::InvalidRequest),
        }
    }

    fn after_slash(&mut self, ch: u8, at: usize, head: &mut Head) -> Result<State, Reject> {
        if USUAL[ch as usize] {
            return Ok(State::CheckUri);
        }
        match ch {
            b'.' | b'/' => {
                head.uri_flags.complex = true;
                Ok(State::Uri)
            }
            b'+' => {
                head.uri_flags.plus_in = true;
                Ok(State::AfterSlash)
            }
            b'%' | b'?' | b'#' => self.check_uri(ch, at, head),
            _ => self.uri_end(ch, at, head),
        }
    }

    fn check_uri(&mut self, ch: u8, at: usize, head: &mut Head) -> Result<State, Reject> {
        match ch {
            b'/' => {
                self.ext = None;
                return Ok(State::AfterSlash);
            }
            b'.' => {
                self.ext = Some(at + 1);
                return Ok(State::CheckUri);
            }
            b'%' => head.uri_flags.quoted = true,
            b'?' => head.uri_flags.args_start = Some(at as u32 + 1),
            b'#' => head.uri_flags.complex = true,
            b'+' => {
                head.uri_flags.plus_in = true;
                return Ok(State::CheckUri);
            }
            _ => return self.uri_end(ch, at, head),
        }
        Ok(State::Uri)
    }

    fn in_uri(&mut self, ch: u8, at: usize, head: &mut Head) -> Result<State, Reject> {
        match ch {
            b'#' => {
                head.uri_flags.complex = true;
                Ok(State::Uri)
            }
            b'%' | b'+' | b'.' | b'/' | b'?' => Ok(State::Uri),
            _ => self.uri_end(ch, at, head),
        }
    }

    /// The bytes that end a URI; controls and DEL are refused since nginx 1.21.1.
    fn uri_end(&mut self, ch: u8, at: usize, head: &mut Head) -> Result<State, Reject> {
        if !matches!(ch, b' ' | b'\r' | b'\n') {
            return Err(Reject::InvalidRequest);
        }
        head.uri = Span::new(self.uri, at);
        head.target = Span::new(self.target, at);
        let flags = &mut head.uri_flags;
        let path_end = flags.args_start.map_or(at, |args| args as usize - 1);
        flags.ext = match flags.is_simple() {
            true => self.ext.map(|ext| Span::new(ext, path_end)),
            false => None,
        };
        match ch {
            b' ' => Ok(State::Http09),
            ch => Ok(self.line_end(ch, at)),
        }
    }

    fn line_end(&mut self, ch: u8, at: usize) -> State {
        self.end = Some(at);
        if ch == b'\r' { State::AlmostDone } else { State::Done }
    }

    /// Everything after the target.
    fn version(&mut self, ch: u8, at: usize) -> Result<State, Reject> {
        match (self.state, ch) {
            (State::Http09, b' ') => Ok(State::Http09),
            (State::Http09 | State::SpacesAfterDigit | State::MinorDigit, b'\r' | b'\n') => {
                Ok(self.line_end(ch, at))
            }
            (State::Http09, b'H') => {
                self.protocol = Some(at);
                Ok(State::Protocol(1))
            }
            (State::Protocol(read), ch) if ch == PROTOCOL[read as usize] => match read {
                4 => Ok(State::FirstMajorDigit),
                _ => Ok(State::Protocol(read + 1)),
            },
            (State::FirstMajorDigit, b'1') => Ok(State::MajorDigit),
            // "HTTP/1" and another digit is version 10 and more, as nginx reads it.
            (State::FirstMajorDigit, b'2'..=b'9') | (State::MajorDigit, b'0'..=b'9') => {
                Err(Reject::InvalidVersion)
            }
            (State::MajorDigit, b'.') => Ok(State::FirstMinorDigit),
            (State::FirstMinorDigit | State::MinorDigit, b'0'..=b'9') => {
                if self.minor > 99 {
                    return Err(Reject::InvalidRequest);
                }
                self.minor = self.minor * 10 + u32::from(ch - b'0');
                Ok(State::MinorDigit)
            }
            (State::MinorDigit | State::SpacesAfterDigit, b' ') => Ok(State::SpacesAfterDigit),
            (State::AlmostDone, b'\n') => Ok(State::Done),
            _ => Err(Reject::InvalidRequest),
        }
    }

    fn finish(&mut self, lf: usize, head: &mut Head) -> Result<(), Reject> {
        let end = self.end.unwrap_or(lf);
        head.request_line = Span::new(self.start, end);
        head.version = match (self.protocol, self.minor) {
            (None, _) => Version::Http09,
            (Some(_), 0) => Version::Http10,
            (Some(_), _) => Version::Http11,
        };
        head.protocol = self.protocol.map(|start| Span::new(start, end));
        if head.version == Version::Http09 && head.method != Method::Get {
            return Err(Reject::Invalid09Method);
        }
        Ok(())
    }
}

/// Reads a target that did not come in a request line (`:path`): `span`, which begins with a slash and
/// is followed by a space, becomes the target of `head`.
pub(crate) fn scan_target(buf: &[u8], span: Span, head: &mut Head) -> Result<(), Reject> {
    let (mut at, end) = (span.start as usize, span.end as usize);
    let state = State::SpacesBeforeUri;
    let mut line = RequestLine { state, start: at, ..RequestLine::default() };
    line.advance(&buf[..=end], &mut at, head)?;
    // A space in its midst would have ended it sooner.
    match line.state {
        State::Http09 if head.uri == span => Ok(()),
        _ => Err(Reject::InvalidRequest),
    }
}

/// Whether a method may have that byte.
pub(crate) fn is_method(ch: u8) -> bool {
    ch.is_ascii_uppercase() || ch == b'_' || ch == b'-'
}

/// `unreserved` and `sub-delims` of RFC 3986 §2.2 and §2.3.
pub(super) const fn is_reg_name(ch: u8) -> bool {
    ch.is_ascii_alphanumeric()
        || matches!(ch, b'-' | b'.' | b'_' | b'~')
        || matches!(ch, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=')
}
