//! Active health checks in NGINX Plus's form (`ngx_http_upstream_hc_module`); the checks themselves are
//! in [`forebay_session::upstream::health`].
//!
//! The requests of checks have the fields `Host` and `Connection` only. `type=grpc` goes with
//! `proxy_pass`, whatever its `proxy_http_version` is.
//!
//! DIFFERS(health-check-without-zone): NGINX Plus wants a `zone` for a group that is checked; here all
//! threads share a group anyway.
//!
//! Invariant: nothing runs for a request here.

mod grpc;

use std::{collections::HashMap, sync::Arc};

use forebay_conf::{Arity, Contexts, Error, Node, Span};
use forebay_session::upstream::health::{
    Kind, Match, Tls,
    directives::{self, HealthCheck as Parameters},
};

use self::grpc::Question;
#[cfg(any(test, feature = "fuzzing"))]
pub use self::grpc::fuzz;
use crate::{
    module::{self, Builder, Cx, Directive, Module, PassesTls, PassesTo, set},
    upstream,
};

/// `ngx_http_upstream_hc_module`.
pub struct HealthCheck;

/// The checks of one location.
#[derive(Default)]
pub struct Conf {
    checks: Vec<(Parameters, Span)>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, _: &Self) {}
}

/// All `match` blocks.
#[derive(Default)]
struct Matches(HashMap<Box<str>, Arc<Match>>);

impl Module for HealthCheck {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_upstream_hc_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "health_check",
            &["[parameters]"],
            "",
            Contexts::LOCATION,
            Arity::ANY,
            "Checks on the servers that this location passes requests to: interval=, jitter=, \
             fails=, passes=, uri=, mandatory, persistent, match=, port=, keepalive_time=. They ask with \
             GET and the fields Host and Connection only, for uri= as it is written: a check belongs \
             to no request, so there are no variables in it. Behind all others may stand type=grpc: \
             then servers are asked by the gRPC Health Checking Protocol, for the service that \
             grpc_service= names or for all of the server, in HTTP/2 (over TLS where requests are), \
             and must be SERVING; with grpc_status=, a number or a name such as UNIMPLEMENTED, they \
             must answer with that status instead.",
            |c, n, _| {
                c.checks.push((directives::health_check(n)?, n.span));
                Ok(())
            },
        ),
        set(
            "match",
            &["name"],
            "",
            Contexts::HTTP,
            Arity::BLOCK_ONE,
            "What the response to a health check must be: status, header, body, require.",
            match_block,
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        for (parameters, span) in &conf.checks {
            let Some(to) = b.location.setting::<PassesTo>().cloned() else {
                let text = "\"health_check\" directive needs a \"proxy_pass\" without variables \
                            in the same location";
                return Err(Error::emerg(*span, text));
            };
            // Checks speak HTTP/1, whatever requests do, and gRPC HTTP/2.
            let alpn = parameters.grpc.as_ref().map(|_| &b"h2"[..]);
            let tls = match &to.tls {
                None => None,
                Some(passes) => Some(tls(passes, alpn, *span, b)?),
            };
            let (name, is_https) = (&to.upstream.name, tls.is_some());
            let kind = match &parameters.grpc {
                Some(wanted) => Kind::Grpc(Arc::new(Question::new(wanted, name, is_https))),
                None => parameters.http(name, tests(parameters, b)?),
            };
            to.upstream.add_check(parameters.finish(kind, tls, to.read_timeout_ms));
        }
        Ok(())
    }
}

fn tls(
    passes: &PassesTls,
    alpn: Option<&'static [u8]>,
    span: Span,
    b: &mut Builder<'_, '_, '_>,
) -> Result<Tls, Error> {
    let client = upstream::tls::build(&passes.settings, passes.prefix, alpn, b)?;
    let (config, name) = client.fixed(&passes.host).ok_or_else(|| {
        let text = "\"health_check\" directive cannot be with variables in \
                    \"proxy_ssl_name\" and \"proxy_ssl_certificate\"";
        Error::emerg(span, text)
    })?;
    Ok(Tls { config, name })
}

/// What `match=` names.
fn tests(
    parameters: &Parameters,
    b: &mut Builder<'_, '_, '_>,
) -> Result<Option<Arc<Match>>, Error> {
    let Some(arg) = &parameters.tests else { return Ok(None) };
    match b.cx.shared::<Matches>().0.get(&*arg.lossy()) {
        Some(known) => Ok(Some(known.clone())),
        None => {
            let text = format!("match block \"{}\" is not found", arg.lossy());
            Err(Error::emerg(arg.span, text))
        }
    }
}

fn match_block(_: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let tests = directives::match_block(node, &mut cx.registry, cx.loader.diags)?;
    let name = tests.name.clone();
    match cx.shared::<Matches>().0.insert(name.clone(), Arc::new(tests)) {
        None => Ok(()),
        Some(_) => Err(Error::emerg(node.span, format!("duplicate match \"{name}\""))),
    }
}

#[cfg(test)]
mod tests {
    use forebay_session::upstream::health::{Check, Expect, Kind};

    use crate::testing;

    fn conf(http: &str, location: &str) -> String {
        format!(
            "{http} upstream u {{ server 127.0.0.1:1; }} \
             server {{ listen 127.0.0.1:1; location / {{ {location} }} }}"
        )
    }

    fn shown(check: &Check) -> String {
        let (request, name) = match &check.kind {
            Kind::Http { request, expect: Expect::Match(tests) } => {
                (String::from_utf8_lossy(request), tests.name.clone())
            }
            other => panic!("{other:?}"),
        };
        let line = request.lines().next().unwrap();
        format!(
            "{line} {name} {}+{} {}/{} {:?} {} {} {}",
            check.interval_ms,
            check.jitter_ms,
            check.fails,
            check.passes,
            check.port,
            check.timeout_ms,
            check.starts_down,
            check.persistent
        )
    }

    #[test]
    fn a_location_has_its_servers_checked() {
        let tests = "match ok { status 200; }";
        let pass = "proxy_pass http://u; proxy_read_timeout 3s;";
        let plain = "GET / HTTP/1.0  5000+0 1/1 None 3000 false false";
        let all =
            "interval=2s jitter=1s fails=3 passes=2 uri=/x mandatory persistent match=ok port=81";
        let cases = [
            ("health_check;".to_owned(), vec![plain]),
            (
                format!("health_check; health_check {all};"),
                vec![plain, "GET /x HTTP/1.0 ok 2000+1000 3/2 Some(81) 3000 true true"],
            ),
        ];
        for (directives, want) in cases {
            let text = conf(tests, &format!("{directives} {pass}"));
            let plan = testing::plan(&text).expect("it must load");
            let upstream = plan.upstreams.iter().find(|u| &*u.name == "u").unwrap();
            let checks = &upstream.group().settings.checks;
            assert_eq!(checks.iter().map(|c| shown(c)).collect::<Vec<_>>(), want);
        }
    }

    #[test]
    fn servers_are_asked_by_grpc() {
        for version in ["1.0", "1.1", "2"] {
            let text = conf(
                "",
                &format!(
                    "proxy_pass http://u; proxy_http_version {version}; health_check mandatory \
                     interval=2s keepalive_time=1m type=grpc grpc_service=a.B grpc_status=NOT_FOUND;"
                ),
            );
            let plan = testing::plan(&text).expect("it must load");
            let upstream = plan.upstreams.iter().find(|u| &*u.name == "u").unwrap();
            let check = &upstream.group().settings.checks[0];
            let Kind::Grpc(dialogue) = &check.kind else { panic!("{check:?}") };
            let asked = dialogue.clone().begin().ask();
            assert!(asked.ends_with(b"\0\0\0\0\x05\x0a\x03a.B"), "{}", asked.escape_ascii());
            assert_eq!((check.interval_ms, check.starts_down), (2000, true));
            assert_eq!((check.keepalive_requests, check.keepalive_time_ms), (u32::MAX, 60_000));
        }
    }

    #[test]
    fn wrong_directives_are_told() {
        let pass = "proxy_pass http://u;";
        let cases = [
            ("", "health_check;", "needs a \"proxy_pass\""),
            ("", "health_check; proxy_pass http://$host;", "needs a \"proxy_pass\""),
            ("", "health_check match=x;", "match block \"x\" is not found"),
            ("", "health_check fails=0;", "invalid parameter \"fails=0\""),
            ("", "health_check uri=x;", "invalid parameter \"uri=x\""),
            ("", "health_check persistent;", "\"persistent\" requires \"mandatory\""),
            ("", "health_check type=http;", "invalid parameter \"type=http\""),
            ("", "health_check type;", "invalid parameter \"type\""),
            ("", "health_check type=grpc fails=2;", "\"fails=2\" must be before \"type=grpc\" in"),
            ("", "health_check type=grpc type=grpc;", "\"type=grpc\" must be before"),
            ("", "health_check type=grpc mandatory;", "\"mandatory\" must be before"),
            ("", "health_check grpc_status=1 type=grpc;", "\"grpc_status=1\" must be after"),
            ("", "health_check grpc_service=a;", "\"grpc_service=a\" must be after \"type=grpc\""),
            (
                "",
                "health_check uri=/ type=grpc;",
                "not compatible with \"uri\" in \"health_check\"",
            ),
            ("", "health_check match=x type=grpc;", "is not compatible with \"match\""),
            ("", "health_check type=grpc uri=/;", "\"uri=/\" is not compatible with \"type=grpc\""),
            ("", "health_check type=grpc grpc_status=17;", "invalid parameter \"grpc_status=17\""),
            ("", "health_check type=grpc grpc_status=ok;", "invalid parameter \"grpc_status=ok\""),
            ("", "health_check type=grpc grpc_status;", "invalid parameter \"grpc_status\""),
            ("", "health_check type=grpc grpc_service=;", "invalid parameter \"grpc_service=\""),
            ("match a { } match a { }", "", "duplicate match \"a\""),
            ("match a { status x; }", "", "invalid status \"x\""),
            ("match a { body ~ \"(\"; }", "", "pcre2_compile() failed"),
        ];
        for (http, location, want) in cases {
            let pass = if want.starts_with("needs") { "" } else { pass };
            let error = testing::conf_error(&conf(http, &format!("{location} {pass}")));
            assert!(error.contains(want), "{http} {location}: {error}");
        }
    }
}
