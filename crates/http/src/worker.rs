//! What one worker thread knows: the current plan, its counters, its connections.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
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
    /// Connections closed for what their clients did with HTTP/2: floods and the like.
    pub calmed: AtomicU64,
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

/// Requests of a connection that are worked on or being sent. They count no longer than it lives, however
/// it ends.
pub struct Writing {
    worker: Rc<Worker>,
    requests: u64,
}

impl Writing {
    /// None yet.
    pub fn new(worker: Rc<Worker>) -> Writing {
        Writing { worker, requests: 0 }
    }

    /// One begins.
    pub fn up(&mut self) {
        self.requests += 1;
        Counters::up(&self.worker.counters.writing);
    }

    /// One has ended.
    pub fn down(&mut self) {
        debug_assert!(self.requests > 0, "it began");
        self.requests = self.requests.saturating_sub(1);
        Counters::down(&self.worker.counters.writing);
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        for _ in 0..self.requests {
            Counters::down(&self.worker.counters.writing);
        }
    }
}

/// What all threads of the process share.
pub struct Shared {
    /// One entry a thread; those of threads that have ended still count, until a new one goes on with
    /// them.
    counters: RwLock<Vec<Arc<Counters>>>,
    /// The last connection number given out.
    pub connections: AtomicU64,
    /// `worker_connections`, for each thread.
    pub max_connections: AtomicUsize,
}

impl Shared {
    /// For threads with so many connections each.
    pub fn new(max_connections: usize) -> Shared {
        Shared {
            counters: RwLock::default(),
            connections: AtomicU64::new(0),
            max_connections: max_connections.into(),
        }
    }

    /// The counters of a thread that begins.
    fn join(&self) -> Arc<Counters> {
        let mut all = self.counters.write().unwrap_or_else(PoisonError::into_inner);
        // The table has one reference, and each thread one to its own.
        if let Some(left) = all.iter().find(|counters| Arc::strong_count(counters) == 1) {
            return left.clone();
        }
        all.push(Arc::default());
        all[all.len() - 1].clone()
    }

    /// The sum of a number over all threads.
    pub fn total(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        let all = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|c| counter(c).load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// A listening address while this thread accepts on it, and as long as connections of it live.
pub struct Listening {
    /// Where.
    pub addr: Addr,
    /// Its number in the plan.
    index: Cell<usize>,
    /// The last plan that had it, once the current one has not.
    last: OnceCell<PlanHandle>,
}

impl Listening {
    /// An address with its number in the current plan.
    pub fn new(addr: Addr, index: usize) -> Listening {
        Listening { addr, index: Cell::new(index), last: OnceCell::new() }
    }

    /// The plan that a request on it begins under now, and its number there. Who was accepted before a
    /// reload took the address away is served as it was then.
    pub fn plan(&self, worker: &Worker) -> (PlanHandle, usize) {
        let plan = self.last.get().cloned().unwrap_or_else(|| worker.plan());
        (plan, self.index.get())
    }

    /// Whether the current plan does not have it any more.
    pub fn is_gone(&self) -> bool {
        self.last.get().is_some()
    }

    /// Follows a reload: `index` is its number in the plan that holds from now on.
    pub fn renumber(&self, index: Option<usize>, before: &PlanHandle) {
        match index {
            Some(index) => self.index.set(index),
            // Only the first time counts: an address that comes back is another one.
            None => drop(self.last.set(before.clone())),
        }
    }
}

/// One worker thread.
pub struct Worker {
    /// What all threads share.
    pub shared: Arc<Shared>,
    counters: Arc<Counters>,
    /// The configuration for requests that begin now.
    plan: RefCell<PlanHandle>,
    /// Open files.
    pub files: FileCaches,
    /// Whether idle connections close and no new request begins.
    pub quitting: Cell<bool>,
}

impl Worker {
    /// A thread that begins with that plan.
    pub fn new(shared: Arc<Shared>, plan: Arc<Plan>) -> Worker {
        Worker {
            counters: shared.join(),
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

    /// Requests that begin from now on run under this one; the one before.
    pub fn swap(&self, plan: Arc<Plan>) -> PlanHandle {
        self.files.retain(&plan.file_caches);
        let old = self.plan.replace(plan.into());
        old.logs.retire();
        old
    }

    /// The numbers of this thread.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A number for a new connection.
    pub fn next_connection(&self) -> u64 {
        self.shared.connections.fetch_add(1, Relaxed) + 1
    }
}
