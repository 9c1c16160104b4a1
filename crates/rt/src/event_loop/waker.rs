//! Wakers that hold nothing: a name, which copies for free and may go stale.

use std::task::{RawWaker, RawWakerVTable, Waker};

use super::{key::Key, wake};

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake_by_ref, wake_by_ref, forget);

/// The waker of a task.
pub(super) fn of(task: Key) -> Waker {
    // SAFETY: the pointer is a number that nothing ever follows. The functions of the table take it
    // apart, hold no resource, and may be called from any thread: `wake` looks for the loop that it
    // names, and the rest does nothing.
    #[allow(unsafe_code)]
    unsafe {
        Waker::from_raw(RawWaker::new(task.as_pointer(), &VTABLE))
    }
}

fn clone(task: *const ()) -> RawWaker {
    RawWaker::new(task, &VTABLE)
}

fn wake_by_ref(task: *const ()) {
    wake(Key::of_pointer(task));
}

fn forget(_task: *const ()) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakers_of_tasks_that_never_were_wake_nobody() {
        let waker = of(Key::new(4000, 1, 1));
        assert!(waker.will_wake(&waker.clone()));
        waker.wake_by_ref();
        drop(waker.clone());
        waker.wake();
        of(Key::NONE).wake();
    }
}
