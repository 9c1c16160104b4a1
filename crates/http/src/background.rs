//! What one thread does for all while a configuration is in force: it looks for servers whose
//! addresses change, and checks on their health.
//!
//! Invariant: of each configuration only one of these exists in a process, and none in its master.

use std::sync::Arc;

use forebay_session::upstream::health::Checks;

use crate::plan::{LocId, Plan};

/// The work that belongs to a plan; ends when dropped.
pub struct Background {
    plan: Arc<Plan>,
    _checks: Checks,
}

impl Background {
    /// Begins it on this thread, unless another has it already.
    pub fn start(plan: &Arc<Plan>) -> Option<Background> {
        let log = &plan.location(LocId(0)).error_log;
        let checks = plan.upstreams.start(log)?;
        Some(Background { plan: plan.clone(), _checks: checks })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.plan.upstreams.stop();
    }
}
