//! What was read beyond the head of a request: its body, and requests behind it.
//!
//! Invariant: what stays behind is not moved: however many small requests share a buffer, each costs
//! about as many copied bytes as it has itself.

use std::{mem, ops::Deref};

use bytes::Bytes;
use forebay_rt::pool;

use crate::upstream::buffers;

/// Bytes that are not looked at yet.
#[derive(Default)]
pub struct Ahead {
    buf: Vec<u8>,
    /// Where they begin; 0 if there are none.
    at: usize,
}

/// How much of what is ahead is taken for a head at first.
const FIRST_BYTES: usize = 512;

impl From<Vec<u8>> for Ahead {
    fn from(buf: Vec<u8>) -> Ahead {
        Ahead { buf, at: 0 }
    }
}

impl Deref for Ahead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf[self.at..]
    }
}

impl Ahead {
    /// A buffer that begins with them, for a head; it may not have all.
    pub fn begin_head(&mut self) -> Vec<u8> {
        if self.at == 0 {
            return mem::take(&mut self.buf);
        }
        let mut head = pool::buffer();
        self.more_of_head(&mut head, FIRST_BYTES);
        head
    }

    /// Copies up to that many more bytes to the end of a head; whether there were any.
    pub fn more_of_head(&mut self, head: &mut Vec<u8>, most: usize) -> bool {
        let len = self.len().min(most);
        head.extend_from_slice(&self[..len]);
        self.skip(len);
        len > 0
    }

    /// The head ends after `len` bytes of that buffer: the others belong behind it.
    pub fn end_head(&mut self, head: &mut Vec<u8>, len: usize) {
        let beyond = head.len() - len;
        if beyond == 0 {
            return;
        }
        if beyond <= self.at {
            // They were copied, and are where they were.
            self.at -= beyond;
            head.truncate(len);
        } else if beyond <= len {
            *self = head.split_off(len).into();
        } else {
            let mut short = pool::buffer();
            short.extend_from_slice(&head[..len]);
            *self = Ahead { buf: mem::replace(head, short), at: len };
        }
    }

    /// They have been looked at, so far.
    pub fn skip(&mut self, len: usize) {
        self.at += len;
        debug_assert!(self.at <= self.buf.len());
    }

    /// The first of them.
    pub fn take(&mut self, len: usize) -> Bytes {
        // What fills most of its buffer is handed on as it is.
        if len == self.len() && len > self.buf.capacity() / 4 {
            let at = mem::take(&mut self.at);
            return buffers::freeze(mem::take(&mut self.buf)).slice(at..);
        }
        let piece = Bytes::copy_from_slice(&self[..len]);
        self.skip(len);
        piece
    }

    /// More have come; an empty buffer is left in their place.
    pub fn append(&mut self, read: &mut Vec<u8>) {
        if self.is_empty() {
            self.at = 0;
            mem::swap(&mut self.buf, read);
            return;
        }
        // Nearly nothing: what could be looked at was.
        self.buf.drain(..mem::take(&mut self.at));
        self.buf.extend_from_slice(read);
    }

    /// All that are left.
    pub fn into_vec(mut self) -> Vec<u8> {
        self.buf.drain(..mem::take(&mut self.at));
        mem::take(&mut self.buf)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if self.buf.capacity() > 0 {
            pool::recycle(mem::take(&mut self.buf));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts heads of that length off, as they come; the addresses of what is ahead in between.
    fn cut(ahead: &mut Ahead, len: usize, count: usize) -> Vec<*const u8> {
        let mut places = Vec::new();
        for n in 0..count {
            let mut head = ahead.begin_head();
            while head.len() < len && ahead.more_of_head(&mut head, len) {}
            ahead.end_head(&mut head, len);
            assert_eq!(head, vec![b'a' + (n % 26) as u8; len]);
            places.push(ahead.as_ptr());
        }
        places
    }

    fn heads(len: usize, count: usize) -> Vec<u8> {
        (0..count).flat_map(|n| vec![b'a' + (n % 26) as u8; len]).collect()
    }

    #[test]
    fn small_heads_leave_what_follows_where_it_is() {
        for len in [20, 511, 512, 513, 1500] {
            let buf = heads(len, 100);
            let start = buf.as_ptr();
            let mut ahead = Ahead::from(buf);
            let places = cut(&mut ahead, len, 100);
            assert!(ahead.is_empty());
            for (n, place) in places[..99].iter().enumerate() {
                assert_eq!(*place, start.wrapping_add((n + 1) * len), "{len}: {n}");
            }
        }
    }

    #[test]
    fn what_comes_behind_a_large_head_is_moved_once() {
        let mut ahead = Ahead::default();
        let mut head = vec![b'x'; 9000];
        head.extend(heads(10, 3));
        ahead.end_head(&mut head, 9000);
        assert_eq!((head.len(), &ahead[..]), (9000, &heads(10, 3)[..]));
        cut(&mut ahead, 10, 3);
    }

    #[test]
    fn what_is_read_later_stands_behind() {
        let mut ahead = Ahead::from(b"headrest".to_vec());
        ahead.skip(4);
        ahead.append(&mut b" and more".to_vec());
        assert_eq!(&ahead[..], b"rest and more");
        assert_eq!(ahead.take(4), "rest");
        assert_eq!(ahead.take(9), " and more");
        let mut read = b"again".to_vec();
        ahead.append(&mut read);
        assert!(read.is_empty());
        ahead.skip(2);
        assert_eq!(ahead.into_vec(), b"ain");
    }
}
