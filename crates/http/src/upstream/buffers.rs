//! Memory of responses: buffers that go round, and that count as long as a client has not taken what
//! is in them.
//!
//! Hot path: a response that comes in one piece costs one small allocation here.
//!
//! Invariant: what is handed out counts until it is dropped, wherever that happens.

use std::{
    cell::RefCell,
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Waker,
};

use bytes::Bytes;
use forebay_rt::pool;

/// How much of a response is held in memory, and who waits for it to become less.
#[derive(Default)]
pub struct Room {
    held: AtomicUsize,
    waits: Mutex<Option<Waker>>,
}

impl Room {
    /// Bytes held.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Wakes the task when some of it is let go.
    pub fn wait(&self, waker: &Waker) {
        // A panic elsewhere leaves a waker or none.
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waits {
            Some(known) if known.will_wake(waker) => {}
            slot => *slot = Some(waker.clone()),
        }
    }

    fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waits {
            waker.wake();
        }
    }
}

/// A buffer that goes back to where it came from.
struct Recycled(Vec<u8>);

impl AsRef<[u8]> for Recycled {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        give_back(mem::take(&mut self.0));
    }
}

struct Held {
    buf: Recycled,
    bytes: usize,
    room: Arc<Room>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.buf.as_ref()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.release(self.bytes);
    }
}

/// The buffer as bytes that may be shared; it is used again when they are dropped.
pub fn freeze(buf: Vec<u8>) -> Bytes {
    Bytes::from_owner(Recycled(buf))
}

/// The same, counted in a room until then. A buffer that is mostly empty is not kept for what is in
/// it.
pub fn freeze_in(room: &Arc<Room>, mut buf: Vec<u8>) -> Bytes {
    if buf.len() < buf.capacity() / 2 {
        let copy = buf.as_slice().to_vec();
        give_back(mem::replace(&mut buf, copy));
    }
    let bytes = buf.capacity();
    room.held.fetch_add(bytes, Relaxed);
    Bytes::from_owner(Held { buf: Recycled(buf), bytes, room: room.clone() })
}

/// How many large buffers a thread keeps.
const KEPT: usize = 16;

thread_local! {
    /// Buffers larger than those of [`pool`].
    static LARGE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The largest capacity up to `bytes` that costs no more than it holds: the allocator has four steps
/// between two powers of two, and a buffer between two of them takes the larger.
pub fn fitting(bytes: usize) -> usize {
    let step = (1 << bytes.max(4).ilog2()) / 4;
    bytes / step * step
}

/// An empty buffer of that capacity.
pub fn take(bytes: usize) -> Vec<u8> {
    if bytes == pool::BUFFER_BYTES {
        return pool::buffer();
    }
    let found = LARGE.try_with(|large| {
        let mut large = large.borrow_mut();
        let at = large.iter().rposition(|buf| buf.capacity() == bytes)?;
        Some(large.swap_remove(at))
    });
    found.ok().flatten().unwrap_or_else(|| Vec::with_capacity(bytes))
}

/// Puts a buffer back.
pub fn give_back(mut buf: Vec<u8>) {
    if buf.capacity() == pool::BUFFER_BYTES {
        return pool::recycle(buf);
    }
    if buf.capacity() < pool::BUFFER_BYTES {
        return;
    }
    buf.clear();
    // While the thread ends, the list may be gone already.
    let _ = LARGE.try_with(|large| {
        let mut large = large.borrow_mut();
        if large.len() == KEPT {
            large.remove(0);
        }
        large.push(buf);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_out_counts_until_it_is_dropped() {
        let room = Arc::new(Room::default());
        let mut buf = take(32 << 10);
        buf.resize(20 << 10, b'x');
        let bytes = freeze_in(&room, buf);
        let slice = bytes.slice(5..10);
        drop(bytes);
        assert_eq!(room.held(), 32 << 10);
        drop(slice);
        assert_eq!(room.held(), 0);
    }

    #[test]
    fn a_capacity_that_fits_is_one_of_four_between_two_powers_of_two() {
        let sizes =
            [(0, 0), (3, 3), (4096, 4096), (6000, 5120), (36_864, 32_768), (40_960, 40_960)];
        for (room, fitting) in sizes {
            assert_eq!(super::fitting(room), fitting, "{room}");
        }
    }

    #[test]
    fn a_few_bytes_do_not_hold_a_large_buffer() {
        let room = Arc::new(Room::default());
        let mut buf = take(64 << 10);
        buf.extend_from_slice(b"few");
        let bytes = freeze_in(&room, buf);
        assert_eq!((room.held(), &bytes[..]), (3, &b"few"[..]));
    }

    #[test]
    fn buffers_are_used_again() {
        let mut buf = take(48 << 10);
        buf.push(1);
        let place = buf.as_ptr();
        drop(freeze(buf));
        let again = take(48 << 10);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
    }
}
