//! Groups of servers to pass requests to: the `upstream {}` block (`ngx_http_upstream_module` and the
//! modules of its balancing methods). The groups themselves, and what the directives say, are in
//! [`forebay_session::upstream`].
//!
//! Invariant: nothing runs for a request here; who passes requests on asks the group.

use std::sync::Arc;

use forebay_conf::{Arity, Contexts, Error, Node, value};
use forebay_session::upstream::{self, Settings, directives, keepalive};

use super::resolver;
use crate::{
    module::{self, Builder, Cx, Directive, Module, in_upstream, open},
    plan::LocId,
};

/// `ngx_http_upstream_module`.
pub struct Upstream;

/// A block while it is read; in `http`, all of them.
#[derive(Default)]
pub struct Conf {
    upstream: Option<Arc<upstream::Upstream>>,
    keepalive: Option<()>,
    requests: Option<u64>,
    time_ms: Option<u64>,
    timeout_ms: Option<u64>,
    blocks: Vec<(LocId, Arc<upstream::Upstream>)>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, _: &Self) {}
}

impl Conf {
    /// Changes what the block says so far.
    fn draft<T>(&self, f: impl FnOnce(&mut Settings) -> T) -> T {
        let upstream = self.upstream.as_ref().expect("directives of a block stand in one");
        f(upstream.draft().get_or_insert_default())
    }
}

impl Module for Upstream {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_upstream_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        open(
            "upstream",
            &["name"],
            "",
            Contexts::HTTP,
            Arity::BLOCK_ONE,
            "A group of servers.",
            (|_| Contexts::UPSTREAM, block),
        ),
        in_upstream(
            "server",
            &["address [parameters]"],
            "",
            Arity::SOME,
            "A server of the group: weight=, max_conns=, max_fails=, fail_timeout=, backup, down, \
             resolve, service=, route=, slow_start=, drain.",
            |c, n, cx| c.draft(|s| directives::server(s, n, cx.loader)),
        ),
        in_upstream(
            "state",
            &["file"],
            "",
            Arity::ONE,
            "A file with the group's servers. It is read and never written: nothing changes them while \
             the server runs.",
            |c, n, cx| c.draft(|s| directives::state(s, n, cx.loader)),
        ),
        in_upstream(
            "zone",
            &["name [size]"],
            "",
            Arity::ONE_OR_TWO,
            "A name for what the group shares, which all threads share anyway.",
            |_, n, cx| directives::zone(n, &mut cx.zones),
        ),
        in_upstream(
            "hash",
            &["key [consistent]"],
            "",
            Arity::ONE_OR_TWO,
            "The server by a text; consistent: on a ring of points (ketama).",
            |c, n, cx| c.draft(|s| directives::hash(s, n, cx.loader, &mut cx.registry)),
        ),
        in_upstream(
            "ip_hash",
            &["[full]"],
            "",
            Arity::between(0, 1),
            "The server by the client's address; full: by all four octets of an IPv4 address.",
            |c, n, cx| c.draft(|s| directives::ip_hash(s, n, cx.loader)),
        ),
        in_upstream(
            "least_conn",
            &[""],
            "",
            Arity::NONE,
            "The server with the least number of connections for its weight.",
            |c, n, cx| c.draft(|s| directives::least_conn(s, n, cx.loader)),
        ),
        in_upstream(
            "ntlm",
            &[""],
            "",
            Arity::NONE,
            "A client that authenticates with NTLM or Negotiate has connections to the server of its own.",
            |c, n, _| {
                c.draft(|s| match std::mem::replace(&mut s.ntlm, true) {
                    false => Ok(()),
                    true => Err(value::duplicate(n)),
                })
            },
        ),
        in_upstream(
            "least_time",
            &["header | last_byte [inflight]"],
            "",
            Arity::ONE_OR_TWO,
            "The server with the least average time and number of connections for its weight.",
            |c, n, cx| c.draft(|s| directives::least_time(s, n, cx.loader)),
        ),
        in_upstream(
            "random",
            &["[two [method]]"],
            "",
            Arity::between(0, 2),
            "A server by chance; two: the better of two, by least_conn or least_time=header|last_byte.",
            |c, n, cx| c.draft(|s| directives::random(s, n, cx.loader)),
        ),
        in_upstream(
            "sticky",
            &[
                "cookie name [expires=time] [domain=domain] [httponly] \
                 [samesite=strict|lax|none|$variable] [secure] [path=path]",
                "route $variable ...",
                "learn create=$variable lookup=$variable zone=name:size [timeout=time] [header]",
            ],
            "",
            Arity::at_least(2),
            "Binds requests to servers.",
            |c, n, cx| c.draft(|s| directives::sticky(s, n, &mut cx.registry, &mut cx.zones)),
        ),
        in_upstream(
            "queue",
            &["number [timeout=time]"],
            "",
            Arity::ONE_OR_TWO,
            "How many requests may wait for a server, and how long (60s).",
            |c, n, _| c.draft(|s| directives::queue(s, n)),
        ),
        in_upstream(
            "keepalive",
            &["connections [local]"],
            "32 local",
            Arity::ONE_OR_TWO,
            "How many idle connections are kept; local: not shared between locations.",
            |c, n, _| {
                value::set_once(&mut c.keepalive, n, |_| Ok(()))?;
                c.draft(|s| directives::keepalive(s, n))
            },
        ),
        in_upstream(
            "keepalive_requests",
            &["number"],
            "1000",
            Arity::ONE,
            "How many requests go over one connection.",
            |c, n, _| {
                value::set_number(&mut c.requests, n)?;
                times(c);
                Ok(())
            },
        ),
        in_upstream(
            "keepalive_time",
            &["time"],
            "1h",
            Arity::ONE,
            "How old a connection may become.",
            |c, n, _| {
                value::set_msec(&mut c.time_ms, n)?;
                times(c);
                Ok(())
            },
        ),
        in_upstream(
            "keepalive_timeout",
            &["timeout"],
            "60s",
            Arity::ONE,
            "How long a connection may be idle.",
            |c, n, _| {
                value::set_msec(&mut c.timeout_ms, n)?;
                times(c);
                Ok(())
            },
        ),
    ];

    fn refused(node: &Node, cx: &mut Cx<'_, '_>) -> Conf {
        Conf { upstream: Some(cx.upstreams.aside(node.span)), ..Conf::default() }
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        for (level, upstream) in &conf.blocks {
            let merged = b.level::<resolver::Conf>(*level).cloned().unwrap_or_default().merged();
            if let Some(settings) = &mut *upstream.draft() {
                settings.resolver = Some(merged);
            }
        }
        Ok(())
    }
}

fn block(c: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>, level: LocId) -> Result<Conf, Error> {
    let names_servers = |line: &Node| matches!(line.name(), "server" | "state");
    if !node.children().iter().any(names_servers) {
        // Found at its end, after all that is wrong with its lines.
        let end = node.block_end.unwrap_or(node.span);
        cx.loader.diags.push(Error::emerg(end, "no servers are inside upstream"));
    }
    let upstream = cx.upstreams.define(node.text(0)?, node.span)?;
    c.blocks.push((level, upstream.clone()));
    Ok(Conf { upstream: Some(upstream), ..Conf::default() })
}

fn times(c: &Conf) {
    let default = keepalive::Settings::default();
    c.draft(|settings| {
        let keepalive = &mut settings.keepalive;
        keepalive.requests = c.requests.unwrap_or(default.requests);
        keepalive.time_ms = c.time_ms.unwrap_or(default.time_ms);
        keepalive.timeout_ms = c.timeout_ms.unwrap_or(default.timeout_ms);
    });
}

#[cfg(test)]
mod tests {
    use crate::testing;

    fn error(block: &str) -> String {
        testing::conf_error(&format!("upstream u {{ {block} }} server {{ listen 127.0.0.1:1; }}"))
    }

    #[test]
    fn wrong_blocks_have_nginx_texts() {
        let a = "server 127.0.0.1:1;";
        let cases = [
            ("", "no servers are inside upstream"),
            ("root /;", "\"root\" directive is not allowed here"),
            ("server 127.0.0.1:1 backup;", "no servers in upstream \"u\""),
            ("server 127.0.0.1:0;", "invalid port in upstream \"127.0.0.1:0\""),
            ("server 127.0.0.1/x;", "invalid host in upstream \"127.0.0.1/x\""),
            ("server unix:;", "no path in the unix domain socket in upstream \"unix:\""),
            ("server nowhere;", "host not found in upstream \"nowhere\""),
            ("server 127.0.0.1:1 weight=0;", "invalid parameter \"weight=0\""),
            ("server 127.0.0.1:1 weight=-1;", "invalid parameter \"weight=-1\""),
            ("server 127.0.0.1:1 max_fails=x;", "invalid parameter \"max_fails=x\""),
            ("server 127.0.0.1:1 fail_timeout=1ms;", "invalid parameter \"fail_timeout=1ms\""),
            ("server 127.0.0.1:1 up;", "invalid parameter \"up\""),
            (
                "ip_hash; server 127.0.0.1:1 backup;",
                "balancing method does not support parameter \"backup\"",
            ),
            (
                "hash $uri; server 127.0.0.1:1 slow_start=1s;",
                "balancing method does not support parameter \"slow_start=1s\"",
            ),
            ("server a service=http;", "service upstream \"a\" requires \"resolve\" parameter"),
            ("server a:1 service=http resolve;", "service upstream \"a:1\" may not have port"),
            ("hash $uri inconsistent;", "invalid parameter \"inconsistent\""),
            ("ip_hash half;", "invalid parameter \"half\""),
            ("random three;", "invalid parameter \"three\""),
            ("random two most_conn;", "invalid parameter \"most_conn\""),
            ("least_time first;", "invalid parameter \"first\""),
            ("keepalive x;", "invalid value \"x\" in \"keepalive\" directive"),
            ("keepalive 1; keepalive 1;", "\"keepalive\" directive is duplicate"),
            ("keepalive 1 global;", "invalid parameter \"global\""),
            ("queue 0;", "invalid value \"0\" in \"queue\" directive"),
            ("queue 1 time=1s;", "invalid parameter \"time=1s\""),
            ("zone z 1k;", "zone \"z\" is too small"),
            ("zone z x;", "invalid zone size \"x\""),
            ("zone z;", "zero size shared memory zone \"z\""),
            ("sticky cookie;", "invalid number of arguments in \"sticky\" directive"),
            ("sticky cookie a-b;", "invalid cookie name \"a-b\""),
            ("sticky cookie a samesite=x;", "invalid parameter \"samesite=x\""),
            ("sticky route x;", "invalid variable name \"x\""),
            ("sticky bun x;", "invalid parameter \"bun\""),
            (
                "sticky learn create=$arg_a lookup=$arg_a;",
                "\"sticky\" directive has no \"zone\" parameter",
            ),
            (
                "sticky learn create=$arg_a lookup=$arg_a zone=z:1m sync;",
                "the \"sync\" parameter is not supported",
            ),
            ("proxy_pass http://a;", "directive"),
            ("listen 80;", "\"listen\" directive is not allowed here"),
        ];
        for (block, want) in cases {
            let servers = if block.contains("server ") || block.is_empty() { "" } else { a };
            let got = error(&format!("{block} {servers}"));
            assert!(got.contains(want), "{block}: {got}");
        }
    }

    #[test]
    fn blocks_have_names_of_their_own() {
        let twice = "upstream u { server 127.0.0.1:1; } upstream U { server 127.0.0.1:2; }";
        assert!(testing::conf_error(twice).contains("duplicate upstream \"U\""));
    }

    #[test]
    fn a_block_says_all_that_a_group_is() {
        let conf = "upstream u { zone z 64k; least_time last_byte inflight; queue 7 timeout=5s; \
                    keepalive 5; keepalive_requests 9; keepalive_time 1m; keepalive_timeout 2s; \
                    server localhost:81 weight=3 max_conns=4 max_fails=5000000000; \
                    server 127.0.0.1 backup; \
                    server unix:/run/x down; } \
                    upstream v { zone z 64k; server 127.0.0.1:1; sticky route $arg_r; }";
        let plan = testing::plan(conf).expect("it must load");
        let groups: Vec<_> = plan.upstreams.iter().map(|u| u.group()).collect();
        let names = |n: usize| {
            let peers = groups[n].peers();
            peers.iter().map(|p| p.name.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(0), "127.0.0.1:81 unix:/run/x 127.0.0.1:80");
        assert_eq!((&*groups[0].name, groups[0].settings.queue.unwrap().length), ("u", 7));
        let k = &groups[0].settings.keepalive;
        assert_eq!((k.connections, k.local, k.requests), (5, false, 9));
        assert_eq!((k.time_ms, k.timeout_ms), (60_000, 2_000));
        let k = &groups[1].settings.keepalive;
        assert_eq!((k.connections, k.local, k.requests), (32, true, 1000));
    }

    #[test]
    fn two_methods_are_worth_a_warning() {
        // As in nginx, the last one holds.
        let conf = "upstream u { least_conn; ip_hash; server 127.0.0.1:1; }";
        let plan = testing::plan(conf).expect("it must load");
        let method = plan.upstreams.iter().next().unwrap().group().settings.method.clone();
        assert!(format!("{method:?}").starts_with("Some(IpHash"));
    }

    #[test]
    fn connections_are_kept_wherever_the_method_stands() {
        let conf = "upstream u { server 127.0.0.1:1; keepalive 3; ip_hash; }";
        let (plan, said) = testing::load_with(conf);
        assert!(!said.contains("redefined"), "{said}");
        let plan = plan.expect("it must load");
        let settings = &plan.upstreams.iter().next().unwrap().group().settings;
        assert_eq!(settings.keepalive.connections, 3);
        assert!(settings.method.is_some());
    }

    #[test]
    fn servers_may_stand_in_a_state_file() {
        let missing = "upstream u { state /nowhere/at/all; } server { listen 127.0.0.1:1; }";
        let plan = testing::plan(missing).expect("it must load");
        assert!(plan.upstreams.iter().next().unwrap().group().peers().is_empty());
        let both = "upstream u { state /a; server 127.0.0.1; }";
        assert!(testing::conf_error(both).contains("not allowed with \"state\""));
    }
}
