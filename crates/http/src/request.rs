//! A request: what the client sent, where it stands in the configuration, and the response so far.
//!
//! Requests are recycled by their worker thread: a warm one takes no memory from the heap.
//!
//! Invariant: no socket here; a handler that needs the client asks [`crate::client::Client`].

use std::{
    any::Any,
    cell::{Cell, OnceCell, RefCell},
    fmt,
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use bytes::Bytes;
use forebay_rt::{clock, memory, pool};
use forebay_session::{
    log::{Severity, Shown},
    regex::Regex,
    var::{Registry, Scope, Store, VarId},
};
use forebay_wire::{
    Span,
    h1::{BodyLength, FieldId, Framing, Head, Method, Version},
};

use crate::{
    body_in::RequestBody,
    limits::Verdict,
    plan::{LocId, Location, PlanHandle, Server, ServerId},
    proxied::Proxied,
    response::Response,
    socket,
    target::KnownHost,
    tls::Tls,
    upstream::{self, ntlm},
    worker::Worker,
};

/// The other end of a connection, or this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// TCP.
    Inet(SocketAddr),
    /// A unix socket: `$remote_addr` is `unix:`, `$remote_port` empty.
    Unix,
}

impl Peer {
    /// The address, if it has one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Peer::Inet(addr) => Some(addr.ip()),
            Peer::Unix => None,
        }
    }

    /// The port; 0 for unix sockets.
    pub fn port(&self) -> u16 {
        match self {
            Peer::Inet(addr) => addr.port(),
            Peer::Unix => 0,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Inet(addr) => addr.ip().fmt(f),
            Peer::Unix => f.write_str("unix:"),
        }
    }
}

/// What all requests of a connection share.
pub struct Connection {
    /// The serial number (`$connection`).
    pub number: u64,
    /// The socket (`$tcpinfo_rtt`).
    pub socket: socket::Number,
    /// The client.
    pub remote: Peer,
    /// Our end.
    pub local: Peer,
    /// The number of requests so far, this one included (`$connection_requests`).
    pub requests: Cell<u32>,
    /// When it was accepted, in [`forebay_rt::clock`] milliseconds.
    pub started_ms: u64,
    /// What its PROXY header told.
    pub proxied: OnceCell<Box<Proxied>>,
    /// What came of the handshake, on a TLS port.
    pub tls: OnceCell<Box<Tls>>,
    /// The servers that it is bound to (`ntlm`).
    pub bound: OnceCell<Box<ntlm::Bound>>,
    /// The thread that serves it.
    pub worker: Rc<Worker>,
}

impl Connection {
    /// The same connection, with something said of TLS that is not settled yet: for questions, asked
    /// now.
    pub(crate) fn with_tls(&self, tls: Tls) -> Connection {
        Connection {
            number: self.number,
            socket: self.socket.snapshot(),
            remote: self.remote.clone(),
            local: self.local.clone(),
            requests: self.requests.clone(),
            started_ms: self.started_ms,
            proxied: self.proxied.clone(),
            tls: OnceCell::from(Box::new(tls)),
            bound: OnceCell::new(),
            worker: self.worker.clone(),
        }
    }
}

/// What the client sent: immutable once parsed, shared with subrequests.
#[derive(Default)]
pub struct Input {
    /// The bytes of the head that all spans point into.
    pub buf: Vec<u8>,
    /// The parsed head.
    pub head: Head,
    /// What its framing fields say.
    pub framing: Framing,
    /// The host asked for: lower case, without port; empty if none.
    pub host: Vec<u8>,
    /// The port asked for with the host, if one was (`$request_port`).
    pub port: Option<u16>,
    /// Whether it was there before the response to the request before it was sent (`$pipe`).
    pub pipelined: bool,
    /// What the host of an earlier request came to.
    pub(crate) known: KnownHost,
    /// Its number among the requests of the connection (`$connection_requests`).
    pub number: u32,
    /// Wall-clock time of the first byte, in milliseconds since 1970.
    pub start_wall_ms: u64,
    /// The same on the monotonic clock.
    pub start_ms: u64,
}

impl Input {
    /// Empties it for a head that begins with these bytes.
    pub fn begin(&mut self, buf: Vec<u8>, pipelined: bool) {
        self.buf = buf;
        self.pipelined = pipelined;
        self.framing = Framing::default();
        self.host.clear();
        self.port = None;
        self.start_ms = clock::now_ms();
        self.start_wall_ms = clock::wall_ms();
    }

    /// The value of the first field with that id.
    pub fn field(&self, id: FieldId) -> Option<&[u8]> {
        let field = self.head.headers.iter().find(|field| field.id == id)?;
        Some(field.value.of(&self.buf))
    }

    /// All fields, in order, as they came.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.head.headers.iter().map(|f| (f.name.of(&self.buf), f.value.of(&self.buf)))
    }

    /// The text of a span of the head.
    pub fn text(&self, span: Span) -> &[u8] {
        span.of(&self.buf)
    }
}

/// A request, or a subrequest.
pub struct Request {
    /// The configuration that it runs under, to its end.
    pub plan: PlanHandle,
    /// The connection that it came on.
    pub connection: Rc<Connection>,
    /// What was sent.
    pub input: Rc<Input>,
    /// The server chosen.
    pub server: ServerId,
    /// The one before the host was known: that of the handshake, or the listener's default.
    pub first_server: ServerId,
    /// The location (or `if`, `limit_except` in it) whose settings hold now.
    pub location: LocId,
    /// The method; an `error_page` turns it into GET.
    pub method: Method,
    /// The path: decoded, normalised, without query; rewritten ones included.
    pub uri: Vec<u8>,
    /// The query, without `?`.
    pub args: Vec<u8>,
    /// Whether there is a query, be it empty: then `$args` is not `-` in the log (nginx's
    /// `r->args.data`).
    pub has_args: bool,
    /// Whether the path came with `%XX` or `+`: captures of it are escaped again where they go into
    /// arguments (nginx's `quoted_uri` and `plus_in_uri`).
    pub uri_was_escaped: bool,
    /// Whether it came with `%XX`: it is escaped again for a server that it is passed to (nginx's
    /// `quoted_uri`).
    pub uri_was_quoted: bool,
    /// Whether the path was rewritten without choosing a location for it again: then an `alias`
    /// cannot say what of it to replace (nginx's `valid_location`, and `uri_changed`).
    pub rewritten_in_place: bool,
    /// Whether path and query are still those that the client sent (nginx's `valid_unparsed_uri`).
    pub is_as_sent: bool,
    /// Whether it was redirected internally, or is a subrequest: `internal` locations open.
    pub internal: bool,
    /// Whether a regex `alias` stands for a directory, to which `try_files` has added the URI.
    pub add_uri_to_alias: bool,
    /// Whether it is a subrequest.
    pub subrequest: bool,
    /// How many internal redirects and location changes are left (nginx: 10).
    pub cycles_left: u8,
    /// How many subrequests may still be nested in each other from here on (nginx: 50).
    pub subrequests_left: u8,
    /// The status of the error that an `error_page` is being shown for; 0: none.
    pub error_status: u16,
    /// Whether it ended with a status that closes the connection without a word.
    pub silent: bool,
    /// Whether an error page is being served.
    pub showing_error_page: bool,
    /// Whether an error within it shows the built-in page: that is up to the location where the first
    /// error came up (nginx's `error_page` of a request; `recursive_error_pages`).
    pub last_error_page: bool,
    /// Whether a client that expects `100 Continue` gets one before a body that nobody reads is thrown
    /// away, once that is settled (nginx's `expect_tested`).
    pub asks_for_body: Option<bool>,
    /// The request body, once somebody read it.
    pub body: RequestBody,
    /// What will be sent. In a box of its own, as a request is moved a few times in its life.
    pub response: Box<Response>,
    /// Kept variables and captures.
    pub store: Store,
    /// `$limit_rate` as set by `set`; `None`: what the location says.
    pub limit_rate: Option<u64>,
    /// Bytes written to the client, head included (`$bytes_sent`).
    pub bytes_sent: u64,
    /// Bytes of the head written (`$body_bytes_sent` is the difference).
    pub head_sent: u64,
    /// Bytes read for this request, head and body (`$request_length`).
    pub bytes_read: u64,
    /// Whether the whole response reached the socket (`$request_completion`).
    pub completed: bool,
    /// Whether the connection may serve another request after this one.
    pub keep_alive: bool,
    /// `gzip_ratio`'s numbers: bytes into and out of the compressor.
    pub compressed: Rc<Cell<(u64, u64)>>,
    /// What it shares with its subrequests.
    pub main: Rc<Main>,
    /// The servers that it was passed to.
    pub upstream: Rc<upstream::State>,
}

/// What a request and its subrequests share, to the end of the request (nginx's `r->main` and
/// `r->pool`).
#[derive(Default)]
pub struct Main {
    /// The client that realip found behind the connection's.
    real: OnceCell<Peer>,
    /// What `limit_req` made of it; it is asked once.
    pub limit_req: Cell<Option<Verdict>>,
    /// What `limit_conn` made of it; it is asked once.
    pub limit_conn: Cell<Option<Verdict>>,
    /// What the connection was last at, for lines of the error log that come while a response is made:
    /// nothing, or ` while …` (nginx's `log->action`).
    pub doing: Cell<&'static str>,
    /// What modules keep for the request, one value of a type.
    contexts: RefCell<Vec<Box<dyn Any>>>,
}

impl Main {
    /// Says who the client really is, unless that was said before.
    pub fn set_remote(&self, peer: Peer) {
        // The first word holds, as in nginx: the module's context is looked for before.
        let _ = self.real.set(peer);
    }

    /// Whether [`Main::set_remote`] was called.
    pub fn has_real_remote(&self) -> bool {
        self.real.get().is_some()
    }

    /// Looks at, and may change, what a module keeps under its type; made when it is first asked for.
    /// Dropped with the request, however that ends.
    pub fn context<T: Default + 'static, R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut contexts = self.contexts.borrow_mut();
        let at = match contexts.iter().position(|context| context.is::<T>()) {
            Some(at) => at,
            None => {
                contexts.push(Box::<T>::default());
                contexts.len() - 1
            }
        };
        f(contexts[at].downcast_mut().expect("found or made with this type"))
    }

    /// Makes it ready for another request; its memory is kept.
    fn clear(&mut self) {
        self.real.take();
        self.limit_req.take();
        self.limit_conn.take();
        self.doing.take();
        self.contexts.get_mut().clear();
    }
}

/// What a request is made of that can be used again by the next one.
#[derive(Default)]
pub struct Parts {
    input: Rc<Input>,
    uri: Vec<u8>,
    args: Vec<u8>,
    response: Box<Response>,
    store: Store,
    compressed: Rc<Cell<(u64, u64)>>,
    main: Rc<Main>,
    upstream: Rc<upstream::State>,
}

impl Parts {
    /// The place of what the client sent; a new one while a subrequest still holds the old.
    pub fn input(&mut self) -> &mut Input {
        if Rc::get_mut(&mut self.input).is_none() {
            self.input = Rc::default();
        }
        Rc::get_mut(&mut self.input).expect("just made sure of")
    }
}

/// What the connection is at in the log phase (ngx_http_free_request).
pub const LOGGING: &str = " while logging request";

/// nginx: ten changes of the URI, and the eleventh is the error.
const MAX_CYCLES: u8 = 11;
/// `NGX_HTTP_MAX_SUBREQUESTS`, counted as nginx counts.
const MAX_SUBREQUESTS: u8 = 51;

impl Request {
    /// A request that begins, to be completed by the protocol that it came by.
    pub fn new(
        plan: PlanHandle,
        connection: Rc<Connection>,
        server: ServerId,
        parts: Parts,
    ) -> Request {
        // The response is empty already: `into_parts` leaves it so.
        let Parts { mut input, mut uri, mut args, response, mut store, compressed, main, upstream } =
            parts;
        // Of several requests under way on a connection, each has its own; a subrequest shares its
        // parent's.
        if let Some(input) = Rc::get_mut(&mut input) {
            input.number = connection.requests.get();
        }
        uri.clear();
        args.clear();
        store.reset();
        compressed.set((0, 0));
        Request {
            location: plan.server(server).location,
            plan,
            connection,
            method: input.head.method,
            input,
            server,
            first_server: server,
            uri,
            args,
            has_args: false,
            uri_was_escaped: false,
            uri_was_quoted: false,
            rewritten_in_place: false,
            is_as_sent: true,
            internal: false,
            add_uri_to_alias: false,
            subrequest: false,
            cycles_left: MAX_CYCLES,
            subrequests_left: MAX_SUBREQUESTS,
            error_status: 0,
            silent: false,
            showing_error_page: false,
            last_error_page: false,
            asks_for_body: None,
            body: RequestBody::Unread,
            response,
            store,
            limit_rate: None,
            bytes_sent: 0,
            head_sent: 0,
            bytes_read: 0,
            completed: false,
            keep_alive: false,
            compressed,
            main,
            upstream,
        }
    }

    /// What [`Request::subrequest`] begins with.
    pub(crate) fn child(&self, uri: &[u8], args: &[u8]) -> Request {
        let (input, main) = (self.input.clone(), self.main.clone());
        let parts = Parts { input, main, ..Parts::default() };
        let mut child =
            Request::new(self.plan.clone(), self.connection.clone(), self.server, parts);
        child.store = self.store.share();
        child.body = match &self.body {
            // Whoever answers without it has thrown it away.
            body if body.is_unread() && self.response.status != 0 => RequestBody::Discarded,
            body => body.clone(),
        };
        child.uri.extend_from_slice(uri);
        child.args.extend_from_slice(args);
        child.method = Method::Get;
        child.subrequest = true;
        child.is_as_sent = false;
        child.internal = true;
        child
    }

    /// A copy to log by, and to read variables of, while this one's body is on its way.
    pub fn twin(&self) -> Request {
        let mut twin = self.child(&self.uri, &self.args);
        twin.location = self.location;
        twin.method = self.method;
        twin.subrequest = self.subrequest;
        twin.internal = self.internal;
        twin.has_args = self.has_args;
        twin.uri_was_escaped = self.uri_was_escaped;
        twin.uri_was_quoted = self.uri_was_quoted;
        twin.subrequests_left = self.subrequests_left;
        twin.error_status = self.error_status;
        twin.store.captures_mut().clone_from(&self.store.captures());
        twin.limit_rate = self.limit_rate;
        twin.upstream = self.upstream.clone();
        *twin.response = self.response.head();
        twin
    }

    /// Whether the connection closes without a word (`ngx_http_finalize_request`): 444 says so; with 408
    /// and 499 nobody waits for an answer. One that has such a status because `return` gives it a text,
    /// or `error_page` a page, is sent.
    pub fn ends_without_answer(&self) -> bool {
        self.silent || (self.response.status == 0 && self.response.content_length.is_none())
    }

    /// Writes a subrequest down that is over, where `log_subrequest` says so.
    ///
    /// DIFFERS(subrequest-bytes): in nginx `$bytes_sent` and `$body_bytes_sent` of a subrequest are what
    /// was sent of the whole response by then; here, what the subrequest gave to it.
    pub fn log_subrequest(&self) {
        let location = self.location();
        if location.core.log_subrequest {
            location.loggers.iter().for_each(|logger| logger.log(self));
        }
    }

    /// Takes it apart for the next one; its buffer goes back to the pool.
    pub fn into_parts(self) -> Parts {
        let Request { mut input, uri, args, mut response, store, compressed, mut main, .. } = self;
        let mut upstream = self.upstream;
        match Rc::get_mut(&mut main) {
            Some(main) => main.clear(),
            // A subrequest still holds it.
            None => main = Rc::default(),
        }
        if let Some(input) = Rc::get_mut(&mut input) {
            pool::recycle(std::mem::take(&mut input.buf));
        }
        // A body may hold a file, which is not to stay open until the next request.
        response.clear();
        match Rc::get_mut(&mut upstream) {
            Some(upstream) => upstream.clear(),
            None => upstream = Rc::default(),
        }
        Parts { input, uri, args, response, store, compressed, main, upstream }
    }

    /// What the client sent, to complete before anybody shares it.
    ///
    /// Panics when somebody does: only for the protocol drivers.
    pub fn input_mut(&mut self) -> &mut Input {
        Rc::get_mut(&mut self.input).expect("not shared before the engine runs")
    }

    /// Has what the response will be written to fetched, see [`memory::prefetch`].
    pub(crate) fn prefetch(&self) {
        memory::prefetch(&*self.response);
        memory::prefetch(&*self.upstream);
        memory::prefetch(&*self.input);
    }

    /// Gives the memory back that the head does not fill, for the time that a slow client takes.
    pub fn fit_input(&mut self) {
        if let Some(Input { buf, .. }) = Rc::get_mut(&mut self.input)
            && buf.len() < buf.capacity() / 2
        {
            let fitted = buf.as_slice().to_vec();
            pool::recycle(std::mem::replace(buf, fitted));
        }
    }

    /// The client: the connection's, or the one that realip found behind it.
    pub fn remote(&self) -> &Peer {
        self.main.real.get().unwrap_or(&self.connection.remote)
    }

    /// The settings that hold now.
    pub fn location(&self) -> &Location {
        self.plan.location(self.location)
    }

    /// The server chosen.
    pub fn server(&self) -> &Server {
        self.plan.server(self.server)
    }

    /// The value of the first request field with that id.
    pub fn field(&self, id: FieldId) -> Option<&[u8]> {
        self.input.field(id)
    }

    /// The protocol version of the request.
    pub fn version(&self) -> Version {
        self.input.head.version
    }

    /// The target as it came, path and query (`$request_uri`).
    pub fn unparsed_uri(&self) -> &[u8] {
        self.input.text(self.input.head.uri)
    }

    /// What nginx is at when it sends a head: a response of an upstream it is still reading.
    pub fn doing_with_head(&self) -> &'static str {
        match self.upstream.leads() {
            true => " while reading response header from upstream",
            false => self.main.doing.get(),
        }
    }

    /// The method in its own words: an error page or a subrequest asks otherwise than its client did.
    pub fn method_name(&self) -> &[u8] {
        let span = self.input.head.method_span;
        match self.method == self.input.head.method {
            // A line that was refused has none until a page is shown for it.
            true if !span.is_empty() || !self.internal => self.input.text(span),
            _ if self.method == Method::Head => b"HEAD",
            _ => b"GET",
        }
    }

    /// Answers with a body that is in memory.
    pub fn respond(&mut self, status: u16, content_type: Bytes, body: Bytes) {
        let response = &mut self.response;
        response.status = status;
        response.content_type = Some(content_type);
        response.content_length = Some(body.len() as u64);
        response.body = crate::body::Body::Bytes(body);
    }

    /// Replaces the target, for [`crate::handler::Flow::Redirect`].
    pub fn set_target(&mut self, uri: &[u8], args: Option<&[u8]>) {
        self.uri.clear();
        self.uri.extend_from_slice(uri);
        self.args.clear();
        self.args.extend_from_slice(args.unwrap_or_default());
        self.has_args = args.is_some();
        self.begin_anew();
    }

    /// The same with the path alone: the query stays.
    pub fn set_path(&mut self, uri: Vec<u8>) {
        self.uri = uri;
        self.begin_anew();
    }

    /// Forgets what the location before made of the target (`ngx_http_internal_redirect`).
    fn begin_anew(&mut self) {
        self.main.doing.take();
        self.rewritten_in_place = false;
        self.is_as_sent = false;
        self.internal = true;
        self.upstream.leave();
        self.add_uri_to_alias = false;
    }

    /// How long a body may be that comes in pieces (0: no limit). What was announced has been held against
    /// `client_max_body_size` where a location was chosen by the path; `@named` ones have no say in it.
    pub(crate) fn body_limit(&self) -> u64 {
        match self.input.framing.body {
            BodyLength::Length(_) => 0,
            _ => self.location().core.client_max_body_size,
        }
    }

    /// Nobody gets the body that has not been read yet (`ngx_http_discard_request_body`): whoever asks for
    /// it finds that it is empty.
    pub(crate) fn discard_body(&mut self) {
        if self.body.is_unread() {
            self.body = RequestBody::Discarded;
        }
    }

    /// The response is over: says what those who read it from another server could not.
    pub(crate) fn end_upstream(&mut self) {
        self.response.body = Default::default();
        if let Some(at_end) = self.upstream.take_at_end()
            && self.completed
        {
            at_end(self);
        }
        for (severity, text) in self.upstream.complaints() {
            self.log_error(severity, format_args!("{text}"));
        }
        self.upstream.end();
    }

    /// A 2xx to CONNECT says that there is a tunnel (RFC 9110 §9.3.6), whoever says it.
    pub(crate) fn is_refusal_in_disguise(&self) -> bool {
        matches!(self.response.status, 200..=299) && self.response.tunnel.is_none()
    }

    /// Matches a text as [`Regex::run`]; `pattern` is as it was written. A status: the pattern is over
    /// characters, and the text has bytes that are none (NGX_ERROR of `ngx_http_regex_exec`).
    pub fn matches(
        &self,
        (regex, pattern): (&Regex, &[u8]),
        text: &[u8],
        named: &[(usize, VarId)],
    ) -> Result<bool, u16> {
        if regex.reads(text) {
            return Ok(regex.run(self, text, named));
        }
        let (text, pattern) = (Shown(text), Shown(pattern));
        let text = format_args!("pcre2_match() failed: no UTF-8 on \"{text}\" using \"{pattern}\"");
        self.log_error(Severity::Alert, text);
        Err(500)
    }

    /// Writes a line to the error log of the location, with nginx's trailer
    /// (`, client: …, server: …, request: "…", host: "…"`).
    #[cold]
    pub fn log_error(&self, severity: Severity, message: fmt::Arguments<'_>) {
        crate::error_log::write(self, severity, message);
    }
}

impl Scope for Request {
    fn registry(&self) -> &Registry<Self> {
        &self.plan.registry
    }

    fn store(&self) -> &Store {
        &self.store
    }

    fn cycle(&self, name: &str) {
        let doing = self.main.doing.get();
        let text = format_args!("cycle while evaluating variable \"{name}\"{doing}");
        self.log_error(Severity::Error, text);
    }
}
