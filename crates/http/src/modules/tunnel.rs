//! `tunnel_pass`: tunnels through the server, asked for by CONNECT (`ngx_http_tunnel_module`, RFC 9110
//! §9.3.6).
//!
//! Without it CONNECT is 405 everywhere. With it, a location says who may connect to what: `tunnel_pass`
//! without an address connects to whatever host and port the request names, so give it access control
//! (`allow`, `auth_basic` …) or `tunnel_allow_upstream`, which sees the address that was picked:
//!
//! ```text
//! geo $upstream_last_addr $outside { volatile; default 1; 127.0.0.0/8 0; 10.0.0.0/8 0; }
//! map $request_port $is_https { 443 1; }
//! server { tunnel_allow_upstream $is_https $outside; tunnel_pass; }
//! ```
//!
//! The URI of a CONNECT is `/` for the choice of a location. A location with `tunnel_pass` answers no
//! other method. Leaves out `tunnel_bind_dynamic`: it is not in open nginx, and `tunnel_bind` is worked
//! out for each connection here.
//!
//! Invariant: nothing that a client sends behind its request reaches anybody before the 200 does.

use std::sync::Arc;

use forebay_conf::{Arg, Arity, Contexts, Error, Node, Span, value};
use forebay_rt::{listen::Addr, pool};
use forebay_session::{
    log::{Severity, Shown},
    resolver::Resolver,
    upstream::address::Target,
    var::Template,
};
use forebay_wire::h1::{BadResponse, Method, ResponseFraming, ResponseHead, Version};

use crate::{
    client::Client,
    handler::{Flow, Handler},
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    plan::Kind,
    request::Request,
    upstream::{
        self, Codec, Decoded, GroupRef, Outgoing, Protocol, Settings,
        head::Hidden,
        settings::{self, Next, Shared},
    },
};

/// `ngx_http_tunnel_module`.
pub struct Tunnel;

/// `tunnel_pass`.
enum Pass {
    Fixed(GroupRef),
    /// What variables say.
    Computed {
        address: Template,
        /// Whether that may be a unix socket, which a host never is.
        unix: bool,
        /// Where it is written.
        span: Span,
    },
}

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    shared: settings::Conf,
    /// Not inherited, but by `if`.
    pass: Option<Arc<Pass>>,
    allow: Option<Arc<Vec<Template>>>,
    buffer_size: Option<u64>,
}

impl Shared for Conf {
    fn shared(&mut self) -> &mut settings::Conf {
        &mut self.shared
    }
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        self.shared.inherit(&parent.shared);
        crate::inherit!(self, parent; allow, buffer_size);
    }
}

const PASS: Contexts = Contexts::SERVER.or(Contexts::LOCATION).or(Contexts::LIF);

const NEXT: &[(&str, u32)] = &[
    ("error", Next::ERROR.0),
    ("timeout", Next::TIMEOUT.0),
    ("denied", Next::DENIED.0),
    ("off", Next::OFF.0),
];

impl Module for Tunnel {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_tunnel_module";
    const DIRECTIVES: &'static [Directive<Conf>] = crate::upstream_connection_directives![
        "tunnel";
        set(
            "tunnel_pass",
            &["[address]"],
            "",
            PASS,
            Arity::between(0, 1),
            "Where CONNECT leads; without an address, to the host and port that are asked for.",
            |c, n, cx| {
                cx.serves = true;
                value::set_once(&mut c.pass, n, |n| Ok(Arc::new(pass(n, cx)?)))
            },
        ),
        set(
            "tunnel_next_upstream",
            &["error | timeout | denied | off ..."],
            "error timeout",
            ANY,
            Arity::SOME,
            "When the next server is asked for a tunnel.",
            |c, n, cx| value::set_bits(&mut c.shared.next, n, NEXT, cx.loader.diags),
        ),
        set(
            "tunnel_buffer_size",
            &["size"],
            "16k",
            ANY,
            Arity::ONE,
            "How much is read at once in each direction.",
            |c, n, _| value::set_size(&mut c.buffer_size, n),
        ),
        set(
            "tunnel_allow_upstream",
            &["string ..."],
            "",
            ANY,
            Arity::SOME,
            "A tunnel is made only if none of these is empty or 0; $upstream_last_addr is known.",
            set_allow,
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let outer = || b.enclosing::<Conf>().and_then(|conf| conf.pass.clone());
        let inner = matches!(b.location.kind, Kind::If | Kind::LimitExcept);
        let pass = conf.pass.clone().or_else(|| if inner { outer() } else { None });
        let Some(pass) = pass.filter(|_| b.passes()) else { return Ok(()) };
        if let (Pass::Computed { span, .. }, Some(_)) = (&*pass, &conf.pass)
            && conf.allow.is_none()
            && b.location.access.is_empty()
        {
            let text = "\"tunnel_pass\" lets every client connect to whatever it names: there is no \
                        access control, nor \"tunnel_allow_upstream\"";
            b.cx.loader.warn(*span, text);
        }
        let shared = settings::Conf { max_temp_file_size: Some(0), ..conf.shared.clone() };
        let handler = Opening {
            settings: shared.settings("tunnel", b)?,
            hidden: Hidden::default(),
            allow: conf.allow.clone().unwrap_or_default(),
            buffer_bytes: conf.buffer_size.map_or(pool::BUFFER_BYTES, |bytes| bytes as usize),
            resolver: super::resolver::of(b),
            pass,
        };
        b.location.takes_connect = true;
        b.sole_content(handler);
        Ok(())
    }
}

fn pass(node: &Node, cx: &mut Cx<'_, '_>) -> Result<Pass, Error> {
    let computed = |text: &[u8], span: Span, cx: &mut Cx<'_, '_>| {
        // `CONNECT unix:80` asks for a host.
        let unix = text.starts_with(b"unix:");
        let address = Template::parse(text, span, &mut cx.registry)?;
        Ok(Pass::Computed { address, unix, span })
    };
    let Some(arg) = node.args.first() else {
        return computed(b"$host:$request_port", node.span, cx);
    };
    if memchr::memchr(b'$', &arg.value).is_some() {
        return computed(&arg.value, arg.span, cx);
    }
    let (text, fail) = (arg.lossy(), |why| bad_address(arg, why));
    let (target, _) = Target::parse(&text, 0, false).map_err(fail)?;
    Ok(Pass::Fixed(GroupRef::Configured(cx.upstreams.used(&target, arg.span)?)))
}

fn bad_address(arg: &Arg, why: &str) -> Error {
    Error::emerg(arg.span, format!("{why} in upstream \"{}\"", arg.lossy()))
}

fn set_allow(c: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    value::set_once(&mut c.allow, node, |node| {
        let template = |arg: &Arg| Template::parse(&arg.value, arg.span, &mut cx.registry);
        Ok(Arc::new(node.args.iter().map(template).collect::<Result<_, _>>()?))
    })
}

/// The handler of a location.
struct Opening {
    pass: Arc<Pass>,
    settings: Settings,
    hidden: Hidden,
    allow: Arc<Vec<Template>>,
    buffer_bytes: usize,
    resolver: (Arc<Resolver>, u64),
}

impl Handler for Opening {
    fn handle<'a>(&'a self, r: &'a mut Request, client: &'a mut dyn Client) -> Flow<'a> {
        if r.method != Method::Connect || r.subrequest {
            return Flow::Deny(405);
        }
        Flow::later(|| upstream::run(self, r, client))
    }
}

impl Opening {
    async fn locate(&self, r: &Request, address: &Template, unix: bool) -> Result<GroupRef, u16> {
        let value = address.value(r);
        let text = String::from_utf8_lossy(&value);
        let why = match Target::parse(&text, 0, false) {
            Ok((Target { addr: Some(Addr::Unix(_)), .. }, _)) if !unix => "invalid host",
            Ok((target, _)) => return upstream::locate(r, &target, &self.resolver).await,
            Err(why) => why,
        };
        r.log_error(Severity::Error, format_args!("{why} in upstream \"{}\"", Shown(&value)));
        Err(500)
    }
}

impl Protocol for Opening {
    /// Where it goes, if that takes variables.
    type Job = Option<GroupRef>;
    type Codec = Opened;
    const TUNNELS: bool = true;

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn hidden(&self) -> &Hidden {
        &self.hidden
    }

    async fn prepare(&self, r: &mut Request) -> Result<Self::Job, u16> {
        match &*self.pass {
            Pass::Fixed(_) => Ok(None),
            Pass::Computed { address, unix, .. } => self.locate(r, address, *unix).await.map(Some),
        }
    }

    fn tag(&self) -> u64 {
        0
    }

    fn group<'a>(&'a self, job: &'a Self::Job) -> &'a GroupRef {
        match (&*self.pass, job) {
            (_, Some(group)) | (Pass::Fixed(group), None) => group,
            (Pass::Computed { .. }, None) => unreachable!("worked out in prepare()"),
        }
    }

    fn allows(&self, r: &Request) -> bool {
        self.allow.iter().all(|condition| {
            let value = condition.value(r);
            !value.is_empty() && *value != *b"0"
        })
    }

    fn tunnel_buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    fn scheme(&self, _: &Self::Job) -> &'static str {
        "tunnel://"
    }

    fn streams_unknown_length(&self) -> bool {
        false
    }

    fn write_head(
        &self,
        _: &Request,
        _: &Self::Job,
        _: &Outgoing,
        _: &mut Vec<u8>,
    ) -> Result<(), u16> {
        Ok(())
    }

    fn codec(&self, _: &Request, _: &Self::Job, head: ResponseHead) -> Opened {
        Opened(ResponseHead { status: 200, version: Version::Http11, ..head })
    }
}

/// The head of an answer that nobody sent: 200, and nothing else.
struct Opened(ResponseHead);

impl Codec for Opened {
    fn explain(&self, bad: BadResponse, _: &[u8]) -> String {
        bad.to_string()
    }

    fn frames(&self, _: &Outgoing) -> bool {
        false
    }

    fn read_head(&mut self, _: &mut Vec<u8>, _: usize) -> Result<Option<usize>, BadResponse> {
        Ok(Some(0))
    }

    fn head(&self) -> &ResponseHead {
        &self.0
    }

    fn framing(&mut self, _: &[u8]) -> Result<ResponseFraming, BadResponse> {
        Ok(ResponseFraming { upgrade: true, ..ResponseFraming::default() })
    }

    fn reset(&mut self) {}

    fn take_head(&mut self) -> ResponseHead {
        std::mem::take(&mut self.0)
    }

    fn decode(&mut self, _: &mut Vec<u8>, from: usize) -> Decoded {
        Decoded { data_end: from, done: true, ..Decoded::default() }
    }

    fn ends_with_connection(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn an_address_needs_a_port_and_nothing_more() {
        for (conf, want) in [
            ("tunnel_pass 127.0.0.1;", "no port in upstream \"127.0.0.1\""),
            ("tunnel_pass 127.0.0.1:80/x;", "invalid host in upstream \"127.0.0.1:80/x\""),
            ("tunnel_pass 127.0.0.1:80 x;", "invalid number of arguments in \"tunnel_pass\""),
            ("tunnel_pass; tunnel_pass;", "\"tunnel_pass\" directive is duplicate"),
            ("tunnel_next_upstream http_500;", "invalid value \"http_500\""),
        ] {
            let error = testing::conf_error(&format!("server {{ listen 127.0.0.1:1; {conf} }}"));
            assert!(error.contains(want), "{conf}: {error}");
        }
    }

    #[test]
    fn an_open_door_is_worth_a_warning() {
        for (conf, warns) in [
            ("tunnel_pass;", true),
            ("tunnel_pass $arg_a;", true),
            ("tunnel_pass 127.0.0.1:80;", false),
            ("tunnel_pass; allow 127.0.0.1; deny all;", false),
            ("tunnel_pass; tunnel_allow_upstream $arg_a;", false),
            ("allow 127.0.0.1; deny all; location /t { tunnel_pass; }", false),
        ] {
            let (_, said) = testing::load_with(&format!("server {{ listen 127.0.0.1:1; {conf} }}"));
            assert_eq!(said.contains("lets every client connect"), warns, "{conf}: {said}");
        }
    }

    #[test]
    fn the_server_knows_whether_there_are_tunnels_and_an_if_has_that_around_it() {
        for (conf, server, takes_connect) in [
            ("location / { }", false, false),
            ("tunnel_pass;", true, true),
            ("location /t { if ($arg_a) { tunnel_pass; } }", true, false),
            ("location /t { tunnel_pass unix:/x; if ($arg_a) { set $a b; } }", true, false),
            ("location /t { tunnel_pass unix:/x; limit_except GET { deny all; } }", true, false),
        ] {
            let r = testing::request(conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(r.server().settings.takes_connect, server, "{conf}");
            assert_eq!(r.location().takes_connect, takes_connect, "{conf}");
            let all = r.plan.locations.iter().filter(|location| location.takes_connect).count();
            assert_eq!(all, usize::from(server) + usize::from(conf.contains("unix")), "{conf}");
        }
    }
}
