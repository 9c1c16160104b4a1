//! A connection after its handshake: plain bytes here, records there.
//!
//! Answers `ngx_ssl_recv`, `ngx_ssl_write`, `ngx_ssl_send_chain` and `ngx_ssl_shutdown`.
//! Reading opens records where they were received, in the caller's own buffer; writing seals many
//! records into a buffer of the thread, which leaves in one system call. An idle connection holds two
//! keys and no buffer. Hot path: no allocation but for what a full socket leaves over.
//! Invariant: bytes given to `poll_write` are sealed once; after `Pending`, or a part of them, the
//! next call begins with the bytes that are not yet reported, as `SSL_write` has it.

mod input;
mod output;

use std::{
    cell::Cell,
    io::{self, IoSlice},
    os::fd::{BorrowedFd, RawFd},
    task::{Context, Poll, Waker, ready},
};

use forebay_rt::transport::Transport;
use rustls::{
    client::ClientConnectionData, kernel::KernelConnection, server::ServerConnectionData,
};

use input::Input;
use output::{BATCH_BYTES, File, Output, Plain, Slices, poll_earlier, poll_flush, poll_seal};

use crate::{
    early::{Early, Read},
    error::RecordError,
    records::{BadRecord, Key, MAX_PLAIN, kind},
};

/// How many records in a row may carry nothing (OpenSSL's `MAX_EMPTY_RECORDS`,
/// `MAX_KEY_UPDATE_MESSAGES`, `MAX_WARN_ALERT_COUNT`).
const MAX_EMPTY: u8 = 32;
/// The longest message that is taken after the handshake: a ticket, which has at most 64 kB in theory
/// and 2 kB with the servers that there are.
const MAX_MESSAGE: usize = 20 << 10;

/// RFC 8446 §6.1.
const USER_CANCELED: u8 = 90;
/// RFC 5246 §7.2.2.
const NO_RENEGOTIATION: u8 = 100;
/// OpenSSL has no reason for a key that has served long enough: it goes on with it.
const EXHAUSTED: RecordError = RecordError::new(0xC_0103, "internal error");
const BAD_UPDATE: RecordError = RecordError::new(122, "bad key update");

/// The part of rustls that is still needed: it changes keys and stores tickets.
pub(crate) enum Kernel {
    /// We are the server; TLS 1.3.
    Server(KernelConnection<ServerConnectionData>),
    /// We are the client; TLS 1.3.
    Client(KernelConnection<ClientConnectionData>),
    /// TLS 1.2, where nothing happens after the handshake.
    None,
}

/// The state of a connection beside its socket.
pub struct State {
    sealing: Key,
    opening: Key,
    kernel: Kernel,
    /// The plaintext of our records, at most (`ssl_buffer_size`).
    record_bytes: usize,
    output: Output,
    input: Input,
    /// A message of the handshake protocol that is not whole yet.
    message: Vec<u8>,
    empty: u8,
    /// A renegotiation was declined.
    declined: bool,
    /// The peer has said that it sends no more.
    peer_closed: bool,
    /// We have.
    closed: bool,
    broken: bool,
    /// A file follows: what is written now leaves with it.
    file_follows: Cell<bool>,
    /// It ends with a reset: nothing more is said.
    quiet: Cell<bool>,
}

/// What a record was for.
enum Opened {
    /// Data, in the given place of the buffer.
    Data(std::ops::Range<usize>),
    /// Something of the protocol's own.
    Nothing,
    /// The end of what the peer sends.
    End,
}

/// A TLS connection whose handshake is done, or as good as done.
pub struct TlsStream<T: Transport> {
    /// `None` only once taken apart.
    io: Option<T>,
    phase: Phase,
}

/// How far it is.
enum Phase {
    /// Early data came, and the handshake goes on beside the exchange.
    Early(Box<Early>),
    Open(Box<State>),
    /// Taken apart.
    Gone,
}

impl State {
    pub(crate) fn new(
        sealing: Key,
        opening: Key,
        kernel: Kernel,
        record_bytes: usize,
    ) -> Box<State> {
        Box::new(State {
            sealing,
            opening,
            kernel,
            record_bytes: record_bytes.clamp(1, MAX_PLAIN),
            output: Output::default(),
            input: Input::default(),
            message: Vec::new(),
            empty: 0,
            declined: false,
            peer_closed: false,
            closed: false,
            broken: false,
            file_follows: Cell::new(false),
            quiet: Cell::new(false),
        })
    }

    /// Bytes of the handshake that may leave with the first response; `unreported`: how much of a
    /// response is in them already.
    pub(crate) fn defer(&mut self, bytes: Vec<u8>, unreported: usize) {
        if !bytes.is_empty() {
            let (front, deferred) = (bytes.len(), unreported == 0);
            self.output = Output { bytes, front, deferred, plain: unreported, ..Output::default() };
        }
    }

    /// What was read beyond the handshake: plaintext, and records as they came.
    pub(crate) fn preread(&mut self, plain: &[u8], records: &[u8]) {
        if plain.is_empty() && records.is_empty() {
            return;
        }
        let mut bytes = plain.to_vec();
        bytes.extend_from_slice(records);
        self.input = Input { bytes, from: 0, to: plain.len(), sealed: plain.len() };
    }

    /// Whether only the peer can bring anything to do.
    fn is_quiet(&self) -> bool {
        self.is_idle() && self.input.bytes.is_empty()
    }

    /// Whether nothing is under way in either direction: an idle connection may be kept.
    pub fn is_idle(&self) -> bool {
        self.output.is_empty()
            && self.input.is_empty()
            && self.message.is_empty()
            && !self.peer_closed
            && !self.broken
    }

    fn fail(&mut self, error: RecordError) -> io::Error {
        self.broken = true;
        io::Error::new(io::ErrorKind::InvalidData, error)
    }

    /// The same, and the peer is told why (RFC 8446 §6.2).
    fn refuse(&mut self, alert: u8, error: RecordError) -> io::Error {
        self.queue(kind::ALERT, &[2, alert]);
        self.closed = true;
        self.fail(error)
    }

    fn bad_record(&mut self, bad: BadRecord) -> io::Error {
        let (alert, code, name) = match bad {
            BadRecord::Authentication => (20, 281, "decryption failed or bad record mac"),
            BadRecord::Version => (70, 267, "wrong version number"),
            BadRecord::Kind => (10, 443, "bad record type"),
            BadRecord::Length => (22, 198, "packet length too long"),
            BadRecord::Exhausted => return self.refuse(80, EXHAUSTED),
        };
        self.refuse(alert, RecordError::new(code, name))
    }

    /// Seals a record of our own behind what is waiting to be sent.
    fn queue(&mut self, kind: u8, content: &[u8]) {
        let (prefix, overhead) = (self.sealing.prefix(), self.sealing.overhead());
        let start = self.output.bytes.len();
        self.output.bytes.resize(start + content.len() + overhead, 0);
        let record = &mut self.output.bytes[start..];
        record[prefix..prefix + content.len()].copy_from_slice(content);
        if self.sealing.seal(kind, record).is_err() {
            self.output.bytes.truncate(start);
            self.broken = true;
        }
        if self.output.plain == 0 {
            self.output.front = self.output.gone + self.output.bytes.len();
        }
    }

    /// A new key for what we send, told to the peer (RFC 8446 §4.6.3).
    fn renew_sealing(&mut self) -> io::Result<()> {
        let renewed = match &mut self.kernel {
            Kernel::Server(kernel) => kernel.update_tx_secret(),
            Kernel::Client(kernel) => kernel.update_tx_secret(),
            Kernel::None => return Err(self.fail(EXHAUSTED)),
        };
        self.queue_update();
        let key = renewed.ok().and_then(|new| Key::new(new, rustls::ProtocolVersion::TLSv1_3));
        self.sealing = key.ok_or_else(|| self.fail(BAD_UPDATE))?;
        Ok(())
    }

    fn queue_update(&mut self) {
        self.queue(kind::HANDSHAKE, &[24, 0, 0, 1, 0]);
        self.output.update_ends = self.output.gone + self.output.bytes.len();
    }

    fn renew_opening(&mut self) -> io::Result<()> {
        let renewed = match &mut self.kernel {
            Kernel::Server(kernel) => kernel.update_rx_secret(),
            Kernel::Client(kernel) => kernel.update_rx_secret(),
            Kernel::None => return Err(self.fail(BAD_UPDATE)),
        };
        let key = renewed.ok().and_then(|new| Key::new(new, rustls::ProtocolVersion::TLSv1_3));
        self.opening = key.ok_or_else(|| self.fail(BAD_UPDATE))?;
        Ok(())
    }

    /// Opens one whole record.
    fn open(&mut self, record: &mut [u8]) -> io::Result<Opened> {
        // RFC 8446 §5: a change_cipher_spec may come in the clear during the handshake only.
        let (kind, at) = self.opening.open(record).map_err(|bad| self.bad_record(bad))?;
        if kind == kind::DATA && !self.message.is_empty() {
            return Err(self.unexpected());
        }
        match kind {
            kind::DATA if !at.is_empty() => {
                self.empty = 0;
                return Ok(Opened::Data(at));
            }
            kind::DATA => {}
            kind::ALERT => match record[at] {
                [_, 0] => {
                    self.peer_closed = true;
                    return Ok(Opened::End);
                }
                // RFC 8446 §6: all others are fatal, but for user_canceled, and in TLS 1.2 warnings.
                [1, USER_CANCELED] => {}
                [1, _] if !self.opening.is_tls13() => {}
                [_, number] => {
                    self.closed = true;
                    return Err(self.fail(RecordError::alert(number)));
                }
                // RFC 8446 §5.1: an alert is whole, and alone in its record.
                _ => return Err(self.refuse(50, RecordError::new(205, "invalid alert"))),
            },
            kind::HANDSHAKE if !at.is_empty() => self.handshake(&record[at])?,
            _ => return Err(self.unexpected()),
        }
        self.empty += 1;
        match self.empty < MAX_EMPTY {
            true => Ok(Opened::Nothing),
            false => Err(self.unexpected()),
        }
    }

    fn unexpected(&mut self) -> io::Error {
        self.refuse(10, RecordError::new(244, "unexpected message"))
    }

    /// Messages after the handshake: key updates, and tickets for a client.
    fn handshake(&mut self, content: &[u8]) -> io::Result<()> {
        let mut messages = std::mem::take(&mut self.message);
        messages.extend_from_slice(content);
        let mut rest = &messages[..];
        while let [kind, a, b, c, body @ ..] = rest {
            let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if len > MAX_MESSAGE {
                return Err(self.unexpected());
            }
            let Some((body, after)) = body.split_at_checked(len) else { break };
            self.message(*kind, body, after.is_empty())?;
            rest = after;
        }
        self.message = rest.to_vec();
        Ok(())
    }

    fn message(&mut self, kind: u8, body: &[u8], last: bool) -> io::Result<()> {
        const CLIENT_HELLO: u8 = 1;
        const NEW_SESSION_TICKET: u8 = 4;
        const KEY_UPDATE: u8 = 24;
        match (kind, body, &mut self.kernel) {
            (NEW_SESSION_TICKET, _, Kernel::Client(kernel)) => {
                kernel.handle_new_session_ticket(body).map_err(|_| self.unexpected())
            }
            // RFC 8446 §5.1: nothing may follow under the old key.
            (KEY_UPDATE, [0 | 1], Kernel::Server(_) | Kernel::Client(_)) if last => {
                self.renew_opening()?;
                // One answer will do for all that come before it leaves (RFC 8446 §4.6.3): who asks
                // and does not read makes nothing grow.
                let answered = self.output.has_update();
                match body {
                    [1] if !answered => self.renew_sealing(),
                    _ => Ok(()),
                }
            }
            // TLS 1.2 would begin a renegotiation, which is declined by a warning (RFC 5246 §7.2.2): whether
            // to go on is the client's choice. Who asks again is not listened to.
            (CLIENT_HELLO, _, Kernel::None) if !self.declined => {
                self.declined = true;
                self.queue(kind::ALERT, &[1, NO_RENEGOTIATION]);
                self.output.deferred = true;
                Ok(())
            }
            _ => Err(self.unexpected()),
        }
    }
}

impl<T: Transport> TlsStream<T> {
    pub(crate) fn new(io: T, state: Box<State>) -> TlsStream<T> {
        TlsStream { io: Some(io), phase: Phase::Open(state) }
    }

    pub(crate) fn early(io: T, early: Box<Early>) -> TlsStream<T> {
        TlsStream { io: Some(io), phase: Phase::Early(early) }
    }

    /// Takes the connection apart, to move its transport between event loops; `None`: its handshake
    /// is not done.
    pub fn into_parts(mut self) -> Option<(T, Box<State>)> {
        match std::mem::replace(&mut self.phase, Phase::Gone) {
            Phase::Open(state) => Some((self.io.take()?, state)),
            Phase::Early(_) | Phase::Gone => None,
        }
    }

    /// Puts it together again.
    pub fn from_parts(io: T, state: Box<State>) -> TlsStream<T> {
        TlsStream::new(io, state)
    }

    /// What carries the records.
    pub fn transport(&self) -> Option<&T> {
        self.io.as_ref()
    }

    /// The same, to ask it something; reading or writing there breaks the connection.
    pub fn transport_mut(&mut self) -> Option<&mut T> {
        self.io.as_mut()
    }

    /// Whether it may be kept for another exchange: nothing is under way, and the peer has not said
    /// that it closes.
    pub fn is_idle(&self) -> bool {
        matches!(&self.phase, Phase::Open(state) if state.is_idle())
    }

    fn parts(&mut self) -> io::Result<(&mut T, &mut State)> {
        match (&mut self.io, &mut self.phase) {
            (Some(io), Phase::Open(state)) => Ok((io, state)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn early_parts(&mut self) -> Option<(&mut T, &mut Early)> {
        match (&mut self.io, &mut self.phase) {
            (Some(io), Phase::Early(early)) => Some((io, early)),
            _ => None,
        }
    }
}

impl<T: Transport> Transport for TlsStream<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        if let Some((io, early)) = self.early_parts() {
            match ready!(early.poll_read(io, cx, buf))? {
                Read::Bytes(read) => return Poll::Ready(Ok(read)),
                Read::Done(state) => self.phase = Phase::Open(state),
            }
        }
        let (io, state) = self.parts()?;
        let result = state.poll_read(io, cx, buf);
        if !state.output.is_empty() && (state.output.deferred || state.broken) {
            // Nothing came that an answer will follow to: tickets, key updates and alerts go alone.
            if !matches!(result, Poll::Ready(Ok(read)) if read > 0) {
                let _ = poll_flush(io, &mut state.output, cx, false)?;
            }
        }
        result
    }

    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match (&mut self.io, &self.phase) {
            // What lies here already, or is to leave before anything is waited for, is a read's to see to.
            (Some(io), Phase::Open(state)) if state.is_quiet() => io.poll_readable(cx),
            _ => Poll::Ready(()),
        }
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        if let Some((io, early)) = self.early_parts() {
            return early.poll_write(io, cx, slices);
        }
        let (io, state) = self.parts()?;
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        if state.output.plain > 0 || (!state.output.is_empty() && !state.output.deferred) {
            match ready!(poll_earlier(io, state, offered, cx, more))? {
                0 => {}
                written => return Poll::Ready(Ok(written)),
            }
        }
        if offered == 0 {
            return Poll::Ready(Ok(0));
        }
        if state.file_follows.get() && offered <= MAX_PLAIN && !state.closed && !state.broken {
            return Poll::Ready(state.hold(Slices { slices, at: 0 }, offered));
        }
        let total = offered.min(BATCH_BYTES);
        let more = more || total < offered;
        poll_seal(io, state, cx, Slices { slices, at: 0 }, total, more)
    }

    fn poll_send_file(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        if let Some((io, early)) = self.early_parts() {
            let mut piece = vec![0; count.min(MAX_PLAIN)];
            let read = File { fd: file, offset }.fill(&mut piece)?;
            return early.poll_write(io, cx, &[IoSlice::new(&piece[..read])]);
        }
        let (io, state) = self.parts()?;
        if state.output.plain > 0 || (!state.output.is_empty() && !state.output.deferred) {
            match ready!(poll_earlier(io, state, count, cx, false))? {
                0 => {}
                written => return Poll::Ready(Ok(written)),
            }
        }
        let total = count.min(BATCH_BYTES);
        poll_seal(io, state, cx, File { fd: file, offset }, total, total < count)
    }

    /// Says that no more follows (close_notify), then sends FIN.
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some((io, early)) = self.early_parts() {
            ready!(early.poll_close(io, cx))?;
            return io.poll_shutdown(cx);
        }
        let (io, state) = self.parts()?;
        if !state.closed {
            state.closed = true;
            state.queue(kind::ALERT, &[1, 0]);
        }
        // The FIN goes with it.
        ready!(poll_flush(io, &mut state.output, cx, true))?;
        io.poll_shutdown(cx)
    }

    fn reset_on_close(&self) {
        if let Phase::Open(state) = &self.phase {
            state.quiet.set(true);
        }
        if let Some(io) = &self.io {
            io.reset_on_close();
        }
    }

    /// What is written small is kept until the file that it precedes, and leaves in the same system
    /// call.
    fn file_follows(&self, yes: bool) {
        if let Phase::Open(state) = &self.phase {
            state.file_follows.set(yes);
        }
    }

    /// They do pass through the process, but are read to where they are sealed, without a buffer of
    /// the caller's between.
    fn sends_files(&self) -> bool {
        true
    }

    fn poll_peer_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(&self.phase, Phase::Open(state) if state.peer_closed) {
            return Poll::Ready(());
        }
        match &mut self.io {
            Some(io) => io.poll_peer_closed(cx),
            None => Poll::Ready(()),
        }
    }

    fn take_error(&self) -> Option<io::Error> {
        self.io.as_ref()?.take_error()
    }

    fn socket(&self) -> Option<RawFd> {
        self.io.as_ref()?.socket()
    }
}

impl<T: Transport> Drop for TlsStream<T> {
    /// As nginx does (`ngx_ssl_shutdown`), a connection that closes says so, if its socket takes it.
    fn drop(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        if let Some((io, early)) = self.early_parts() {
            let _ = early.poll_close(io, &mut cx);
        }
        let Ok((io, state)) = self.parts() else { return };
        let quiet = state.quiet.get() || state.closed || state.broken;
        if quiet || !state.output.is_empty() && !state.output.deferred {
            return;
        }
        state.closed = true;
        state.queue(kind::ALERT, &[1, 0]);
        // Nobody waits for it any more: it leaves now or never.
        let _ = poll_flush(io, &mut state.output, &mut cx, false);
    }
}

#[cfg(test)]
mod tests;
