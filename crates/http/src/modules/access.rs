//! `ngx_http_access_module`: `allow` and `deny`, by the client's address.
//!
//! The first rule that fits decides; without one, nothing is said. An inner level with a rule of its
//! own takes none from outside.
//!
//! Hot path: no allocation.
//!
//! Invariant: an address that cannot be told is never allowed by a network.

use std::net::{IpAddr, Ipv6Addr};

use forebay_conf::{Arity, Contexts, Error, Node, value};
use forebay_session::{
    addr::{Cidr, mask_v6},
    log::Severity,
};

use crate::{
    client::Client,
    core::Satisfy,
    handler::{Flow, Handler},
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    request::{Peer, Request},
};

/// What one level says.
#[derive(Default)]
pub struct Conf {
    rules: Vec<Rule>,
}

#[derive(Clone, Copy)]
struct Rule {
    who: Who,
    deny: bool,
}

#[derive(Clone, Copy)]
enum Who {
    All,
    Net(Cidr),
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        if self.rules.is_empty() {
            self.rules.clone_from(&parent.rules);
        }
    }
}

/// The module.
pub struct Access;

impl Module for Access {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_access_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "allow",
            &["address | CIDR | unix: | all"],
            "",
            ANY.or(Contexts::LMT),
            Arity::ONE,
            "Lets clients with these addresses in.",
            |c, n, cx| rule(c, n, cx, false),
        ),
        set(
            "deny",
            &["address | CIDR | unix: | all"],
            "",
            ANY.or(Contexts::LMT),
            Arity::ONE,
            "Keeps clients with these addresses out.",
            |c, n, cx| rule(c, n, cx, true),
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if !conf.rules.is_empty() {
            b.access(Rules::new(&conf.rules));
        }
        Ok(())
    }
}

fn rule(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>, deny: bool) -> Result<(), Error> {
    let arg = node.arg(0)?;
    let who = match &*arg.value {
        b"all" => Who::All,
        b"unix:" => Who::Net(Cidr::Unix),
        text => {
            let (net, low_bits) = Cidr::parse(text).ok_or_else(|| value::invalid_parameter(arg))?;
            if low_bits {
                let text = format!("low address bits of {} are meaningless", arg.lossy());
                cx.loader.warn(arg.span, text);
            }
            Who::Net(net)
        }
    };
    conf.rules.push(Rule { who, deny });
    Ok(())
}

struct Rules {
    rules: Box<[Rule]>,
    /// Whether a rule speaks of IPv4 addresses: else those within IPv6 are looked at as IPv6.
    some_v4: bool,
}

/// The client's address, as the rules look at it.
#[derive(Clone, Copy)]
enum Address {
    Canonical(Option<IpAddr>),
    V6(Ipv6Addr),
}

impl Rules {
    fn new(rules: &[Rule]) -> Rules {
        let v4 = |rule: &Rule| matches!(rule.who, Who::All | Who::Net(Cidr::V4 { .. }));
        Rules { rules: rules.into(), some_v4: rules.iter().any(v4) }
    }

    /// The first rule that fits; whether it denies (`ngx_http_access_handler`).
    fn verdict(&self, client: &Peer) -> Option<bool> {
        let address = match client.ip() {
            Some(IpAddr::V6(ip)) if !self.some_v4 => Address::V6(ip),
            ip => Address::Canonical(ip),
        };
        self.rules.iter().find(|rule| rule.who.fits(address)).map(|rule| rule.deny)
    }
}

impl Who {
    fn fits(self, address: Address) -> bool {
        match (self, address) {
            (Who::All, _) => true,
            (Who::Net(net), Address::Canonical(ip)) => net.contains(ip),
            (Who::Net(Cidr::V6 { network, bits }), Address::V6(ip)) => {
                mask_v6(bits).is_some_and(|mask| ip.to_bits() & mask == network)
            }
            (Who::Net(_), Address::V6(_)) => false,
        }
    }
}

impl Handler for Rules {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        match self.verdict(r.remote()) {
            None => Flow::Decline,
            Some(false) => Flow::Allow,
            Some(true) => {
                // With `satisfy any` another module may still let it in, and the engine tells.
                if r.location().core.satisfy == Satisfy::All {
                    r.log_error(Severity::Error, format_args!("access forbidden by rule"));
                }
                Flow::Deny(403)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, conf_error, request};

    fn verdict(rules: &[(&str, bool)], client: &str) -> Option<bool> {
        let rules: Vec<_> = rules
            .iter()
            .map(|(who, deny)| {
                let who = match *who {
                    "all" => Who::All,
                    "unix:" => Who::Net(Cidr::Unix),
                    net => Who::Net(Cidr::parse(net.as_bytes()).unwrap().0),
                };
                Rule { who, deny: *deny }
            })
            .collect();
        let client = match client {
            "unix:" => Peer::Unix,
            ip => Peer::Inet((ip.parse::<IpAddr>().unwrap(), 1).into()),
        };
        Rules::new(&rules).verdict(&client)
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = [
            ("10.1.0.0/16", true),
            ("10.0.0.0/8", false),
            ("2001:db8::/32", false),
            ("unix:", false),
            ("192.168.0.1", true),
        ];
        let cases = [
            ("10.1.2.3", Some(true)),
            ("10.2.2.3", Some(false)),
            ("::ffff:10.1.2.3", Some(true)),
            ("2001:db8::1", Some(false)),
            ("unix:", Some(false)),
            ("192.168.0.1", Some(true)),
            ("192.168.0.2", None),
            ("::1", None),
        ];
        for (client, expected) in cases {
            assert_eq!(verdict(&rules, client), expected, "{client}");
        }
        for client in ["1.1.1.1", "::1", "::ffff:1.1.1.1", "unix:"] {
            assert_eq!(verdict(&[("all", true)], client), Some(true), "{client}");
        }
    }

    #[test]
    fn ipv4_within_ipv6_is_ipv6_to_rules_that_know_no_ipv4() {
        assert_eq!(verdict(&[("::/0", true)], "::ffff:1.1.1.1"), Some(true));
        assert_eq!(verdict(&[("::ffff:0:0/96", true)], "::ffff:1.1.1.1"), Some(true));
        assert_eq!(verdict(&[("::/0", true)], "1.1.1.1"), None);
        assert_eq!(verdict(&[("2.2.2.2", false), ("::/0", true)], "::ffff:1.1.1.1"), None);
    }

    #[test]
    fn an_inner_level_with_a_rule_takes_none_from_outside() {
        let server = "root /nowhere; deny all; location / { } \
                      location /in/ { allow 127.0.0.1; } \
                      location /allow/ { limit_except POST { allow all; } } \
                      location /deny/ { limit_except POST { deny all; } allow all; }";
        let cases = [("/x", 403), ("/in/x", 404), ("/allow/x", 404), ("/deny/x", 403)];
        for (target, status) in cases {
            let mut r = request(server, &format!("GET {target} HTTP/1.1\r\n\r\n"));
            testing::answer(&mut r);
            assert_eq!(r.response.status, status, "{target}");
        }
    }

    #[test]
    fn errors_are_nginxs() {
        for value in ["x", "1.2.3", "1.2.3.4/33", "::/129", "unix", "1.2.3.4/"] {
            let error = conf_error(&format!("allow {value};"));
            let expected = format!("invalid parameter \"{value}\"");
            assert!(error.contains(&expected), "{error}");
        }
    }
}
