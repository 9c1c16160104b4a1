//! Thread pools for what may wait for a disk: `thread_pool` and `aio threads`.
//!
//! Answers nginx's `ngx_thread_pool.c`. Threads start when there is work for them and none is free, up
//! to the number configured.
//!
//! Invariant: nothing here knows what the work is.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Poll},
    thread,
};

use tokio::sync::oneshot;

use crate::errno::Errno;

/// The threads of a pool that nobody configured (nginx's `default` pool).
pub const DEFAULT_THREADS: usize = 32;
/// How many tasks may wait in a pool that nobody configured.
pub const DEFAULT_MAX_QUEUE: usize = 65_536;

type Job = Box<dyn FnOnce() + Send>;

struct State {
    queue: VecDeque<Job>,
    threads: usize,
    max_queue: usize,
    started: usize,
    idle: usize,
}

/// A pool of threads.
pub struct Pool {
    name: Box<str>,
    state: Mutex<State>,
    work: Condvar,
}

/// Why a pool does not take a task.
#[derive(Debug)]
pub enum Refused {
    /// Too many wait already.
    Overflow {
        /// Of the pool.
        name: Box<str>,
        /// So many.
        waiting: usize,
    },
    /// It has no thread, and cannot have one.
    NoThread(io::Error),
}

/// nginx's texts.
impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Overflow { name, waiting } => {
                write!(f, "thread pool \"{name}\" queue overflow: {waiting} tasks waiting")
            }
            Refused::NoThread(error) => write!(f, "pthread_create() failed ({})", Errno(error)),
        }
    }
}

impl std::error::Error for Refused {}

/// The result of a task, when it is done. Dropping it does not stop the task.
pub struct Task<T>(oneshot::Receiver<T>);

impl<T> Task<T> {
    /// One that is done already.
    pub fn done(result: T) -> Task<T> {
        let (sender, receiver) = oneshot::channel();
        let _ = sender.send(result);
        Task(receiver)
    }
}

impl<T> Future for Task<T> {
    /// `None`: the task panicked.
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(cx).map(Result::ok)
    }
}

/// The work as a pool takes it, and where its result is to come from.
fn job<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Job, Task<T>) {
    let (sender, receiver) = oneshot::channel();
    let job = move || {
        if let Ok(result) = catch_unwind(AssertUnwindSafe(work)) {
            // Nobody waits any more when the request is gone.
            let _ = sender.send(result);
        }
    };
    (Box::new(job), Task(receiver))
}

fn pools() -> MutexGuard<'static, HashMap<Box<str>, Arc<Pool>>> {
    static POOLS: OnceLock<Mutex<HashMap<Box<str>, Arc<Pool>>>> = OnceLock::new();
    // A panic while the table was held left it whole: each change of it is one insertion.
    POOLS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of that name, which is made on its first use.
pub fn pool(name: &str) -> Arc<Pool> {
    let mut pools = pools();
    if let Some(pool) = pools.get(name) {
        return pool.clone();
    }
    let pool = Arc::new(Pool::new(name, DEFAULT_THREADS, DEFAULT_MAX_QUEUE));
    pools.insert(name.into(), pool.clone());
    pool
}

/// Sets the number of threads and of waiting tasks of a pool (`thread_pool`). Threads beyond a smaller
/// number end when they have nothing to do.
pub fn configure(name: &str, threads: usize, max_queue: usize) {
    let pool = pool(name);
    let mut state = pool.lock();
    state.threads = threads.max(1);
    state.max_queue = max_queue;
    pool.work.notify_all();
}

impl Pool {
    fn new(name: &str, threads: usize, max_queue: usize) -> Pool {
        let state = State { queue: VecDeque::new(), threads, max_queue, started: 0, idle: 0 };
        Pool { name: name.into(), state: Mutex::new(state), work: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Jobs run without the lock, so a panic of theirs does not leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something in a thread of the pool.
    pub fn run<T: Send + 'static>(
        self: &Arc<Pool>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Task<T>, Refused> {
        let (job, task) = job(work);
        self.push(job).map_err(|(refused, _)| refused)?;
        Ok(task)
    }

    /// The same for what must be done in any case: here, if the pool does not take it.
    pub fn run_or_here<T: Send + 'static>(
        self: &Arc<Pool>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Task<T> {
        let (job, task) = job(work);
        if let Err((_, job)) = self.push(job) {
            job();
        }
        task
    }

    fn push(self: &Arc<Pool>, job: Job) -> Result<(), (Refused, Job)> {
        let mut state = self.lock();
        let waiting = state.queue.len();
        if waiting >= state.max_queue {
            return Err((Refused::Overflow { name: self.name.clone(), waiting }, job));
        }
        if state.idle > waiting {
            self.work.notify_one();
        } else if state.started < state.threads {
            match self.start() {
                Ok(()) => state.started += 1,
                Err(error) if state.started == 0 => return Err((Refused::NoThread(error), job)),
                // It waits for those that there are.
                Err(_) => {}
            }
        }
        state.queue.push_back(job);
        Ok(())
    }

    fn start(self: &Arc<Pool>) -> io::Result<()> {
        let pool = self.clone();
        let name = format!("pool {}", self.name);
        thread::Builder::new().name(name).spawn(move || pool.serve()).map(drop)
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.lock();
                continue;
            }
            if state.started > state.threads {
                state.started -= 1;
                return;
            }
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    use super::*;
    use crate::{task::block_on, testing::in_child};

    #[test]
    fn work_is_done_by_other_threads() {
        let pool = Arc::new(Pool::new("test", 2, 10));
        let here = thread::current().id();
        let task = pool.run(move || thread::current().id() != here).expect("room");
        assert_eq!(block_on(task), Some(true));
    }

    #[test]
    fn a_full_queue_refuses_with_the_text_of_nginx() {
        let pool = Arc::new(Pool::new("disk", 1, 1));
        let (started, running) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let busy = pool.run(move || {
            started.send(()).expect("the test waits");
            released.recv().expect("the test releases");
        });
        running.recv().expect("the thread runs");
        let waits = pool.run(|| 7).expect("room for one");
        let refused = pool.run(|| 8).err().expect("no room for two");
        assert_eq!(refused.to_string(), "thread pool \"disk\" queue overflow: 1 tasks waiting");
        // What must be done is done here.
        let here = thread::current().id();
        let done = pool.run_or_here(move || thread::current().id() == here);
        assert_eq!(block_on(done), Some(true));
        release.send(()).expect("the thread waits");
        assert_eq!(block_on(busy.expect("room")), Some(()));
        assert_eq!(block_on(waits), Some(7));
    }

    #[test]
    fn a_pool_that_cannot_have_a_thread_takes_nothing() {
        in_child("threads::tests::a_pool_that_cannot_have_a_thread_takes_nothing", || {
            let pool = Arc::new(Pool::new("test", 2, 10));
            let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
            // No room for a stack.
            setrlimit(Resource::RLIMIT_AS, 0, hard).unwrap();
            let refused = pool.run(|| 1).err().map(|refused| refused.to_string());
            let here = thread::current().id();
            let done = block_on(pool.run_or_here(move || thread::current().id() == here));
            setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
            let text = "pthread_create() failed (11: Resource temporarily unavailable)";
            assert_eq!(refused.as_deref(), Some(text));
            assert_eq!(done, Some(true));
            assert_eq!(block_on(pool.run(|| 2).expect("a thread")), Some(2));
        });
    }

    #[test]
    fn a_panic_is_a_result_that_never_comes_and_the_pool_lives_on() {
        let pool = Arc::new(Pool::new("test", 1, 10));
        let bad = pool.run(|| -> u32 { std::panic::panic_any("on purpose") }).expect("room");
        assert_eq!(block_on(bad), None);
        assert_eq!(block_on(pool.run(|| 5).expect("room")), Some(5));
    }

    #[test]
    fn no_more_threads_than_configured_run_at_once() {
        let pool = Arc::new(Pool::new("test", 3, 1000));
        let tasks: Vec<_> = (0..100).map(|n| pool.run(move || n).expect("room")).collect();
        let sum: u32 = tasks.into_iter().filter_map(block_on).sum();
        assert_eq!(sum, (0..100).sum());
        assert!(pool.lock().started <= 3);
    }

    #[test]
    fn a_pool_is_found_by_its_name() {
        configure("named", 1, 2);
        assert!(Arc::ptr_eq(&pool("named"), &pool("named")));
        assert_eq!(pool("named").lock().max_queue, 2);
    }
}
