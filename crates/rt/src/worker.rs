//! Worker threads: one single-threaded event loop each, pinned where the configuration says so.

use std::{future::Future, io, thread};

use tokio::runtime::{Builder, LocalOptions};

use crate::{affinity, clock, task, timer};

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
    let runtime = Builder::new_current_thread()
        .enable_all()
        .on_thread_park(before_wait)
        .on_thread_unpark(clock::refresh)
        .build_local(LocalOptions::default())
        .expect("an event loop can be made: the process has descriptors left");
    runtime.block_on(async {
        task::spawn_local(timer::run());
        future.await;
    });
    before_wait();
}
