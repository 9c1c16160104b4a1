//! Reads request bodies from an HTTP/1 connection: by length or chunked, never a byte too many
//! (RFC 9112 §6).

use std::{
    future::poll_fn,
    io, mem,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_rt::{pool, timer::Timer, transport::Transport};
use forebay_wire::h1::{BodyLength, chunked::Decoder, encode};

use super::ahead::Ahead;
use crate::{
    client::{BodyError, Client},
    response::Field,
    upstream::buffers,
};

/// How much of the body is still to come.
enum Left {
    Nothing,
    Bytes(u64),
    Chunked(Decoder),
    /// Nothing more can be read: the framing is lost.
    Broken(BodyError),
}

/// The body of the request under way.
pub struct BodyReader {
    left: Left,
    /// Bytes read beyond what has been handed out; what is left at the end is the next request.
    pub ahead: Ahead,
    handed_out: u64,
    /// How long the last chunk was.
    last_chunk: u64,
    /// Bytes of the body read from the wire, and how many of them `$request_length` has.
    wire_bytes: u64,
    counted_bytes: u64,
    /// Whether more was read than had come with the head.
    is_filled: bool,
    expects_continue: bool,
    /// Whether it will not get what it expects.
    forgoes_continue: bool,
    /// Interim responses that are still to be written.
    hints: Vec<u8>,
    /// Bytes of interim responses, which nginx counts among those sent.
    pub interim_bytes: u64,
}

impl BodyReader {
    /// For a body of that framing, of which `ahead` has been read already.
    pub fn new(length: BodyLength, ahead: Ahead, expects_continue: bool) -> BodyReader {
        let left = match length {
            BodyLength::None | BodyLength::Length(0) => Left::Nothing,
            BodyLength::Length(length) => Left::Bytes(length),
            BodyLength::Chunked => Left::Chunked(Decoder::default()),
        };
        BodyReader {
            left,
            ahead,
            handed_out: 0,
            last_chunk: 0,
            wire_bytes: 0,
            counted_bytes: 0,
            is_filled: false,
            expects_continue,
            forgoes_continue: false,
            hints: Vec::new(),
            interim_bytes: 0,
        }
    }

    /// Whether the body has been read to its end.
    pub fn finished(&self) -> bool {
        matches!(self.left, Left::Nothing)
    }

    /// Whether nothing can be read any more.
    pub fn broken(&self) -> bool {
        matches!(self.left, Left::Broken(_))
    }

    /// Whether it is longer than it may be.
    pub fn too_large(&self) -> bool {
        matches!(self.left, Left::Broken(BodyError::TooLarge { .. }))
    }

    /// Whether the client went away before it had sent all of it.
    pub fn gone(&self) -> bool {
        matches!(self.left, Left::Broken(error) if error.is_gone())
    }

    /// Whether the client was too slow to send all of it.
    pub fn timed_out(&self) -> bool {
        matches!(self.left, Left::Broken(BodyError::TimedOut))
    }

    /// Whether the client asked for `100 Continue` and has not got it, whatever it sent already.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Whether the client still waits for `100 Continue` before it sends anything.
    ///
    /// DIFFERS(continue-for-nothing): nginx may send one for a body that there is not.
    pub fn awaits_continue(&self) -> bool {
        self.expects_continue && self.wire_bytes == 0 && self.ahead.is_empty() && !self.finished()
    }

    /// Throws away what has come of the body already.
    pub fn discard_ahead(&mut self) -> Result<(), BodyError> {
        while self.next_piece()?.is_some() {}
        Ok(())
    }

    /// Whether the body fits in the limit (0: none), as far as is known: a chunk counts as soon as its
    /// size is there.
    ///
    /// DIFFERS(too-large-chunk): nginx waits until some of the chunk has come, too.
    fn check_size(&mut self, limit: u64) -> Result<(), BodyError> {
        let (chunk, to_come) = match &self.left {
            Left::Chunked(decoder) => decoder.chunk(),
            _ => (self.last_chunk, 0),
        };
        let total = self.handed_out.saturating_add(to_come);
        if limit == 0 || total <= limit {
            return Ok(());
        }
        let error = BodyError::TooLarge { taken: total.saturating_sub(chunk), next: chunk };
        self.refuse(error);
        Err(error)
    }

    /// As nginx does, counts all that was read for it, but nothing of what had come with the head.
    fn refuse(&mut self, error: BodyError) {
        self.wire_bytes = match self.is_filled {
            true => self.wire_bytes + self.ahead.len() as u64,
            false => self.counted_bytes,
        };
        self.left = Left::Broken(error);
    }

    /// Takes what it can from `ahead`; `None`: more bytes are needed.
    fn next_piece(&mut self) -> Result<Option<Bytes>, BodyError> {
        match &mut self.left {
            Left::Nothing => Ok(None),
            Left::Broken(error) => Err(*error),
            Left::Bytes(left) => {
                if self.ahead.is_empty() {
                    return Ok(None);
                }
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(self.ahead.len());
                let piece = self.ahead.take(take);
                *left -= take as u64;
                self.wire_bytes += take as u64;
                if *left == 0 {
                    self.left = Left::Nothing;
                }
                Ok(Some(piece))
            }
            Left::Chunked(decoder) => {
                let mut piece = Vec::new();
                let mut consumed = 0;
                let mut done = false;
                while !done {
                    let step = match decoder.decode(&self.ahead[consumed..]) {
                        Ok(step) => step,
                        Err(_) => {
                            self.last_chunk = decoder.chunk().0;
                            self.refuse(BodyError::Malformed);
                            // What came before may be too much already, which nginx sees first.
                            let is_some = !piece.is_empty();
                            return is_some
                                .then(|| piece.into())
                                .ok_or(BodyError::Malformed)
                                .map(Some);
                        }
                    };
                    let rest = &self.ahead[consumed..];
                    piece.extend_from_slice(&rest[step.data.clone()]);
                    consumed += step.consumed;
                    done = step.done;
                    if step.consumed == 0 {
                        break;
                    }
                }
                self.ahead.skip(consumed);
                self.wire_bytes += consumed as u64;
                self.last_chunk = decoder.chunk().0;
                if done {
                    self.left = Left::Nothing;
                }
                Ok((!piece.is_empty()).then(|| piece.into()))
            }
        }
    }
}

/// The client of a request on an HTTP/1 connection.
pub struct H1Client<'a, T> {
    /// The connection.
    pub io: &'a mut T,
    /// Its timer.
    pub timer: &'a Timer,
    /// Its body.
    pub body: &'a mut BodyReader,
    /// What is left to write of `HTTP/1.1 100 Continue`.
    pub interim: &'static [u8],
    /// Whether the timer runs for the body.
    pub armed: bool,
}

/// How much is read at once of a body that is known to be large.
const LARGE_READ: usize = 64 << 10;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

impl<T: Transport> H1Client<'_, T> {
    fn poll_interim(
        &mut self,
        timeout_ms: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        if self.body.expects_continue && !self.body.forgoes_continue {
            self.body.expects_continue = false;
            self.interim = CONTINUE;
        }
        while !self.interim.is_empty() {
            let slices = [std::io::IoSlice::new(self.interim)];
            let Poll::Ready(written) = self.io.poll_write(cx, &slices, false) else {
                ready!(self.timer.poll_expired_after(timeout_ms, cx));
                self.body.left = Left::Broken(BodyError::TimedOut);
                return Poll::Ready(Err(BodyError::TimedOut));
            };
            let written = written.map_err(|_| BodyError::Gone)?;
            self.body.interim_bytes += written as u64;
            self.interim = &self.interim[written..];
        }
        Poll::Ready(Ok(()))
    }

    /// Sends `100 Continue` for a body that will be thrown away.
    pub async fn send_continue(&mut self, timeout_ms: u64) -> Result<(), BodyError> {
        self.timer.disarm();
        poll_fn(|cx| self.poll_interim(timeout_ms, cx)).await
    }

    /// Fills `ahead`. For a body of known length, with no more than belongs to it.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let mut buffer = match self.body.left {
            Left::Bytes(left) if left > pool::BUFFER_BYTES as u64 => buffers::take(LARGE_READ),
            _ => pool::buffer(),
        };
        let read = self.io.poll_read(cx, &mut buffer);
        let result = match read {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(0)) => self.lost(BodyError::Gone),
            Poll::Ready(Err(error)) => self.lost(BodyError::of(&error)),
            Poll::Ready(Ok(_)) => {
                self.body.is_filled = true;
                self.body.ahead.append(&mut buffer);
                Poll::Ready(Ok(()))
            }
        };
        buffers::give_back(buffer);
        result
    }
}

impl<T> H1Client<'_, T> {
    #[cold]
    fn lost(&mut self, error: BodyError) -> Poll<Result<(), BodyError>> {
        self.body.left = Left::Broken(error);
        Poll::Ready(Err(error))
    }
}

impl<T: Transport> Client for H1Client<'_, T> {
    fn forgo_continue(&mut self) {
        self.body.forgoes_continue = true;
    }

    fn poll_body(
        &mut self,
        limit: u64,
        timeout_ms: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, BodyError>> {
        ready!(self.poll_interim(timeout_ms, cx))?;
        loop {
            if let Some(piece) = self.body.next_piece()? {
                self.body.handed_out += piece.len() as u64;
                self.body.check_size(limit)?;
                self.timer.arm(timeout_ms);
                return Poll::Ready(Ok(Some(piece)));
            }
            self.body.check_size(limit)?;
            if self.body.finished() {
                self.timer.disarm();
                return Poll::Ready(Ok(None));
            }
            if !self.armed {
                self.armed = true;
                self.timer.arm(timeout_ms);
            }
            match self.poll_fill(cx) {
                Poll::Ready(result) => {
                    result?;
                    self.timer.arm(timeout_ms);
                }
                Poll::Pending => {
                    ready!(self.timer.poll_expired(cx));
                    self.body.left = Left::Broken(BodyError::TimedOut);
                    return Poll::Ready(Err(BodyError::TimedOut));
                }
            }
        }
    }

    fn take_wire_bytes(&mut self) -> u64 {
        let total = self.body.wire_bytes;
        total - mem::replace(&mut self.body.counted_bytes, total)
    }

    fn pause_body(&mut self) {
        self.timer.disarm();
        self.armed = false;
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.poll_peer_closed(cx)
    }

    fn gone_because(&mut self) -> Option<io::Error> {
        self.io.take_error()
    }

    fn hint(&mut self, status: u16, fields: &[Field]) {
        let out = &mut self.body.hints;
        match status {
            103 => out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\n"),
            status => encode::write_status_line(out, status),
        }
        fields.iter().for_each(|field| encode::write_field(out, &field.name, &field.value));
        out.extend_from_slice(b"\r\n");
    }

    fn poll_hints(&mut self, timeout_ms: u64, cx: &mut Context<'_>) -> Poll<()> {
        while !self.body.hints.is_empty() {
            let slices = [std::io::IoSlice::new(&self.body.hints)];
            match self.io.poll_write(cx, &slices, false) {
                Poll::Ready(Ok(written)) => {
                    self.body.interim_bytes += written as u64;
                    self.body.hints.drain(..written);
                }
                // Whoever sends the answer finds out.
                Poll::Ready(Err(_)) => self.body.hints.clear(),
                Poll::Pending => {
                    ready!(self.timer.poll_expired_after(timeout_ms, cx));
                    // No answer may follow half an interim one.
                    self.body.left = Left::Broken(BodyError::Gone);
                    self.body.hints.clear();
                }
            }
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Line;
    use forebay_rt::clock;
    use std::task::Waker;

    #[test]
    fn a_client_that_does_not_take_100_continue_is_given_up() {
        clock::pause();
        let (mut io, timer) = (Line::default(), Timer::new());
        io.0.is_full.set(true);
        let mut body = BodyReader::new(BodyLength::Length(5), Ahead::default(), true);
        let mut client =
            H1Client { io: &mut io, timer: &timer, body: &mut body, interim: b"", armed: false };
        let mut poll = || client.poll_body(0, 5_000, &mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        clock::advance(5_000);
        assert_eq!(poll(), Poll::Ready(Err(BodyError::TimedOut)));
    }

    #[test]
    fn a_chunk_that_makes_a_body_too_large_is_refused_by_its_size() {
        let (mut io, timer) = (Line::default(), Timer::new());
        io.say(b"3\r\nabc\r\n");
        let line = io.clone();
        let mut body = BodyReader::new(BodyLength::Chunked, Ahead::default(), false);
        let mut client =
            H1Client { io: &mut io, timer: &timer, body: &mut body, interim: b"", armed: false };
        let mut poll = || client.poll_body(10, 5_000, &mut Context::from_waker(Waker::noop()));
        assert_eq!(poll(), Poll::Ready(Ok(Some(Bytes::from_static(b"abc")))));
        line.say(b"14\r\n");
        assert_eq!(poll(), Poll::Ready(Err(BodyError::TooLarge { taken: 3, next: 20 })));
    }

    #[test]
    fn a_client_that_does_not_take_an_interim_response_gets_no_other() {
        clock::pause();
        let (mut io, timer) = (Line::default(), Timer::new());
        io.0.is_full.set(true);
        let mut body = BodyReader::new(BodyLength::None, Ahead::default(), false);
        let mut client =
            H1Client { io: &mut io, timer: &timer, body: &mut body, interim: b"", armed: false };
        client.hint(103, &[]);
        let mut poll = || client.poll_hints(5_000, &mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        clock::advance(5_000);
        assert!(poll().is_ready());
        assert!(body.gone());
    }
}
