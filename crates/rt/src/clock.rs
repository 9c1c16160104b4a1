//! Time: a monotonic clock for durations, the wall clock for what people read.
//!
//! Invariant: timeouts never look at the wall clock, so setting it disturbs nobody.

use std::{
    cell::Cell,
    sync::OnceLock,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// How often a batched thread may ask before the clocks are read anew, should it never wait.
const REUSE: u32 = 32;

#[derive(Clone, Copy)]
struct Reading {
    mono_ms: u64,
    wall_ms: u64,
    /// How often it may still be used; 0: not at all.
    left: u32,
}

thread_local! {
    static READING: Cell<Reading> = const { Cell::new(Reading { mono_ms: 0, wall_ms: 0, left: 0 }) };
    static BATCHED: Cell<bool> = const { Cell::new(false) };
    static PAUSED: Cell<Option<Reading>> = const { Cell::new(None) };
}

/// From now on, this thread reads the clocks once for each batch of events, as nginx does, and not at
/// every question: [`refresh`] is called when it wakes.
pub fn batch() {
    BATCHED.set(true);
}

/// Stops the clocks of this thread, for tests: they move by [`advance`] alone, and an event loop that
/// has nothing else to do moves them to where its next timer is due.
pub fn pause() {
    PAUSED.set(Some(Reading { left: REUSE, ..read() }));
    refresh();
}

/// Moves the stopped clocks of this thread on.
///
/// # Panics
///
/// Unless they are stopped.
pub fn advance(ms: u64) {
    let now = PAUSED.get().expect("the clocks are stopped");
    PAUSED.set(Some(Reading { mono_ms: now.mono_ms + ms, wall_ms: now.wall_ms + ms, ..now }));
    refresh();
}

/// Whether the clocks of this thread are stopped.
pub(crate) fn is_paused() -> bool {
    PAUSED.get().is_some()
}

/// Reads the clocks anew for this thread.
pub fn refresh() {
    READING.set(PAUSED.get().unwrap_or_else(read));
}

fn read() -> Reading {
    static START: OnceLock<Instant> = OnceLock::new();
    // Begins above zero, so that 0 can stand for "never".
    let mono_ms = START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1;
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = if BATCHED.get() { REUSE } else { 0 };
    Reading { mono_ms, wall_ms: wall.as_millis() as u64, left }
}

fn reading() -> Reading {
    let kept = READING.get();
    if kept.left == 0 {
        refresh();
        return READING.get();
    }
    READING.set(Reading { left: kept.left - 1, ..kept });
    kept
}

/// Milliseconds since the process started counting: never goes back. In a [`batch`]ed thread, as of
/// the current batch of events.
pub fn now_ms() -> u64 {
    reading().mono_ms
}

/// Milliseconds since 1970, UTC; as of the current batch of events.
pub fn wall_ms() -> u64 {
    reading().wall_ms
}

/// The process and the thread, as the error log names them.
pub fn ids() -> (u32, u32) {
    (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get() as u32)
}

/// A moment in the local time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// The year.
    pub year: i32,
    /// The month, 1 to 12.
    pub month: u32,
    /// The day of the month, 1 to 31.
    pub day: u32,
    /// The hour.
    pub hour: u32,
    /// The minute.
    pub minute: u32,
    /// The second.
    pub second: u32,
    /// The day of the week; 0 is Sunday.
    pub weekday: u32,
    /// How far east of Greenwich, in minutes.
    pub offset_minutes: i32,
}

/// Seconds since 1970 in the zone that `TZ` or the system names.
pub fn local_time(seconds: i64) -> LocalTime {
    let mut tm = std::mem::MaybeUninit::<libc::tm>::zeroed();
    let time: libc::time_t = seconds;
    // SAFETY: both pointers are valid for the call; localtime_r fills `tm`, and where it fails (a
    // year beyond an int) the zeroed bytes are a valid `tm` of integers and a null pointer.
    #[allow(unsafe_code)]
    let tm = unsafe {
        libc::localtime_r(&time, tm.as_mut_ptr());
        tm.assume_init()
    };
    LocalTime {
        year: tm.tm_year + 1900,
        month: tm.tm_mon as u32 + 1,
        day: tm.tm_mday as u32,
        hour: tm.tm_hour as u32,
        minute: tm.tm_min as u32,
        second: tm.tm_sec as u32,
        weekday: tm.tm_wday as u32,
        offset_minutes: (tm.tm_gmtoff / 60) as i32,
    }
}

/// Writes a moment as `strftime` does, in the C locale; `utc`: in Greenwich, else in the local zone.
/// `false`, and nothing is written, when it comes out empty or longer than 2,047 bytes, or the format
/// holds a NUL.
pub fn format_time(format: &[u8], seconds: i64, utc: bool, out: &mut Vec<u8>) -> bool {
    let Ok(format) = std::ffi::CString::new(format) else { return false };
    let mut text = [0u8; 2048];
    let time: libc::time_t = seconds;
    let mut tm = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: as in `local_time` for the first calls; `strftime` writes no more than the given
    // length, reads a `tm` that is initialised and a format that ends with a NUL.
    #[allow(unsafe_code)]
    let len = unsafe {
        match utc {
            true => libc::gmtime_r(&time, tm.as_mut_ptr()),
            false => libc::localtime_r(&time, tm.as_mut_ptr()),
        };
        let tm = tm.assume_init();
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &tm)
    };
    out.extend_from_slice(&text[..len]);
    len > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_in_the_c_locale() {
        for (format, want) in [
            ("%A, %d-%b-%Y %H:%M:%S %Z", Some("Tuesday, 14-Nov-2023 22:13:20 GMT")),
            ("%s-%%-x", None),
            ("", None),
            ("%5000d", None),
            ("a\0b", None),
        ] {
            let mut out = Vec::new();
            let found = format_time(format.as_bytes(), 1_700_000_000, true, &mut out);
            assert_eq!(found, !out.is_empty());
            if let Some(want) = want {
                assert_eq!(String::from_utf8(out).unwrap(), want);
            }
        }
    }

    #[test]
    fn local_time_and_offset_give_back_the_seconds() {
        let t = local_time(1_700_000_000);
        let (y, m) = if t.month <= 2 { (t.year - 1, t.month + 12) } else { (t.year, t.month) };
        let days = 365 * i64::from(y)
            + i64::from(y / 4 - y / 100 + y / 400)
            + i64::from((153 * (m - 3) + 2) / 5 + t.day)
            - 719_469;
        let of_day = i64::from(t.hour * 3600 + t.minute * 60 + t.second);
        assert_eq!(days * 86_400 + of_day - i64::from(t.offset_minutes) * 60, 1_700_000_000);
    }

    #[test]
    fn a_stopped_clock_moves_when_it_is_told() {
        pause();
        let (mono, wall) = (now_ms(), wall_ms());
        assert!((0..100).all(|_| now_ms() == mono && wall_ms() == wall));
        advance(1500);
        assert_eq!((now_ms(), wall_ms()), (mono + 1500, wall + 1500));
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let before = now_ms();
        assert!(before > 0 && now_ms() >= before);
    }
}
