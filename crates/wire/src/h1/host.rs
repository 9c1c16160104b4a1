//! Host names of requests: ngx_http_validate_host as of nginx 1.29.4, which reads host and port
//! by RFC 3986 §3.2.2.
//!
//! DIFFERS(host-strict): from nginx before 1.29.4, which takes nearly any byte in a host and
//! anything after the colon. A `%` must begin a percent-encoded byte.
//!
//! *Invariant:* what passes has no byte that could end a header line, a path segment or a quoted
//! string.

use super::request_line::is_reg_name;
use crate::Reject;

/// Checks `host [":" port]` and writes the host to `out`, in lower case, without port and without
/// the dot at its end. Returns the port, if there is one.
pub fn validate_host(host: &[u8], out: &mut Vec<u8>) -> Result<Option<u16>, Reject> {
    let (len, port) = split_host(host)?;
    out.clear();
    out.extend(host[..len].iter().map(u8::to_ascii_lowercase));
    Ok(port)
}

/// Checks `host [":" port]`; returns the length of the host without the dot at its end, and the
/// port.
pub(super) fn split_host(authority: &[u8]) -> Result<(usize, Option<u16>), Reject> {
    let mut end = match authority.first() {
        Some(b'[') => ip_literal(authority)?,
        _ => reg_name(authority)?,
    };
    let port = match authority.get(end) {
        None => None,
        Some(b':') => port(&authority[end + 1..])?,
        Some(_) => return Err(Reject::InvalidHost),
    };
    if end > 0 && authority[end - 1] == b'.' {
        end -= 1;
    }
    match end {
        0 => Err(Reject::InvalidHost),
        _ => Ok((end, port)),
    }
}

/// What a name may hold that needs no look at its neighbours.
static PLAIN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_reg_name(byte as u8) && !matches!(byte as u8, b'.' | b'%' | b':');
        byte += 1;
    }
    table
};

fn ip_literal(authority: &[u8]) -> Result<usize, Reject> {
    let close = authority[1..].iter().position(|&ch| !(is_reg_name(ch) || ch == b':'));
    match close {
        Some(inner) if inner > 0 && authority[inner + 1] == b']' => Ok(inner + 2),
        _ => Err(Reject::InvalidHost),
    }
}

fn reg_name(authority: &[u8]) -> Result<usize, Reject> {
    let mut at = 0;
    loop {
        let rest = &authority[at..];
        at += rest.iter().position(|&ch| !PLAIN[usize::from(ch)]).unwrap_or(rest.len());
        at += match authority.get(at) {
            None | Some(b':') => return Ok(at),
            Some(b'.') if at == 0 || authority[at - 1] != b'.' => 1,
            Some(b'%') => match authority.get(at + 1..at + 3) {
                Some(hex) if hex.iter().all(u8::is_ascii_hexdigit) => 3,
                _ => return Err(Reject::InvalidHost),
            },
            Some(_) => return Err(Reject::InvalidHost),
        };
    }
}

/// A port of up to 65535; `host:` has none (RFC 3986 §3.2.3).
fn port(digits: &[u8]) -> Result<Option<u16>, Reject> {
    if digits.is_empty() {
        return Ok(None);
    }
    let mut port = 0;
    for &ch in digits {
        if !ch.is_ascii_digit() {
            return Err(Reject::InvalidHost);
        }
        port = port * 10 + u32::from(ch - b'0');
        if port > u32::from(u16::MAX) {
            return Err(Reject::InvalidHost);
        }
    }
    Ok(Some(port as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &str) -> Option<(String, Option<u16>)> {
        let mut out = b"left over".to_vec();
        let port = validate_host(host.as_bytes(), &mut out).ok()?;
        Some((String::from_utf8(out).unwrap(), port))
    }

    #[test]
    fn hosts_are_lowered_and_lose_port_and_last_dot() {
        for (host, name, port) in [
            ("Example.ORG", "example.org", None),
            ("a.", "a", None),
            ("A.:80", "a", Some(80)),
            ("a:", "a", None),
            ("a:65535", "a", Some(65_535)),
            ("[::1]", "[::1]", None),
            ("[FE80::1]:8080", "[fe80::1]", Some(8080)),
            ("a_b~c", "a_b~c", None),
            ("a%2Fb", "a%2fb", None),
            ("10.0.0.1:1", "10.0.0.1", Some(1)),
        ] {
            assert_eq!(check(host), Some((name.to_string(), port)), "{host}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for host in [
            "",
            ".",
            ":80",
            "a..b",
            "a/b",
            "a b",
            "a\tb",
            "a\0b",
            "a\rb",
            "a@b",
            "a?b",
            "a#b",
            "a\\b",
            "a\"b",
            "a<b",
            "a%",
            "a%2",
            "a%zz",
            "a:65536",
            "a:99999999999",
            "a:b",
            "a:1:2",
            "a: 1",
            "[::1",
            "[]",
            "[::1]x",
            "[::1]]",
            "[:/]",
            "b[::1]",
            "a\u{e9}",
        ] {
            assert_eq!(check(host), None, "{host:?}");
        }
    }
}
