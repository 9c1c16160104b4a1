//! Worker threads: one single-threaded event loop each, pinned where the configuration says so.

use std::{future::Future, io, thread};

use crate::{affinity, clock, event_loop};

/// Starts a thread with an event loop and runs the future that `main` makes on it.
///
/// `cpus`: where it may run; `None`: anywhere. `before_wait` runs each time before the loop waits for
/// events: what was gathered during the batch is to be written out then.
pub fn spawn<F, R>(
    name: String,
    cpus: Option<Vec<usize>>,
    before_wait: fn(),
    main: F,
) -> io::Result<thread::JoinHandle<()>>
where
    F: FnOnce() -> R + Send + 'static,
    R: Future<Output = ()> + 'static,
{
    thread::Builder::new().name(name).spawn(move || {
        if let Some(cpus) = cpus {
            // An affinity that the machine does not have costs speed, not service.
            let _ = affinity::pin(&cpus);
        }
        block_on(before_wait, main());
    })
}

/// Runs a future, and what it spawns locally, on this thread until it is done.
pub fn block_on(before_wait: fn(), future: impl Future<Output = ()>) {
    clock::batch();
    event_loop::run(before_wait, future);
    before_wait();
}
