//! The PROXY protocol's header, versions 1 and 2. Answers ngx_proxy_protocol.c and
//! `proxy-protocol.txt` of HAProxy.
//!
//! DIFFERS(proxy-v1-addresses): the addresses of version 1 must be addresses of their family; nginx
//! takes any run of hexadecimal digits, dots and colons, and the realip module fails later.
//! DIFFERS(proxy-v1-spelling): they are shown as addresses are (RFC 5952), as those of version 2; nginx
//! shows the letters that came.
//!
//! *Invariant:* a header is bounded; whom to believe is the caller's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{Reject, Span};

/// The longest version 1 header, bytes with CRLF (NGX_PROXY_PROTOCOL_V1_MAX_HEADER).
pub const MAX_V1: usize = 107;

/// The longest header, bytes (NGX_PROXY_PROTOCOL_MAX_HEADER).
pub const MAX_HEADER: usize = 4096;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// The client; none for `UNKNOWN`, `LOCAL`, and families that nginx skips.
    pub src: Option<SocketAddr>,
    /// The address that the client connected to.
    pub dst: Option<SocketAddr>,
    /// The TLVs in the buffer, empty in version 1; see [`tlvs`].
    pub tlvs: Span,
}

/// Parses the header at the start of `buf`: its length and content, or `None` if bytes are
/// missing.
pub fn parse(buf: &[u8]) -> Result<Option<(usize, Header)>, Reject> {
    if begins(buf, SIGNATURE) {
        return if buf.len() < 16 { Ok(None) } else { v2(buf) };
    }
    if !begins(buf, b"PROXY ") {
        return Err(Reject::ProxyProtocol);
    }
    let head = &buf[..buf.len().min(MAX_V1)];
    // The line feed is looked for alone, so that a line of another kind ends at once.
    match memchr::memchr(b'\n', head) {
        Some(lf) if lf > 6 && head[lf - 1] == b'\r' => {
            let header = v1(&head[6..lf - 1]).ok_or(Reject::ProxyProtocol)?;
            Ok(Some((lf + 1, header)))
        }
        None if buf.len() < MAX_V1 => Ok(None),
        _ => Err(Reject::ProxyProtocol),
    }
}

/// Whether `buf` begins with `prefix`, as far as it goes.
fn begins(buf: &[u8], prefix: &[u8]) -> bool {
    let len = buf.len().min(prefix.len());
    buf[..len] == prefix[..len]
}

/// `TCP4 192.0.2.1 198.51.100.1 1000 80`, or `UNKNOWN` and anything.
fn v1(line: &[u8]) -> Option<Header> {
    if line.starts_with(b"UNKNOWN") {
        return Some(Header::default());
    }
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let ip = match words.next()? {
        "TCP4" => |word: &str| word.parse().ok().map(IpAddr::V4),
        "TCP6" => |word: &str| word.parse().ok().map(IpAddr::V6),
        _ => return None,
    };
    let (src, dst) = (ip(words.next()?)?, ip(words.next()?)?);
    let (src_port, dst_port) = (port(words.next()?)?, port(words.next()?)?);
    if words.next().is_some() {
        return None;
    }
    Some(Header {
        src: Some(SocketAddr::new(src, src_port)),
        dst: Some(SocketAddr::new(dst, dst_port)),
        tlvs: Span::default(),
    })
}

/// Digits only: `parse` alone would take a sign.
fn port(word: &str) -> Option<u16> {
    word.bytes().all(|ch| ch.is_ascii_digit()).then(|| word.parse().ok())?
}

fn v2(buf: &[u8]) -> Result<Option<(usize, Header)>, Reject> {
    let (version, command, family, transport) =
        (buf[12] >> 4, buf[12] & 15, buf[13] >> 4, buf[13] & 15);
    let end = 16 + usize::from(u16::from_be_bytes([buf[14], buf[15]]));
    if version != 2 || end > MAX_HEADER {
        return Err(Reject::ProxyProtocol);
    }
    let Some(rest) = buf.get(16..end) else { return Ok(None) };
    // Only TCP on behalf of a client carries addresses; the rest is skipped, as nginx does.
    if command != 1 || transport != 1 {
        return Ok(Some((end, Header::default())));
    }
    let (src, dst, len) = match family {
        1 => {
            let (src, dst) = pair::<4>(rest)?;
            (IpAddr::V4(Ipv4Addr::from(src)), IpAddr::V4(Ipv4Addr::from(dst)), 8)
        }
        2 => {
            let (src, dst) = pair::<16>(rest)?;
            (IpAddr::V6(Ipv6Addr::from(src)), IpAddr::V6(Ipv6Addr::from(dst)), 32)
        }
        _ => return Ok(Some((end, Header::default()))),
    };
    let &[a, b, c, d] = rest.get(len..len + 4).unwrap_or_default() else {
        return Err(Reject::ProxyProtocol);
    };
    let header = Header {
        src: Some(SocketAddr::new(src, u16::from_be_bytes([a, b]))),
        dst: Some(SocketAddr::new(dst, u16::from_be_bytes([c, d]))),
        tlvs: Span::new(16 + len + 4, end),
    };
    Ok(Some((end, header)))
}

fn pair<const N: usize>(rest: &[u8]) -> Result<([u8; N], [u8; N]), Reject> {
    let (src, rest) = rest.split_first_chunk::<N>().ok_or(Reject::ProxyProtocol)?;
    let (dst, _) = rest.split_first_chunk::<N>().ok_or(Reject::ProxyProtocol)?;
    Ok((*src, *dst))
}

/// The type-length-value triples of a version 2 header, or of the SSL TLV after its first five
/// bytes. Ends with an error at the first that is cut.
pub fn tlvs(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u8, &[u8]), Reject>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let found = bytes.split_first_chunk::<3>().and_then(|(&[kind, high, low], rest)| {
            let (value, rest) =
                rest.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
            bytes = rest;
            Some((kind, value))
        });
        if found.is_none() {
            bytes = &[];
        }
        Some(found.ok_or(Reject::ProxyProtocol))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2_header(version_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let len = (rest.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[version_command, family], &len, rest].concat()
    }

    const ADDRESSES: &[u8] = &[192, 0, 2, 1, 198, 51, 100, 1, 0x03, 0xe8, 0, 80];

    fn addresses(buf: &[u8]) -> Option<(usize, Option<String>, Option<String>)> {
        let (len, header) = parse(buf).ok()??;
        Some((
            len,
            header.src.map(|addr| addr.to_string()),
            header.dst.map(|addr| addr.to_string()),
        ))
    }

    fn found(len: usize, src: &str, dst: &str) -> Option<(usize, Option<String>, Option<String>)> {
        Some((len, Some(src.to_string()), Some(dst.to_string())))
    }

    #[test]
    fn version_1_is_a_line() {
        let tcp4 = b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 80\r\nGET";
        assert_eq!(addresses(tcp4), found(43, "192.0.2.1:1000", "198.51.100.1:80"));
        let tcp6 = b"PROXY TCP6 2001:db8::1 ::1 65535 443\r\n";
        assert_eq!(addresses(tcp6), found(38, "[2001:db8::1]:65535", "[::1]:443"));
        assert_eq!(addresses(b"PROXY UNKNOWN\r\n"), Some((15, None, None)));
        assert_eq!(addresses(b"PROXY UNKNOWN a b c\r\n"), Some((21, None, None)));
    }

    #[test]
    fn a_broken_version_1_line_is_refused() {
        for line in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 80\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 1000\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 80 \r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 +1000 80\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 65536 80\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1  80\r\n",
            b"PROXY TCP4 ::1 198.51.100.1 1000 80\r\n",
            b"PROXY TCP6 192.0.2.1 198.51.100.1 1000 80\r\n",
            b"PROXY TCP5 192.0.2.1 198.51.100.1 1000 80\r\n",
            b"PROXY \xff\r\n",
        ] {
            assert_eq!(parse(line), Err(Reject::ProxyProtocol), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn a_line_longer_than_107_bytes_is_refused() {
        let line = |len: usize| [&b"PROXY UNKNOWN"[..], &vec![b'x'; len - 15], b"\r\n"].concat();
        assert_eq!(addresses(&line(107)), Some((107, None, None)));
        assert_eq!(parse(&line(108)), Err(Reject::ProxyProtocol));
    }

    #[test]
    fn version_2_has_addresses_and_tlvs() {
        let rest = [ADDRESSES, &[0x01, 0, 2, b'h', b'2', 0x05, 0, 0]].concat();
        let buf = v2_header(0x21, 0x11, &rest);
        assert_eq!(addresses(&buf), found(36, "192.0.2.1:1000", "198.51.100.1:80"));
        let (_, header) = parse(&buf).unwrap().unwrap();
        let all: Vec<_> = tlvs(header.tlvs.of(&buf)).collect();
        assert_eq!(all, [Ok((1, &b"h2"[..])), Ok((5, &b""[..]))]);

        let mut rest = [0u8; 36];
        (rest[15], rest[31], rest[33], rest[35]) = (1, 2, 3, 4);
        assert_eq!(addresses(&v2_header(0x21, 0x21, &rest)), found(52, "[::1]:3", "[::2]:4"));
    }

    #[test]
    fn version_2_without_tcp_addresses_is_skipped() {
        for (version_command, family) in [(0x20, 0x11), (0x21, 0), (0x21, 0x12), (0x21, 0x31)] {
            let buf = v2_header(version_command, family, ADDRESSES);
            assert_eq!(addresses(&buf), Some((28, None, None)));
        }
    }

    #[test]
    fn a_broken_version_2_header_is_refused() {
        for buf in [
            v2_header(0x31, 0x11, ADDRESSES),
            v2_header(0x21, 0x11, &ADDRESSES[..11]),
            v2_header(0x21, 0x21, ADDRESSES),
            v2_header(0x21, 0x11, &[0; 4081]),
        ] {
            assert_eq!(parse(&buf), Err(Reject::ProxyProtocol));
        }
        assert!(parse(&v2_header(0x21, 0x11, &[0; 4080])).is_ok());
    }

    #[test]
    fn a_cut_tlv_is_an_error_and_the_last() {
        let all: Vec<_> = tlvs(&[1, 0, 1, 7, 2, 0, 9, 1]).collect();
        assert_eq!(all, [Ok((1, &[7u8][..])), Err(Reject::ProxyProtocol)]);
        assert_eq!(tlvs(&[1, 0]).count(), 1);
    }

    #[test]
    fn every_prefix_of_a_header_waits_for_more() {
        let v2 = v2_header(0x21, 0x11, ADDRESSES);
        for header in [&b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 80\r\n"[..], &v2] {
            for len in 0..header.len() {
                assert_eq!(parse(&header[..len]), Ok(None), "{len}");
            }
            assert!(parse(header).unwrap().is_some());
        }
    }
}
