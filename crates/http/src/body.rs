//! Response bodies: chunks, and the things that produce them.
//!
//! A body is pulled: the connection asks for the next chunk when it can send more, so a slow client
//! slows its source and nothing piles up between. A body filter is a [`Source`] that pulls from the
//! one it wraps.
//!
//! Invariant: nothing here knows how a chunk reaches the client.

use std::{
    collections::VecDeque,
    fmt,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;

use crate::{
    files::{self, OpenFile},
    subrequest::Subrequest,
};

/// A part of an open file: bytes `start..end`.
#[derive(Clone)]
pub struct FileSlice {
    /// The file, which stays open (and, when small, in memory) as long as a slice of it lives.
    pub file: Rc<OpenFile>,
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

impl FileSlice {
    /// How many bytes it stands for.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it stands for none.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }
}

/// A piece of a body on its way to the client.
pub enum Chunk {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes of a file, sent by the kernel where it can.
    File(FileSlice),
    /// What came before must reach the client now, even if more could be coalesced.
    Flush,
    /// What a subrequest answers, in this place. Filters of this body pass it on as it is; the
    /// postpone filter behind them puts the answer's own chunks there.
    Nested(Box<Subrequest>),
}

impl Chunk {
    /// The bytes that it stands for.
    pub fn len(&self) -> u64 {
        match self {
            Chunk::Bytes(bytes) => bytes.len() as u64,
            Chunk::File(slice) => slice.len(),
            Chunk::Flush | Chunk::Nested(_) => 0,
        }
    }

    /// Whether it stands for no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a body ended before its end. The client must be able to tell: the connection is closed. But a part of
/// a page that another server breaks off is not the end of the page ([`Subrequest`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A file could not be read, or is shorter than it was.
    File,
    /// The other server broke off.
    Upstream,
    /// A filter could not go on (a compressor, a decompressor).
    Filter,
}

impl Fault {
    /// Whether whoever came upon it has told the log.
    pub fn is_told(self) -> bool {
        self != Fault::File
    }
}

/// A piece of a body for a filter that looks at every byte.
pub enum Piece {
    /// Bytes, from memory or read from a file.
    Bytes(Bytes),
    /// As [`Chunk::Flush`].
    Flush,
    /// As [`Chunk::Nested`].
    Nested(Box<Subrequest>),
}

/// Reads a body for such a filter: what is in files comes in buffers.
pub struct Reader {
    body: Body,
    file: Option<FileSlice>,
    files: files::Reader,
    buffer_bytes: usize,
}

impl Reader {
    /// Of that body; `buffer_bytes`: how much of a file is read at a time (`output_buffers`).
    pub fn new(body: Body, buffer_bytes: usize) -> Reader {
        let buffer_bytes = buffer_bytes.max(4096);
        Reader { body, file: None, files: files::Reader::default(), buffer_bytes }
    }

    /// The next piece; `None` at the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Fault>>> {
        loop {
            if let Some(slice) = &mut self.file {
                let bytes = match slice.in_memory() {
                    Some(bytes) => bytes,
                    None => {
                        let want = slice.len().min(self.buffer_bytes as u64) as usize;
                        let read = ready!(self.files.poll_read(slice, want, cx));
                        let Some(bytes) = read.ok().filter(|bytes| !bytes.is_empty()) else {
                            return Poll::Ready(Some(Err(Fault::File)));
                        };
                        bytes
                    }
                };
                slice.start += bytes.len() as u64;
                if slice.is_empty() {
                    self.file = None;
                }
                return Poll::Ready(Some(Ok(Piece::Bytes(bytes))));
            }
            return Poll::Ready(match ready!(self.body.poll_next(cx)) {
                Some(Ok(Chunk::File(slice))) => {
                    self.file = Some(slice).filter(|slice| !slice.is_empty());
                    continue;
                }
                Some(Ok(Chunk::Bytes(bytes))) => Some(Ok(Piece::Bytes(bytes))),
                Some(Ok(Chunk::Flush)) => Some(Ok(Piece::Flush)),
                Some(Ok(Chunk::Nested(child))) => Some(Ok(Piece::Nested(child))),
                Some(Err(fault)) => Some(Err(fault)),
                None => None,
            });
        }
    }
}

/// Produces a body, chunk by chunk. `None` ends it.
pub trait Source {
    /// The next chunk, or `Pending` with the waker registered.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>>;
}

/// A response body.
#[derive(Default)]
pub enum Body {
    /// No body, or nothing left of it.
    #[default]
    Empty,
    /// One piece of memory.
    Bytes(Bytes),
    /// One piece of a file.
    File(FileSlice),
    /// Several pieces, known beforehand.
    Chunks(VecDeque<Chunk>),
    /// Pieces that come as they come.
    Stream(Box<dyn Source>),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Body::Empty => "Empty",
            Body::Bytes(_) => "Bytes",
            Body::File(_) => "File",
            Body::Chunks(_) => "Chunks",
            Body::Stream(_) => "Stream",
        })
    }
}

impl Body {
    /// The number of bytes, where it is known beforehand.
    pub fn length(&self) -> Option<u64> {
        match self {
            Body::Empty => Some(0),
            Body::Bytes(bytes) => Some(bytes.len() as u64),
            Body::File(slice) => Some(slice.len()),
            Body::Chunks(chunks) => Some(chunks.iter().map(Chunk::len).sum()),
            Body::Stream(_) => None,
        }
    }

    /// The next chunk.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        match self {
            Body::Stream(source) => source.poll_next(cx),
            Body::Chunks(chunks) => Poll::Ready(chunks.pop_front().map(Ok)),
            Body::Empty => Poll::Ready(None),
            Body::Bytes(_) | Body::File(_) => match std::mem::take(self) {
                Body::Bytes(bytes) => Poll::Ready(Some(Ok(Chunk::Bytes(bytes)))),
                Body::File(slice) => Poll::Ready(Some(Ok(Chunk::File(slice)))),
                _ => Poll::Ready(None),
            },
        }
    }
}
