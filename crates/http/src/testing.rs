//! Requests for unit tests of handlers and filters: a configuration, the bytes of a head, no socket.
//!
//! Invariant: compiled for tests only.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future as _,
    io::{self, IoSlice},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use forebay_conf::{
    Diagnostics, Loader, Sources,
    files::Memory,
    parse::{ParseOptions, parse_text},
};
use forebay_rt::transport::Transport;
use forebay_session::log::{ErrorLog, Severity};
use forebay_wire::{
    Span,
    h1::{Field, FieldId, Head, Method, Version},
};

use crate::{
    body::{Body, Chunk, Fault, FileSlice},
    client::Nobody,
    engine,
    files::Reader,
    load,
    module::{Action, Cx, Module},
    modules,
    plan::{Plan, ServerId},
    request::{Connection, Parts, Peer, Request},
    worker::{Shared, Worker},
};

/// Loads the inside of an `http` block; the errors as text when it is wrong.
pub fn plan(http: &str) -> Result<Plan, String> {
    let (plan, said) = load_with(http);
    plan.ok_or(said)
}

/// The same with all that is said of it; `None`: it must not load.
pub fn load_with(http: &str) -> (Option<Plan>, String) {
    let text = format!("http {{ {http} }}");
    let (mut files, mut sources, mut diags) =
        (Memory::default(), Sources::new(), Diagnostics::new());
    let options = ParseOptions::default();
    let nodes = parse_text("test", text.as_bytes(), &mut files, &options, &mut sources, &mut diags);
    let plan = nodes.first().and_then(|block| {
        let mut loader = Loader {
            files: &mut files,
            sources: &mut sources,
            diags: &mut diags,
            prefix: "/nowhere".into(),
            conf_prefix: "/nowhere".into(),
        };
        let log = ErrorLog::to_stderr(Severity::Emerg);
        load(block, &modules::all(), &mut loader, &log, false)
    });
    (plan.filter(|_| !diags.has_errors()), diags.render(&sources, false))
}

/// What a module's directives at one level set.
pub fn level_conf<M: Module>(text: &str) -> M::Conf {
    let (mut files, mut sources, mut diags) =
        (Memory::default(), Sources::new(), Diagnostics::new());
    let options = ParseOptions::default();
    let nodes = parse_text("test", text.as_bytes(), &mut files, &options, &mut sources, &mut diags);
    let mut loader = Loader {
        files: &mut files,
        sources: &mut sources,
        diags: &mut diags,
        prefix: "/nowhere".into(),
        conf_prefix: "/nowhere".into(),
    };
    let mut cx = Cx::new(&mut loader);
    let mut conf = M::Conf::default();
    for node in &nodes {
        let known = M::DIRECTIVES.iter().find(|known| known.spec.name == node.name());
        match known.expect("a directive of the module").action {
            Action::Set(set) => set(&mut conf, node, &mut cx).expect("it must be right"),
            Action::Open(..) => panic!("a block has no settings of its own level"),
        }
    }
    conf
}

/// The error of a configuration (the inside of an `http` block) that must not load.
pub fn conf_error(http: &str) -> String {
    plan(http).err().expect("it must not load")
}

/// A request for a configuration (the inside of a `server` block) and a head, in the server's own
/// level: no location has been looked for.
pub fn request(server: &str, head: &str) -> Request {
    let plan = plan(&format!("server {{ listen 127.0.0.1:1; {server} }}"));
    request_of(Arc::new(plan.expect("it must load")), head)
}

/// A request under a plan.
pub fn request_of(plan: Arc<Plan>, head: &str) -> Request {
    let shared = Arc::new(Shared::new(1));
    let worker = Rc::new(Worker::new(shared, plan.clone()));
    let connection = Rc::new(Connection {
        number: 1,
        socket: Default::default(),
        remote: Peer::Inet(([127, 0, 0, 1], 4000).into()),
        local: Peer::Inet(([127, 0, 0, 1], 8080).into()),
        requests: Cell::new(1),
        started_ms: 0,
        proxied: Default::default(),
        tls: Default::default(),
        bound: Default::default(),
        worker,
    });
    let mut parts = Parts::default();
    let input = parts.input();
    input.buf = head.as_bytes().to_vec();
    input.head = parse(head);
    let mut r = Request::new(plan.into(), connection, ServerId::default(), parts);
    let uri = r.unparsed_uri().to_vec();
    let (path, args) = match uri.iter().position(|b| *b == b'?') {
        Some(at) => (&uri[..at], &uri[at + 1..]),
        None => (&uri[..], &[][..]),
    };
    r.uri = path.to_vec();
    r.args = args.to_vec();
    r
}

/// Splits a well-formed head; what the real parser refuses is its own tests' matter.
fn parse(text: &str) -> Head {
    let span = |part: &str| {
        let start = part.as_ptr() as usize - text.as_ptr() as usize;
        Span::new(start, start + part.len())
    };
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let mut head = Head {
        method: match words[0] {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "PUT" => Method::Put,
            "DELETE" => Method::Delete,
            _ => Method::Other,
        },
        method_span: span(words[0]),
        uri: span(words[1]),
        version: match words.get(2) {
            Some(&"HTTP/1.1") => Version::Http11,
            Some(_) => Version::Http10,
            None => Version::Http09,
        },
        request_line: span(line),
        ..Head::default()
    };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').expect("a field has a colon");
        let id = FieldId::of(name.as_bytes());
        head.headers.push(Field { name: span(name), value: span(value.trim()), id });
    }
    head
}

/// Runs a request through the engine; nothing on its way may wait.
pub fn answer(r: &mut Request) {
    let mut client = Nobody;
    let mut future = std::pin::pin!(engine::answer(r, &mut client));
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_ready(), "a handler waits");
}

/// The same, where a handler may give others their turn.
pub fn answer_waiting(r: &mut Request) {
    let mut client = Nobody;
    let mut future = std::pin::pin!(engine::answer(r, &mut client));
    while future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {}
}

/// The names and values of the list of a response's fields, one a line.
pub fn fields(r: &Request) -> String {
    let line = |field: &crate::response::Field| {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        format!("{}: {}\n", text(&field.name), text(&field.value))
    };
    r.response.fields.iter().map(line).collect()
}

/// Runs the filters of the request's level over its response.
pub fn filter(r: &mut Request) {
    let plan = r.plan.clone();
    for filter in &plan.location(r.location).filters {
        assert_eq!(filter.filter(r), crate::handler::Filtered::Continue);
    }
}

/// The whole body of a response as text.
pub fn text(r: &mut Request) -> String {
    String::from_utf8(drain(&mut r.response.body).expect("a whole body")).expect("text")
}

/// A response of type `text/html` to `GET /` under the inside of a `server` block, whose body comes
/// in these pieces, filtered.
pub fn filtered(conf: &str, pieces: &[&[u8]]) -> Request {
    let plan = plan(&format!("server {{ listen 127.0.0.1:1; {conf} }}"));
    filtered_of(&Arc::new(plan.expect("it must load")), pieces)
}

/// The same under a plan.
pub fn filtered_of(plan: &Arc<Plan>, pieces: &[&[u8]]) -> Request {
    let mut r = request_of(plan.clone(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    r.respond(200, "text/html".into(), Bytes::from(pieces.concat()));
    let chunks = pieces.iter().map(|piece| Chunk::Bytes(Bytes::copy_from_slice(piece)));
    r.response.body = Body::Chunks(chunks.collect());
    filter(&mut r);
    r
}

/// The text that comes out of a body, which is the same however it is cut.
pub fn filtered_text(conf: &str, text: &str) -> String {
    let plan = plan(&format!("server {{ listen 127.0.0.1:1; {conf} }}"));
    let plan = Arc::new(plan.expect("it must load"));
    let input = text.as_bytes();
    let whole = self::text(&mut filtered_of(&plan, &[input]));
    for at in 1..input.len() {
        let mut r = filtered_of(&plan, &[&input[..at], &input[at..]]);
        assert_eq!(self::text(&mut r), whole, "{conf}: {text} cut at {at}");
    }
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(self::text(&mut filtered_of(&plan, &bytes)), whole, "{conf}: {text}");
    whole
}

/// Pulls a body that never has to wait for anything but its turn, to its end.
pub fn drain(body: &mut Body) -> Result<Vec<u8>, Fault> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut out = Vec::new();
    loop {
        match body.poll_next(&mut cx) {
            Poll::Ready(Some(Ok(Chunk::Bytes(bytes)))) => out.extend_from_slice(&bytes),
            Poll::Ready(Some(Ok(Chunk::File(slice)))) => {
                out.extend_from_slice(&read(slice, &mut cx));
            }
            Poll::Ready(Some(Ok(Chunk::Flush))) | Poll::Pending => {}
            Poll::Ready(Some(Err(fault))) => return Err(fault),
            Poll::Ready(None) => return Ok(out),
            Poll::Ready(Some(Ok(Chunk::Nested(child)))) => {
                out.extend_from_slice(&drain(&mut Body::Stream(child))?);
            }
        }
    }
}

/// All of a slice, in memory or not.
pub fn read(mut slice: FileSlice, cx: &mut Context<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    while !slice.is_empty() {
        let bytes = match slice.in_memory() {
            Some(bytes) => bytes,
            None => match Reader::default().poll_read(&slice, slice.len() as usize, cx) {
                Poll::Ready(Ok(bytes)) if !bytes.is_empty() => bytes,
                _ => return out,
            },
        };
        slice.start += bytes.len() as u64;
        out.extend_from_slice(&bytes);
    }
    out
}

/// A connection without a socket, which a test holds the other end of. It wakes nobody.
#[derive(Clone, Default)]
pub struct Line(pub Rc<Ends>);

/// What goes over a [`Line`].
#[derive(Default)]
pub struct Ends {
    /// What the client has said and nobody has read.
    pub said: RefCell<VecDeque<u8>>,
    /// What the client was told.
    pub told: RefCell<Vec<u8>>,
    /// Whether the client takes nothing.
    pub is_full: Cell<bool>,
    /// Whether more was to follow what the client was told last.
    pub more: Cell<bool>,
    /// Whether FIN was sent.
    pub ended: Cell<bool>,
}

impl Line {
    /// The client says something.
    pub fn say(&self, bytes: &[u8]) {
        self.0.said.borrow_mut().extend(bytes);
    }
}

impl Transport for Line {
    fn poll_read(&mut self, _cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let mut said = self.0.said.borrow_mut();
        let len = said.len().min(buf.capacity() - buf.len());
        buf.extend(said.drain(..len));
        if len > 0 { Poll::Ready(Ok(len)) } else { Poll::Pending }
    }

    fn poll_write(
        &mut self,
        _cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        if self.0.is_full.get() {
            return Poll::Pending;
        }
        self.0.more.set(more);
        let mut told = self.0.told.borrow_mut();
        let before = told.len();
        slices.iter().for_each(|slice| told.extend_from_slice(slice));
        Poll::Ready(Ok(told.len() - before))
    }

    /// As with TLS, there is something to say at the end.
    fn poll_shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.0.is_full.get() {
            return Poll::Pending;
        }
        self.0.ended.set(true);
        Poll::Ready(Ok(()))
    }

    fn reset_on_close(&self) {}
}
