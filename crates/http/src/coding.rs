//! Content codings: what a compressing module gives to the filter that chooses between them, and the
//! stream that runs a body through a compressor or decompressor.
//!
//! Invariant: no coding is named here.

use std::{
    cell::Cell,
    mem,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use forebay_rt::task;
use forebay_wire::{accept, h1::FieldId};

use crate::{
    body::{Body, Chunk, Fault, Piece, Reader, Source},
    request::Request,
    response::Response,
};

/// A coding that a location compresses with.
pub trait Coding: Send + Sync {
    /// What comes out of it.
    fn form(&self) -> Form;
    /// Whether responses of that type and length are worth it.
    fn takes(&self, response: &Response) -> bool;
    /// How much the client wants it, in thousandths; 0: not at all.
    fn quality(&self, r: &Request) -> u16;
    /// Compresses a body of that many bytes, if that is known.
    fn coder(&self, length: Option<u64>) -> Box<dyn Coder>;
}

/// What a coding was told: the same bytes come out the same in the same form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The name of the coding in `Content-Encoding`.
    pub name: &'static str,
    /// How hard it tries.
    pub level: u32,
    /// The binary logarithm of its window; 0: its own choice.
    pub window_bits: u8,
}

/// Compresses a body: at once where it is in memory and small, else as it comes.
pub fn encode(coding: &dyn Coding, body: Body, sizes: &Sizes) -> Body {
    let at_once = |bytes: &[u8]| {
        (bytes.len() <= STEP)
            .then(|| whole(&mut *coding.coder(Some(bytes.len() as u64)), bytes))?
            .ok()
    };
    let encoded = match &body {
        Body::Empty => at_once(b"").map(|out| (0, out)),
        Body::Bytes(bytes) => at_once(bytes).map(|out| (bytes.len(), out)),
        Body::File(slice) => {
            let kept = slice.encoded(coding.form(), at_once);
            let kept = kept.or_else(|| at_once(&slice.in_memory()?));
            kept.map(|out| (slice.len() as usize, out))
        }
        Body::Chunks(_) | Body::Stream(_) => None,
    };
    match encoded {
        Some((length, out)) => {
            sizes.set((length as u64, out.len() as u64));
            Body::Bytes(out)
        }
        None => {
            let coder = coding.coder(body.length());
            Body::Stream(Box::new(Stream::new(coder, body, sizes.clone())))
        }
    }
}

/// All that comes of some bytes.
pub fn whole(coder: &mut dyn Coder, input: &[u8]) -> Result<Bytes, Fault> {
    let mut out = Vec::with_capacity(input.len() / 2 + 64);
    let mut left = input;
    loop {
        let Progress { used, done } = coder.run(left, Finish::End, &mut out)?;
        task::worked(used);
        left = &left[used..];
        if done {
            return Ok(out.into());
        }
    }
}

/// A coding of files that lie ready beside the ones that are asked for.
pub struct StaticCoding {
    /// Its name in `Content-Encoding`.
    pub name: &'static str,
    /// What its files' names end with.
    pub extension: &'static str,
    /// Whether it is sent to clients that do not take it, too.
    pub always: bool,
    /// How much the client wants it, in thousandths; 0: not at all.
    pub quality: Box<dyn Fn(&Request) -> u16 + Send + Sync>,
}

/// What `Accept-Encoding` gives to a coding of that name. A subrequest's answer is part of another
/// body and never compressed by itself.
pub fn quality(r: &Request, name: &str) -> u16 {
    if r.subrequest {
        return 0;
    }
    let header = r.field(FieldId::AcceptEncoding);
    header.map_or(0, |header| accept::quality(header, name.as_bytes()))
}

/// Bytes into and out of a compressor, once it is done (`$gzip_ratio`).
pub type Sizes = Rc<Cell<(u64, u64)>>;

/// Writes how many times smaller a response became, with two digits, rounded as nginx rounds;
/// nothing if it was not compressed by that coding.
pub fn write_ratio(r: &Request, name: &str, out: &mut Vec<u8>) -> bool {
    let is_it = r.response.field("Content-Encoding").is_some_and(|coding| coding == name);
    let (into, out_of) = r.compressed.get();
    if out_of == 0 || !is_it {
        return false;
    }
    let thousandths = into.saturating_mul(1000) / out_of;
    let hundredths = thousandths / 10 + u64::from(thousandths % 10 > 4);
    forebay_wire::h1::encode::write_decimal(out, hundredths / 100);
    out.push(b'.');
    out.push(b'0' + (hundredths / 10 % 10) as u8);
    out.push(b'0' + (hundredths % 10) as u8);
    true
}

/// How many bytes are worked on at a time, before other connections get their turn.
pub const STEP: usize = 64 << 10;

/// What is asked of a [`Coder`] beside taking the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Nothing: more will come.
    No,
    /// What came so far is to be readable from what goes out.
    Flush,
    /// It was the last.
    End,
}

/// How far a [`Coder`] got.
pub struct Progress {
    /// How much of the input it took.
    pub used: usize,
    /// Whether all that was asked for is done; if not, it is to be asked again.
    pub done: bool,
}

/// A compressor or decompressor.
pub trait Coder {
    /// Works on some of the input, and adds what comes out to `out`: some [`STEP`] bytes at most.
    fn run(&mut self, input: &[u8], finish: Finish, out: &mut Vec<u8>) -> Result<Progress, Fault>;
}

impl Coder for Box<dyn Coder> {
    fn run(&mut self, input: &[u8], finish: Finish, out: &mut Vec<u8>) -> Result<Progress, Fault> {
        (**self).run(input, finish, out)
    }
}

/// Runs a body through a coder as it comes.
pub struct Stream<C> {
    coder: C,
    body: Reader,
    /// What was read and is not worked on yet.
    input: Bytes,
    /// What has come out of it: it is handed on in one piece, unless there is more to wait for.
    out: Vec<u8>,
    /// Whether more comes out of what was put in.
    pending: bool,
    next: Next,
    /// How much was worked on in this turn.
    spent: usize,
    total: (u64, u64),
    sizes: Sizes,
    /// Why it ended before its end.
    fault: Option<Fault>,
}

/// What follows the input at hand.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    More,
    Flush,
    /// All has been handed out up to a flush, which is to be passed on.
    Flushed,
    Finish,
    Done,
}

impl<C: Coder> Stream<C> {
    /// Runs this body through that coder; `sizes` is told at the end.
    pub fn new(coder: C, body: Body, sizes: Sizes) -> Stream<C> {
        Stream {
            coder,
            body: Reader::new(body, STEP),
            input: Bytes::new(),
            out: Vec::new(),
            pending: false,
            next: Next::More,
            spent: 0,
            total: (0, 0),
            sizes,
            fault: None,
        }
    }

    /// Finds out what is to be worked on next.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        match ready!(self.body.poll_next(cx)).transpose()? {
            None => self.next = Next::Finish,
            Some(Piece::Flush) => self.next = Next::Flush,
            Some(Piece::Bytes(bytes)) => self.input = bytes,
            // The postpone filter leaves none to compressors; and what is decompressed comes from
            // one place only.
            Some(Piece::Nested(_)) => return Poll::Ready(Err(Fault::Filter)),
        }
        Poll::Ready(Ok(()))
    }

    /// Works on what is at hand, as far as a step goes.
    fn step(&mut self) -> Result<(), Fault> {
        let take = self.input.len().min(STEP);
        let finish = match self.next {
            Next::Flush => Finish::Flush,
            Next::Finish => Finish::End,
            _ => Finish::No,
        };
        let before = self.out.len();
        let run = self.coder.run(&self.input[..take], finish, &mut self.out);
        let Progress { used, done } = run.inspect_err(|_| self.out.truncate(before))?;
        task::worked(used);
        let made = self.out.len() - before;
        self.input.advance(used);
        if self.input.is_empty() {
            // An empty slice would still hold the memory that an upstream waits for.
            self.input = Bytes::new();
        }
        self.spent += used.max(made);
        self.total.0 += used as u64;
        self.total.1 += made as u64;
        self.pending = !done;
        self.next = match self.next {
            Next::Flush if done => Next::Flushed,
            Next::Finish if done => {
                self.sizes.set(self.total);
                Next::Done
            }
            next => next,
        };
        Ok(())
    }

    fn hand_out(&mut self) -> Poll<Option<Result<Chunk, Fault>>> {
        Poll::Ready(Some(Ok(Chunk::Bytes(mem::take(&mut self.out).into()))))
    }
}

impl<C: Coder> Source for Stream<C> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        loop {
            let rests = self.spent >= STEP;
            let ends = matches!(self.next, Next::Flushed | Next::Done);
            if (rests || ends || self.out.len() >= STEP) && !self.out.is_empty() {
                return self.hand_out();
            }
            if rests {
                self.spent = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let worked = match self.next {
                Next::Done => return Poll::Ready(self.fault.take().map(Err)),
                Next::Flushed => {
                    self.next = Next::More;
                    return Poll::Ready(Some(Ok(Chunk::Flush)));
                }
                Next::More if self.input.is_empty() && !self.pending => match self.poll_input(cx) {
                    Poll::Ready(read) => read,
                    Poll::Pending if self.out.is_empty() => return Poll::Pending,
                    Poll::Pending => return self.hand_out(),
                },
                _ => self.step(),
            };
            if let Err(fault) = worked {
                (self.next, self.fault) = (Next::Done, Some(fault));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, task::Waker};

    use super::*;
    use crate::upstream::buffers::{self, Room};

    /// Takes all and says nothing until the end.
    struct Swallow;

    impl Coder for Swallow {
        fn run(&mut self, input: &[u8], _: Finish, _: &mut Vec<u8>) -> Result<Progress, Fault> {
            Ok(Progress { used: input.len(), done: true })
        }
    }

    /// A piece that counts in a room, and no more for now.
    struct OnePiece(Option<Bytes>);

    impl Source for OnePiece {
        fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
            self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Chunk::Bytes(bytes)))))
        }
    }

    #[test]
    fn what_was_worked_on_is_let_go_before_more_is_waited_for() {
        let room = Arc::new(Room::default());
        let bytes = buffers::freeze_in(&room, vec![b'x'; 100]);
        assert_eq!(room.held(), 100);
        let body = Body::Stream(Box::new(OnePiece(Some(bytes))));
        let mut stream = Stream::new(Swallow, body, Sizes::default());
        assert!(stream.poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(room.held(), 0);
    }
}
