//! What one worker thread knows: the current plan, its counters, its connections.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use forebay_rt::listen::Addr;

use crate::{
    files::FileCaches,
    plan::{Plan, PlanHandle},
};

/// Numbers of one thread, read by all (`stub_status`). Each is written by its own thread only, so
/// they cost a plain store.
#[derive(Default)]
#[repr(align(128))]
pub struct Counters {
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections that were served, not dropped for want of resources.
    pub handled: AtomicU64,
    /// Requests begun.
    pub requests: AtomicU64,
    /// Connections open now.
    pub active: AtomicU64,
    /// Of these, reading a request head.
    pub reading: AtomicU64,
    /// Of these, working on a request or sending a response.
    pub writing: AtomicU64,
    /// Connections closed to make room for others.
    pub shed: AtomicU64,
    /// Connections whose serving panicked.
    pub panics: AtomicU64,
}

impl Counters {
    /// Adds one, as only the owning thread may.
    pub fn up(counter: &AtomicU64) {
        counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Takes one away, as only the owning thread may.
    pub fn down(counter: &AtomicU64) {
        counter.store(counter.load(Relaxed).wrapping_sub(1), Relaxed);
    }
}

/// What all threads of the process share.
pub struct Shared {
    /// One entry a thread.
    pub counters: Vec<Counters>,
    /// The last connection number given out.
    pub connections: AtomicU64,
    /// `worker_connections`, for each thread.
    pub max_connections: usize,
}

impl Shared {
    /// For that many threads.
    pub fn new(threads: usize, max_connections: usize) -> Shared {
        let counters = std::iter::repeat_with(Counters::default).take(threads).collect();
        Shared { counters, connections: AtomicU64::new(0), max_connections }
    }

    /// The sum of a number over all threads.
    pub fn total(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        self.counters.iter().map(|c| counter(c).load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// A listening address while this thread accepts on it.
pub struct Listening {
    /// Where.
    pub addr: Addr,
    /// Its number in the current plan; `None`: the plan no longer has it.
    pub index: Cell<Option<usize>>,
}

/// One worker thread.
pub struct Worker {
    /// Which one.
    pub index: usize,
    /// What all threads share.
    pub shared: Arc<Shared>,
    /// The configuration for requests that begin now.
    plan: RefCell<PlanHandle>,
    /// Open files.
    pub files: FileCaches,
    /// Whether idle connections close and no new request begins.
    pub quitting: Cell<bool>,
}

impl Worker {
    /// A thread that begins with that plan.
    pub fn new(index: usize, shared: Arc<Shared>, plan: Arc<Plan>) -> Worker {
        Worker {
            index,
            shared,
            plan: RefCell::new(plan.into()),
            files: FileCaches::default(),
            quitting: Cell::new(false),
        }
    }

    /// The configuration for a request that begins now.
    pub fn plan(&self) -> PlanHandle {
        self.plan.borrow().clone()
    }

    /// Requests that begin from now on run under this one.
    pub fn swap(&self, plan: Arc<Plan>) {
        self.files.retain(&plan.file_caches);
        let old = self.plan.replace(plan.into());
        old.logs.retire();
    }

    /// The numbers of this thread.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters[self.index]
    }

    /// A number for a new connection.
    pub fn next_connection(&self) -> u64 {
        self.shared.connections.fetch_add(1, Relaxed) + 1
    }
}
