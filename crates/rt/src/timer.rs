//! Timeouts: one coarse wheel a thread in place of a timer a connection.
//!
//! A connection sets its deadline with every byte that moves, and nearly never reaches it; so setting
//! is one store. The wheel looks at a timer when its *earlier* deadline passes, and puts it back
//! where the deadline has moved to. A timer fires up to [`TICK_MS`] late, never early.
//!
//! Hot path: no allocation and no system call in [`Timer::arm`].

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use crate::clock;

/// The wheel's resolution.
pub const TICK_MS: u64 = 50;

const NEVER: u64 = u64::MAX;

struct Node {
    /// When it fires, in [`clock::now_ms`]; [`NEVER`]: not armed.
    deadline: Cell<u64>,
    /// The tick under which the wheel holds it; [`NEVER`]: not at all.
    held_at: Cell<u64>,
    /// Since when its connection waits for a request; 0: it does not.
    idle_since: Cell<u64>,
    /// It waits for its first request.
    is_first: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

#[derive(Default)]
struct Wheel {
    ticks: BTreeMap<u64, Vec<Rc<Node>>>,
    /// All nodes ever made on this thread: at most as many as there were connections at once.
    nodes: Vec<Rc<Node>>,
    free: Vec<Rc<Node>>,
    spare: Vec<Vec<Rc<Node>>>,
    /// Who waits to the millisecond ([`sleep`]), by when and in the order of asking.
    sleepers: BTreeMap<(u64, u64), Waker>,
    asked: u64,
}

thread_local! {
    static WHEEL: RefCell<Wheel> = RefCell::default();
    /// When the wheel is to be looked at next, in [`clock::now_ms`].
    static NEXT: Cell<u64> = const { Cell::new(NEVER) };
}

/// Whether a connection waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It does not.
    No,
    /// For its first: who has just connected is about to ask, and is served by a thread that quits.
    First,
    /// For another one: the client must expect that the connection ends.
    Kept,
}

/// A deadline that can be moved. Belongs to the thread that made it.
pub struct Timer(Rc<Node>);

impl Default for Timer {
    fn default() -> Self {
        Timer::new()
    }
}

impl Timer {
    /// A timer that is not armed.
    pub fn new() -> Timer {
        WHEEL.with_borrow_mut(|wheel| {
            let node = wheel.free.pop().unwrap_or_else(|| {
                let node = Rc::new(Node {
                    deadline: Cell::new(NEVER),
                    held_at: Cell::new(NEVER),
                    idle_since: Cell::new(0),
                    is_first: Cell::new(false),
                    waker: Cell::new(None),
                });
                wheel.nodes.push(node.clone());
                node
            });
            Timer(node)
        })
    }

    /// Fires in that many milliseconds, whatever it was set to before.
    pub fn arm(&self, ms: u64) {
        let deadline = clock::now_ms().saturating_add(ms);
        self.0.deadline.set(deadline);
        let tick = tick_after(deadline);
        if tick < self.0.held_at.get() {
            hold(&self.0, tick);
        }
    }

    /// Never fires.
    pub fn disarm(&self) {
        self.0.deadline.set(NEVER);
    }

    /// Whether the deadline has passed.
    pub fn expired(&self) -> bool {
        self.0.deadline.get() <= clock::now_ms()
    }

    /// Whether its connection was told to close for others' sake, and not by its own deadline.
    pub fn is_shed(&self) -> bool {
        self.0.deadline.get() == 0
    }

    /// Ready once the deadline has passed; else the task is woken then.
    pub fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.0.deadline.get();
        if deadline != NEVER && deadline <= clock::now_ms() {
            return Poll::Ready(());
        }
        let kept = self.0.waker.take().filter(|waker| waker.will_wake(cx.waker()));
        self.0.waker.set(Some(kept.unwrap_or_else(|| cx.waker().clone())));
        Poll::Pending
    }

    /// The same for a wait that may have begun just now: one that is not armed is, for that long.
    pub fn poll_expired_after(&self, ms: u64, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.deadline.get() == NEVER {
            self.arm(ms);
        }
        self.poll_expired(cx)
    }

    /// Says whether the connection now waits for a request: an idle one may be closed for others'
    /// sake ([`shed_idle`], [`close_idle`]).
    pub fn set_idle(&self, idle: Idle) {
        self.0.idle_since.set(if idle == Idle::No { 0 } else { clock::now_ms() });
        self.0.is_first.set(idle == Idle::First);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let node = &self.0;
        node.deadline.set(NEVER);
        node.idle_since.set(0);
        node.waker.take();
        // While the thread ends, the wheel may be gone already.
        let _ = WHEEL.try_with(|wheel| wheel.borrow_mut().free.push(node.clone()));
    }
}

/// The first tick that begins after a moment.
fn tick_after(ms: u64) -> u64 {
    ms / TICK_MS + 1
}

fn hold(node: &Rc<Node>, tick: u64) {
    WHEEL.with_borrow_mut(|wheel| {
        node.held_at.set(tick);
        NEXT.set(NEXT.get().min(tick * TICK_MS));
        let spare = &mut wheel.spare;
        let list = wheel.ticks.entry(tick).or_insert_with(|| spare.pop().unwrap_or_default());
        list.push(node.clone());
    });
}

/// Waits that many milliseconds, to the millisecond: for waits that are a service, not a limit.
pub fn sleep(ms: u64) -> Sleep {
    let deadline = clock::now_ms().saturating_add(ms);
    WHEEL.with_borrow_mut(|wheel| {
        wheel.asked += 1;
        Sleep { key: (deadline, wheel.asked) }
    })
}

/// See [`sleep`]. Belongs to the thread that made it.
#[derive(Debug)]
pub struct Sleep {
    key: (u64, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.key.0 <= clock::now_ms() {
            return Poll::Ready(());
        }
        NEXT.set(NEXT.get().min(self.key.0));
        let waker = cx.waker().clone();
        let _replaced = WHEEL.with_borrow_mut(|wheel| wheel.sleepers.insert(self.key, waker));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // While the thread ends, the wheel may be gone already.
        let _ = WHEEL.try_with(|wheel| wheel.borrow_mut().sleepers.remove(&self.key));
    }
}

/// Closes the connections that have been idle longest, at most `count`; says how many.
pub fn shed_idle(count: usize) -> usize {
    let mut idle: Vec<Rc<Node>> = WHEEL.with_borrow(|wheel| {
        wheel.nodes.iter().filter(|node| node.idle_since.get() != 0).cloned().collect()
    });
    idle.sort_unstable_by_key(|node| node.idle_since.get());
    idle.truncate(count);
    idle.iter().for_each(fire);
    idle.len()
}

/// Closes all connections that have been idle since that moment (of [`clock::now_ms`]) or longer, but for
/// those that have not asked for anything yet (as nginx's `ngx_close_idle_connections`); says how many.
pub fn close_idle(since_ms: u64) -> usize {
    let idle: Vec<Rc<Node>> = WHEEL.with_borrow(|wheel| {
        let is_idle = |node: &&Rc<Node>| {
            let since = node.idle_since.get();
            since != 0 && !node.is_first.get() && since <= since_ms
        };
        wheel.nodes.iter().filter(is_idle).cloned().collect()
    });
    idle.iter().for_each(fire);
    idle.len()
}

fn fire(node: &Rc<Node>) {
    node.deadline.set(0);
    node.idle_since.set(0);
    let waker = node.waker.take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// How long nothing can be due; `None`: for ever, as no timer is armed.
pub(crate) fn until_next_ms() -> Option<u64> {
    let next = NEXT.get();
    (next != NEVER).then(|| next.saturating_sub(clock::now_ms()))
}

/// Fires what is due, and moves on what was put off.
pub(crate) fn turn() {
    let now = clock::now_ms();
    if now < NEXT.get() {
        return;
    }
    // What is put into the wheel meanwhile tells by itself.
    NEXT.set(NEVER);
    wake_sleepers(now);
    turn_wheel(now);
    let next = WHEEL.with_borrow(|wheel| {
        let tick = wheel.ticks.first_key_value().map_or(NEVER, |(tick, _)| tick * TICK_MS);
        let sleeper = wheel.sleepers.first_key_value().map_or(NEVER, |((due, _), _)| *due);
        tick.min(sleeper)
    });
    NEXT.set(NEXT.get().min(next));
}

fn wake_sleepers(now: u64) {
    loop {
        let due = WHEEL.with_borrow_mut(|wheel| match wheel.sleepers.first_entry() {
            Some(entry) if entry.key().0 <= now => Some(entry.remove()),
            _ => None,
        });
        match due {
            Some(waker) => waker.wake(),
            None => return,
        }
    }
}

fn turn_wheel(now: u64) {
    loop {
        let due = WHEEL.with_borrow_mut(|wheel| match wheel.ticks.first_entry() {
            Some(entry) if entry.key() * TICK_MS <= now => Some(entry.remove_entry()),
            _ => None,
        });
        let Some((tick, mut nodes)) = due else { return };
        for node in nodes.drain(..) {
            // It was put under an earlier tick since.
            if node.held_at.get() != tick {
                continue;
            }
            node.held_at.set(NEVER);
            match node.deadline.get() {
                NEVER => {}
                deadline if deadline <= now => {
                    let waker = node.waker.take();
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                }
                deadline => hold(&node, tick_after(deadline)),
            }
        }
        WHEEL.with_borrow_mut(|wheel| {
            if wheel.spare.len() < 64 && nodes.capacity() <= 4096 {
                wheel.spare.push(nodes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::block_on;
    use std::future::poll_fn;

    #[test]
    fn a_timer_fires_after_its_time_and_not_before() {
        block_on(async {
            let timer = Timer::new();
            let start = clock::now_ms();
            timer.arm(120);
            poll_fn(|cx| timer.poll_expired(cx)).await;
            assert!(clock::now_ms() - start >= 120);
        });
    }

    #[test]
    fn an_earlier_deadline_is_not_held_back_by_a_later_one() {
        block_on(async {
            let timer = Timer::new();
            timer.arm(3_600_000);
            timer.arm(10);
            poll_fn(|cx| timer.poll_expired(cx)).await;
        });
    }

    #[test]
    fn a_deadline_that_moves_within_a_tick_takes_one_place() {
        clock::pause();
        let held = || WHEEL.with_borrow(|wheel| wheel.ticks.values().map(Vec::len).sum::<usize>());
        let timer = Timer::new();
        for _ in 0..100 {
            timer.arm(60_000);
        }
        assert_eq!(held(), 1);
        timer.arm(1000);
        timer.arm(1000);
        assert_eq!(held(), 2);
    }

    #[test]
    fn the_longest_idle_connection_is_shed_first() {
        block_on(async {
            let (old, new, busy) = (Timer::new(), Timer::new(), Timer::new());
            for timer in [&old, &new, &busy] {
                timer.arm(3_600_000);
            }
            old.set_idle(Idle::Kept);
            old.0.idle_since.set(1);
            new.set_idle(Idle::Kept);
            new.0.idle_since.set(2);
            assert_eq!(shed_idle(1), 1);
            assert!(old.expired() && !new.expired() && !busy.expired());
            assert_eq!((close_idle(1), close_idle(2)), (0, 1));
            assert!(new.expired() && !busy.expired());
        });
    }

    #[test]
    fn a_connection_before_its_first_request_is_shed_but_not_closed_at_the_end() {
        block_on(async {
            let (fresh, kept) = (Timer::new(), Timer::new());
            fresh.set_idle(Idle::First);
            kept.set_idle(Idle::Kept);
            assert_eq!(close_idle(clock::now_ms()), 1);
            assert!(kept.expired() && !fresh.expired());
            assert_eq!(shed_idle(9), 1);
            assert!(fresh.expired());
        });
    }

    #[test]
    fn dropped_timers_are_used_again() {
        block_on(async {
            for _ in 0..1000 {
                Timer::new().arm(75_000);
            }
            assert_eq!(WHEEL.with_borrow(|wheel| wheel.nodes.len()), 1);
        });
    }
}
