//! The directives that `proxy_pass`, `fastcgi_pass`, `scgi_pass`, `uwsgi_pass` and `grpc_pass` share,
//! each under its own prefix (`ngx_http_upstream_conf_t`): one table, one structure.
//!
//! Invariant: nothing here knows which protocol is spoken.

use std::{net::SocketAddr, sync::Arc};

use forebay_conf::{
    Arg, Error, Node,
    value::{self, Bufs},
};
use forebay_rt::{connect::Bind, threads::Pool};
use forebay_session::{addr::parse_ip, ssl::client, var::Template};

use crate::{
    core::{self, TempPath},
    module::{Builder, Cx},
    plan::Kind,
    request::Request,
};

/// When another server is asked (`proxy_next_upstream`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next(pub u32);

impl Next {
    /// Nothing.
    pub const NONE: Next = Next(0);
    /// The connection failed or broke.
    pub const ERROR: Next = Next(1);
    /// Connecting, sending or reading took too long.
    pub const TIMEOUT: Next = Next(1 << 1);
    /// The response is empty or broken.
    pub const INVALID_HEADER: Next = Next(1 << 2);
    /// Statuses.
    pub const HTTP_500: Next = Next(1 << 3);
    /// 502.
    pub const HTTP_502: Next = Next(1 << 4);
    /// 503.
    pub const HTTP_503: Next = Next(1 << 5);
    /// 504.
    pub const HTTP_504: Next = Next(1 << 6);
    /// 403.
    pub const HTTP_403: Next = Next(1 << 7);
    /// 404.
    pub const HTTP_404: Next = Next(1 << 8);
    /// 429.
    pub const HTTP_429: Next = Next(1 << 9);
    /// `tunnel_allow_upstream` says no.
    pub const DENIED: Next = Next(1 << 11);
    /// `updating`, for caches only.
    pub const UPDATING: Next = Next(1 << 10);
    /// Requests that may not be repeated are, nevertheless.
    pub const NON_IDEMPOTENT: Next = Next(1 << 14);
    /// `off`.
    pub const OFF: Next = Next(1 << 15);

    /// Whether all of these are in it.
    pub fn has(self, other: Next) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    pub fn with(self, other: Next) -> Next {
        Next(self.0 | other.0)
    }

    /// The condition that a status is.
    pub fn of_status(status: u16) -> Option<Next> {
        Some(match status {
            500 => Next::HTTP_500,
            502 => Next::HTTP_502,
            503 => Next::HTTP_503,
            504 => Next::HTTP_504,
            403 => Next::HTTP_403,
            404 => Next::HTTP_404,
            429 => Next::HTTP_429,
            _ => return None,
        })
    }

    /// The status that a request ends with when this was its last failure.
    pub fn status(self) -> u16 {
        match self {
            Next::TIMEOUT | Next::HTTP_504 => 504,
            Next::HTTP_500 => 500,
            Next::HTTP_503 => 503,
            Next::HTTP_403 | Next::DENIED => 403,
            Next::HTTP_404 => 404,
            Next::HTTP_429 => 429,
            _ => 502,
        }
    }
}

const NEXT: &[(&str, u32)] = &[
    ("error", Next::ERROR.0),
    ("timeout", Next::TIMEOUT.0),
    ("invalid_header", Next::INVALID_HEADER.0),
    ("non_idempotent", Next::NON_IDEMPOTENT.0),
    ("http_500", Next::HTTP_500.0),
    ("http_502", Next::HTTP_502.0),
    ("http_503", Next::HTTP_503.0),
    ("http_504", Next::HTTP_504.0),
    ("http_403", Next::HTTP_403.0),
    ("http_404", Next::HTTP_404.0),
    ("http_429", Next::HTTP_429.0),
    ("off", Next::OFF.0),
];

/// What `proxy_ignore_headers` names: the field is passed on as any other, and does nothing here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored(pub u32);

impl Ignored {
    /// `X-Accel-Redirect`.
    pub const REDIRECT: u32 = 1;
    /// `X-Accel-Expires`.
    pub const ACCEL_EXPIRES: u32 = 1 << 1;
    /// `X-Accel-Limit-Rate`.
    pub const LIMIT_RATE: u32 = 1 << 2;
    /// `X-Accel-Buffering`.
    pub const BUFFERING: u32 = 1 << 3;
    /// `X-Accel-Charset`.
    pub const CHARSET: u32 = 1 << 4;

    /// Whether the field does nothing.
    pub fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

const IGNORE: &[(&str, u32)] = &[
    ("X-Accel-Redirect", Ignored::REDIRECT),
    ("X-Accel-Expires", Ignored::ACCEL_EXPIRES),
    ("X-Accel-Limit-Rate", Ignored::LIMIT_RATE),
    ("X-Accel-Buffering", Ignored::BUFFERING),
    ("X-Accel-Charset", Ignored::CHARSET),
    // These speak to caches.
    ("Expires", 1 << 5),
    ("Cache-Control", 1 << 6),
    ("Set-Cookie", 1 << 7),
    ("Vary", 1 << 8),
];

/// `proxy_bind`.
#[derive(Clone, Debug, PartialEq)]
pub enum Local {
    /// `off`, or nothing said.
    Off,
    /// This address.
    Fixed(Bind),
    /// What variables say; nonsense is logged, and any address taken.
    Computed {
        /// The address.
        address: Template,
        /// `transparent`.
        transparent: bool,
    },
}

/// What one level of the configuration says.
#[derive(Clone, Default)]
pub struct Conf {
    pub(crate) bind: Option<Arc<Local>>,
    pub(crate) socket_keepalive: Option<bool>,
    pub(crate) socket_rcvbuf: Option<u64>,
    pub(crate) socket_sndbuf: Option<u64>,
    pub(crate) send_lowat: Option<u64>,
    pub(crate) connect_timeout_ms: Option<u64>,
    pub(crate) send_timeout_ms: Option<u64>,
    pub(crate) read_timeout_ms: Option<u64>,
    pub(crate) buffering: Option<bool>,
    pub(crate) request_buffering: Option<bool>,
    pub(crate) ignore_client_abort: Option<bool>,
    pub(crate) intercept_errors: Option<bool>,
    pub(crate) pass_request_headers: Option<bool>,
    pub(crate) pass_request_body: Option<bool>,
    pub(crate) pass_trailers: Option<bool>,
    pub(crate) buffer_size: Option<u64>,
    pub(crate) buffers: Option<Bufs>,
    pub(crate) busy_buffers_size: Option<u64>,
    pub(crate) temp_path: Option<Arc<TempPath>>,
    pub(crate) max_temp_file_size: Option<u64>,
    pub(crate) temp_file_write_size: Option<u64>,
    pub(crate) next: Option<u32>,
    pub(crate) next_tries: Option<u32>,
    pub(crate) next_timeout_ms: Option<u64>,
    pub(crate) pass_headers: Option<Arc<Vec<Box<[u8]>>>>,
    pub(crate) hide_headers: Option<Arc<Vec<Box<[u8]>>>>,
    pub(crate) ignore_headers: Option<u32>,
    pub(crate) limit_rate: Option<u64>,
    pub(crate) force_ranges: Option<bool>,
    pub(crate) tls: client::Settings,
}

/// A module's settings have these among them.
pub trait Shared {
    /// Those.
    fn shared(&mut self) -> &mut Conf;
}

impl Conf {
    /// See [`crate::module::Conf::inherit`].
    pub fn inherit(&mut self, parent: &Conf) {
        crate::inherit!(
            self, parent;
            bind, socket_keepalive, socket_rcvbuf, socket_sndbuf, send_lowat, connect_timeout_ms,
            send_timeout_ms, read_timeout_ms, buffering, request_buffering, ignore_client_abort,
            intercept_errors, pass_request_headers, pass_request_body, pass_trailers, buffer_size,
            buffers, busy_buffers_size, temp_path, max_temp_file_size, temp_file_write_size, next,
            next_tries, next_timeout_ms, pass_headers, hide_headers, ignore_headers, limit_rate,
            force_ranges,
        );
        self.tls.inherit(&parent.tls);
    }

    /// `bind address [transparent] | off`.
    pub fn set_bind(&mut self, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
        value::set_once(&mut self.bind, node, |node| {
            let arg = node.arg(0)?;
            if node.args.len() == 1 && arg.is("off") {
                return Ok(Arc::new(Local::Off));
            }
            let address = Template::parse(&arg.value, arg.span, &mut cx.registry)?;
            let word = node.args.get(1);
            let transparent = word.is_some_and(|word| word.is("transparent"));
            let bind = match address.as_text() {
                Some(text) => {
                    let fail =
                        || Error::emerg(arg.span, format!("invalid address \"{}\"", arg.lossy()));
                    Some(parse_bind(text, transparent).ok_or_else(fail)?)
                }
                None => None,
            };
            if let Some(word) = word.filter(|_| !transparent) {
                return Err(value::invalid_parameter(word));
            }
            cx.transparent |= transparent;
            let local = match bind {
                Some(bind) => Local::Fixed(bind),
                None => Local::Computed { address, transparent },
            };
            Ok(Arc::new(local))
        })
    }

    /// `temp_path path [level1 [level2 [level3]]]`.
    pub fn set_temp_path(&mut self, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
        value::set_once(&mut self.temp_path, node, |node| {
            let levels = core::levels(node)?;
            let path = cx.loader.full_path(node.arg(0)?.path());
            cx.add_temp_path(&path, levels, Some(node.span))?;
            Ok(Arc::new(TempPath { path, levels }))
        })
    }

    /// `next_upstream conditions`.
    pub fn set_next(&mut self, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
        value::set_bits(&mut self.next, node, NEXT, cx.loader.diags)
    }

    /// `ignore_headers names`.
    pub fn set_ignore_headers(&mut self, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
        value::set_bits(&mut self.ignore_headers, node, IGNORE, cx.loader.diags)
    }

    /// `pass_header field`.
    pub fn add_pass_header(&mut self, node: &Node) -> Result<(), Error> {
        add_name(&mut self.pass_headers, node.arg(0)?);
        Ok(())
    }

    /// `hide_header field`.
    pub fn add_hide_header(&mut self, node: &Node) -> Result<(), Error> {
        add_name(&mut self.hide_headers, node.arg(0)?);
        Ok(())
    }

    /// Checks the sizes of buffers (the end of `ngx_http_proxy_merge_loc_conf`) in a level where they are
    /// not as in `outer`, which is around it.
    pub fn check(
        &self,
        prefix: &str,
        outer: Option<&Conf>,
        b: &Builder<'_, '_, '_>,
    ) -> Result<(), Error> {
        let sizes = |conf: &Conf| {
            let temp = (conf.max_temp_file_size, conf.temp_file_write_size);
            (conf.buffer_size, conf.buffers, conf.busy_buffers_size, temp)
        };
        let defaults = Conf::default();
        if b.location.kind == Kind::Main || sizes(outer.unwrap_or(&defaults)) == sizes(self) {
            return Ok(());
        }
        let span = b.level::<core::Conf>(b.location.id).map(|conf| conf.own.span);
        self.check_sizes(prefix).map_err(|text| Error::emerg(span.unwrap_or_default(), text))
    }

    fn check_sizes(&self, prefix: &str) -> Result<(), String> {
        let buffers = self.buffers();
        if buffers.count < 2 {
            return Err(format!("there must be at least 2 \"{prefix}_buffers\""));
        }
        let size = self.buffer_size.unwrap_or(PAGE_BYTES).max(buffers.size);
        let at_least = format!(
            "must be equal to or greater than the maximum of the value of \
             \"{prefix}_buffer_size\" and one of the \"{prefix}_buffers\""
        );
        if self.busy_buffers_size.is_some_and(|busy| busy < size) {
            return Err(format!("\"{prefix}_busy_buffers_size\" {at_least}"));
        }
        let busy = self.busy_buffers_size.unwrap_or(2 * size);
        if busy > (buffers.count - 1).saturating_mul(buffers.size) {
            return Err(format!(
                "\"{prefix}_busy_buffers_size\" must be less than the size of all \
                 \"{prefix}_buffers\" minus one buffer"
            ));
        }
        if self.temp_file_write_size.is_some_and(|write| write < size) {
            return Err(format!("\"{prefix}_temp_file_write_size\" {at_least}"));
        }
        if self.max_temp_file_size.is_some_and(|max| max != 0 && max < size) {
            return Err(format!(
                "\"{prefix}_max_temp_file_size\" must be equal to zero to disable temporary files \
                 usage or {at_least}"
            ));
        }
        Ok(())
    }

    fn buffers(&self) -> Bufs {
        self.buffers.unwrap_or(Bufs { count: 8, size: PAGE_BYTES })
    }

    /// Fills in the defaults. `prefix`: `proxy`, `fastcgi` …
    pub fn settings(&self, prefix: &str, b: &mut Builder<'_, '_, '_>) -> Result<Settings, Error> {
        let buffers = self.buffers();
        let max_temp_file_size = self.max_temp_file_size.unwrap_or(1 << 30);
        let temp_path = self.temp_path.clone().unwrap_or_else(|| {
            let path = b.cx.default_temp_path(prefix);
            Arc::new(TempPath { path, levels: [1, 2, 0] })
        });
        if max_temp_file_size > 0 {
            b.cx.add_temp_path(&temp_path.path, temp_path.levels, None)?;
        }
        let next = match self.next {
            None => Next::ERROR.with(Next::TIMEOUT),
            Some(bits) if Next(bits).has(Next::OFF) => Next::NONE,
            Some(bits) => Next(bits),
        };
        Ok(Settings {
            bind: self.bind.clone().unwrap_or_else(|| Arc::new(Local::Off)),
            socket_keepalive: self.socket_keepalive.unwrap_or(false),
            socket_rcvbuf: self.socket_rcvbuf.map(|bytes| bytes as usize),
            socket_sndbuf: self.socket_sndbuf.map(|bytes| bytes as usize),
            connect_timeout_ms: self.connect_timeout_ms.unwrap_or(60_000),
            send_timeout_ms: self.send_timeout_ms.unwrap_or(60_000),
            read_timeout_ms: self.read_timeout_ms.unwrap_or(60_000),
            buffering: self.buffering.unwrap_or(true),
            request_buffering: self.request_buffering.unwrap_or(true),
            ignore_client_abort: self.ignore_client_abort.unwrap_or(false),
            intercept_errors: self.intercept_errors.unwrap_or(false),
            pass_request_headers: self.pass_request_headers.unwrap_or(true),
            pass_request_body: self.pass_request_body.unwrap_or(true),
            pass_trailers: self.pass_trailers.unwrap_or(false),
            buffer_size: self.buffer_size.unwrap_or(PAGE_BYTES) as usize,
            buffers_bytes: buffers.count.saturating_mul(buffers.size) as usize,
            busy_bytes: self.busy_buffers_size.map(|bytes| bytes as usize),
            temp_write_bytes: self.temp_file_write_size.map(|bytes| bytes as usize),
            temp_path,
            write_pool: b.location.core.write_pool(),
            read_pool: b.location.core.read_pool(),
            max_temp_file_size,
            next,
            next_tries: self.next_tries.unwrap_or(0),
            next_timeout_ms: self.next_timeout_ms.unwrap_or(0),
            pass_headers: self.pass_headers.clone().unwrap_or_default(),
            hide_headers: self.hide_headers.clone().unwrap_or_default(),
            ignore_headers: Ignored(self.ignore_headers.unwrap_or(0)),
            limit_rate: self.limit_rate.unwrap_or(0),
            force_ranges: self.force_ranges.unwrap_or(false),
        })
    }
}

/// nginx's buffers are as large as a page of memory.
const PAGE_BYTES: u64 = 4096;

fn add_name(list: &mut Option<Arc<Vec<Box<[u8]>>>>, arg: &Arg) {
    let list = list.get_or_insert_default();
    // Only this level holds it while its directives are being read.
    Arc::make_mut(list).push(arg.value.to_ascii_lowercase().into());
}

/// An address to connect from, with or without a port.
fn parse_bind(text: &[u8], transparent: bool) -> Option<Bind> {
    let has_port = |addr: &SocketAddr| addr.port() > 0;
    let addr = match parse_ip(text) {
        Some(ip) => (ip, 0).into(),
        // A port that is written is not 0 (`ngx_parse_addr_port`).
        None => std::str::from_utf8(text).ok()?.parse().ok().filter(has_port)?,
    };
    Some(Bind { addr, transparent })
}

impl Local {
    /// The address for a request; what is no address is told.
    pub fn of(&self, r: &Request) -> Option<Bind> {
        match self {
            Local::Off => None,
            Local::Fixed(bind) => Some(*bind),
            Local::Computed { address, transparent } => {
                let text = address.value(r);
                if text.is_empty() {
                    return None;
                }
                let bind = parse_bind(&text, *transparent);
                if bind.is_none() {
                    let text = forebay_session::log::Shown(&text);
                    r.log_error(
                        forebay_session::log::Severity::Error,
                        format_args!("invalid local address \"{text}\""),
                    );
                }
                bind
            }
        }
    }
}

/// What holds at one level, after inheritance.
pub struct Settings {
    /// `bind`.
    pub bind: Arc<Local>,
    /// `socket_keepalive`.
    pub socket_keepalive: bool,
    /// `socket_rcvbuf`, bytes.
    pub socket_rcvbuf: Option<usize>,
    /// `socket_sndbuf`, bytes.
    pub socket_sndbuf: Option<usize>,
    /// `connect_timeout`, milliseconds.
    pub connect_timeout_ms: u64,
    /// `send_timeout`, milliseconds between two writes.
    pub send_timeout_ms: u64,
    /// `read_timeout`, milliseconds between two reads.
    pub read_timeout_ms: u64,
    /// `buffering`.
    pub buffering: bool,
    /// `request_buffering`.
    pub request_buffering: bool,
    /// `ignore_client_abort`.
    pub ignore_client_abort: bool,
    /// `intercept_errors`.
    pub intercept_errors: bool,
    /// `pass_request_headers`.
    pub pass_request_headers: bool,
    /// `pass_request_body`.
    pub pass_request_body: bool,
    /// `pass_trailers`.
    pub pass_trailers: bool,
    /// `buffer_size`, bytes: what a response head must fit in.
    pub buffer_size: usize,
    /// `buffers`, bytes of all of them.
    pub buffers_bytes: usize,
    /// `busy_buffers_size`, bytes that may be on their way to the client; `None`: all there are.
    pub busy_bytes: Option<usize>,
    /// `temp_file_write_size`, bytes that are written at once; `None`: as many as are at hand.
    pub temp_write_bytes: Option<usize>,
    /// `temp_path`.
    pub temp_path: Arc<TempPath>,
    /// Who writes temporary files, and who reads them, unless the event loop does.
    pub write_pool: Option<Arc<Pool>>,
    /// See [`Settings::write_pool`].
    pub read_pool: Option<Arc<Pool>>,
    /// `max_temp_file_size`, bytes; 0: no file.
    pub max_temp_file_size: u64,
    /// `next_upstream`.
    pub next: Next,
    /// `next_upstream_tries`; 0: as many as there are servers.
    pub next_tries: u32,
    /// `next_upstream_timeout`, milliseconds; 0: none.
    pub next_timeout_ms: u64,
    /// `pass_header`s, lower case.
    pub pass_headers: Arc<Vec<Box<[u8]>>>,
    /// `hide_header`s, lower case.
    pub hide_headers: Arc<Vec<Box<[u8]>>>,
    /// `ignore_headers`.
    pub ignore_headers: Ignored,
    /// `limit_rate`, bytes a second that are read; 0: any number.
    pub limit_rate: u64,
    /// `force_ranges`.
    pub force_ranges: bool,
}

/// The error for directives that belong to the cache.
pub fn not_yet(node: &Node) -> Error {
    let text = format!("\"{}\" is not supported yet", node.name.lossy());
    Error::emerg(node.span, text).with_hint("the cache comes with a later version")
}

/// The table of the directives about connections, for a prefix; further rows may follow. The module's
/// settings are [`Shared`].
#[macro_export]
macro_rules! upstream_connection_directives {
    ($p:literal; $($more:expr),* $(,)?) => {
        &[
            $crate::module::set(
                concat!($p, "_bind"),
                &["address [transparent] | off"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE_OR_TWO,
                "From which address to connect.",
                |c, n, cx| c.shared().set_bind(n, cx),
            ),
            $crate::module::set(
                concat!($p, "_socket_keepalive"),
                &["on | off"],
                "off",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether the system probes idle connections to upstreams (SO_KEEPALIVE).",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().socket_keepalive, n),
            ),
            $crate::module::set(
                concat!($p, "_socket_rcvbuf"),
                &["size"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "The receive buffer of connections to upstreams (SO_RCVBUF).",
                |c, n, _| forebay_conf::value::set_size(&mut c.shared().socket_rcvbuf, n),
            ),
            $crate::module::set(
                concat!($p, "_socket_sndbuf"),
                &["size"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "The send buffer of connections to upstreams (SO_SNDBUF).",
                |c, n, _| forebay_conf::value::set_size(&mut c.shared().socket_sndbuf, n),
            ),
            $crate::module::set(
                concat!($p, "_connect_timeout"),
                &["time"],
                "60s",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "How long connecting may take.",
                |c, n, _| forebay_conf::value::set_msec(&mut c.shared().connect_timeout_ms, n),
            ),
            $crate::module::set(
                concat!($p, "_send_timeout"),
                &["time"],
                "60s",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "How long to wait between two writes of a request.",
                |c, n, _| forebay_conf::value::set_msec(&mut c.shared().send_timeout_ms, n),
            ),
            $crate::module::set(
                concat!($p, "_read_timeout"),
                &["time"],
                "60s",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "How long to wait between two reads of a response.",
                |c, n, _| forebay_conf::value::set_msec(&mut c.shared().read_timeout_ms, n),
            ),
            $crate::module::set(
                concat!($p, "_next_upstream_tries"),
                &["number"],
                "0",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "How many servers are tried; 0: all.",
                |c, n, _| forebay_conf::value::set_number(&mut c.shared().next_tries, n),
            ),
            $crate::module::set(
                concat!($p, "_next_upstream_timeout"),
                &["time"],
                "0",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "For how long further servers are tried; 0: without limit.",
                |c, n, _| forebay_conf::value::set_msec(&mut c.shared().next_timeout_ms, n),
            ),
            $crate::module::set(
                concat!($p, "_send_lowat"),
                &["size"],
                "0",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "Means something on FreeBSD only; does nothing here.",
                |c, n, cx| {
                    forebay_conf::value::set_size(&mut c.shared().send_lowat, n)?;
                    let name = n.name.lossy();
                    cx.loader.warn(n.span, format!("\"{name}\" is not supported, ignored"));
                    Ok(())
                },
            ),
            $($more,)*
        ]
    };
}

/// The table of all directives that the protocols of application servers share, for a prefix; further
/// rows may follow.
#[macro_export]
macro_rules! upstream_directives {
    ($p:literal; $($more:expr),* $(,)?) => {
        $crate::upstream_connection_directives![
            $p;
            $crate::module::set(
                concat!($p, "_next_upstream"),
                &[
                    "error | timeout | invalid_header | http_500 | http_502 | http_503 | http_504 \
                     | http_403 | http_404 | http_429 | non_idempotent | off ...",
                ],
                "error timeout",
                $crate::module::ANY,
                forebay_conf::Arity::SOME,
                "When the request is passed to the next server.",
                |c, n, cx| c.shared().set_next(n, cx),
            ),
            $crate::module::set(
                concat!($p, "_buffering"),
                &["on | off"],
                "on",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether a response is read as fast as it comes, or as fast as the client takes it.",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().buffering, n),
            ),
            $crate::module::set(
                concat!($p, "_request_buffering"),
                &["on | off"],
                "on",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether a request body is read whole before it is passed on.",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().request_buffering, n),
            ),
            $crate::module::set(
                concat!($p, "_ignore_client_abort"),
                &["on | off"],
                "off",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether an upstream goes on when its client has gone.",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().ignore_client_abort, n),
            ),
            $crate::module::set(
                concat!($p, "_intercept_errors"),
                &["on | off"],
                "off",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether error_page holds for statuses that an upstream sends.",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().intercept_errors, n),
            ),
            $crate::module::set(
                concat!($p, "_pass_request_headers"),
                &["on | off"],
                "on",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether the header fields of requests are passed on.",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().pass_request_headers, n),
            ),
            $crate::module::set(
                concat!($p, "_pass_request_body"),
                &["on | off"],
                "on",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether the bodies of requests are passed on.",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().pass_request_body, n),
            ),
            $crate::module::set(
                concat!($p, "_buffer_size"),
                &["size"],
                "4k|8k",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "What the head of a response must fit in.",
                |c, n, _| forebay_conf::value::set_size(&mut c.shared().buffer_size, n),
            ),
            $crate::module::set(
                concat!($p, "_buffers"),
                &["number size"],
                "8 4k|8k",
                $crate::module::ANY,
                forebay_conf::Arity::TWO,
                "How much of a response is held in memory for a client that is slow.",
                |c, n, _| forebay_conf::value::set_bufs(&mut c.shared().buffers, n),
            ),
            $crate::module::set(
                concat!($p, "_busy_buffers_size"),
                &["size"],
                "8k|16k",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "How much of it may be on its way to the client; unless it is set, all of it.",
                |c, n, _| forebay_conf::value::set_size(&mut c.shared().busy_buffers_size, n),
            ),
            $crate::module::set(
                concat!($p, "_temp_path"),
                &["path [level1 [level2 [level3]]]"],
                concat!($p, "_temp"),
                $crate::module::ANY,
                forebay_conf::Arity::between(1, 4),
                "Where responses are kept that do not fit the buffers.",
                |c, n, cx| c.shared().set_temp_path(n, cx),
            ),
            $crate::module::set(
                concat!($p, "_max_temp_file_size"),
                &["size"],
                "1024m",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "How much of a response may be in a temporary file; 0: nothing.",
                |c, n, _| forebay_conf::value::set_size(&mut c.shared().max_temp_file_size, n),
            ),
            $crate::module::set(
                concat!($p, "_temp_file_write_size"),
                &["size"],
                "8k|16k",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "How much is written to a temporary file at once; unless it is set, all that is there.",
                |c, n, _| forebay_conf::value::set_size(&mut c.shared().temp_file_write_size, n),
            ),
            $crate::module::set(
                concat!($p, "_pass_header"),
                &["field"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "A field of responses that is passed on, though it is not by default.",
                |c, n, _| c.shared().add_pass_header(n),
            ),
            $crate::module::set(
                concat!($p, "_hide_header"),
                &["field"],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "A field of responses that is not passed on.",
                |c, n, _| c.shared().add_hide_header(n),
            ),
            $crate::module::set(
                concat!($p, "_ignore_headers"),
                &["field ..."],
                "",
                $crate::module::ANY,
                forebay_conf::Arity::SOME,
                "Fields of responses that do nothing here.",
                |c, n, cx| c.shared().set_ignore_headers(n, cx),
            ),
            $crate::module::set(
                concat!($p, "_limit_rate"),
                &["rate"],
                "0",
                $crate::module::ANY,
                forebay_conf::Arity::ONE,
                "How fast a response is read, in bytes a second, where it is buffered; 0: without limit.",
                |c, n, _| forebay_conf::value::set_size(&mut c.shared().limit_rate, n),
            ),
            $crate::module::set(
                concat!($p, "_force_ranges"),
                &["on | off"],
                "off",
                $crate::module::ANY,
                forebay_conf::Arity::FLAG,
                "Whether byte ranges of a response may be asked for, whatever the upstream says.",
                |c, n, _| forebay_conf::value::set_flag(&mut c.shared().force_ranges, n),
            ),
            $($more,)*
        ]
    };
}
