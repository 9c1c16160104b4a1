//! Counts what makes work and is of no use: pings, settings, empty frames, cancelled requests. A client
//! that does too much of it is asked to calm down (RFC 9113 §10.5).
//!
//! DIFFERS(h2-flood): nginx weighs the bytes of all frames against those of payloads; here each frame
//! has a price, and what is useful earns it back.
//!
//! Held against: rapid reset (CVE-2023-44487), MadeYouReset (CVE-2025-8671), the floods of
//! CVE-2019-9511 to 9518, CONTINUATION floods.

use forebay_wire::h2::{ErrorCode, Violation};

/// What a burst may cost in all.
const BUDGET: u32 = 10_000;
/// How much is forgiven in a second.
const FORGIVEN_A_SECOND: u64 = 200;

/// What single things cost.
pub mod cost {
    #![allow(missing_docs)]
    /// A stream that the client reset, or made us reset, or that was one too many.
    pub const RESET: u32 = 20;
    pub const SETTINGS: u32 = 10;
    pub const CONTINUATION: u32 = 10;
    pub const EMPTY_DATA: u32 = 5;
    pub const PING: u32 = 2;
    pub const PRIORITY: u32 = 2;
    pub const WINDOW_UPDATE: u32 = 1;
    /// 4 KiB of fields beyond those that a head may have: a byte of HPACK names that much.
    pub const EXPANSION: u32 = 1;
    pub const OTHER: u32 = 1;
}

/// What is credited for a response, and for each KiB of body sent: clients that download have windows to
/// update.
const RESPONSE: u32 = 10;
const KIBIBYTE: u32 = 1;
/// The least that is credited for a frame of a body which is as short as its origin made it: some clients
/// answer each with two window updates and a ping (gRPC's way to measure how much they can take).
const FRAME: u32 = 2 * cost::WINDOW_UPDATE + cost::PING;

/// The account of one connection.
#[derive(Default)]
pub struct Calm {
    spent: u32,
    since_ms: u64,
}

impl Calm {
    /// Takes something down; too much ends the connection.
    pub fn spend(&mut self, cost: u32, now_ms: u64) -> Result<(), Violation> {
        if self.spent == 0 {
            self.since_ms = now_ms;
        }
        self.spent = self.spent.saturating_add(cost);
        if self.spent <= BUDGET {
            return Ok(());
        }
        let forgiven =
            now_ms.saturating_sub(self.since_ms).saturating_mul(FORGIVEN_A_SECOND) / 1000;
        self.since_ms = now_ms;
        self.spent = self.spent.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        if self.spent <= BUDGET {
            return Ok(());
        }
        Err(Violation::connection(ErrorCode::EnhanceYourCalm, "http2 flood detected"))
    }

    /// Credits a response.
    pub fn answered(&mut self) {
        self.spent = self.spent.saturating_sub(RESPONSE);
    }

    /// Credits a frame of a body. `is_cut`: it takes all that a window had left, so that its length is
    /// the client's doing.
    pub fn sent(&mut self, bytes: usize, is_cut: bool) {
        let least = if is_cut || bytes == 0 { 0 } else { FRAME };
        let earned = (bytes >> 10) as u32 * KIBIBYTE;
        self.spent = self.spent.saturating_sub(earned.max(least));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_from_a_burst_and_from_a_long_life() {
        let mut calm = Calm::default();
        let burst = (0..BUDGET / cost::PING).all(|_| calm.spend(cost::PING, 0).is_ok());
        assert!(burst && calm.spend(cost::PING, 0).is_err());

        let mut calm = Calm::default();
        // Fifty pings a second are nobody's harm.
        assert!((0..1_000_000).all(|ms| ms % 20 != 0 || calm.spend(cost::PING, ms).is_ok()));
    }

    #[test]
    fn a_download_pays_for_its_window_updates() {
        let mut calm = Calm::default();
        for _ in 0..1_000_000 {
            calm.sent(16_384, true);
            assert!(calm.spend(2 * cost::WINDOW_UPDATE, 0).is_ok());
        }
        // One byte a frame does not.
        let mut dribble = |_| {
            calm.sent(1, true);
            calm.spend(cost::WINDOW_UPDATE, 0).is_ok()
        };
        assert!(!(0..100_000).all(&mut dribble));
    }

    #[test]
    fn a_stream_of_small_messages_pays_for_what_is_sent_in_return() {
        let mut calm = Calm::default();
        for _ in 0..1_000_000 {
            calm.sent(100, false);
            assert!(calm.spend(cost::PING, 0).is_ok());
            assert!((0..2).all(|_| calm.spend(cost::WINDOW_UPDATE, 0).is_ok()));
        }
    }

    #[test]
    fn requests_that_are_answered_pay_for_some_that_are_not() {
        let mut calm = Calm::default();
        for _ in 0..100_000 {
            calm.answered();
            calm.answered();
            assert!(calm.spend(cost::RESET, 0).is_ok());
        }
        assert!((0..1_000).any(|_| calm.spend(cost::RESET, 0).is_err()));
    }
}
