//! Reading: records are opened where they were received, and their plaintext moved together.
//! Hot path: no allocation but for a record that comes in pieces.

use std::{
    io,
    task::{Context, Poll, ready},
};

use forebay_rt::{pool, transport::Transport};

use super::{Opened, State};
use crate::records::{HEADER, MAX_RECORD, record_len};

/// With less room than that in the caller's buffer, reading goes through one of ours.
const MIN_ROOM: usize = 2048;

/// Received bytes that the caller has not taken: opened ones in front, sealed ones behind.
#[derive(Default)]
pub(super) struct Input {
    pub(super) bytes: Vec<u8>,
    /// Opened: from..to; what is behind `sealed` is as it came.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) sealed: usize,
}

impl Input {
    pub(super) fn is_empty(&self) -> bool {
        self.from == self.to && self.sealed == self.bytes.len()
    }
}

impl State {
    pub(super) fn poll_read<T: Transport>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let taken = self.take(buf)?;
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
            if self.peer_closed {
                return Poll::Ready(Ok(0));
            }
            if self.broken {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            let room = buf.capacity() - buf.len();
            if self.input.bytes.is_empty() && room >= MIN_ROOM {
                match ready!(self.poll_read_through(io, cx, buf))? {
                    Some(read) => return Poll::Ready(Ok(read)),
                    None => continue,
                }
            }
            if ready!(self.poll_fill(io, cx))? == 0 {
                return Poll::Ready(Ok(0));
            }
        }
    }

    /// Receives into the caller's buffer and opens what came there. `None`: it was nothing that the
    /// caller gets, or only a part of a record.
    fn poll_read_through<T: Transport>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
    ) -> Poll<io::Result<Option<usize>>> {
        let start = buf.len();
        let read = ready!(io.poll_read(cx, buf))?;
        if read == 0 {
            // Without a close_notify: nginx takes it for an end like any other
            // (SSL_OP_IGNORE_UNEXPECTED_EOF); what is framed knows whether it was cut.
            return Poll::Ready(Ok(Some(0)));
        }
        let (mut from, mut to) = (start, start);
        let mut ended = false;
        while let Some(len) = record_len(&buf[from..]) {
            let len = match len {
                Ok(len) => len,
                Err(bad) => {
                    buf.truncate(to);
                    return Poll::Ready(Err(self.bad_record(bad)));
                }
            };
            if buf.len() - from < len {
                break;
            }
            let opened = match self.open(&mut buf[from..from + len]) {
                Ok(opened) => opened,
                Err(error) => {
                    buf.truncate(to);
                    return Poll::Ready(Err(error));
                }
            };
            match opened {
                Opened::Data(at) => {
                    buf.copy_within(from + at.start..from + at.end, to);
                    to += at.len();
                }
                Opened::Nothing => {}
                Opened::End => ended = true,
            }
            from += len;
            if ended {
                break;
            }
        }
        if !ended && from < buf.len() {
            self.keep(&buf[from..]);
        }
        buf.truncate(to);
        let read = to - start;
        Poll::Ready(Ok((read > 0 || ended).then_some(read)))
    }

    /// Keeps the beginning of a record until the rest has come.
    fn keep(&mut self, sealed: &[u8]) {
        let mut bytes = pool::buffer();
        bytes.clear();
        bytes.reserve(MAX_RECORD.max(sealed.len()));
        bytes.extend_from_slice(sealed);
        self.input = Input { bytes, ..Input::default() };
    }

    /// Receives more behind what is kept, up to the end of the record at most as far as there is room.
    fn poll_fill<T: Transport>(
        &mut self,
        io: &mut T,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let input = &mut self.input;
        if input.bytes.capacity() == 0 {
            input.bytes = pool::buffer();
        }
        if input.sealed > 0 && input.from == input.to {
            input.bytes.drain(..input.sealed);
            (input.from, input.to, input.sealed) = (0, 0, 0);
        }
        if input.bytes.capacity() < input.bytes.len() + HEADER {
            input.bytes.reserve(MAX_RECORD);
        }
        if let Some(Ok(len)) = record_len(&input.bytes[input.sealed..]) {
            let have = input.bytes.len() - input.sealed;
            input.bytes.reserve(len.saturating_sub(have));
        }
        let read = io.poll_read(cx, &mut input.bytes);
        if read.is_pending() && input.is_empty() {
            pool::recycle(std::mem::take(input).bytes);
        }
        read
    }

    /// Gives the caller what is opened already, or opens the next record for it. 0: there is no whole
    /// one.
    fn take(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        if self.input.bytes.is_empty() {
            return Ok(0);
        }
        let mut taken = 0;
        loop {
            let input = &mut self.input;
            let len = (input.to - input.from).min(buf.capacity() - buf.len());
            buf.extend_from_slice(&input.bytes[input.from..input.from + len]);
            input.from += len;
            taken += len;
            if input.from < input.to {
                return Ok(taken);
            }
            if !self.open_next()? {
                break;
            }
        }
        if self.input.is_empty() {
            pool::recycle(std::mem::take(&mut self.input).bytes);
        }
        Ok(taken)
    }

    /// Opens the next whole record of what is kept; `false`: there is none.
    fn open_next(&mut self) -> io::Result<bool> {
        if self.peer_closed {
            self.input.sealed = self.input.bytes.len();
            return Ok(false);
        }
        let mut input = std::mem::take(&mut self.input);
        let next = &mut input.bytes[input.sealed..];
        let len = match record_len(next) {
            Some(Ok(len)) if next.len() >= len => len,
            Some(Err(bad)) => return Err(self.bad_record(bad)),
            _ => {
                self.input = input;
                return Ok(false);
            }
        };
        if let Opened::Data(at) = self.open(&mut next[..len])? {
            (input.from, input.to) = (input.sealed + at.start, input.sealed + at.end);
        }
        input.sealed += len;
        self.input = input;
        Ok(true)
    }
}
