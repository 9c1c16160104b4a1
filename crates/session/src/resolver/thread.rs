//! The thread that all lookups run in, with an event loop of its own.
//!
//! Invariant: one lookup a target and resolver at a time, [`MAX_LOOKUPS`] in all; what waits for a
//! turn or an answer waits no longer than its own timeout.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::{Duration, SystemTime},
};

use forebay_rt::clock;
use tokio::{
    runtime::{Builder, LocalOptions},
    sync::{Semaphore, mpsc, oneshot, watch},
    task::spawn_local,
    time::{sleep, timeout},
};

use super::{Outcome, ResolveError, Resolver, Target, exchange, retry_ms, settings};

/// How many lookups run at a time. Each has two questions under way for each family at the most.
const MAX_LOOKUPS: usize = 256;
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Who is told of a watched target.
pub(super) type Told = Box<dyn Fn(&Outcome) + Send>;

/// What the thread is asked to do.
pub(super) enum Job {
    /// Look something up for one who waits.
    Lookup {
        resolver: Arc<Resolver>,
        target: Target,
        timeout_ms: u64,
        tell: oneshot::Sender<Outcome>,
    },
    /// Look something up again and again.
    Watch {
        resolver: Arc<Resolver>,
        target: Target,
        timeout_ms: u64,
        told: Told,
        ended: oneshot::Receiver<()>,
    },
}

/// Hands a job to the thread, which starts with the first; `false`: it cannot start.
pub(super) fn send(job: Job) -> bool {
    static JOBS: Mutex<Option<mpsc::UnboundedSender<Job>>> = Mutex::new(None);
    let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    let job = match &*jobs {
        Some(known) => match known.send(job) {
            Ok(()) => return true,
            // The thread has died of a panic; another takes its place.
            Err(mpsc::error::SendError(job)) => job,
        },
        None => job,
    };
    let (sender, receiver) = mpsc::unbounded_channel();
    let started = thread::Builder::new().name("resolver".to_owned()).spawn(move || run(receiver));
    if started.is_err() {
        return false;
    }
    let sent = sender.send(job).is_ok();
    *jobs = Some(sender);
    sent
}

/// What the tasks of the thread share.
struct Desk {
    running: RefCell<HashMap<Key, Rc<Running>>>,
    turns: Semaphore,
}

/// A lookup under way: those who wait for it have receivers.
type Running = watch::Sender<Option<Outcome>>;

/// A target at a resolver: resolvers are told apart by their place in memory.
type Key = (usize, Target);

fn run(mut jobs: mpsc::UnboundedReceiver<Job>) {
    let made = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    // Without an event loop those who wait are told by the end of their channels.
    let Ok(runtime) = made else { return };
    runtime.block_on(async move {
        let desk =
            Rc::new(Desk { running: RefCell::default(), turns: Semaphore::new(MAX_LOOKUPS) });
        while let Some(job) = jobs.recv().await {
            let desk = desk.clone();
            match job {
                Job::Lookup { resolver, target, timeout_ms, mut tell } => {
                    spawn_local(async move {
                        let found = desk.answer(&resolver, &target, timeout_ms);
                        tokio::select! {
                            outcome = found => drop(tell.send(outcome)),
                            () = tell.closed() => {}
                        }
                    });
                }
                Job::Watch { resolver, target, timeout_ms, told, ended } => {
                    spawn_local(async move {
                        tokio::select! {
                            () = desk.watch(&resolver, &target, timeout_ms, told) => {}
                            _ = ended => {}
                        }
                    });
                }
            }
        }
    });
}

impl Desk {
    /// The answer to a target, from the cache, a lookup under way or a new one.
    async fn answer(
        self: &Rc<Self>,
        resolver: &Arc<Resolver>,
        target: &Target,
        timeout_ms: u64,
    ) -> Outcome {
        if let Some(answer) = resolver.cache().find(target, clock::now_ms()) {
            return Ok(answer);
        }
        let key = (Arc::as_ptr(resolver) as usize, target.clone());
        let running = self.running.borrow().get(&key).cloned();
        let mut running = match running {
            Some(running) => running.subscribe(),
            None => self.start(resolver, key, timeout_ms),
        };
        let limit = Duration::from_millis(timeout_ms);
        match timeout(limit, running.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone().unwrap_or(Err(ResolveError::Server)),
            Ok(Err(_)) => Err(ResolveError::Server),
            Err(_) => Err(ResolveError::TimedOut),
        }
    }

    /// Starts a lookup, which ends with its answer or when nobody waits any more.
    fn start(
        self: &Rc<Self>,
        resolver: &Arc<Resolver>,
        key: Key,
        timeout_ms: u64,
    ) -> watch::Receiver<Option<Outcome>> {
        let (told, waits) = watch::channel(None);
        let told = Rc::new(told);
        self.running.borrow_mut().insert(key.clone(), told.clone());
        let (desk, resolver) = (self.clone(), resolver.clone());
        spawn_local(async move {
            let outcome = tokio::select! {
                outcome = desk.look_up(&resolver, &key.1, timeout_ms) => Some(outcome),
                () = forgotten(&told) => None,
            };
            desk.running.borrow_mut().remove(&key);
            told.send_replace(outcome);
        });
        waits
    }

    async fn look_up(&self, resolver: &Arc<Resolver>, target: &Target, timeout_ms: u64) -> Outcome {
        let _turn = self.turns.acquire().await;
        let outcome = exchange::look_up(resolver, target, timeout_ms).await;
        if let Ok(answer) = &outcome {
            resolver.cache().keep(target.clone(), answer.clone(), clock::now_ms());
        }
        outcome
    }

    async fn watch(
        self: &Rc<Self>,
        resolver: &Arc<Resolver>,
        target: &Target,
        timeout_ms: u64,
        told: Told,
    ) {
        loop {
            let outcome = self.answer(resolver, target, timeout_ms).await;
            told(&outcome);
            let wait_ms = match outcome {
                // One second more, so that the answer is surely old then.
                Ok(answer) => answer.valid_until_ms.saturating_sub(clock::now_ms()) + 1_000,
                Err(_) => retry_ms(timeout_ms),
            };
            sleep(Duration::from_millis(wait_ms)).await;
        }
    }
}

/// Ends when nobody waits for a lookup.
async fn forgotten(running: &Running) {
    loop {
        running.closed().await;
        // Another may have come since the last one left.
        if running.receiver_count() == 0 {
            return;
        }
    }
}

/// The servers of `/etc/resolv.conf`, which is read again when it has changed.
pub(super) fn system_servers() -> Arc<[SocketAddr]> {
    type Read = (Option<SystemTime>, Arc<[SocketAddr]>);
    static LAST: OnceLock<Mutex<Option<Read>>> = OnceLock::new();
    let changed = fs::metadata(RESOLV_CONF).and_then(|meta| meta.modified()).ok();
    let mut last = LAST.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    match &*last {
        Some((when, servers)) if *when == changed => servers.clone(),
        _ => {
            let text = fs::read(RESOLV_CONF).unwrap_or_default();
            let servers: Arc<[_]> = settings::resolv_conf(&String::from_utf8_lossy(&text)).into();
            *last = Some((changed, servers.clone()));
            servers
        }
    }
}
