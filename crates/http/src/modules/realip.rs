//! The client's own address behind trusted proxies (`ngx_http_realip_module`).
//!
//! Invariant: an address changes once a request at most, and only that of a trusted connection.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr},
};

use forebay_conf::{Arg, Arity, Error, Node, value};
use forebay_session::{addr::Cidr, var::Registry};
use forebay_wire::h1::FieldId;

use crate::{
    client::Client,
    forwarded,
    handler::{Flow, Handler},
    inherit,
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    plan::Kind,
    request::{Peer, Request},
};

/// `ngx_http_realip_module`.
pub struct RealIp;

/// What one level sets.
#[derive(Default)]
pub struct Conf {
    from: Option<Vec<Cidr>>,
    header: Option<Header>,
    recursive: Option<bool>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; from, header, recursive);
    }
}

/// `real_ip_header`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Header {
    XRealIp,
    XForwardedFor,
    ProxyProtocol,
    Named(Box<[u8]>),
}

impl Module for RealIp {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_realip_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "set_real_ip_from",
            &["address | CIDR | unix:"],
            "",
            ANY,
            Arity::ONE,
            "Whose word about the client's address is believed.",
            set_real_ip_from,
        ),
        set(
            "real_ip_header",
            &["field | X-Real-IP | X-Forwarded-For | proxy_protocol"],
            "X-Real-IP",
            ANY,
            Arity::ONE,
            "Where the client's address stands.",
            |c, n, _| value::set_once(&mut c.header, n, header),
        ),
        set(
            "real_ip_recursive",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether trusted addresses in the list are passed over.",
            |c, n, _| value::set_flag(&mut c.recursive, n),
        ),
    ];

    fn variables(registry: &mut Registry<Request>) {
        registry.builtin("realip_remote_addr", |r, out| {
            // Writing into memory does not fail.
            let _ = write!(out, "{}", r.connection.remote);
            true
        });
        registry.builtin("realip_remote_port", |r, out| {
            let port = r.connection.remote.port();
            if port > 0 {
                let _ = write!(out, "{port}");
            }
            true
        });
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let Some(from) = &conf.from else { return Ok(()) };
        let handler = || Replacer {
            from: from.clone(),
            header: conf.header.clone().unwrap_or(Header::XRealIp),
            recursive: conf.recursive.unwrap_or(false),
        };
        if b.location.kind == Kind::Server {
            b.post_read(handler());
        }
        b.preaccess(handler());
        Ok(())
    }
}

fn set_real_ip_from(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let arg = node.arg(0)?;
    let from = conf.from.get_or_insert_default();
    if arg.is("unix:") {
        from.push(Cidr::Unix);
        return Ok(());
    }
    let Some((cidr, meaningless)) = Cidr::parse(&arg.value) else {
        from.extend(resolve(arg, cx)?);
        return Ok(());
    };
    if meaningless {
        let text = format!("low address bits of {} are meaningless", arg.lossy());
        cx.loader.warn(arg.span, text);
    }
    from.push(cidr);
    Ok(())
}

/// The addresses of a host, looked up once while the configuration loads.
fn resolve(arg: &Arg, cx: &mut Cx<'_, '_>) -> Result<Vec<Cidr>, Error> {
    let found = arg.text().ok().and_then(|host| cx.loader.files.resolve(host).ok());
    let found = found.ok_or_else(|| {
        let text = format!("host not found in set_real_ip_from \"{}\"", arg.lossy());
        Error::emerg(arg.span, text)
    })?;
    let cidr = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => Cidr::V4 { network: addr.into(), bits: 32 },
        IpAddr::V6(addr) => Cidr::V6 { network: addr.into(), bits: 128 },
    };
    Ok(found.into_iter().map(cidr).collect())
}

fn header(node: &Node) -> Result<Header, Error> {
    let arg = node.arg(0)?;
    Ok(match &*arg.value {
        b"X-Real-IP" => Header::XRealIp,
        b"X-Forwarded-For" => Header::XForwardedFor,
        b"proxy_protocol" => Header::ProxyProtocol,
        name => Header::Named(name.into()),
    })
}

struct Replacer {
    from: Vec<Cidr>,
    header: Header,
    recursive: bool,
}

impl Handler for Replacer {
    fn handle<'a>(&'a self, r: &'a mut Request, _: &'a mut dyn Client) -> Flow<'a> {
        // DIFFERS(remote-addr-fresh): in nginx, `$remote_addr` stays what it was when it was first asked for.
        if !r.main.has_real_remote()
            && let Some(addr) = self.real(r)
        {
            r.main.set_remote(Peer::Inet(addr));
        }
        Flow::Decline
    }
}

impl Replacer {
    fn real(&self, r: &Request) -> Option<SocketAddr> {
        let addr = (r.connection.remote.ip(), None);
        let found = match &self.header {
            Header::XForwardedFor => {
                forwarded::x_forwarded_for(r, addr, &self.from, self.recursive)
            }
            Header::XRealIp => self.one(addr, r.field(FieldId::XRealIp)?),
            Header::Named(name) => {
                let mut fields = r.input.fields();
                let (_, value) = fields.find(|(field, _)| field.eq_ignore_ascii_case(name))?;
                self.one(addr, value)
            }
            Header::ProxyProtocol => {
                let (source, _) = r.connection.proxied.get()?.addresses?;
                let trusted = self.from.iter().any(|cidr| cidr.contains(addr.0));
                trusted.then_some((Some(source.ip()), Some(source.port())))
            }
        };
        let (ip, port) = found?;
        Some(SocketAddr::new(ip?, port.unwrap_or(0)))
    }

    fn one(&self, addr: forwarded::Addr, value: &[u8]) -> Option<forwarded::Addr> {
        forwarded::behind(addr, std::iter::once(value), &self.from, self.recursive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{client::Nobody, testing};

    /// The client's address and port after the post-read phase.
    fn remote(conf: &str, fields: &str) -> String {
        let mut r = testing::request(conf, &format!("GET / HTTP/1.1\r\n{fields}\r\n"));
        let plan = r.plan.clone();
        for handler in &plan.location(r.location).post_read {
            assert!(matches!(handler.handle(&mut r, &mut Nobody), Flow::Decline));
        }
        assert_eq!(r.connection.remote.to_string(), "127.0.0.1");
        format!("{} {}", r.remote(), r.remote().port())
    }

    #[test]
    fn the_header_replaces_a_trusted_address() {
        let trusting = "set_real_ip_from 127.0.0.0/8;";
        let cases = [
            (trusting, "X-Real-IP: 1.2.3.4\r\n", "1.2.3.4 0"),
            (trusting, "x-real-ip: 1.2.3.4:55\r\n", "1.2.3.4 55"),
            (trusting, "X-Real-IP: 1.2.3.4, 5.6.7.8\r\n", "5.6.7.8 0"),
            (trusting, "X-Real-IP: nonsense\r\n", "127.0.0.1 4000"),
            (trusting, "X-Real-IP:\r\n", "127.0.0.1 4000"),
            (trusting, "X-Forwarded-For: 1.2.3.4\r\n", "127.0.0.1 4000"),
            ("set_real_ip_from 10.0.0.0/8;", "X-Real-IP: 1.2.3.4\r\n", "127.0.0.1 4000"),
            ("set_real_ip_from unix:;", "X-Real-IP: 1.2.3.4\r\n", "127.0.0.1 4000"),
            ("", "X-Real-IP: 1.2.3.4\r\n", "127.0.0.1 4000"),
            (
                "set_real_ip_from 127.0.0.1; real_ip_header Client;",
                "client: ::1\r\nClient: 1.1.1.1\r\n",
                "::1 0",
            ),
            (
                "set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For;",
                "X-Forwarded-For: 1.1.1.1, 127.0.0.9\r\n",
                "127.0.0.9 0",
            ),
            (
                "set_real_ip_from 127.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on;",
                "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 127.0.0.9\r\n",
                "1.1.1.1 0",
            ),
            (
                "set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;",
                "X-Real-IP: 1.1.1.1\r\n",
                "127.0.0.1 4000",
            ),
        ];
        for (conf, fields, want) in cases {
            assert_eq!(remote(conf, fields), want, "{conf} {fields}");
        }
    }

    #[test]
    fn nothing_runs_where_nobody_is_trusted() {
        let r = testing::request("real_ip_header X-Real-IP;", "GET / HTTP/1.1\r\n\r\n");
        assert!(r.location().post_read.is_empty() && r.location().preaccess.is_empty());
    }

    #[test]
    fn wrong_directives_have_nginx_texts() {
        let cases = [
            ("set_real_ip_from 1.2.3.4/33;", "host not found in set_real_ip_from \"1.2.3.4/33\""),
            ("real_ip_header a; real_ip_header b;", "\"real_ip_header\" directive is duplicate"),
        ];
        for (conf, want) in cases {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }
}
