//! A connection between early data and the end of its handshake (`ssl_early_data`, RFC 8446 §4.2.10):
//! the request is there and may be answered, but may also be a replay.
//!
//! Answers `ngx_ssl_try_early_data`, `ngx_ssl_recv_early` and `ngx_ssl_write_early`.
//! Invariant: once the client has finished the handshake, the connection is like any other.

use std::{
    io::{self, IoSlice},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use forebay_rt::transport::Transport;

use crate::{
    handshake::{Exchange, Party, Step},
    records::MAX_PLAIN,
    server::Observed,
    stream::State,
};

/// A handshake that waits for the client's last word.
pub(crate) struct Early {
    party: Observed,
    exchange: Exchange,
    record_bytes: usize,
    /// How much of `exchange.plain` the caller has.
    taken: usize,
    /// How much of `exchange.output` is sent.
    sent: usize,
    /// How much plaintext is in `exchange.output` that the caller does not know as written.
    unreported: usize,
    closed: bool,
    /// [`crate::Session::in_early_data`].
    flag: Arc<AtomicBool>,
}

/// What reading came to.
pub(crate) enum Read {
    /// So many bytes.
    Bytes(usize),
    /// The handshake is done, and reading goes on there.
    Done(Box<State>),
}

impl Early {
    pub(crate) fn new(
        party: Observed,
        exchange: Exchange,
        record_bytes: usize,
        flag: Arc<AtomicBool>,
    ) -> Box<Early> {
        let record_bytes = record_bytes.clamp(1, MAX_PLAIN);
        let (taken, sent, unreported, closed) = (0, 0, 0, false);
        Box::new(Early { party, exchange, record_bytes, taken, sent, unreported, closed, flag })
    }

    pub(crate) fn poll_read<T: Transport>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
    ) -> Poll<io::Result<Read>> {
        loop {
            let rest = &self.exchange.plain[self.taken..];
            if !rest.is_empty() {
                let len = rest.len().min(buf.capacity() - buf.len());
                buf.extend_from_slice(&rest[..len]);
                self.taken += len;
                return Poll::Ready(Ok(Read::Bytes(len)));
            }
            match self.party.step(&mut self.exchange) {
                Ok(Step::Again) => {}
                Ok(Step::Done) => return Poll::Ready(self.finish().map(Read::Done)),
                Ok(Step::Closed) => return Poll::Ready(Ok(Read::Bytes(0))),
                Ok(Step::Blocked) if self.exchange.show_next() => {}
                Ok(Step::Blocked) => {
                    // The client's last word comes once it has ours.
                    let flushed = self.poll_flush(io, cx)?;
                    if self.exchange.input.len() == self.exchange.input.capacity() {
                        self.exchange.input.reserve(MAX_PLAIN);
                    }
                    let read = ready!(io.poll_read(cx, &mut self.exchange.input))?;
                    if read == 0 {
                        return Poll::Ready(Ok(Read::Bytes(0)));
                    }
                    let _ = flushed;
                }
                Err(_) => {
                    while self.party.has_output() && self.party.step(&mut self.exchange).is_ok() {}
                    let _ = self.poll_flush(io, cx);
                    let error = "the handshake failed after early data";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            }
        }
    }

    /// Seals the slices with the keys of the server's early answer and sends them.
    pub(crate) fn poll_write<T: Transport>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.unreported == 0 {
            for slice in slices {
                for piece in slice.chunks(self.record_bytes) {
                    let room = MAX_PLAIN.saturating_sub(self.unreported).min(piece.len());
                    let written = self.party.write(&mut self.exchange, Some(&piece[..room]));
                    written.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
                    self.unreported += room;
                }
            }
        }
        ready!(self.poll_flush(io, cx))?;
        let offered = slices.iter().map(|slice| slice.len()).sum();
        let reported = self.unreported.min(offered);
        self.unreported -= reported;
        Poll::Ready(Ok(reported))
    }

    /// Says that no more follows.
    pub(crate) fn poll_close<T: Transport>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.closed, true) {
            // Where it cannot be said any more, the end of the connection says it.
            let _ = self.party.write(&mut self.exchange, None);
        }
        self.poll_flush(io, cx)
    }

    fn poll_flush<T: Transport>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.sent < self.exchange.output.len() {
            let slices = [IoSlice::new(&self.exchange.output[self.sent..])];
            match ready!(io.poll_write(cx, &slices, false))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.exchange.output.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// The client has finished: what was read is no replay.
    fn finish(&mut self) -> io::Result<Box<State>> {
        self.flag.store(false, Ordering::Relaxed);
        let state = self.party.state(self.record_bytes);
        let mut state = state.map_err(|error| io::Error::other(error.to_string()))?;
        let output = self.exchange.output.split_off(self.sent);
        state.defer(output, self.unreported);
        state.preread(&self.exchange.plain[self.taken..], &self.exchange.input);
        Ok(state)
    }
}
