//! What frames do: open streams, bring bodies, move windows, or break a rule.
//!
//! Answers the state handlers of ngx_http_v2.c. RFC 9113 §5 and §6.
//!
//! *Invariant:* every field section is decompressed, even for a stream that nobody wants: the tables of
//! both sides must stay the same (RFC 9113 §4.3).

use std::{cell::RefCell, future::Future, mem, task::Context};

use forebay_rt::{clock, pool::Pooled, task};
use forebay_session::log::{Severity, Shown};
use forebay_wire::{
    Reject,
    h1::{self, BodyLength, FieldId, Method},
    h2::{
        self as wire, DEFAULT_WINDOW, ErrorCode, Frame, MAX_WINDOW, Priority, Refusal,
        RequestBuilder, Scope, Violation,
        frame::{self, kind},
        hpack,
        request::is_trailer,
    },
};

use super::{
    calm::cost,
    client::{Coming, Inbox, StreamClient},
    conn::{ANNOUNCING_PING, CONNECTION_WINDOW, Closing, Conn, Phase, Section},
    head,
    stream::{NEVER, Sent, Stream, Task, Work},
    tunnel,
};
use crate::{
    h1::identify,
    plan::Plan,
    request::{Parts, Request},
    target,
    worker::Counters,
};

/// How many streams that we have reset are remembered: as many as may have frames on their way.
const MAX_RESETS: usize = 256;
/// How many priorities of streams to come are kept.
const MAX_EARLY: usize = 16;
/// What a compressed field section may have beyond `large_client_header_buffers`: Huffman codes of odd
/// bytes are longer than they are.
const SECTION_SLACK: usize = 8 << 10;
/// How many bytes of heads all open streams may have together: the rest of a connection's bound of memory.
/// A few bytes of HPACK name kilobytes again and again.
const MAX_HEADS_BYTES: usize = 384 << 10;
/// Up to so many streams, they cannot have that many.
const FEW_STREAMS: usize = 8;
/// The window of a body that somebody reads.
const READ_WINDOW: u32 = 256 << 10;
/// How many sets of request memory a thread keeps.
const KEPT_PARTS: usize = 256;
/// How large the buffers of heads are that it keeps with them.
const KEPT_HEAD_BYTES: usize = 4096;
/// What a request weighs in a turn of its connection: as many as there may be streams, while others wait.
const REQUEST_WORK: usize = 512;

thread_local! {
    static PARTS: RefCell<Vec<(Parts, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// Takes a finished request apart for the next one.
pub fn recycle(mut r: Request) {
    let buf = match std::rc::Rc::get_mut(&mut r.input) {
        Some(input) => mem::take(&mut input.buf),
        None => Vec::new(),
    };
    let parts = r.into_parts();
    PARTS.with_borrow_mut(|kept| {
        if kept.len() < KEPT_PARTS && buf.capacity() <= KEPT_HEAD_BYTES {
            kept.push((parts, buf));
        }
    });
}

fn connection(code: ErrorCode, reason: &'static str) -> Violation {
    Violation::connection(code, reason)
}

impl<F: Future<Output = Request>> Conn<F> {
    /// A whole frame has come.
    pub(super) fn take_frame(
        &mut self,
        head: &wire::Head,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), Violation> {
        if self.phase == Phase::FirstFrame {
            if head.kind != kind::SETTINGS || head.flags & frame::flag::ACK != 0 {
                let reason = "client sent another frame before SETTINGS";
                return Err(connection(ErrorCode::ProtocolError, reason));
            }
            self.phase = Phase::Open;
        }
        if let Some(section) = &self.section
            && (head.kind != kind::CONTINUATION || head.stream != section.stream)
        {
            let reason = "client sent inappropriate frame while CONTINUATION was expected";
            return Err(connection(ErrorCode::ProtocolError, reason));
        }
        let taken = frame::parse(head, payload).and_then(|frame| self.obey(head, frame, cx));
        match taken {
            Err(violation) if violation.scope == Scope::Stream => {
                self.stream_violated(head.stream, violation)
            }
            other => other,
        }
    }

    fn obey(
        &mut self,
        head: &wire::Head,
        frame: Frame<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Violation> {
        match frame {
            Frame::Data { data, end_stream } => self.data(head, data, end_stream),
            Frame::Headers { block, end_stream, end_headers: true } => {
                self.section(head.stream, block, end_stream, head.len, cx)
            }
            Frame::Headers { block, end_stream, .. } => {
                check_new_id(head.stream)?;
                let timeout_ms = self.core(|core| core.client_header_timeout_ms);
                self.section = Some(Box::new(Section {
                    stream: head.stream,
                    block: block.to_vec(),
                    end_stream,
                    until_ms: clock::now_ms().saturating_add(timeout_ms),
                }));
                Ok(())
            }
            Frame::Continuation { block, end_headers } => self.continuation(block, end_headers, cx),
            Frame::Priority => self.spend(cost::PRIORITY),
            Frame::PriorityUpdate { stream, value } => self.priority_update(stream, value),
            Frame::Reset(_) => self.reset_by_client(head.stream),
            Frame::Settings(entries) => self.peer_settings(entries),
            Frame::SettingsAck => {
                self.settings_are_known = true;
                self.spend(cost::OTHER)
            }
            Frame::Ping(opaque) => {
                self.spend(cost::PING)?;
                frame::write_ping(self.out.buf(), opaque, true);
                Ok(())
            }
            Frame::PingAck(opaque) => {
                let is_ours = opaque == ANNOUNCING_PING;
                if is_ours && matches!(self.closing, Closing::Announced { .. }) {
                    self.close_finally();
                }
                self.spend(cost::OTHER)
            }
            // The client will not open further streams; it may still use those that it has.
            Frame::GoAway { .. } => self.spend(cost::OTHER),
            Frame::WindowUpdate(increment) => self.window_update(head.stream, increment),
            Frame::Unknown => self.spend(cost::OTHER),
        }
    }

    fn spend(&mut self, cost: u32) -> Result<(), Violation> {
        self.calm.spend(cost, clock::now_ms())
    }

    fn find(&self, id: u32) -> Option<usize> {
        self.streams.iter().rposition(|stream| stream.id == id && !stream.is_after)
    }

    /// Whether a stream has not been opened yet: the client may not have sent that. One that came too
    /// late for us has been.
    fn is_idle(&self, id: u32) -> bool {
        (id > self.last_stream && !self.resets.contains(&id)) || id.is_multiple_of(2)
    }

    /// Ends a stream for what the client did on it.
    fn stream_violated(&mut self, id: u32, violation: Violation) -> Result<(), Violation> {
        let Some(at) = self.find(id).filter(|at| !self.streams[*at].reset) else {
            // There is no stream left to end.
            return Err(Violation { scope: Scope::Connection, ..violation });
        };
        self.log(violation.reason);
        self.spend(cost::RESET)?;
        self.reset_stream(at, violation.code, Coming::Malformed);
        Ok(())
    }

    /// Sends RST_STREAM. Its slot is free when the work behind it has ended.
    pub(super) fn reset_stream(&mut self, at: usize, code: ErrorCode, told: Coming) {
        let stream = &self.streams[at];
        let (id, client_done) = (stream.id, stream.client_done);
        frame::write_reset(self.out.buf(), id, code);
        if !client_done {
            self.remember_reset(id);
        }
        self.end_on_wire(at, told);
    }

    /// Frames of that stream may still come, and mean nothing.
    pub(super) fn remember_reset(&mut self, id: u32) {
        if self.resets.len() >= MAX_RESETS {
            self.resets.pop_front();
        }
        self.resets.push_back(id);
    }

    /// Nothing is sent on the stream any more.
    fn end_on_wire(&mut self, at: usize, told: Coming) {
        let stream = &mut self.streams[at];
        stream.reset = true;
        stream.client_done = true;
        stream.stalled_until_ms = NEVER;
        stream.inbox.end(told);
        match mem::replace(&mut stream.work, Work::Moving) {
            Work::Answered(r) => self.drop_stream(at, *r),
            Work::Sending(sending) => {
                let sending = *sending;
                self.drop_stream(at, sending.r);
            }
            Work::Draining => _ = self.streams.swap_remove(at),
            running => stream.work = running,
        }
    }

    fn reset_by_client(&mut self, id: u32) -> Result<(), Violation> {
        if self.is_idle(id) {
            let reason = "client sent RST_STREAM frame for idle stream";
            return Err(connection(ErrorCode::ProtocolError, reason));
        }
        match self.find(id).filter(|at| !self.streams[*at].reset) {
            Some(at) => {
                self.spend(cost::RESET)?;
                self.end_on_wire(at, Coming::Gone);
                Ok(())
            }
            None => self.spend(cost::OTHER),
        }
    }

    fn data(&mut self, head: &wire::Head, data: &[u8], end: bool) -> Result<(), Violation> {
        let len = head.len as i64;
        self.recv_window -= len;
        if self.recv_window < 0 {
            let reason = "client violated connection flow control";
            return Err(connection(ErrorCode::FlowControlError, reason));
        }
        let id = head.stream;
        if self.is_idle(id) {
            let reason = "client sent DATA frame for idle stream";
            return Err(connection(ErrorCode::ProtocolError, reason));
        }
        if data.is_empty() && !end {
            self.spend(cost::EMPTY_DATA)?;
        }
        let Some(at) = self.find(id).filter(|at| !self.streams[*at].reset) else {
            if !self.resets.contains(&id) {
                let reason = "client sent DATA frame for closed stream";
                return Err(connection(ErrorCode::StreamClosed, reason));
            }
            self.credit_connection(head.len);
            return self.spend(cost::OTHER);
        };
        let stream = &mut self.streams[at];
        let refusal = if stream.client_done {
            Some((ErrorCode::StreamClosed, "client sent DATA frame for half-closed stream"))
        } else if stream.recv_window < len {
            Some((ErrorCode::FlowControlError, "client violated flow control"))
        } else {
            None
        };
        if let Some((code, reason)) = refusal {
            self.credit_connection(head.len);
            return Err(Violation::stream(code, reason));
        }
        stream.recv_window -= len;
        if stream.malformed {
            stream.client_done = end;
            self.credit_connection(head.len);
            return Ok(());
        }
        match stream.announced.map(|left| left.checked_sub(data.len() as u64)) {
            Some(None) => return self.mismatched(at, head, end, "client sent too much DATA"),
            Some(Some(left)) if end && left > 0 => {
                return self.mismatched(at, head, end, "client sent less DATA than it announced");
            }
            left => stream.announced = left.flatten(),
        }
        stream.inbox.count(data.len());
        if matches!(stream.work, Work::Draining) {
            if end {
                self.streams.swap_remove(at);
            }
            self.credit_connection(head.len);
            return Ok(());
        }
        if !data.is_empty() {
            stream.inbox.push(data);
        }
        if end {
            stream.client_done = true;
            stream.inbox.end(Coming::Nothing);
        }
        // Padding is nobody's to take.
        let padding = head.len - data.len();
        stream.recv_window += padding as i64;
        if padding > 0 {
            if !end {
                frame::write_window_update(self.out.buf(), id, padding as u32);
            }
            self.credit_connection(padding);
        }
        Ok(())
    }

    /// A body is not as long as was announced (RFC 9113 §8.1.1). Who reads it answers with 400, as in
    /// nginx (`ngx_http_v2_process_request_body`), and the error follows the answer.
    fn mismatched(
        &mut self,
        at: usize,
        head: &wire::Head,
        end: bool,
        reason: &'static str,
    ) -> Result<(), Violation> {
        self.credit_connection(head.len);
        let stream = &mut self.streams[at];
        if !matches!(stream.work, Work::Running(_)) {
            return Err(Violation::stream(ErrorCode::ProtocolError, reason));
        }
        stream.malformed = true;
        stream.client_done = end;
        stream.inbox.end(Coming::Mismatched);
        self.log(reason);
        self.spend(cost::RESET)
    }

    /// So many bytes have left the memory of the connection: the client may send as many again.
    pub(super) fn credit_connection(&mut self, bytes: usize) {
        self.recv_due += bytes as u32;
        if self.recv_due >= CONNECTION_WINDOW / 4 {
            let due = mem::take(&mut self.recv_due);
            self.recv_window += i64::from(due);
            frame::write_window_update(self.out.buf(), 0, due);
        }
    }

    /// After a handler had its turn and waits: what it has taken may come again, and more if it reads.
    pub(super) fn after_waiting(&mut self, at: usize) {
        let stream = &mut self.streams[at];
        if !stream.reset {
            // DIFFERS(h2-continue): nginx says this in HTTP/1 only (ngx_http_test_expect).
            if stream.inbox.take_continue() {
                let out = self.out.buf();
                let len = head::write_interim(100, &[], stream.id, &mut self.encoder, out);
                stream.sent.add(Sent { head: len as u64, body: 0 });
            }
            for (status, fields) in stream.inbox.take_hints() {
                let out = self.out.buf();
                let len = head::write_interim(status, &fields, stream.id, &mut self.encoder, out);
                stream.sent.add(Sent { head: len as u64, body: 0 });
            }
        }
        let taken = stream.inbox.take_taken();
        if !stream.client_done {
            let preread = self.settings.body_preread_size;
            let is_read = stream.inbox.is_read();
            let target = i64::from(if is_read { preread.max(READ_WINDOW) } else { preread });
            let missing = target - stream.recv_window - stream.inbox.len() as i64;
            if missing >= (target / 2).max(1) {
                stream.recv_window += missing;
                frame::write_window_update(self.out.buf(), stream.id, missing as u32);
            }
        }
        if taken > 0 {
            self.credit_connection(taken);
        }
    }

    fn window_update(&mut self, id: u32, increment: u32) -> Result<(), Violation> {
        self.spend(cost::WINDOW_UPDATE)?;
        let max = i64::from(MAX_WINDOW);
        if id == 0 {
            self.send_window += i64::from(increment);
            if self.send_window > max {
                let reason = "client violated connection flow control: too large window";
                return Err(connection(ErrorCode::FlowControlError, reason));
            }
            return Ok(());
        }
        if self.is_idle(id) {
            let reason = "client sent WINDOW_UPDATE frame for idle stream";
            return Err(connection(ErrorCode::ProtocolError, reason));
        }
        let Some(at) = self.find(id).filter(|at| !self.streams[*at].reset) else { return Ok(()) };
        let stream = &mut self.streams[at];
        stream.send_window += i64::from(increment);
        if stream.send_window > max {
            let reason = "client violated flow control: too large window";
            return Err(Violation::stream(ErrorCode::FlowControlError, reason));
        }
        Ok(())
    }

    fn peer_settings(&mut self, entries: &[u8]) -> Result<(), Violation> {
        self.spend(cost::SETTINGS + self.streams.len() as u32 / 8)?;
        let before = self.peer.initial_window;
        self.peer.apply(entries)?;
        self.encoder.peer_table_size(self.peer.header_table_size);
        // RFC 9113 §6.9.2: windows may become negative by that.
        let change = i64::from(self.peer.initial_window) - i64::from(before);
        for stream in &mut self.streams {
            stream.send_window += change;
            if stream.send_window > i64::from(MAX_WINDOW) {
                let reason = "client sent SETTINGS frame that makes a window too large";
                return Err(connection(ErrorCode::FlowControlError, reason));
            }
        }
        frame::write_settings_ack(self.out.buf());
        Ok(())
    }

    fn priority_update(&mut self, id: u32, value: &[u8]) -> Result<(), Violation> {
        self.spend(cost::PRIORITY)?;
        let priority = Priority::parse(value);
        if let Some(at) = self.find(id) {
            self.streams[at].priority = Some(priority);
        } else if id > self.last_stream && id % 2 == 1 {
            self.early.retain(|(known, _)| *known != id && *known > self.last_stream);
            if self.early.len() < MAX_EARLY {
                self.early.push((id, priority));
            }
        }
        Ok(())
    }

    fn continuation(
        &mut self,
        block: &[u8],
        end_headers: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), Violation> {
        self.spend(cost::CONTINUATION)?;
        let limit = self.section_limit();
        let Some(section) = &mut self.section else {
            let reason = "client sent unexpected CONTINUATION frame";
            return Err(connection(ErrorCode::ProtocolError, reason));
        };
        if section.block.len() + block.len() > limit {
            let reason = "client exceeded large_client_header_buffers";
            return Err(connection(ErrorCode::EnhanceYourCalm, reason));
        }
        section.block.extend_from_slice(block);
        if !end_headers {
            return Ok(());
        }
        let Some(section) = self.section.take() else { return Ok(()) };
        let Section { stream, block, end_stream, .. } = *section;
        let taken = self.section(stream, &block, end_stream, block.len(), cx);
        match taken {
            Err(violation) if violation.scope == Scope::Stream => {
                self.stream_violated(stream, violation)
            }
            other => other,
        }
    }

    /// How much a field section may have.
    fn section_limit(&self) -> usize {
        self.core(|core| {
            let (number, bytes) = core.large_client_header_buffers;
            number.saturating_mul(bytes).saturating_add(SECTION_SLACK)
        })
    }

    /// So many bytes of fields came out of one block.
    fn decompressed(&mut self, bytes: usize) -> Result<(), Violation> {
        // No head of the default size has as many.
        match bytes >> 12 {
            0..=16 => Ok(()),
            pieces => self.spend((pieces as u32).saturating_mul(cost::EXPANSION)),
        }
    }

    /// A whole field section: a request, or trailers.
    fn section(
        &mut self,
        id: u32,
        block: &[u8],
        end_stream: bool,
        len: usize,
        cx: &mut Context<'_>,
    ) -> Result<(), Violation> {
        check_new_id(id)?;
        if id <= self.last_stream {
            return self.trailers(id, block, end_stream);
        }
        let is_late = match self.closing {
            Closing::No => false,
            // A client that does not heed the GOAWAY is not waited for, for ever.
            Closing::Announced { until_ms } => until_ms <= clock::now_ms(),
            Closing::Final | Closing::Over(_) => true,
        };
        let is_one_too_many = self.streams.len() >= self.settings.max_concurrent_streams as usize
            || self.heads_are_too_many();
        if is_late || is_one_too_many {
            self.skip(block)?;
            if is_late {
                // RFC 9113 §6.8: what else comes on it is ignored, too.
                self.remember_reset(id);
                return self.spend(cost::OTHER);
            }
            self.last_stream = id;
            frame::write_reset(self.out.buf(), id, ErrorCode::RefusedStream);
            self.remember_reset(id);
            self.log("concurrent streams exceeded");
            return self.spend(cost::RESET);
        }
        self.last_stream = id;
        task::worked(REQUEST_WORK);
        self.open(id, block, end_stream, len, cx)
    }

    /// DIFFERS(h2-heads-bound): nginx bounds each head, and how many there are.
    fn heads_are_too_many(&self) -> bool {
        self.streams.len() > FEW_STREAMS
            && self.streams.iter().map(|stream| stream.head_bytes).sum::<usize>() > MAX_HEADS_BYTES
    }

    /// Decompresses what nobody wants.
    fn skip(&mut self, block: &[u8]) -> Result<(), Violation> {
        let mut size = 0;
        self.decoder.decode(block, |field| size += weight(field)).map_err(broken_block)?;
        self.decompressed(size)
    }

    /// Fields behind a request body.
    ///
    /// DIFFERS(h2-request-trailers): nginx takes them for a HEADERS frame of a wrong stream; here they are
    /// checked and dropped, as RFC 9110 §6.5.1 allows.
    fn trailers(&mut self, id: u32, block: &[u8], end_stream: bool) -> Result<(), Violation> {
        let limit = self.section_limit();
        let (mut good, mut size) = (true, 0);
        let decoded = self.decoder.decode(block, |field| {
            size += weight(field);
            good = good && size <= limit && is_trailer(field);
        });
        decoded.map_err(broken_block)?;
        self.decompressed(size)?;
        let Some(at) = self.find(id).filter(|at| !self.streams[*at].reset) else {
            if self.resets.contains(&id) {
                return self.spend(cost::OTHER);
            }
            let reason = "client sent HEADERS frame for closed stream";
            return Err(connection(ErrorCode::StreamClosed, reason));
        };
        let stream = &mut self.streams[at];
        if stream.client_done {
            let reason = "client sent HEADERS frame for half-closed stream";
            return Err(Violation::stream(ErrorCode::StreamClosed, reason));
        }
        if !good || !end_stream || stream.announced.is_some_and(|left| left > 0) {
            let reason = "client sent malformed trailers";
            return Err(Violation::stream(ErrorCode::ProtocolError, reason));
        }
        stream.client_done = true;
        stream.inbox.end(Coming::Nothing);
        if matches!(stream.work, Work::Draining) {
            self.streams.swap_remove(at);
        }
        Ok(())
    }

    /// A request: reads it, and lets the engine begin.
    fn open(
        &mut self,
        id: u32,
        block: &[u8],
        end_stream: bool,
        len: usize,
        cx: &mut Context<'_>,
    ) -> Result<(), Violation> {
        let connection = &self.connection;
        let (plan, index) = self.listening.plan(&connection.worker);
        let names = plan.listeners[index].names_of(connection);
        let default = match connection.tls.get() {
            None => names.default,
            Some(tls) => tls.default_server(names),
        };
        let options = plan.server(default).settings.head;
        let (mut parts, buf) = PARTS.with_borrow_mut(Vec::pop).unwrap_or_default();
        let input = parts.input();
        input.begin(buf, false);
        let mut builder = RequestBuilder::new(&mut input.buf, &mut input.head, &options)
            .connect_protocol(self.upgrades);
        let by_host = |sent: &[u8]| Some(names.settings_for(sent, &plan)?.head);
        if names.heads_differ {
            builder = builder.options_by_host(&by_host);
        }
        let mut size = 0;
        let decoded = self.decoder.decode(block, |field| {
            size += weight(field);
            builder.field(field);
        });
        let framing = builder.finish(end_stream);
        decoded.map_err(broken_block)?;
        Counters::up(&connection.worker.counters().requests);
        self.writing.up();
        connection.requests.set(connection.requests.get() + 1);
        let mut r = Request::new(plan.clone(), connection.clone(), default, parts);
        r.bytes_read = len as u64;
        let framing = framing.and_then(|framing| {
            let input = r.input_mut();
            input.framing = framing;
            if framing.upgrade {
                tunnel::offer(input);
            }
            let resolved = target::resolve(&mut r, &plan, names).inspect_err(|_| {
                // The page for it is that of a request without a body.
                r.input_mut().framing.body = BodyLength::None;
            });
            resolved.and_then(|()| check_connect(&r)).inspect_err(|_| {
                // Nor has nginx written it yet when a host or path is none.
                r.input_mut().head.request_line = Default::default();
            })?;
            Ok(framing)
        });
        if let Err(Refusal::Reject(reject)) = framing
            && matches!(reject, Reject::NoHost | Reject::ContentLength | Reject::Trace)
        {
            // Found when the target was known: who answers is who would have.
            identify(&mut r, &plan, names, reject == Reject::NoHost);
        }
        r.keep_alive = true;
        skipped(&mut r);
        let task = match framing {
            Ok(_) => Task::Answer,
            Err(refusal) => Task::Reject(refused(&r, refusal)),
        };
        let malformed = matches!(framing, Err(Refusal::Malformed(_)));
        let (expects, announced) = match framing {
            Ok(framing) => match framing.body {
                BodyLength::Length(length) => (framing.expect_continue, Some(length)),
                _ => (framing.expect_continue, None),
            },
            Err(_) => (false, None),
        };
        self.push(id, r, task, end_stream, expects, announced);
        let at = self.streams.len() - 1;
        self.streams[at].malformed = malformed;
        // Before what may end the connection: nobody would wake a stream that has not run yet.
        self.run(at, cx);
        if malformed {
            // It counts as one that we were made to reset.
            self.spend(cost::RESET)?;
        }
        self.decompressed(size)?;
        self.wear(&plan, index);
        Ok(())
    }

    /// Begins work on a request.
    pub(super) fn push(
        &mut self,
        id: u32,
        r: Request,
        task: Task,
        client_done: bool,
        expects_continue: bool,
        announced: Option<u64>,
    ) {
        let priority = r.input.field(FieldId::Priority).map(Priority::parse);
        let early = self.early.iter().find(|(known, _)| *known == id);
        let priority = early.map(|(_, priority)| *priority).or(priority);
        let head_bytes = r.input.buf.len();
        let inbox = Inbox::new(if client_done { Coming::Nothing } else { Coming::More });
        let client = StreamClient::new(inbox.clone(), expects_continue);
        let preread = self.settings.body_preread_size;
        // Until the client has read our settings, it may send what it always may.
        let window = if self.settings_are_known { preread } else { preread.max(DEFAULT_WINDOW) };
        self.streams.push(Stream {
            id,
            work: Work::Running(Pooled::new(|| (self.start)(r, client, task))),
            inbox,
            waker: None,
            client_done,
            reset: false,
            malformed: false,
            is_after: false,
            send_window: self.peer.initial_window.into(),
            recv_window: window.into(),
            announced,
            head_bytes,
            sent: Sent::default(),
            outbox: None,
            end_sent: false,
            priority,
            turn: 0,
            stalled_until_ms: NEVER,
        });
    }

    /// `keepalive_requests`, `keepalive_time`, and `keepalive_timeout 0`.
    fn wear(&mut self, plan: &Plan, index: usize) {
        if self.closing != Closing::No {
            return;
        }
        let server = plan.server(plan.listeners[index].names.default);
        let core = &plan.location(server.location).core;
        let connection = &self.connection;
        let is_worn = connection.requests.get() >= core.keepalive_requests
            || clock::now_ms() - connection.started_ms > core.keepalive_time_ms
            || core.keepalive_timeout_ms == 0;
        if is_worn {
            self.announce();
        }
    }
}

/// Whether a CONNECT comes where there are tunnels; else nginx misses its path.
fn check_connect(r: &Request) -> Result<(), Reject> {
    if r.method != Method::Connect {
        return Ok(());
    }
    match r.plan.server(r.server).settings.takes_connect {
        true => h1::check_connect(&r.input.head, &r.input.framing, true),
        false => Err(Reject::InvalidRequest),
    }
}

/// What it takes to look at a field.
fn weight(field: hpack::Field<'_>) -> usize {
    field.name.len() + field.value.len()
}

fn broken_block(_: hpack::Invalid) -> Violation {
    connection(ErrorCode::CompressionError, "client sent invalid header block")
}

/// Streams of clients have odd numbers (RFC 9113 §5.1.1).
fn check_new_id(id: u32) -> Result<(), Violation> {
    if id % 2 == 1 {
        return Ok(());
    }
    let reason = "client sent HEADERS frame with incorrect identifier";
    Err(connection(ErrorCode::ProtocolError, reason))
}

/// Tells of fields that were passed over (`ignore_invalid_headers`).
fn skipped(r: &mut Request) {
    if r.input.head.skipped.is_empty() {
        return;
    }
    // nginx tells of them as they come, and has no request line then.
    let line = mem::take(&mut r.input_mut().head.request_line);
    for name in &r.input.head.skipped {
        let name = Shown(r.input.text(*name));
        let text = format_args!("client sent invalid header: \"{name}\" {READING}");
        r.log_error(Severity::Info, text);
    }
    r.input_mut().head.request_line = line;
}

/// Tells why a request is none; its status.
fn refused(r: &Request, refusal: Refusal) -> u16 {
    let (reason, status) = match refusal {
        Refusal::Malformed(reason) => (reason, 400),
        Refusal::Reject(reject) => (reject.reason(), reject.status()),
    };
    let detail = r.input.head.refused.map_or(&b""[..], |span| r.input.text(span));
    r.log_error(Severity::Info, format_args!("{reason}{} {READING}", Shown(detail)));
    status
}

/// nginx's `log->action` of a stream.
const READING: &str = "while reading client request headers";
