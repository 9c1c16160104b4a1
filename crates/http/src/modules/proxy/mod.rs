//! `proxy_pass`: passes requests on to servers of HTTP/1 and HTTP/2 (`ngx_http_proxy_module.c`,
//! `ngx_http_proxy_v2_module.c`).
//!
//! The exchange itself is [`crate::upstream`]; here is what is HTTP about it. Leaves out
//! `proxy_cache…` and `proxy_store…`, which are refused, and `proxy_ssl_key_log`, which open nginx does
//! not have.
//!
//! DIFFERS(proxy-http11): as in nginx since 1.29.7, `proxy_http_version` is 1.1 unless it is set, and
//! connections are kept; before, it was 1.0 and none were.
//!
//! Invariant: an upstream is never believed further than its response goes.

mod codec;
mod pass;
mod request;
mod request2;
mod rewrite;
mod speech;

use std::{
    cell::Cell,
    hash::{Hash, Hasher},
    sync::Arc,
};

use bytes::Bytes;
use forebay_conf::{Arity, Contexts, Error, Node, value};
use forebay_session::{
    log::{Severity, Shown},
    resolver::Resolver,
    ssl::client::{Client as Secure, Identity},
    var::{Registry, Template},
};
use forebay_wire::h1::{BodyLength, FieldId, ResponseFieldId, ResponseHead, encode, is_token};

use self::{
    pass::{Pass, Url},
    request::Parts,
    rewrite::{FlagRule, Redirect, Rewrites, Rule},
    speech::Speech,
};
use crate::{
    body_in::RequestBody,
    client::Client,
    core,
    handler::{Flow, Handler},
    module::{self, ANY, Builder, Cx, Directive, Module, PassesTls, PassesTo, set},
    plan::Kind,
    request::Request,
    upstream::{
        self, GroupRef, Outgoing, Protocol, Settings,
        head::Hidden,
        settings::{self, Shared},
    },
};

/// `ngx_http_proxy_module`.
pub struct Proxy;

/// `proxy_http_version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpVersion {
    Http10,
    Http11,
    Http2,
}

/// `proxy_set_header`.
type SetHeader = (Box<[u8]>, Template);

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    shared: settings::Conf,
    /// Not inherited, but by `if` and `limit_except`.
    pass: Option<Arc<Pass>>,
    version: Option<HttpVersion>,
    method: Option<Arc<Template>>,
    set_body: Option<Arc<Template>>,
    set_headers: Option<Arc<Vec<SetHeader>>>,
    redirects: Option<Arc<Vec<Redirect>>>,
    cookie_domains: Option<Arc<Vec<Rule>>>,
    cookie_paths: Option<Arc<Vec<Rule>>>,
    cookie_flags: Option<Arc<Vec<FlagRule>>>,
    hash_max_size: Option<u64>,
    hash_bucket_size: Option<u64>,
}

impl Shared for Conf {
    fn shared(&mut self) -> &mut settings::Conf {
        &mut self.shared
    }
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        self.shared.inherit(&parent.shared);
        crate::inherit!(
            self, parent;
            version, method, set_body, set_headers, redirects, cookie_domains, cookie_paths,
            cookie_flags, hash_max_size, hash_bucket_size,
        );
    }
}

const PASS: Contexts = Contexts::LOCATION.or(Contexts::LIF).or(Contexts::LMT);

const fn refused(
    name: &'static str,
    syntax: &'static [&'static str],
    contexts: Contexts,
) -> Directive<Conf> {
    let doc = "Not supported yet: it belongs to the cache.";
    set(name, syntax, "", contexts, Arity::ANY, doc, |_, n, _| Err(settings::not_yet(n)))
}

impl Module for Proxy {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_proxy_module";
    const DIRECTIVES: &'static [Directive<Conf>] = crate::upstream_tls_directives![
        "proxy";
        set(
            "proxy_pass",
            &["URL"],
            "",
            PASS,
            Arity::ONE,
            "Which servers requests are passed to, and what their path becomes.",
            set_pass,
        ),
        set(
            "proxy_http_version",
            &["1.0 | 1.1 | 2"],
            "1.1",
            ANY,
            Arity::ONE,
            "The version of HTTP spoken to upstreams; 2 is agreed on by ALPN over TLS, and spoken without \
             asking in the clear.",
            |c, n, _| {
                let versions = [
                    ("1.0", HttpVersion::Http10),
                    ("1.1", HttpVersion::Http11),
                    ("2", HttpVersion::Http2),
                ];
                value::set_enum(&mut c.version, n, &versions)
            },
        ),
        set(
            "proxy_method",
            &["method"],
            "",
            ANY,
            Arity::ONE,
            "The method of requests to upstreams.",
            |c, n, cx| set_template(&mut c.method, n, cx),
        ),
        set(
            "proxy_set_body",
            &["value"],
            "",
            ANY,
            Arity::ONE,
            "The body of requests to upstreams.",
            |c, n, cx| set_template(&mut c.set_body, n, cx),
        ),
        set(
            "proxy_set_header",
            &["field value"],
            "Host $proxy_host",
            ANY,
            Arity::TWO,
            "A header field of requests to upstreams; an empty one is not sent, nor, in HTTP/2, one that \
             speaks of the connection.",
            set_header,
        ),
        set(
            "proxy_redirect",
            &["default", "off", "redirect replacement"],
            "default",
            ANY,
            Arity::ONE_OR_TWO,
            "What the Location and Refresh of responses are changed to.",
            rewrite::set_redirect,
        ),
        set(
            "proxy_cookie_domain",
            &["off", "domain replacement"],
            "off",
            ANY,
            Arity::ONE_OR_TWO,
            "What the domain of cookies is changed to.",
            rewrite::set_cookie_domain,
        ),
        set(
            "proxy_cookie_path",
            &["off", "path replacement"],
            "off",
            ANY,
            Arity::ONE_OR_TWO,
            "What the path of cookies is changed to.",
            rewrite::set_cookie_path,
        ),
        set(
            "proxy_cookie_flags",
            &["off | cookie [flag ...]"],
            "off",
            ANY,
            Arity::SOME,
            "Which flags cookies have or have not.",
            rewrite::set_cookie_flags,
        ),
        set(
            "proxy_pass_trailers",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether the trailers of responses are passed on.",
            |c, n, _| value::set_flag(&mut c.shared.pass_trailers, n),
        ),
        set(
            "proxy_headers_hash_max_size",
            &["size"],
            "512",
            ANY,
            Arity::ONE,
            "Means something in nginx only: there is no such table here.",
            |c, n, cx| {
                value::set_number(&mut c.hash_max_size, n)?;
                no_table(n, cx);
                Ok(())
            },
        ),
        set(
            "proxy_headers_hash_bucket_size",
            &["size"],
            "64",
            ANY,
            Arity::ONE,
            "Means something in nginx only: there is no such table here.",
            |c, n, cx| {
                value::set_number(&mut c.hash_bucket_size, n)?;
                no_table(n, cx);
                Ok(())
            },
        ),
        refused("proxy_cache", &["zone | off"], ANY),
        refused("proxy_cache_background_update", &["on | off"], ANY),
        refused("proxy_cache_bypass", &["string ..."], ANY),
        refused("proxy_cache_convert_head", &["on | off"], ANY),
        refused("proxy_cache_key", &["string"], ANY),
        refused("proxy_cache_lock", &["on | off"], ANY),
        refused("proxy_cache_lock_age", &["time"], ANY),
        refused("proxy_cache_lock_timeout", &["time"], ANY),
        refused("proxy_cache_max_range_offset", &["number"], ANY),
        refused("proxy_cache_methods", &["GET | HEAD | POST ..."], ANY),
        refused("proxy_cache_min_uses", &["number"], ANY),
        refused("proxy_cache_path", &["path keys_zone=name:size ..."], Contexts::HTTP),
        refused("proxy_cache_revalidate", &["on | off"], ANY),
        refused("proxy_cache_use_stale", &["error | timeout | off ..."], ANY),
        refused("proxy_cache_valid", &["[code ...] time"], ANY),
        refused("proxy_no_cache", &["string ..."], ANY),
        refused("proxy_store", &["on | off | string"], ANY),
        refused("proxy_store_access", &["users:permissions ..."], ANY),
    ];

    fn variables(registry: &mut Registry<Request>) {
        registry.builtin("proxy_host", |r, out| with_target(r, |host, _| out.extend(host)));
        registry.builtin("proxy_port", |r, out| with_target(r, |_, port| out.extend(port)));
        registry.replaceable(|name| matches!(name, "proxy_host" | "proxy_port"));
        registry.builtin("proxy_add_x_forwarded_for", add_forwarded_for);
        registry.builtin("proxy_internal_body_length", |r, out| match r.input.framing.body {
            BodyLength::Length(length) if r.upstream.leads() => {
                encode::write_decimal(out, length);
                true
            }
            _ => false,
        });
        registry.builtin("proxy_internal_chunked", |r, out| {
            let is_stream = r.body.is_unread() || matches!(r.body, RequestBody::Gone);
            let chunked = r.input.framing.body == BodyLength::Chunked && is_stream;
            if chunked {
                out.extend_from_slice(b"chunked");
            }
            chunked
        });
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        conf.shared.check("proxy", b.around::<Conf>().map(|outer| &outer.shared), b)?;
        let kind = b.location.kind;
        let is_prefix = matches!(kind, Kind::Exact | Kind::Prefix { .. });
        if conf.pass.is_some() && is_prefix && b.location.name.ends_with(b"/") {
            b.location.auto_redirect = true;
        }
        let inner = matches!(kind, Kind::If | Kind::LimitExcept);
        let outer = || b.enclosing::<Conf>().and_then(|conf| conf.pass.clone());
        let pass = conf.pass.clone().or_else(|| if inner { outer() } else { None });
        let Some(pass) = pass.filter(|_| b.passes()) else { return Ok(()) };
        let set: &[_] = conf.set_headers.as_ref().map_or(&[], |list| list);
        match conf.version {
            Some(HttpVersion::Http2) => put(conf, pass, speech::Http2::new(set), b),
            version => {
                let http11 = version != Some(HttpVersion::Http10);
                put(conf, pass, speech::Http1::new(set, http11), b)
            }
        }
    }
}

/// What of the URI `proxy_pass` replaces: the name of the location that has it, also within its `if` and
/// `limit_except` (`ngx_http_proxy_merge_loc_conf`); nothing where that is no beginning of a path.
fn replaced(conf: &Conf, b: &Builder<'_, '_, '_>) -> Bytes {
    let (kind, name) = match b.enclosing::<core::Conf>() {
        Some(outer)
            if conf.pass.is_none() && matches!(b.location.kind, Kind::If | Kind::LimitExcept) =>
        {
            (outer.own.kind, &outer.own.name)
        }
        _ => (b.location.kind, &b.location.name),
    };
    match kind {
        Kind::Exact | Kind::Prefix { .. } => name.clone(),
        _ => Bytes::new(),
    }
}

/// Puts the handler into its location.
fn put<S: Speech>(
    conf: &Conf,
    pass: Arc<Pass>,
    speech: S,
    b: &mut Builder<'_, '_, '_>,
) -> Result<(), Error> {
    let handler = Handing::new(conf, pass, speech, b)?;
    if let Pass::Fixed { group: GroupRef::Configured(upstream), url, .. } = &*handler.pass {
        let tls = handler.tls.as_ref().map(|_| PassesTls {
            settings: conf.shared.tls.clone(),
            prefix: "proxy",
            host: url.host.clone(),
        });
        b.passes_to(PassesTo {
            upstream: upstream.clone(),
            tls,
            read_timeout_ms: handler.settings.read_timeout_ms,
        });
    }
    b.location.upgrades = handler.speech.upgrades();
    b.sole_content(handler);
    Ok(())
}

fn no_table(node: &Node, cx: &mut Cx<'_, '_>) {
    let name = node.name.lossy();
    cx.loader.info(node.span, format!("\"{name}\" has no meaning here"));
}

fn set_template(
    slot: &mut Option<Arc<Template>>,
    node: &Node,
    cx: &mut Cx<'_, '_>,
) -> Result<(), Error> {
    value::set_once(slot, node, |node| {
        let arg = node.arg(0)?;
        Ok(Arc::new(Template::parse(&arg.value, arg.span, &mut cx.registry)?))
    })
}

fn set_pass(c: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    cx.serves = true;
    value::set_once(&mut c.pass, node, |node| Ok(Arc::new(pass::parse(node, cx)?)))
}

fn set_header(c: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (name, text) = (node.arg(0)?, node.arg(1)?);
    let template = Template::parse(&text.value, text.span, &mut cx.registry)?;
    let list = c.set_headers.get_or_insert_default();
    // Only this level holds it while its directives are being read.
    let list = Arc::get_mut(list).expect("not shared before inheritance");
    list.push((name.value.clone(), template));
    Ok(())
}

/// Shows the host and port that a request is passed to, while it is, and after.
fn with_target(r: &Request, f: impl FnOnce(&Bytes, &Bytes)) -> bool {
    if !r.upstream.leads() {
        return false;
    }
    if let Some(Fixed(url)) = r.location().setting::<Fixed>() {
        f(&url.host, &url.port);
        return true;
    }
    r.upstream.with_target(f)
}

/// The URL of a location, for its variables.
struct Fixed(Url);

/// `$proxy_add_x_forwarded_for`: what came, and the client.
fn add_forwarded_for(r: &Request, out: &mut Vec<u8>) -> bool {
    use std::io::Write as _;
    for field in r.input.head.headers.iter().filter(|f| f.id == FieldId::XForwardedFor) {
        out.extend_from_slice(r.input.text(field.value));
        out.extend_from_slice(b", ");
    }
    // Writing to a vector cannot fail.
    let _ = write!(out, "{}", r.remote());
    true
}

/// The handler of a location.
struct Handing<S> {
    pass: Arc<Pass>,
    settings: Settings,
    hidden: Hidden,
    speech: S,
    rewrites: Rewrites,
    method: Option<Arc<Template>>,
    set_body: Option<Arc<Template>>,
    /// What the URI part of `proxy_pass` replaces.
    location: Bytes,
    resolver: (Arc<Resolver>, u64),
    tag: u64,
    /// `proxy_ssl_…`, where `https://` may be asked.
    tls: Option<Arc<Secure>>,
}

/// What `ngx_http_proxy_hide_headers` names.
const HIDDEN: [&str; 8] = [
    "Date",
    "Server",
    "X-Pad",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];

impl<S: Speech> Handing<S> {
    fn new(
        conf: &Conf,
        pass: Arc<Pass>,
        speech: S,
        b: &mut Builder<'_, '_, '_>,
    ) -> Result<Handing<S>, Error> {
        let settings = conf.shared.settings("proxy", b)?;
        let plain = matches!(b.location.kind, Kind::Exact | Kind::Prefix { .. });
        let location = replaced(conf, b);
        let mut redirects = Vec::new();
        if let Pass::Fixed { url, text, .. } = &*pass {
            if !plain && !url.uri.is_empty() && conf.pass.is_some() {
                let span = b.level::<core::Conf>(b.location.id).map(|conf| conf.own.span);
                let text = "\"proxy_pass\" cannot have URI part in location given by regular \
                            expression, or inside named location, or inside \"if\" statement, or \
                            inside \"limit_except\" block";
                return Err(Error::emerg(span.unwrap_or_default(), text));
            }
            b.keep(Fixed(url.clone()));
            // `proxy_redirect default`.
            let default = match url.uri.is_empty() {
                true => Rule::fixed(&[&text[..], b"/"].concat(), b"/"),
                false => Rule::fixed(text, &location),
            };
            match &conf.redirects {
                None => redirects.push(default),
                Some(rules) => redirects.extend(rules.iter().map(|rule| match rule {
                    Redirect::Default => default.clone(),
                    Redirect::Rule(rule) => rule.clone(),
                })),
            }
        } else if let Some(rules) = &conf.redirects {
            redirects.extend(rules.iter().filter_map(|rule| match rule {
                Redirect::Default => None,
                Redirect::Rule(rule) => Some(rule.clone()),
            }));
        }
        let tls = match &*pass {
            Pass::Fixed { url, .. } if !url.tls => None,
            _ => Some(upstream::tls::build(&conf.shared.tls, "proxy", S::ALPN, b)?),
        };
        Ok(Handing {
            hidden: Hidden::new(&HIDDEN, &settings.pass_headers, &settings.hide_headers),
            settings,
            speech,
            rewrites: Rewrites {
                redirects,
                domains: conf.cookie_domains.clone().unwrap_or_default(),
                paths: conf.cookie_paths.clone().unwrap_or_default(),
                flags: conf.cookie_flags.clone().unwrap_or_default(),
            },
            method: conf.method.clone(),
            set_body: conf.set_body.clone(),
            location,
            resolver: super::resolver::of(b),
            tag: tag(b, &pass),
            tls,
            pass,
        })
    }

    fn parts<'a>(&'a self, job: &'a Job) -> Parts<'a> {
        let (url, group, computed) = match (&*self.pass, &job.own) {
            (_, Some(own)) => (&own.1, &own.0, true),
            (Pass::Fixed { group, url, .. }, None) => (url, group, false),
            (Pass::Computed(_), None) => unreachable!("worked out in prepare()"),
        };
        Parts {
            url,
            location: &self.location,
            computed,
            method: self.method.as_deref(),
            keeps: group.group().settings.keepalive.connections > 0,
            closes: &job.closes,
            pass_headers: self.settings.pass_request_headers,
        }
    }
}

/// The same location of another configuration may use its connections.
fn tag(b: &Builder<'_, '_, '_>, pass: &Pass) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    b.location.name.hash(&mut hasher);
    if let Pass::Fixed { text, .. } = pass {
        text.hash(&mut hasher);
    }
    hasher.finish()
}

/// What is worked out for a request; small, as it is moved.
struct Job {
    /// Where it goes, if that takes variables.
    own: Option<Box<(GroupRef, Url)>>,
    /// Whether it is a HEAD for the upstream.
    head: bool,
    /// Whom TLS is spoken to, if it is.
    identity: Option<Box<Identity>>,
    /// Whether the head says `Connection: close`.
    closes: Cell<bool>,
}

impl<S: Speech> Handler for Handing<S> {
    fn handle<'a>(&'a self, r: &'a mut Request, client: &'a mut dyn Client) -> Flow<'a> {
        Flow::later(|| upstream::run(self, r, client))
    }
}

impl<S: Speech> Protocol for Handing<S> {
    type Job = Job;
    type Codec = S::Codec;

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn hidden(&self) -> &Hidden {
        &self.hidden
    }

    async fn prepare(&self, r: &mut Request) -> Result<Job, u16> {
        let own = match &*self.pass {
            Pass::Fixed { .. } => None,
            Pass::Computed(template) => {
                Some(Box::new(pass::evaluate(r, template, &self.resolver).await?))
            }
        };
        let closes = Cell::new(false);
        let mut job = Job { own, head: false, identity: None, closes };
        let parts = self.parts(&job);
        job.identity = match &self.tls {
            Some(tls) if parts.url.tls => Some(Box::new(tls.identify(r, &parts.url.host))),
            _ => None,
        };
        let mut scratch = Vec::new();
        let method = request::method(r, &self.parts(&job), &mut scratch);
        // DIFFERS(proxy-method-token): nginx writes whatever the variables of `proxy_method` hold.
        if self.method.is_some() && !is_token(method) {
            let text = format_args!("invalid method \"{}\" to proxy", Shown(method));
            r.log_error(Severity::Error, text);
            return Err(500);
        }
        job.head = method == b"HEAD";
        Ok(job)
    }

    fn tag(&self) -> u64 {
        self.tag
    }

    fn group<'a>(&'a self, job: &'a Job) -> &'a GroupRef {
        match (&*self.pass, &job.own) {
            (_, Some(own)) => &own.0,
            (Pass::Fixed { group, .. }, None) => group,
            (Pass::Computed(_), None) => unreachable!("worked out in prepare()"),
        }
    }

    fn tls<'a>(&'a self, job: &'a Job) -> Option<(&'a Secure, &'a Identity)> {
        Some((self.tls.as_deref()?, job.identity.as_deref()?))
    }

    fn scheme(&self, job: &Job) -> &'static str {
        if job.identity.is_some() { "https://" } else { "http://" }
    }

    fn has_own_body(&self) -> bool {
        self.set_body.is_some()
    }

    fn own_body(&self, r: &Request, _: &Job) -> Option<Bytes> {
        self.set_body.as_ref().map(|template| template.value(r).into())
    }

    fn streams_unknown_length(&self) -> bool {
        self.speech.streams_unknown_length()
    }

    fn keeps(&self, job: &Job) -> bool {
        !job.closes.get()
    }

    fn write_head(
        &self,
        r: &Request,
        job: &Job,
        body: &Outgoing,
        out: &mut Vec<u8>,
    ) -> Result<(), u16> {
        self.speech.write_head(r, &self.parts(job), body, out).ok_or_else(|| {
            r.log_error(Severity::Error, format_args!("zero length URI to proxy"));
            500
        })
    }

    fn codec(&self, r: &Request, job: &Job, head: ResponseHead) -> S::Codec {
        self.speech.codec(r, job.head, head)
    }

    fn rewrite(&self, r: &Request, _: &Job, id: ResponseFieldId, value: &[u8]) -> Option<Vec<u8>> {
        match id {
            ResponseFieldId::Location => self.rewrites.location(r, value),
            ResponseFieldId::Refresh => self.rewrites.refresh(r, value),
            _ => self.rewrites.cookie(r, value),
        }
    }

    fn alpn(&self) -> Option<&'static [u8]> {
        S::ALPN
    }
}
