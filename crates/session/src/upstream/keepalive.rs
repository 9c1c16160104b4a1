//! Connections that are kept for the next request (`ngx_http_upstream_keepalive_module.c`).
//!
//! Every thread keeps the connections of its own event loop in a shard of its own, where a task of that
//! thread watches them: one that the other end closes leaves the pool at once. A thread that has none
//! takes one from another.
//!
//! DIFFERS(keepalive-shared): nginx keeps `keepalive` connections in each worker process; here all
//! threads together keep so many.
//!
//! Hot path: taking and giving back a connection of the own thread takes one lock that nobody else
//! wants.
//!
//! Invariant: never more idle connections than `keepalive` says, over all threads, but for the moment
//! in which one is put in and another taken out.

use std::{
    any::Any,
    cell::Cell,
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll, Waker},
};

use forebay_rt::{clock, task, timer::Timer};

use super::{Peer, peer::Key};

/// What the pool asks of a connection.
pub trait Idle: Send + 'static {
    /// Ready: the other end has closed, or sent what nobody asked for. Else the task is woken when
    /// that happens. No system call unless an event came. Called on the connection's own thread only.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// `keepalive` and its relatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `keepalive`: idle connections at the most; 0: none.
    pub connections: usize,
    /// `local`: connections are not shared between locations.
    pub local: bool,
    /// `keepalive_requests`: requests over one connection.
    pub requests: u64,
    /// `keepalive_time`: how old a connection may become, in milliseconds.
    pub time_ms: u64,
    /// `keepalive_timeout`: how long it may be idle, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connections: 32,
            local: true,
            requests: 1000,
            time_ms: 3_600_000,
            timeout_ms: 60_000,
        }
    }
}

/// Whom connections belong to alone (`ntlm`); they close when it goes.
#[derive(Default)]
pub struct Owner {
    is_gone: AtomicBool,
}

/// A connection with its history.
pub struct Kept<C> {
    /// The connection.
    pub connection: C,
    /// What, beside the address, a request must have in common with it: the protocol, a name in TLS,
    /// with [`Settings::local`] the location.
    pub tag: u64,
    /// Requests that went over it.
    pub requests: u64,
    /// When it was made, in [`forebay_rt::clock::now_ms`].
    pub made_ms: u64,
    /// It belongs to the event loop of another thread, and must be taken from there before use.
    pub stolen: bool,
    /// Whose it is, if it is not anybody's.
    pub owner: Option<Arc<Owner>>,
}

impl<C> Kept<C> {
    /// A connection that was just made.
    pub fn new(connection: C, tag: u64, now_ms: u64) -> Kept<C> {
        Kept { connection, tag, requests: 0, made_ms: now_ms, stolen: false, owner: None }
    }
}

/// What became of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that found a connection of their own thread.
    pub hits: u64,
    /// Requests that found one of another thread.
    pub stolen: u64,
    /// Requests that found none.
    pub misses: u64,
    /// Idle connections that the other end closed.
    pub closed: u64,
    /// Idle connections that made room for others.
    pub evicted: u64,
    /// Connections whose time was over.
    pub expired: u64,
}

/// The idle connections of a group.
pub struct Pool<C: Idle>(Arc<Inner<C>>);

impl<C: Idle> Clone for Pool<C> {
    fn clone(&self) -> Pool<C> {
        Pool(self.0.clone())
    }
}

/// A [`Pool`] whatever its connections are.
pub(crate) trait AnyPool: Any + Send + Sync {
    /// Closes the connections to other addresses than these.
    fn retain(&self, is_known: &dyn Fn(&Key) -> bool);

    /// The pool itself.
    fn as_any(&self) -> &dyn Any;
}

impl<C: Idle> AnyPool for Pool<C> {
    fn retain(&self, is_known: &dyn Fn(&Key) -> bool) {
        for shard in self.0.made() {
            self.0.remove(shard, |item| !is_known(&item.key), |counts| &mut counts.evicted);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Inner<C> {
    /// One for each thread, made when it first keeps a connection.
    shards: Box<[OnceLock<Box<Shard<C>>>]>,
    /// Idle connections in all shards.
    idle: AtomicUsize,
    misses: AtomicU64,
}

struct Shard<C> {
    /// How many there are, to look before locking.
    len: AtomicUsize,
    kept: Mutex<Keeping<C>>,
}

struct Keeping<C> {
    /// The one that was given back last stands last.
    items: VecDeque<Item<C>>,
    /// The task that watches.
    watcher: Watcher,
    /// When it looks for connections whose time is over; `u64::MAX`: not before it is woken.
    looks_ms: u64,
    counts: Counts,
}

/// The task that watches a shard.
enum Watcher {
    /// There is none.
    None,
    /// It was started and has not run yet.
    Started,
    /// It waits.
    Waits(Waker),
}

struct Item<C> {
    key: Key,
    /// The thread whose event loop knows it.
    thread: usize,
    since_ms: u64,
    ends_ms: u64,
    kept: Kept<C>,
}

/// Threads that have a shard of their own; further ones share.
const SHARDS: usize = 256;

fn lock<C>(shard: &Shard<C>) -> MutexGuard<'_, Keeping<C>> {
    shard.kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of this thread among those that ever kept a connection.
fn thread() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.get().unwrap_or_else(|| {
        let number = LAST.fetch_add(1, Relaxed);
        OWN.set(Some(number));
        number
    })
}

impl<C: Idle> Default for Pool<C> {
    fn default() -> Pool<C> {
        let shards = std::iter::repeat_with(OnceLock::new).take(SHARDS).collect();
        let (idle, misses) = (AtomicUsize::new(0), AtomicU64::new(0));
        Pool(Arc::new(Inner { shards, idle, misses }))
    }
}

impl<C: Idle> Pool<C> {
    /// Takes the connection to a peer that was given back last: of this thread, or else of another.
    pub fn take(&self, peer: &Peer, tag: u64, now_ms: u64) -> Option<Kept<C>> {
        let own = thread() % SHARDS;
        if self.0.idle.load(Relaxed) > 0 {
            if let Some(kept) = self.take_from(own, peer, tag, now_ms) {
                return Some(kept);
            }
            let others = (0..SHARDS).filter(|index| *index != own);
            for index in others {
                if let Some(kept) = self.take_from(index, peer, tag, now_ms) {
                    return Some(kept);
                }
            }
        }
        self.0.misses.fetch_add(1, Relaxed);
        None
    }

    fn take_from(&self, index: usize, peer: &Peer, tag: u64, now_ms: u64) -> Option<Kept<C>> {
        let shard = self.0.shards[index].get().filter(|shard| shard.len.load(Relaxed) > 0)?;
        loop {
            let mut keeping = lock(shard);
            let is_it = |item: &Item<C>| item.kept.tag == tag && item.key == peer.key;
            let at = keeping.items.iter().rposition(is_it)?;
            let mut item = keeping.items.remove(at)?;
            self.0.left(shard, &keeping, 1);
            let stolen = item.thread != thread();
            let closed = item.is_closed(Waker::noop());
            let fate = match (closed, item.ends_ms <= now_ms, stolen) {
                (true, ..) => &mut keeping.counts.closed,
                (false, true, _) => &mut keeping.counts.expired,
                (false, false, false) => &mut keeping.counts.hits,
                (false, false, true) => &mut keeping.counts.stolen,
            };
            *fate += 1;
            if !closed && item.ends_ms > now_ms {
                return Some(Kept { stolen, ..item.kept });
            }
            // Closing is a system call, which nobody should wait for.
            drop(keeping);
        }
    }

    /// Keeps a connection, unless its time is over. When there is no room, the one goes that was not
    /// used for longest, whosever it is.
    pub fn keep(&self, settings: &Settings, peer: &Peer, kept: Kept<C>, now_ms: u64) {
        let too_old = now_ms.saturating_sub(kept.made_ms) > settings.time_ms;
        if settings.connections == 0 {
            return;
        }
        let thread = thread();
        let index = thread % SHARDS;
        let shard = self.0.shards[index].get_or_init(Box::default);
        if kept.requests >= settings.requests || too_old {
            lock(shard).counts.expired += 1;
            return;
        }
        let ends_ms = now_ms.saturating_add(settings.timeout_ms);
        let (key, kept) = (peer.key.clone(), Kept { stolen: false, ..kept });
        let mut item = Item { key, thread, since_ms: now_ms, ends_ms, kept };
        let mut keeping = lock(shard);
        if item.kept.owner.as_ref().is_some_and(|owner| owner.is_gone.load(SeqCst)) {
            keeping.counts.expired += 1;
            return;
        }
        match &keeping.watcher {
            Watcher::Waits(waker) if item.is_closed(waker) => {
                keeping.counts.closed += 1;
                return;
            }
            Watcher::None if task::can_spawn() => {
                keeping.watcher = Watcher::Started;
                task::spawn_local(watch(Leaving(Arc::downgrade(&self.0), thread)));
            }
            _ => {}
        }
        let wake = match &keeping.watcher {
            Watcher::Waits(waker) if keeping.looks_ms > ends_ms => Some(waker.clone()),
            _ => None,
        };
        keeping.items.push_back(item);
        shard.len.store(keeping.items.len(), Relaxed);
        // Before another thread can take it, and count it off.
        let idle = self.0.idle.fetch_add(1, Relaxed);
        drop(keeping);
        if let Some(waker) = wake {
            waker.wake();
        }
        if idle >= settings.connections {
            self.0.evict();
        }
    }

    /// Somebody has gone: closes what was kept for it. What it still has in use is not kept any more.
    pub fn abandon(&self, owner: &Arc<Owner>) {
        owner.is_gone.store(true, SeqCst);
        let is_its =
            |item: &mut Item<C>| item.kept.owner.as_ref().is_some_and(|of| Arc::ptr_eq(of, owner));
        for shard in self.0.made() {
            self.0.remove(shard, is_its, |counts| &mut counts.expired);
        }
    }

    /// How many connections are idle.
    pub fn idle(&self) -> usize {
        self.0.idle.load(Relaxed)
    }

    /// What became of connections so far.
    pub fn counts(&self) -> Counts {
        let misses = self.0.misses.load(Relaxed);
        let shards = self.0.made();
        shards
            .map(|shard| lock(shard).counts)
            .fold(Counts { misses, ..Counts::default() }, Counts::plus)
    }
}

impl Counts {
    fn plus(self, other: Counts) -> Counts {
        Counts {
            hits: self.hits + other.hits,
            stolen: self.stolen + other.stolen,
            misses: self.misses + other.misses,
            closed: self.closed + other.closed,
            evicted: self.evicted + other.evicted,
            expired: self.expired + other.expired,
        }
    }
}

impl<C> Default for Shard<C> {
    fn default() -> Shard<C> {
        let counts = Counts::default();
        let (items, looks_ms) = (VecDeque::new(), u64::MAX);
        let keeping = Keeping { items, watcher: Watcher::None, looks_ms, counts };
        Shard { len: AtomicUsize::new(0), kept: Mutex::new(keeping) }
    }
}

impl<C: Idle> Item<C> {
    /// Whether it is known to be closed; what another thread's event loop knows is not asked.
    fn is_closed(&mut self, waker: &Waker) -> bool {
        self.thread == thread()
            && self.kept.connection.poll_closed(&mut Context::from_waker(waker)).is_ready()
    }
}

impl<C> Inner<C> {
    /// The shards that there are.
    fn made(&self) -> impl Iterator<Item = &Shard<C>> {
        self.shards.iter().filter_map(|shard| shard.get().map(|shard| &**shard))
    }

    /// Connections have left a shard.
    fn left(&self, shard: &Shard<C>, keeping: &Keeping<C>, count: usize) {
        shard.len.store(keeping.items.len(), Relaxed);
        self.idle.fetch_sub(count, Relaxed);
    }

    /// Closes the connection that was not used for longest.
    fn evict(&self) {
        loop {
            let oldest = self
                .made()
                .filter_map(|shard| Some((lock(shard).items.front()?.since_ms, shard)))
                .min_by_key(|(since_ms, _)| *since_ms);
            let Some((_, shard)) = oldest else { return };
            let mut keeping = lock(shard);
            // Another thread may have been faster, for a connection of its own that was too much.
            let Some(evicted) = keeping.items.pop_front() else { continue };
            keeping.counts.evicted += 1;
            self.left(shard, &keeping, 1);
            drop(keeping);
            // Closed outside of the lock.
            return drop(evicted);
        }
    }

    /// Closes some connections of a shard, outside its lock.
    fn remove(
        &self,
        shard: &Shard<C>,
        mut is_gone: impl FnMut(&mut Item<C>) -> bool,
        count: impl FnOnce(&mut Counts) -> &mut u64,
    ) {
        let mut keeping = lock(shard);
        let mut gone = Vec::new();
        let mut at = 0;
        while let Some(item) = keeping.items.get_mut(at) {
            match is_gone(item) {
                true => gone.extend(keeping.items.remove(at)),
                false => at += 1,
            }
        }
        *count(&mut keeping.counts) += gone.len() as u64;
        self.left(shard, &keeping, gone.len());
        drop(keeping);
    }
}

impl<C> Drop for Inner<C> {
    fn drop(&mut self) {
        // The tasks that watch find nothing to watch, and end.
        for shard in self.made() {
            if let Watcher::Waits(waker) =
                std::mem::replace(&mut lock(shard).watcher, Watcher::None)
            {
                waker.wake();
            }
        }
    }
}

/// A thread that ends takes its event loop with it: nobody would watch its connections, nor has anybody
/// if it ends before its task ran.
struct Leaving<C: Idle>(Weak<Inner<C>>, usize);

impl<C: Idle> Drop for Leaving<C> {
    fn drop(&mut self) {
        let Some(pool) = self.0.upgrade() else { return };
        if let Some(shard) = pool.shards[self.1 % SHARDS].get() {
            lock(shard).watcher = Watcher::None;
            pool.remove(shard, |item| item.thread == self.1, |counts| &mut counts.expired);
        }
    }
}

/// Watches the connections of this thread: those that the other end closes, and those whose time is
/// over, leave the pool.
async fn watch<C: Idle>(leaving: Leaving<C>) {
    let timer = Timer::new();
    let index = leaving.1 % SHARDS;
    poll_fn(|cx| {
        let Some(pool) = leaving.0.upgrade() else { return Poll::Ready(()) };
        let Some(shard) = pool.shards[index].get() else { return Poll::Ready(()) };
        let waker = cx.waker().clone();
        lock(shard).watcher = Watcher::Waits(waker.clone());
        pool.remove(shard, |item| item.is_closed(&waker), |counts| &mut counts.closed);
        let now_ms = clock::now_ms();
        pool.remove(shard, |item| item.ends_ms <= now_ms, |counts| &mut counts.expired);
        let mut keeping = lock(shard);
        let next = keeping.items.iter().map(|item| item.ends_ms).min();
        keeping.looks_ms = next.unwrap_or(u64::MAX);
        match next {
            Some(ends_ms) => timer.arm(ends_ms.saturating_sub(now_ms)),
            None => timer.disarm(),
        }
        let _ = timer.poll_expired(cx);
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use forebay_rt::{listen::Addr, task::block_on};

    use super::*;
    use crate::upstream::{Group, Weights};

    /// A connection that the other end can close, and that says when we do.
    #[derive(Clone, Default)]
    struct Fake(Arc<FakeState>);

    #[derive(Default)]
    struct FakeState {
        closed: AtomicBool,
        dropped: AtomicBool,
        waker: Mutex<Option<Waker>>,
    }

    struct Connection(Fake);

    impl Fake {
        fn close(&self) {
            self.0.closed.store(true, Relaxed);
            if let Some(waker) = self.0.waker.lock().unwrap().take() {
                waker.wake();
            }
        }

        fn is_open(&self) -> bool {
            !self.0.dropped.load(Relaxed)
        }
    }

    impl Idle for Connection {
        fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
            *self.0.0.waker.lock().unwrap() = Some(cx.waker().clone());
            if self.0.0.closed.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    impl Drop for Connection {
        fn drop(&mut self) {
            self.0.0.dropped.store(true, Relaxed);
        }
    }

    fn peer(port: u16) -> Arc<Peer> {
        let group = Group::resolved("x", &[Addr::Tcp(([127, 0, 0, 1], port).into())]);
        assert_eq!(group.peers()[0].weights, Weights::default());
        group.peers()[0].clone()
    }

    fn settings(connections: usize) -> Settings {
        Settings { connections, ..Settings::default() }
    }

    fn keep(pool: &Pool<Connection>, settings: &Settings, peer: &Peer, now_ms: u64) -> Fake {
        let fake = Fake::default();
        let kept = Kept::new(Connection(fake.clone()), 0, now_ms);
        pool.keep(settings, peer, kept, now_ms);
        fake
    }

    fn keep_here(pool: &Pool<Connection>, settings: &Settings, peer: &Peer) -> Fake {
        let (fake, now_ms) = (Fake::default(), clock::now_ms());
        pool.keep(settings, peer, Kept::new(Connection(fake.clone()), 0, now_ms), now_ms);
        fake
    }

    /// Which of the connections it is.
    fn which(fakes: &[Fake], kept: &Kept<Connection>) -> Option<usize> {
        fakes.iter().position(|fake| Arc::ptr_eq(&fake.0, &kept.connection.0.0))
    }

    #[test]
    fn the_connection_that_was_used_last_is_taken_first() {
        let (pool, settings) = (Pool::default(), settings(9));
        let (one, two) = (peer(1), peer(2));
        let fakes = [(&one, 1), (&two, 2), (&one, 3)].map(|(p, ms)| keep(&pool, &settings, p, ms));
        let mut order = Vec::new();
        while let Some(kept) = pool.take(&one, 0, 5) {
            order.extend(which(&fakes, &kept));
            assert!(!kept.stolen);
        }
        assert_eq!((order, pool.idle()), (vec![2, 0], 1));
        assert!(pool.take(&two, 1, 5).is_none(), "of another kind");
        let counts = pool.counts();
        assert_eq!((counts.hits, counts.misses), (2, 2));
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let (pool, settings, peer) = (Pool::default(), settings(2), peer(1));
        let fakes = [1, 2, 3].map(|ms| keep(&pool, &settings, &peer, ms));
        assert_eq!(fakes.map(|fake| fake.is_open()), [false, true, true]);
        assert_eq!((pool.idle(), pool.counts().evicted), (2, 1));
    }

    #[test]
    fn connections_end_by_number_of_requests_by_age_and_by_idleness() {
        let (pool, peer) = (Pool::default(), peer(1));
        let settings = Settings { requests: 3, time_ms: 1000, timeout_ms: 100, ..settings(9) };
        for (requests, made_ms, kept_ms, taken_ms, want) in [
            (2, 0, 1000, 1099, true),
            (3, 0, 0, 0, false),
            (0, 0, 1001, 1001, false),
            (0, 0, 0, 100, false),
        ] {
            let kept = Kept::new(Connection(Fake::default()), 0, made_ms);
            let kept = Kept { requests, ..kept };
            pool.keep(&settings, &peer, kept, kept_ms);
            assert_eq!(pool.take(&peer, 0, taken_ms).is_some(), want, "{requests} {kept_ms}");
        }
        assert_eq!((pool.idle(), pool.counts().expired), (0, 3));
    }

    #[test]
    fn a_connection_that_was_closed_is_not_taken() {
        let (pool, settings, peer) = (Pool::default(), settings(9), peer(1));
        let fakes = [1, 2].map(|ms| keep(&pool, &settings, &peer, ms));
        fakes[1].close();
        let kept = pool.take(&peer, 0, 3).unwrap();
        assert_eq!(which(&fakes, &kept), Some(0));
        assert_eq!((fakes[1].is_open(), pool.counts().closed), (false, 1));
    }

    #[test]
    fn the_bound_holds_over_all_threads() {
        let (pool, settings, peer) = (Pool::default(), settings(4), peer(1));
        let fakes: Vec<Fake> = std::thread::scope(|threads| {
            let keep = |n: u64| {
                let (pool, settings, peer) = (&pool, &settings, &peer);
                move || [0, 1, 2].map(|ms| keep(pool, settings, peer, 10 * n + ms))
            };
            let running: Vec<_> = (0..4).map(|n| threads.spawn(keep(n))).collect();
            running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(pool.idle(), 4);
        assert_eq!(fakes.iter().filter(|fake| fake.is_open()).count(), 4);
    }

    #[test]
    fn threads_that_give_and_take_lose_no_connection() {
        let (pool, settings, peer) = (Pool::default(), settings(6), peer(1));
        let work = |n: u64| {
            let (pool, settings, peer) = (&pool, &settings, &peer);
            move || {
                let mut made = Vec::new();
                for step in 0..3000 {
                    let kept = pool.take(peer, 0, step).unwrap_or_else(|| {
                        made.push(Fake::default());
                        Kept::new(Connection(made[made.len() - 1].clone()), 0, step)
                    });
                    // Some are closed by whoever has them, at different times on each thread.
                    if !(step + n).is_multiple_of(7) {
                        pool.keep(settings, peer, kept, step);
                    }
                }
                made
            }
        };
        let made: Vec<Fake> = std::thread::scope(|threads| {
            let running: Vec<_> = (0..4).map(|n| threads.spawn(work(n))).collect();
            running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let open = made.iter().filter(|fake| fake.is_open()).count();
        assert_eq!(open, pool.idle());
        assert!(open <= 6, "{open}");
        let counts = pool.counts();
        assert_eq!(counts.misses, made.len() as u64);
        assert_eq!(counts.hits + counts.stolen + counts.misses, 12_000);
    }

    #[test]
    fn a_thread_without_connections_takes_another_s() {
        let (pool, settings, peer) = (Pool::default(), settings(4), peer(1));
        std::thread::scope(|threads| {
            threads.spawn(|| keep(&pool, &settings, &peer, 1)).join().unwrap();
        });
        let kept = pool.take(&peer, 0, 2).unwrap();
        assert!(kept.stolen && kept.connection.0.is_open());
        pool.keep(&settings, &peer, kept, 3);
        assert!(!pool.take(&peer, 0, 4).unwrap().stolen, "it is this thread's now");
        assert_eq!((pool.counts().stolen, pool.counts().hits), (1, 1));
    }

    async fn until(done: impl Fn() -> bool) {
        while !done() {
            task::yield_now().await;
        }
    }

    #[test]
    fn what_the_other_end_closes_leaves_at_once() {
        block_on(async {
            let (pool, settings, peer) = (Pool::default(), settings(9), peer(1));
            let fakes = [0, 0].map(|_| keep_here(&pool, &settings, &peer));
            task::yield_now().await;
            fakes[0].close();
            until(|| !fakes[0].is_open()).await;
            assert!(fakes[1].is_open());
            // One that comes when the watcher waits is watched too, and one that is closed already is
            // not kept.
            let late = keep_here(&pool, &settings, &peer);
            late.close();
            until(|| !late.is_open()).await;
            let (gone, now_ms) = (Fake::default(), clock::now_ms());
            gone.close();
            pool.keep(&settings, &peer, Kept::new(Connection(gone.clone()), 0, now_ms), now_ms);
            assert!(!gone.is_open());
            assert_eq!((pool.idle(), pool.counts().closed), (1, 3));
        });
    }

    #[test]
    fn a_thread_that_ends_takes_its_connections_with_it() {
        for is_watched in [true, false] {
            let (pool, settings, peer) = (Pool::default(), settings(9), peer(1));
            let fake = std::thread::scope(|threads| {
                let running = threads.spawn(|| {
                    block_on(async {
                        let fake = keep_here(&pool, &settings, &peer);
                        if is_watched {
                            task::yield_now().await;
                        }
                        assert!(fake.is_open());
                        fake
                    })
                });
                running.join().unwrap()
            });
            assert_eq!((fake.is_open(), pool.idle()), (false, 0), "{is_watched}");
        }
    }

    #[test]
    fn what_is_idle_too_long_leaves() {
        block_on(async {
            let (pool, peer) = (Pool::default(), peer(1));
            let settings = Settings { timeout_ms: 20, ..settings(9) };
            for _ in 0..2 {
                let fake = keep_here(&pool, &settings, &peer);
                until(|| !fake.is_open()).await;
            }
            assert_eq!((pool.idle(), pool.counts().expired), (0, 2));
        });
    }
}
