//! Wakers of single streams within a connection's task: of a hundred that wait, only the one that can go
//! on is polled.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release},
    },
    task::{Wake, Waker},
};

/// Whether a stream was woken, and the task to wake with it.
struct Flag {
    woken: AtomicBool,
    task: Mutex<Waker>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Release);
        self.task.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
    }
}

/// The waker of one stream.
pub struct StreamWaker {
    flag: Arc<Flag>,
    waker: Waker,
}

impl StreamWaker {
    /// One that has been woken already: its stream is polled in the next round.
    pub fn new(task: &Waker) -> StreamWaker {
        let task = Mutex::new(task.clone());
        let flag = Arc::new(Flag { woken: AtomicBool::new(true), task });
        StreamWaker { waker: flag.clone().into(), flag }
    }

    /// What the stream's futures are polled with.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Whether it was woken since this was last asked; `task` is what to wake from now on.
    pub fn take_woken(&self, task: &Waker) -> bool {
        let woken = self.flag.woken.swap(false, AcqRel);
        if woken {
            let mut known = self.flag.task.lock().unwrap_or_else(PoisonError::into_inner);
            if !known.will_wake(task) {
                known.clone_from(task);
            }
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(std::sync::atomic::AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, AcqRel);
        }
    }

    #[test]
    fn a_stream_wakes_its_task_and_itself_only() {
        let count = Arc::new(Count(Default::default()));
        let task = Waker::from(count.clone());
        let (a, b) = (StreamWaker::new(&task), StreamWaker::new(&task));
        assert!(a.take_woken(&task) && b.take_woken(&task));
        a.waker().wake_by_ref();
        assert_eq!(count.0.swap(0, AcqRel), 1);
        assert!(!b.take_woken(&task) && a.take_woken(&task) && !a.take_woken(&task));
    }
}
