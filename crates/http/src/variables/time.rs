//! Variables of the time, made once a second (or a millisecond) by each thread.

use std::{cell::RefCell, io::Write as _};

use forebay_rt::clock;
use forebay_session::var::Registry;

use super::{put, put_seconds};
use crate::request::Request;

pub(super) fn register(registry: &mut Registry<Request>) {
    registry.builtin("msec", |_, out| put_seconds(out, clock::wall_ms()));
    registry.builtin("time_local", |_, out| {
        CLOCK.with_borrow_mut(|clock| put(out, &clock.now(clock::wall_ms()).local))
    });
    registry.builtin("time_iso8601", |_, out| {
        CLOCK.with_borrow_mut(|clock| put(out, &clock.now(clock::wall_ms()).iso))
    });
    registry.builtin("time_iso8601_ms", |_, out| {
        CLOCK.with_borrow_mut(|clock| clock.put_iso_ms(clock::wall_ms(), out))
    });
}

thread_local! {
    static CLOCK: RefCell<Clock> = RefCell::default();
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The texts of one second.
#[derive(Default)]
struct Clock {
    second: u64,
    /// `28/Sep/1970:12:00:00 +0600`.
    local: Vec<u8>,
    /// `1970-09-28T12:00:00+06:00`.
    iso: Vec<u8>,
}

/// The length of `1970-09-28T12:00:00`, after which the fraction stands.
const ISO_SECONDS: usize = 19;

impl Clock {
    fn now(&mut self, wall_ms: u64) -> &Clock {
        let second = wall_ms / 1000;
        if self.second != second || self.local.is_empty() {
            self.second = second;
            self.fill(clock::local_time(second as i64));
        }
        self
    }

    fn fill(&mut self, t: clock::LocalTime) {
        let sign = if t.offset_minutes < 0 { '-' } else { '+' };
        let offset = t.offset_minutes.unsigned_abs();
        let (hours, minutes) = (offset / 60, offset % 60);
        let month = MONTHS[(t.month as usize).clamp(1, 12) - 1];
        self.local.clear();
        // Writing to a vector cannot fail.
        let _ = write!(
            self.local,
            "{:02}/{month}/{:04}:{:02}:{:02}:{:02} {sign}{hours:02}{minutes:02}",
            t.day, t.year, t.hour, t.minute, t.second
        );
        self.iso.clear();
        let _ = write!(
            self.iso,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{sign}{hours:02}:{minutes:02}",
            t.year, t.month, t.day, t.hour, t.minute, t.second
        );
    }

    fn put_iso_ms(&mut self, wall_ms: u64, out: &mut Vec<u8>) -> bool {
        let iso = &self.now(wall_ms).iso;
        let (seconds, zone) = iso.split_at(ISO_SECONDS.min(iso.len()));
        out.extend_from_slice(seconds);
        // Writing to a vector cannot fail.
        let _ = write!(out, ".{:03}", wall_ms % 1000);
        put(out, zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(offset_minutes: i32) -> Clock {
        let mut clock = Clock { second: 5, ..Clock::default() };
        clock.fill(clock::LocalTime {
            year: 2026,
            month: 11,
            day: 1,
            hour: 9,
            minute: 5,
            second: 7,
            weekday: 0,
            offset_minutes,
        });
        clock
    }

    #[test]
    fn times_are_written_as_nginx_writes_them() {
        let cases = [
            (0, "01/Nov/2026:09:05:07 +0000", "2026-11-01T09:05:07+00:00"),
            (330, "01/Nov/2026:09:05:07 +0530", "2026-11-01T09:05:07+05:30"),
            (-210, "01/Nov/2026:09:05:07 -0330", "2026-11-01T09:05:07-03:30"),
        ];
        for (offset, local, iso) in cases {
            let clock = filled(offset);
            assert_eq!(String::from_utf8_lossy(&clock.local), local);
            assert_eq!(String::from_utf8_lossy(&clock.iso), iso);
        }
    }

    #[test]
    fn milliseconds_stand_before_the_zone() {
        let mut out = Vec::new();
        assert!(filled(60).put_iso_ms(5_042, &mut out));
        assert_eq!(String::from_utf8_lossy(&out), "2026-11-01T09:05:07.042+01:00");
    }
}
