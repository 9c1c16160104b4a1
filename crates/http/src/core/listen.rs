//! `listen`: an address and the options of its sockets.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
};

use forebay_conf::{Arg, Error, Files, Loader, Node, Span, value};
use forebay_rt::listen::{Addr, Keepalive, Options};

/// One `listen` directive of a server.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Where.
    pub addr: Addr,
    /// How.
    pub options: Options,
    /// Whether any socket option was given: only one `listen` of an address may.
    pub options_set: bool,
    /// `default_server`.
    pub default_server: bool,
    /// `proxy_protocol`.
    pub proxy_protocol: bool,
    /// `ssl`.
    pub ssl: bool,
    /// `http2`, which is deprecated: where it stands.
    pub http2: Option<Span>,
    /// Where it stands.
    pub span: Span,
}

impl Listen {
    /// What holds for a server without `listen`: `*:80`, or `*:8000` without the privilege.
    pub fn default_for(span: Span, privileged: bool) -> Listen {
        let port = if privileged { 80 } else { 8000 };
        let addr = Addr::Tcp(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
        Listen::plain(addr, span)
    }

    fn plain(addr: Addr, span: Span) -> Listen {
        let options = Options { ipv6only: true, ..Options::default() };
        Listen {
            addr,
            options,
            options_set: false,
            default_server: false,
            proxy_protocol: false,
            ssl: false,
            http2: None,
            span,
        }
    }

    /// Reads the directive; a name may stand for several addresses.
    ///
    /// Errors: nginx's `invalid parameter "x"`, `host not found in "x" of the "listen" directive` …
    pub fn parse(node: &Node, loader: &mut Loader<'_>) -> Result<Vec<Listen>, Error> {
        let address = &node.args[0];
        let mut listen = Listen::plain(Addr::Unix(PathBuf::new()), node.span);
        let addrs = addresses(address, loader.files)?;
        for arg in &node.args[1..] {
            listen.parameter(arg, loader)?;
        }
        let of_tcp =
            [("reuseport", listen.options.reuseport), ("multipath", listen.options.multipath)];
        if addrs.iter().any(|addr| matches!(addr, Addr::Unix(_)))
            && let Some((name, _)) = of_tcp.into_iter().find(|(_, set)| *set)
        {
            let text = format!("\"{name}\" is not supported on unix sockets");
            return Err(Error::emerg(node.span, text));
        }
        Ok(addrs.into_iter().map(|addr| Listen { addr, ..listen.clone() }).collect())
    }

    fn parameter(&mut self, arg: &Arg, loader: &mut Loader<'_>) -> Result<(), Error> {
        let text = String::from_utf8_lossy(&arg.value).into_owned();
        let invalid =
            |what: &str, value: &str| Error::emerg(arg.span, format!("invalid {what} \"{value}\""));
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        let options = &mut self.options;
        let mut socket_option = true;
        match (name, value) {
            ("default_server" | "default", "") => {
                self.default_server = true;
                socket_option = false;
            }
            ("proxy_protocol", "") => {
                self.proxy_protocol = true;
                socket_option = false;
            }
            ("ssl", "") => {
                self.ssl = true;
                socket_option = false;
            }
            ("http2", "") => {
                self.http2 = Some(arg.span);
                socket_option = false;
            }
            ("bind", "") => {}
            ("reuseport", "") => options.reuseport = true,
            ("deferred", "") => options.deferred = true,
            ("fastopen", n) => {
                options.fastopen = Some(number(n).ok_or_else(|| invalid("fastopen", &text))?);
            }
            ("backlog", n) => {
                let backlog = number(n).filter(|length| *length > 0);
                options.backlog = Some(backlog.ok_or_else(|| invalid("backlog", &text))?);
            }
            ("rcvbuf", n) => {
                let size = value::size(n.as_bytes()).ok_or_else(|| invalid("rcvbuf", &text))?;
                options.rcvbuf = Some(size as usize);
            }
            ("sndbuf", n) => {
                let size = value::size(n.as_bytes()).ok_or_else(|| invalid("sndbuf", &text))?;
                options.sndbuf = Some(size as usize);
            }
            ("ipv6only", "on") => options.ipv6only = true,
            ("ipv6only", "off") => options.ipv6only = false,
            ("ipv6only", other) if other.starts_with('o') => {
                return Err(Error::emerg(arg.span, format!("invalid ipv6only flags \"{other}\"")));
            }
            ("so_keepalive", value) => {
                options.so_keepalive =
                    so_keepalive(value).ok_or_else(|| invalid("so_keepalive value:", value))?;
            }
            ("accept_filter", _) => {
                // DIFFERS(accept-filter-warned): nginx's line is an [emerg], and yet it goes on.
                let text = format!(
                    "accept filters \"{text}\" are not supported on this platform, ignored"
                );
                loader.warn(arg.span, text);
            }
            ("multipath", "") => options.multipath = true,
            ("quic", "") => {
                let text = format!("the \"{name}\" parameter is not supported yet");
                return Err(Error::emerg(arg.span, text));
            }
            _ => return Err(invalid("parameter", &text)),
        }
        self.options_set |= socket_option;
        Ok(())
    }
}

/// A number without sign (`ngx_atoi`) that fits.
fn number<T: TryFrom<u64>>(text: &str) -> Option<T> {
    value::number(text.as_bytes())?.try_into().ok()
}

fn so_keepalive(value: &str) -> Option<Keepalive> {
    match value {
        "on" => return Some(Keepalive::On),
        "off" => return Some(Keepalive::Off),
        _ => {}
    }
    // What is left out at the end has no colon either: `30m` is a time of idleness.
    let mut parts = value.splitn(3, ':');
    let mut seconds = || -> Option<Option<u32>> {
        match parts.next().unwrap_or_default() {
            "" => Some(None),
            text => Some(Some(u32::try_from(value::sec(text.as_bytes())?).ok()?)),
        }
    };
    let (idle, intvl) = (seconds()?, seconds()?);
    let cnt = match parts.next().unwrap_or_default() {
        "" => None,
        text => Some(number(text)?),
    };
    let empty = [idle, intvl, cnt].iter().all(|n| n.unwrap_or(0) == 0);
    (!empty).then_some(Keepalive::Params { idle, intvl, cnt })
}

/// The addresses that the first parameter of `listen` stands for.
fn addresses(arg: &Arg, files: &mut dyn Files) -> Result<Vec<Addr>, Error> {
    let text = arg.text()?;
    let fail = |what: &str| {
        let text = format!("{what} in \"{text}\" of the \"listen\" directive");
        Error::emerg(arg.span, text)
    };
    if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("unix:")) {
        let path = &text[5..];
        if path.is_empty() {
            return Err(fail("no path in the unix domain socket"));
        }
        if path.len() > 107 {
            return Err(fail("too long path in the unix domain socket"));
        }
        return Ok(vec![Addr::Unix(path.into())]);
    }
    if text.contains(['/', '?']) {
        return Err(fail("invalid host"));
    }
    let is_port = |text: &str| value::number(text.as_bytes()).is_some();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    if is_port(first) && is_port(last) {
        let at = |port| Addr::Tcp(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
        return Ok(ports(text).map_err(fail)?.map(at).collect());
    }
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(|| fail("invalid host"))?;
        let port = match rest {
            "" => "80",
            _ => rest.strip_prefix(':').ok_or_else(|| fail("invalid host"))?,
        };
        (host, port)
    } else {
        text.split_once(':').unwrap_or((text, "80"))
    };
    let ports = ports(port).map_err(fail)?;
    let ips: Vec<IpAddr> = if text.starts_with('[') {
        let ip: Ipv6Addr = host.parse().map_err(|_| fail("invalid IPv6 address"))?;
        vec![ip.into()]
    } else {
        match host {
            "" => return Err(fail("no host")),
            "*" => vec![Ipv4Addr::UNSPECIFIED.into()],
            name => match name.parse::<Ipv4Addr>() {
                Ok(ip) => vec![ip.into()],
                Err(_) => files.resolve(name).map_err(|_| fail("host not found"))?,
            },
        }
    };
    let of_ip = |ip: IpAddr| ports.clone().map(move |port| Addr::Tcp(SocketAddr::new(ip, port)));
    Ok(ips.into_iter().flat_map(of_ip).collect())
}

/// The ports that `80` or `80-89` stands for (`ngx_parse_inet_url`).
fn ports(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    let port = |text: &str| number(text).filter(|port| *port > 0).ok_or("invalid port");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (last, first) = (port(last)?, port(first)?);
    if last < first {
        return Err("invalid port range");
    }
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn sockets_of_other_systems_are_warned_of() {
        let conf = "server { listen 127.0.0.1:1 accept_filter=httpready; }";
        let (plan, said) = testing::load_with(conf);
        let text = "[warn] accept filters \"accept_filter=httpready\" are not supported on this \
                    platform, ignored";
        assert!(plan.is_some() && said.contains(text), "{said}");
    }

    #[test]
    fn a_range_is_each_of_its_ports() {
        for (listen, expected) in [
            ("127.0.0.1:81-83", "127.0.0.1:81 127.0.0.1:82 127.0.0.1:83"),
            ("81-82", "0.0.0.0:81 0.0.0.0:82"),
            ("*:81-81", "0.0.0.0:81"),
            ("[::1]:81-82", "[::1]:81 [::1]:82"),
        ] {
            let (plan, said) = testing::load_with(&format!("server {{ listen {listen}; }}"));
            let plan = plan.expect(&said);
            let mut found: Vec<_> = plan.listeners.iter().map(|l| l.addr.to_string()).collect();
            found.sort();
            assert_eq!(found.join(" "), expected);
        }
    }
}
