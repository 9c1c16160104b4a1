//! What a head means for the bytes that follow it: decided once, here, for reading and forwarding.
//! Answers ngx_http_process_host, ngx_http_process_connection and ngx_http_process_request_header.
//!
//! DIFFERS(connection-close-wins): `close` in any `Connection` line wins; in nginx the last line
//! that says `close` or `keep-alive` does (RFC 9112 §9.6).
//!
//! *Invariant:* nothing else in Forebay reads Content-Length, Transfer-Encoding, Connection, Host
//! or Expect of a request to decide where it ends or what it is for.

use super::field::FieldId;
use super::head::{Head, Version};
use super::host::split_host;
use super::method::Method;
use super::response::{BadResponse, ResponseHead};
use super::response_field::ResponseFieldId;
use crate::{Reject, Span};

/// How long the request body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BodyLength {
    /// No body: neither length nor coding.
    #[default]
    None,
    /// `Content-Length`, bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// The meaning of a head for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Framing {
    /// The effective authority, as sent, with the port: of the target, else of `Host`. It is
    /// valid; [`super::validate_host`] gives its normal form.
    pub host: Option<Span>,
    /// The body.
    pub body: BodyLength,
    /// Whether the client wants the connection kept.
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue`.
    pub expect_continue: bool,
    /// Whether the client asks for another protocol: `Upgrade`, nominated in `Connection`.
    pub upgrade: bool,
}

/// Headers collected in one pass.
#[derive(Default)]
struct Seen {
    unique: u32,
    host: Option<Span>,
    length: Option<Span>,
    coding: Option<Span>,
    expect: Option<Span>,
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    upgrade_nominated: bool,
}

/// Decides the framing of a complete head, or refuses it. `known_host`: one that was valid before, as it
/// was sent, and is not checked again; empty for none.
pub fn framing(head: &Head, buf: &[u8], known_host: &[u8]) -> Result<Framing, Reject> {
    let target_host = target_host(head, buf)?;
    let seen = collect(head, buf, known_host)?;
    let host = target_host.or(seen.host);
    if seen.host.is_none() && head.version == Version::Http11 {
        return Err(Reject::NoHost);
    }
    let body = body_length(head, buf, &seen)?;
    if head.method == Method::Trace {
        return Err(Reject::Trace);
    }
    let http11 = head.version == Version::Http11;
    let keep_alive = !seen.close && (http11 || seen.keep_alive);
    // ngx_http_test_expect: any other expectation is ignored.
    let expects = |value: Span| value.of(buf).eq_ignore_ascii_case(b"100-continue");
    Ok(Framing {
        host,
        body,
        keep_alive,
        expect_continue: http11 && seen.expect.is_some_and(expects),
        upgrade: http11 && seen.upgrade && seen.upgrade_nominated,
    })
}

/// The host that a head names, as far as it was read, though it is refused: nginx looks at the lines one
/// by one, and chooses a server when it comes to `Host` (`ngx_http_process_host`).
pub fn named_host(head: &Head, buf: &[u8]) -> Option<Span> {
    let target_host = target_host(head, buf).ok()?;
    target_host.or_else(|| {
        let host = head.headers.iter().find(|field| field.id == FieldId::Host)?.value;
        split_host(host.of(buf)).is_ok().then_some(host)
    })
}

/// The authority of an absolute-form target; it replaces `Host` (RFC 9112 §3.2.2).
fn target_host(head: &Head, buf: &[u8]) -> Result<Option<Span>, Reject> {
    let Some(host) = head.host else { return Ok(None) };
    let end = head.port.map_or(host.end, |port| port.end);
    let authority = Span { start: host.start, end };
    let (_, port) = split_host(authority.of(buf)).map_err(|_| Reject::InvalidTargetHost)?;
    if head.method == Method::Connect && port == Some(0) {
        // RFC 9110 §9.3.6.
        return Err(Reject::InvalidTargetHost);
    }
    Ok(Some(authority))
}

/// Whether a CONNECT is one that a tunnel can be made for: its target is an authority, and nothing
/// that the tunnel's first bytes could be taken for is announced (RFC 9110 §9.3.6: no content).
/// `tunnels`: whether there are any.
pub fn check_connect(head: &Head, framing: &Framing, tunnels: bool) -> Result<(), Reject> {
    if head.method != Method::Connect {
        return Ok(());
    }
    if !tunnels {
        return Err(Reject::Connect);
    }
    if head.host.is_none() {
        return Err(Reject::InvalidRequest);
    }
    match framing.body {
        BodyLength::None => Ok(()),
        _ => Err(Reject::ConnectContent),
    }
}

fn collect(head: &Head, buf: &[u8], known_host: &[u8]) -> Result<Seen, Reject> {
    let mut seen = Seen::default();
    for field in &head.headers {
        if field.id == FieldId::Other {
            continue;
        }
        if field.id.is_unique() {
            let bit = 1 << field.id as u8;
            if seen.unique & bit != 0 {
                return Err(match field.id {
                    FieldId::Host => Reject::DuplicateHost,
                    _ => Reject::DuplicateHeader,
                });
            }
            seen.unique |= bit;
        }
        match field.id {
            FieldId::Host => {
                let host = field.value.of(buf);
                // An empty one is known to nobody, and refused.
                if host.is_empty() || host != known_host {
                    split_host(host)?;
                }
                seen.host = Some(field.value);
            }
            FieldId::ContentLength => seen.length = Some(field.value),
            FieldId::TransferEncoding => seen.coding = Some(field.value),
            FieldId::Expect => seen.expect = Some(field.value),
            FieldId::Upgrade => seen.upgrade = !field.value.is_empty(),
            FieldId::Connection => connection(field.value.of(buf), &mut seen),
            _ => {}
        }
    }
    Ok(seen)
}

/// nginx looks for `close` and `keep-alive` anywhere in the value; closing in doubt is safe.
fn connection(value: &[u8], seen: &mut Seen) {
    if contains_ignore_case(value, b"close") {
        seen.close = true;
    } else if contains_ignore_case(value, b"keep-alive") {
        seen.keep_alive = true;
    }
    seen.upgrade_nominated |= tokens(value).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
}

/// The members of a comma-separated list, without the white space around them (RFC 9110 §5.6.1).
pub fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&ch| ch == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

fn contains_ignore_case(value: &[u8], needle: &[u8]) -> bool {
    value.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle))
}

/// RFC 9112 §6.3, in the order and with the answers of ngx_http_process_request_header: what is
/// not plainly one thing is refused.
fn body_length(head: &Head, buf: &[u8], seen: &Seen) -> Result<BodyLength, Reject> {
    let length = match seen.length {
        Some(value) => Some(parse_length(value.of(buf)).ok_or(Reject::ContentLength)?),
        None => None,
    };
    let Some(coding) = seen.coding else {
        return Ok(length.map_or(BodyLength::None, BodyLength::Length));
    };
    if head.version < Version::Http11 {
        return Err(Reject::TransferEncodingIn10);
    }
    if !coding.of(buf).eq_ignore_ascii_case(b"chunked") {
        return Err(Reject::UnknownTransferEncoding);
    }
    if length.is_some() {
        return Err(Reject::LengthAndChunked);
    }
    Ok(BodyLength::Chunked)
}

/// `1*DIGIT` below 2^63 (ngx_atoof): no sign, no space, no list.
pub fn parse_length(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut length = 0i64;
    for &ch in digits {
        if !ch.is_ascii_digit() {
            return None;
        }
        length = length.checked_mul(10)?.checked_add(i64::from(ch - b'0'))?;
    }
    u64::try_from(length).ok()
}

/// What of a request decides how the response to it is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sent {
    /// It was a HEAD: no body follows, whatever the head says.
    pub head: bool,
    /// It asked for another protocol (`Upgrade`, nominated), so that a 101 may come.
    pub upgrade: bool,
}

/// How long a response body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ResponseBody {
    /// No body.
    #[default]
    None,
    /// `Content-Length`, bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Up to the end of the connection.
    Close,
}

/// The meaning of a response head for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ResponseFraming {
    /// The body that follows on the connection.
    pub body: ResponseBody,
    /// What `Content-Length` says, also where no body follows it (HEAD, 304).
    pub length: Option<u64>,
    /// Whether the connection can be used again after the body.
    pub keep_alive: bool,
    /// An interim response (1xx but 101): another head follows.
    pub interim: bool,
    /// 101: what follows is the other protocol.
    pub upgrade: bool,
    /// Whether `Connection` nominates other fields than itself, see [`Nominees`](super::Nominees).
    pub nominates: bool,
}

/// Decides the framing of a complete response head (RFC 9112 §6.3), or refuses it. An upstream that
/// leaves a doubt is not believed.
pub fn response_framing(
    head: &ResponseHead,
    buf: &[u8],
    sent: Sent,
) -> Result<ResponseFraming, BadResponse> {
    let (mut length, mut chunked) = (None, false);
    let (mut close, mut upgrade, mut nominates) = (false, false, false);
    for field in &head.fields {
        let value = || field.value.of(buf);
        match field.id {
            ResponseFieldId::ContentLength if length.is_some() => {
                return Err(BadResponse::DuplicateHeader);
            }
            ResponseFieldId::ContentLength => {
                length = Some(parse_length(value()).ok_or(BadResponse::ContentLength)?);
            }
            ResponseFieldId::TransferEncoding if chunked => {
                return Err(BadResponse::DuplicateHeader);
            }
            ResponseFieldId::TransferEncoding => {
                if !value().eq_ignore_ascii_case(b"chunked") {
                    return Err(BadResponse::UnknownTransferEncoding);
                }
                chunked = true;
            }
            ResponseFieldId::Connection => {
                for token in tokens(value()) {
                    if token.eq_ignore_ascii_case(b"close") {
                        close = true;
                    } else if !token.eq_ignore_ascii_case(b"keep-alive") {
                        nominates = true;
                        upgrade |= token.eq_ignore_ascii_case(b"upgrade");
                    }
                }
            }
            _ => {}
        }
    }
    if length.is_some() && chunked {
        return Err(BadResponse::LengthAndChunked);
    }
    let http11 = head.version == Version::Http11;
    // As nginx, no connection of an HTTP/1.0 server is kept, whatever it offers; so a transfer coding
    // in HTTP/1.0, which makes the framing faulty (RFC 9112 §6.1), harms this response only.
    let keep_alive = http11 && !close;
    let mut framing =
        ResponseFraming { length, keep_alive, nominates, ..ResponseFraming::default() };
    match head.status {
        // DIFFERS(upgrade-not-asked): nginx passes it on.
        101 if !sent.upgrade || !http11 || !upgrade => {
            return Err(BadResponse::UnexpectedUpgrade);
        }
        101 => {
            framing.upgrade = true;
            framing.keep_alive = false;
        }
        // DIFFERS(interim-responses): for nginx it is the response.
        100..=199 => framing.interim = true,
        // RFC 9112 §6.3: no body, whatever they say of its length.
        204 | 304 => {}
        _ if sent.head => {}
        _ => {
            framing.body = match (chunked, length) {
                (true, _) => ResponseBody::Chunked,
                (false, Some(length)) => ResponseBody::Length(length),
                (false, None) => ResponseBody::Close,
            };
        }
    }
    framing.keep_alive &= framing.body != ResponseBody::Close;
    Ok(framing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::{Options, Parser, Progress};

    fn frame(head: &str) -> Result<(Framing, Option<String>), Reject> {
        let mut parser = Parser::new();
        let buf = head.as_bytes();
        parser.parse(buf, &Options::default())?;
        let framing = framing(parser.head(), buf, b"")?;
        let host = framing.host.map(|host| String::from_utf8_lossy(host.of(buf)).into_owned());
        Ok((framing, host))
    }

    #[test]
    fn connections_are_kept_by_version_and_token() {
        for (version, connection, keep) in [
            ("1.1", "", true),
            ("1.0", "", false),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: foo, Close\r\n", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.1", "Connection: close\r\nConnection: keep-alive\r\n", false),
            ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
            ("1.2", "", true),
        ] {
            let head = format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n");
            assert_eq!(frame(&head).unwrap().0.keep_alive, keep, "{head}");
        }
        assert!(!frame("GET /\r\n").unwrap().0.keep_alive);
    }

    #[test]
    fn an_upgrade_must_be_nominated_in_http_11() {
        for (version, fields, upgrade) in [
            ("1.1", "Upgrade: websocket\r\nConnection: Upgrade\r\n", true),
            ("1.1", "Connection: keep-alive, Upgrade\r\nUpgrade: h2c\r\n", true),
            ("1.1", "Upgrade: websocket\r\n", false),
            ("1.1", "Connection: Upgrade\r\n", false),
            ("1.0", "Upgrade: websocket\r\nConnection: Upgrade\r\n", false),
        ] {
            let head = format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n");
            assert_eq!(frame(&head).unwrap().0.upgrade, upgrade, "{head}");
        }
    }

    #[test]
    fn only_100_continue_is_an_expectation() {
        for (version, value, expect) in
            [("1.1", "100-Continue", true), ("1.0", "100-continue", false), ("1.1", "x", false)]
        {
            let head = format!("GET / HTTP/{version}\r\nHost: a\r\nExpect: {value}\r\n\r\n");
            assert_eq!(frame(&head).unwrap().0.expect_continue, expect, "{head}");
        }
    }

    #[test]
    fn the_target_names_the_host_before_host_does() {
        for (head, host) in [
            ("GET / HTTP/1.1\r\nHost: A:80\r\n\r\n", Some("A:80")),
            ("GET http://B:81/ HTTP/1.1\r\nHost: a\r\n\r\n", Some("B:81")),
            ("GET http://b HTTP/1.0\r\n\r\n", Some("b")),
            ("GET http://b:?x HTTP/1.0\r\n\r\n", Some("b:")),
            ("GET / HTTP/1.0\r\n\r\n", None),
        ] {
            assert_eq!(frame(head).unwrap().1.as_deref(), host, "{head}");
        }
    }

    #[test]
    fn methods_that_nginx_never_serves_are_refused_last() {
        assert_eq!(frame("TRACE / HTTP/1.0\r\n\r\n"), Err(Reject::Trace));
        assert_eq!(frame("TRACE / HTTP/1.1\r\n\r\n"), Err(Reject::NoHost));
    }

    #[test]
    fn connect_is_for_tunnels_and_names_a_host_and_a_port() {
        for (head, tunnels, without) in [
            ("CONNECT a:443 HTTP/1.0\r\n\r\n", Ok(()), Reject::Connect),
            ("CONNECT [::1]:443 HTTP/1.0\r\n\r\n", Ok(()), Reject::Connect),
            ("CONNECT / HTTP/1.0\r\n\r\n", Err(Reject::InvalidRequest), Reject::Connect),
            (
                "CONNECT a:443 HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n",
                Err(Reject::ConnectContent),
                Reject::Connect,
            ),
            (
                "CONNECT a:443 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                Err(Reject::ConnectContent),
                Reject::Connect,
            ),
        ] {
            let mut parser = Parser::default();
            let done = parser.parse(head.as_bytes(), &Options::default());
            assert!(matches!(done, Ok(Progress::Complete { .. })), "{head}");
            let framing = framing(parser.head(), head.as_bytes(), b"").unwrap();
            assert_eq!(check_connect(parser.head(), &framing, true), tunnels, "{head}");
            assert_eq!(check_connect(parser.head(), &framing, false), Err(without), "{head}");
        }
        for (head, reject) in [
            ("CONNECT a:443 HTTP/1.1\r\n\r\n", Reject::NoHost),
            ("CONNECT a:0 HTTP/1.0\r\n\r\n", Reject::InvalidTargetHost),
            ("CONNECT a:65536 HTTP/1.0\r\n\r\n", Reject::InvalidTargetHost),
            ("CONNECT :1 HTTP/1.0\r\n\r\n", Reject::InvalidTargetHost),
        ] {
            assert_eq!(frame(head), Err(reject), "{head}");
        }
    }
}
