//! From decompressed fields to a request head of the same form as one of HTTP/1: a line and fields as
//! slices of one buffer, so that nothing behind it needs to know the difference.
//!
//! Answers ngx_http_v2_process_header and what follows from it. RFC 9113 §8.2 and §8.3.
//!
//! DIFFERS(h2-head-limits): a head that is too large is refused as in HTTP/1; nginx closes the
//! connection with ENHANCE_YOUR_CALM.
//! DIFFERS(h2-malformed-reset): all that RFC 9113 §8.1.1 calls malformed is refused; nginx checks names,
//! values and pseudo-headers less closely.
//!
//! DIFFERS(h2-websocket): extended CONNECT (RFC 8441) becomes the GET with `Upgrade` that HTTP/1 would
//! have had; nginx knows no `:protocol`.
//!
//! Hot path: no allocation once the buffer and the vector of fields have grown.
//!
//! *Invariant:* a request that is malformed in the RFC's sense never leaves this file as a good one, and
//! what leaves it has no CR, LF or NUL anywhere.

use super::hpack::Field;
use crate::{
    Reject, Span,
    h1::{
        self, BodyLength, FieldId, Framing, Head, Method, Options, Version, framing::parse_length,
        request_line,
    },
    scan::line_end,
};

/// Why a section of fields makes no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is malformed: answered with 400, and the stream ends with PROTOCOL_ERROR (RFC 9113 §8.1.1).
    Malformed(&'static str),
    /// It breaks a rule that HTTP/1 has, too.
    Reject(Reject),
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Refusal {
        Refusal::Reject(reject)
    }
}

/// The pseudo-header fields of requests, as they lie in the buffer.
#[derive(Clone, Copy, Default)]
struct Pseudo {
    method: Option<Span>,
    path: Option<Span>,
    scheme: Option<Span>,
    authority: Option<Span>,
    /// RFC 8441: what the stream is to speak.
    protocol: Option<Span>,
}

/// By which options the fields behind a host are judged; `None`: by the same.
type ByHost<'a> = &'a dyn Fn(&[u8]) -> Option<Options>;

/// Takes fields as they are decompressed.
pub struct RequestBuilder<'a> {
    buf: &'a mut Vec<u8>,
    head: &'a mut Head,
    options: Options,
    by_host: Option<ByHost<'a>>,
    pseudo: Pseudo,
    line_is_written: bool,
    /// Bytes of all names and values: what `large_client_header_buffers` bounds.
    size: usize,
    unique: u32,
    cookies: u32,
    /// Whether `:protocol` may be sent: we have said so in our SETTINGS.
    connect_protocol: bool,
    refusal: Option<Refusal>,
}

/// What is said of a pseudo-header, in nginx's words.
struct Texts {
    duplicate: &'static str,
    empty: &'static str,
    invalid: &'static str,
}

const METHOD: Texts = Texts {
    duplicate: "client sent duplicate :method header",
    empty: "client sent empty :method header",
    invalid: "client sent invalid method",
};
const PATH: Texts = Texts {
    duplicate: "client sent duplicate :path header",
    empty: "client sent empty :path header",
    invalid: "client sent invalid :path header",
};
const SCHEME: Texts = Texts {
    duplicate: "client sent duplicate :scheme header",
    empty: "client sent empty :scheme header",
    invalid: "client sent invalid :scheme header",
};
const AUTHORITY: Texts = Texts {
    duplicate: "client sent duplicate host header",
    empty: "client sent invalid host header",
    invalid: "client sent invalid host header",
};
const PROTOCOL: Texts = Texts {
    duplicate: "client sent duplicate :protocol header",
    empty: "client sent empty :protocol header",
    invalid: "client sent invalid :protocol header",
};

impl<'a> RequestBuilder<'a> {
    /// Builds `head`, whose spans point into `buf`; both are empty but for their memory.
    pub fn new(buf: &'a mut Vec<u8>, head: &'a mut Head, options: &'a Options) -> Self {
        buf.clear();
        head.clear();
        head.version = Version::Http2;
        RequestBuilder {
            buf,
            head,
            options: *options,
            by_host: None,
            pseudo: Pseudo::default(),
            line_is_written: false,
            size: 0,
            unique: 0,
            cookies: 0,
            connect_protocol: false,
            refusal: None,
        }
    }

    /// Takes CONNECT with `:protocol`, if we have told the client so.
    pub fn connect_protocol(mut self, is_on: bool) -> Self {
        self.connect_protocol = is_on;
        self
    }

    /// Asks, once a host has been named, by which options the fields behind it are judged. How large all of
    /// them may be does not change, as in nginx.
    pub fn options_by_host(mut self, choose: ByHost<'a>) -> Self {
        self.by_host = Some(choose);
        self
    }

    #[cold]
    fn host_is_known(&mut self, host: Span) {
        let chosen = self.by_host.take().and_then(|choose| choose(host.of(self.buf)));
        if let Some(chosen) = chosen {
            self.options = Options { large_buffers: self.options.large_buffers, ..chosen };
        }
    }

    /// The next field. After the first one that is wrong, the rest is passed over.
    pub fn field(&mut self, field: Field<'_>) {
        if self.refusal.is_some() {
            return;
        }
        let taken = match field.name.first() {
            Some(b':') => self.pseudo_field(field),
            _ => self.regular_field(field),
        };
        self.refusal = taken.err();
    }

    fn pseudo_field(&mut self, field: Field<'_>) -> Result<(), Refusal> {
        if self.line_is_written {
            return Err(Refusal::Malformed("client sent pseudo-header fields behind others"));
        }
        self.count(field, matches!(field.name, b":path"))?;
        let value = field.value;
        let pseudo = &mut self.pseudo;
        let (slot, fits, texts) = match field.name {
            b":method" => {
                let fits = value.iter().all(|ch| request_line::is_method(*ch));
                (&mut pseudo.method, fits, &METHOD)
            }
            // Anything but controls and spaces; the URI's own rules come later.
            b":path" => (&mut pseudo.path, is_visible(value), &PATH),
            b":scheme" => (&mut pseudo.scheme, is_scheme(value), &SCHEME),
            b":authority" => (&mut pseudo.authority, is_visible(value), &AUTHORITY),
            b":protocol" if self.connect_protocol => {
                (&mut pseudo.protocol, is_token(value), &PROTOCOL)
            }
            name => {
                self.at_fault(&[b" \"", name, b"\""]);
                return Err(Refusal::Malformed("client sent unknown pseudo-header"));
            }
        };
        if slot.is_some() {
            return Err(Refusal::Malformed(texts.duplicate));
        }
        if value.is_empty() {
            return Err(Refusal::Malformed(texts.empty));
        }
        if !fits {
            if field.name == b":authority" {
                // The log names it as the host.
                *slot = Some(append(self.buf, value));
            } else {
                self.at_fault(&[b": \"", value, b"\""]);
            }
            return Err(Refusal::Malformed(texts.invalid));
        }
        *slot = Some(append(self.buf, value));
        Ok(())
    }

    /// Keeps for the log what is wrong, as it stands behind the reason there.
    #[cold]
    fn at_fault(&mut self, parts: &[&[u8]]) {
        let start = self.buf.len();
        parts.iter().for_each(|part| self.buf.extend_from_slice(part));
        self.head.refused = Some(Span::new(start, self.buf.len()));
    }

    /// The same for a field that came before.
    #[cold]
    fn twice(&mut self, field: Field<'_>) {
        let is_it = |before: &&h1::Field| before.name.of(self.buf).eq_ignore_ascii_case(field.name);
        let Some(before) = self.head.headers.iter().find(is_it) else { return };
        let value = before.value.of(self.buf).to_vec();
        let (line, previous) = (&b": \""[..], b"\", previous value: \"");
        self.at_fault(&[
            line,
            field.name,
            b": ",
            field.value,
            previous,
            field.name,
            b": ",
            &value,
            b"\"",
        ]);
    }

    fn regular_field(&mut self, field: Field<'_>) -> Result<(), Refusal> {
        self.write_line();
        let is_usual = field.known_name || self.check_name(field.name)?;
        if !is_value(field.value) {
            // RFC 9113 §8.2.1.
            self.at_fault(&[b" \"", field.name, b"\" with invalid value: \"", field.value, b"\""]);
            return Err(Refusal::Malformed("client sent header"));
        }
        self.count(field, false)?;
        if !is_usual && self.options.ignore_invalid_headers {
            let skipped = append(self.buf, field.name);
            self.head.skipped.push(skipped);
            return Ok(());
        }
        let id = FieldId::of(field.name);
        self.check_meaning(id, field)?;
        if self.head.headers.len() >= self.options.max_headers {
            return Err(Reject::TooManyHeaders.into());
        }
        let name = append(self.buf, field.name);
        let value = append(self.buf, field.value);
        self.head.headers.push(h1::Field { name, value, id });
        if id == FieldId::Host && self.by_host.is_some() {
            self.host_is_known(value);
        }
        Ok(())
    }

    /// Bounds the head as `large_client_header_buffers` does in HTTP/1.
    fn count(&mut self, field: Field<'_>, is_target: bool) -> Result<(), Refusal> {
        let (number, bytes) = self.options.large_buffers;
        let len = field.name.len() + field.value.len();
        self.size = self.size.saturating_add(len);
        if len > bytes {
            let reject = if is_target { Reject::UriTooLong } else { Reject::HeaderTooLong };
            return Err(reject.into());
        }
        if self.size > number.saturating_mul(bytes) {
            return Err(Reject::RequestTooLarge.into());
        }
        Ok(())
    }

    /// Whether it is a name that nginx takes; the others are passed over or not, as configured.
    fn check_name(&mut self, name: &[u8]) -> Result<bool, Refusal> {
        let mut is_usual = !name.is_empty();
        for byte in name {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' => {}
                b'_' if self.options.underscores => {}
                // RFC 9113 §8.2.1.
                0..=b' ' | b'A'..=b'Z' | b':' | 0x7f..=0xff => {
                    self.at_fault(&[b": \"", name, b"\""]);
                    return Err(Refusal::Malformed("client sent invalid header name"));
                }
                _ => is_usual = false,
            }
        }
        match name {
            [] => Err(Refusal::Malformed("client sent zero header name length")),
            _ => Ok(is_usual),
        }
    }

    /// Fields that HTTP/2 has no place for, or only one.
    fn check_meaning(&mut self, id: FieldId, field: Field<'_>) -> Result<(), Refusal> {
        if id == FieldId::Cookie {
            self.cookies += 1;
        }
        if is_of_connection(id, field) {
            return Err(Refusal::Malformed("client sent connection-specific header"));
        }
        if id.is_unique() {
            let bit = 1 << id as u8;
            if self.unique & bit != 0 {
                self.twice(field);
                return Err(match id {
                    FieldId::Host => Reject::DuplicateHost,
                    _ => Reject::DuplicateHeader,
                }
                .into());
            }
            self.unique |= bit;
        }
        Ok(())
    }

    /// Writes what would have been the request line, and `:authority` as `Host`, which is how nginx
    /// shows it to everybody.
    fn write_line(&mut self) {
        if self.line_is_written {
            return;
        }
        self.line_is_written = true;
        let start = self.buf.len();
        let text = |span: Option<Span>| span.map_or(0..0, range);
        let (method, path) = (text(self.pseudo.method), text(self.pseudo.path));
        // RFC 9113 §8.5: what CONNECT has in place of a path.
        let is_connect = Method::of(&self.buf[method.clone()]) == Method::Connect;
        let is_tunnel = is_connect && self.pseudo.protocol.is_none();
        let path = if is_tunnel { text(self.pseudo.authority) } else { path };
        self.head.method = Method::of(&self.buf[method.clone()]);
        if self.is_extended_connect() {
            self.head.method = Method::Get;
            self.buf.extend_from_slice(b"GET");
        } else {
            self.buf.extend_from_within(method);
        }
        self.head.method_span = Span::new(start, self.buf.len());
        self.buf.push(b' ');
        let target = self.buf.len();
        self.buf.extend_from_within(path);
        self.head.target = Span::new(target, self.buf.len());
        self.head.uri = if is_tunnel { Span::default() } else { self.head.target };
        self.buf.push(b' ');
        let protocol = append(self.buf, b"HTTP/2.0");
        self.head.protocol = Some(protocol);
        self.head.request_line = Span::new(start, self.buf.len());
        if let Some(value) = self.pseudo.authority {
            let name = append(self.buf, b"host");
            self.head.headers.push(h1::Field { name, value, id: FieldId::Host });
            if self.by_host.is_some() {
                self.host_is_known(value);
            }
        }
        if let Some(value) = self.pseudo.protocol {
            let connection = append(self.buf, b"connection");
            let upgrade = append(self.buf, b"upgrade");
            let fields = [
                h1::Field { name: connection, value: upgrade, id: FieldId::Connection },
                h1::Field { name: upgrade, value, id: FieldId::Upgrade },
            ];
            self.head.headers.extend(fields);
        }
    }

    /// Whether it asks for another protocol on its stream (RFC 8441 §4).
    fn is_extended_connect(&self) -> bool {
        let is_connect = |method: Span| method.of(self.buf) == b"CONNECT";
        self.pseudo.protocol.is_some() && self.pseudo.method.is_some_and(is_connect)
    }

    /// The end of the section; `end_stream`: no body follows. The head holds what was read, whatever
    /// the outcome, for the log.
    pub fn finish(mut self, end_stream: bool) -> Result<Framing, Refusal> {
        self.write_line();
        if let Err(refusal) = self.check() {
            // As in nginx, which writes it when all else is right: `$request` is empty.
            self.head.request_line = Span::default();
            return Err(refusal);
        }
        self.join_cookies();
        let (head, buf) = (self.head, &self.buf[..]);
        let host = head.value(FieldId::Host).ok_or(Reject::NoHost)?;
        let length = match head.value(FieldId::ContentLength) {
            Some(value) => Some(parse_length(value.of(buf)).ok_or(Reject::ContentLength)?),
            None => None,
        };
        let upgrade = self.pseudo.protocol.is_some();
        let body = match (length, end_stream) {
            // What follows is not a body.
            (None, _) if head.method == Method::Connect => BodyLength::None,
            (Some(length), _) if length > 0 && upgrade => {
                return Err(Refusal::Malformed("client sent CONNECT with a body"));
            }
            (_, _) if upgrade => BodyLength::None,
            (Some(length), true) if length > 0 => {
                // RFC 9113 §8.1.1: the DATA frames, of which there are none, must sum up to it.
                let text = "client announced a body and sent none";
                return Err(Refusal::Malformed(text));
            }
            (Some(length), _) => BodyLength::Length(length),
            (None, true) => BodyLength::None,
            (None, false) => BodyLength::Chunked,
        };
        if head.method == Method::Trace {
            return Err(Reject::Trace.into());
        }
        let expects = |value: Span| value.of(buf).eq_ignore_ascii_case(b"100-continue");
        let expect_continue =
            !end_stream && !upgrade && head.value(FieldId::Expect).is_some_and(expects);
        Ok(Framing { host: Some(host), body, keep_alive: true, expect_continue, upgrade })
    }

    /// Whether the fields make a request.
    fn check(&mut self) -> Result<(), Refusal> {
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        self.check_pseudo()?;
        self.one_host()?;
        if self.head.method == Method::Connect {
            return self.connect_target();
        }
        Ok(request_line::scan_target(self.buf, self.head.target, self.head)?)
    }

    /// Host and port of a CONNECT, which must both be there (RFC 9110 §9.3.6).
    fn connect_target(&mut self) -> Result<(), Refusal> {
        let target = self.head.target;
        let text = target.of(self.buf);
        let colon = memchr::memrchr(b':', text).ok_or(Reject::InvalidRequest)?;
        let port = &text[colon + 1..];
        let is_port = port.iter().all(u8::is_ascii_digit) && port.iter().any(|ch| *ch != b'0');
        if colon == 0 || !is_port {
            return Err(Reject::InvalidRequest.into());
        }
        let start = target.start as usize;
        self.head.host = Some(Span::new(start, start + colon));
        self.head.port = Some(Span::new(start + colon + 1, start + text.len()));
        Ok(())
    }

    /// RFC 9113 §8.3.1 and §8.5.
    fn check_pseudo(&mut self) -> Result<(), Refusal> {
        let pseudo = self.pseudo;
        if pseudo.protocol.is_some() && !self.is_extended_connect() {
            return Err(Refusal::Malformed("client sent :protocol without CONNECT"));
        }
        if self.head.method == Method::Connect {
            return match (pseudo.scheme, pseudo.path, pseudo.authority) {
                (None, None, Some(_)) => Ok(()),
                _ => Err(Refusal::Malformed("client sent CONNECT with :scheme or :path")),
            };
        }
        let text = match (pseudo.method, pseudo.scheme, pseudo.path) {
            (None, ..) => "client sent no :method header",
            (_, None, _) => "client sent no :scheme header",
            (.., None) => "client sent no :path header",
            (.., Some(path)) => match path.of(self.buf) {
                [b'/', ..] => return Ok(()),
                // OPTIONS of the whole server: nginx has no answer to it.
                [b'*', ..] => return Err(Reject::InvalidRequest.into()),
                path => {
                    let path = path.to_vec();
                    self.at_fault(&[b": \"", &path, b"\""]);
                    PATH.invalid
                }
            },
        };
        Err(Refusal::Malformed(text))
    }

    /// `Host` beside `:authority` must say the same (RFC 9113 §8.3.1), and then says nothing.
    fn one_host(&mut self) -> Result<(), Refusal> {
        let Some(authority) = self.pseudo.authority else { return Ok(()) };
        let is_host = |field: &h1::Field| field.id == FieldId::Host;
        let Some(second) = self.head.headers.iter().skip(1).position(is_host) else {
            return Ok(());
        };
        let host = self.head.headers.remove(second + 1).value;
        match host.of(self.buf).eq_ignore_ascii_case(authority.of(self.buf)) {
            true => Ok(()),
            false => Err(Refusal::Malformed("client sent a Host that is not its :authority")),
        }
    }

    /// Crumbs make one cookie again (RFC 9113 §8.2.3), which stands behind all other fields, even if it
    /// was whole (`ngx_http_v2_construct_cookie_header`).
    fn join_cookies(&mut self) {
        let headers = &mut self.head.headers;
        if self.cookies < 2 {
            if let Some(at) = headers.iter().position(|field| field.id == FieldId::Cookie) {
                headers[at..].rotate_left(1);
            }
            return;
        }
        let start = self.buf.len();
        let mut name = Span::default();
        let crumbs = self.head.headers.iter().filter(|field| field.id == FieldId::Cookie);
        for (at, field) in crumbs.enumerate() {
            if at > 0 {
                self.buf.extend_from_slice(b"; ");
            }
            name = field.name;
            self.buf.extend_from_within(range(field.value));
        }
        let value = Span::new(start, self.buf.len());
        self.head.headers.retain(|field| field.id != FieldId::Cookie);
        self.head.headers.push(h1::Field { name, value, id: FieldId::Cookie });
    }
}

fn range(span: Span) -> std::ops::Range<usize> {
    span.start as usize..span.end as usize
}

fn append(buf: &mut Vec<u8>, text: &[u8]) -> Span {
    let start = buf.len();
    buf.extend_from_slice(text);
    Span::new(start, buf.len())
}

fn is_visible(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|ch| *ch > b' ' && *ch != 0x7f)
}

/// RFC 9110 §5.6.2, without what nobody calls a protocol.
fn is_token(text: &[u8]) -> bool {
    let is_one = |ch: &u8| ch.is_ascii_alphanumeric() || matches!(ch, b'-' | b'.' | b'_' | b'+');
    !text.is_empty() && text.iter().all(is_one)
}

fn is_scheme(text: &[u8]) -> bool {
    let (Some(first), rest) = (text.first(), text.get(1..).unwrap_or_default()) else {
        return false;
    };
    first.is_ascii_alphabetic()
        && rest.iter().all(|ch| ch.is_ascii_alphanumeric() || matches!(ch, b'+' | b'-' | b'.'))
}

/// Whether it may be the value of a field (RFC 9113 §8.2.1).
pub fn is_value(value: &[u8]) -> bool {
    let is_space = |ch: Option<&u8>| matches!(ch, Some(b' ' | b'\t'));
    let splits = line_end(value).is_some();
    !splits && !is_space(value.first()) && !is_space(value.last())
}

/// Whether it may be the name of a field that is no pseudo-header (RFC 9113 §8.2.1).
pub fn is_name(name: &[u8]) -> bool {
    let fits = |ch: &u8| matches!(ch, b'!'..=b'9' | b';'..=b'@' | b'['..=b'~');
    !name.is_empty() && name.iter().all(fits)
}

/// Whether it speaks of a connection, as only HTTP/1 does (RFC 9113 §8.2.2).
fn is_of_connection(id: FieldId, field: Field<'_>) -> bool {
    match id {
        FieldId::Connection | FieldId::KeepAlive | FieldId::TransferEncoding | FieldId::Upgrade => {
            true
        }
        FieldId::TE => !field.value.eq_ignore_ascii_case(b"trailers"),
        FieldId::Other => field.name == b"proxy-connection",
        _ => false,
    }
}

/// Whether a field may stand behind a body (RFC 9113 §8.1): a name that is one, no pseudo-header, and
/// nothing of a connection.
pub fn is_trailer(field: Field<'_>) -> bool {
    is_name(field.name)
        && is_value(field.value)
        && !is_of_connection(FieldId::of(field.name), field)
}

#[cfg(test)]
mod tests;
