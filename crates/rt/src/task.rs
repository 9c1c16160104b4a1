//! Tasks of an event-loop thread: futures that need not be `Send`, and never leave the thread.
//!
//! This, [`crate::timer`] and [`crate::transport`] are all that code on a worker thread needs of the
//! event loop. Invariant: who spawns, sleeps or waits for a socket names these, not what they are
//! built on.

use std::{
    future::{Future, poll_fn},
    task::{Context, Poll},
};

use crate::event_loop::{self, TaskKey};

/// A spawned task, to end it early. Dropping it leaves the task alone.
#[derive(Debug)]
pub struct AbortHandle(TaskKey);

impl AbortHandle {
    /// Drops the task's future when its turn comes, without polling it again. A task that is done
    /// already is none the wiser.
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// Starts a task on the event loop of this thread. A panic in it ends this task only.
///
/// # Panics
///
/// Outside of an event loop ([`block_on`], [`crate::worker`]).
pub fn spawn_local(future: impl Future<Output = ()> + 'static) -> AbortHandle {
    AbortHandle(event_loop::spawn(future))
}

/// Whether this thread has an event loop, and tasks can be spawned.
pub fn can_spawn() -> bool {
    event_loop::is_running()
}

/// Lets others have their turn, input and output too, then goes on.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Takes down that the task has done as much as it takes to read or write so many bytes.
pub fn worked(bytes: usize) {
    event_loop::moved(bytes);
}

/// Pending when the task has done so much in this turn that it is the others'; it is woken to go on. What
/// is read and written counts by itself.
pub fn poll_turn(cx: &Context<'_>) -> Poll<()> {
    if event_loop::is_turn_over(cx) { Poll::Pending } else { Poll::Ready(()) }
}

/// Runs an event loop on this thread until the future is done; what it has spawned is dropped then.
/// Worker threads have more to say: [`crate::worker::spawn`].
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    event_loop::run(|| {}, future)
}
