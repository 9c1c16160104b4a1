//! The sockets that an event loop watches: what epoll has said of them, and who waits for that.
//!
//! Sockets are watched edge-triggered and made known to the kernel once: for input, and when a write
//! first fails for want of room, for output too. Closing one tells epoll nothing, as the kernel forgets
//! a closed socket by itself; an event that comes nevertheless names a use of its place that is over.
//! A listening socket is different: the master holds it too, so it is taken off expressly, and it is
//! watched level-triggered, so that an accept need not be tried in vain to hear of the next connection.
//!
//! Hot path: no allocation but for the first use of a place.

use std::{
    io,
    os::fd::BorrowedFd,
    task::{Context, Poll, Waker},
};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::key::Key;

/// Bytes, an end or an error can be read.
const READABLE: u8 = 1;
/// The peer has sent its end, or the connection broke: readable for ever.
const CLOSED: u8 = 2;
/// Nothing can be written until an event says so.
const BLOCKED: u8 = 4;
/// The connection broke: a write will say so at once, for ever.
const BROKEN: u8 = 8;
/// The kernel tells when there is room for output.
const TELLS_OUTPUT: u8 = 16;
/// A listening socket.
const LISTENS: u8 = 32;

#[derive(Default)]
struct Source {
    generation: u32,
    state: u8,
    is_live: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// See the module.
pub(super) struct Sources {
    event_loop: u16,
    first_generation: u32,
    places: Vec<Source>,
    free: Vec<u32>,
}

/// What is being registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A stream that is connected, and whose input was not looked at or exhausted.
    Stream,
    /// A stream that takes no output at the moment, or is not connected yet.
    Full,
    /// A listening socket.
    Listener,
}

impl Kind {
    fn state(self) -> u8 {
        match self {
            Kind::Stream => 0,
            Kind::Full => BLOCKED | TELLS_OUTPUT,
            Kind::Listener => LISTENS,
        }
    }
}

fn interest(state: u8) -> EventFlags {
    if state & LISTENS != 0 {
        // Of the threads that share a queue, one is woken for each connection.
        return EventFlags::IN | EventFlags::EXCLUSIVE;
    }
    let input = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    if state & TELLS_OUTPUT != 0 { input | EventFlags::OUT } else { input }
}

/// Keeps a waker that wakes the same task as before.
fn remember(place: &mut Option<Waker>, cx: &Context<'_>) {
    if !place.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
        *place = Some(cx.waker().clone());
    }
}

impl Source {
    fn is_of(&self, key: Key) -> bool {
        self.is_live && key.is_of(self.generation)
    }
}

impl Sources {
    pub const fn new() -> Sources {
        Sources { event_loop: 0, first_generation: 0, places: Vec::new(), free: Vec::new() }
    }

    pub fn open(&mut self, event_loop: u16, first_generation: u32) {
        *self = Sources { event_loop, first_generation, ..Sources::new() };
    }

    fn find(&mut self, key: Key) -> Option<&mut Source> {
        self.places.get_mut(key.index()).filter(|source| source.is_of(key))
    }

    fn look_at(&self, key: Key) -> Option<&Source> {
        self.places.get(key.index()).filter(|source| source.is_of(key))
    }

    /// Whether this loop watches it.
    pub fn has(&self, key: Key) -> bool {
        self.look_at(key).is_some()
    }

    /// Whether this loop watches it, and knows of nothing that keeps it from being written to.
    pub fn takes_output(&self, key: Key) -> bool {
        self.look_at(key).is_some_and(|source| source.state & (BLOCKED | BROKEN) == 0)
    }

    /// Makes a socket known to the kernel.
    pub fn insert(
        &mut self,
        epoll: BorrowedFd<'_>,
        fd: BorrowedFd<'_>,
        kind: Kind,
    ) -> io::Result<Key> {
        let index = self.free.pop().unwrap_or_else(|| {
            let generation = self.first_generation;
            self.places.push(Source { generation, ..Source::default() });
            self.places.len() as u32 - 1
        });
        let source = &mut self.places[index as usize];
        let key = Key::new(self.event_loop, source.generation, index as usize);
        source.state = kind.state();
        source.is_live = true;
        let added = epoll::add(epoll, fd, EventData::new_u64(key.bits()), interest(source.state));
        if let Err(error) = added {
            self.remove(key);
            return Err(error.into());
        }
        Ok(key)
    }

    /// Forgets a socket. Its wakers are given back: they are dropped outside of the table.
    pub fn remove(&mut self, key: Key) -> [Option<Waker>; 2] {
        let Some(source) = self.find(key) else { return [None, None] };
        source.is_live = false;
        source.generation = source.generation.wrapping_add(1);
        let wakers = [source.reader.take(), source.writer.take()];
        self.free.push(key.index() as u32);
        wakers
    }

    /// Whether something can be read; `None`: this loop does not watch it.
    pub fn poll_readable(&mut self, key: Key, cx: &Context<'_>) -> Option<Poll<()>> {
        let source = self.find(key)?;
        if source.state & (READABLE | CLOSED) != 0 {
            return Some(Poll::Ready(()));
        }
        remember(&mut source.reader, cx);
        Some(Poll::Pending)
    }

    /// All that was there has been read: the next bytes bring an event.
    pub fn drained(&mut self, key: Key) {
        if let Some(source) = self.find(key) {
            source.state &= !READABLE;
        }
    }

    /// Whether the peer has closed; `None`: this loop does not watch it.
    pub fn poll_closed(&mut self, key: Key, cx: &Context<'_>) -> Option<Poll<()>> {
        let source = self.find(key)?;
        if source.state & CLOSED != 0 {
            return Some(Poll::Ready(()));
        }
        remember(&mut source.reader, cx);
        Some(Poll::Pending)
    }

    /// Whether a write is worth a try; `None`: this loop does not watch it.
    pub fn poll_writable(&mut self, key: Key, cx: &Context<'_>) -> Option<Poll<()>> {
        let source = self.find(key)?;
        if source.state & BLOCKED == 0 || source.state & BROKEN != 0 {
            return Some(Poll::Ready(()));
        }
        remember(&mut source.writer, cx);
        Some(Poll::Pending)
    }

    /// A write found no room: there is none until an event says so.
    pub fn block(&mut self, epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>, key: Key) -> io::Result<()> {
        let Some(source) = self.find(key) else { return Ok(()) };
        source.state |= BLOCKED;
        if source.state & TELLS_OUTPUT == 0 {
            source.state |= TELLS_OUTPUT;
            // Also asks what holds at this moment, so no event is missed in between.
            let flags = interest(source.state);
            epoll::modify(epoll, fd, EventData::new_u64(key.bits()), flags)?;
        }
        Ok(())
    }

    /// Takes in an event; who waited for it.
    pub fn event(&mut self, key: Key, flags: EventFlags) -> [Option<Waker>; 2] {
        let mut wakers = [None, None];
        let Some(source) = self.find(key) else { return wakers };
        let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP) || broken {
            source.state |= READABLE;
            if broken || flags.contains(EventFlags::RDHUP) {
                source.state |= CLOSED;
            }
            wakers[0] = source.reader.take();
        }
        if flags.contains(EventFlags::OUT) || broken {
            source.state &= !BLOCKED;
            if broken {
                source.state |= BROKEN;
            }
            wakers[1] = source.writer.take();
        }
        wakers
    }
}

// Every connection has one.
const _: () = assert!(size_of::<Source>() <= 40);

#[cfg(test)]
impl Sources {
    pub fn free_places(&self) -> usize {
        self.free.len()
    }

    pub fn places(&self) -> usize {
        self.places.len()
    }
}
