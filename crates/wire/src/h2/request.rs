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
#[derive(Default)]
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
        let (slot, fits) = match field.name {
            b":method" => {
                let fits = !value.is_empty() && value.iter().all(|ch| request_line::is_method(*ch));
                (&mut self.pseudo.method, fits)
            }
            // Anything but controls and spaces; the URI's own rules come later.
            b":path" => (&mut self.pseudo.path, is_visible(value)),
            b":scheme" => (&mut self.pseudo.scheme, is_scheme(value)),
            b":authority" => (&mut self.pseudo.authority, is_visible(value)),
            b":protocol" if self.connect_protocol => (&mut self.pseudo.protocol, is_token(value)),
            _ => return Err(Refusal::Malformed("client sent unknown pseudo-header")),
        };
        if !fits {
            return Err(Refusal::Malformed("client sent invalid pseudo-header"));
        }
        if slot.is_some() {
            return Err(Refusal::Malformed("client sent duplicate pseudo-header"));
        }
        *slot = Some(append(self.buf, value));
        Ok(())
    }

    fn regular_field(&mut self, field: Field<'_>) -> Result<(), Refusal> {
        self.write_line();
        let is_usual = field.known_name || self.check_name(field.name)?;
        check_value(field.value)?;
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
    fn check_name(&self, name: &[u8]) -> Result<bool, Refusal> {
        let mut is_usual = !name.is_empty();
        for byte in name {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' => {}
                b'_' if self.options.underscores => {}
                // RFC 9113 §8.2.1.
                0..=b' ' | b'A'..=b'Z' | b':' | 0x7f..=0xff => {
                    return Err(Refusal::Malformed("client sent invalid header name"));
                }
                _ => is_usual = false,
            }
        }
        match name {
            [] => Err(Refusal::Malformed("client sent empty header name")),
            _ => Ok(is_usual),
        }
    }

    /// Fields that HTTP/2 has no place for, or only one.
    fn check_meaning(&mut self, id: FieldId, field: Field<'_>) -> Result<(), Refusal> {
        let is_connections = match id {
            FieldId::Connection
            | FieldId::KeepAlive
            | FieldId::TransferEncoding
            | FieldId::Upgrade => true,
            FieldId::TE => !field.value.eq_ignore_ascii_case(b"trailers"),
            FieldId::Other => field.name == b"proxy-connection",
            FieldId::Cookie => {
                self.cookies += 1;
                false
            }
            _ => false,
        };
        if is_connections {
            // RFC 9113 §8.2.2.
            return Err(Refusal::Malformed("client sent connection-specific header"));
        }
        if id.is_unique() {
            let bit = 1 << id as u8;
            if self.unique & bit != 0 {
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
    fn check_pseudo(&self) -> Result<(), Refusal> {
        let pseudo = &self.pseudo;
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
            (.., Some(path)) => match path.of(self.buf).first() {
                Some(b'/') => return Ok(()),
                // OPTIONS of the whole server: nginx has no answer to it.
                Some(b'*') => return Err(Reject::InvalidRequest.into()),
                _ => "client sent invalid :path header",
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
        for field in self.head.headers.iter().filter(|field| field.id == FieldId::Cookie) {
            if self.buf.len() > start {
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

/// RFC 9113 §8.2.1.
fn check_value(value: &[u8]) -> Result<(), Refusal> {
    match is_value(value) {
        true => Ok(()),
        false => Err(Refusal::Malformed("client sent header with invalid value")),
    }
}

/// Whether it may be the value of a field (RFC 9113 §8.2.1).
pub fn is_value(value: &[u8]) -> bool {
    let is_space = |ch: Option<&u8>| matches!(ch, Some(b' ' | b'\t'));
    let splits = memchr::memchr3(b'\r', b'\n', 0, value).is_some();
    !splits && !is_space(value.first()) && !is_space(value.last())
}

/// Whether it may be the name of a field that is no pseudo-header (RFC 9113 §8.2.1).
pub fn is_name(name: &[u8]) -> bool {
    let fits = |ch: &u8| matches!(ch, b'!'..=b'9' | b';'..=b'@' | b'['..=b'~');
    !name.is_empty() && name.iter().all(fits)
}

/// Whether a field may stand behind a body (RFC 9113 §8.1): a name that is one, and no pseudo-header.
pub fn is_trailer(field: Field<'_>) -> bool {
    is_name(field.name) && is_value(field.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options {
        underscores: false,
        ignore_invalid_headers: true,
        client_header_buffer_size: 1024,
        large_buffers: (4, 100),
        max_headers: 5,
    };

    type Case<'a> = (&'a [(&'a str, &'a str)], Option<Reject>);

    fn build(fields: &[(&str, &str)], end: bool) -> (Head, String, Result<Framing, Refusal>) {
        build_with(fields, end, false)
    }

    fn build_with(
        fields: &[(&str, &str)],
        end: bool,
        on: bool,
    ) -> (Head, String, Result<Framing, Refusal>) {
        let (mut buf, mut head) = (Vec::new(), Head::default());
        let mut builder = RequestBuilder::new(&mut buf, &mut head, &OPTIONS).connect_protocol(on);
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            builder.field(Field { name, value, known_name: false });
        }
        let framing = builder.finish(end);
        let line = String::from_utf8_lossy(head.request_line.of(&buf)).into_owned();
        let mut text = line + "\n";
        for field in &head.headers {
            let part = |span: Span| String::from_utf8_lossy(span.of(&buf)).into_owned();
            text += &format!("{}: {}\n", part(field.name), part(field.value));
        }
        (head, text, framing)
    }

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "http"), (":path", "/a?b"), (":authority", "A:80")];

    #[test]
    fn the_cookie_stands_behind_all_other_fields() {
        let fields = [&GET[..], &[("cookie", "a=b"), ("x", "1"), ("y", "2")]].concat();
        let (_, text, _) = build(&fields, true);
        assert_eq!(text, "GET /a?b HTTP/2.0\nhost: A:80\nx: 1\ny: 2\ncookie: a=b\n");
    }

    #[test]
    fn a_request_looks_as_if_it_had_come_by_http_1() {
        let fields =
            [&GET[..], &[("cookie", "a=b"), ("x", ""), ("cookie", "c=d"), ("host", "a:80")]]
                .concat();
        let (head, text, framing) = build(&fields, true);
        assert_eq!(text, "GET /a?b HTTP/2.0\nhost: A:80\nx: \ncookie: a=b; c=d\n");
        let framing = framing.expect("a request");
        assert_eq!((framing.body, framing.keep_alive), (BodyLength::None, true));
        assert_eq!((head.method, head.version), (Method::Get, Version::Http2));
        assert_eq!(head.uri_flags.args_start, Some(head.uri.start + 3));
        assert!(head.uri_flags.is_simple());
    }

    #[test]
    fn fields_are_judged_by_the_options_of_the_host() {
        let choose = |host: &[u8]| {
            let chosen = Options { underscores: true, large_buffers: (0, 0), ..OPTIONS };
            (host == b"A:80").then_some(chosen)
        };
        let by_authority = GET.to_vec();
        let by_host = [&GET[..3], &[("b_c", ""), ("host", "A:80")]].concat();
        let of_another = [&GET[..3], &[(":authority", "B")]].concat();
        let tables = [(by_authority, "host x_y"), (by_host, "host x_y"), (of_another, "host")];
        for (fields, want) in tables {
            let (mut buf, mut head) = (Vec::new(), Head::default());
            let mut builder =
                RequestBuilder::new(&mut buf, &mut head, &OPTIONS).options_by_host(&choose);
            for (name, value) in fields.iter().chain(&[("x_y", "1")]) {
                let (name, value) = (name.as_bytes(), value.as_bytes());
                builder.field(Field { name, value, known_name: false });
            }
            builder.finish(true).expect("a request");
            let names: Vec<_> = head.headers.iter().map(|field| field.name.of(&buf)).collect();
            assert_eq!(names.join(&b' '), want.as_bytes(), "{fields:?}");
        }
    }

    #[test]
    fn extended_connect_is_the_upgrade_that_http_1_would_have_had() {
        let connect = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":path", "/chat?a"),
            (":authority", "a"),
            ("origin", "b"),
        ];
        let (head, text, framing) = build_with(&connect, false, true);
        assert_eq!(
            text,
            "GET /chat?a HTTP/2.0\nhost: a\nconnection: upgrade\nupgrade: websocket\norigin: b\n"
        );
        let framing = framing.expect("a request");
        assert_eq!((head.method, framing.body), (Method::Get, BodyLength::None));
        assert!(framing.upgrade && !framing.expect_continue);
        // Without the setting, of another method, without a path, of no name.
        assert!(build_with(&connect, false, false).2.is_err());
        for (at, field) in [
            (0, (":method", "GET")),
            (1, (":protocol", "a b")),
            (1, (":protocol", "")),
            (3, ("x", "y")),
            (5, ("connection", "x")),
            (5, ("upgrade", "x")),
            (5, ("content-length", "1")),
        ] {
            let mut fields = connect;
            fields[at] = field;
            let refused = build_with(&fields, false, true).2.expect_err("refused");
            assert!(matches!(refused, Refusal::Malformed(_)), "{field:?}");
        }
    }

    #[test]
    fn connect_names_a_host_and_a_port() {
        let (head, text, framing) =
            build(&[(":method", "CONNECT"), (":authority", "a:443")], false);
        assert_eq!(text, "CONNECT a:443 HTTP/2.0\nhost: a:443\n");
        let framing = framing.expect("a request");
        assert_eq!((head.method, framing.body), (Method::Connect, BodyLength::None));
        assert!(head.uri.is_empty() && head.host.is_some() && head.port.is_some());
    }

    #[test]
    fn bodies_are_announced_by_length_or_by_the_open_stream() {
        for (length, end, body) in [
            (None, false, BodyLength::Chunked),
            (Some("7"), false, BodyLength::Length(7)),
            (Some("0"), true, BodyLength::Length(0)),
        ] {
            let length = length.map(|length| ("content-length", length));
            let fields: Vec<_> = GET.into_iter().chain(length).collect();
            assert_eq!(build(&fields, end).2.expect("a request").body, body);
        }
    }

    #[test]
    fn malformed_requests_are_told_from_others() {
        let long = "x".repeat(101);
        let cases: &[Case<'_>] = &[
            (&[("A", "b")], None),
            (&[("a b", "c")], None),
            (&[("a:b", "c")], None),
            (&[("", "c")], None),
            (&[("a\u{e9}", "c")], None),
            (&[("a", "b\r\nc: d")], None),
            (&[("a", "b\0")], None),
            (&[("a", " b")], None),
            (&[("a", "b\t")], None),
            (&[("a", "b"), (":authority", "b")], None),
            (&[(":status", "200")], None),
            (&[(":protocol", "websocket")], None),
            (&[(":path", "/")], None),
            (&[(":method", "GET")], None),
            (&[("connection", "close")], None),
            (&[("keep-alive", "1")], None),
            (&[("proxy-connection", "close")], None),
            (&[("transfer-encoding", "chunked")], None),
            (&[("upgrade", "h2c")], None),
            (&[("te", "gzip")], None),
            (&[("host", "b")], None),
            (&[("content-length", "1")], None),
            (&[("host", "a:80"), ("host", "a:80")], Some(Reject::DuplicateHost)),
            (&[("expect", "x"), ("expect", "x")], Some(Reject::DuplicateHeader)),
            (&[("content-length", "x")], Some(Reject::ContentLength)),
            (&[("a", &long)], Some(Reject::HeaderTooLong)),
            (&[("a", &long[..98]); 4], Some(Reject::RequestTooLarge)),
            (&[("a", "b"); 5], Some(Reject::TooManyHeaders)),
        ];
        for (fields, reject) in cases {
            let fields = [&GET[..], fields].concat();
            match (build(&fields, true).2.expect_err("refused"), reject) {
                (Refusal::Malformed(_), None) => {}
                (Refusal::Reject(found), Some(reject)) => assert_eq!(found, *reject, "{fields:?}"),
                (other, _) => panic!("{fields:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn pseudo_headers_must_be_there_and_right() {
        let long = format!("/{}", "x".repeat(100));
        let cases: &[Case<'_>] = &[
            (&[(":scheme", "http"), (":path", "/"), (":authority", "a")], None),
            (&[(":method", "GET"), (":path", "/"), (":authority", "a")], None),
            (&[(":method", "GET"), (":scheme", "http"), (":authority", "a")], None),
            (&[(":method", "GET"), (":scheme", "http"), (":path", "")], None),
            (&[(":method", "GET"), (":scheme", "http"), (":path", "a")], None),
            (&[(":method", "GET"), (":scheme", "http"), (":path", "/a b")], None),
            (&[(":method", "GET"), (":scheme", "ht tp"), (":path", "/")], None),
            (&[(":method", "G\r\nT"), (":scheme", "http"), (":path", "/")], None),
            (&[(":method", "GET"), (":scheme", "http"), (":path", "/")], Some(Reject::NoHost)),
            (
                &[(":method", "GET"), (":scheme", "http"), (":path", &long)],
                Some(Reject::UriTooLong),
            ),
            (&[(":method", "CONNECT"), (":scheme", "http"), (":path", "/")], None),
            (&[(":method", "CONNECT"), (":authority", "a")], Some(Reject::InvalidRequest)),
            (&[(":method", "CONNECT"), (":authority", "a:0")], Some(Reject::InvalidRequest)),
            (
                &[(":method", "TRACE"), (":scheme", "http"), (":path", "/"), ("host", "a")],
                Some(Reject::Trace),
            ),
            (
                &[(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), ("host", "a")],
                Some(Reject::InvalidRequest),
            ),
        ];
        for (fields, reject) in cases {
            match (build(fields, true).2.expect_err("refused"), reject) {
                (Refusal::Malformed(_), None) => {}
                (Refusal::Reject(found), Some(reject)) => assert_eq!(found, *reject, "{fields:?}"),
                (other, _) => panic!("{fields:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn odd_names_are_passed_over_as_configured() {
        let fields = [&GET[..], &[("a_b", "c"), ("a(b", "c"), ("x", "y")]].concat();
        let (head, text, framing) = build(&fields, true);
        assert!(framing.is_ok());
        assert_eq!(text, "GET /a?b HTTP/2.0\nhost: A:80\nx: y\n");
        assert_eq!(head.skipped.len(), 2);
    }

    #[test]
    fn trailers_are_plain_fields() {
        let of = |name: &str, value: &str| {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            is_trailer(Field { name, value, known_name: false })
        };
        assert!(of("grpc-status", "0"));
        assert!(!of(":path", "/") && !of("", "x") && !of("A", "x") && !of("a", "\n"));
    }
}
