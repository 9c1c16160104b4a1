//! From answers to frames: heads at once, bodies as windows, priorities and the socket allow.
//!
//! Answers ngx_http_v2_filter_module.c. RFC 9113 §5.2, RFC 9218 §10.
//!
//! Hot path: a small body in memory is one DATA frame behind its HEADERS.
//!
//! *Invariant:* a body is pulled only when its bytes can be written: a slow client slows its source.

use std::{
    future::Future,
    mem,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use forebay_rt::{clock, pool::Pooled};
use forebay_session::log::Severity;
use forebay_wire::{
    h1::Method,
    h2::{
        ErrorCode, Head,
        frame::{self, HEAD_BYTES, flag, kind},
    },
};

use super::{
    client::{Coming, StreamClient},
    conn::Conn,
    head, receive,
    stream::{NEVER, Next, Sending, Sent, Stream, Task, Work},
    tunnel::{self, Outbox},
    wake::StreamWaker,
};
use crate::{
    body::{Body, Fault},
    pace::Pace,
    request::Request,
};

/// Up to that size pieces are copied behind each other: cheaper than to name them to the kernel.
const COPIED_BYTES: usize = 2048;

/// Up to so many streams read their files `output_buffers` at a time.
const FEW_FILES: usize = 8;

impl<F: Future<Output = Request>> Conn<F> {
    /// The engine is done with a stream.
    pub(super) fn answered(&mut self, at: usize, mut r: Request, cx: &mut Context<'_>) {
        self.after_waiting(at);
        let stream = &mut self.streams[at];
        r.bytes_read += stream.inbox.take_wire_bytes();
        stream.sent.count(&mut r);
        if stream.is_after {
            self.streams.swap_remove(at);
            self.logged(r);
            return;
        }
        if stream.reset {
            return self.drop_stream(at, r);
        }
        if stream.outbox.is_some() {
            return self.tunnel_over(at, r);
        }
        if r.ends_without_answer() {
            // DIFFERS(h2-timeout-codes): nginx says PROTOCOL_ERROR to a client that is too slow, and
            // for 444.
            frame::write_reset(self.out.buf(), stream.id, ErrorCode::InternalError);
            if !self.streams[at].client_done {
                let id = self.streams[at].id;
                self.remember_reset(id);
            }
            return self.drop_stream(at, r);
        }
        if self.is_congested() {
            let stream = &mut self.streams[at];
            stream.work = Work::Answered(Box::new(r));
            return;
        }
        self.respond(at, r, cx);
    }

    /// Writes the head, and the body if that is small and at hand.
    fn respond(&mut self, at: usize, mut r: Request, cx: &mut Context<'_>) {
        if r.response.tunnel.is_some() {
            return self.begin_tunnel(at, r, cx);
        }
        let is_bodiless = settle_head(&mut r);
        let max_payload = self.max_payload(&r);
        let stream = &mut self.streams[at];
        let in_memory = match &r.response.body {
            _ if is_bodiless => Some(Bytes::new()),
            Body::Empty => Some(Bytes::new()),
            Body::Bytes(bytes) => Some(bytes.clone()),
            Body::File(slice) => slice.in_memory(),
            _ => None,
        };
        let has_trailers = !is_bodiless && head::has_trailers(&r.response);
        let whole = in_memory.filter(|bytes| {
            let window = stream.send_window.min(self.send_window);
            bytes.len() <= max_payload
                && (bytes.is_empty() || bytes.len() as i64 <= window)
                && !has_trailers
                && (bytes.is_empty() || Pace::of(&r).is_none())
        });
        let ends = whole.as_ref().is_some_and(Bytes::is_empty);
        let max_head = self.peer.max_frame_size as usize;
        let out = self.out.buf();
        let written = head::write(&r, stream.id, ends, max_head, &mut self.encoder, out) as u64;
        Sent { head: written, body: 0 }.count(&mut r);
        match whole {
            Some(bytes) => {
                if !ends {
                    let id = stream.id;
                    self.write_data(at, id, bytes, true);
                    mem::take(&mut self.data_sent).count(&mut r);
                }
                self.ended(at, r);
            }
            None => {
                stream.work = Work::Sending(Box::new(Sending::new(r)));
                // A source that has to wait says so to the stream.
                stream.waker.get_or_insert_with(|| StreamWaker::new(cx.waker()));
            }
        }
    }

    /// The server behind us grants what the client has asked for: the stream is a tunnel from now on.
    fn begin_tunnel(&mut self, at: usize, mut r: Request, cx: &mut Context<'_>) {
        if !tunnel::is_accepted(&r) {
            let text = "upstream sent invalid \"Sec-WebSocket-Accept\" while reading response header \
                        from upstream";
            r.log_error(Severity::Error, format_args!("{text}"));
            r.response.clear();
            r.response.status = 502;
            return self.respond(at, r, cx);
        }
        tunnel::grant(&mut r);
        let max_head = self.peer.max_frame_size as usize;
        let stream = &mut self.streams[at];
        let out = self.out.buf();
        let written = head::write(&r, stream.id, false, max_head, &mut self.encoder, out) as u64;
        Sent { head: written, body: 0 }.count(&mut r);
        let outbox = Rc::new(Outbox::default());
        stream.outbox = Some(outbox.clone());
        let client = StreamClient::of_tunnel(stream.inbox.clone(), outbox);
        stream.work = Work::Running(Pooled::new(|| (self.start)(r, client, Task::Tunnel)));
        // It is polled for the first time in the next round.
        stream.waker.get_or_insert_with(|| StreamWaker::new(cx.waker())).waker().wake_by_ref();
    }

    /// Whether a tunnel has something for the client that it may get now.
    fn has_tunnelled(&self, stream: &Stream<F>) -> bool {
        let Some(outbox) = stream.outbox.as_ref().filter(|_| !stream.reset) else { return false };
        match outbox.len() {
            0 => outbox.is_ended() && !stream.end_sent,
            _ => stream.send_window > 0 && self.send_window > 0,
        }
    }

    /// One frame of a tunnel, or its end.
    fn send_tunnelled(&mut self, at: usize) {
        self.turn += 1;
        let stream = &mut self.streams[at];
        stream.turn = self.turn;
        let Some(outbox) = stream.outbox.clone() else { return };
        let window = stream.send_window.min(self.send_window).max(0) as usize;
        let chunk = (self.settings.chunk_size).min(self.peer.max_frame_size).max(1) as usize;
        let bytes = outbox.take(window.min(chunk));
        let is_end = outbox.is_ended() && outbox.len() == 0;
        stream.end_sent = is_end;
        stream.inbox.wake();
        let id = stream.id;
        self.write_data(at, id, bytes, is_end);
        self.streams[at].sent.add(mem::take(&mut self.data_sent));
    }

    /// Nothing more comes through a tunnel.
    fn tunnel_over(&mut self, at: usize, mut r: Request) {
        let stream = &mut self.streams[at];
        let Some(outbox) = stream.outbox.take() else { return };
        if stream.end_sent {
            return self.ended(at, r);
        }
        if outbox.is_broken() {
            // RFC 8441 §5.
            self.streams[at].work = Work::Answered(Box::new(r));
            return self.reset_stream(at, ErrorCode::Cancel, Coming::Gone);
        }
        r.response.body = Body::Bytes(outbox.take(usize::MAX));
        self.streams[at].work = Work::Sending(Box::new(Sending::new(r)));
    }

    /// How long DATA frames get: `http2_chunk_size`, and what the client takes.
    fn max_payload(&self, r: &Request) -> usize {
        let chunk = super::settings(r.location()).chunk_size as usize;
        chunk.min(self.peer.max_frame_size as usize).max(1)
    }

    /// Appends a DATA frame, and counts it.
    fn write_data(&mut self, at: usize, id: u32, bytes: Bytes, end_stream: bool) {
        let len = bytes.len();
        let flags = if end_stream { flag::END_STREAM } else { 0 };
        let buf = self.out.buf();
        Head { len, kind: kind::DATA, flags, stream: id }.write(buf);
        if len <= COPIED_BYTES {
            buf.extend_from_slice(&bytes);
        } else {
            self.out.share(bytes);
        }
        self.send_window -= len as i64;
        self.streams[at].send_window -= len as i64;
        self.data_sent.add(Sent { head: HEAD_BYTES as u64, body: len as u64 });
        let is_cut = self.send_window <= 0 || self.streams[at].send_window <= 0;
        self.calm.sent(len, is_cut);
    }

    /// Fills the output with what streams have to send, the most urgent first.
    pub(super) fn fill(&mut self, moved: &mut bool, cx: &mut Context<'_>) {
        while !self.is_congested() {
            let Some(at) = self.next_stream() else { break };
            *moved = true;
            if let Work::Running(_) = self.streams[at].work {
                self.send_tunnelled(at);
                continue;
            }
            match mem::replace(&mut self.streams[at].work, Work::Moving) {
                Work::Answered(r) => self.respond(at, *r, cx),
                Work::Sending(sending) => self.send_some(at, sending, cx),
                other => self.streams[at].work = other,
            }
        }
        self.note_stalls(cx);
    }

    /// The stream whose turn it is among those that can send.
    fn next_stream(&self) -> Option<usize> {
        let can_send = |stream: &Stream<F>| match &stream.work {
            Work::Answered(_) => true,
            Work::Sending(sending) if sending.is_waiting => false,
            // Only with a window is a source asked for more; its end needs none.
            Work::Running(_) => self.has_tunnelled(stream),
            Work::Sending(sending) => {
                sending.may_be_over() || (stream.send_window > 0 && self.send_window > 0)
            }
            _ => false,
        };
        let ready = self.streams.iter().enumerate().filter(|(_, stream)| can_send(stream));
        ready.min_by_key(|(_, stream)| stream.rank()).map(|(at, _)| at)
    }

    /// One frame of a body, or its end.
    fn send_some(&mut self, at: usize, mut sending: Box<Sending>, cx: &mut Context<'_>) {
        // Of many files at once, no more is read than is sent: what is left over of each is held.
        let is_crowded = self.streams.len() > FEW_FILES;
        let most = if is_crowded { self.max_payload(&sending.r) } else { usize::MAX };
        let stream = &mut self.streams[at];
        self.turn += 1;
        stream.turn = self.turn;
        stream.stalled_until_ms = NEVER;
        let waker =
            stream.waker.get_or_insert_with(|| StreamWaker::new(cx.waker())).waker().clone();
        let cx = &mut Context::from_waker(&waker);
        let allowance = match &sending.pace {
            None => u64::MAX,
            Some(pace) => match pace.allowance(sending.sent) {
                0 => {
                    sending.is_waiting = pace.timer.poll_expired(cx).is_pending();
                    stream.work = Work::Sending(sending);
                    return;
                }
                allowance => allowance,
            },
        };
        match sending.poll_ready(most, cx) {
            Poll::Pending => {
                sending.is_waiting = true;
                stream.work = Work::Sending(sending);
                self.after_taking(at);
            }
            Poll::Ready(Next::Broken(fault)) => {
                let Sending { r, .. } = *sending;
                self.broken(at, r, fault);
            }
            Poll::Ready(Next::End) => self.end(at, sending.into_request()),
            Poll::Ready(Next::Some) => {
                self.after_taking(at);
                self.send_ready(at, sending, allowance);
            }
        }
    }

    /// Whoever answers may take the rest of the request meanwhile: more of it may come.
    fn after_taking(&mut self, at: usize) {
        let stream = &self.streams[at];
        if !stream.client_done && stream.inbox.is_read() {
            self.after_waiting(at);
        }
    }

    fn send_ready(&mut self, at: usize, mut sending: Box<Sending>, allowance: u64) {
        let stream = &self.streams[at];
        let id = stream.id;
        let window = stream.send_window.min(self.send_window).max(0) as u64;
        let max = window.min(allowance).min(self.max_payload(&sending.r) as u64);
        let len = sending.ready.len().min(max as usize);
        if len == 0 {
            // Something is left, and no window for it.
            self.streams[at].work = Work::Sending(sending);
            return;
        }
        let bytes = sending.ready.split_to(len);
        sending.sent += len as u64;
        // Whether that was the last of it decides how the frame is marked.
        let is_last = sending.ready.is_empty()
            && !head::has_trailers(&sending.r.response)
            && sending.is_drained();
        if !is_last {
            self.write_data(at, id, bytes, false);
            mem::take(&mut self.data_sent).count(&mut sending.r);
            self.streams[at].work = Work::Sending(sending);
            return;
        }
        self.write_data(at, id, bytes, true);
        let Sending { mut r, .. } = *sending;
        mem::take(&mut self.data_sent).count(&mut r);
        self.ended(at, r);
    }

    /// The end of a body that was not known to be the end before.
    fn end(&mut self, at: usize, mut r: Request) {
        let id = self.streams[at].id;
        if head::has_trailers(&r.response) {
            let max = self.peer.max_frame_size as usize;
            let out = self.out.buf();
            let len = head::write_trailers(&r.response, id, max, &mut self.encoder, out);
            Sent { head: len as u64, body: 0 }.count(&mut r);
        } else {
            self.write_data(at, id, Bytes::new(), true);
            mem::take(&mut self.data_sent).count(&mut r);
        }
        self.ended(at, r);
    }

    /// The response is in the output, all of it.
    fn ended(&mut self, at: usize, r: Request) {
        self.calm.answered();
        let timeout_ms = r.location().core.lingering_timeout_ms;
        self.done_bytes += r.input.buf.len();
        self.done.push(r);
        let is_crowded = self.streams.len() > self.settings.max_concurrent_streams as usize / 2;
        let stream = &mut self.streams[at];
        let id = stream.id;
        let may_end = stream.announced.is_none_or(|left| left as i64 <= stream.recv_window);
        if !stream.client_done && !stream.malformed && may_end && !is_crowded {
            // Nearly always the end of the request is on its way already.
            stream.work = Work::Draining;
            stream.waker = None;
            stream.stalled_until_ms = clock::now_ms().saturating_add(timeout_ms);
            let left = stream.inbox.discard();
            return self.credit_connection(left);
        }
        let stream = self.streams.swap_remove(at);
        self.discard(&stream);
        if stream.malformed {
            frame::write_reset(self.out.buf(), id, ErrorCode::ProtocolError);
        } else if !stream.client_done {
            // RFC 9113 §8.1: the rest of the request is not wanted.
            frame::write_reset(self.out.buf(), id, ErrorCode::NoError);
        }
        if !stream.client_done {
            self.remember_reset(id);
        }
    }

    /// What nobody took of a request body leaves the memory with its stream.
    fn discard(&mut self, stream: &Stream<F>) {
        let left = stream.inbox.discard();
        self.credit_connection(left);
    }

    /// The body broke off: the client must be able to tell.
    fn broken(&mut self, at: usize, r: Request, fault: Fault) {
        if !fault.is_told() {
            let text = "response body was truncated while sending response to client";
            r.log_error(Severity::Alert, format_args!("{text}"));
        }
        let stream = &self.streams[at];
        let (id, client_done) = (stream.id, stream.client_done);
        frame::write_reset(self.out.buf(), id, ErrorCode::InternalError);
        if !client_done {
            self.remember_reset(id);
        }
        self.drop_stream(at, r);
    }

    /// The stream is over without an end of its response.
    pub(super) fn drop_stream(&mut self, at: usize, r: Request) {
        let stream = self.streams.swap_remove(at);
        self.discard(&stream);
        self.finish(r);
    }

    /// A request is over: its `post_action` runs, or it is logged.
    pub(super) fn finish(&mut self, mut r: Request) {
        r.end_upstream();
        if r.location().core.post_action.is_empty() {
            return self.logged(r);
        }
        self.push(0, r, Task::PostAction, true, false, None);
        let Some(stream) = self.streams.last_mut() else { return };
        stream.is_after = true;
        stream.reset = true;
        stream.waker = Some(StreamWaker::new(std::task::Waker::noop()));
    }

    fn logged(&mut self, r: Request) {
        r.main.doing.set(crate::request::LOGGING);
        for logger in &r.location().loggers {
            logger.log(&r);
        }
        self.writing.down();
        receive::recycle(r);
    }

    /// Streams that could send if the client let them read ahead, and are given up after `send_timeout`.
    fn note_stalls(&mut self, cx: &mut Context<'_>) {
        let is_congested = self.is_congested();
        let window = self.send_window;
        for stream in &mut self.streams {
            let Work::Sending(sending) = &stream.work else { continue };
            let is_stalled = !sending.is_waiting && (window <= 0 || stream.send_window <= 0);
            if is_stalled || is_congested {
                let waker = stream.waker.as_ref().map_or(cx.waker(), StreamWaker::waker);
                sending.read_ahead(&mut Context::from_waker(waker));
            }
            if !is_stalled {
                stream.stalled_until_ms = NEVER;
            } else if stream.stalled_until_ms == NEVER {
                let timeout_ms = sending.r.location().core.send_timeout_ms;
                stream.stalled_until_ms = clock::now_ms().saturating_add(timeout_ms);
            }
        }
    }

    /// A client has given a stream no window, or not ended its request, for too long.
    pub(super) fn give_up_stalled(&mut self, at: usize) {
        if let Work::Sending(sending) = &self.streams[at].work {
            let text =
                "client timed out (110: Connection timed out) while sending response to client";
            sending.r.log_error(Severity::Info, format_args!("{text}"));
        }
        let is_answered = matches!(self.streams[at].work, Work::Draining);
        let code = if is_answered { ErrorCode::NoError } else { ErrorCode::Cancel };
        self.reset_stream(at, code, Coming::Gone);
    }
}

/// Decides what the head says of the body; whether none follows.
fn settle_head(r: &mut Request) -> bool {
    let status = r.response.status;
    if status == 204 {
        // ngx_http_header_filter. A 304 keeps what it has: a back end may tell the length.
        r.response.content_length = None;
        r.response.content_type = None;
    }
    if !matches!(status, 200 | 206 | 304) {
        r.response.last_modified = None;
    }
    r.method == Method::Head || r.response.header_only || matches!(status, 100..=199 | 204 | 304)
}
