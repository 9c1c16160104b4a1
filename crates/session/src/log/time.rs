//! The time as logs have it: `21/Nov/2026:09:00:00 +0000`, `2026-11-21T09:00:00+00:00`,
//! `2026/11/21 09:00:00`, `Nov 21 09:00:00`.
//!
//! Answers `ngx_time_update`, which nginx also runs once a second at most.
//! Hot path: the texts are made once a second and thread, and copied.

use std::cell::Cell;

use forebay_rt::clock::{self, LocalTime};

const LOCAL_BYTES: usize = "21/Nov/2026:09:00:00 +0000".len();
const ISO8601_BYTES: usize = "2026-11-21T09:00:00+00:00".len();
const ERROR_BYTES: usize = "2026/11/21 09:00:00".len();
const SYSLOG_BYTES: usize = "Nov 21 09:00:00".len();
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

#[derive(Clone, Copy)]
struct Texts {
    second: u64,
    local: [u8; LOCAL_BYTES],
    iso8601: [u8; ISO8601_BYTES],
    error: [u8; ERROR_BYTES],
    syslog: [u8; SYSLOG_BYTES],
}

thread_local! {
    static TEXTS: Cell<Texts> = const { Cell::new(Texts {
        second: u64::MAX,
        local: [0; LOCAL_BYTES],
        iso8601: [0; ISO8601_BYTES],
        error: [0; ERROR_BYTES],
        syslog: [0; SYSLOG_BYTES],
    }) };
}

/// Appends `$time_local`.
pub fn write_local(wall_ms: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&texts(wall_ms / 1000).local);
}

/// Appends `$time_iso8601`.
pub fn write_iso8601(wall_ms: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&texts(wall_ms / 1000).iso8601);
}

/// Appends `$time_iso8601_ms`: milliseconds stand before the zone.
pub fn write_iso8601_ms(wall_ms: u64, out: &mut Vec<u8>) {
    let iso8601 = texts(wall_ms / 1000).iso8601;
    let (seconds, zone) = iso8601.split_at("2026-11-21T09:00:00".len());
    let mut fraction = *b".000";
    put(&mut fraction[1..], (wall_ms % 1000) as u32);
    for part in [seconds, &fraction, zone] {
        out.extend_from_slice(part);
    }
}

/// Appends the time of an error log line.
pub fn write_error(wall_ms: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&texts(wall_ms / 1000).error);
}

/// Appends the timestamp of RFC 3164 §4.1.2.
pub fn write_syslog(wall_ms: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&texts(wall_ms / 1000).syslog);
}

fn texts(second: u64) -> Texts {
    let known = TEXTS.get();
    if known.second == second {
        return known;
    }
    let t = clock::local_time(second as i64);
    let texts = Texts {
        second,
        local: local(&t),
        iso8601: iso8601(&t),
        error: error(&t),
        syslog: syslog(&t),
    };
    TEXTS.set(texts);
    texts
}

fn local(t: &LocalTime) -> [u8; LOCAL_BYTES] {
    let mut text = *b"00/Jan/0000:00:00:00 +0000";
    put(&mut text[0..2], t.day);
    text[3..6].copy_from_slice(month(t));
    put(&mut text[7..11], t.year.unsigned_abs());
    put_clock(&mut text[12..20], t);
    put_offset(&mut text[21..26], t);
    text
}

fn iso8601(t: &LocalTime) -> [u8; ISO8601_BYTES] {
    let mut text = *b"0000-00-00T00:00:00+00:00";
    put(&mut text[0..4], t.year.unsigned_abs());
    put(&mut text[5..7], t.month);
    put(&mut text[8..10], t.day);
    put_clock(&mut text[11..19], t);
    let mut offset = [0; 5];
    put_offset(&mut offset, t);
    text[19..22].copy_from_slice(&offset[..3]);
    text[23..25].copy_from_slice(&offset[3..]);
    text
}

fn error(t: &LocalTime) -> [u8; ERROR_BYTES] {
    let mut text = *b"0000/00/00 00:00:00";
    put(&mut text[0..4], t.year.unsigned_abs());
    put(&mut text[5..7], t.month);
    put(&mut text[8..10], t.day);
    put_clock(&mut text[11..19], t);
    text
}

fn syslog(t: &LocalTime) -> [u8; SYSLOG_BYTES] {
    let mut text = *b"Jan 00 00:00:00";
    text[0..3].copy_from_slice(month(t));
    put(&mut text[4..6], t.day);
    if t.day < 10 {
        text[4] = b' ';
    }
    put_clock(&mut text[7..15], t);
    text
}

fn month(t: &LocalTime) -> &'static [u8; 3] {
    MONTHS[(t.month as usize + 11) % 12]
}

fn put_clock(text: &mut [u8], t: &LocalTime) {
    put(&mut text[0..2], t.hour);
    put(&mut text[3..5], t.minute);
    put(&mut text[6..8], t.second);
}

fn put_offset(text: &mut [u8], t: &LocalTime) {
    text[0] = if t.offset_minutes < 0 { b'-' } else { b'+' };
    put(&mut text[1..3], t.offset_minutes.unsigned_abs() / 60);
    put(&mut text[3..5], t.offset_minutes.unsigned_abs() % 60);
}

/// Fills the text with the last digits of a number.
fn put(text: &mut [u8], mut number: u32) {
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_form_of_nginx() {
        let mut t = LocalTime {
            year: 2026,
            month: 11,
            day: 1,
            hour: 9,
            minute: 5,
            second: 7,
            weekday: 0,
            offset_minutes: 330,
        };
        assert_eq!(local(&t), *b"01/Nov/2026:09:05:07 +0530");
        assert_eq!(iso8601(&t), *b"2026-11-01T09:05:07+05:30");
        assert_eq!(error(&t), *b"2026/11/01 09:05:07");
        assert_eq!(syslog(&t), *b"Nov  1 09:05:07");
        t.day = 21;
        assert_eq!(syslog(&t), *b"Nov 21 09:05:07");
        t.offset_minutes = -210;
        assert_eq!(local(&t), *b"21/Nov/2026:09:05:07 -0330");
        assert_eq!(iso8601(&t), *b"2026-11-21T09:05:07-03:30");
    }

    #[test]
    fn milliseconds_stand_before_the_zone() {
        let (mut whole, mut with_ms) = (Vec::new(), Vec::new());
        write_iso8601(1_700_000_000_000, &mut whole);
        write_iso8601_ms(1_700_000_000_042, &mut with_ms);
        assert_eq!(with_ms.split_off(19)[..4], *b".042");
        assert_eq!(with_ms, whole[..19]);
    }

    #[test]
    fn the_text_follows_the_second() {
        let text = |ms| {
            let mut out = Vec::new();
            write_local(ms, &mut out);
            out
        };
        assert_eq!(text(1_700_000_000_000), text(1_700_000_000_999));
        assert_ne!(text(1_700_000_000_000), text(1_700_000_001_000));
    }
}
