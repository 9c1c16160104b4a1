//! Requests that wait for a server (`queue`): first come, first served, so many and so long.
//!
//! Invariant: a ticket that is dropped, for whatever reason, gives its place free.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll, Waker},
};

use forebay_rt::{clock, timer::Timer};

/// `queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// How many requests may wait.
    pub length: usize,
    /// How long, in milliseconds.
    pub timeout_ms: u64,
}

/// Why waiting has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// A server may be free: pick again.
    Again,
    /// It took too long: 502.
    TimedOut,
}

/// How often a waiting request looks by itself, in milliseconds: a server that failed is tried again
/// after a while, and nobody calls then.
const LOOK_MS: u64 = 1000;

/// All that wait for servers of a group. Who frees a server looks at `len` after it has freed it, and
/// who waits looks at the servers once more after it has entered: in one order for all, so that no
/// call is lost.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<VecDeque<Arc<Place>>>,
    len: AtomicUsize,
    /// How many have come so far.
    came: AtomicU64,
}

/// When a request came to a queue. It keeps that, however often it looks for a server.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// How many came before.
    number: u64,
    since_ms: u64,
}

struct Place {
    number: u64,
    state: Mutex<PlaceState>,
}

#[derive(Default)]
struct PlaceState {
    called: bool,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// A place; `None`: there is none left. Who was called or has looked in vain gets his own again.
    pub fn enter(
        self: &Arc<Self>,
        settings: QueueSettings,
        arrival: &mut Option<Arrival>,
        now_ms: u64,
    ) -> Option<Ticket> {
        let mut waiting = lock(&self.waiting);
        if arrival.is_none() && waiting.len() >= settings.length {
            return None;
        }
        let new = || Arrival { number: self.came.fetch_add(1, Relaxed), since_ms: now_ms };
        let Arrival { number, since_ms } = *arrival.get_or_insert_with(new);
        let place = Arc::new(Place { number, state: Mutex::default() });
        let at = waiting.partition_point(|other| other.number < number);
        waiting.insert(at, place.clone());
        self.len.store(waiting.len(), SeqCst);
        let (queue, ends_ms) = (self.clone(), since_ms + settings.timeout_ms);
        Some(Ticket { queue, place, ends_ms, timer: Timer::new(), armed: false, heard: false })
    }

    /// Calls the first.
    pub fn call_one(&self) {
        if self.len.load(SeqCst) == 0 {
            return;
        }
        let first = {
            let mut waiting = lock(&self.waiting);
            let first = waiting.pop_front();
            self.len.store(waiting.len(), SeqCst);
            first
        };
        if let Some(place) = first {
            place.call();
        }
    }

    /// Calls everybody: a server is back.
    pub fn call_all(&self) {
        let all = std::mem::take(&mut *lock(&self.waiting));
        self.len.store(0, SeqCst);
        all.iter().for_each(|place| place.call());
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len.load(SeqCst)
    }
}

impl Place {
    fn call(&self) {
        let waker = {
            let mut state = lock(&self.state);
            state.called = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A place in the queue; a future that ends when it is this request's turn, or too late.
pub struct Ticket {
    queue: Arc<Queue>,
    place: Arc<Place>,
    ends_ms: u64,
    timer: Timer,
    armed: bool,
    /// It was this request's turn, and the request came.
    heard: bool,
}

impl Future for Ticket {
    type Output = Called;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Called> {
        let mut state = lock(&self.place.state);
        let called = state.called;
        state.waker = Some(cx.waker().clone());
        drop(state);
        if called {
            self.heard = true;
            return Poll::Ready(Called::Again);
        }
        let now_ms = clock::now_ms();
        if now_ms >= self.ends_ms {
            return Poll::Ready(Called::TimedOut);
        }
        if !self.armed {
            self.armed = true;
            self.timer.arm(LOOK_MS.min(self.ends_ms - now_ms));
        }
        match self.timer.poll_expired(cx) {
            Poll::Ready(()) if clock::now_ms() >= self.ends_ms => Poll::Ready(Called::TimedOut),
            Poll::Ready(()) => Poll::Ready(Called::Again),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut waiting = lock(&self.queue.waiting);
        match waiting.iter().position(|place| Arc::ptr_eq(place, &self.place)) {
            Some(at) => {
                waiting.remove(at);
                self.queue.len.store(waiting.len(), SeqCst);
            }
            // Called, and nobody came: the next one's turn.
            None if !self.heard => {
                drop(waiting);
                self.queue.call_one();
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_conf::Span;
    use forebay_rt::task::block_on;

    use super::*;
    use crate::upstream::{
        Group, Lease, Pick, Selection, Server, Settings, Weights, address::Target, select::Key,
    };

    /// A group of one server for one connection.
    fn group(length: usize, timeout_ms: u64) -> Group {
        let (target, _) = Target::parse("10.0.0.1:81", 80, false).unwrap();
        let weights = Weights { max_conns: 1, ..Weights::default() };
        let servers = vec![Server { weights, ..Server::new(target, Span::default()) }];
        let queue = Some(QueueSettings { length, timeout_ms });
        Group::new("u", Settings { servers, queue, ..Settings::default() })
    }

    fn begin(group: &Group) -> Selection {
        Selection::new(&group.live().peers.load(), Key::None)
    }

    fn served(pick: Pick) -> Lease {
        match pick {
            Pick::Peer(lease) => lease,
            _ => panic!("not served"),
        }
    }

    fn queued(pick: Pick) -> Ticket {
        match pick {
            Pick::Queue(ticket) => ticket,
            _ => panic!("not queued"),
        }
    }

    fn is_called(ticket: &mut Ticket) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(ticket).poll(&mut cx) == Poll::Ready(Called::Again)
    }

    #[test]
    fn who_comes_first_is_served_first_and_no_more_wait_than_may() {
        let group = group(2, 60_000);
        let now_ms = clock::now_ms();
        let lease = served(group.pick(&mut begin(&group), now_ms));
        let (mut first, mut second) = (begin(&group), begin(&group));
        let mut tickets = [&mut first, &mut second].map(|s| queued(group.pick(s, now_ms)));
        assert!(matches!(group.pick(&mut begin(&group), now_ms), Pick::NoneLive));
        assert_eq!(group.waiting(), 2);
        assert!(tickets.iter_mut().all(|ticket| !is_called(ticket)));
        drop(lease);
        assert_eq!([0, 1].map(|n| is_called(&mut tickets[n])), [true, false]);
        let lease = served(group.pick(&mut first, now_ms));
        drop(lease);
        assert!(is_called(&mut tickets[1]));
        drop(tickets);
        assert_eq!(group.waiting(), 0);
    }

    #[test]
    fn who_is_called_in_vain_keeps_the_first_place() {
        let group = group(2, 60_000);
        let now_ms = clock::now_ms();
        let lease = served(group.pick(&mut begin(&group), now_ms));
        let (mut first, mut second) = (begin(&group), begin(&group));
        let mut one = queued(group.pick(&mut first, now_ms));
        let mut two = queued(group.pick(&mut second, now_ms));
        drop(lease);
        assert!(is_called(&mut one));
        drop(one);
        let thief = served(group.pick(&mut begin(&group), now_ms));
        let mut one = queued(group.pick(&mut first, now_ms));
        drop(thief);
        assert!(is_called(&mut one) && !is_called(&mut two));
    }

    #[test]
    fn who_looks_by_himself_keeps_his_place() {
        let group = group(3, 60_000);
        let now_ms = clock::now_ms();
        let lease = served(group.pick(&mut begin(&group), now_ms));
        let mut selections = [0, 1, 2].map(|_| begin(&group));
        let [one, two, three] =
            selections.each_mut().map(|selection| queued(group.pick(selection, now_ms)));
        // As after a second.
        drop((two, three));
        let mut three = queued(group.pick(&mut selections[2], now_ms));
        let mut two = queued(group.pick(&mut selections[1], now_ms));
        let mut one = one;
        for (called, ticket) in [&mut one, &mut two, &mut three].into_iter().enumerate() {
            assert!(!is_called(ticket), "{called}");
            group.live().shared.wake_one();
            assert!(is_called(ticket), "{called}");
        }
        drop(lease);
    }

    #[test]
    fn a_client_that_leaves_passes_its_turn_on() {
        let group = group(2, 60_000);
        let now_ms = clock::now_ms();
        let lease = served(group.pick(&mut begin(&group), now_ms));
        let (mut first, mut second) = (begin(&group), begin(&group));
        let one = queued(group.pick(&mut first, now_ms));
        let mut two = queued(group.pick(&mut second, now_ms));
        drop(lease);
        drop(one);
        assert!(is_called(&mut two));
    }

    #[test]
    fn waiting_ends() {
        block_on(async {
            let group = group(2, 20);
            let lease = served(group.pick(&mut begin(&group), clock::now_ms()));
            let ticket = queued(group.pick(&mut begin(&group), clock::now_ms()));
            assert_eq!(ticket.await, Called::TimedOut);
            drop(lease);
            assert_eq!(group.waiting(), 0);
        });
    }

    #[test]
    fn who_has_failed_with_a_server_does_not_wait() {
        let group = group(2, 60_000);
        let mut selection = begin(&group);
        let lease = served(group.pick(&mut selection, 1));
        assert!(matches!(group.pick(&mut selection, 1), Pick::NoneLive));
        drop(lease);
    }
}
