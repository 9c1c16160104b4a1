//! What a request knows of the servers that it asked: the `$upstream_*` variables, and the trailer of
//! its lines in the error log.
//!
//! Answers `ngx_http_upstream_state_t` and the variables of `ngx_http_upstream.c`.
//!
//! Hot path: its memory goes round with that of the request.
//!
//! Invariant: only tells; nothing is decided by it.

use std::{
    cell::{Cell, RefCell},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use forebay_rt::clock;
use forebay_session::{
    log::{Severity, Shown},
    upstream::{Peer, Timings},
    var::Registry,
};
use forebay_wire::h1::{ResponseFieldId, ResponseHead, encode::write_decimal};

use crate::{
    request::Request,
    response::Field,
    variables::{is_named, put_seconds},
};

/// Something to be done when a response is complete.
pub type AtEnd = Box<dyn FnOnce(&Request)>;

/// One server that was asked, or the border between two redirections (nginx's entries without peer).
#[derive(Default)]
pub struct Attempt {
    /// Who; `None`: nobody could be (`name` is that of the group).
    pub peer: Option<Arc<Peer>>,
    name: Option<Bytes>,
    border: bool,
    /// The status, 0 as long as there is none.
    pub status: u16,
    started_ms: u64,
    /// Until the connection stood, milliseconds.
    pub connect_ms: Option<u64>,
    /// Until the head of the response had come.
    pub header_ms: Option<u64>,
    /// Until the end of the response.
    pub response_ms: Option<u64>,
    /// Bytes of the response after its head.
    pub response_length: u64,
    /// Whether its response is being passed on: until the client has it all, nothing is said of its end,
    /// though it may have come (`ngx_http_upstream_finalize_request`).
    pub is_passed_on: bool,
    /// Bytes read.
    pub received: u64,
    /// Bytes written.
    pub sent: u64,
}

impl Attempt {
    /// Milliseconds since it began.
    pub fn elapsed_ms(&self) -> u64 {
        clock::now_ms().saturating_sub(self.started_ms)
    }

    /// How long its parts took.
    pub fn timings(&self) -> Timings {
        Timings {
            connect_ms: self.connect_ms,
            header_ms: self.header_ms,
            response_ms: self.response_ms,
        }
    }

    fn name(&self) -> &[u8] {
        match (&self.peer, &self.name) {
            (Some(peer), _) => peer.name.as_bytes(),
            (None, Some(name)) => name,
            (None, None) => b"",
        }
    }
}

#[derive(Default)]
struct Inner {
    attempts: Vec<Attempt>,
    /// The head of the last response.
    head: ResponseHead,
    /// What it points into.
    bytes: Bytes,
    trailers: Vec<Field>,
    /// What was asked, for the error log.
    uri: Vec<u8>,
    /// Host and port, where they were worked out for this request.
    target: Option<(Bytes, Bytes)>,
    /// What there is to say at the end, by those who cannot reach the log.
    complaints: Vec<(Severity, String)>,
    /// What is to be done when the response is complete.
    at_end: Option<AtEnd>,
    /// How long it waited in the group's queue, milliseconds.
    queued_ms: Option<u64>,
}

/// The upstream side of a request.
#[derive(Default)]
pub struct State {
    inner: RefCell<Inner>,
    scheme: Cell<&'static str>,
    /// Whether a server is being asked, so that lines of the error log name it.
    active: Cell<bool>,
    used: Cell<bool>,
    leads: Cell<bool>,
}

impl State {
    /// Whether the location that the request is in passed it on, or was about to.
    pub fn leads(&self) -> bool {
        self.leads.get()
    }

    /// The location that the request is in is about to pass it on, once its body is there.
    pub fn lead(&self) {
        self.leads.set(true);
    }

    /// The request goes to another location, where it leads nowhere yet.
    pub fn leave(&self) {
        self.leads.set(false);
        self.inner.borrow_mut().target = None;
    }

    /// Where this request leads, as its variables say.
    pub fn set_target(&self, host: &Bytes, port: &Bytes) {
        self.inner.borrow_mut().target = Some((host.clone(), port.clone()));
        self.leads.set(true);
    }

    /// Shows what [`State::set_target`] said; `false`: nothing.
    pub fn with_target(&self, f: impl FnOnce(&Bytes, &Bytes)) -> bool {
        let inner = self.inner.borrow();
        inner.target.as_ref().is_some_and(|(host, port)| {
            f(host, port);
            true
        })
    }

    /// Forgets everything, keeping its memory.
    pub fn clear(&mut self) {
        let inner = self.inner.get_mut();
        inner.target = None;
        self.leads.set(false);
        if !self.used.get() {
            return;
        }
        inner.attempts.clear();
        inner.head.fields.clear();
        inner.bytes = Bytes::new();
        inner.trailers.clear();
        inner.uri.clear();
        inner.complaints.clear();
        inner.at_end = None;
        inner.queued_ms = None;
        self.active.set(false);
        self.used.set(false);
    }

    /// A request is about to be passed on: after an internal redirection, anew.
    pub fn begin(&self, scheme: &'static str) {
        let mut inner = self.inner.borrow_mut();
        if !inner.attempts.is_empty() {
            inner.attempts.push(Attempt { border: true, ..Attempt::default() });
        }
        inner.bytes = Bytes::new();
        inner.head.fields.clear();
        inner.trailers.clear();
        inner.uri.clear();
        self.scheme.set(scheme);
        self.active.set(true);
        self.used.set(true);
    }

    /// What is asked for.
    pub fn set_uri(&self, uri: &[u8]) {
        let mut inner = self.inner.borrow_mut();
        inner.uri.clear();
        inner.uri.extend_from_slice(uri);
    }

    /// A server is asked.
    pub fn attempt(&self, peer: &Arc<Peer>) {
        let attempt =
            Attempt { peer: Some(peer.clone()), started_ms: clock::now_ms(), ..Attempt::default() };
        let mut inner = self.inner.borrow_mut();
        inner.head.fields.clear();
        inner.attempts.push(attempt);
    }

    /// Nobody can be asked.
    pub fn nobody(&self, group: &str, status: u16) {
        let attempt = Attempt {
            name: Some(Bytes::copy_from_slice(group.as_bytes())),
            status,
            started_ms: clock::now_ms(),
            response_ms: Some(0),
            ..Attempt::default()
        };
        self.inner.borrow_mut().attempts.push(attempt);
    }

    /// Changes what is known of the server that is asked now.
    pub fn with<T>(&self, f: impl FnOnce(&mut Attempt) -> T) -> T {
        let mut inner = self.inner.borrow_mut();
        if inner.attempts.is_empty() {
            inner.attempts.push(Attempt::default());
        }
        f(inner.attempts.last_mut().expect("just made sure of"))
    }

    /// Gives the memory of the last head away for the next one; nothing is left of what it said.
    pub fn take_head(&self) -> ResponseHead {
        let mut head = std::mem::take(&mut self.inner.borrow_mut().head);
        head.clear();
        head
    }

    /// Keeps the head of a response, for `$upstream_http_…`.
    pub fn keep_head(&self, head: ResponseHead, bytes: Bytes) {
        let mut inner = self.inner.borrow_mut();
        (inner.head, inner.bytes) = (head, bytes);
    }

    /// Keeps the trailers of a response.
    pub fn keep_trailers(&self, trailers: Vec<Field>) {
        self.inner.borrow_mut().trailers = trailers;
    }

    /// Shows the trailers that have come.
    pub fn each_trailer(&self, f: impl FnMut(&Field)) {
        self.inner.borrow().trailers.iter().for_each(f);
    }

    /// Something to be said in the error log when the response is over.
    pub fn complain(&self, severity: Severity, text: String) {
        self.inner.borrow_mut().complaints.push((severity, text));
    }

    /// What there is to say.
    pub fn complaints(&self) -> Vec<(Severity, String)> {
        std::mem::take(&mut self.inner.borrow_mut().complaints)
    }

    /// Says what is to be done when the response is complete.
    pub fn at_end(&self, f: AtEnd) {
        self.inner.borrow_mut().at_end = Some(f);
    }

    /// What is to be done now that it is.
    pub fn take_at_end(&self) -> Option<AtEnd> {
        self.inner.borrow_mut().at_end.take()
    }

    /// The request has waited in the queue of its group.
    pub fn queued(&self, ms: u64) {
        *self.inner.borrow_mut().queued_ms.get_or_insert(0) += ms;
    }

    /// No server is being asked any more.
    pub fn end(&self) {
        self.active.set(false);
        if let Some(attempt) = self.inner.borrow_mut().attempts.last_mut() {
            attempt.is_passed_on = false;
        }
    }
}

/// `http://127.0.0.1:8080/uri` of the server that is being asked, for the error log.
pub(crate) struct Asked<'a>(&'a State);

impl State {
    /// What is being asked, if anybody is.
    pub(crate) fn asked(&self) -> Option<Asked<'_>> {
        let named = self.inner.borrow().attempts.last().is_some_and(|a| !a.name().is_empty());
        (self.active.get() && named).then_some(Asked(self))
    }
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.0.inner.borrow();
        let name = inner.attempts.last().map(Attempt::name).unwrap_or_default();
        let colon = if name.starts_with(b"unix:") { ":" } else { "" };
        write!(f, "{}{}{colon}{}", self.0.scheme.get(), Shown(name), Shown(&inner.uri))
    }
}

/// Declares `$upstream_…`.
pub fn register(registry: &mut Registry<Request>) {
    registry.builtin("upstream_addr", |r, out| {
        each(r, out, |attempt, out| out.extend_from_slice(attempt.name()))
    });
    registry.builtin("upstream_status", |r, out| {
        each(r, out, |attempt, out| match attempt.status {
            0 => out.push(b'-'),
            status => write_decimal(out, status.into()),
        })
    });
    registry.builtin("upstream_connect_time", |r, out| time(r, out, |a| a.connect_ms));
    registry.builtin("upstream_header_time", |r, out| time(r, out, |a| a.header_ms));
    registry.builtin("upstream_response_time", |r, out| {
        time(r, out, |a| a.response_ms.filter(|_| !a.is_passed_on))
    });
    registry.builtin("upstream_response_length", |r, out| {
        number(r, out, |a| if a.is_passed_on { 0 } else { a.response_length })
    });
    registry.builtin("upstream_bytes_received", |r, out| number(r, out, |a| a.received));
    registry.builtin("upstream_bytes_sent", |r, out| number(r, out, |a| a.sent));
    registry.builtin("upstream_queue_time", |r, out| {
        let queued_ms = r.upstream.inner.borrow().queued_ms;
        queued_ms.is_some_and(|ms| put_seconds(out, ms))
    });
    // As in nginx where a location has no cache.
    registry.builtin("upstream_cache_status", |_, _| false);
    registry.builtin("upstream_last_addr", |r, out| {
        let inner = r.upstream.inner.borrow();
        let last = inner.attempts.last().map(Attempt::name).filter(|name| !name.is_empty());
        last.is_some_and(|name| {
            out.extend_from_slice(name);
            true
        })
    });
    // DIFFERS(broken-head-untold): nginx has the fields that stand before the fault of a broken head.
    registry.prefixed("upstream_http_", |r, name, out| {
        let inner = r.upstream.inner.borrow();
        let fields = inner.head.fields.iter();
        let fields = fields.map(|f| (f.name.of(&inner.bytes), f.value.of(&inner.bytes)));
        // nginx puts both into a response that has them not (ngx_http_proxy_process_header).
        let is_put = matches!(name, b"server" | b"date") && !inner.bytes.is_empty();
        crate::variables::put_joined(out, fields, name, b", ") || is_put
    });
    // DIFFERS(trailers-told): nginx drops what it is not to pass on.
    registry.prefixed("upstream_trailer_", |r, name, out| {
        let inner = r.upstream.inner.borrow();
        let found = inner.trailers.iter().find(|field| is_named(&field.name, name));
        found.is_some_and(|field| {
            out.extend_from_slice(&field.value);
            true
        })
    });
    registry.prefixed("upstream_cookie_", cookie);
}

/// `$upstream_cookie_NAME`: the value of the last `Set-Cookie` of that name
/// (`ngx_http_parse_set_cookie_lines`).
fn cookie(r: &Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let inner = r.upstream.inner.borrow();
    let is_it = |f: &&forebay_wire::h1::ResponseField| f.id == ResponseFieldId::SetCookie;
    let found = inner.head.fields.iter().filter(is_it).find_map(|field| {
        let line = field.value.of(&inner.bytes);
        let (found, rest) = line.split_at_checked(name.len())?;
        if !found.eq_ignore_ascii_case(name) {
            return None;
        }
        let value = rest.trim_ascii_start().strip_prefix(b"=")?.trim_ascii_start();
        let end = memchr::memchr(b';', value).unwrap_or(value.len());
        Some(&value[..end])
    });
    found.is_some_and(|value| {
        out.extend_from_slice(value);
        true
    })
}

/// Writes something of each server asked, joined by `, `, and by ` : ` over a redirection.
fn each(r: &Request, out: &mut Vec<u8>, write: impl Fn(&Attempt, &mut Vec<u8>)) -> bool {
    let inner = r.upstream.inner.borrow();
    if inner.attempts.is_empty() {
        return false;
    }
    let mut separator: &[u8] = b"";
    for attempt in &inner.attempts {
        if attempt.border {
            separator = b" : ";
            continue;
        }
        out.extend_from_slice(separator);
        write(attempt, out);
        separator = b", ";
    }
    true
}

fn time(r: &Request, out: &mut Vec<u8>, of: impl Fn(&Attempt) -> Option<u64>) -> bool {
    each(r, out, |attempt, out| match of(attempt) {
        Some(ms) => {
            put_seconds(out, ms);
        }
        None => out.push(b'-'),
    })
}

fn number(r: &Request, out: &mut Vec<u8>, of: impl Fn(&Attempt) -> u64) -> bool {
    each(r, out, |attempt, out| write_decimal(out, of(attempt)))
}
