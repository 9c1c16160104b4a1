//! The event loop of a worker thread: tasks take turns, then the thread waits for its sockets and
//! timers (`ngx_process_events_and_timers`).
//!
//! One loop a thread, one epoll a loop. A turn of the loop is: poll the tasks that were woken, send what
//! they have handed over ([`output`]), do what is to be done before waiting (log lines are written), wait
//! for events, read the clock once, take the events in, fire the timers. What happens on one thread
//! touches no lock and no atomic; other threads wake tasks through [`remote`].
//!
//! Invariant: knows tasks and descriptors. What is read and written is [`crate::transport`]'s business,
//! when something is due [`crate::timer`]'s.

mod key;
mod output;
mod remote;
mod sources;
mod tasks;
#[cfg(test)]
mod tests;
mod waker;

use std::{
    cell::{Cell, RefCell},
    future::Future,
    io,
    marker::PhantomData,
    os::fd::BorrowedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    io::Errno,
};

pub(crate) use self::output::{HandedOver, is_late as is_output_late};
use self::{
    key::Key,
    remote::{Inbox, Remote},
    sources::{Kind, Sources},
    tasks::{Tasks, Turn},
};
use crate::{clock, timer};

/// How many tasks have their turn before sockets are looked at again. More than connections are ever
/// ready at once on a busy thread; less than anybody would notice.
const TURNS: usize = 256;
/// How many events are taken at once.
const EVENTS: usize = 512;
/// How many bytes are much to be moved at once.
pub(crate) const MUCH: usize = 4 << 10;
/// How many bytes a task moves before sockets are looked at again, however many more there are.
const TURN_BYTES: usize = 256 << 10;
/// How many it moves while other tasks wait for their turn: a round of a thousand downloads is not long.
const SHARED_TURN_BYTES: usize = 64 << 10;

thread_local! {
    static LOCAL: Local = const { Local::new() };
    /// How many bytes the task whose turn it is has moved.
    static MOVED: Cell<usize> = const { Cell::new(0) };
}

/// The event loop of this thread.
struct Local {
    remote: RefCell<Option<Arc<Remote>>>,
    /// Of `remote`; 0: this thread has no event loop.
    id: Cell<u16>,
    tasks: RefCell<Tasks>,
    sources: RefCell<Sources>,
    root_woken: Cell<bool>,
}

impl Local {
    const fn new() -> Local {
        Local {
            remote: RefCell::new(None),
            id: Cell::new(0),
            tasks: RefCell::new(Tasks::new()),
            sources: RefCell::new(Sources::new()),
            root_woken: Cell::new(false),
        }
    }
}

/// Something that a thread's event loop cannot be asked from another thread.
#[derive(Debug)]
pub(crate) struct TaskKey(Key, PhantomData<*const ()>);

/// Whether an event loop runs on this thread.
pub(crate) fn is_running() -> bool {
    LOCAL.try_with(|local| local.id.get() != 0).unwrap_or(false)
}

/// Adds a task to the loop of this thread.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) -> TaskKey {
    LOCAL.with(|local| {
        assert!(local.id.get() != 0, "tasks are spawned on a thread with an event loop");
        let key = local.tasks.borrow_mut().insert(Box::pin(future));
        TaskKey(key, PhantomData)
    })
}

impl TaskKey {
    pub fn abort(&self) {
        // A handle that outlived its loop names a task that has been dropped.
        let _ = LOCAL.try_with(|local| local.tasks.borrow_mut().abort(self.0));
    }
}

/// Wakes a task, of this thread's loop or of another's.
fn wake(task: Key) {
    let woken = LOCAL.try_with(|local| {
        if local.id.get() != task.event_loop() {
            return false;
        }
        match task.index() {
            Key::ROOT => local.root_woken.set(true),
            _ => local.tasks.borrow_mut().wake(task),
        }
        true
    });
    if woken != Ok(true)
        && let Some(remote) = Remote::find(task.event_loop())
    {
        remote.wake(task);
    }
}

/// Takes down what a task has read or written. Where that is much, what others have handed over leaves before
/// it goes on: their clients do not wait for all that is to be done in this turn.
pub(crate) fn moved(bytes: usize) {
    MOVED.set(MOVED.get().saturating_add(bytes));
    if bytes >= MUCH {
        output::flush();
    }
}

/// Whether the task whose turn it is has moved enough for now. It is woken to go on when others had their
/// turn: a peer that is as fast as we are would have the loop to itself otherwise.
pub(crate) fn is_turn_over(cx: &Context<'_>) -> bool {
    let moved = MOVED.get();
    if moved < SHARED_TURN_BYTES {
        return false;
    }
    let is_over = LOCAL.try_with(|local| match local.id.get() {
        // Without a loop there are no others.
        0 => false,
        _ => moved >= TURN_BYTES || local.tasks.borrow().has_waiting(),
    });
    if is_over == Ok(true) {
        cx.waker().wake_by_ref();
    }
    is_over == Ok(true)
}

/// A socket on the event loop of the thread that registered it. Its descriptor is the owner's affair,
/// and stays open until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch(Key);

impl Watch {
    /// Not on any event loop.
    pub const NONE: Watch = Watch(Key::NONE);

    pub fn is_some(&self) -> bool {
        self.0 != Key::NONE
    }

    /// Watches a connected stream.
    pub fn stream(fd: BorrowedFd<'_>) -> io::Result<Watch> {
        Watch::new(fd, Kind::Stream)
    }

    /// Watches a stream that is not connected yet, or takes no output.
    pub fn full(fd: BorrowedFd<'_>) -> io::Result<Watch> {
        Watch::new(fd, Kind::Full)
    }

    /// Watches a listening socket.
    pub fn listener(fd: BorrowedFd<'_>) -> io::Result<Watch> {
        Watch::new(fd, Kind::Listener)
    }

    fn new(fd: BorrowedFd<'_>, kind: Kind) -> io::Result<Watch> {
        LOCAL.with(|local| {
            let remote = local.remote.borrow();
            let remote = remote.as_ref().ok_or_else(off_loop)?;
            local.sources.borrow_mut().insert(remote.epoll(), fd, kind).map(Watch)
        })
    }

    /// Ready: reading is worth a try. Also for connections waiting at a listening socket.
    pub fn poll_readable(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.ask(|sources| sources.poll_readable(self.0, cx))
    }

    /// Ready: writing is worth a try.
    pub fn poll_writable(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.ask(|sources| sources.poll_writable(self.0, cx))
    }

    /// Ready: the peer has closed, or the connection broke.
    pub fn poll_closed(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.ask(|sources| sources.poll_closed(self.0, cx))
    }

    fn ask(&self, f: impl FnOnce(&mut Sources) -> Option<Poll<()>>) -> Poll<io::Result<()>> {
        match LOCAL.with(|local| f(&mut local.sources.borrow_mut())) {
            Some(poll) => poll.map(Ok),
            None => Poll::Ready(Err(off_loop())),
        }
    }

    /// The socket is empty: the next question waits for an event.
    pub fn drained(&self) {
        LOCAL.with(|local| local.sources.borrow_mut().drained(self.0));
    }

    /// The socket is full: the next question waits for an event.
    pub fn full_now(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        LOCAL.with(|local| {
            let remote = local.remote.borrow();
            let remote = remote.as_ref().ok_or_else(off_loop)?;
            local.sources.borrow_mut().block(remote.epoll(), fd, self.0)
        })
    }

    /// Takes the socket off its loop, which may be another thread's, before this is dropped and it stays open.
    pub fn leave(&self, fd: BorrowedFd<'_>) {
        if let Some(remote) = Remote::find(self.0.event_loop()) {
            // Fails only if it is not there any more.
            let _ = epoll::delete(remote.epoll(), fd);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_some() {
            return;
        }
        // The wakers are dropped when the table is free again.
        let ours = LOCAL.try_with(|local| {
            let ours = local.id.get() == self.0.event_loop();
            ours.then(|| local.sources.borrow_mut().remove(self.0))
        });
        output::forget(self.0);
        if !matches!(ours, Ok(Some(_)))
            && let Some(remote) = Remote::find(self.0.event_loop())
        {
            remote.left(self.0);
        }
    }
}

fn off_loop() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket is not on this thread's event loop")
}

/// Runs the event loop of this thread until the future is done. `before_wait` runs each time before
/// the thread waits. Tasks that are left then are dropped.
///
/// # Panics
///
/// Within an event loop, and when the process has no descriptors left to make one.
pub(crate) fn run<F: Future>(before_wait: fn(), future: F) -> F::Output {
    let event_loop = EventLoop::open();
    let mut future = pin!(future);
    event_loop.run(before_wait, future.as_mut())
}

struct EventLoop {
    remote: Arc<Remote>,
    events: RefCell<Vec<epoll::Event>>,
    inbox: RefCell<Inbox>,
}

impl EventLoop {
    fn open() -> EventLoop {
        let remote = Remote::open()
            .expect("an event loop can be made: the process has descriptors and memory left");
        LOCAL.with(|local| {
            assert!(local.id.get() == 0, "a thread has one event loop");
            local.id.set(remote.id);
            local.remote.replace(Some(remote.clone()));
            local.tasks.borrow_mut().open(remote.id, remote.first_generation);
            local.sources.borrow_mut().open(remote.id, remote.first_generation);
            local.root_woken.set(true);
        });
        let events = RefCell::new(Vec::with_capacity(EVENTS));
        EventLoop { remote, events, inbox: RefCell::default() }
    }

    fn run<F: Future>(&self, before_wait: fn(), mut future: Pin<&mut F>) -> F::Output {
        let waker = waker::of(Key::new(self.remote.id, 0, Key::ROOT));
        let mut cx = Context::from_waker(&waker);
        loop {
            MOVED.set(0);
            if LOCAL.with(|local| local.root_woken.take())
                && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
            {
                return output;
            }
            (0..TURNS).take_while(|_| turn()).for_each(drop);
            output::flush();
            before_wait();
            self.wait();
        }
    }

    /// Waits until something happens, and tells those whom it concerns.
    fn wait(&self) {
        let is_idle = LOCAL.with(|local| !local.root_woken.get() && local.tasks.borrow().is_idle());
        let timeout = if is_idle { timer::until_next_ms() } else { Some(0) };
        let mut events = self.events.borrow_mut();
        self.collect(&mut events, timeout);
        clock::refresh();
        for event in events.drain(..) {
            let key = Key::from_bits(event.data.u64());
            if key == Key::NONE {
                self.read_inbox();
                continue;
            }
            let flags = event.flags;
            let wakers = LOCAL.with(|local| local.sources.borrow_mut().event(key, flags));
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
        timer::turn();
        LOCAL.with(|local| local.tasks.borrow_mut().end_batch());
    }

    fn collect(&self, events: &mut Vec<epoll::Event>, timeout_ms: Option<u64>) {
        // In a test whose time stands still nothing is waited for: the next timer is due at once.
        let simulated = timeout_ms.is_some_and(|ms| ms > 0) && clock::is_paused();
        let wait_ms = if simulated { Some(0) } else { timeout_ms };
        let timeout = wait_ms.map(|ms| {
            let ms = ms.min(i32::MAX as u64) as i64;
            Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 }
        });
        match epoll::wait(self.remote.epoll(), spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Only wrong arguments are left.
            Err(error) => panic!("epoll_wait() failed: {error}"),
        }
        if simulated && events.is_empty() {
            clock::advance(timeout_ms.unwrap_or(0));
        }
    }

    /// Does what other threads asked for.
    fn read_inbox(&self) {
        let mut inbox = self.inbox.borrow_mut();
        self.remote.empty(&mut inbox);
        inbox.woken.drain(..).for_each(wake);
        for key in inbox.left.drain(..) {
            let _wakers = LOCAL.with(|local| local.sources.borrow_mut().remove(key));
        }
    }
}

/// Gives the next task its turn; `false`: none waits for one.
fn turn() -> bool {
    let Some(turn) = LOCAL.with(|local| local.tasks.borrow_mut().next()) else { return false };
    match turn {
        Turn::Poll(key, mut future) => {
            MOVED.set(0);
            let waker = waker::of(key);
            // A panic costs this task: it is dropped while the panic unwinds, so that what it holds
            // can tell, and nobody else looks at what it has left half done.
            let left = catch_unwind(AssertUnwindSafe(move || {
                let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
                poll.is_pending().then_some(future)
            }));
            LOCAL.with(|local| match left {
                Ok(Some(future)) => local.tasks.borrow_mut().suspend(key, future),
                Ok(None) | Err(_) => local.tasks.borrow_mut().remove(key),
            });
        }
        Turn::Drop(key, future) => {
            // The panic hook has told of it, if there was one.
            let _ = catch_unwind(AssertUnwindSafe(move || drop(future)));
            LOCAL.with(|local| local.tasks.borrow_mut().remove(key));
        }
    }
    true
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        // Futures may spawn while they are dropped; those that do so without end are no concern.
        loop {
            let left = LOCAL.with(|local| local.tasks.borrow_mut().drain());
            if left.is_empty() {
                break;
            }
            for future in left {
                let _ = catch_unwind(AssertUnwindSafe(move || drop(future)));
            }
        }
        LOCAL.with(|local| {
            local.id.set(0);
            local.remote.take();
            let sources = local.sources.replace(Sources::new());
            drop(sources);
        });
        self.remote.close();
    }
}
