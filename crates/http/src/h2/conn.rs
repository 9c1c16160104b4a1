//! The state of a connection, and how it goes round: read, let streams go on, fill the output, write.
//!
//! Hot path: one read and one write for as many requests as came together; no allocation for those that
//! are answered at once.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use forebay_rt::{
    clock, pool, task,
    timer::{Idle, Timer},
    transport::Transport,
};
use forebay_session::log::Severity;
use forebay_tls::RecordError;
use forebay_wire::h2::{
    self as wire, DEFAULT_WINDOW, ErrorCode, Priority, Violation,
    frame::{self, HEAD_BYTES, MAX_PAYLOAD},
    hpack::{Decoder, Encoder},
    settings::id,
};

use super::{
    Settings,
    calm::Calm,
    client::{Coming, StreamClient},
    output::Output,
    stream::{NEVER, Sent, Stream, Task, Work},
};
use crate::{
    client::ReadFailed,
    core,
    h1::Patience,
    plan::Location,
    request::{Connection, Request},
    worker::{Counters, Listening, Writing},
};

/// What all streams together may have sent us that nobody took: the bound of a connection's memory.
///
/// DIFFERS(h2-connection-window): nginx bounds each stream, but not the connection.
pub const CONNECTION_WINDOW: u32 = 512 << 10;
/// No new frames are read, and no bodies pulled, while that much waits to be written.
const OUTPUT_BYTES: usize = 64 << 10;
/// The same for this many responses, however small: each holds its request until it is written.
const MAX_DONE: usize = 128;
/// The same for the bytes of their requests' heads.
const MAX_DONE_BYTES: usize = 256 << 10;
/// How often a connection goes round before others have their turn.
const MAX_ROUNDS: u32 = 16;
/// How long an idle connection keeps the memory that it does not need.
const WARM_MS: u64 = 1000;
/// How long a client has to answer the first GOAWAY before the second one goes out.
const ANNOUNCED_MS: u64 = 1000;
/// How much a client may send behind the last GOAWAY, to which it does not listen.
const LINGERING_BYTES: u64 = 1 << 20;
/// The PING that goes out with the first GOAWAY.
pub const ANNOUNCING_PING: [u8; 8] = *b"forebay!";

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client has left.
    Gone,
    /// Nothing was asked for; the GOAWAY is written.
    Idle,
    /// The GOAWAY is written, and the client may still be sending.
    Linger,
    /// The client took nothing for `send_timeout`.
    TimedOut {
        /// `reset_timedout_connection`.
        resets: bool,
    },
}

/// What is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The client's preface.
    Preface,
    /// Its SETTINGS.
    FirstFrame,
    /// Anything.
    Open,
}

/// Whether and how the connection is being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It is not.
    No,
    /// The client knows; what it has sent before it knew is served (RFC 9113 §6.8).
    Announced {
        /// When this ends at the latest.
        until_ms: u64,
    },
    /// No new streams; those that are open are finished.
    Final,
    /// It is over but for the writing of the GOAWAY.
    Over(End),
}

/// A field section that has not ended yet.
pub struct Section {
    /// Of which stream.
    pub stream: u32,
    /// What has come of it.
    pub block: Vec<u8>,
    /// Whether the stream ends with it.
    pub end_stream: bool,
    /// When it must be complete (`client_header_timeout`).
    pub until_ms: u64,
}

/// Makes the future that does something with a request.
pub type Start<F> = fn(Request, StreamClient, Task) -> F;

/// A connection.
pub struct Conn<F> {
    pub(super) start: Start<F>,
    pub(super) connection: Rc<Connection>,
    /// Its requests that are not logged yet.
    pub(super) writing: Writing,
    pub(super) listening: Rc<Listening>,
    pub(super) settings: Settings,
    /// Whether the client may ask for other protocols on its streams (RFC 8441).
    pub(super) upgrades: bool,
    pub(super) phase: Phase,
    pub(super) closing: Closing,
    /// What was read and not looked at.
    input: Vec<u8>,
    pub(super) section: Option<Box<Section>>,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) peer: wire::Settings,
    pub(super) settings_are_known: bool,
    pub(super) out: Output,
    pub(super) streams: Vec<Stream<F>>,
    /// Answered; the last of it is in the output.
    pub(super) done: Vec<Request>,
    /// Bytes of the heads of these.
    pub(super) done_bytes: usize,
    pub(super) last_stream: u32,
    /// Streams that we have reset and whose frames may still be on their way.
    pub(super) resets: VecDeque<u32>,
    /// Priorities of streams that are yet to come.
    pub(super) early: Vec<(u32, Priority)>,
    pub(super) send_window: i64,
    pub(super) recv_window: i64,
    /// Bytes of DATA frames that are not yet counted to a request.
    pub(super) data_sent: Sent,
    /// What left our memory and is not yet credited.
    pub(super) recv_due: u32,
    pub(super) calm: Calm,
    pub(super) turn: u64,
    /// When a client that does not let us write is given up.
    write_until_ms: u64,
    /// Until when something must be asked for.
    idle_until_ms: u64,
    idle: Idle,
    warm_until_ms: u64,
}

impl<F: Future<Output = Request>> Conn<F> {
    /// A connection that begins.
    pub fn new(
        start: Start<F>,
        connection: Rc<Connection>,
        listening: Rc<Listening>,
        first: Option<Box<[u8]>>,
    ) -> Conn<F> {
        let (plan, index) = listening.plan(&connection.worker);
        let listener = &plan.listeners[index];
        let server = plan.server(listener.names.default);
        let settings = super::settings(plan.location(server.location));
        let named = match connection.tls.get() {
            None => listener.names.default,
            Some(tls) => tls.default_server(plan.listeners[index].names_of(&connection)),
        };
        let upgrades = plan.server(named).upgrades;
        let mut conn = Conn {
            start,
            writing: Writing::new(connection.worker.clone()),
            connection,
            listening,
            settings,
            upgrades,
            phase: Phase::Preface,
            closing: Closing::No,
            input: first.map(Vec::from).unwrap_or_default(),
            section: None,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            peer: wire::Settings::default(),
            settings_are_known: false,
            out: Output::default(),
            streams: Vec::new(),
            done: Vec::new(),
            done_bytes: 0,
            last_stream: 0,
            resets: VecDeque::new(),
            early: Vec::new(),
            send_window: DEFAULT_WINDOW.into(),
            recv_window: CONNECTION_WINDOW.into(),
            data_sent: Sent::default(),
            recv_due: 0,
            calm: Calm::default(),
            turn: 0,
            write_until_ms: NEVER,
            idle_until_ms: clock::now_ms() + server.settings.client_header_timeout_ms,
            idle: Idle::No,
            warm_until_ms: NEVER,
        };
        conn.greet();
        conn
    }

    /// Our half of the preface (RFC 9113 §3.4).
    fn greet(&mut self) {
        let out = self.out.buf();
        let settings = [
            (id::MAX_CONCURRENT_STREAMS, self.settings.max_concurrent_streams),
            (id::INITIAL_WINDOW_SIZE, self.settings.body_preread_size),
            (id::NO_RFC7540_PRIORITIES, 1),
            (id::ENABLE_CONNECT_PROTOCOL, 1),
        ];
        let len = settings.len() - usize::from(!self.upgrades);
        frame::write_settings(out, &settings[..len]);
        frame::write_window_update(out, 0, CONNECTION_WINDOW - DEFAULT_WINDOW);
    }

    /// Goes on with everything that can go on.
    pub fn poll<T: Transport>(
        &mut self,
        io: &mut T,
        timer: &Timer,
        cx: &mut Context<'_>,
    ) -> Poll<End> {
        if timer.is_shed() {
            self.close(ErrorCode::NoError, End::Idle);
        }
        for _ in 0..MAX_ROUNDS {
            let mut moved = false;
            if let Err(end) = self.read(io, &mut moved, cx) {
                return Poll::Ready(end);
            }
            self.run_woken(&mut moved, cx);
            self.fill(&mut moved, cx);
            self.wind_down();
            if let Err(end) = self.write(io, &mut moved, cx) {
                return Poll::Ready(end);
            }
            if let (Closing::Over(end), true) = (self.closing, self.out.is_empty()) {
                return Poll::Ready(end);
            }
            if !moved {
                return self.wait(timer, cx);
            }
            if task::poll_turn(cx).is_pending() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks at what has come, then reads once more, unless too much waits to be written.
    fn read<T: Transport>(
        &mut self,
        io: &mut T,
        moved: &mut bool,
        cx: &mut Context<'_>,
    ) -> Result<(), End> {
        if matches!(self.closing, Closing::Over(_)) || self.is_congested() {
            return Ok(());
        }
        if !self.input.is_empty() {
            let before = self.input.len();
            if let Err(violation) = self.take_input(cx) {
                self.violated(violation);
                return Ok(());
            }
            *moved |= self.input.len() < before;
            if self.is_congested() {
                return Ok(());
            }
        }
        if self.input.capacity() == 0 {
            self.input = pool::buffer();
        }
        match io.poll_read(cx, &mut self.input) {
            Poll::Ready(Ok(read)) if read > 0 => {
                *moved = true;
                // One read a round: what came is answered before more is looked for.
                if let Err(violation) = self.take_input(cx) {
                    self.violated(violation);
                }
                Ok(())
            }
            Poll::Ready(Err(error)) if RecordError::of(&error).is_some() => {
                self.log(&ReadFailed(&error).to_string());
                Err(End::Gone)
            }
            Poll::Ready(_) => {
                if self.section.is_some() || !self.streams.is_empty() {
                    self.log("client prematurely closed connection");
                }
                Err(End::Gone)
            }
            Poll::Pending => {
                if self.input.is_empty() {
                    pool::recycle(mem::take(&mut self.input));
                }
                Ok(())
            }
        }
    }

    /// Takes whole frames off the input, as long as what they lead to has room.
    fn take_input(&mut self, cx: &mut Context<'_>) -> Result<(), Violation> {
        let mut input = mem::take(&mut self.input);
        let mut at = 0;
        let result = loop {
            if self.phase == Phase::Preface {
                match self.preface(&input) {
                    Ok(0) => break Ok(()),
                    Ok(len) => at = len,
                    Err(violation) => break Err(violation),
                }
            }
            let rest = &input[at..];
            let Some(head) = wire::Head::parse(rest) else { break Ok(()) };
            if head.len > MAX_PAYLOAD {
                let reason = "client sent frame of too large a size";
                break Err(Violation::connection(ErrorCode::FrameSizeError, reason));
            }
            let Some(payload) = rest.get(HEAD_BYTES..HEAD_BYTES + head.len) else {
                break Ok(());
            };
            if let Err(violation) = self.take_frame(&head, payload, cx) {
                break Err(violation);
            }
            at += HEAD_BYTES + head.len;
            if self.is_congested() || matches!(self.closing, Closing::Over(_)) {
                break Ok(());
            }
        };
        input.drain(..at);
        // Room for the largest frame, so that one read may complete it.
        let missing = (HEAD_BYTES + MAX_PAYLOAD).saturating_sub(input.len());
        if !input.is_empty() && input.capacity() - input.len() < missing.min(1024) {
            input.reserve(missing);
        }
        self.input = input;
        result
    }

    /// Whether nothing more is begun before something is written.
    pub(super) fn is_congested(&self) -> bool {
        self.out.len() >= OUTPUT_BYTES
            || self.done.len() >= MAX_DONE
            || self.done_bytes >= MAX_DONE_BYTES
    }

    fn preface(&mut self, input: &[u8]) -> Result<usize, Violation> {
        let len = input.len().min(wire::PREFACE.len());
        if input[..len] != wire::PREFACE[..len] {
            let reason = "client sent invalid connection preface";
            return Err(Violation::connection(ErrorCode::ProtocolError, reason));
        }
        if len < wire::PREFACE.len() {
            return Ok(0);
        }
        self.phase = Phase::FirstFrame;
        Ok(len)
    }

    /// Polls the streams that were woken.
    fn run_woken(&mut self, moved: &mut bool, cx: &mut Context<'_>) {
        let mut at = self.streams.len();
        while at > 0 {
            at -= 1;
            // A stream that ends is replaced by one that was looked at.
            let Some(stream) = self.streams.get_mut(at) else { continue };
            let Some(waker) = &stream.waker else { continue };
            if !waker.take_woken(cx.waker()) {
                continue;
            }
            match &mut stream.work {
                Work::Running(_) => *moved |= self.run(at, cx),
                Work::Sending(sending) => {
                    sending.is_waiting = false;
                    *moved = true;
                }
                _ => {}
            }
        }
    }

    /// Lets the engine go on with a stream; whether that came to something.
    pub(super) fn run(&mut self, at: usize, cx: &mut Context<'_>) -> bool {
        let stream = &mut self.streams[at];
        let Work::Running(future) = &mut stream.work else { return false };
        let polled = match &stream.waker {
            Some(waker) => Pin::new(future).poll(&mut Context::from_waker(waker.waker())),
            None => Pin::new(future).poll(cx),
        };
        if let Poll::Ready(r) = polled {
            stream.work = Work::Moving;
            self.answered(at, r, cx);
            return true;
        }
        // Most requests are answered at once and need no waker of their own. One that waits is polled
        // again with its own in the next round.
        let is_new = stream.waker.is_none();
        if is_new {
            stream.waker = Some(super::wake::StreamWaker::new(cx.waker()));
        }
        self.after_waiting(at);
        is_new
    }

    /// Writes all that is ready.
    fn write<T: Transport>(
        &mut self,
        io: &mut T,
        moved: &mut bool,
        cx: &mut Context<'_>,
    ) -> Result<(), End> {
        let mut written = false;
        let flushed = self.out.poll_flush(io, &mut written, cx);
        *moved |= written;
        match flushed {
            Poll::Ready(Ok(())) => {
                self.write_until_ms = NEVER;
                self.settle();
                Ok(())
            }
            Poll::Ready(Err(_)) => {
                if !self.streams.is_empty() || !self.done.is_empty() {
                    let text = "client prematurely closed connection while sending response";
                    self.log(text);
                }
                Err(End::Gone)
            }
            Poll::Pending => {
                if written || self.write_until_ms == NEVER {
                    let timeout_ms = self.core(|core| core.send_timeout_ms);
                    self.write_until_ms = clock::now_ms().saturating_add(timeout_ms);
                }
                Ok(())
            }
        }
    }

    /// What has been written whole is logged.
    fn settle(&mut self) {
        self.done_bytes = 0;
        let mut done = mem::take(&mut self.done);
        for mut r in done.drain(..) {
            r.completed = true;
            self.finish(r);
        }
        // Its memory is used again.
        self.done = done;
    }

    /// Waits for whatever comes first. The timer may have passed already.
    fn wait(&mut self, timer: &Timer, cx: &mut Context<'_>) -> Poll<End> {
        let now = clock::now_ms();
        let is_idle = self.streams.is_empty() && self.section.is_none() && self.out.is_empty();
        let idle = match is_idle && self.phase == Phase::Open {
            false => Idle::No,
            true if self.connection.requests.get() == 0 => Idle::First,
            true => Idle::Kept,
        };
        if idle != self.idle {
            timer.set_idle(idle);
            if idle == Idle::No {
                (self.idle_until_ms, self.warm_until_ms) = (NEVER, NEVER);
            } else {
                let timeout_ms = self.core(|core| core.keepalive_timeout_ms);
                self.idle_until_ms = now.saturating_add(timeout_ms);
                self.warm_until_ms = now + WARM_MS;
            }
            self.idle = idle;
        }
        if self.phase == Phase::Open && idle == Idle::No {
            self.idle_until_ms = NEVER;
        }
        if now >= self.warm_until_ms {
            self.rest();
        }
        let deadline = self.next_deadline();
        if deadline <= now {
            return self.timed_out(now, cx);
        }
        match deadline {
            NEVER => timer.disarm(),
            deadline => timer.arm(deadline - now),
        }
        match timer.poll_expired(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => self.again(cx),
        }
    }

    fn again(&self, cx: &Context<'_>) -> Poll<End> {
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn next_deadline(&self) -> u64 {
        if let Closing::Over(_) = self.closing {
            // All that is left is to write; what else was to be done in time never will be.
            return self.write_until_ms;
        }
        let section = self.section.as_ref().map_or(NEVER, |section| section.until_ms);
        let announced = match self.closing {
            Closing::Announced { until_ms } => until_ms,
            _ => NEVER,
        };
        let stalled = self.streams.iter().map(|stream| stream.stalled_until_ms).min();
        let own = self.write_until_ms.min(self.idle_until_ms).min(self.warm_until_ms);
        own.min(section).min(announced).min(stalled.unwrap_or(NEVER))
    }

    fn timed_out(&mut self, now: u64, cx: &mut Context<'_>) -> Poll<End> {
        if self.write_until_ms <= now {
            self.log("client timed out (110: Connection timed out) while sending to client");
            let resets = self.core(|core| core.reset_timedout_connection);
            return Poll::Ready(End::TimedOut { resets });
        }
        let is_slow = self.section.as_ref().is_some_and(|section| section.until_ms <= now);
        if is_slow || (self.idle_until_ms <= now && self.phase != Phase::Open) {
            self.log("client timed out (110: Connection timed out) while reading frames");
            self.close(ErrorCode::NoError, End::Linger);
        } else if self.idle_until_ms <= now {
            self.close(ErrorCode::NoError, End::Idle);
        }
        if matches!(self.closing, Closing::Announced { until_ms } if until_ms <= now) {
            self.close_finally();
        }
        while let Some(at) = self.streams.iter().position(|s| s.stalled_until_ms <= now) {
            self.give_up_stalled(at);
        }
        self.again(cx)
    }

    /// Begins or ends the closing of a connection that has served its time.
    fn wind_down(&mut self) {
        let connection = &self.connection;
        let is_unwanted = connection.worker.quitting.get() || self.listening.is_gone();
        if is_unwanted && self.closing == Closing::No {
            self.announce();
        }
        if self.closing == Closing::Final && self.streams.is_empty() {
            self.closing = Closing::Over(End::Linger);
        }
        // Who has nothing on its way can have sent nothing that it would lose, or tries again.
        let is_idle = self.streams.is_empty() && self.section.is_none() && self.input.is_empty();
        if is_unwanted && is_idle && matches!(self.closing, Closing::Announced { .. }) {
            self.close_finally();
        }
    }

    /// Tells the client that the connection will close (RFC 9113 §6.8): it opens no further streams once
    /// it knows, which its answer to the PING says.
    ///
    /// DIFFERS(h2-goaway-twice): nginx sends the last GOAWAY at once (ngx_http_v2_state_headers).
    pub(super) fn announce(&mut self) {
        if self.closing != Closing::No {
            return;
        }
        let out = self.out.buf();
        frame::write_goaway(out, wire::MAX_WINDOW, ErrorCode::NoError);
        frame::write_ping(out, ANNOUNCING_PING, false);
        self.closing = Closing::Announced { until_ms: clock::now_ms() + ANNOUNCED_MS };
    }

    /// From now on streams are refused.
    pub(super) fn close_finally(&mut self) {
        frame::write_goaway(self.out.buf(), self.last_stream, ErrorCode::NoError);
        self.closing = Closing::Final;
    }

    fn close(&mut self, code: ErrorCode, end: End) {
        if !matches!(self.closing, Closing::Over(_)) {
            frame::write_goaway(self.out.buf(), self.last_stream, code);
            self.closing = Closing::Over(end);
        }
    }

    /// The client broke a rule that ends the connection.
    fn violated(&mut self, violation: Violation) {
        self.log(violation.reason);
        if violation.code == ErrorCode::EnhanceYourCalm {
            Counters::up(&self.connection.worker.counters().calmed);
        }
        self.close(violation.code, End::Linger);
    }

    /// The connection is gone: whoever works for it is told, and what was on its way is logged as it
    /// is.
    pub fn abandon(&mut self) {
        for r in mem::take(&mut self.done) {
            self.finish(r);
        }
        for at in (0..self.streams.len()).rev() {
            let stream = &mut self.streams[at];
            stream.reset = true;
            stream.inbox.end(Coming::Gone);
            match mem::replace(&mut stream.work, Work::Moving) {
                Work::Answered(r) => self.drop_stream(at, *r),
                Work::Sending(sending) => {
                    let sending = *sending;
                    self.drop_stream(at, sending.r);
                }
                Work::Draining => _ = self.streams.swap_remove(at),
                running => self.streams[at].work = running,
            }
        }
        self.rest();
    }

    /// Waits until nobody works for it any more.
    pub fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut moved = false;
            self.run_woken(&mut moved, cx);
            self.settle();
            if self.streams.is_empty() {
                return Poll::Ready(());
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// How the client is read on after the last frame.
    ///
    /// DIFFERS(h2-linger): nginx reads on for `lingering_time`, however much comes.
    pub fn patience(&self) -> Patience {
        let (time_ms, timeout_ms) = self.core(|core| match core.lingering_close {
            core::Lingering::Off => (0, 0),
            _ => (core.lingering_time_ms, core.lingering_timeout_ms),
        });
        Patience { time_ms, timeout_ms, bytes: LINGERING_BYTES }
    }

    /// Lets go of what an idle connection does not need.
    fn rest(&mut self) {
        self.warm_until_ms = NEVER;
        self.decoder.rest();
        self.out.shrink();
        self.streams.shrink_to_fit();
        self.done = Vec::new();
        self.early = Vec::new();
        self.resets = VecDeque::new();
    }

    /// The settings of the server that answers where no other is named.
    pub(super) fn core<R>(&self, f: impl FnOnce(&core::Settings) -> R) -> R {
        self.with_location(|location| f(&location.core))
    }

    fn with_location<R>(&self, f: impl FnOnce(&Location) -> R) -> R {
        let (plan, index) = self.listening.plan(&self.connection.worker);
        let server = plan.server(plan.listeners[index].names.default);
        f(plan.location(server.location))
    }

    /// A line about the connection in the error log, as nginx words it.
    pub(super) fn log(&self, text: &str) {
        let client = &self.connection.remote;
        let server = &self.listening.addr;
        self.with_location(|location| {
            location.error_log.write(
                Severity::Info,
                Some(self.connection.number),
                format_args!(
                    "{text} while processing HTTP/2 connection, client: {client}, server: {server}"
                ),
            );
        });
    }
}
