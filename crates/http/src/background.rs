//! What one thread does for all while a configuration is in force: it looks for servers whose
//! addresses change, and checks on their health.
//!
//! Invariant: of each configuration only one of these exists in a process, and none in its master.

use std::{
    cell::{Cell, OnceCell},
    rc::Rc,
    sync::Arc,
};

use bytes::Bytes;
use forebay_rt::clock;
use forebay_session::{
    upstream::health::{Answer, Asked, Checks, Require},
    var,
};

use crate::{
    plan::{LocId, Plan, PlanHandle, ServerId},
    request::{Connection, Parts, Peer, Request},
    worker::Worker,
};

/// The work that belongs to a plan; ends when dropped.
pub struct Background {
    plan: Arc<Plan>,
    _checks: Checks,
}

impl Background {
    /// Begins it on this thread, unless another has it already.
    pub fn start(plan: &Arc<Plan>, worker: &Rc<Worker>) -> Option<Background> {
        let log = &plan.location(LocId(0)).error_log;
        let (handle, worker) = (PlanHandle::from(plan.clone()), worker.clone());
        let require: Require = Rc::new(move |vars, asked, answer| {
            let r = checked(&handle, &worker, asked, answer);
            vars.iter().all(|id| {
                let mut value = Vec::new();
                var::read(&r, *id, &mut value) && !value.is_empty() && value != b"0"
            })
        });
        let checks = plan.upstreams.start(log, &require)?;
        Some(Background { plan: plan.clone(), _checks: checks })
    }
}

/// What variables see of a health check: no client, no server of ours, but the upstream's answer.
fn checked(
    plan: &PlanHandle,
    worker: &Rc<Worker>,
    asked: &Asked<'_>,
    answer: &Answer<'_>,
) -> Request {
    let connection = Connection {
        number: 0,
        socket: Default::default(),
        remote: Peer::Unix,
        local: Peer::Unix,
        requests: Cell::new(0),
        started_ms: clock::now_ms(),
        proxied: OnceCell::new(),
        tls: OnceCell::new(),
        bound: OnceCell::new(),
        worker: worker.clone(),
    };
    let r = Request::new(plan.clone(), Rc::new(connection), ServerId::default(), Parts::default());
    r.upstream.begin("http://");
    r.upstream.attempt(asked.peer);
    r.upstream.with(|attempt| {
        attempt.status = answer.head.status;
        attempt.header_ms = Some(asked.elapsed_ms);
        attempt.response_ms = Some(asked.elapsed_ms);
        attempt.received = answer.text.len() as u64;
        attempt.response_length = (answer.text.len() - answer.body_at) as u64;
    });
    r.upstream.keep_head(answer.head.clone(), Bytes::copy_from_slice(answer.text));
    r
}

impl Drop for Background {
    fn drop(&mut self) {
        self.plan.upstreams.stop();
    }
}
