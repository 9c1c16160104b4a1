//! Limiting the rate of requests (`ngx_http_limit_req_module`): a leaky bucket for each key.
//!
//! DIFFERS(retry-after): a request that is rejected with 429 is told in `Retry-After` when the next
//! one would be let through; nginx says nothing.
//!
//! `limit_req_zone` has no `sync` parameter, as in nginx without the commercial part.
//!
//! Invariant: a bucket that a request is about to be put in is not thrown out for another key.

use std::{mem::ManuallyDrop, sync::Arc};

use bytes::Bytes;
use forebay_conf::{Arg, Contexts, Error, Node, value};
use forebay_rt::clock;
use forebay_session::{
    keyed::{Keyed, Shard, Slot},
    log::Severity,
    var::{Registry, Template},
    zone::{self, Kind, Zone},
};

use crate::{
    client::{Client, hold_up},
    handler::{Flow, Handler},
    inherit,
    limits::{self, Verdict},
    module::{self, Builder, Cx, Directive, Module},
    request::Request,
};

/// `ngx_http_limit_req_module`.
pub struct LimitReq;

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

/// `limit_req_zone`.
struct Rate {
    key: Template,
    key_text: String,
    /// Thousandths of a request a second.
    rate: i64,
}

/// A bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// When it was last looked into, in milliseconds; see [`now`].
    last: i64,
    /// What is in it, in thousandths of a request.
    excess: i64,
    /// How many requests are between finding it and being put into it.
    pinned: u32,
}

/// A node of nginx's tree without the key, in bytes.
const NODE: u64 = 80;
/// The longest key that is counted, in bytes.
const MAX_KEY: usize = 65535;
/// As nginx: what an entry older than that holds has leaked out, and a clock that went back farther
/// is not believed.
const MINUTE: i64 = 60_000;

impl Kind for Rate {
    const MODULE: &'static str = "ngx_http_limit_req_module";
    type Memory = Keyed<Bucket>;

    fn memory(&self, size: u64) -> Keyed<Bucket> {
        Keyed::new(size, NODE)
    }

    fn succeeds(&self, name: &str, old: &Rate) -> Result<(), String> {
        if self.key_text == old.key_text {
            return Ok(());
        }
        let (new, old) = (&self.key_text, &old.key_text);
        Err(format!(
            "limit_req \"{name}\" uses the \"{new}\" key while previously it used the \"{old}\" key"
        ))
    }
}

/// `limit_req`.
#[derive(Clone)]
struct Limit {
    zone: Arc<Zone<Rate>>,
    /// Thousandths of requests that may wait in the bucket.
    burst: i64,
    /// Of these, how many do not have to wait.
    delay: i64,
}

/// nginx's "never": `NGX_MAX_INT_T_VALUE`, a multiple of 1000.
const NEVER: i64 = i64::MAX / 1000 * 1000;

impl Module for LimitReq {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_limit_req_module";
    const DIRECTIVES: &'static [Directive<Conf>] = limits::directives!(
        "limit_req";
        set(
            "limit_req_zone",
            &["key zone=name:size rate=rate"],
            "",
            Contexts::HTTP,
            Arity::THREE,
            "A zone of buckets, one for each value of the key.",
            limit_req_zone,
        ),
        set(
            "limit_req",
            &["zone=name [burst=number] [nodelay | delay=number]"],
            "",
            ANY,
            Arity::between(1, 3),
            "Limits the rate of requests by a zone.",
            limit_req,
        ),
    );

    fn variables(registry: &mut Registry<Request>) {
        registry.builtin("limit_req_status", |r, out| match r.main.limit_req.get() {
            Some(verdict) => {
                out.extend_from_slice(verdict.name().as_bytes());
                true
            }
            None => false,
        });
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if let Some(limits) = &conf.limits {
            let log_level = conf.common.log_level.unwrap_or(Severity::Error);
            b.preaccess(Limiter {
                limits: limits.clone(),
                dry_run: conf.common.dry_run.unwrap_or(false),
                log_level,
                delay_log_level: match log_level {
                    Severity::Error => Severity::Warn,
                    Severity::Warn => Severity::Notice,
                    _ => Severity::Info,
                },
                status: conf.common.status.unwrap_or(503),
            });
        }
        Ok(())
    }
}

fn limit_req_zone(_: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (key, key_text) = limits::key(node, cx)?;
    let (mut name_and_size, mut rate) = (None, 1000);
    for arg in &node.args[1..] {
        if let Some(value) = arg.after("zone=") {
            name_and_size = Some(zone::parse(&arg.value, value, arg.span)?);
        } else if let Some(value) = arg.after("rate=") {
            rate = parse_rate(value).ok_or_else(|| invalid(arg, "invalid rate"))?;
        } else {
            return Err(value::invalid_parameter(arg));
        }
    }
    let named = name_and_size.filter(|(name, _)| !name.is_empty());
    let (name, size) = named.ok_or_else(|| limits::no_zone(node))?;
    let again = |before: &Rate| limits::bound_already(node, &name, &before.key_text);
    cx.zones.declare(&name, size, node.span, Rate { key, key_text, rate }, again)
}

/// `10r/s`, `30r/m`, or, as nginx takes it too, `10`.
fn parse_rate(text: &[u8]) -> Option<i64> {
    let (digits, seconds) = match (text.strip_suffix(b"r/s"), text.strip_suffix(b"r/m")) {
        (Some(digits), _) => (digits, 1),
        (_, Some(digits)) => (digits, 60),
        _ => (text, 1),
    };
    let number = value::number(digits).filter(|n| *n > 0)?.checked_mul(1000)?;
    i64::try_from(number / seconds).ok()
}

fn invalid(arg: &Arg, what: &str) -> Error {
    Error::emerg(arg.span, format!("{what} \"{}\"", arg.lossy()))
}

fn limit_req(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (mut zone, mut burst, mut delay) = (None, 0, 0);
    let thousands = |text: &[u8]| {
        let number = value::number(text).filter(|n| *n > 0)?;
        i64::try_from(number).ok()?.checked_mul(1000)
    };
    for arg in &node.args {
        if let Some(name) = arg.after("zone=") {
            zone = Some(cx.zones.used(&String::from_utf8_lossy(name), arg.span)?);
        } else if let Some(number) = arg.after("burst=") {
            burst = thousands(number).ok_or_else(|| invalid(arg, "invalid burst value"))?;
        } else if let Some(number) = arg.after("delay=") {
            delay = thousands(number).ok_or_else(|| invalid(arg, "invalid delay value"))?;
        } else if arg.is("nodelay") {
            delay = NEVER;
        } else {
            return Err(value::invalid_parameter(arg));
        }
    }
    let zone: Arc<Zone<Rate>> = zone.ok_or_else(|| limits::no_zone(node))?;
    let limits = conf.limits.get_or_insert_default();
    if limits.iter().any(|limit| Arc::ptr_eq(&limit.zone, &zone)) {
        return Err(value::duplicate(node));
    }
    limits.push(Limit { zone, burst, delay });
    Ok(())
}

struct Limiter {
    limits: Vec<Limit>,
    dry_run: bool,
    log_level: Severity,
    delay_log_level: Severity,
    status: u16,
}

/// A bucket that was found and is not filled yet: it stays in its zone as long as this does.
struct Pinned<'a> {
    limit: &'a Limit,
    hash: u64,
    slot: Slot,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut shard = self.limit.zone.memory().lock_again(self.hash);
        if let Some(bucket) = shard.value(self.slot) {
            bucket.pinned -= 1;
        }
    }
}

/// What a look into a bucket showed.
enum Look<'a> {
    /// There is room.
    Fits(Pinned<'a>),
    /// It was put in; what is in the bucket then.
    Put { excess: i64 },
    /// There is no room; what would be in it.
    Over { excess: i64 },
    /// There is no memory for another key.
    NoMemory,
}

/// Milliseconds that never go back, far enough from zero for a bucket that was never looked into.
fn now() -> i64 {
    clock::now_ms() as i64 + (1 << 40)
}

impl Handler for Limiter {
    fn handle<'a>(&'a self, r: &'a mut Request, client: &'a mut dyn Client) -> Flow<'a> {
        if r.main.limit_req.get().is_some() {
            return Flow::Decline;
        }
        let delay_ms = match self.check(r, now()) {
            Outcome::NotMine => return Flow::Decline,
            Outcome::Let { delay_ms: 0, .. } => {
                r.main.limit_req.set(Some(Verdict::Passed));
                return Flow::Decline;
            }
            Outcome::Let { delay_ms, excess, by } => {
                self.log_delay(r, excess, by);
                delay_ms
            }
            Outcome::Reject { retry_after } => {
                r.main.limit_req.set(Some(Verdict::rejected(self.dry_run)));
                if self.dry_run {
                    return Flow::Decline;
                }
                if let (429, Some(seconds)) = (self.status, retry_after) {
                    r.response.set("Retry-After", Bytes::from(seconds.to_string()));
                }
                return Flow::Deny(self.status);
            }
        };
        if self.dry_run {
            r.main.limit_req.set(Some(Verdict::DelayedDryRun));
            return Flow::Decline;
        }
        r.main.limit_req.set(Some(Verdict::Delayed));
        Flow::later(move || async move {
            match hold_up(r, client, delay_ms).await {
                Ok(()) => Flow::Decline,
                Err(status) => Flow::Deny(status),
            }
        })
    }
}

/// What all limits together say.
enum Outcome<'a> {
    /// No key had a value.
    NotMine,
    Let {
        delay_ms: u64,
        excess: i64,
        by: &'a Limit,
    },
    Reject {
        retry_after: Option<i64>,
    },
}

impl Limiter {
    /// Asks every limit (`ngx_http_limit_req_handler`): first all are looked at, and only when none
    /// objects are the buckets filled.
    fn check(&self, r: &Request, now: i64) -> Outcome<'_> {
        let mut pinned = Vec::new();
        let mut decided = None;
        for (index, limit) in self.limits.iter().enumerate() {
            let is_last = index + 1 == self.limits.len();
            let rate = limit.zone.kind();
            let look = limits::with_key(&rate.key, r, |key| match key.len() {
                0 => None,
                1..=MAX_KEY => Some(look(limit, key, is_last, now)),
                _ => {
                    limits::log_long_key(r, &rate.key_text, MAX_KEY, key);
                    None
                }
            });
            match look {
                None => {}
                Some(Look::Fits(pin)) => pinned.push(pin),
                Some(Look::Put { excess }) => decided = Some((limit, excess)),
                Some(Look::Over { excess }) => {
                    self.log_over(r, excess, limit);
                    let over = (excess - limit.burst).max(1);
                    let seconds = over / rate.rate.max(1) + i64::from(over % rate.rate.max(1) > 0);
                    return Outcome::Reject { retry_after: Some(seconds) };
                }
                Some(Look::NoMemory) => {
                    let name = limit.zone.name();
                    let text = format_args!("could not allocate node in limit_req zone \"{name}\"");
                    r.log_error(Severity::Alert, text);
                    return Outcome::Reject { retry_after: None };
                }
            }
        }
        fill(pinned, decided, now)
    }

    fn log_over(&self, r: &Request, excess: i64, limit: &Limit) {
        let dry_run = if self.dry_run { ", dry run" } else { "" };
        let (whole, part, zone) = (excess / 1000, excess % 1000, limit.zone.name());
        r.log_error(
            self.log_level,
            format_args!(
                "limiting requests{dry_run}, excess: {whole}.{part:03} by zone \"{zone}\""
            ),
        );
    }

    fn log_delay(&self, r: &Request, excess: i64, limit: &Limit) {
        let dry_run = if self.dry_run { ", dry run" } else { "" };
        let (whole, part, zone) = (excess / 1000, excess % 1000, limit.zone.name());
        r.log_error(
            self.delay_log_level,
            format_args!(
                "delaying request{dry_run}, excess: {whole}.{part:03}, by zone \"{zone}\""
            ),
        );
    }
}

/// `ngx_http_limit_req_account`: fills the buckets that were looked at; the longest wait counts.
fn fill<'a>(pinned: Vec<Pinned<'a>>, last: Option<(&'a Limit, i64)>, now: i64) -> Outcome<'a> {
    let mut longest = last.map(|(limit, excess)| (wait(limit, excess), excess, limit));
    for pin in pinned.into_iter().rev() {
        let limit = pin.limit;
        let mut shard = limit.zone.memory().lock_again(pin.hash);
        // Let go here, under one lock with the rest.
        let pin = ManuallyDrop::new(pin);
        let Some(bucket) = shard.value(pin.slot) else { continue };
        let (excess, moved) = bucket.leaked(limit.zone.kind().rate, now);
        if moved {
            bucket.last = now;
        }
        bucket.excess = excess;
        bucket.pinned -= 1;
        let delay_ms = wait(limit, excess);
        if longest.is_none_or(|(longest_ms, ..)| delay_ms > longest_ms) {
            longest = Some((delay_ms, excess, limit));
        }
    }
    match longest {
        Some((delay_ms, excess, by)) => Outcome::Let { delay_ms, excess, by },
        None => Outcome::NotMine,
    }
}

/// How long a request waits that filled the bucket so far, in milliseconds.
fn wait(limit: &Limit, excess: i64) -> u64 {
    if excess <= limit.delay {
        return 0;
    }
    let rate = limit.zone.kind().rate.max(1);
    ((excess - limit.delay).saturating_mul(1000) / rate) as u64
}

impl Bucket {
    /// What is in it with one request more, and whether time has passed.
    fn leaked(&self, rate: i64, now: i64) -> (i64, bool) {
        let ms = match now - self.last {
            ms if ms < -MINUTE => 1,
            ms => ms.max(0),
        };
        let leaked = rate.saturating_mul(ms) / 1000;
        (self.excess.saturating_sub(leaked).saturating_add(1000).max(0), ms != 0)
    }
}

/// `ngx_http_limit_req_lookup`: with `put`, the request is put into the bucket at once.
fn look<'a>(limit: &'a Limit, key: &[u8], put: bool, now: i64) -> Look<'a> {
    let rate = limit.zone.kind().rate;
    let (mut shard, hash) = limit.zone.memory().lock(key);
    if let Some(slot) = shard.find(hash, key) {
        shard.touch(slot);
        let Some(bucket) = shard.value(slot) else { return Look::NoMemory };
        let (excess, moved) = bucket.leaked(rate, now);
        if excess > limit.burst {
            return Look::Over { excess };
        }
        if !put {
            bucket.pinned += 1;
            return Look::Fits(Pinned { limit, hash, slot });
        }
        bucket.excess = excess;
        if moved {
            bucket.last = now;
        }
        return Look::Put { excess };
    }
    expire(&mut shard, rate, now, false);
    let bucket = match put {
        true => Bucket { last: now, excess: 0, pinned: 0 },
        false => Bucket { last: 0, excess: 0, pinned: 1 },
    };
    let slot = shard.insert(hash, key, bucket).or_else(|| {
        expire(&mut shard, rate, now, true);
        shard.insert(hash, key, bucket)
    });
    match slot {
        None => Look::NoMemory,
        Some(_) if put => Look::Put { excess: 0 },
        Some(slot) => Look::Fits(Pinned { limit, hash, slot }),
    }
}

/// `ngx_http_limit_req_expire`: throws out up to two empty buckets that were not used for a minute, and
/// by force the oldest one first, whatever is in it.
fn expire(shard: &mut Shard<Bucket>, rate: i64, now: i64, force: bool) {
    for n in i32::from(!force)..3 {
        let Some(oldest) = shard.oldest() else { return };
        let Some(bucket) = shard.value(oldest) else { return };
        if bucket.pinned > 0 {
            return;
        }
        if n > 0 {
            let ms = (now - bucket.last).abs();
            if ms < MINUTE || bucket.excess > rate.saturating_mul(ms) / 1000 {
                return;
            }
        }
        shard.remove(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{client::Nobody, plan::LocId, testing};

    const HEAD: &str = "GET /?k=a HTTP/1.1\r\n\r\n";
    const ZONE: &str = "limit_req_zone $arg_k zone=one:32k rate=1r/s;";

    fn request(conf: &str, head: &str) -> Request {
        let plan = testing::plan(conf).expect("it must load");
        testing::request_of(Arc::new(plan), head)
    }

    /// What the limiter of the server's level says of a request now and again.
    fn ask(r: &mut Request) -> String {
        let plan = r.plan.clone();
        r.main.limit_req.take();
        r.response.clear();
        r.location = LocId(1);
        let handler = &plan.location(r.location).preaccess[0];
        let flow = match handler.handle(r, &mut Nobody) {
            Flow::Decline => "pass".to_owned(),
            Flow::Deny(status) => format!("deny {status}"),
            Flow::Later(_) => "later".to_owned(),
            _ => "?".to_owned(),
        };
        match r.main.limit_req.get() {
            Some(verdict) => format!("{flow} {}", verdict.name()),
            None => flow,
        }
    }

    fn asked(directives: &str, times: usize) -> Vec<String> {
        let server = format!("{ZONE} server {{ listen 127.0.0.1:1; {directives} }}");
        let mut r = request(&server, HEAD);
        (0..times).map(|_| ask(&mut r)).collect()
    }

    #[test]
    fn more_than_the_rate_and_the_burst_is_rejected() {
        assert_eq!(asked("limit_req zone=one;", 2), ["pass PASSED", "deny 503 REJECTED"]);
        assert_eq!(
            asked("limit_req zone=one burst=2 nodelay;", 4),
            ["pass PASSED", "pass PASSED", "pass PASSED", "deny 503 REJECTED"]
        );
    }

    #[test]
    fn what_fits_the_burst_waits_unless_it_is_within_the_delay() {
        assert_eq!(
            asked("limit_req zone=one burst=2 delay=1; limit_req_status 429;", 4),
            ["pass PASSED", "pass PASSED", "later DELAYED", "deny 429 REJECTED"]
        );
    }

    #[test]
    fn a_dry_run_holds_nobody_up() {
        assert_eq!(
            asked("limit_req zone=one burst=1; limit_req_dry_run on;", 3),
            ["pass PASSED", "pass DELAYED_DRY_RUN", "pass REJECTED_DRY_RUN"]
        );
    }

    #[test]
    fn a_rejection_by_429_says_when_to_come_back() {
        let conf = "limit_req_zone $arg_k zone=one:32k rate=6r/m;
            server { listen 127.0.0.1:1; limit_req zone=one; limit_req_status 429; }";
        let mut r = request(conf, HEAD);
        ask(&mut r);
        assert_eq!(ask(&mut r), "deny 429 REJECTED");
        assert_eq!(testing::fields(&r), "Retry-After: 10\n");
    }

    #[test]
    fn an_empty_key_and_a_long_one_are_not_counted() {
        let conf = "limit_req_zone $arg_k zone=one:32k rate=1r/s;
            server { listen 127.0.0.1:1; limit_req zone=one; }";
        let long = format!("GET /?k={} HTTP/1.1\r\n\r\n", "x".repeat(65536));
        for head in ["GET / HTTP/1.1\r\n\r\n", &long] {
            let mut r = request(conf, head);
            assert_eq!([ask(&mut r), ask(&mut r)], ["pass", "pass"]);
        }
    }

    #[test]
    fn a_bucket_is_filled_only_when_no_limit_objects() {
        let conf = "limit_req_zone $arg_k zone=one:32k rate=1r/s;
            limit_req_zone $arg_l zone=two:32k rate=1r/s;
            server { listen 127.0.0.1:1; limit_req zone=one burst=1 nodelay; limit_req zone=two; }";
        let mut r = request(conf, "GET /?k=a&l=b HTTP/1.1\r\n\r\n");
        assert_eq!(ask(&mut r), "pass PASSED");
        // The second zone objects; were the first filled each time, it would object at the third.
        for _ in 0..3 {
            assert_eq!(ask(&mut r), "deny 503 REJECTED");
        }
        r.args = b"k=a".to_vec();
        assert_eq!(ask(&mut r), "pass PASSED");
        assert_eq!(ask(&mut r), "deny 503 REJECTED");
    }

    fn limit(rate: i64, burst: i64) -> Limit {
        let mut zones = zone::Zones::default();
        let zone = zones.used("z", forebay_conf::Span::default()).unwrap();
        let kind = Rate { key: Template::default(), key_text: String::new(), rate };
        let span = forebay_conf::Span::default();
        zones.declare("z", 32 << 10, span, kind, |_| String::new()).unwrap();
        Limit { zone, burst, delay: NEVER }
    }

    #[test]
    fn a_bucket_leaks_with_time() {
        let limit = limit(2000, 1000);
        let start = now();
        let at = |ms: i64| match look(&limit, b"k", true, start + ms) {
            Look::Put { excess } => Ok(excess),
            Look::Over { excess } => Err(excess),
            _ => unreachable!("there is one key"),
        };
        assert_eq!(at(0), Ok(0));
        assert_eq!(at(0), Ok(1000));
        assert_eq!(at(0), Err(2000));
        assert_eq!(at(499), Err(1002));
        assert_eq!(at(500), Ok(1000));
        assert_eq!(at(10_000), Ok(0));
        // A clock that goes back a little does not fill the bucket.
        assert_eq!(at(9_000), Ok(1000));
    }

    #[test]
    fn a_full_zone_makes_room_by_its_oldest_bucket() {
        let limit = limit(1000, 0);
        let start = now();
        for n in 0..10_000u32 {
            assert!(matches!(look(&limit, &n.to_le_bytes(), true, start), Look::Put { .. }));
        }
        let (shard, hash) = limit.zone.memory().lock(&9_999u32.to_le_bytes());
        assert!(shard.find(hash, &9_999u32.to_le_bytes()).is_some());
        assert_eq!(shard.len(), 192);
    }

    #[test]
    fn a_pinned_bucket_is_not_thrown_out() {
        let limit = limit(1000, 0);
        let start = now();
        let looks: Vec<_> =
            (0..192u32).map(|n| look(&limit, &n.to_le_bytes(), false, start)).collect();
        assert!(looks.iter().all(|look| matches!(look, Look::Fits(_))));
        assert!(matches!(look(&limit, b"more", false, start), Look::NoMemory));
        // However what was looked for ended.
        drop(looks);
        assert!(matches!(look(&limit, b"more", false, start), Look::Fits(_)));
    }

    #[test]
    fn rates_are_read() {
        let cases: [(&str, Option<i64>); 8] = [
            ("10r/s", Some(10_000)),
            ("30r/m", Some(500)),
            ("1r/m", Some(16)),
            ("5", Some(5000)),
            ("0r/s", None),
            ("r/s", None),
            ("-1r/s", None),
            ("99999999999999999999r/s", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_rate(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn wrong_directives_have_nginx_texts() {
        let cases = [
            ("limit_req_zone $uri zone=one rate=1r/s;", "invalid zone size \"zone=one\""),
            ("limit_req_zone $uri zone=one:1k rate=1r/s;", "zone \"zone=one:1k\" is too small"),
            (
                "limit_req_zone $uri zone=:1m rate=1r/s;",
                "\"limit_req_zone\" must have \"zone\" parameter",
            ),
            ("limit_req_zone $uri zone=one:1m rate=x;", "invalid rate \"rate=x\""),
            ("limit_req_zone $uri zone=one:1m x=y;", "invalid parameter \"x=y\""),
            ("limit_req_zone $uri rate=1r/s rate=1r/s;", "\"limit_req_zone\" must have \"zone\""),
            (
                "limit_req_zone $uri zone=a:1m rate=1r/s; limit_req_zone $uri zone=a:1m rate=1r/s;",
                "limit_req_zone \"a\" is already bound to key \"$uri\"",
            ),
            ("limit_req zone=a;", "zero size shared memory zone \"a\""),
            ("limit_req burst=1;", "\"limit_req\" must have \"zone\" parameter"),
            ("limit_req zone=a burst=0;", "invalid burst value \"burst=0\""),
            ("limit_req zone=a delay=x;", "invalid delay value \"delay=x\""),
            ("limit_req zone=a nodelays;", "invalid parameter \"nodelays\""),
            ("limit_req zone=a; limit_req zone=a;", "\"limit_req\" directive is duplicate"),
            ("limit_req_status 399;", "value must be between 400 and 599"),
        ];
        for (conf, want) in cases {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }

    #[test]
    fn an_inner_level_replaces_the_limits() {
        let conf = "limit_req_zone $arg_k zone=one:32k rate=1r/s;
            limit_req_zone $arg_k zone=two:32k rate=1r/s;
            server { listen 127.0.0.1:1; limit_req zone=two burst=5 nodelay; }
            limit_req zone=one;";
        let mut r = request(conf, HEAD);
        assert_eq!([ask(&mut r), ask(&mut r)], ["pass PASSED", "pass PASSED"]);
    }
}
