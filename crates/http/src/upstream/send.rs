//! Sends a request: head and body leave together, and a body that is still coming leaves as it comes.
//!
//! What is at hand is gathered into large writes; nothing is ever waited for to fill one.
//!
//! Hot path: a request without a body is one system call.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    os::{fd::AsFd, unix::fs::FileExt},
    rc::Rc,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use forebay_rt::transport::Transport;

use super::{Protocol, conn::Stream};
use crate::{
    body_in::TempFile,
    client::{BodyError, Client},
};

/// The body of a request to an upstream.
#[derive(Clone)]
pub enum Outgoing {
    /// None.
    None,
    /// In memory.
    Memory(Bytes),
    /// In a file.
    File(Rc<TempFile>),
    /// It is still coming from the client.
    Stream {
        /// What of it has come already.
        begun: Bytes,
        /// How long it is, if that was said.
        length: Option<u64>,
    },
}

impl Outgoing {
    /// How long it is, if that is known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Outgoing::None => Some(0),
            Outgoing::Memory(bytes) => Some(bytes.len() as u64),
            Outgoing::File(file) => Some(file.len),
            Outgoing::Stream { length, .. } => *length,
        }
    }

    /// Whether it can be sent once only.
    pub fn is_stream(&self) -> bool {
        matches!(self, Outgoing::Stream { .. })
    }
}

/// Why a request could not be sent.
#[derive(Debug)]
pub enum SendError {
    /// The connection broke.
    Upstream(io::Error),
    /// The client did not send the rest of its body.
    Client(BodyError),
    /// The temporary file could not be read.
    File(io::Error),
}

/// How much of a body is gathered for one write.
const GATHER_BYTES: usize = 64 << 10;
/// How many pieces one system call takes.
const MAX_SLICES: usize = 32;

/// A request on its way.
pub struct Sender<'a> {
    head: &'a [u8],
    head_sent: usize,
    body: Source,
    /// Whether the protocol frames the body.
    framed: bool,
    /// What is to be written behind the head.
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Bytes written.
    pub sent: u64,
    /// Whether the end of the body is in the queue, or out.
    ended: bool,
    /// What the client has sent, as long as nothing was written: another server may get it.
    taken: Vec<Bytes>,
}

enum Source {
    Ready,
    File { file: Rc<TempFile>, at: u64 },
    Client { limit: u64, timeout_ms: u64 },
}

impl<'a> Sender<'a> {
    /// A request that begins. `limit`, `timeout_ms`: of a body that is still coming.
    pub fn new<P: Protocol>(
        protocol: &P,
        head: &'a [u8],
        body: &Outgoing,
        limit: u64,
        timeout_ms: u64,
    ) -> Sender<'a> {
        let framed = protocol.frames_body(body);
        let mut sender = Sender {
            head,
            head_sent: 0,
            body: Source::Ready,
            framed,
            queue: VecDeque::new(),
            queued: 0,
            sent: 0,
            ended: false,
            taken: Vec::new(),
        };
        match body {
            Outgoing::None => {}
            Outgoing::Memory(bytes) => sender.push(protocol, bytes.clone()),
            Outgoing::File(file) => sender.body = Source::File { file: file.clone(), at: 0 },
            Outgoing::Stream { begun, .. } => {
                sender.push(protocol, begun.clone());
                sender.body = Source::Client { limit, timeout_ms };
            }
        }
        if let Source::Ready = sender.body {
            sender.end(protocol);
        }
        sender
    }

    /// Whether a byte of it was written: it may have been acted on.
    pub fn begun(&self) -> bool {
        self.sent > 0
    }

    /// What was taken of a body that is still coming, if nothing was written.
    pub fn take_back(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.taken)
    }

    /// Whether all of it was written.
    pub fn done(&self) -> bool {
        self.ended && self.head_sent == self.head.len() && self.queue.is_empty()
    }

    fn push<P: Protocol>(&mut self, protocol: &P, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        if self.framed {
            let mut frame = Vec::with_capacity(20);
            protocol.frame(bytes.len(), &mut frame);
            self.put(frame.into());
        }
        self.put(bytes);
        if self.framed {
            let mut frame = Vec::new();
            protocol.frame_end(&mut frame);
            self.put(frame.into());
        }
    }

    fn put(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.queued += bytes.len();
            self.queue.push_back(bytes);
        }
    }

    fn end<P: Protocol>(&mut self, protocol: &P) {
        self.ended = true;
        if self.framed {
            let mut frame = Vec::new();
            protocol.frame(0, &mut frame);
            self.put(frame.into());
        }
    }

    /// Sends what can be sent. `Pending`: for the upstream, or for the client
    /// ([`Sender::waits_for_client`]).
    pub fn poll<P: Protocol>(
        &mut self,
        protocol: &P,
        stream: &mut Stream,
        client: &mut dyn Client,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        loop {
            if let Err(error) = self.gather(protocol, stream, client, cx) {
                return Poll::Ready(Err(error));
            }
            if self.head_sent == self.head.len() && self.queue.is_empty() {
                if let Source::File { file, at } = &mut self.body
                    && !self.framed
                    && *at < file.len
                {
                    let count = usize::try_from(file.len - *at).unwrap_or(usize::MAX);
                    let sent = stream.poll_send_file(cx, file.file.as_fd(), *at, count);
                    match sent {
                        Poll::Ready(Ok(0)) => {
                            let error = io::ErrorKind::UnexpectedEof.into();
                            return Poll::Ready(Err(SendError::File(error)));
                        }
                        Poll::Ready(Ok(count)) => {
                            *at += count as u64;
                            self.sent += count as u64;
                            self.ended = *at == file.len;
                        }
                        Poll::Ready(Err(error)) => {
                            return Poll::Ready(Err(SendError::Upstream(error)));
                        }
                        Poll::Pending => return Poll::Pending,
                    }
                    continue;
                }
                return if self.ended { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            match self.write(stream, cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(SendError::Upstream(error))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Whether there is nothing to send before the client sends more.
    pub fn waits_for_client(&self) -> bool {
        let is_client = matches!(self.body, Source::Client { .. });
        is_client && !self.ended && self.head_sent == self.head.len() && self.queue.is_empty()
    }

    /// Takes what is there of the body.
    fn gather<P: Protocol>(
        &mut self,
        protocol: &P,
        stream: &Stream,
        client: &mut dyn Client,
        cx: &mut Context<'_>,
    ) -> Result<(), SendError> {
        while !self.ended && self.queued < GATHER_BYTES && self.queue.len() < MAX_SLICES {
            match &mut self.body {
                Source::Ready => self.end(protocol),
                Source::File { file, at } if *at == file.len => self.end(protocol),
                // The kernel sends it.
                Source::File { .. } if !self.framed && stream.sends_files() => return Ok(()),
                Source::File { file, at } => {
                    let want = (file.len - *at).min(GATHER_BYTES as u64) as usize;
                    let mut buf = vec![0; want];
                    file.file.read_exact_at(&mut buf, *at).map_err(SendError::File)?;
                    *at += want as u64;
                    self.push(protocol, buf.into());
                }
                Source::Client { limit, timeout_ms } => {
                    match client.poll_body(*limit, *timeout_ms, cx) {
                        Poll::Pending => return Ok(()),
                        Poll::Ready(Ok(Some(piece))) => {
                            if self.sent == 0 {
                                self.taken.push(piece.clone());
                            }
                            self.push(protocol, piece);
                        }
                        Poll::Ready(Ok(None)) => self.end(protocol),
                        Poll::Ready(Err(error)) => return Err(SendError::Client(error)),
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES + 4];
        let mut count = 0;
        if self.head_sent < self.head.len() {
            slices[0] = IoSlice::new(&self.head[self.head_sent..]);
            count = 1;
        }
        for bytes in self.queue.iter().take(MAX_SLICES) {
            slices[count] = IoSlice::new(bytes);
            count += 1;
        }
        // A file follows at once, in the same packets.
        let more = matches!(&self.body, Source::File { file, at } if *at < file.len);
        let written = match stream.poll_write(cx, &slices[..count], more) {
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        self.sent += written as u64;
        self.taken.clear();
        let of_head = written.min(self.head.len() - self.head_sent);
        self.head_sent += of_head;
        let mut left = written - of_head;
        while left > 0 {
            let Some(front) = self.queue.front_mut() else { break };
            let take = left.min(front.len());
            front.advance(take);
            self.queued -= take;
            left -= take;
            if front.is_empty() {
                self.queue.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }
}
