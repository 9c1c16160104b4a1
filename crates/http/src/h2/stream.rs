//! One request and its response on a connection.

use std::{
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_rt::pool::Pooled;
use forebay_wire::{h1::Method, h2::Priority};

use super::{
    client::{Inbox, StreamClient},
    tunnel::{self, Outbox},
    wake::StreamWaker,
};
use crate::{
    body::{Body, Chunk, Fault, FileSlice},
    engine, files,
    pace::Pace,
    request::Request,
    response::{Ahead, LateTrailers},
};

/// No deadline.
pub const NEVER: u64 = u64::MAX;

/// What the engine is to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Answer it.
    Answer,
    /// Answer it with this status: it is not one that a handler may see.
    Reject(u16),
    /// Run its `post_action`; it has been answered.
    PostAction,
    /// Run its tunnel; it has been answered.
    Tunnel,
}

/// Does that, and gives the request back.
pub async fn run(mut r: Request, mut client: StreamClient, task: Task) -> Request {
    match task {
        Task::Answer => {
            engine::answer(&mut r, &mut client).await;
            if r.input.head.method == Method::Connect && r.is_refusal_in_disguise() {
                engine::reject(&mut r, &mut client, 405).await;
            }
        }
        Task::Reject(status) => engine::reject(&mut r, &mut client, status).await,
        Task::PostAction => engine::post_action(&mut r).await,
        Task::Tunnel => {
            if let (Some(tunnel), Some((inbox, outbox))) =
                (r.response.tunnel.take(), client.tunnel())
            {
                // Boxed: few streams are one, and all would be as large.
                Box::pin(tunnel::run(&mut r, *tunnel, inbox, outbox)).await;
            }
        }
    }
    r
}

/// What went out for a request. As in nginx, what frames cost beside their payload belongs to the head:
/// `$body_bytes_sent` is what it would be in HTTP/1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of heads, and of frames around bodies.
    pub head: u64,
    /// Bytes of bodies.
    pub body: u64,
}

impl Sent {
    /// More of it.
    pub fn add(&mut self, more: Sent) {
        self.head += more.head;
        self.body += more.body;
    }

    /// Counts it to a request.
    pub fn count(self, r: &mut Request) {
        r.head_sent += self.head;
        r.bytes_sent += self.head + self.body;
    }
}

/// Where a stream stands.
pub enum Work<F> {
    /// The engine works on it.
    Running(Pooled<F>),
    /// It is answered; nothing of that is written yet.
    Answered(Box<Request>),
    /// Its body is on its way.
    Sending(Box<Sending>),
    /// It is answered; what still comes of the request is thrown away for a while, so that a client
    /// that is about to end it sees no error.
    ///
    /// DIFFERS(h2-unread-body): nginx resets the stream at once.
    Draining,
    /// On its way from one to the next.
    Moving,
}

/// A stream.
pub struct Stream<F> {
    /// Its number.
    pub id: u32,
    /// Where it stands.
    pub work: Work<F>,
    /// What handlers know of the client.
    pub inbox: Rc<Inbox>,
    /// What wakes it, once it has had to wait.
    pub waker: Option<StreamWaker>,
    /// Whether the client has sent all of its request.
    pub client_done: bool,
    /// Whether it is over on the wire: nothing may be sent any more, but somebody still works on it.
    pub reset: bool,
    /// Whether its request was malformed: the answer is followed by an error.
    pub malformed: bool,
    /// Whether it is answered and logged but for its `post_action`.
    pub is_after: bool,
    /// How much of the body it may send; below zero after the client took some back.
    pub send_window: i64,
    /// How much the client may still send.
    pub recv_window: i64,
    /// What is left of the announced length of the request body.
    pub announced: Option<u64>,
    /// Bytes of the request's head.
    pub head_bytes: usize,
    /// What is not counted to the request yet: interim responses, a tunnel's.
    pub sent: Sent,
    /// What the client is to get, once the stream is a tunnel.
    pub outbox: Option<Rc<Outbox>>,
    /// Whether END_STREAM has been sent; the client may go on.
    pub end_sent: bool,
    /// Its priority, where the client has told one.
    pub priority: Option<Priority>,
    /// When it last sent something, counted in frames of the connection.
    pub turn: u64,
    /// When a client that gives it no window is given up.
    pub stalled_until_ms: u64,
}

impl<F> Stream<F> {
    /// Whether it has its turn in this order: the smaller, the sooner.
    pub fn rank(&self) -> (u8, bool, u64) {
        match self.priority {
            // RFC 9218 §10: one after the other, as asked for.
            Some(Priority { urgency, incremental: false }) => (urgency, false, self.id.into()),
            Some(Priority { urgency, .. }) => (urgency, true, self.turn),
            // Who says nothing is served in turns: nobody starves behind a long download.
            None => (Priority::default().urgency, true, self.turn),
        }
    }
}

/// A response whose body is on its way.
pub struct Sending {
    /// The request.
    pub r: Request,
    body: Option<Body>,
    file: Option<FileSlice>,
    reader: files::Reader,
    /// What is at hand.
    pub ready: Bytes,
    /// Whether the source said "later": it is asked again when the stream is woken.
    pub is_waiting: bool,
    /// `limit_rate`.
    pub pace: Option<Pace>,
    /// What to read while the client takes nothing.
    ahead: Ahead,
    /// Trailers that come with the end of the body.
    late: LateTrailers,
    /// Bytes of the body that have gone.
    pub sent: u64,
    read_bytes: usize,
}

/// What a body has next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Something in [`Sending::ready`].
    Some,
    /// Nothing any more.
    End,
    /// It broke off.
    Broken(Fault),
}

impl Sending {
    /// The body of `r.response`.
    pub fn new(mut r: Request) -> Sending {
        let body = std::mem::take(&mut r.response.body);
        let read_bytes = r.location().core.output_buffers.1.max(4096);
        Sending {
            pace: Pace::of(&r),
            ahead: std::mem::take(&mut r.response.ahead),
            late: std::mem::take(&mut r.response.late_trailers),
            r,
            body: Some(body),
            file: None,
            reader: files::Reader::default(),
            ready: Bytes::new(),
            is_waiting: false,
            sent: 0,
            read_bytes,
        }
    }

    /// Has something at hand, if there is anything; of a file, up to `most` bytes.
    pub fn poll_ready(&mut self, most: usize, cx: &mut Context<'_>) -> Poll<Next> {
        while self.ready.is_empty() {
            if let Some(slice) = &mut self.file {
                let read =
                    ready!(poll_slice(slice, &mut self.reader, self.read_bytes.min(most), cx));
                let Some(bytes) = read else { return Poll::Ready(Next::Broken(Fault::File)) };
                slice.start += bytes.len() as u64;
                if slice.is_empty() {
                    self.reader.next_slice();
                    self.file = None;
                }
                self.ready = bytes;
                continue;
            }
            let Some(body) = &mut self.body else { return Poll::Ready(Next::End) };
            match ready!(body.poll_next(cx)) {
                Some(Ok(Chunk::Bytes(bytes))) => self.ready = bytes,
                Some(Ok(Chunk::File(slice))) => self.file = Some(slice).filter(|s| !s.is_empty()),
                Some(Ok(Chunk::Flush | Chunk::Nested(_))) => {}
                Some(Err(fault)) => return Poll::Ready(Next::Broken(fault)),
                None => self.body = None,
            }
        }
        Poll::Ready(Next::Some)
    }

    /// The client takes nothing at the moment: whoever answers may be done with sooner all the same.
    pub fn read_ahead(&self, cx: &mut Context<'_>) {
        if let Some(ahead) = &self.ahead.0 {
            ahead.read_ahead(cx);
        }
    }

    /// The request, with all trailers that there are.
    pub fn into_request(self) -> Request {
        let Sending { mut r, late, .. } = self;
        if let Some(state) = late.0 {
            state.each_trailer(|field| r.response.trailers.push(field.clone()));
        }
        r
    }

    /// Whether its end may be due, which needs no window: all that was announced has gone, or nobody
    /// knows how much there is.
    pub fn may_be_over(&self) -> bool {
        let length = self.r.response.content_length;
        let is_all = length.is_none_or(|length| length <= self.sent);
        self.is_drained() || (self.ready.is_empty() && self.file.is_none() && is_all)
    }

    /// Whether nothing is left, so far as that is known without asking a source.
    pub fn is_drained(&self) -> bool {
        self.ready.is_empty()
            && self.file.is_none()
            && self.body.as_ref().is_none_or(|body| matches!(body, Body::Empty))
    }
}

/// Bytes of a slice's beginning; `None`: the file ended before it did.
fn poll_slice(
    slice: &FileSlice,
    reader: &mut files::Reader,
    want: usize,
    cx: &mut Context<'_>,
) -> Poll<Option<Bytes>> {
    if let Some(bytes) = slice.in_memory() {
        return Poll::Ready(Some(bytes));
    }
    let want = slice.len().min(want as u64) as usize;
    let read = ready!(reader.poll_read(slice, want, cx));
    Poll::Ready(read.ok().filter(|bytes| !bytes.is_empty()))
}
