//! Checks at intervals: a task for each server and check, on one thread of the process.
//!
//! Invariant: a server is checked by one task of each check at a time.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::{self, Rc},
    sync::{Arc, Weak},
    thread,
};

use forebay_rt::{
    clock,
    task::{AbortHandle, spawn_local},
    timer::sleep,
};

use super::{Answer, Asked, Check, Require, Story, note, probe};
use crate::{
    log::ErrorLog,
    upstream::{Peer, Upstream},
    var::VarId,
};

/// Checks under way; they end when this is dropped.
pub struct Checks {
    drivers: Vec<AbortHandle>,
    running: Running,
}

/// The tasks by peer and number of the check.
type Tasks = RefCell<HashMap<(u64, usize), AbortHandle>>;
type Running = Rc<Tasks>;

impl Drop for Checks {
    fn drop(&mut self) {
        self.drivers.iter().for_each(AbortHandle::abort);
        self.running.borrow().values().for_each(AbortHandle::abort);
    }
}

/// Begins to check, on an event-loop thread.
pub fn start<'a>(
    upstreams: impl Iterator<Item = &'a Arc<Upstream>>,
    log: &ErrorLog,
    require: &Require,
) -> Checks {
    let running = Running::default();
    let mut drivers = Vec::new();
    for upstream in upstreams {
        let group = upstream.group();
        if group.settings.checks.is_empty() {
            continue;
        }
        reconcile(upstream, &running, log, require);
        if group.settings.servers.iter().any(|server| server.resolve) {
            let driver =
                drive(Arc::downgrade(upstream), running.clone(), log.clone(), require.clone());
            drivers.push(spawn_local(driver));
        }
    }
    Checks { drivers, running }
}

/// How often new addresses of servers are looked for, in milliseconds.
const LOOK_MS: u64 = 1000;

/// Follows a group whose servers come and go.
async fn drive(upstream: Weak<Upstream>, running: Running, log: ErrorLog, require: Require) {
    loop {
        sleep(LOOK_MS).await;
        let Some(upstream) = upstream.upgrade() else { return };
        reconcile(&upstream, &running, &log, &require);
    }
}

/// Starts what is to be checked and is not yet.
fn reconcile(upstream: &Arc<Upstream>, running: &Running, log: &ErrorLog, require: &Require) {
    let group = upstream.group();
    for peer in group.peers() {
        for (number, check) in group.settings.checks.iter().enumerate() {
            if peer.weights.down {
                continue;
            }
            running.borrow_mut().entry((peer.id, number)).or_insert_with(|| {
                let watched = Watched {
                    upstream: Arc::downgrade(upstream),
                    peer: peer.clone(),
                    check: check.clone(),
                    number,
                    require: require.clone(),
                    running: Rc::downgrade(running),
                    log: log.clone(),
                };
                watched.begin(0)
            });
        }
    }
}

/// What is checked, and how; a task has it.
#[derive(Clone)]
struct Watched {
    upstream: Weak<Upstream>,
    peer: Arc<Peer>,
    check: Arc<Check>,
    number: usize,
    require: Require,
    running: rc::Weak<Tasks>,
    log: ErrorLog,
}

impl Watched {
    /// Checks from then on.
    fn begin(self, after_ms: u64) -> AbortHandle {
        spawn_local(watch(self, after_ms))
    }
}

/// A check that panics is not the last one: what its task held sees to the next.
impl Drop for Watched {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        if let Some(running) = self.running.upgrade()
            && let Ok(mut running) = running.try_borrow_mut()
        {
            let next = self.clone().begin(self.check.interval_ms);
            running.insert((self.peer.id, self.number), next);
        }
    }
}

async fn watch(watched: Watched, after_ms: u64) {
    let Watched { upstream, peer, check, number, require, running, log } = &watched;
    let mut kept = None;
    sleep(after_ms + chance(check.jitter_ms)).await;
    loop {
        let began_ms = clock::now_ms();
        let (peer_asked, require) = (peer.clone(), require.clone());
        let holds = move |vars: &[VarId], answer: &Answer<'_>| {
            let elapsed_ms = clock::now_ms().saturating_sub(began_ms);
            require(vars, &Asked { peer: &peer_asked, elapsed_ms }, answer)
        };
        let result = probe::ask(check, &check.address(peer), &mut kept, &holds).await;
        let Some(upstream) = upstream.upgrade() else { return };
        let group = upstream.group();
        if group.peers().iter().all(|now| now.id != peer.id) {
            // Its name has another address by now.
            if let Some(running) = running.upgrade() {
                running.borrow_mut().remove(&(peer.id, *number));
            }
            return;
        }
        let story = Story { check, group: &group.name, peer: &peer.name };
        if let Err(failure) = result {
            story.failed(log, failure.timed_out);
        }
        let stage = result.err().map_or("checking", |failure| failure.stage);
        if let Some(up) = note(check, *number, peer, result.is_ok(), clock::now_ms()) {
            story.changed(log, up, stage);
        }
        drop(upstream);
        sleep(check.interval_ms + chance(check.jitter_ms)).await;
    }
}

/// A time below a limit, by chance.
fn chance(limit_ms: u64) -> u64 {
    if limit_ms == 0 { 0 } else { crate::upstream::balance::random() % limit_ms }
}
