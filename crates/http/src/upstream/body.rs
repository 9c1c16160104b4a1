//! The body of a response that does not come with its head: read as the client takes it, and, where
//! responses are buffered, ahead of a client that is slow (`ngx_event_pipe.c`).
//!
//! While the client keeps up, what was read is handed on as it is: a read, a write. When the client's
//! socket is full, the sender asks for [`ReadAhead`]: up to `proxy_buffers` are held in memory, the
//! rest goes to a temporary file, and the server is free long before the client has it all.
//!
//! Invariant: never more than `proxy_buffers`, and a piece that is being written to the file, in memory
//! for one response, wherever its bytes wait; and an end that comes too early is passed on as a fault.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_rt::{clock, errno::Errno, timer::Timer, transport::Transport};
use forebay_session::{
    log::Severity,
    upstream::{Group, Lease, Outcome, Selection, keepalive::Kept},
};

use super::{
    Codec, Decoded, GroupRef, Remains, Settings, State,
    buffers::{self, Room},
    conn::Connection,
    exchange::Link,
    send::{SendError, Sender},
    spill::{Landed, Spill},
};
use crate::{
    body::{Body, Chunk, Fault, FileSlice, Source},
    client::{Client, ReadFailed},
    pace::Pace,
    request::Request,
};

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;
/// Less room than that is none.
const MIN_READ: usize = 8 << 10;

/// Where a response comes from.
pub struct Origin {
    /// The connection.
    pub link: Link,
    /// The server.
    pub lease: Lease,
    /// Which servers were asked.
    pub selection: Selection,
    /// Whether the connection can be used again when the body was read.
    pub reusable: bool,
}

impl Origin {
    /// The response is over, and this remains of it.
    pub fn finish(self, group: &Group, state: &State, remains: Remains) {
        let Origin { link, lease, mut selection, reusable } = self;
        finish(group, state, (link, lease, remains, reusable), &mut selection);
    }
}

/// A response is over: its connection goes to those that are kept, if it is reusable.
pub fn finish(
    group: &Group,
    state: &State,
    (link, lease, remains, reusable): (Link, Lease, Remains, bool),
    selection: &mut Selection,
) {
    let session = match remains {
        Remains::Nothing => Some(None),
        Remains::Session(session) => Some(Some(session)),
        Remains::Spent => None,
    };
    if let Some(session) = session.filter(|_| reusable && link.stream.is_at_rest())
        && let Some(pool) = group.pool()
    {
        let connection = Connection { stream: link.stream, session };
        let mut kept = Kept::new(connection, link.tag, link.made_ms);
        kept.requests = link.requests + 1;
        kept.owner = link.owner;
        pool.keep(&group.settings.keepalive, lease.peer(), kept, clock::now_ms());
    }
    lease.finish(selection, Outcome::Good, state.with(|attempt| attempt.timings()));
}

/// Something that may be read ahead of a client whose socket is full.
pub trait ReadAhead {
    /// Reads what there is and what there is room for. The task is woken when more comes.
    fn read_ahead(&self, cx: &mut Context<'_>);
}

/// A request body of which the rest comes from a client that has got a part of the response already.
pub trait Upload {
    /// Takes what there is of it, and sends it on; ready when no more is wanted.
    fn poll_upload(&self, client: &mut dyn Client, cx: &mut Context<'_>) -> Poll<()>;
}

/// A piece that waits for the client.
enum Piece {
    /// Bytes, and what they count for in the room.
    Memory(Bytes, usize),
    File(FileSlice),
}

/// A response body on its way in.
pub struct Inflow<C> {
    codec: C,
    origin: Option<Origin>,
    /// The rest of the request, where it is sent while the response comes.
    sender: Option<Box<Sender<'static>>>,
    group: GroupRef,
    state: Rc<State>,
    timer: Timer,
    timeout_ms: u64,
    room: Arc<Room>,
    /// How much may be in memory.
    memory_bytes: usize,
    queue: VecDeque<Piece>,
    /// How much of it is in the queue, and not on its way to the client.
    queued: usize,
    /// How much may be on its way to the client while more comes.
    busy_bytes: Option<usize>,
    spill: Option<Spill>,
    /// How much is read at once for the file.
    write_bytes: usize,
    /// `proxy_limit_rate`, and how much was read under it.
    pace: Option<(Pace, u64)>,
    /// A flush follows each piece.
    unbuffered: bool,
    flush: bool,
    ended: Option<Result<(), Fault>>,
}

/// Puts a body that is still coming into the response.
pub fn attach<C: Codec>(r: &mut Request, inflow: Inflow<C>, buffered: bool) {
    let uploads = inflow.sender.as_ref().is_some_and(|sender| sender.needs_client());
    let inflow = Rc::new(RefCell::new(inflow));
    if uploads {
        r.response.uploading.0 = Some(Rc::new(Uploading(inflow.clone())));
    }
    if buffered {
        r.response.ahead.0 = Some(Rc::new(Ahead(inflow.clone())));
    }
    r.response.body = Body::Stream(Box::new(Outflow(inflow)));
}

struct Outflow<C>(Rc<RefCell<Inflow<C>>>);

impl<C: Codec> Source for Outflow<C> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        self.0.borrow_mut().poll_next(cx)
    }
}

impl<C> Drop for Outflow<C> {
    fn drop(&mut self) {
        // Nobody wants it any more, whoever still could read ahead.
        self.0.borrow_mut().abandon();
    }
}

struct Ahead<C>(Rc<RefCell<Inflow<C>>>);

impl<C: Codec> ReadAhead for Ahead<C> {
    fn read_ahead(&self, cx: &mut Context<'_>) {
        self.0.borrow_mut().poll_ahead(cx);
    }
}

struct Uploading<C>(Rc<RefCell<Inflow<C>>>);

impl<C: Codec> Upload for Uploading<C> {
    fn poll_upload(&self, client: &mut dyn Client, cx: &mut Context<'_>) -> Poll<()> {
        self.0.borrow_mut().poll_send(Some(client), cx)
    }
}

impl<C: Codec> Inflow<C> {
    /// A body of which `decoded` came with its head.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        codec: C,
        (origin, sender): (Origin, Option<Box<Sender<'static>>>),
        group: GroupRef,
        settings: &Settings,
        buffered: bool,
        r: &Request,
        timer: Timer,
        buf: Vec<u8>,
        body_at: usize,
        decoded: Decoded,
    ) -> Inflow<C> {
        let spill = (buffered && settings.max_temp_file_size > 0).then(|| Spill::new(settings));
        let is_paced = buffered && settings.limit_rate > 0;
        let pace = is_paced.then(|| (Pace::new(settings.limit_rate), 0));
        let memory_bytes = match buffered {
            true => settings.buffer_size + settings.buffers_bytes,
            false => settings.buffer_size.max(forebay_rt::pool::BUFFER_BYTES),
        };
        let mut inflow = Inflow {
            codec,
            origin: Some(origin),
            sender,
            group,
            state: r.upstream.clone(),
            timer,
            timeout_ms: settings.read_timeout_ms,
            room: Arc::default(),
            memory_bytes,
            queue: VecDeque::new(),
            queued: 0,
            busy_bytes: settings.busy_bytes.filter(|_| buffered),
            spill,
            write_bytes: settings.temp_write_bytes.unwrap_or(READ_BYTES),
            pace,
            unbuffered: !buffered,
            flush: false,
            ended: None,
        };
        inflow.timer.arm(inflow.timeout_ms);
        inflow.state.with(|attempt| attempt.is_passed_on = true);
        let came = (buf.len() - body_at.min(buf.len())) as u64;
        inflow.count(came, 0);
        inflow.take(buf, body_at, decoded, false);
        inflow
    }

    fn count(&mut self, body: u64, received: u64) {
        self.state.with(|attempt| {
            attempt.response_length += body;
            attempt.received += received;
        });
        if let Some((_, read)) = &mut self.pace {
            *read += body;
        }
    }

    /// The next piece for the client.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        loop {
            if std::mem::take(&mut self.flush) {
                return Poll::Ready(Some(Ok(Chunk::Flush)));
            }
            if self.is_busy() {
                self.room.wait(cx.waker());
                return Poll::Pending;
            }
            match self.queue.pop_front() {
                Some(Piece::Memory(bytes, held)) => {
                    self.queued -= held;
                    self.flush = self.unbuffered;
                    return Poll::Ready(Some(Ok(Chunk::Bytes(bytes))));
                }
                Some(Piece::File(slice)) => return Poll::Ready(Some(Ok(Chunk::File(slice)))),
                // What is being written comes next, and before any end.
                None if ready!(self.poll_landed(cx)) => continue,
                None => {}
            }
            match self.ended {
                Some(Ok(())) => return Poll::Ready(None),
                Some(Err(fault)) => {
                    self.ended = Some(Ok(()));
                    return Poll::Ready(Some(Err(fault)));
                }
                None => {}
            }
            let room = self.memory_bytes.saturating_sub(self.room.held());
            if room < MIN_READ.min(self.memory_bytes) {
                // All of it is on its way to the client: what is taken makes room.
                self.room.wait(cx.waker());
                return Poll::Pending;
            }
            ready!(self.poll_fill(room, false, cx));
        }
    }

    /// Whether as much is on its way to the client as `proxy_busy_buffers_size` allows.
    fn is_busy(&self) -> bool {
        let Some(limit) = self.busy_bytes.filter(|_| self.ended.is_none()) else { return false };
        self.room.held().saturating_sub(self.queued) >= limit
    }

    /// The client takes nothing now.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) {
        while self.ended.is_none() && self.poll_landed(cx).is_ready() {
            let room = self.memory_bytes.saturating_sub(self.room.held());
            let in_memory = room >= MIN_READ.min(self.memory_bytes);
            if !in_memory && !self.may_spill() {
                return;
            }
            let room = if in_memory { room } else { self.write_bytes };
            if self.poll_fill(room, !in_memory, cx).is_pending() {
                return;
            }
        }
    }

    /// Whether there is a file to write to.
    fn may_spill(&mut self) -> bool {
        let waiting = self.queue.iter().any(|piece| matches!(piece, Piece::File(_)));
        self.spill.as_mut().is_some_and(|spill| spill.has_room(waiting))
    }

    /// Reads once, up to `room` bytes.
    fn poll_fill(&mut self, room: usize, to_file: bool, cx: &mut Context<'_>) -> Poll<()> {
        let allowance = match &self.pace {
            None => usize::MAX,
            Some((pace, read)) => match pace.allowance(*read) {
                0 => {
                    ready!(pace.timer.poll_expired(cx));
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                allowed => usize::try_from(allowed).unwrap_or(usize::MAX),
            },
        };
        let _ = self.poll_send(None, cx);
        if self.ended.is_some() {
            return Poll::Ready(());
        }
        let Some(origin) = &mut self.origin else {
            self.ended.get_or_insert(Err(Fault::Upstream));
            return Poll::Ready(());
        };
        let mut buf = buffers::take(buffers::fitting(room.min(READ_BYTES)).min(allowance));
        match origin.link.stream.poll_read(cx, &mut buf) {
            Poll::Pending => {
                buffers::give_back(buf);
                if self.timer.poll_expired(cx).is_pending() {
                    return Poll::Pending;
                }
                let text = "upstream timed out (110: Connection timed out)";
                self.fail(Severity::Error, text.to_owned());
            }
            Poll::Ready(Ok(0)) => self.end_of_connection(),
            Poll::Ready(Err(error)) => {
                self.fail(Severity::Error, ReadFailed(&error).to_string());
            }
            Poll::Ready(Ok(read)) => {
                self.timer.arm(self.timeout_ms);
                self.count(read as u64, read as u64);
                let decoded = self.codec.decode(&mut buf, 0);
                self.take(buf, 0, decoded, to_file);
            }
        }
        Poll::Ready(())
    }

    /// Sends what can be sent of the rest of the request; ready when that is over.
    fn poll_send(
        &mut self,
        client: Option<&mut (dyn Client + '_)>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let (Some(sender), Some(origin)) = (&mut self.sender, &mut self.origin) else {
            return Poll::Ready(());
        };
        let before = sender.sent;
        let sent = sender.poll(&mut self.codec, &mut origin.link.stream, client, cx);
        let count = sender.sent - before;
        if count > 0 {
            self.state.with(|attempt| attempt.sent += count);
            // Who still takes the request is not expected to have answered.
            // DIFFERS(upload-read-timeout): nginx counts from what came of the response alone.
            self.timer.arm(self.timeout_ms);
        }
        match sent {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) if self.codec.goes_on() => {}
            Poll::Ready(Ok(())) => self.sender = None,
            Poll::Ready(Err(error)) => self.stop_sending(&error),
        }
        Poll::Ready(())
    }

    /// The rest of the request cannot be sent: what comes of the response still does, unless it is the
    /// client's fault.
    fn stop_sending(&mut self, error: &SendError) {
        self.sender = None;
        match error {
            SendError::Upstream(_) => {}
            SendError::Client(error) => {
                let text = format!("{error} while sending request to upstream");
                self.state.complain(Severity::Info, text);
                return self.break_off();
            }
            SendError::File(error) => {
                let cause = Errno(error);
                return self
                    .fail(Severity::Crit, format!("pread() of a request body failed ({cause})"));
            }
        }
        if let Some(origin) = &mut self.origin {
            origin.reusable = false;
        }
    }

    /// Takes what was decoded of a buffer.
    fn take(&mut self, mut buf: Vec<u8>, from: usize, decoded: Decoded, to_file: bool) {
        buf.truncate(decoded.data_end);
        if decoded.data_end <= from {
            buffers::give_back(buf);
        } else if let Some(spill) = self.spill.as_mut().filter(|_| to_file) {
            spill.write(buf);
        } else {
            self.hold(buf, from);
        }
        if let Some(bad) = decoded.bad {
            self.fail(Severity::Error, self.codec.explain(bad, &[]));
        }
        if decoded.done {
            if let Some(text) = self.codec.left_over().filter(|_| decoded.left_over > 0) {
                self.state.complain(Severity::Warn, text);
            }
            self.finish(decoded.left_over == 0);
        }
    }

    /// Keeps what stands in a buffer from `from` on, in memory.
    fn hold(&mut self, buf: Vec<u8>, from: usize) {
        let before = self.room.held();
        let bytes = buffers::freeze_in(&self.room, buf);
        let held = self.room.held() - before;
        self.queued += held;
        self.queue.push_back(Piece::Memory(bytes.slice(from..), held));
    }

    /// Waits for what is being written to the temporary file; whether there was something.
    fn poll_landed(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(spill) = &mut self.spill else { return Poll::Ready(false) };
        let Some(landed) = ready!(spill.poll_landed(&self.state, cx)) else {
            return Poll::Ready(false);
        };
        match landed {
            Landed::File(slice, buf) => {
                buffers::give_back(buf);
                self.queue_file(slice);
            }
            // What was read is kept in memory; no more is.
            // DIFFERS(temp-file-full): nginx breaks the response off.
            Landed::Memory(buf) => self.hold(buf, 0),
            Landed::Lost => {
                self.ended = Some(Err(Fault::Upstream));
                self.close();
            }
        }
        if self.ended.is_none() {
            // The time that the disk took is not the server's.
            self.timer.arm(self.timeout_ms);
        }
        Poll::Ready(true)
    }

    fn queue_file(&mut self, slice: FileSlice) {
        match self.queue.back_mut() {
            Some(Piece::File(last))
                if last.end == slice.start && Rc::ptr_eq(&last.file, &slice.file) =>
            {
                last.end = slice.end;
            }
            _ => self.queue.push_back(Piece::File(slice)),
        }
    }

    fn end_of_connection(&mut self) {
        if self.codec.ends_with_connection() {
            self.finish(false);
        } else {
            let text = "upstream prematurely closed connection";
            self.fail(Severity::Error, text.to_owned());
        }
    }

    /// The body is complete.
    fn finish(&mut self, clean: bool) {
        let trailers = self.codec.take_trailers();
        if !trailers.is_empty() {
            self.state.keep_trailers(trailers);
        }
        self.ended = Some(Ok(()));
        self.state.with(|attempt| attempt.response_ms = Some(attempt.elapsed_ms()));
        if let Some(origin) = self.origin.take() {
            let sent = self.sender.take().is_none_or(|sender| sender.done());
            let remains = if clean && sent { self.codec.release() } else { Remains::Spent };
            origin.finish(self.group.group(), &self.state, remains);
        }
        self.timer.disarm();
    }

    fn fail(&mut self, severity: Severity, text: String) {
        self.state.complain(severity, format!("{text} while reading upstream"));
        self.break_off();
    }

    fn break_off(&mut self) {
        self.ended = Some(Err(Fault::Upstream));
        self.close();
    }
}

impl<C> Inflow<C> {
    /// Nobody reads it to its end.
    fn abandon(&mut self) {
        self.queue.clear();
        self.close();
        self.ended.get_or_insert(Err(Fault::Upstream));
    }

    fn close(&mut self) {
        if let Some(origin) = self.origin.take() {
            self.state.with(|attempt| attempt.response_ms = Some(attempt.elapsed_ms()));
            drop(origin);
        }
    }
}
