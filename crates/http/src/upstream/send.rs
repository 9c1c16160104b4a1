//! Sends a request: head and body leave together, and a body that is still coming leaves as it comes.
//!
//! What is at hand is gathered into large writes; nothing is ever waited for to fill one. Where the
//! protocol frames the body, or bounds what may be sent, its codec is asked for each piece.
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

use super::{Codec, conn::Stream};
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
    /// What was taken of the body, and is not in the queue yet.
    rest: Bytes,
    /// Whether the protocol frames the body.
    framed: bool,
    /// What is to be written behind the head.
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Bytes written.
    pub sent: u64,
    /// Whether it matters little that it counts as sent when it was not quite: it may be sent twice.
    pub repeatable: bool,
    /// Whether the end of the body is in the queue, or out.
    ended: bool,
    /// What the client has sent, as long as nothing was written: another server may get it.
    taken: Vec<Bytes>,
    /// Who has the rest of the body, once the answer is under way.
    own: Option<Box<dyn Client>>,
}

enum Source {
    Ready,
    File { file: Rc<TempFile>, at: u64 },
    Client { limit: u64, timeout_ms: u64 },
}

impl Source {
    /// Whether nothing more is to be taken of it.
    fn is_over(&self) -> bool {
        match self {
            Source::Ready => true,
            Source::File { file, at } => *at == file.len,
            Source::Client { .. } => false,
        }
    }
}

impl<'a> Sender<'a> {
    /// A request that begins. `limit`, `timeout_ms`: of a body that is still coming.
    pub fn new<C: Codec>(
        codec: &mut C,
        head: &'a [u8],
        body: &Outgoing,
        limit: u64,
        timeout_ms: u64,
    ) -> Sender<'a> {
        let mut sender = Sender {
            head,
            head_sent: 0,
            body: Source::Ready,
            rest: Bytes::new(),
            framed: codec.frames(body),
            queue: VecDeque::new(),
            queued: 0,
            sent: 0,
            repeatable: false,
            ended: false,
            taken: Vec::new(),
            own: None,
        };
        match body {
            Outgoing::None => {}
            Outgoing::Memory(bytes) => sender.rest = bytes.clone(),
            Outgoing::File(file) => sender.body = Source::File { file: file.clone(), at: 0 },
            Outgoing::Stream { begun, .. } => {
                sender.rest = begun.clone();
                sender.body = Source::Client { limit, timeout_ms };
            }
        }
        let empty = sender.rest.is_empty() && sender.body.is_over();
        sender.ended = empty && !sender.framed;
        if let Some(head) = codec.open(sender.head, empty) {
            sender.head = &[];
            sender.ended = empty;
            sender.put(head.into());
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

    /// The rest of the request, which goes its own way.
    pub fn detach(mut self, client: &mut dyn Client) -> Sender<'static> {
        if self.takes_from_client() {
            self.own = client.split();
        }
        let rest = &self.head[self.head_sent..];
        if !rest.is_empty() {
            self.queued += rest.len();
            self.queue.push_front(Bytes::copy_from_slice(rest));
        }
        Sender { head: &[], head_sent: 0, ..self }
    }

    /// Whether some of the body is still to come from the client.
    fn takes_from_client(&self) -> bool {
        matches!(self.body, Source::Client { .. }) && !self.ended
    }

    /// The same, and the client has to be brought to it.
    pub fn needs_client(&self) -> bool {
        self.takes_from_client() && self.own.is_none()
    }

    fn push<C: Codec>(&mut self, codec: &mut C, bytes: Bytes, last: bool) {
        self.ended |= last;
        if !self.framed {
            return self.put(bytes);
        }
        let (mut before, mut after) = (Vec::new(), Vec::new());
        codec.wrap(bytes.len(), last, &mut before, &mut after);
        self.put(before.into());
        self.put(bytes);
        self.put(after.into());
    }

    fn put(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.queued += bytes.len();
            self.queue.push_back(bytes);
        }
    }

    /// Sends what can be sent. `Pending`: for the upstream, or for the client
    /// ([`Sender::waits_for_client`]). Without `client`, its own is asked, if there is one.
    pub fn poll<C: Codec>(
        &mut self,
        codec: &mut C,
        stream: &mut Stream,
        client: Option<&mut (dyn Client + '_)>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let mut own = self.own.take();
        let polled = match (client, &mut own) {
            (Some(client), _) => self.poll_of(codec, stream, Some(client), cx),
            (None, Some(own)) => self.poll_of(codec, stream, Some(&mut **own), cx),
            (None, None) => self.poll_of(codec, stream, None, cx),
        };
        self.own = own;
        polled
    }

    fn poll_of<C: Codec>(
        &mut self,
        codec: &mut C,
        stream: &mut Stream,
        mut client: Option<&mut (dyn Client + '_)>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        loop {
            let client = client.as_deref_mut();
            if let Err(error) = self.gather(codec, stream, client, cx) {
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
        let waits = !self.ended && self.rest.is_empty();
        is_client && waits && self.head_sent == self.head.len() && self.queue.is_empty()
    }

    /// Takes what is there of the body.
    fn gather<C: Codec>(
        &mut self,
        codec: &mut C,
        stream: &Stream,
        mut client: Option<&mut (dyn Client + '_)>,
        cx: &mut Context<'_>,
    ) -> Result<(), SendError> {
        if codec.has_output() {
            self.put(codec.take_output().into());
        }
        while !self.ended && self.queued < GATHER_BYTES && self.queue.len() < MAX_SLICES {
            if !self.rest.is_empty() {
                let take = codec.credit(self.rest.len());
                if take == 0 {
                    return Ok(());
                }
                let piece = self.rest.split_to(take);
                let last = self.rest.is_empty() && self.body.is_over();
                self.push(codec, piece, last);
                continue;
            }
            match &mut self.body {
                Source::Ready => self.push(codec, Bytes::new(), true),
                Source::File { file, at } if *at == file.len => {
                    self.push(codec, Bytes::new(), true);
                }
                // The kernel sends it.
                Source::File { .. } if !self.framed && stream.sends_files() => return Ok(()),
                Source::File { file, at } => {
                    let want = (file.len - *at).min(GATHER_BYTES as u64) as usize;
                    let mut buf = vec![0; want];
                    file.file.read_exact_at(&mut buf, *at).map_err(SendError::File)?;
                    *at += want as u64;
                    self.rest = buf.into();
                }
                Source::Client { limit, timeout_ms } => {
                    let Some(client) = client.as_deref_mut() else { return Ok(()) };
                    match client.poll_body(*limit, *timeout_ms, cx) {
                        Poll::Pending => return Ok(()),
                        Poll::Ready(Ok(Some(piece))) => {
                            if self.sent == 0 {
                                self.taken.push(piece.clone());
                            }
                            self.rest = piece;
                        }
                        Poll::Ready(Ok(None)) => self.push(codec, Bytes::new(), true),
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
        // A file follows at once, in the same packets; not where a window may shut before it.
        let follows = matches!(&self.body, Source::File { file, at } if *at < file.len);
        let more = follows && !self.framed;
        let written = match self.repeatable && self.ended {
            true => stream.poll_hand_over(cx, &slices[..count]),
            false => stream.poll_write(cx, &slices[..count], more),
        };
        let written = match written {
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
