//! The client of one stream, as handlers see it, and what the connection leaves there for them.
//!
//! *Invariant:* what lies here unread is never more than the stream's window, nor all of it together
//! more than the connection's.

use std::{
    cell::{Cell, RefCell},
    io, mem,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use forebay_rt::timer::Timer;

use super::tunnel::Outbox;
use crate::{
    client::{BodyError, Client},
    response::Field,
};

/// How much of the request body is still to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coming {
    /// More.
    More,
    /// Nothing: it is complete.
    #[default]
    Nothing,
    /// Nothing: the client reset the stream or left.
    Gone,
    /// Nothing that makes sense, and nobody is left to be told.
    Malformed,
    /// Nothing: it is not as long as was announced. Whoever reads it refuses it.
    Mismatched,
}

/// Where the connection and the handlers of a stream meet.
#[derive(Default)]
pub struct Inbox {
    /// What has come and was not taken. In one piece, however small the frames: it weighs what it is.
    data: RefCell<Vec<u8>>,
    coming: Cell<Coming>,
    /// Bytes of the body on the wire that are not counted to the request yet.
    wire_bytes: Cell<u64>,
    /// What was taken since the connection looked: its windows grow by that much.
    taken: Cell<usize>,
    /// Whether `100 Continue` is due.
    wants_continue: Cell<bool>,
    /// Interim responses that are due: status and fields.
    hints: RefCell<Vec<(u16, Vec<Field>)>>,
    /// Whether somebody reads the body: then more may come at once.
    reading: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Inbox {
    /// For a new stream.
    pub fn new(coming: Coming) -> Rc<Inbox> {
        Rc::new(Inbox { coming: Cell::new(coming), ..Inbox::default() })
    }

    /// Bytes of the body have come.
    pub fn push(&self, bytes: &[u8]) {
        let mut data = self.data.borrow_mut();
        // A vector would take twice what it needs; here it is a quarter more.
        if data.capacity() - data.len() < bytes.len() {
            let room = bytes.len().max(data.len() / 4);
            data.reserve_exact(room);
        }
        data.extend_from_slice(bytes);
        drop(data);
        self.wake();
    }

    /// So many bytes of the body have been read from the wire.
    pub fn count(&self, bytes: usize) {
        self.wire_bytes.set(self.wire_bytes.get() + bytes as u64);
    }

    /// Bytes of the body on the wire since the last call.
    pub fn take_wire_bytes(&self) -> u64 {
        self.wire_bytes.take()
    }

    /// Nothing more will come. A request that has come whole may still be given up.
    pub fn end(&self, how: Coming) {
        if !self.is_gone() && self.coming.get() != how {
            self.coming.set(how);
            self.wake();
        }
    }

    /// How much lies here.
    pub fn len(&self) -> usize {
        self.data.borrow().len()
    }

    /// Throws away what lies here; how much that was, and was taken since the connection looked.
    pub fn discard(&self) -> usize {
        self.data.take().len() + self.taken.take()
    }

    /// What was taken since the last call.
    pub fn take_taken(&self) -> usize {
        self.taken.take()
    }

    /// Whether `100 Continue` is due; it is once.
    pub fn take_continue(&self) -> bool {
        self.wants_continue.take()
    }

    /// Interim responses that are due; they are once.
    pub fn take_hints(&self) -> Vec<(u16, Vec<Field>)> {
        self.hints.take()
    }

    /// Whether the client is gone, or makes no sense any more.
    pub fn is_gone(&self) -> bool {
        matches!(self.coming.get(), Coming::Gone | Coming::Malformed)
    }

    /// Moves what lies here into the room of `buf`; 0: the client has said all.
    pub fn poll_read(&self, buf: &mut Vec<u8>, cx: &Context<'_>) -> Poll<io::Result<usize>> {
        self.reading.set(true);
        let mut data = self.data.borrow_mut();
        if self.is_gone() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if data.is_empty() {
            if self.coming.get() == Coming::Nothing {
                return Poll::Ready(Ok(0));
            }
            self.register(cx);
            return Poll::Pending;
        }
        let len = data.len().min(buf.capacity() - buf.len());
        buf.extend(data.drain(..len));
        if data.is_empty() {
            *data = Vec::new();
        }
        self.taken.set(self.taken.get() + len);
        Poll::Ready(Ok(len))
    }

    /// Whether somebody reads the body.
    pub fn is_read(&self) -> bool {
        self.reading.get()
    }

    /// Wakes whoever works for the stream.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Keeps who is to be woken.
    pub fn register(&self, cx: &Context<'_>) {
        let kept = self.waker.take().filter(|waker| waker.will_wake(cx.waker()));
        self.waker.set(Some(kept.unwrap_or_else(|| cx.waker().clone())));
    }
}

/// The client of a request on a stream.
pub struct StreamClient {
    inbox: Rc<Inbox>,
    handed_out: u64,
    /// Runs while somebody waits for the body.
    timer: Option<Timer>,
    failed: Option<BodyError>,
    expects_continue: bool,
    outbox: Option<Rc<Outbox>>,
}

impl StreamClient {
    /// Of that stream.
    pub fn new(inbox: Rc<Inbox>, expects_continue: bool) -> StreamClient {
        StreamClient {
            inbox,
            handed_out: 0,
            timer: None,
            failed: None,
            expects_continue,
            outbox: None,
        }
    }

    /// Of a stream that has become a tunnel.
    pub fn of_tunnel(inbox: Rc<Inbox>, outbox: Rc<Outbox>) -> StreamClient {
        let mut client = StreamClient::new(inbox, false);
        client.outbox = Some(outbox);
        client
    }

    /// Both sides of a tunnel, if the stream is one.
    pub fn tunnel(&self) -> Option<(Rc<Inbox>, Rc<Outbox>)> {
        Some((self.inbox.clone(), self.outbox.clone()?))
    }

    fn fail(&mut self, error: BodyError) -> Poll<Result<Option<Bytes>, BodyError>> {
        self.timer = None;
        self.failed = Some(error);
        Poll::Ready(Err(error))
    }
}

impl Client for StreamClient {
    fn forgo_continue(&mut self) {
        self.expects_continue = false;
    }

    fn poll_body(
        &mut self,
        limit: u64,
        timeout_ms: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, BodyError>> {
        if let Some(error) = self.failed {
            return Poll::Ready(Err(error));
        }
        let inbox = self.inbox.clone();
        inbox.reading.set(true);
        if mem::take(&mut self.expects_continue) && inbox.coming.get() == Coming::More {
            inbox.wants_continue.set(true);
        }
        let data = inbox.data.take();
        if !data.is_empty() {
            inbox.taken.set(inbox.taken.get() + data.len());
            self.handed_out += data.len() as u64;
            if limit > 0 && self.handed_out > limit {
                let (taken, next) = (limit, self.handed_out - limit);
                return self.fail(BodyError::TooLarge { taken, next });
            }
            if let Some(timer) = &self.timer {
                timer.arm(timeout_ms);
            }
            return Poll::Ready(Ok(Some(data.into())));
        }
        match inbox.coming.get() {
            Coming::Nothing => {
                self.timer = None;
                return Poll::Ready(Ok(None));
            }
            Coming::Gone => return self.fail(BodyError::Gone),
            Coming::Malformed | Coming::Mismatched => return self.fail(BodyError::Malformed),
            Coming::More => {}
        }
        let timer = self.timer.get_or_insert_with(|| {
            let timer = Timer::new();
            timer.arm(timeout_ms);
            timer
        });
        inbox.register(cx);
        ready!(timer.poll_expired(cx));
        self.fail(BodyError::TimedOut)
    }

    fn take_wire_bytes(&mut self) -> u64 {
        self.inbox.take_wire_bytes()
    }

    fn pause_body(&mut self) {
        self.timer = None;
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.inbox.is_gone() {
            return Poll::Ready(());
        }
        self.inbox.register(cx);
        Poll::Pending
    }

    fn split(&mut self) -> Option<Box<dyn Client>> {
        Some(Box::new(StreamClient {
            handed_out: self.handed_out,
            failed: self.failed,
            ..StreamClient::new(self.inbox.clone(), false)
        }))
    }

    // The connection writes it as soon as the handler waits or answers: before the answer.
    fn hint(&mut self, status: u16, fields: &[Field]) {
        self.inbox.hints.borrow_mut().push((status, fields.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(client: &mut StreamClient, limit: u64) -> Poll<Result<Option<Bytes>, BodyError>> {
        client.poll_body(limit, 1000, &mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_body_comes_in_the_pieces_that_are_there() {
        let inbox = Inbox::new(Coming::More);
        let mut client = StreamClient::new(inbox.clone(), true);
        assert!(poll(&mut client, 0).is_pending());
        assert!(inbox.take_continue() && !inbox.take_continue());
        inbox.push(b"ab");
        inbox.push(b"c");
        assert_eq!(poll(&mut client, 0), Poll::Ready(Ok(Some(Bytes::from_static(b"abc")))));
        assert_eq!((inbox.take_taken(), inbox.len()), (3, 0));
        inbox.end(Coming::Nothing);
        assert_eq!(poll(&mut client, 0), Poll::Ready(Ok(None)));
    }

    #[test]
    fn a_body_that_is_too_long_or_cut_short_stays_so() {
        let inbox = Inbox::new(Coming::More);
        let mut client = StreamClient::new(inbox.clone(), false);
        inbox.push(b"abc");
        assert_eq!(
            poll(&mut client, 2),
            Poll::Ready(Err(BodyError::TooLarge { taken: 2, next: 1 }))
        );
        assert_eq!(
            poll(&mut client, 2),
            Poll::Ready(Err(BodyError::TooLarge { taken: 2, next: 1 }))
        );
        let inbox = Inbox::new(Coming::More);
        let mut client = StreamClient::new(inbox.clone(), false);
        inbox.end(Coming::Malformed);
        assert_eq!(poll(&mut client, 0), Poll::Ready(Err(BodyError::Malformed)));
    }

    #[test]
    fn a_client_that_has_sent_all_may_still_go() {
        let inbox = Inbox::new(Coming::Nothing);
        let mut client = StreamClient::new(inbox.clone(), false);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(client.poll_gone(&mut cx).is_pending());
        inbox.end(Coming::Gone);
        assert!(client.poll_gone(&mut cx).is_ready());
    }

    #[test]
    fn nobody_waits_for_the_answer_on_a_stream_that_was_reset() {
        // By us, that is: for what the client did after it had sent all.
        let inbox = Inbox::new(Coming::Nothing);
        let mut client = StreamClient::new(inbox.clone(), false);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(client.poll_gone(&mut cx).is_pending());
        inbox.end(Coming::Malformed);
        assert!(client.poll_gone(&mut cx).is_ready());
    }
}
