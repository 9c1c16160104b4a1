//! What waits to be written: small things one behind the other in a buffer, large ones as they are,
//! between them. All of it leaves in as few system calls as the kernel allows.
//!
//! Hot path: the buffer comes from the pool of the thread and goes back when it is empty.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use forebay_rt::{pool, transport::Transport};

/// How many pieces one system call takes.
const MAX_SLICES: usize = 64;
/// From here on what is written already is cut off a buffer that does not become empty.
const CUT_BYTES: usize = 64 << 10;

/// The queue.
#[derive(Default)]
pub struct Output {
    buf: Vec<u8>,
    /// How much of `buf` is written.
    written: usize,
    /// Shared pieces, each with its place in `buf`.
    shared: VecDeque<(usize, Bytes)>,
    shared_len: usize,
}

impl Output {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.buf.len() - self.written + self.shared_len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer, to append to.
    pub fn buf(&mut self) -> &mut Vec<u8> {
        if self.buf.capacity() == 0 {
            self.buf = pool::buffer();
        }
        &mut self.buf
    }

    /// Appends bytes without copying them.
    pub fn share(&mut self, bytes: Bytes) {
        self.shared_len += bytes.len();
        self.shared.push_back((self.buf.len(), bytes));
    }

    /// Writes what it can; ready when all of it is. Progress is told through `moved`.
    pub fn poll_flush<T: Transport>(
        &mut self,
        io: &mut T,
        moved: &mut bool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = self.slices(&mut slices);
            let written = ready!(io.poll_write(cx, &slices[..count], false))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *moved = true;
            self.advance(written);
        }
        self.rest();
        Poll::Ready(Ok(()))
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut count = 0;
        let mut at = self.written;
        for (place, bytes) in &self.shared {
            if count + 2 >= MAX_SLICES {
                return count;
            }
            if *place > at {
                slices[count] = IoSlice::new(&self.buf[at..*place]);
                count += 1;
                at = *place;
            }
            slices[count] = IoSlice::new(bytes);
            count += 1;
        }
        if self.buf.len() > at {
            slices[count] = IoSlice::new(&self.buf[at..]);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let end = self.shared.front().map_or(self.buf.len(), |(place, _)| *place);
            let own = written.min(end - self.written);
            self.written += own;
            written -= own;
            if written == 0 {
                break;
            }
            let Some((_, bytes)) = self.shared.front_mut() else { break };
            let take = written.min(bytes.len());
            bytes.advance(take);
            self.shared_len -= take;
            written -= take;
            if bytes.is_empty() {
                self.shared.pop_front();
            }
        }
        if self.written >= CUT_BYTES {
            self.buf.drain(..self.written);
            self.shared.iter_mut().for_each(|(place, _)| *place -= self.written);
            self.written = 0;
        }
    }

    /// Gives the buffer back.
    fn rest(&mut self) {
        self.written = 0;
        if self.buf.capacity() > 0 {
            pool::recycle(std::mem::take(&mut self.buf));
        }
    }

    /// Lets go of all memory; nothing waits.
    pub fn shrink(&mut self) {
        self.shared = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: &Output) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let count = output.slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect()
    }

    #[test]
    fn pieces_leave_in_order_however_writes_cut_them() {
        for step in 1..12 {
            let mut output = Output::default();
            output.share(Bytes::from_static(b"01"));
            output.buf().extend_from_slice(b"234");
            output.share(Bytes::from_static(b"56"));
            output.share(Bytes::from_static(b"7"));
            output.buf().extend_from_slice(b"89");
            let mut out = Vec::new();
            while !output.is_empty() {
                let all = text(&output);
                assert_eq!(all.len(), output.len());
                let take = step.min(all.len());
                out.extend_from_slice(&all[..take]);
                output.advance(take);
            }
            assert_eq!(out, b"0123456789", "{step}");
        }
    }

    #[test]
    fn a_buffer_that_never_becomes_empty_does_not_grow() {
        let mut output = Output::default();
        output.buf().extend_from_slice(b"0");
        for _ in 0..10_000 {
            output.buf().extend_from_slice(&[1; 1000]);
            output.share(Bytes::from_static(b"x"));
            output.advance(1001);
        }
        assert!(output.buf.capacity() < 4 * CUT_BYTES && output.len() == 1);
    }
}
