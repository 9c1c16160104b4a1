//! One request to upstream servers, one after another until one answers
//! (`ngx_http_upstream_connect` to `ngx_http_upstream_next`).
//!
//! Hot path: a request over a kept connection, answered in one piece, is one write and one read.
//!
//! Invariant: a request of which a byte was sent goes to a second server only where
//! `proxy_next_upstream` says so for its method, and never after a byte of the response reached the
//! client.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use bytes::Bytes;
use forebay_rt::{clock, connect, errno::Errno, pool, timer::Timer};
use forebay_session::{
    log::Severity,
    upstream::{Group, Lease, Outcome, Pick, Selection, keepalive::Kept, sticky::Stage},
};
use forebay_wire::h1::{Method, ResponseBody, ResponseFraming};

use super::{
    Codec, Outgoing, Protocol, Remains, Session, Settings,
    arrival::{
        Came, Failure, GivenUp, Reading, broken, complain, connect_severity, given_up, tell_failed,
        wants_hints,
    },
    body::{self, Inflow, Origin},
    buffers,
    conn::{Connection, Stream},
    head::{self, Verdict},
    ntlm::{self, Claim},
    outgoing::outgoing,
    queue,
    send::{SendError, Sender},
    settings::Next,
    upgrade::Tunnel,
};
use crate::{
    body::Body,
    body_in::RequestBody,
    client::{self, Client, ReadFailed},
    handler::Flow,
    request::Request,
};

/// Tells connections of a protocol that ALPN has a name for from those of HTTP/1.
const OTHER_PROTOCOL: u64 = 0x9e37_79b9_7f4a_7c15;

const SENDING: &str = "sending request to upstream";

/// A connection in use, and what is known of it.
pub struct Link {
    /// The connection.
    pub stream: Stream,
    /// What its protocol keeps of it.
    pub session: Option<Box<Session>>,
    /// Requests that went over it before.
    pub requests: u64,
    /// When it was made.
    pub made_ms: u64,
    /// See [`Kept::tag`].
    pub tag: u64,
    /// See [`Kept::owner`].
    pub owner: ntlm::Owned,
}

/// A response of which the head is there. It stays in its box: moving it costs more.
struct Arrived<C> {
    link: Link,
    codec: C,
    framing: ResponseFraming,
    /// The head, and what came with it of the body.
    buf: Vec<u8>,
    body_at: usize,
    /// Whether the request was sent whole: else the connection is not used again.
    request_sent: bool,
    /// What sends the rest of it, where that goes on.
    sender: Option<Box<Sender<'static>>>,
}

/// What the connection is at once its servers have been asked (`ngx_http_upstream_finalize_request`).
const ANSWERING: &str = " while sending to client";

/// Passes a request on. The answer is `r.response`, or what the flow says.
pub async fn run<'f, P: Protocol>(
    protocol: &P,
    r: &mut Request,
    client: &mut dyn Client,
) -> Flow<'f> {
    pass(protocol, r, client).await.unwrap_or_else(Flow::Deny)
}

async fn pass<'f, P: Protocol>(
    protocol: &P,
    r: &mut Request,
    client: &mut dyn Client,
) -> Result<Flow<'f>, u16> {
    let job = protocol.prepare(r).await?;
    r.upstream.lead();
    let body = outgoing(protocol, r, &job, client).await?;
    r.upstream.begin(protocol.scheme(&job));
    let mut head = pool::buffer();
    let result = match protocol.write_head(r, &job, &body, &mut head) {
        Ok(()) => ask(protocol, r, client, &job, &head, &body).await,
        Err(status) => Err(status),
    };
    pool::recycle(head);
    result
}

/// Asks one server after another.
async fn ask<'f, P: Protocol>(
    protocol: &P,
    r: &mut Request,
    client: &mut dyn Client,
    job: &P::Job,
    request: &[u8],
    body: &Outgoing,
) -> Result<Flow<'f>, u16> {
    let settings = protocol.settings();
    let group = protocol.group(job).group();
    let mut selection = group.begin(&*r, r.remote().ip());
    let claim = ntlm::begin(r, group, &mut selection);
    selection.limit_tries(settings.next_tries);
    let mut x = Exchange {
        protocol,
        job,
        request,
        body: body.clone(),
        timer: Timer::new(),
        started_ms: clock::now_ms(),
        claim: claim.coming_from(settings.bind.of(r)),
        sent_any: false,
    };
    match ask_servers(&mut x, r, client, group, &mut selection).await {
        Ok((arrived, lease)) => Ok(x.answer(r, arrived, lease, selection)),
        Err(status) => {
            x.give_body_back(r);
            r.main.doing.set(ANSWERING);
            Err(status)
        }
    }
}

/// The first answer that is one, and who gave it.
async fn ask_servers<P: Protocol>(
    x: &mut Exchange<'_, P>,
    r: &mut Request,
    client: &mut dyn Client,
    group: &Group,
    selection: &mut Selection,
) -> Result<(Box<Arrived<P::Codec>>, Lease), u16> {
    loop {
        let lease = match group.pick(selection, clock::now_ms()) {
            Pick::Peer(lease) => lease,
            Pick::Queue(ticket) => {
                queue::wait(r, client, x.settings(), ticket, &group.name).await?;
                continue;
            }
            Pick::NoneLive => {
                r.upstream.nobody(&group.name, 502);
                let text = format_args!("no live upstreams while connecting to upstream");
                r.log_error(Severity::Error, text);
                return Err(502);
            }
        };
        r.upstream.attempt(lease.peer());
        ntlm::asked(r, group, lease.peer());
        let failure = match x.attempt(r, client, &lease).await {
            Ok(mut arrived) => match x.judge(r, &arrived, selection) {
                None => return Ok((arrived, lease)),
                Some(next) => {
                    r.upstream.with(|a| a.header_ms = Some(a.elapsed_ms()));
                    // It is known until another server is asked.
                    let head = Bytes::copy_from_slice(&arrived.buf[..arrived.body_at]);
                    r.upstream.keep_head(arrived.codec.take_head(), head);
                    Failure::Next(next)
                }
            },
            Err(failure) => failure,
        };
        let timings = r.upstream.with(|attempt| {
            attempt.response_ms = Some(attempt.elapsed_ms());
            attempt.timings()
        });
        let (next, late) = match failure {
            Failure::Final(status) => {
                lease.finish(selection, Outcome::Next, timings);
                return Err(status);
            }
            Failure::Next(next) => (next, None),
            Failure::TimedOut(doing) => (Next::TIMEOUT, Some(doing)),
        };
        r.upstream.with(|attempt| attempt.status = next.status());
        let outcome = match next {
            // The server is not to blame.
            Next::HTTP_403 | Next::HTTP_404 | Next::DENIED => Outcome::Next,
            _ => Outcome::Failed,
        };
        let told = lease.finish(selection, outcome, timings);
        tell_failed(r, told, late, timings.connect_ms.is_some());
        if selection.tries() == 0 || !x.may_go_on(r, next) {
            return Err(next.status());
        }
    }
}

/// What stays the same from server to server.
pub(super) struct Exchange<'a, P: Protocol> {
    pub(super) protocol: &'a P,
    job: &'a P::Job,
    request: &'a [u8],
    body: Outgoing,
    timer: Timer,
    started_ms: u64,
    /// Whose connections it is to have.
    claim: Claim,
    /// Whether a byte of the request was sent to anybody.
    sent_any: bool,
}

impl<P: Protocol> Exchange<'_, P> {
    fn settings(&self) -> &Settings {
        self.protocol.settings()
    }

    /// A body that nobody was sent a byte of is as it was: a page for the error may be another server's.
    fn give_body_back(&mut self, r: &mut Request) {
        if let (Outgoing::Stream { begun, .. }, false) = (&mut self.body, self.sent_any) {
            r.body = RequestBody::Begun(std::mem::take(begun));
        }
    }

    /// Whether the request may be sent again, after this failure (`ngx_http_upstream_next`).
    fn may_go_on(&self, r: &Request, next: Next) -> bool {
        let settings = self.settings();
        let mut wanted = next;
        if self.sent_any && !is_idempotent(r) {
            wanted = wanted.with(Next::NON_IDEMPOTENT);
        }
        let late = settings.next_timeout_ms > 0
            && clock::now_ms().saturating_sub(self.started_ms) >= settings.next_timeout_ms;
        settings.next.has(wanted) && !late && !(self.sent_any && self.body.is_stream())
    }

    /// Whether a request that was sent may be sent again over a new connection to the same server.
    fn may_send_again(&self, r: &Request) -> bool {
        let twice = Next::ERROR.with(Next::NON_IDEMPOTENT);
        (is_idempotent(r) || self.settings().next.has(twice)) && !self.body.is_stream()
    }

    /// Whether another server may do better (`ngx_http_upstream_test_next`).
    fn judge(
        &self,
        r: &Request,
        arrived: &Arrived<P::Codec>,
        selection: &Selection,
    ) -> Option<Next> {
        let next = Next::of_status(arrived.codec.head().status)?;
        (selection.tries() > 1 && self.may_go_on(r, next)).then_some(next)
    }

    /// One server, over a kept connection or a new one. A kept one that the server has closed in the
    /// meantime does not count as an attempt.
    async fn attempt(
        &mut self,
        r: &Request,
        client: &mut dyn Client,
        lease: &Lease,
    ) -> Result<Box<Arrived<P::Codec>>, Failure> {
        if !self.protocol.allows(r) {
            let text =
                format_args!("access to upstream server denied while connecting to upstream");
            r.log_error(Severity::Error, text);
            return Err(Failure::Next(Next::DENIED));
        }
        if P::TUNNELS {
            let link = self.connect(r, client, lease).await?;
            return Ok(self.opened(r, link));
        }
        if let Some(link) = self.kept(lease) {
            r.upstream.with(|attempt| attempt.connect_ms = Some(0));
            let mut was_sent = false;
            match self.converse(r, client, link, true, &mut was_sent).await {
                // DIFFERS(stale-connection): nginx takes this for a failure of the server, and asks the
                // next one where `proxy_next_upstream error` says so.
                Err(None) if !was_sent || self.may_send_again(r) => {}
                Err(None) => {
                    broken(r);
                    return Err(Failure::Next(Next::ERROR));
                }
                Err(Some(failure)) => return Err(failure),
                Ok(arrived) => return Ok(arrived),
            }
        }
        let link = self.connect(r, client, lease).await?;
        let mut was_sent = false;
        match self.converse(r, client, link, false, &mut was_sent).await {
            Ok(arrived) => Ok(arrived),
            Err(Some(failure)) => Err(failure),
            Err(None) => Err(Failure::Next(Next::ERROR)),
        }
    }

    /// A connection that is an answer by itself.
    fn opened(&self, r: &Request, link: Link) -> Box<Arrived<P::Codec>> {
        let codec = self.protocol.codec(r, self.job, r.upstream.take_head());
        let framing = ResponseFraming { upgrade: true, ..ResponseFraming::default() };
        let buf = Vec::new();
        Box::new(Arrived {
            link,
            codec,
            framing,
            buf,
            body_at: 0,
            request_sent: true,
            sender: None,
        })
    }

    /// A connection that is kept for this server, and still quiet.
    fn kept(&self, lease: &Lease) -> Option<Link> {
        let group = self.protocol.group(self.job).group();
        let (pool, tag) = (group.pool::<Connection>()?, self.tag());
        loop {
            let kept = pool.take(lease.peer(), tag, clock::now_ms())?;
            let Kept { connection, requests, made_ms, stolen, owner, .. } = kept;
            let connection = if stolen { connection.adopt() } else { Some(connection) };
            if let Some(Connection { stream, session }) = connection
                && session.as_ref().is_none_or(|session| session.is_quiet())
            {
                return Some(Link { stream, session, requests, made_ms, tag, owner });
            }
        }
    }

    /// What connections must have in common to be used for each other's requests.
    fn tag(&self) -> u64 {
        let own = match self.protocol.group(self.job).group().settings.keepalive.local {
            true => self.protocol.tag(),
            false => 0,
        };
        let tls = self.protocol.tls(self.job).map_or(0, |(_, identity)| identity.tag);
        // Over TLS, too: the other end may have agreed to nothing.
        own ^ self.claim.tag ^ tls ^ if self.protocol.alpn().is_some() { OTHER_PROTOCOL } else { 0 }
    }

    async fn connect(
        &self,
        r: &Request,
        client: &mut dyn Client,
        lease: &Lease,
    ) -> Result<Link, Failure> {
        const DOING: &str = "connecting to upstream";
        let settings = self.settings();
        let options = connect::Options {
            bind: self.claim.from,
            keepalive: settings.socket_keepalive,
            rcvbuf: settings.socket_rcvbuf,
            sndbuf: settings.socket_sndbuf,
        };
        let mut socket = match connect::start(&lease.peer().addr, &options) {
            Ok(socket) => socket,
            Err(error) => {
                let severity = connect_severity(&error);
                r.log_error(severity, format_args!("{error} while {DOING}"));
                return Err(match error.by_peer {
                    true => Failure::Next(Next::ERROR),
                    false => Failure::Final(500),
                });
            }
        };
        self.timer.arm(settings.connect_timeout_ms);
        let connected = poll_fn(|cx| {
            if let Poll::Ready(done) = connect::poll_connected(&mut socket, cx) {
                return Poll::Ready(Ok(done));
            }
            self.poll_given_up(client, cx).map(Err)
        })
        .await;
        match connected {
            Ok(Ok(())) => {
                let stream = match self.protocol.tls(self.job) {
                    None => Stream::Plain(socket),
                    Some(tls) => Box::pin(self.shake_hands(r, client, socket, tls)).await?,
                };
                r.upstream.with(|attempt| attempt.connect_ms = Some(attempt.elapsed_ms()));
                let owner = self.claim.owner.clone();
                let (made_ms, tag) = (clock::now_ms(), self.tag());
                Ok(Link { stream, session: None, requests: 0, made_ms, tag, owner })
            }
            Ok(Err(error)) => {
                let cause = Errno(&error);
                r.log_error(
                    Severity::Error,
                    format_args!("connect() failed ({cause}) while {DOING}"),
                );
                Err(Failure::Next(Next::ERROR))
            }
            Err(why) => Err(given_up(r, why, DOING)),
        }
    }

    /// Ready when there is no point in waiting any longer.
    pub(super) fn poll_given_up(
        &self,
        client: &mut dyn Client,
        cx: &mut Context<'_>,
    ) -> Poll<GivenUp> {
        if !self.settings().ignore_client_abort && client.poll_gone(cx).is_ready() {
            return Poll::Ready(GivenUp::ClientGone(client.gone_because()));
        }
        self.timer.poll_expired(cx).map(|()| GivenUp::TimedOut)
    }

    /// Sends the request and reads the head of the response. `Err(None)`: the server has closed the
    /// connection, and not a byte came; the caller says what that means.
    async fn converse(
        &mut self,
        r: &Request,
        client: &mut dyn Client,
        mut link: Link,
        reused: bool,
        was_sent: &mut bool,
    ) -> Result<Box<Arrived<P::Codec>>, Option<Failure>> {
        let settings = self.protocol.settings();
        let core = &r.location().core;
        let (limit, timeout_ms) = (r.body_limit(), core.client_body_timeout_ms);
        let client_timeout_ms = core.send_timeout_ms;
        let mut codec = self.protocol.codec(r, self.job, r.upstream.take_head());
        codec.begin(link.session.take());
        let mut sender = Sender::new(&mut codec, self.request, &self.body, limit, timeout_ms);
        sender.repeatable = is_idempotent(r);
        let mut reading = Reading::new(settings);
        self.timer.arm(settings.send_timeout_ms);
        let (came, hinting) = poll_fn(|cx| {
            if sender.done() {
                r.prefetch();
            }
            let read = loop {
                let sends = !sender.done() || codec.has_output();
                if sends
                    && reading.broken.is_none()
                    && let Some(came) =
                        self.send(&mut sender, &mut codec, &mut link, &mut reading, client, cx)
                {
                    return Poll::Ready((came, false));
                }
                let before = reading.received;
                let read = reading.poll(&mut link.stream, &mut codec, settings.buffer_size, cx);
                // What came may be answered, or allow more to be sent.
                let goes_on = reading.received > before && (!sender.done() || codec.has_output());
                if read.is_ready() || !goes_on || reading.broken.is_some() {
                    break read;
                }
            };
            for fields in reading.hints.drain(..) {
                if wants_hints(r) {
                    client.hint(103, &fields);
                }
            }
            let hinted = client.poll_hints(client_timeout_ms, cx);
            if let Poll::Ready(came) = read {
                // Why nothing could be sent says more than the end that follows.
                let came = match came {
                    Came::End => reading.broken.take().map_or(Came::End, Came::Broken),
                    came => came,
                };
                return Poll::Ready((came, hinted.is_pending()));
            }
            if let Some(error) = reading.broken.take() {
                return Poll::Ready((Came::Broken(error), false));
            }
            self.poll_given_up(client, cx).map(|why| (Came::Nothing(why), false))
        })
        .await;
        if hinting {
            // The answer may not overtake them.
            poll_fn(|cx| client.poll_hints(client_timeout_ms, cx)).await;
        }
        let request_sent = sender.done();
        // A body that comes as it is sent is gone, all the same.
        let unprocessed = matches!(&came, Came::Bad(bad) if bad.unprocessed());
        *was_sent = sender.begun() && (!unprocessed || self.body.is_stream());
        let unanswered = reading.received == 0;
        r.upstream.with(|attempt| {
            attempt.sent += sender.sent;
            attempt.received += reading.received;
        });
        let doing = match request_sent {
            true => "reading response header from upstream",
            false => SENDING,
        };
        // A closed connection that was kept is not the server's fault, nor was the request seen.
        let stale = reused && unanswered;
        self.sent_any |= *was_sent;
        let failure = match came {
            Came::Head { framing, body_at } => {
                // What is left of the request goes on while the response comes.
                // DIFFERS(early-answer-goes-on): nginx stops sending a request body that it has buffered
                // (`ngx_http_upstream_send_request_handler`).
                let goes_on = codec.goes_on() || !request_sent && reading.broken.is_none();
                let sender = goes_on.then(|| Box::new(sender.detach(client)));
                let buf = reading.buf;
                let arrived = Arrived { link, codec, framing, buf, body_at, request_sent, sender };
                return Ok(Box::new(arrived));
            }
            Came::End | Came::Broken(_) if stale => {
                r.upstream.with(|attempt| (attempt.sent, attempt.received) = (0, 0));
                None
            }
            Came::End => {
                broken(r);
                Some(Failure::Next(Next::ERROR))
            }
            Came::Broken(error) => {
                let why = match request_sent {
                    true => ReadFailed(&error).to_string(),
                    false => format!("writev() failed ({})", Errno(&error)),
                };
                r.log_error(Severity::Error, format_args!("{why} while {doing}"));
                Some(Failure::Next(Next::ERROR))
            }
            // DIFFERS(h2-upstream-unprocessed): nginx takes this for a broken response.
            Came::Bad(bad) if unprocessed => {
                let severity = if reused { Severity::Info } else { Severity::Error };
                complain(r, &codec, &reading.buf, bad, severity);
                (!reused).then_some(Failure::Next(Next::ERROR))
            }
            Came::Bad(bad) => {
                complain(r, &codec, &reading.buf, bad, Severity::Error);
                Some(Failure::Next(Next::INVALID_HEADER))
            }
            Came::Nothing(why @ GivenUp::ClientGone(_)) => {
                // nginx begins to read with the first bytes that come (`ngx_http_upstream_process_header`).
                let doing = if unanswered { SENDING } else { doing };
                r.upstream.with(|attempt| attempt.status = codec.head().status);
                Some(given_up(r, why, doing))
            }
            Came::Nothing(why) => Some(given_up(r, why, doing)),
            Came::Client(error) => {
                r.upstream.with(|attempt| attempt.status = codec.head().status);
                client::complain_while(r, error, " while sending request to upstream");
                Some(Failure::Final(error.status()))
            }
            Came::File(error) => {
                let cause = Errno(&error);
                let text = format_args!("pread() of a request body failed ({cause}) while {doing}");
                r.log_error(Severity::Crit, text);
                Some(Failure::Final(500))
            }
        };
        r.upstream.keep_head(codec.take_head(), Bytes::new());
        buffers::give_back(reading.buf);
        let taken = sender.take_back();
        if let Outgoing::Stream { begun, .. } = &mut self.body {
            if *was_sent {
                // What the client sent is gone with the connection.
                self.sent_any = true;
            } else if !taken.is_empty() {
                *begun = [&[std::mem::take(begun)], &taken[..]].concat().concat().into();
            }
        }
        Err(failure)
    }

    /// Sends what can be sent of the request, and minds the time that takes. `Some`: it is over.
    fn send<C: Codec>(
        &self,
        sender: &mut Sender<'_>,
        codec: &mut C,
        link: &mut Link,
        reading: &mut Reading,
        client: &mut dyn Client,
        cx: &mut Context<'_>,
    ) -> Option<Came> {
        let settings = self.settings();
        let (before, was_done) = (sender.sent, sender.done());
        let waited = sender.waits_for_client();
        match sender.poll(codec, &mut link.stream, Some(client), cx) {
            Poll::Ready(Ok(())) if was_done => {}
            Poll::Ready(Ok(())) => self.timer.arm(settings.read_timeout_ms),
            Poll::Ready(Err(SendError::Upstream(error))) => reading.broken = Some(error),
            Poll::Ready(Err(SendError::Client(error))) => return Some(Came::Client(error)),
            Poll::Ready(Err(SendError::File(error))) => return Some(Came::File(error)),
            Poll::Pending if was_done => {}
            Poll::Pending if sender.waits_for_client() => self.timer.disarm(),
            Poll::Pending if sender.sent > before || waited => {
                self.timer.arm(settings.send_timeout_ms);
            }
            Poll::Pending => {}
        }
        None
    }

    /// Makes the response of what has arrived.
    #[expect(clippy::boxed_local, reason = "to take it out of its box is to move it")]
    fn answer<'f>(
        &mut self,
        r: &mut Request,
        mut arrived: Box<Arrived<P::Codec>>,
        lease: Lease,
        mut selection: Selection,
    ) -> Flow<'f> {
        let (framing, body_at, request_sent) =
            (arrived.framing, arrived.body_at, arrived.request_sent);
        let settings = self.protocol.settings();
        let status = arrived.codec.head().status;
        r.main.doing.set(ANSWERING);
        r.upstream.with(|attempt| {
            attempt.status = status;
            attempt.header_ms = Some(attempt.elapsed_ms());
        });
        let sent = request_sent || arrived.sender.is_some();
        let reusable = framing.keep_alive && sent && self.protocol.keeps(self.job);
        if framing.upgrade {
            return self.answer_upgrade(r, *arrived, lease, selection);
        }
        let mut buf = std::mem::take(&mut arrived.buf);
        let came = (buf.len() - body_at) as u64;
        let decoded = arrived.codec.decode(&mut buf, body_at);
        // A head that stays while its body comes is copied: the buffer is the body's.
        let whole = decoded.done;
        let (head_bytes, data, rest) = if whole {
            let bytes = buffers::freeze(buf);
            (bytes.slice(..body_at), bytes.slice(body_at..decoded.data_end), Vec::new())
        } else {
            (Bytes::copy_from_slice(&buf[..body_at]), Bytes::new(), buf)
        };
        let mut head = arrived.codec.take_head();
        head::drop_repeated(r, &mut head, &head_bytes);
        let verdict = head::apply(self.protocol, r, self.job, &head, &head_bytes, &framing);
        r.upstream.keep_head(head, head_bytes);
        if matches!(verdict, Verdict::Respond { buffered: false }) {
            // As in nginx (`ngx_http_upstream_send_response`): what is not buffered is not held back.
            r.limit_rate = Some(0);
        }
        self.bind(r, &verdict, &lease, &selection, whole);
        if whole {
            let (codec, more) = (&mut arrived.codec, decoded.left_over);
            let left_over = codec.left_over().filter(|_| more > 0);
            let (trailers, clean) = (codec.take_trailers(), request_sent && more == 0);
            let remains = if clean { codec.release() } else { Remains::Spent };
            // All that was read counts: the frames of chunks, and what is left over.
            let came = match framing.body {
                ResponseBody::None => 0,
                ResponseBody::Chunked => came,
                _ => (data.len() + more) as u64,
            };
            tell_whole(r, &verdict, came, left_over);
            let group = self.protocol.group(self.job).group();
            let over = (arrived.link, lease, remains, reusable);
            body::finish(group, &r.upstream, over, &mut selection);
            return self.answer_whole(r, verdict, data, trailers);
        }
        let buffered = match verdict {
            Verdict::Respond { buffered } => buffered,
            Verdict::Instead(flow) => {
                // What is left of the body is not worth reading.
                drop((arrived.link, lease));
                r.upstream.with(|attempt| attempt.response_ms = Some(attempt.elapsed_ms()));
                return flow.into_flow();
            }
        };
        r.fit_input();
        let group = self.protocol.group(self.job).clone();
        let origin = Origin { link: arrived.link, lease, selection, reusable };
        let inflow = Inflow::new(
            arrived.codec,
            (origin, arrived.sender),
            group,
            settings,
            buffered,
            r,
            std::mem::take(&mut self.timer),
            rest,
            body_at,
            decoded,
        );
        body::attach(r, inflow, buffered);
        r.response.ends_with_client = !settings.ignore_client_abort;
        if settings.pass_trailers {
            r.response.late_trailers.0 = Some(r.upstream.clone());
        }
        Flow::Done
    }

    /// The response is the last: from now on, the connection is a tunnel.
    fn answer_upgrade<'f>(
        &self,
        r: &mut Request,
        arrived: Arrived<P::Codec>,
        lease: Lease,
        selection: Selection,
    ) -> Flow<'f> {
        let Arrived { link, mut codec, framing, buf, body_at, .. } = arrived;
        let (head, bytes) = (codec.take_head(), Bytes::copy_from_slice(&buf[..body_at]));
        let early = buf[body_at..].to_vec();
        buffers::give_back(buf);
        let verdict = head::apply(self.protocol, r, self.job, &head, &bytes, &framing);
        r.upstream.keep_head(head, bytes);
        if let Verdict::Instead(instead) = verdict {
            return instead.into_flow();
        }
        if P::TUNNELS {
            // Nobody sent one.
            r.response.reason = None;
        }
        let origin = Origin { link, lease, selection, reusable: false };
        let (settings, core) = (self.settings(), &r.location().core);
        r.response.tunnel = Some(Box::new(Tunnel {
            origin,
            early,
            buffer_bytes: self.protocol.tunnel_buffer_bytes(),
            read_timeout_ms: settings.read_timeout_ms,
            send_timeout_ms: settings.send_timeout_ms,
            client_timeout_ms: core.send_timeout_ms,
            state: r.upstream.clone(),
        }));
        r.keep_alive = false;
        Flow::Done
    }

    /// Binds the client to the server, where the group is `sticky`.
    fn bind(
        &self,
        r: &mut Request,
        verdict: &Verdict,
        lease: &Lease,
        selection: &Selection,
        whole: bool,
    ) {
        let servers = self.protocol.group(self.job);
        let group = servers.group();
        if group.settings.sticky.is_none() {
            return;
        }
        let (peer, mut cookie) = (lease.peer(), Vec::new());
        let set = group.set_cookie(&*r, selection, peer, clock::wall_ms() / 1000, &mut cookie);
        if set && matches!(verdict, Verdict::Respond { .. }) {
            r.response.add("Set-Cookie", cookie);
        }
        group.learn(&*r, peer, Stage::Header, clock::now_ms());
        if whole {
            group.learn(&*r, peer, Stage::End, clock::now_ms());
        } else {
            let (servers, peer) = (servers.clone(), peer.clone());
            r.upstream.at_end(Box::new(move |r| {
                servers.group().learn(r, &peer, Stage::End, clock::now_ms());
            }));
        }
    }

    /// All of the response is there, and its connection is free before the client has got a byte.
    fn answer_whole<'f>(
        &self,
        r: &mut Request,
        verdict: Verdict,
        data: Bytes,
        trailers: Vec<crate::response::Field>,
    ) -> Flow<'f> {
        if !trailers.is_empty() {
            if self.protocol.settings().pass_trailers {
                r.response.trailers.extend(trailers.iter().cloned());
            }
            r.upstream.keep_trailers(trailers);
        }
        match verdict {
            Verdict::Instead(flow) => flow.into_flow(),
            Verdict::Respond { .. } => {
                r.response.body = if data.is_empty() { Body::Empty } else { Body::Bytes(data) };
                Flow::Done
            }
        }
    }
}

/// The response is complete, `came` bytes with its framing.
fn tell_whole(r: &Request, verdict: &Verdict, came: u64, left_over: Option<String>) {
    // What nobody is shown was not read, as nginx sees it.
    let shown = matches!(verdict, Verdict::Respond { .. });
    r.upstream.with(|attempt| {
        attempt.response_ms = Some(attempt.elapsed_ms());
        attempt.response_length = if shown { came } else { 0 };
        attempt.is_passed_on = shown;
    });
    if let Some(text) = left_over {
        r.log_error(Severity::Warn, format_args!("{text}"));
    }
}

/// RFC 9110 §9.2.2, as nginx takes it.
fn is_idempotent(r: &Request) -> bool {
    !matches!(r.method, Method::Post | Method::Lock | Method::Patch)
}
