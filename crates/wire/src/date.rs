//! HTTP dates: ngx_parse_http_time, ngx_http_time, ngx_http_cookie_time (ngx_parse_time.c,
//! ngx_times.c). RFC 9110 §5.6.7.
//!
//! *Invariant:* no clock; seconds since the epoch come in and go out.

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
const WEEK: [&[u8; 3]; 7] = [b"Sun", b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat"];

/// The last second that is written: 9999-12-31 23:59:59.
pub const MAX_TIME: i64 = 253_402_300_799;

/// A moment in UTC, of the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Civil {
    pub year: i64,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    pub hour: u8,
    pub minute: u8,
    pub second: u8,
    /// 0 is Sunday.
    pub weekday: u8,
}

/// The civil date of `secs` since the epoch; times outside of the years 0 to 9999 are moved to
/// the nearer end, so that four digits always hold the year.
pub fn civil(secs: i64) -> Civil {
    let secs = secs.clamp(-62_167_219_200, MAX_TIME);
    let (days, rest) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years; a year begins in March, so that the leap day
    // is its last.
    let day = days + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    Civil {
        year: year + era * 400 + i64::from(month <= 2),
        month: month as u8,
        day: (of_year - (153 * shifted + 2) / 5 + 1) as u8,
        hour: (rest / 3600) as u8,
        minute: (rest / 60 % 60) as u8,
        second: (rest % 60) as u8,
        weekday: (days + 4).rem_euclid(7) as u8,
    }
}

/// Days since the epoch of a civil date; `day` may be out of its month.
pub fn days_from_civil(year: i64, month: u8, day: u8) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted = (i64::from(month) + 9) % 12;
    let of_year = (153 * shifted + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Seconds since the epoch of an HTTP date in any of the three forms:
/// `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT`, `Sun Nov  6 08:49:37 1994`.
/// As nginx, it does not look at the names of days and zones.
pub fn parse_http_time(value: &[u8]) -> Option<i64> {
    let sep = value.iter().position(|&ch| ch == b',' || ch == b' ')?;
    let spaces = value[sep + 1..].iter().take_while(|&&ch| ch == b' ').count();
    let rest = &value[sep + 1 + spaces..];
    if rest.len() < 18 {
        return None;
    }
    let mut text = Text(rest);
    let (year, month, day, time) = match value[sep] {
        b' ' => text.asctime()?,
        _ => text.day_first()?,
    };
    if day > month_length(year, month) {
        return None;
    }
    Some(days_from_civil(year, month, day) * 86_400 + time)
}

fn month_length(year: i64, month: u8) -> u8 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// The rest of a date.
struct Text<'a>(&'a [u8]);

type Parts = (i64, u8, u8, i64);

impl Text<'_> {
    /// RFC 1123 and RFC 850 dates, which begin with the day.
    fn day_first(&mut self) -> Option<Parts> {
        let day = self.digits(2)? as u8;
        let sep = self.byte()?;
        if sep != b' ' && sep != b'-' {
            return None;
        }
        let month = self.month()?;
        self.expect(sep)?;
        let year = match sep {
            b' ' => self.digits(4)?,
            _ => match self.digits(2)? {
                year if year < 70 => year + 2000,
                year => year + 1900,
            },
        };
        self.expect(b' ')?;
        Some((year, month, day, self.time()?))
    }

    /// asctime() dates, whose day may have one digit.
    fn asctime(&mut self) -> Option<Parts> {
        let month = self.month()?;
        self.byte()?;
        if self.0.first() == Some(&b' ') {
            self.byte()?;
        }
        let mut day = self.digits(1)?;
        if self.0.first() != Some(&b' ') {
            day = day * 10 + self.digits(1)?;
        }
        self.expect(b' ')?;
        let time = self.time()?;
        self.expect(b' ')?;
        Some((self.digits(4)?, month, day as u8, time))
    }

    fn time(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.expect(b':')?;
        let minute = self.digits(2)?;
        self.expect(b':')?;
        let second = self.digits(2)?;
        (hour < 24 && minute < 60 && second < 60).then_some(hour * 3600 + minute * 60 + second)
    }

    /// A month by the letters that nginx looks at.
    fn month(&mut self) -> Option<u8> {
        let (name, rest) = self.0.split_first_chunk::<3>()?;
        self.0 = rest;
        Some(match (name[0], name[1], name[2]) {
            (b'J', b'a', _) => 1,
            (b'J', _, b'n') => 6,
            (b'J', ..) => 7,
            (b'F', ..) => 2,
            (b'M', _, b'r') => 3,
            (b'M', ..) => 5,
            (b'A', b'p', _) => 4,
            (b'A', ..) => 8,
            (b'S', ..) => 9,
            (b'O', ..) => 10,
            (b'N', ..) => 11,
            (b'D', ..) => 12,
            _ => return None,
        })
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn expect(&mut self, ch: u8) -> Option<()> {
        (self.byte()? == ch).then_some(())
    }

    fn digits(&mut self, count: usize) -> Option<i64> {
        let mut number = 0;
        for _ in 0..count {
            let ch = self.byte()?;
            if !ch.is_ascii_digit() {
                return None;
            }
            number = number * 10 + i64::from(ch - b'0');
        }
        Some(number)
    }
}

/// Writes `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn write_http_time(secs: i64, out: &mut [u8; 29]) {
    let date = civil(secs);
    out.copy_from_slice(b"Sun, 06 Nov 1994 08:49:37 GMT");
    out[..3].copy_from_slice(WEEK[usize::from(date.weekday)]);
    two(&mut out[5..7], date.day);
    out[8..11].copy_from_slice(MONTHS[usize::from(date.month - 1)]);
    year(&mut out[12..16], date.year);
    clock(&mut out[17..25], &date);
}

/// Appends a cookie's date, `Thu, 31-Dec-37 23:55:55 GMT`; from 2038 on the year has four digits,
/// as in nginx.
pub fn write_cookie_time(secs: i64, out: &mut Vec<u8>) {
    let date = civil(secs);
    let mut text = *b"Thu, 31-Dec-2037 23:55:55 GMT";
    text[..3].copy_from_slice(WEEK[usize::from(date.weekday)]);
    two(&mut text[5..7], date.day);
    text[8..11].copy_from_slice(MONTHS[usize::from(date.month - 1)]);
    year(&mut text[12..16], date.year);
    clock(&mut text[17..25], &date);
    match date.year {
        2038.. => out.extend_from_slice(&text),
        _ => {
            out.extend_from_slice(&text[..12]);
            out.extend_from_slice(&text[14..]);
        }
    }
}

fn clock(out: &mut [u8], date: &Civil) {
    two(&mut out[..2], date.hour);
    two(&mut out[3..5], date.minute);
    two(&mut out[6..8], date.second);
}

fn two(out: &mut [u8], number: u8) {
    out.copy_from_slice(&[b'0' + number / 10, b'0' + number % 10]);
}

fn year(out: &mut [u8], year: i64) {
    two(&mut out[..2], (year / 100) as u8);
    two(&mut out[2..], (year % 100) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(secs: i64) -> String {
        let mut out = [0; 29];
        write_http_time(secs, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    fn cookie(secs: i64) -> String {
        let mut out = Vec::new();
        write_cookie_time(secs, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_three_forms_are_the_same_moment() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun Nov 06 08:49:37 1994",
            "x,06 Nov 1994 08:49:37",
        ] {
            assert_eq!(parse_http_time(text.as_bytes()), Some(784_111_777), "{text}");
        }
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in [
            "",
            "now",
            "Sun, 06 Nov 1994 08:49:3",
            "Sun, 06 Xov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 1900 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06 Nov 1994 08:49:60 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT  ",
            "Sun, 06 Nov-1994 08:49:37 GMT",
            "Sun Nov  6 08:49:37 199",
            "Sun, 06 Nov 199x 08:49:37 GMT",
        ] {
            assert_eq!(parse_http_time(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn two_digit_years_turn_at_70() {
        assert_eq!(parse_http_time(b"Thu, 01-Jan-70 00:00:00 GMT"), Some(0));
        assert_eq!(parse_http_time(b"Tue, 01-Jan-69 00:00:00 GMT"), Some(3_124_224_000));
    }

    #[test]
    fn dates_are_written_and_read_back() {
        for (secs, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (-1, "Wed, 31 Dec 1969 23:59:59 GMT"),
            (MAX_TIME, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(http(secs), text);
            assert_eq!(parse_http_time(text.as_bytes()), Some(secs), "{text}");
        }
        assert_eq!(http(i64::MAX), http(MAX_TIME));
        assert_eq!(http(i64::MIN), "Sat, 01 Jan 0000 00:00:00 GMT");
    }

    #[test]
    fn cookies_have_two_digit_years_up_to_2037() {
        assert_eq!(cookie(2_145_916_555), "Thu, 31-Dec-37 23:55:55 GMT");
        assert_eq!(cookie(2_145_916_800), "Fri, 01-Jan-2038 00:00:00 GMT");
    }

    #[test]
    fn every_day_of_a_cycle_comes_back() {
        let mut last = 6;
        for day in -146_097..146_097i64 {
            let date = civil(day * 86_400);
            assert_eq!(days_from_civil(date.year, date.month, date.day), day);
            assert!(day == -146_097 || date.weekday == (last + 1) % 7);
            last = date.weekday;
        }
    }
}
