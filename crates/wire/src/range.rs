//! `Range: bytes=…`: ngx_http_range_header_filter's test and ngx_http_range_parse, byte for byte.
//!
//! *Invariant:* the ranges returned lie within the representation and sum up to no more than it
//! (RFC 9110 §14.2; CVE-2011-3192, CVE-2017-7529).

/// What a `Range` header asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeResult {
    /// Ignore the header and send the whole representation.
    Whole,
    /// Send these, each from its first byte to after its last.
    Ranges(Vec<(u64, u64)>),
    /// Answer 416.
    NotSatisfiable,
}

/// Parses the value of a `Range` header for a representation of `size` bytes. More than
/// `max_ranges` ranges are ignored; 0 switches ranges off.
pub fn parse(value: &[u8], size: u64, max_ranges: usize) -> RangeResult {
    // "bytes=" and at least one byte more.
    let (Some(unit), Some(mut text)) = (value.get(..6), value.get(6..)) else {
        return RangeResult::Whole;
    };
    let Ok(size) = i64::try_from(size) else { return RangeResult::Whole };
    if max_ranges == 0 || text.is_empty() || !unit.eq_ignore_ascii_case(b"bytes=") {
        return RangeResult::Whole;
    }
    let mut ranges = Vec::new();
    let mut total = 0i64;
    loop {
        let Some((start, end)) = one(&mut text, size) else { return RangeResult::NotSatisfiable };
        if start < end {
            let Some(sum) = total.checked_add(end - start) else {
                return RangeResult::NotSatisfiable;
            };
            total = sum;
            if ranges.len() == max_ranges {
                return RangeResult::Whole;
            }
            ranges.push((start as u64, end as u64));
        } else if start == 0 {
            return RangeResult::Whole;
        }
        match text {
            [b',', rest @ ..] => text = rest,
            _ => break,
        }
    }
    match ranges.len() {
        0 => RangeResult::NotSatisfiable,
        _ if total > size => RangeResult::Whole,
        _ => RangeResult::Ranges(ranges),
    }
}

/// One range, up to a comma or the end; `None` if it is malformed. It may be empty.
fn one(text: &mut &[u8], size: i64) -> Option<(i64, i64)> {
    spaces(text);
    if let [b'-', rest @ ..] = *text {
        *text = rest;
        let suffix = number(text)?;
        at_end(text)?;
        return Some(((size - suffix).max(0), size));
    }
    let start = number(text)?;
    spaces(text);
    let [b'-', rest @ ..] = *text else { return None };
    *text = rest;
    spaces(text);
    if at_end(text).is_some() {
        return Some((start, size));
    }
    let last = number(text)?;
    at_end(text)?;
    // RFC 9110 §14.1.2: a last byte beyond the end means the end.
    Some((start, last.min(size - 1) + 1))
}

fn spaces(text: &mut &[u8]) {
    while let [b' ', rest @ ..] = *text {
        *text = rest;
    }
}

fn at_end(text: &mut &[u8]) -> Option<()> {
    spaces(text);
    matches!(text.first(), None | Some(b',')).then_some(())
}

fn number(text: &mut &[u8]) -> Option<i64> {
    let digits = text.iter().take_while(|ch| ch.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let mut number = 0i64;
    for &ch in &text[..digits] {
        number = number.checked_mul(10)?.checked_add(i64::from(ch - b'0'))?;
    }
    *text = &text[digits..];
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::RangeResult::{NotSatisfiable, Ranges, Whole};
    use super::*;

    #[test]
    fn ranges_are_read_as_nginx_reads_them() {
        let ranges = |list: &[(u64, u64)]| Ranges(list.to_vec());
        for (value, size, want) in [
            ("bytes=0-", 10, ranges(&[(0, 10)])),
            ("bytes=0-0", 10, ranges(&[(0, 1)])),
            ("BYTES=2-5", 10, ranges(&[(2, 6)])),
            ("bytes= 2 - 5 ", 10, ranges(&[(2, 6)])),
            ("bytes=5-99", 10, ranges(&[(5, 10)])),
            ("bytes=-3", 10, ranges(&[(7, 10)])),
            ("bytes=-99", 10, ranges(&[(0, 10)])),
            ("bytes=0-1,4-5", 10, ranges(&[(0, 2), (4, 6)])),
            ("bytes=0-1, -1", 10, ranges(&[(0, 2), (9, 10)])),
            ("bytes=0-4,2-6", 10, ranges(&[(0, 5), (2, 7)])),
            ("bytes=20-30,1-1", 10, ranges(&[(1, 2)])),
            ("bytes=0-9,0-0", 10, Whole),
            ("bytes=10-", 10, NotSatisfiable),
            ("bytes=10-20", 10, NotSatisfiable),
            ("bytes=5-4", 10, NotSatisfiable),
            ("bytes=0-0", 0, Whole),
            ("bytes=-0", 10, NotSatisfiable),
            ("bytes=-1", 0, Whole),
            ("bytes=1-", 0, NotSatisfiable),
            ("bytes=-9223372036854775807", 10, ranges(&[(0, 10)])),
            ("bytes=-9223372036854775808", 10, NotSatisfiable),
            ("bytes=0-9223372036854775807", 10, ranges(&[(0, 10)])),
            ("bytes=99999999999999999999-", 10, NotSatisfiable),
            ("bytes=a-", 10, NotSatisfiable),
            ("bytes=1", 10, NotSatisfiable),
            ("bytes=1-2x", 10, NotSatisfiable),
            ("bytes=-", 10, NotSatisfiable),
            ("bytes=1-2,", 10, NotSatisfiable),
            ("bytes=", 10, Whole),
            ("byte=0-1", 10, Whole),
            ("items=0-1", 10, Whole),
            ("", 10, Whole),
        ] {
            assert_eq!(parse(value.as_bytes(), size, usize::MAX), want, "{value} of {size}");
        }
    }

    #[test]
    fn more_ranges_than_max_ranges_are_ignored() {
        assert_eq!(parse(b"bytes=0-0,2-2", 10, 1), Whole);
        assert_eq!(parse(b"bytes=0-0,2-2", 10, 2), Ranges(vec![(0, 1), (2, 3)]));
        assert_eq!(parse(b"bytes=0-0", 10, 0), Whole);
    }

    #[test]
    fn the_sum_of_ranges_does_not_overflow() {
        let size = i64::MAX as u64;
        assert_eq!(parse(b"bytes=0-,0-", size, 9), NotSatisfiable);
        assert_eq!(parse(b"bytes=0-", u64::MAX, 9), Whole);
    }
}
