//! The parameters of `resolver`, and `/etc/resolv.conf`.

use std::net::{IpAddr, SocketAddr};

use forebay_conf::{Arg, Error, Files, Node, value};

use crate::addr;

/// The port of DNS servers.
const PORT: u16 = 53;
/// How many servers one `resolver` may have; of `/etc/resolv.conf`, the C library takes three.
const MAX_SERVERS: usize = 64;

/// What a `resolver` directive says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The servers, asked in turn; none: those of `/etc/resolv.conf`.
    pub servers: Box<[SocketAddr]>,
    /// `valid`: how long answers hold, whatever they say, milliseconds.
    pub valid_ms: Option<u64>,
    /// Whether IPv4 addresses are looked up.
    pub ipv4: bool,
    /// Whether IPv6 addresses are looked up.
    pub ipv6: bool,
    /// `status_zone`: where queries and answers are counted.
    pub status_zone: Option<Box<str>>,
    /// After what time without an answer the next server is asked, milliseconds
    /// (`ngx_resolver_t.resend_timeout`). Only tests set it.
    pub(super) resend_ms: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            servers: Box::default(),
            valid_ms: None,
            ipv4: true,
            ipv6: true,
            status_zone: None,
            resend_ms: 5_000,
        }
    }
}

impl Settings {
    /// Reads `resolver address ... [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]`
    /// (`ngx_resolver_create`). Servers that are named are looked up here, once.
    ///
    /// Errors: nginx's `invalid parameter: valid=x`, `host not found in resolver "x"` and the like.
    pub fn parse(node: &Node, files: &mut dyn Files) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        let mut servers = Vec::new();
        for arg in &node.args {
            let invalid = || Error::emerg(arg.span, format!("invalid parameter: {}", arg.lossy()));
            if let Some(time) = arg.after("valid=") {
                let seconds = value::sec(time).ok_or_else(invalid)?;
                settings.valid_ms = Some(seconds.saturating_mul(1_000));
            } else if let Some(flag) = arg.after("ipv4=") {
                settings.ipv4 = on_off(flag).ok_or_else(invalid)?;
            } else if let Some(flag) = arg.after("ipv6=") {
                settings.ipv6 = on_off(flag).ok_or_else(invalid)?;
            } else if let Some(zone) = arg.after("status_zone=") {
                let zone = std::str::from_utf8(zone).ok().filter(|zone| !zone.is_empty());
                settings.status_zone = Some(zone.ok_or_else(invalid)?.into());
            } else {
                servers.extend(server(arg, files)?);
            }
        }
        if !settings.ipv4 && !settings.ipv6 {
            return Err(Error::emerg(node.span, "\"ipv4\" and \"ipv6\" cannot both be \"off\""));
        }
        if servers.is_empty() {
            return Err(Error::emerg(node.span, "no name servers defined"));
        }
        if servers.len() > MAX_SERVERS {
            let text = format!("more than {MAX_SERVERS} name servers defined");
            return Err(Error::emerg(node.span, text));
        }
        settings.servers = servers.into();
        Ok(settings)
    }
}

fn on_off(flag: &[u8]) -> Option<bool> {
    match flag {
        b"on" => Some(true),
        b"off" => Some(false),
        _ => None,
    }
}

/// The addresses of one server: `address`, `address:port`, `[address]:port`, `name:port`
/// (`ngx_parse_url`).
fn server(arg: &Arg, files: &mut dyn Files) -> Result<Vec<SocketAddr>, Error> {
    let shown = arg.lossy();
    let fail = |what: &str| Error::emerg(arg.span, format!("{what} in resolver \"{shown}\""));
    // DIFFERS(resolver-unix): no answer could come back to a socket without a name.
    if let Some(path) = arg.after("unix:") {
        let what = "no path in the unix domain socket";
        return Err(fail(if path.is_empty() { what } else { "unix domain socket" }));
    }
    if memchr::memchr2(b'/', b'?', &arg.value).is_some() {
        return Err(fail("invalid host"));
    }
    // Only in brackets is an IPv6 address one, as in all of nginx's addresses with ports.
    if let Some(rest) = arg.value.strip_prefix(b"[") {
        let end = memchr::memchr(b']', rest).ok_or_else(|| fail("invalid host"))?;
        let ip = addr::parse_v6(&rest[..end]).ok_or_else(|| fail("invalid IPv6 address"))?;
        let port = port(&rest[end + 1..]).ok_or_else(|| fail("invalid port"))?;
        return Ok(vec![(ip, port).into()]);
    }
    let colon = memchr::memchr(b':', &arg.value).unwrap_or(arg.value.len());
    let port = port(&arg.value[colon..]).ok_or_else(|| fail("invalid port"))?;
    let host = &arg.value[..colon];
    if host.is_empty() {
        return Err(fail("no host"));
    }
    if let Some(ip) = addr::parse_v4(host) {
        return Ok(vec![(ip, port).into()]);
    }
    let host = std::str::from_utf8(host).ok();
    let found = host.and_then(|host| files.resolve(host).ok());
    let found = found.ok_or_else(|| fail("host not found"))?;
    Ok(found.into_iter().map(|ip| (ip, port).into()).collect())
}

/// Nothing, or a colon and a number.
fn port(text: &[u8]) -> Option<u16> {
    if text.is_empty() {
        return Some(PORT);
    }
    let number = value::number(text.strip_prefix(b":")?)?;
    u16::try_from(number).ok().filter(|port| *port > 0)
}

/// The servers of a text in the form of resolv.conf(5); none named: the machine itself.
pub(super) fn resolv_conf(text: &str) -> Box<[SocketAddr]> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let addr = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        // A scope (`fe80::1%eth0`) names an interface, which is not looked for.
        let ip = addr::parse_ip(addr.split('%').next()?.as_bytes())?;
        Some(SocketAddr::from((ip, PORT)))
    };
    let servers: Box<[_]> = text.lines().filter_map(server).take(3).collect();
    if servers.is_empty() { [(IpAddr::from([127, 0, 0, 1]), PORT).into()].into() } else { servers }
}

#[cfg(test)]
mod tests {
    use forebay_conf::files::Memory;

    use super::*;
    use crate::testing::nodes;

    fn parse(text: &str) -> Result<Settings, String> {
        let node = &nodes(&format!("resolver {text};"))[0];
        Settings::parse(node, &mut Memory::default()).map_err(|e| e.message)
    }

    #[test]
    fn servers_have_addresses_and_ports() {
        for (text, want) in [
            ("127.0.0.1", "127.0.0.1:53"),
            ("127.0.0.1:5353", "127.0.0.1:5353"),
            ("[::1]", "[::1]:53"),
            ("[::1]:54", "[::1]:54"),
        ] {
            assert_eq!(parse(text).unwrap().servers[0].to_string(), want);
        }
        assert_eq!(parse("10.0.0.1 10.0.0.2 valid=30s").unwrap().servers.len(), 2);
    }

    #[test]
    fn parameters_are_read() {
        let s = parse("10.0.0.1 valid=1m ipv6=off status_zone=dns").unwrap();
        assert_eq!((s.valid_ms, s.ipv4, s.ipv6), (Some(60_000), true, false));
        assert_eq!(s.status_zone.as_deref(), Some("dns"));
    }

    #[test]
    fn errors_are_nginx_s() {
        for (text, want) in [
            ("127.0.0.1 valid=x", "invalid parameter: valid=x"),
            ("127.0.0.1 ipv6=x", "invalid parameter: ipv6=x"),
            ("127.0.0.1 ipv4=", "invalid parameter: ipv4="),
            ("127.0.0.1 status_zone=", "invalid parameter: status_zone="),
            ("127.0.0.1 ipv4=off ipv6=off", "\"ipv4\" and \"ipv6\" cannot both be \"off\""),
            ("valid=1s", "no name servers defined"),
            ("127.0.0.1:0", "invalid port in resolver \"127.0.0.1:0\""),
            ("127.0.0.1:x", "invalid port in resolver \"127.0.0.1:x\""),
            ("[::x]", "invalid IPv6 address in resolver \"[::x]\""),
            ("[::1", "invalid host in resolver \"[::1\""),
            ("a.test:53", "host not found in resolver \"a.test:53\""),
            (":53", "no host in resolver \":53\""),
            ("unix:", "no path in the unix domain socket in resolver \"unix:\""),
            ("unix:/a", "unix domain socket in resolver \"unix:/a\""),
        ] {
            assert_eq!(parse(text).unwrap_err(), want, "{text}");
        }
    }

    #[test]
    fn resolv_conf_names_servers() {
        let text = "# x\nsearch a.b\nnameserver 10.0.0.1\n nameserver\t::1\nnameserver fe80::1%eth0\n\
                    nameserver 10.0.0.4\n";
        let shown: Vec<_> = resolv_conf(text).iter().map(|addr| addr.to_string()).collect();
        assert_eq!(shown, ["10.0.0.1:53", "[::1]:53", "[fe80::1]:53"]);
        assert_eq!(resolv_conf("")[0].to_string(), "127.0.0.1:53");
    }
}
