//! Addresses of upstream servers as configurations write them (`ngx_parse_url`).
//!
//! Invariant: never resolves a name.

use std::net::IpAddr;

use forebay_rt::listen::Addr;

use crate::addr::parse_ip;

/// `host`, `host:port`, `[v6]:port`, `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// As written, without what follows the address.
    pub text: Box<str>,
    /// The host: a name, or an address without brackets; for unix sockets the whole text.
    pub host: Box<str>,
    /// The port: as written, or the default; 0: none.
    pub port: u16,
    /// Whether a port was written.
    pub has_port: bool,
    /// Where it is, if no name must be resolved for that and there is a port.
    pub addr: Option<Addr>,
}

impl Target {
    /// Reads an address. With `uri`, it ends at a `/` or `?` (or, after the path of a unix socket,
    /// at a `:`), and what follows is the second part of the answer.
    ///
    /// Errors: nginx's words: `invalid port`, `no host` …
    pub fn parse(text: &str, default_port: u16, uri: bool) -> Result<(Target, &str), &'static str> {
        if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
            return unix(text, uri);
        }
        let end = match uri {
            true => text.find(['/', '?']).unwrap_or(text.len()),
            false => text.len(),
        };
        let (text, rest) = text.split_at(end);
        let (host, port) = match text.strip_prefix('[') {
            Some(inner) => {
                let (host, port) = inner.split_once(']').ok_or("invalid host")?;
                (
                    host,
                    if port.is_empty() {
                        None
                    } else {
                        Some(port.strip_prefix(':').ok_or("invalid host")?)
                    },
                )
            }
            None => match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port_number = match port {
            None => default_port,
            Some(port) => match port.parse::<u16>() {
                Ok(port) if port > 0 => port,
                _ => return Err("invalid port"),
            },
        };
        if host.is_empty() {
            return Err("no host");
        }
        let ip: Option<IpAddr> = parse_ip(host.as_bytes());
        let addr = ip.filter(|_| port_number > 0).map(|ip| Addr::Tcp((ip, port_number).into()));
        let target = Target {
            text: text.into(),
            host: host.into(),
            port: port_number,
            has_port: port.is_some(),
            addr,
        };
        Ok((target, rest))
    }
}

fn unix(text: &str, uri: bool) -> Result<(Target, &str), &'static str> {
    let path = &text[5..];
    let end = if uri { path.find(':').unwrap_or(path.len()) } else { path.len() };
    let (address, rest) = text.split_at(5 + end);
    let path = &path[..end];
    if path.is_empty() {
        return Err("no path in the unix domain socket");
    }
    if path.len() > 107 {
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
