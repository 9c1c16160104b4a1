//! TLS before and around requests: the handshake of a new connection, and what a request is asked
//! because of it.
//!
//! Answers `ngx_http_ssl_handshake`, `ngx_http_ssl_servername`, `ngx_http_ssl_certificate` and
//! `ngx_http_ssl_alpn_select`, and of `ngx_http_request.c` the checks of `ngx_http_process_request` and
//! `ngx_http_set_virtual_server`.
//!
//! Invariant: no request of a connection is answered before [`admit`] has seen it.

use std::{fmt, future::poll_fn, pin::pin, rc::Rc, sync::Arc, task::Poll};

use forebay_rt::{
    task::spawn_local,
    timer::{Idle, Timer},
    transport::Transport,
};
use forebay_session::{
    log::{ErrorLog, Severity},
    ssl::{
        Server as TlsServer, VerifyClient,
        variables::{OFFERS, TlsScope},
    },
};
use forebay_tls::{AcceptError, Choice, ClientHello, ServerConfig, Session, TlsStream, Verdict};
use forebay_wire::h1;

use crate::{
    h2,
    names::Names,
    plan::{Listener, Plan, PlanHandle, ServerId},
    request::{Connection, Parts, Request},
    worker::Listening,
};

/// What a connection on a TLS port has come to.
pub struct Tls {
    /// `None` for who speaks HTTP in the clear there, and while certificates are looked for.
    session: Option<Session>,
    /// The name that the client asked for; within [`Tls::session`] once that is there.
    asked: Option<Box<str>>,
    /// The host that a server was found by, out of several: lower case (nginx's `ssl_servername`).
    host: Option<Box<[u8]>>,
    /// What authorities have against the client's certificate (`ssl_ocsp`).
    refused: Option<&'static str>,
}

impl Tls {
    /// What the handshake came to.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Whether the client has chosen HTTP/2.
    pub fn speaks_http2(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.alpn() == Some(b"h2"))
    }

    /// The server for what does not name a host.
    pub fn default_server(&self, names: &Names) -> ServerId {
        match &self.host {
            Some(host) => names.find(host).server,
            None => names.default,
        }
    }
}

impl Connection {
    /// Whether TLS is spoken on it.
    pub fn is_tls(&self) -> bool {
        self.tls.get().is_some_and(|tls| tls.session.is_some())
    }
}

impl TlsScope for Request {
    fn tls(&self) -> Option<&Session> {
        self.connection.tls.get()?.session.as_ref()
    }

    fn tls_server_name(&self) -> Option<&str> {
        let tls = self.connection.tls.get()?;
        tls.session.as_ref().map_or(tls.asked.as_deref(), Session::server_name)
    }

    fn tls_refused(&self) -> Option<&str> {
        self.connection.tls.get()?.refused
    }
}

/// Whether a request may be answered at all on its connection, and what it is refused with otherwise.
pub fn admit(r: &mut Request) -> Result<(), u16> {
    let connection = r.connection.clone();
    let Some(tls) = connection.tls.get() else { return Ok(()) };
    // Both in the words of the engine's log, and before it knows whether the connection is kept.
    let refuse = |r: &mut Request, status: u16, why: fmt::Arguments<'_>| {
        r.log_error(Severity::Info, format_args!("{why} while reading client request headers"));
        r.keep_alive = false;
        Err(status)
    };
    let Some(session) = &tls.session else {
        let why = "client sent plain HTTP request to HTTPS port";
        return refuse(r, 497, format_args!("{why}"));
    };
    let verify = r.server().tls.as_ref().map_or(VerifyClient::Off, |tls| tls.verify);
    if verify == VerifyClient::Off {
        return Ok(());
    }
    // What the client was asked for was said by the server that it named in its handshake.
    if tls.host.as_ref().is_some_and(|host| **host != *r.input.host) {
        let why = "client attempted to request the server name different from the one that was \
                   negotiated";
        // It is still that server's request.
        r.server = r.first_server;
        r.location = r.plan.server(r.server).location;
        return refuse(r, 421, format_args!("{why}"));
    }
    match session.verdict() {
        Verdict::Failed(code, text)
            if verify != VerifyClient::OptionalNoCa || !is_optional(*code) =>
        {
            let (code, text) = (*code, *text);
            refuse(r, 495, format_args!("client SSL certificate verify error: ({code}:{text})"))
        }
        Verdict::None if verify == VerifyClient::On => {
            refuse(r, 496, format_args!("client sent no required SSL certificate"))
        }
        _ => match tls.refused {
            Some(why) => refuse(r, 495, format_args!("client SSL certificate verify error: {why}")),
            None => Ok(()),
        },
    }
}

/// What `optional_no_ca` overlooks (`ngx_ssl_verify_error_optional`).
fn is_optional(code: u32) -> bool {
    // X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT, SELF_SIGNED_CERT_IN_CHAIN,
    // UNABLE_TO_GET_ISSUER_CERT_LOCALLY, UNABLE_TO_VERIFY_LEAF_SIGNATURE, CERT_UNTRUSTED.
    matches!(code, 18 | 19 | 20 | 21 | 27)
}

/// A connection after its handshake, or after it was seen that there will be none.
pub enum Shaken<T: Transport> {
    /// TLS; what was agreed on is in [`Connection::tls`].
    Tls(TlsStream<T>),
    /// HTTP in the clear, with what was read of it.
    Plain(T, Vec<u8>),
}

/// Shakes hands. `None`: the connection is to be closed; why is in the error log.
pub async fn shake_hands<T: Transport>(
    io: T,
    first: Vec<u8>,
    connection: &Rc<Connection>,
    listening: &Listening,
) -> Option<Shaken<T>> {
    let (plan, index) = listening.plan(&connection.worker);
    let listener = &plan.listeners[index];
    let names = listener.names_of(connection);
    let timer = Timer::new();
    timer.arm(plan.server(names.default).settings.client_header_timeout_ms);
    timer.set_idle(Idle::First);
    let mut chooser =
        Chooser { plan: &plan, listener, names, connection, host: None, server: names.default };
    let accepted = {
        let choose = |hello: &ClientHello<'_>| {
            timer.set_idle(Idle::No);
            chooser.choose(hello)
        };
        let mut accept = pin!(forebay_tls::accept(io, first, choose));
        poll_fn(|cx| match accept.as_mut().poll(cx) {
            Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
            Poll::Pending => timer.poll_expired(cx).map(|()| None),
        })
        .await
    };
    let Chooser { host, server, .. } = chooser;
    let tls = |session, refused| Box::new(Tls { session, asked: None, host, refused });
    let why = match accepted {
        Some(Ok((stream, session))) => {
            let refused = ask_about(&session, &plan, server, &timer, connection).await?;
            // Set once, before anybody looks.
            let _ = connection.tls.set(tls(Some(session), refused));
            return Some(Shaken::Tls(stream));
        }
        Some(Err(AcceptError::PlainText(bytes, io))) => {
            let _ = connection.tls.set(tls(None, None));
            return Some(Shaken::Plain(io, bytes));
        }
        Some(Err(error)) => Why::Error(error),
        None if timer.is_shed() => return None,
        None => Why::TimedOut,
    };
    let (client, addr) = (&connection.remote, &listener.addr);
    let log = &plan.location(plan.server(server).location).error_log;
    log.write(
        why.severity(),
        Some(connection.number),
        format_args!("{why} while SSL handshaking, client: {client}, server: {addr}"),
    );
    None
}

/// Asks authorities about a client's certificate, where that is wanted; what they have against it.
/// `None`: it took too long.
async fn ask_about(
    session: &Session,
    plan: &Plan,
    server: ServerId,
    timer: &Timer,
    connection: &Connection,
) -> Option<Option<&'static str>> {
    let server = plan.server(server);
    let ocsp = server.tls.as_ref().and_then(|tls| tls.ocsp.as_ref());
    let Some(ocsp) = ocsp.filter(|_| *session.verdict() == Verdict::Success) else {
        return Some(None);
    };
    let mut asking = Box::pin(ocsp.validate(session.peer_certificates()));
    let answer = poll_fn(|cx| match asking.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => timer.poll_expired(cx).map(|()| None),
    });
    let Err((refused, why)) = answer.await? else { return Some(None) };
    if let Some(why) = why {
        plan.location(server.location).error_log.write(
            Severity::Error,
            Some(connection.number),
            format_args!("{why}, client: {}", connection.remote),
        );
    }
    Some(Some(refused))
}

/// Asks for fresh staples where they are due; the handshake does not wait for them.
fn refresh_staples(tls: &TlsServer, log: &ErrorLog) {
    for refresh in tls.staplers.iter().filter_map(|stapler| stapler.due()) {
        let log = log.clone();
        spawn_local(async move {
            if let Err(why) = refresh.run().await {
                log.write(Severity::Error, None, format_args!("{why}"));
            }
        });
    }
}

/// Why there is no connection, in nginx's words.
enum Why<T> {
    Error(AcceptError<T>),
    TimedOut,
}

impl<T> Why<T> {
    fn severity(&self) -> Severity {
        match self {
            Why::Error(AcceptError::Failed(failure)) if !failure.peers_fault => Severity::Crit,
            _ => Severity::Info,
        }
    }
}

impl<T> fmt::Display for Why<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::TimedOut => f.write_str("client timed out (110: Connection timed out)"),
            Why::Error(AcceptError::Silent) => f.write_str("client closed connection"),
            Why::Error(AcceptError::Closed(error)) => {
                f.write_str("peer closed connection in SSL handshake")?;
                match error.as_ref().filter(|error| error.raw_os_error().is_some()) {
                    Some(error) => write!(f, " ({})", forebay_conf::error::errno_text(error)),
                    None => Ok(()),
                }
            }
            Why::Error(AcceptError::Rejected) => f.write_str("handshake rejected"),
            Why::Error(AcceptError::Failed(failure)) => failure.fmt(f),
            Why::Error(AcceptError::PlainText(..)) => Ok(()),
        }
    }
}

/// Chooses the server, and with it the certificate, by what a client says first.
struct Chooser<'a> {
    plan: &'a PlanHandle,
    listener: &'a Listener,
    names: &'a Names,
    connection: &'a Rc<Connection>,
    /// As in [`Tls`].
    host: Option<Box<[u8]>>,
    server: ServerId,
}

impl Chooser<'_> {
    fn choose(&mut self, hello: &ClientHello<'_>) -> Choice {
        if self.names.has_several()
            && let Some(name) = hello.server_name()
        {
            let mut host = Vec::new();
            let valid = h1::validate_host(name.as_bytes(), &mut host).is_ok();
            if let Some(found) = self.names.find_named(&host).filter(|_| valid) {
                self.server = found.server;
                self.host = Some(host.into());
            }
        }
        let server = self.plan.server(self.server);
        if server.tls.as_ref().is_some_and(|tls| tls.rejects) {
            return Choice::Reject;
        }
        // A server that has no certificates is served under those of the default one.
        let default = self.plan.server(self.names.default);
        let Some(tls) = server.tls.as_ref().or(default.tls.as_ref()) else {
            return Choice::Reject;
        };
        match self.config(tls, hello) {
            Some(config) => Choice::Serve(config),
            None => Choice::Abort,
        }
    }

    fn config(&self, tls: &TlsServer, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        let log = &self.plan.location(self.plan.server(self.server).location).error_log;
        refresh_staples(tls, log);
        let registry = &self.plan.registry;
        let keep_hello = || OFFERS.iter().any(|name| registry.is_used(name));
        let config = tls.config(alpn(self.plan, self.listener, self.server), keep_hello)?;
        let Some(dynamic) = &tls.dynamic else { return Some(config.clone()) };
        let r = self.preliminary(hello);
        match dynamic.load(&r) {
            Ok(pairs) => Some(config.with_certificates(&pairs)),
            Err(why) => {
                let (client, addr) = (&self.connection.remote, &self.listener.addr);
                let log = &self.plan.location(r.location).error_log;
                log.write(
                    Severity::Error,
                    Some(self.connection.number),
                    format_args!("{why} while SSL handshaking, client: {client}, server: {addr}"),
                );
                None
            }
        }
    }

    /// A request to read variables of, before there is one: as in nginx, it is empty, but knows its
    /// connection.
    fn preliminary(&self, hello: &ClientHello<'_>) -> Request {
        let tls = Tls {
            session: None,
            asked: hello.server_name().map(Box::from),
            host: self.host.clone(),
            refused: None,
        };
        let connection = Rc::new(self.connection.with_tls(tls));
        Request::new(self.plan.clone(), connection, self.server, Parts::default())
    }
}

/// The protocols that are offered, and which of the lists it is.
fn alpn(plan: &Plan, listener: &Listener, server: ServerId) -> (usize, &'static [&'static [u8]]) {
    match h2::is_on(plan, listener, server) {
        false => (0, &[b"http/1.1", b"http/1.0", b"http/0.9"]),
        true => (1, &[b"h2", b"http/1.1", b"http/1.0", b"http/0.9"]),
    }
}
