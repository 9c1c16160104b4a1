//! The tasks of an event loop, and whose turn it is.
//!
//! Hot path: waking and taking a turn allocate nothing and use no atomic operation.
//!
//! Invariant: no future is polled or dropped here, as either may want to wake or spawn.

use std::{collections::VecDeque, future::Future, mem, pin::Pin};

use super::key::Key;

pub(super) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    /// `None` while it is polled, and when the place is free.
    future: Option<LocalFuture>,
    generation: u32,
    /// Between `insert` and `remove`.
    is_live: bool,
    is_queued: bool,
    is_aborted: bool,
}

/// See the module.
pub(super) struct Tasks {
    event_loop: u16,
    first_generation: u32,
    slots: Vec<Slot>,
    free: Vec<u32>,
    queue: VecDeque<u32>,
    /// Tasks that woke themselves: their turn is after input and output were looked at, so that they
    /// cannot keep the loop to themselves.
    later: Vec<u32>,
    running: Option<u32>,
}

/// What to do with a task whose turn it is.
pub(super) enum Turn {
    Poll(Key, LocalFuture),
    Drop(Key, LocalFuture),
}

impl Tasks {
    pub const fn new() -> Tasks {
        Tasks {
            event_loop: 0,
            first_generation: 0,
            slots: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            later: Vec::new(),
            running: None,
        }
    }

    pub fn open(&mut self, event_loop: u16, first_generation: u32) {
        *self = Tasks { event_loop, first_generation, ..Tasks::new() };
    }

    /// Adds a task; its turn is next.
    pub fn insert(&mut self, future: LocalFuture) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            let generation = self.first_generation;
            self.slots.push(Slot {
                future: None,
                generation,
                is_live: false,
                is_queued: false,
                is_aborted: false,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        let key = Key::new(self.event_loop, slot.generation, index as usize);
        slot.future = Some(future);
        (slot.is_live, slot.is_queued, slot.is_aborted) = (true, true, false);
        self.queue.push_back(index);
        key
    }

    fn find(&mut self, key: Key) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(key.index())?;
        (slot.is_live && key.is_of(slot.generation)).then_some(slot)
    }

    pub fn wake(&mut self, key: Key) {
        let Some(slot) = self.find(key) else { return };
        if mem::replace(&mut slot.is_queued, true) {
            return;
        }
        let index = key.index() as u32;
        if self.running == Some(index) {
            self.later.push(index);
        } else {
            self.queue.push_back(index);
        }
    }

    /// It will be dropped when its turn comes, which is soon.
    pub fn abort(&mut self, key: Key) {
        if let Some(slot) = self.find(key) {
            slot.is_aborted = true;
            self.wake(key);
        }
    }

    /// The next one; its future is lent out until [`Tasks::suspend`] or [`Tasks::remove`].
    pub fn next(&mut self) -> Option<Turn> {
        let index = self.queue.pop_front()?;
        let slot = &mut self.slots[index as usize];
        slot.is_queued = false;
        let key = Key::new(self.event_loop, slot.generation, index as usize);
        self.running = Some(index);
        let future = slot.future.take()?;
        Some(if slot.is_aborted { Turn::Drop(key, future) } else { Turn::Poll(key, future) })
    }

    /// It waits for something.
    pub fn suspend(&mut self, key: Key, future: LocalFuture) {
        self.running = None;
        self.slots[key.index()].future = Some(future);
    }

    /// It has ended; wakers of it wake nobody any more.
    pub fn remove(&mut self, key: Key) {
        self.running = None;
        let index = key.index() as u32;
        let slot = &mut self.slots[key.index()];
        slot.is_live = false;
        slot.generation = slot.generation.wrapping_add(1);
        if mem::replace(&mut slot.is_queued, false) {
            // It woke itself with its last breath, or was woken so by what it dropped.
            self.later.retain(|other| *other != index);
            self.queue.retain(|other| *other != index);
        }
        self.free.push(index);
    }

    /// Gives those that woke themselves their turn.
    pub fn end_batch(&mut self) {
        self.queue.extend(self.later.drain(..));
    }

    /// Whether others have their turn before input and output are looked at.
    pub fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether nobody waits for a turn.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.later.is_empty()
    }

    /// Takes all futures out, for the end of the loop.
    pub fn drain(&mut self) -> Vec<LocalFuture> {
        let Tasks { slots, .. } = mem::replace(self, Tasks::new());
        slots.into_iter().filter_map(|slot| slot.future).collect()
    }
}

// Every connection has one.
const _: () = assert!(size_of::<Slot>() <= 24);
