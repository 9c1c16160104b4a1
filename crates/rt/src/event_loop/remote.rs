//! What other threads may do to an event loop: wake its tasks, and take sockets off it.
//!
//! Invariant: nothing of this is touched while a thread serves its own sockets.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::event::{EventfdFlags, epoll, eventfd};

use super::key::{Key, MAX_LOOPS};

/// The side of an event loop that other threads see.
#[derive(Debug)]
pub(super) struct Remote {
    pub id: u16,
    /// Where the tables of this loop begin to count, so that names from a loop that had this id
    /// before do not fit.
    pub first_generation: u32,
    epoll: OwnedFd,
    /// Written to end a wait.
    event: OwnedFd,
    signalled: AtomicBool,
    inbox: Mutex<Inbox>,
}

/// What other threads ask for.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub woken: Vec<Key>,
    /// Sockets that other threads have taken or closed.
    pub left: Vec<Key>,
}

/// So many sockets that have left are told of at once.
const MANY: usize = 256;

#[derive(Default)]
struct Registry {
    loops: Vec<Option<Arc<Remote>>>,
    made: u32,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { loops: Vec::new(), made: 0 });

fn registry() -> MutexGuard<'static, Registry> {
    // Each change is one store, so a panic leaves nothing half done.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remote {
    /// Makes the kernel's part of an event loop and enters it among the living ones.
    pub fn open() -> io::Result<Arc<Remote>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered, so that it need never be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(Key::NONE.bits()), flags)?;
        let mut registry = registry();
        let free = registry.loops.iter().position(Option::is_none);
        let place = free.unwrap_or(registry.loops.len());
        if place >= MAX_LOOPS {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        registry.made = registry.made.wrapping_add(1);
        let remote = Arc::new(Remote {
            id: place as u16 + 1,
            first_generation: registry.made.wrapping_mul(0x9e37_79b1),
            epoll,
            event,
            signalled: AtomicBool::new(false),
            inbox: Mutex::default(),
        });
        match registry.loops.get_mut(place) {
            Some(place) => *place = Some(remote.clone()),
            None => registry.loops.push(Some(remote.clone())),
        }
        Ok(remote)
    }

    /// The loop with that id, if it lives.
    pub fn find(id: u16) -> Option<Arc<Remote>> {
        registry().loops.get(usize::from(id).checked_sub(1)?)?.clone()
    }

    /// Nobody finds it from now on.
    pub fn close(&self) {
        registry().loops[usize::from(self.id) - 1] = None;
    }

    pub fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Wakes a task of the loop from another thread.
    pub fn wake(&self, task: Key) {
        let mut inbox = self.inbox();
        if inbox.woken.last() != Some(&task) {
            inbox.woken.push(task);
        }
        drop(inbox);
        self.signal();
    }

    /// Says that a socket has left. The loop need not hurry to hear it, but must before they are many:
    /// until then each keeps its place in a table.
    pub fn left(&self, source: Key) {
        let mut inbox = self.inbox();
        inbox.left.push(source);
        let are_many = inbox.left.len() >= MANY;
        drop(inbox);
        if are_many {
            self.signal();
        }
    }

    fn signal(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // Fails only when the counter is full, and then the event is there already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// What other threads have asked for since.
    pub fn empty(&self, into: &mut Inbox) {
        // Before the inbox is emptied: who comes after that signals anew.
        self.signalled.store(false, Ordering::Release);
        std::mem::swap(&mut *self.inbox(), into);
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
