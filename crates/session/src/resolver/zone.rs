//! `resolver … status_zone=`: numbers of queries and answers, by name, kept over a reload.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::ResolveError;

/// What is counted; the names are those of NGINX Plus's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Queries for addresses of hosts.
    Name,
    /// Queries for services.
    Srv,
    /// Answers without error.
    NoError,
    /// `Format error`.
    FormErr,
    /// `Server failure`.
    ServFail,
    /// `Host not found`.
    NxDomain,
    /// `Unimplemented`.
    NotImp,
    /// `Operation refused`.
    Refused,
    /// Queries that got no answer in time.
    TimedOut,
    /// Other errors.
    Unknown,
}

const NAMES: [&str; 10] = [
    "name", "srv", "noerror", "formerr", "servfail", "nxdomain", "notimp", "refused", "timedout",
    "unknown",
];

impl From<Option<ResolveError>> for Counter {
    fn from(error: Option<ResolveError>) -> Counter {
        match error {
            None => Counter::NoError,
            Some(ResolveError::Format) => Counter::FormErr,
            Some(ResolveError::Server) => Counter::ServFail,
            Some(ResolveError::NotFound) => Counter::NxDomain,
            Some(ResolveError::Unimplemented) => Counter::NotImp,
            Some(ResolveError::Refused) => Counter::Refused,
            Some(ResolveError::TimedOut) => Counter::TimedOut,
            Some(ResolveError::Other(_)) => Counter::Unknown,
        }
    }
}

/// The numbers of the resolvers of one name.
#[derive(Debug, Default)]
pub struct StatusZone([AtomicU64; NAMES.len()]);

impl StatusZone {
    pub(super) fn count(&self, counter: Counter) {
        self.0[counter as usize].fetch_add(1, Relaxed);
    }

    /// One of the numbers.
    pub fn value(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// All numbers with their names.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0.iter().map(|value| value.load(Relaxed)))
    }
}

type Zones = BTreeMap<Box<str>, Arc<StatusZone>>;

fn zones() -> &'static Mutex<Zones> {
    static ZONES: OnceLock<Mutex<Zones>> = OnceLock::new();
    ZONES.get_or_init(Mutex::default)
}

/// The zone of that name.
pub(super) fn zone(name: &str) -> Arc<StatusZone> {
    let mut zones = zones().lock().unwrap_or_else(PoisonError::into_inner);
    zones.entry(name.into()).or_default().clone()
}

/// All zones by name, for a status page.
pub fn status_zones() -> Vec<(Box<str>, Arc<StatusZone>)> {
    let zones = zones().lock().unwrap_or_else(PoisonError::into_inner);
    zones.iter().map(|(name, zone)| (name.clone(), zone.clone())).collect()
}
