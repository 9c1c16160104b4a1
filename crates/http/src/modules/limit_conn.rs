//! Limiting the number of requests in progress (`ngx_http_limit_conn_module`).
//!
//! Invariant: a request counts from the preaccess phase until it is gone, however it ends.

use std::sync::Arc;

use forebay_conf::{Contexts, Error, Node, value};
use forebay_session::{
    limit_conn::{Connections, Held, MAX_KEY, Refused, hold},
    log::Severity,
    var::Registry,
    zone::{self, Zone},
};

use crate::{
    client::Client,
    handler::{Flow, Handler},
    inherit,
    limits::{self, Verdict},
    module::{self, Builder, Cx, Directive, Module},
    request::Request,
};

/// `ngx_http_limit_conn_module`.
pub struct LimitConn;

/// What one level sets.
#[derive(Default)]
pub struct Conf {
    limits: Option<Vec<Limit>>,
    common: limits::Common,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; limits);
        self.common.inherit(&parent.common);
    }
}

#[derive(Clone)]
struct Limit {
    zone: Arc<Zone<Connections<true>>>,
    /// How many may be in progress.
    connections: u32,
}

impl Module for LimitConn {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_limit_conn_module";
    const DIRECTIVES: &'static [Directive<Conf>] = limits::directives!(
        "limit_conn";
        set(
            "limit_conn_zone",
            &["key zone=name:size"],
            "",
            Contexts::HTTP,
            Arity::TWO,
            "A zone of counters, one for each value of the key.",
            limit_conn_zone,
        ),
        set(
            "limit_conn",
            &["zone number"],
            "",
            ANY,
            Arity::TWO,
            "How many requests of a key may be in progress.",
            limit_conn,
        ),
    );

    fn variables(registry: &mut Registry<Request>) {
        registry.builtin("limit_conn_status", |r, out| match r.main.limit_conn.get() {
            Some(verdict) => {
                out.extend_from_slice(verdict.name().as_bytes());
                true
            }
            None => false,
        });
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if let Some(limits) = &conf.limits {
            b.preaccess(Limiter {
                limits: limits.clone(),
                dry_run: conf.common.dry_run.unwrap_or(false),
                log_level: conf.common.log_level.unwrap_or(Severity::Error),
                status: conf.common.status.unwrap_or(503),
            });
        }
        Ok(())
    }
}

fn limit_conn_zone(_: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (key, key_text) = limits::key(node, cx)?;
    let arg = node.arg(1)?;
    let value = arg.after("zone=").ok_or_else(|| value::invalid_parameter(arg))?;
    let (name, size) = zone::parse(&arg.value, value, arg.span)?;
    if name.is_empty() {
        return Err(limits::no_zone(node));
    }
    let again = |before: &Connections<true>| limits::bound_already(node, &name, &before.key_text);
    cx.zones.declare(&name, size, node.span, Connections { key, key_text }, again)
}

fn limit_conn(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let zone = cx.zones.used(node.text(0)?, node.arg(0)?.span)?;
    let limits = conf.limits.get_or_insert_default();
    if limits.iter().any(|limit: &Limit| Arc::ptr_eq(&limit.zone, &zone)) {
        return Err(value::duplicate(node));
    }
    let arg = node.arg(1)?;
    let number = value::number(&arg.value).filter(|n| *n > 0).ok_or_else(|| {
        Error::emerg(arg.span, format!("invalid number of connections \"{}\"", arg.lossy()))
    })?;
    let connections = u16::try_from(number)
        .map_err(|_| Error::emerg(arg.span, "connection limit must be less 65536"))?;
    limits.push(Limit { zone, connections: connections.into() });
    Ok(())
}

struct Limiter {
    limits: Vec<Limit>,
    dry_run: bool,
    log_level: Severity,
    status: u16,
}

impl Handler for Limiter {
    fn handle<'a>(&'a self, r: &'a mut Request, _: &'a mut dyn Client) -> Flow<'a> {
        if r.main.limit_conn.get().is_some() {
            return Flow::Decline;
        }
        for limit in &self.limits {
            let zone = &limit.zone;
            let held = limits::with_key(&zone.kind().key, r, |key| match key.len() {
                0 => None,
                1..=MAX_KEY => Some(hold(zone, key, limit.connections)),
                _ => {
                    limits::log_long_key(r, &zone.kind().key_text, MAX_KEY, key);
                    None
                }
            });
            match held {
                None => {}
                Some(Ok(held)) => {
                    r.main.limit_conn.set(Some(Verdict::Passed));
                    r.main.context(|all: &mut Vec<Held>| all.push(held));
                }
                Some(Err(why)) => return self.reject(r, zone.name(), why),
            }
        }
        Flow::Decline
    }
}

impl Limiter {
    fn reject<'a>(&self, r: &Request, zone: &str, why: Refused) -> Flow<'a> {
        if why == Refused::Limit {
            let dry_run = if self.dry_run { ", dry run," } else { "" };
            let text = format_args!("limiting connections{dry_run} by zone \"{zone}\"");
            r.log_error(self.log_level, text);
        }
        // What was counted under other keys is not in progress.
        r.main.context(|all: &mut Vec<Held>| all.clear());
        r.main.limit_conn.set(Some(Verdict::rejected(self.dry_run)));
        if self.dry_run { Flow::Decline } else { Flow::Deny(self.status) }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::{client::Nobody, plan::LocId, testing};

    type Plan = Arc<crate::plan::Plan>;

    fn plan(limits: &str) -> Plan {
        let zones = "limit_conn_zone $arg_k zone=one:32k; limit_conn_zone $arg_l zone=two:32k;";
        let conf = format!("{zones} server {{ listen 127.0.0.1:1; {limits} }}");
        Arc::new(testing::plan(&conf).expect("it must load"))
    }

    fn ask(plan: &Plan, target: &str) -> (String, Request) {
        let mut r = testing::request_of(plan.clone(), &format!("GET {target} HTTP/1.1\r\n\r\n"));
        r.location = LocId(1);
        let handler = &plan.location(r.location).preaccess[0];
        let mut flow = match handler.handle(&mut r, &mut Nobody) {
            Flow::Decline => "pass".to_owned(),
            Flow::Deny(status) => format!("deny {status}"),
            _ => "?".to_owned(),
        };
        if let Some(verdict) = r.main.limit_conn.get() {
            flow = format!("{flow} {}", verdict.name());
        }
        (flow, r)
    }

    #[test]
    fn a_request_counts_until_it_is_gone() {
        let plan = plan("limit_conn one 1;");
        let (first, held) = ask(&plan, "/?k=a");
        assert_eq!(first, "pass PASSED");
        assert_eq!(ask(&plan, "/?k=a").0, "deny 503 REJECTED");
        assert_eq!(ask(&plan, "/?k=b").0, "pass PASSED");
        assert_eq!(ask(&plan, "/").0, "pass");
        // Recycled, as after a response; the next time dropped, as when the client leaves.
        drop(held.into_parts());
        assert_eq!(ask(&plan, "/?k=a").0, "pass PASSED");
        assert_eq!(ask(&plan, "/?k=a").0, "pass PASSED");
    }

    #[test]
    fn a_rejected_request_counts_nowhere() {
        let plan = plan("limit_conn one 5; limit_conn two 1; limit_conn_status 429;");
        let held = ask(&plan, "/?k=a&l=b");
        let rejected: Vec<_> = (0..9).map(|_| ask(&plan, "/?k=a&l=b")).collect();
        assert!(rejected.iter().all(|(flow, _)| flow == "deny 429 REJECTED"));
        let passed: Vec<_> = (0..4).map(|_| ask(&plan, "/?k=a")).collect();
        assert!(passed.iter().all(|(flow, _)| flow == "pass PASSED"));
        assert_eq!(ask(&plan, "/?k=a").0, "deny 429 REJECTED");
        drop(held);
    }

    #[test]
    fn a_dry_run_rejects_nobody() {
        let plan = plan("limit_conn one 1; limit_conn_dry_run on;");
        let held = ask(&plan, "/?k=a");
        assert_eq!(ask(&plan, "/?k=a").0, "pass REJECTED_DRY_RUN");
        drop(held);
    }

    #[test]
    fn a_long_key_is_not_counted() {
        let plan = plan("limit_conn one 1;");
        let target = format!("/?k={}", "x".repeat(256));
        let held = [ask(&plan, &target), ask(&plan, &target)];
        assert!(held.iter().all(|(flow, _)| flow == "pass"));
    }

    #[test]
    fn wrong_directives_have_nginx_texts() {
        let cases = [
            ("limit_conn_zone $uri zone=:1m;", "must have \"zone\" parameter"),
            ("limit_conn_zone $uri zone=one;", "invalid zone size \"zone=one\""),
            ("limit_conn_zone $uri one:1m;", "invalid parameter \"one:1m\""),
            ("limit_conn one 0;", "invalid number of connections \"0\""),
            ("limit_conn one 65536;", "connection limit must be less 65536"),
            ("limit_conn one 1; limit_conn one 2;", "\"limit_conn\" directive is duplicate"),
            ("limit_conn one 1;", "zero size shared memory zone \"one\""),
            ("limit_conn_log_level debug;", "invalid value \"debug\""),
            ("limit_conn_status 600;", "value must be between 400 and 599"),
            (
                "limit_conn_zone $uri zone=a:1m; limit_req_zone $uri zone=a:1m rate=1r/s;",
                "the shared memory zone \"a\" is already declared for a different use",
            ),
        ];
        for (conf, want) in cases {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }
}
