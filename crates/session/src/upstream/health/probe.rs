//! One check of one server: connect, ask, look at the answer.
//!
//! Invariant: whatever the server sends, the answer is yes or no, within the check's timeout.

use std::{
    future::poll_fn,
    io::IoSlice,
    pin::pin,
    task::{Context, Poll, ready},
};

use forebay_rt::{clock, connect, listen::Addr, timer::Timer, transport::Transport};
use forebay_wire::h1::{Progress, ResponseFieldId, ResponseParser};

use super::{Answer, Check, Expect, Heard, Kind, Talk};
use crate::var::VarId;

/// Whether variables are set after an answer.
pub type Holds = dyn Fn(&[VarId], &Answer<'_>) -> bool;

/// How much a server may send to one check, in bytes; NGINX Plus looks at 256 kB of a body.
pub const MAX_RESPONSE: usize = 264 << 10;

/// How much of it may be the head.
const MAX_HEAD: usize = 8 << 10;

/// Why a server is not healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was being done, as in `peer is unhealthy while …`.
    pub stage: &'static str,
    /// It took too long.
    pub timed_out: bool,
}

const SENDING: &str = "sending request";
/// The stage at which a server does not answer, or with nothing that is an answer.
pub const READING: &str = "reading response";

impl Failure {
    /// Whether there was no answer at all, and no time was lost with it.
    fn is_of_connection(self) -> bool {
        !self.timed_out && matches!(self.stage, SENDING | READING)
    }
}

/// A connection that the next check may use.
pub struct Kept {
    stream: Box<dyn Transport>,
    /// What is spoken on it, where that is more than one request and one answer.
    talk: Option<Box<dyn Talk>>,
    made_ms: u64,
    checks: u32,
}

/// How far a request is.
enum Step {
    Sending(usize),
    Reading,
}

/// Asks once; a connection that may be asked again is left in `kept`.
/// `holds`: whether variables are set (`require`).
pub async fn ask(
    check: &Check,
    addr: &Addr,
    kept: &mut Option<Kept>,
    holds: &Holds,
) -> Result<(), Failure> {
    let timer = Timer::new();
    timer.arm(check.timeout_ms);
    let now_ms = clock::now_ms();
    let usable = |kept: &Kept| {
        kept.checks < check.keepalive_requests
            && now_ms.saturating_sub(kept.made_ms) < check.keepalive_time_ms
    };
    let reused = kept.take().filter(usable);
    let was_reused = reused.is_some();
    let first = attempt(check, addr, reused, kept, &timer, holds).await;
    match first {
        // The server may have closed it meanwhile: that says nothing about its health.
        Err(failure) if was_reused && failure.is_of_connection() => {
            attempt(check, addr, None, kept, &timer, holds).await
        }
        result => result,
    }
}

async fn attempt(
    check: &Check,
    addr: &Addr,
    reused: Option<Kept>,
    kept: &mut Option<Kept>,
    timer: &Timer,
    holds: &Holds,
) -> Result<(), Failure> {
    let mut connection = match reused {
        Some(reused) => reused,
        None => {
            let stream = connected(check, addr, timer).await?;
            let talk = match &check.kind {
                Kind::Grpc(dialogue) => Some(dialogue.clone().begin()),
                _ => None,
            };
            Kept { stream, talk, made_ms: clock::now_ms(), checks: 0 }
        }
    };
    if matches!(check.kind, Kind::Tcp) {
        return Ok(());
    }
    let output = match &mut connection.talk {
        Some(talk) => talk.ask(),
        None => request(&check.kind),
    };
    let (step, reader) = (Step::Sending(0), Reader::default());
    let mut exchange = Exchange { check, connection, step, output, reader, holds };
    let result = poll_fn(|cx| match exchange.poll(cx) {
        Poll::Pending => match timer.poll_expired(cx) {
            Poll::Ready(()) => Poll::Ready(Err(Failure { timed_out: true, ..exchange.failure() })),
            Poll::Pending => Poll::Pending,
        },
        ready => ready,
    });
    let may_keep = result.await?;
    if may_keep {
        exchange.connection.checks += 1;
        *kept = Some(exchange.connection);
    }
    Ok(())
}

/// A connection, with hands shaken.
async fn connected(
    check: &Check,
    addr: &Addr,
    timer: &Timer,
) -> Result<Box<dyn Transport>, Failure> {
    let fail = |stage, timed_out| Failure { stage, timed_out };
    let stage = "connecting to upstream";
    let mut socket =
        connect::start(addr, &connect::Options::default()).map_err(|_| fail(stage, false))?;
    let connecting = poll_fn(|cx| connect::poll_connected(&mut socket, cx));
    match within(timer, connecting).await {
        Some(result) => result.map_err(|_| fail(stage, false))?,
        None => return Err(fail(stage, true)),
    }
    let Some(tls) = &check.tls else { return Ok(Box::new(socket)) };
    let stage = "SSL handshaking to upstream";
    match within(timer, forebay_tls::connect(socket, &tls.config, &tls.name)).await {
        Some(Ok((stream, _))) => Ok(Box::new(stream)),
        Some(Err(_)) => Err(fail(stage, false)),
        None => Err(fail(stage, true)),
    }
}

/// What a future comes to; `None`: nothing in time.
async fn within<T>(timer: &Timer, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => timer.poll_expired(cx).map(|()| None),
    })
    .await
}

/// What is sent first.
fn request(kind: &Kind) -> Vec<u8> {
    match kind {
        Kind::Tcp | Kind::Mysql | Kind::Grpc(_) => Vec::new(),
        Kind::Http { request, .. } => request.to_vec(),
        Kind::SslHello => SSL_HELLO.to_vec(),
        // AJP13 §CPing: magic, length 1, code 10.
        Kind::Ajp => b"\x12\x34\x00\x01\x0a".to_vec(),
    }
}

/// A TLS 1.0 record with a ClientHello for TLS 1.2 that any server answers, be it with an alert:
/// random bytes of zero, no session, two cipher suites, no compression, no extension.
const SSL_HELLO: &[u8] = &{
    let mut hello = [0; 52];
    // Handshake, TLS 1.0, 47 bytes; ClientHello, 43 bytes, TLS 1.2.
    let head = [22, 3, 1, 0, 47, 1, 0, 0, 43, 3, 3];
    let mut at = 0;
    while at < head.len() {
        hello[at] = head[at];
        at += 1;
    }
    // After 32 random bytes: no session id; TLS_ECDHE_RSA and TLS_ECDHE_ECDSA with AES 128 GCM.
    let tail = [0, 0, 4, 0xc0, 0x2f, 0xc0, 0x2b, 1, 0];
    let mut n = 0;
    while n < tail.len() {
        hello[43 + n] = tail[n];
        n += 1;
    }
    hello
};

struct Exchange<'a> {
    check: &'a Check,
    connection: Kept,
    step: Step,
    /// What is being sent.
    output: Vec<u8>,
    reader: Reader,
    holds: &'a Holds,
}

impl Exchange<'_> {
    fn failure(&self) -> Failure {
        let stage = match self.step {
            Step::Sending(_) => SENDING,
            Step::Reading => READING,
        };
        Failure { stage, timed_out: false }
    }

    /// Ready: whether the connection may be used again.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Failure>> {
        loop {
            let failure = self.failure();
            let stream = &mut self.connection.stream;
            match self.step {
                Step::Sending(sent) if sent == self.output.len() => self.step = Step::Reading,
                Step::Sending(sent) => {
                    let rest = [IoSlice::new(&self.output[sent..])];
                    let more = ready!(stream.poll_write(cx, &rest, false)).map_err(|_| failure)?;
                    self.step = Step::Sending(sent + more);
                }
                Step::Reading => {
                    let reader = &mut self.reader;
                    let room = MAX_RESPONSE.saturating_sub(reader.taken).min(READ);
                    reader.buf.reserve_exact(room);
                    let read =
                        ready!(stream.poll_read(cx, &mut reader.buf)).map_err(|_| failure)?;
                    reader.taken += read;
                    let end = read == 0 || reader.taken >= MAX_RESPONSE;
                    let verdict = match &mut self.connection.talk {
                        None => reader.look(&self.check.kind, end, self.holds),
                        Some(talk) => match talk.hear(&mut reader.buf, end) {
                            Heard::Verdict(verdict) => Some(verdict),
                            Heard::More(output) => {
                                reader.buf.clear();
                                (self.output, self.step) = (output, Step::Sending(0));
                                None
                            }
                        },
                    };
                    if let Some(verdict) = verdict {
                        let stage = |stage| Failure { stage, timed_out: false };
                        return Poll::Ready(verdict.map_err(stage));
                    }
                }
            }
        }
    }
}

/// Bytes read at once.
const READ: usize = 4096;

/// What has come so far.
#[derive(Default)]
struct Reader {
    buf: Vec<u8>,
    /// How much was read in all.
    taken: usize,
    parser: ResponseParser,
    /// Where the body begins.
    body: Option<usize>,
}

impl Reader {
    /// The verdict, once there is one: whether the connection may be used again, or what was wrong.
    fn look(
        &mut self,
        kind: &Kind,
        end: bool,
        holds: &Holds,
    ) -> Option<Result<bool, &'static str>> {
        let invalid = Some(Err(READING));
        let is = |mark: &[u8]| match self.buf.len() >= mark.len() {
            true => Some(self.buf.starts_with(mark)),
            false if end => Some(false),
            false => None,
        };
        let either = |one: Option<bool>, other: Option<bool>| Some(one? || other?);
        let simple = |right: Option<bool>| Some(right?.then_some(false).ok_or(READING));
        match kind {
            Kind::Http { expect, .. } => self.look_http(expect, end, holds),
            Kind::Tcp | Kind::Grpc(_) => Some(Ok(false)),
            // A handshake, or an alert, as servers that want a newer protocol answer: there is
            // somebody who speaks TLS.
            Kind::SslHello => simple(either(is(&[22, 3]), is(&[21, 3]))),
            // AJP13 §CPong.
            Kind::Ajp => simple(is(b"\x41\x42\x00\x01\x09")),
            // A packet: its length in three bytes, its number, and the version, or 255 for an error.
            Kind::Mysql => match self.buf.get(4) {
                Some(version) => Some((*version != 0xff).then_some(false).ok_or(READING)),
                None if end => invalid,
                None => None,
            },
        }
    }

    fn look_http(
        &mut self,
        expect: &Expect,
        end: bool,
        holds: &Holds,
    ) -> Option<Result<bool, &'static str>> {
        while self.body.is_none() {
            match self.parser.parse(&self.buf, MAX_HEAD) {
                Ok(Progress::Complete { consumed }) if self.parser.head().status / 100 == 1 => {
                    // RFC 9110 §15.2: interim responses come before the one that counts.
                    self.buf.drain(..consumed);
                    self.parser.reset();
                }
                Ok(Progress::Complete { consumed }) => self.body = Some(consumed),
                Ok(_) if end => return Some(Err(READING)),
                Ok(_) => return None,
                Err(_) => return Some(Err(READING)),
            }
        }
        let head = self.parser.head();
        let body_at = self.body?;
        let body = &self.buf[body_at..];
        let length = head
            .value(ResponseFieldId::ContentLength)
            .and_then(|value| forebay_conf::value::number(value.of(&self.buf)));
        let complete = length.is_some_and(|length| body.len() as u64 >= length);
        if !(complete || end) && expect.wants_body() {
            return None;
        }
        let exact = length == Some(body.len() as u64);
        let answer = Answer { head, text: &self.buf, body_at };
        Some(expect.look(&answer, holds).map(|()| exact && !end))
    }
}
