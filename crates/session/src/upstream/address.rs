//! Addresses of upstream servers as configurations write them (`ngx_parse_url`).
//!
//! Invariant: never resolves a name.

use std::net::IpAddr;

use forebay_rt::listen::Addr;

use crate::addr::{parse_v4, parse_v6};

/// `host`, `host:port`, `[v6]:port`, `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// As written, without what follows the address.
    pub text: Box<str>,
    /// The host: a name or an address, IPv6 in brackets; of a unix socket the whole text.
    pub host: Box<str>,
    /// The port: as written, or the default; 0: none.
    pub port: u16,
    /// Whether a port was written.
    pub has_port: bool,
    /// Where it is, if no name must be resolved for that and there is a port.
    pub addr: Option<Addr>,
}

/// The longest path of a unix socket, in bytes.
const MAX_PATH: usize = 107;

impl Target {
    /// Reads an address. With `uri`, it ends at a `/` or `?` (or, after the path of a unix socket,
    /// at a `:`), and what follows is the second part of the answer.
    ///
    /// Errors: nginx's words: `invalid port`, `no host` …
    pub fn parse(text: &str, default_port: u16, uri: bool) -> Result<(Target, &str), &'static str> {
        if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
            return unix(text, uri);
        }
        let after_bracket = if text.starts_with('[') { text.find(']').unwrap_or(0) } else { 0 };
        let end =
            text[after_bracket..].find(['/', '?']).map_or(text.len(), |at| after_bracket + at);
        if end < text.len() && !uri {
            return Err("invalid host");
        }
        let (text, rest) = text.split_at(end);
        let (host, port) = split(text)?;
        let number = match port {
            None => default_port,
            Some(port) => port_number(port).ok_or("invalid port")?,
        };
        if matches!(host, "" | "[]") {
            return Err("no host");
        }
        let ip: Option<IpAddr> = match host.strip_prefix('[') {
            Some(inner) => {
                let inner = inner.strip_suffix(']').unwrap_or(inner);
                Some(parse_v6(inner.as_bytes()).ok_or("invalid IPv6 address")?.into())
            }
            None => parse_v4(host.as_bytes()).map(Into::into),
        };
        let addr = ip.filter(|_| number > 0).map(|ip| Addr::Tcp((ip, number).into()));
        let (text, host, has_port) = (text.into(), host.into(), port.is_some());
        Ok((Target { text, host, port: number, has_port, addr }, rest))
    }

    /// The target that an address is.
    pub fn of(addr: Addr) -> Target {
        let text: Box<str> = addr.to_string().into();
        let (host, port) = match &addr {
            Addr::Tcp(tcp) if tcp.is_ipv6() => (format!("[{}]", tcp.ip()).into(), tcp.port()),
            Addr::Tcp(tcp) => (tcp.ip().to_string().into(), tcp.port()),
            Addr::Unix(_) => (text.clone(), 0),
        };
        Target { text, host, port, has_port: port > 0, addr: Some(addr) }
    }
}

/// Host and port; as in nginx, the first colon is the port's.
fn split(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    if !text.starts_with('[') {
        return Ok(match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        });
    }
    let end = text.find(']').ok_or("invalid host")?;
    let (host, port) = text.split_at(end + 1);
    match port {
        "" => Ok((host, None)),
        port => Ok((host, Some(port.strip_prefix(':').ok_or("invalid host")?))),
    }
}

/// 1 to 65535, digits only (`ngx_atoi`).
fn port_number(text: &str) -> Option<u16> {
    let number = forebay_conf::value::number(text.as_bytes())?;
    u16::try_from(number).ok().filter(|port| *port > 0)
}

fn unix(text: &str, uri: bool) -> Result<(Target, &str), &'static str> {
    let path = &text[5..];
    let end = if uri { path.find(':').unwrap_or(path.len()) } else { path.len() };
    let (address, rest) = text.split_at(5 + end);
    let path = &path[..end];
    if path.is_empty() {
        return Err("no path in the unix domain socket");
    }
    if path.len() > MAX_PATH {
        return Err("too long path in the unix domain socket");
    }
    let target = Target {
        text: address.into(),
        host: address.into(),
        port: 0,
        has_port: false,
        addr: Some(Addr::Unix(path.into())),
    };
    Ok((target, rest.strip_prefix(':').unwrap_or(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_by_nginx() {
        let cases = [
            ("10.0.0.1:8080", Ok("10.0.0.1 8080 10.0.0.1:8080")),
            ("10.0.0.1", Ok("10.0.0.1 80 10.0.0.1:80")),
            ("name", Ok("name 80 -")),
            ("name:81", Ok("name 81 -")),
            ("[::1]:81", Ok("[::1] 81 [::1]:81")),
            ("[::1]", Ok("[::1] 80 [::1]:80")),
            ("unix:/run/a", Ok("unix:/run/a 0 unix:/run/a")),
            ("name:0", Err("invalid port")),
            ("name:", Err("invalid port")),
            ("name:65536", Err("invalid port")),
            ("name:+1", Err("invalid port")),
            ("a:b:80", Err("invalid port")),
            (":80", Err("no host")),
            ("", Err("no host")),
            ("a/b", Err("invalid host")),
            ("[::1", Err("invalid host")),
            ("[::1]80", Err("invalid host")),
            ("[]:80", Err("no host")),
            ("[::g]:80", Err("invalid IPv6 address")),
            ("unix:", Err("no path in the unix domain socket")),
        ];
        for (text, want) in cases {
            let got = Target::parse(text, 80, false).map(|(t, rest)| {
                assert_eq!(rest, "");
                let addr = t.addr.map_or("-".to_owned(), |addr| addr.to_string());
                format!("{} {} {addr}", t.host, t.port)
            });
            assert_eq!(got.as_deref().map_err(|why| *why), want, "{text}");
        }
    }

    #[test]
    fn a_uri_follows_the_address() {
        let cases = [
            ("a:81/x?y", "a:81", "/x?y"),
            ("a?x/y", "a", "?x/y"),
            ("[::1]:81/x", "[::1]:81", "/x"),
            ("unix:/run/a:/x", "unix:/run/a", "/x"),
            ("unix:/run/a", "unix:/run/a", ""),
            ("a", "a", ""),
        ];
        for (text, address, uri) in cases {
            let (target, rest) = Target::parse(text, 80, true).unwrap();
            assert_eq!((&*target.text, rest), (address, uri));
        }
    }

    #[test]
    fn an_address_is_its_own_target() {
        for text in ["10.0.0.1:80", "[::1]:81", "unix:/run/a"] {
            let (target, _) = Target::parse(text, 0, false).unwrap();
            assert_eq!(Target::of(target.addr.clone().unwrap()), target);
        }
    }
}
