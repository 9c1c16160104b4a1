//! Bytes of clients, files and other servers as lines of the error log show them: nginx copies them, and
//! messages here are text (`fmt`), which not all bytes are.
//!
//! A byte that is no text goes through a message as a character of its own, from the end of Unicode's
//! last private plane, and becomes the byte again where the line is written. A character from there that
//! really came is taken for its four bytes, so that nothing is lost.
//!
//! Invariant: what is shown comes out of [`restore`] as it was, but for control characters.

use std::{fmt, os::unix::ffi::OsStrExt, path::Path};

/// Bytes, to be written to an error log.
///
/// DIFFERS(error-log-controls): control characters are escaped, as `\x1B`; nginx writes them, and a
/// client can steer the terminal of whoever reads the log (CVE-2009-4487).
#[derive(Clone, Copy)]
pub struct Shown<'a>(pub &'a [u8]);

impl<'a> Shown<'a> {
    /// A path.
    pub fn path(path: &'a Path) -> Shown<'a> {
        Shown(path.as_os_str().as_bytes())
    }
}

/// The character for the byte 0; only 0x80 to 0xff are ever needed.
const FIRST: u32 = 0x10_ff00;
/// What those characters begin with in UTF-8; the third byte is one of these, the fourth any that follows.
const LEAD: [u8; 2] = [0xf4, 0x8f];
const THIRD: [u8; 2] = [0xbe, 0xbf];

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            let mut rest = chunk.valid();
            while let Some(at) = rest.find(|ch: char| ch.is_control() || is_stand_in(ch)) {
                let (before, odd) = rest.split_at(at);
                f.write_str(before)?;
                let ch = odd.chars().next().unwrap_or_default();
                let (text, after) = odd.split_at(ch.len_utf8());
                match ch {
                    // This is dealt with where the line is written.
                    '\n' => f.write_str(text)?,
                    _ if ch.is_control() => write!(f, "\\x{:02X}", ch as u32)?,
                    _ => stand_in(f, text.as_bytes())?,
                }
                rest = after;
            }
            f.write_str(rest)?;
            stand_in(f, chunk.invalid())?;
        }
        Ok(())
    }
}

fn is_stand_in(ch: char) -> bool {
    ch as u32 >= FIRST + 0x80
}

fn stand_in(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for byte in bytes {
        let ch = char::from_u32(FIRST + u32::from(*byte)).unwrap_or(char::REPLACEMENT_CHARACTER);
        write!(f, "{ch}")?;
    }
    Ok(())
}

/// Puts the bytes of a line back that characters stand for, from `start` on.
pub(super) fn restore(line: &mut Vec<u8>, start: usize) {
    if memchr::memmem::find(&line[start..], &LEAD).is_none() {
        return;
    }
    let (mut from, mut to) = (start, start);
    while from < line.len() {
        let is_one = line[from..].starts_with(&LEAD)
            && line.get(from + 2).is_some_and(|third| THIRD.contains(third));
        match line.get(from + 3) {
            Some(fourth) if is_one => {
                line[to] = fourth | (line[from + 2] & 1) << 6;
                from += 4;
            }
            _ => {
                line[to] = line[from];
                from += 1;
            }
        }
        to += 1;
    }
    line.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_comes_out_as_it_was_but_for_controls() {
        let all: Vec<u8> = (0x80..=0xff).collect();
        let table: [(&[u8], &[u8]); 8] = [
            (b"", b""),
            (b"/a b", b"/a b"),
            (&all, &all),
            (b"\xff/\xc3\xa9\xc3/\xe2\x82\xac", b"\xff/\xc3\xa9\xc3/\xe2\x82\xac"),
            // U+10FF80, U+10FFFF, and one that stands for nothing.
            (b"\xf4\x8f\xbe\x80\xf4\x8f\xbf\xbf", b"\xf4\x8f\xbe\x80\xf4\x8f\xbf\xbf"),
            (b"\xf4\x8f\xbd\xbf\xf4\x8f", b"\xf4\x8f\xbd\xbf\xf4\x8f"),
            (b"\x1b[2J\x00\x7f\xc2\x9b", b"\\x1B[2J\\x00\\x7F\\x9B"),
            (b"a\r\nb", b"a\\x0D\nb"),
        ];
        for (bytes, want) in table {
            let mut line = format!("{}", Shown(bytes)).into_bytes();
            restore(&mut line, 0);
            assert_eq!(line, want, "{}", bytes.escape_ascii());
        }
    }
}
