//! What a log remembers of writes that failed: a full disk is left alone for a moment, and nobody is
//! told of the same failure more than once a minute (`disk_full_time`, `error_log_time`).

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use forebay_rt::clock;

/// How often a failure is told of, in seconds.
const TOLD_EVERY: u64 = 60;

/// The failures of one destination, whichever threads they happened to.
#[derive(Debug, Default)]
pub struct Trouble {
    /// When the disk was found full, in seconds of [`now`]; 0: it is not.
    full_at: AtomicU64,
    /// When a failure was last told of; 0: never.
    told_at: AtomicU64,
}

/// Seconds on a clock that nobody sets, never 0.
fn now() -> u64 {
    clock::now_ms() / 1000 + 1
}

impl Trouble {
    /// Whether the disk was found full in this very second: then nothing is written.
    pub fn is_full(&self) -> bool {
        match self.full_at.load(Relaxed) {
            0 => false,
            at if at == now() => true,
            _ => {
                self.full_at.store(0, Relaxed);
                false
            }
        }
    }

    /// Remembers a disk that is full.
    pub fn note(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::StorageFull {
            self.full_at.store(now(), Relaxed);
        }
    }

    /// Another file, perhaps on another disk.
    pub fn forget(&self) {
        self.full_at.store(0, Relaxed);
    }

    /// Whether a failure is to be told of now.
    pub fn is_news(&self) -> bool {
        let (now, told) = (now(), self.told_at.load(Relaxed));
        let lately = told != 0 && now - told < TOLD_EVERY;
        !lately && self.told_at.compare_exchange(told, now, Relaxed, Relaxed).is_ok()
    }
}
