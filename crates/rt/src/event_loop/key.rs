//! Names of tasks and sockets that may go stale: what they name can be gone, and then they name
//! nothing.
//!
//! So a waker needs no count of its holders, and an event of a socket that was closed in the same
//! batch hits nobody.

use std::ptr;

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 28;

/// How many event loops may live at once: 0 means none.
pub(super) const MAX_LOOPS: usize = (1 << (64 - INDEX_BITS - GENERATION_BITS)) - 1;

// A key travels as the data pointer of a waker.
const _: () = assert!(usize::BITS == 64);

/// A place in a table of an event loop, at one use of that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    /// Names nothing.
    pub const NONE: Key = Key(0);
    /// The place that no table has: the future that the loop runs for.
    pub const ROOT: usize = (1 << INDEX_BITS) - 1;

    /// Of a place that exists: tables end before [`Key::ROOT`].
    pub fn new(event_loop: u16, generation: u32, index: usize) -> Key {
        assert!(index <= Key::ROOT, "an event loop holds at most 2^24 tasks and sockets");
        let generation = u64::from(generation & ((1 << GENERATION_BITS) - 1));
        let event_loop = u64::from(event_loop) << (INDEX_BITS + GENERATION_BITS);
        Key(event_loop | generation << INDEX_BITS | index as u64)
    }

    pub fn event_loop(self) -> u16 {
        (self.0 >> (INDEX_BITS + GENERATION_BITS)) as u16
    }

    /// Whether it names that use of its place. Generations wrap after 2^28 uses: a wake-up that comes
    /// so late is one that was not needed, which every future must bear.
    pub fn is_of(self, generation: u32) -> bool {
        (self.0 >> INDEX_BITS) as u32 & ((1 << GENERATION_BITS) - 1)
            == generation & ((1 << GENERATION_BITS) - 1)
    }

    pub fn index(self) -> usize {
        self.0 as usize & Key::ROOT
    }

    pub fn bits(self) -> u64 {
        self.0
    }

    pub fn from_bits(bits: u64) -> Key {
        Key(bits)
    }

    /// As the data of a waker; never followed.
    pub fn as_pointer(self) -> *const () {
        ptr::without_provenance(self.0 as usize)
    }

    pub fn of_pointer(pointer: *const ()) -> Key {
        Key(pointer.addr() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_parts() {
        for (event_loop, generation, index) in
            [(1, 0, 0), (4095, (1 << 28) - 1, Key::ROOT), (7, 123_456, 65_535)]
        {
            let key = Key::new(event_loop, generation, index);
            assert_eq!((key.event_loop(), key.index()), (event_loop, index));
            assert!(key.is_of(generation) && !key.is_of(generation.wrapping_add(1)));
            assert_eq!(Key::from_bits(key.bits()), key);
            assert_eq!(Key::of_pointer(key.as_pointer()), key);
            assert_ne!(key, Key::NONE);
        }
    }

    #[test]
    fn generations_wrap() {
        assert!(Key::new(1, u32::MAX, 5).is_of((1 << 28) - 1));
        assert!(Key::new(1, 1 << 28, 5).is_of(0));
    }
}
