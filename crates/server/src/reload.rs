//! A new configuration under living connections (HUP; the second half of ngx_init_cycle and
//! NGX_RECONFIGURE_SIGNAL in ngx_process_cycle.c).
//!
//! DIFFERS(reload-in-place): nginx starts new workers and lets the old ones finish. Here the living
//! worker takes the configuration and nothing of it is lost; only what a process cannot change of
//! itself ([`Fixed`](crate::core::Fixed)) takes a new one.
//!
//! Invariant: what fails at any point leaves the old configuration in force, whole.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use forebay_rt::channel::Channel;
use forebay_rt::errno::Errno;
use forebay_rt::privileges;
use forebay_rt::process::{self, Pid};
use forebay_rt::signals::readable;

use crate::bundle::Message;
use crate::core::RLimits;
use crate::cycle::Cycle;
use crate::master::{Master, PATIENCE, Phase, Step, Worker, receive};
use crate::pid;
use crate::sockets::Purpose;
use crate::worker::limit;

/// What a worker made of a configuration.
enum Answer {
    Taken,
    Refused(String),
    /// It died or does not answer; its successor will take the configuration.
    Gone,
}

impl Master {
    /// Reads the configuration again and puts it in force. Everything wrong with it is logged.
    pub(crate) fn reconfigure(&mut self) -> Step {
        let request = self.cycle.request.clone();
        let log = self.cycle.log.clone();
        let old = Some(&self.cycle);
        let purpose = Purpose::Serve;
        let made = Cycle::make(&request, old, &mut Vec::new(), purpose, &mut |_| {}, &log);
        let Some(next) = made else { return Ok(()) };
        next.log.tell_event_method();
        let fixed = next.core.fixed(next.site.transparent());
        let limits = next.core.limits();
        let able = |worker: &Worker| {
            worker.phase != Phase::Leaving && worker.fixed == fixed && takes(worker, &limits)
        };
        let Some(index) = self.workers.iter().position(able) else {
            return self.replace_worker(next);
        };
        match self.hand_over(index, &next) {
            Answer::Taken => self.commit(next),
            Answer::Gone => {
                // It may hang rather than be dead, and hold what the successor needs.
                let _ = process::send_kill(self.workers[index].pid);
                self.commit(next);
            }
            // DIFFERS(reload-directory): a worker of nginx that cannot enter its directory ends, and the
            // reload leaves nobody to serve.
            Answer::Refused(why) => {
                log.emerg(why);
                next.sockets.unlink_missing_from(Some(&self.cycle.sockets));
            }
        }
        Ok(())
    }

    /// Gives a living worker the new configuration and waits for what it makes of it.
    fn hand_over(&mut self, index: usize, next: &Cycle) -> Answer {
        let threads = next.core.threads();
        let worker = &self.workers[index];
        // The sockets are dealt out anew to another number of threads.
        let known = (worker.threads == threads).then_some(&self.cycle.sockets);
        let bundle = next.bundle(known);
        let Some(channel) = &worker.channel else { return Answer::Gone };
        // A worker that has just started says first that it is ready at all.
        if worker.phase == Phase::Starting && !matches!(wait_for(channel), Answer::Taken) {
            return Answer::Gone;
        }
        let fds = next.bundle_fds(&bundle);
        let bytes = Message::Load(Box::new(bundle)).encode();
        if let Err(err) = channel.send(&bytes, &fds, PATIENCE) {
            self.cycle.log.alert(format_args!("sendmsg() failed ({})", Errno(&err)));
            return Answer::Gone;
        }
        let answer = wait_for(channel);
        if matches!(answer, Answer::Taken) {
            self.workers[index].threads = threads;
            self.workers[index].limits = next.core.limits();
            self.set_priority(self.workers[index].pid, next);
        }
        self.on_ready(index);
        answer
    }

    /// Gives a living worker another `worker_priority`, for which it has no privileges itself; without
    /// one, that of its master, as a new worker would have.
    fn set_priority(&self, worker: Pid, next: &Cycle) {
        let (old, new) = (self.cycle.core.worker_priority, next.core.worker_priority);
        let result = match new {
            _ if new == old => return,
            Some(nice) => privileges::set_priority(Some(worker), nice),
            None => {
                privileges::priority().and_then(|own| privileges::set_priority(Some(worker), own))
            }
        };
        if let Err(err) = result {
            // As in nginx, where a new worker may not have it either.
            next.log.alert(err);
        }
    }

    /// Starts a worker under the new configuration and, once it serves, lets the others finish.
    fn replace_worker(&mut self, next: Cycle) -> Step {
        let old = std::mem::replace(&mut self.cycle, next);
        let worker = self.spawn_worker()?;
        let answer = match worker.as_ref().and_then(|worker| worker.channel.as_ref()) {
            Some(channel) => wait_for(channel),
            None => Answer::Gone,
        };
        let next = std::mem::replace(&mut self.cycle, old);
        let Some(worker) = worker else {
            next.sockets.unlink_missing_from(Some(&self.cycle.sockets));
            return Ok(());
        };
        let pid = worker.pid;
        self.workers.push(worker);
        if matches!(answer, Answer::Taken) {
            self.on_ready(self.workers.len() - 1);
            self.dismiss_workers(Some(pid));
            self.commit(next);
        } else {
            // It said why in the log.
            self.workers.iter_mut().filter(|w| w.pid == pid).for_each(|w| w.phase = Phase::Leaving);
            let _ = process::send_kill(pid);
            next.sockets.unlink_missing_from(Some(&self.cycle.sockets));
        }
        Ok(())
    }

    fn commit(&mut self, next: Cycle) {
        next.replace(&self.cycle);
        // ngx_init_cycle: the new file first, then the old one goes.
        if next.pid != self.cycle.pid && pid::create(&next.pid, &next.log) {
            pid::delete(&self.cycle.pid, &self.cycle.log);
        }
        self.cycle = next;
        self.cycle.redirect_stderr();
    }
}

/// Whether a living worker has these limits, or can be given them: that takes `CAP_SYS_RESOURCE`, which
/// masters in containers lack, and what was limited once is not as before again.
fn takes(worker: &Worker, limits: &RLimits) -> bool {
    let (old, new) = (&worker.limits, limits);
    let freed = old.nofile.is_some() && new.nofile.is_none();
    let freed = freed || old.core.is_some() && new.core.is_none();
    old == new || !freed && limit(Some(worker.pid), new).iter().all(Result::is_ok)
}

/// Waits for a worker's word on the last configuration.
fn wait_for(channel: &Channel) -> Answer {
    let end = Instant::now() + LOAD_TIMEOUT;
    let left = end.saturating_duration_since(Instant::now());
    match readable(&[channel.as_fd()], Some(left)).as_deref() {
        Ok([true]) => match receive(channel, PATIENCE) {
            Some(Message::Ready) => Answer::Taken,
            Some(Message::Failed(why)) => Answer::Refused(why),
            Some(_) | None => Answer::Gone,
        },
        _ => Answer::Gone,
    }
}

/// How long a worker may take to load: configurations with geo tables of millions of lines take
/// seconds.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);
