//! Looks for bytes in texts that are short, mostly, eight at once: a search by vectors costs more to begin
//! with than one of a few words. Hot path: no call, no table.
//!
//! *Invariant:* where bytes are; what they mean is the caller's.

/// So many words are near: behind them vectors pay.
const NEAR: usize = 8;

const EACH: u64 = u64::from_le_bytes([1; 8]);
const HIGH: u64 = u64::from_le_bytes([0x80; 8]);

/// The highest bit of each byte that is below `bound`, which is 128 at the most. The first of these bits is
/// right, and that there are none is; others may be one too many.
#[inline(always)]
fn below(word: u64, bound: u8) -> u64 {
    // The subtraction borrows from a byte's highest bit where it is too low, unless it was set.
    word.wrapping_sub(EACH * u64::from(bound)) & !word & HIGH
}

/// The same of those that are `byte`.
#[inline(always)]
fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ (EACH * u64::from(byte)), 1)
}

/// Whether `word` finds something in eight of the bytes, or, where there are fewer, `byte` in one.
#[inline(always)]
fn any(bytes: &[u8], word: impl Fn(u64) -> u64, byte: impl Fn(u8) -> bool) -> bool {
    match bytes.last_chunk() {
        // The last eight are looked at again.
        Some(last) => {
            let word = |eight: &[u8; 8]| word(u64::from_le_bytes(*eight));
            bytes.as_chunks().0.iter().fold(word(last), |seen, eight| seen | word(eight)) != 0
        }
        None => bytes.iter().any(|ch| byte(*ch)),
    }
}

/// Whether a byte is below 0x0e: CR, LF and NUL are, and hardly ever another.
#[inline]
pub(crate) fn may_break(bytes: &[u8]) -> bool {
    any(bytes, |word| below(word, 0x0e), |ch| ch < 0x0e)
}

/// Whether a byte is below 0x0e or a colon.
#[inline]
pub(crate) fn may_break_name(bytes: &[u8]) -> bool {
    any(bytes, |word| below(word, 0x0e) | equal(word, b':'), |ch| ch < 0x0e || ch == b':')
}

/// Where the first CR, LF or NUL is.
#[inline]
pub fn line_end(bytes: &[u8]) -> Option<usize> {
    let (words, tail) = bytes.as_chunks();
    for (at, eight) in words.iter().take(NEAR).enumerate() {
        let low = below(u64::from_le_bytes(*eight), 0x0e);
        if low != 0 {
            let at = at * 8 + low.trailing_zeros() as usize / 8;
            return if is_line_end(bytes[at]) { Some(at) } else { far_line_end(bytes, at) };
        }
    }
    if words.len() > NEAR {
        return far_line_end(bytes, NEAR * 8);
    }
    let at = tail.iter().position(|ch| is_line_end(*ch))?;
    Some(words.len() * 8 + at)
}

#[inline(never)]
fn far_line_end(bytes: &[u8], from: usize) -> Option<usize> {
    Some(from + memchr::memchr3(b'\r', b'\n', 0, &bytes[from..])?)
}

fn is_line_end(ch: u8) -> bool {
    matches!(ch, b'\r' | b'\n' | 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_wherever_they_are() {
        for len in 0..90 {
            assert_eq!(line_end(&vec![0xff; len]), None);
            for at in 0..len {
                for ch in 0..=255 {
                    let mut text = vec![b'x'; len];
                    text[at] = ch;
                    let ends = is_line_end(ch);
                    assert_eq!(line_end(&text), ends.then_some(at), "{ch:#x} at {at} of {len}");
                    assert_eq!(may_break(&text), ch < 0x0e, "{ch:#x} at {at} of {len}");
                    let breaks = ch < 0x0e || ch == b':';
                    assert_eq!(may_break_name(&text), breaks, "{ch:#x} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn the_first_line_end_counts_whatever_stands_around_it() {
        // All that a borrow could be mistaken for: what is just above and below the bound.
        let around = [0x01, 0x09, 0x0b, 0x0e, 0x7f, 0x80, 0x8e, 0xff];
        for before in around {
            for after in around {
                for at in 0..40 {
                    let mut text = vec![before; at];
                    text.extend([b'\r', after, b'\n']);
                    text.resize(41 + at, after);
                    assert_eq!(line_end(&text), Some(at), "{before:#x}, {after:#x}, {at}");
                }
            }
        }
    }
}
