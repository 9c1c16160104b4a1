//! Escapes: what follows a backslash (check_escape of pcre2_compile.c).

use super::{GROUPS, Reader, Wrong};

pub const NO_GROUP: &str = "reference to non-existent subpattern";
pub const NO_NAME: &str = "\\k is not followed by a braced, angle-bracketed, or quoted name";
pub const NO_NUMBER: &str =
    "\\g is not followed by a braced, angle-bracketed, or quoted name/number or by a plain number";
const NOT_SUPPORTED: &str = "PCRE2 does not support \\F, \\L, \\l, \\N{name}, \\U, or \\u";
const TOO_LARGE: &str = "character code point value in \\x{} or \\o{} is too large";
const NO_HEX: &str = "non-hex character in \\x{} (closing brace missing?)";
const NO_DIGITS: &str = "digits missing in \\x{} or \\o{} or \\N{U+}";

/// What an escape is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// A character, or a byte.
    Char(u32),
    /// Some kind of characters, as `\d`.
    Kind(u8),
    /// A place, as `\b`: nothing to be repeated.
    Place(u8),
    /// A back-reference by number.
    Group(u64),
    /// One by name, or a call, of which `\k` or `\g` is read.
    Named,
    /// `\p`, its name not yet read.
    Property,
}

/// Reads an escape behind its backslash.
pub fn escape(reader: &mut Reader, groups: u64, in_class: bool) -> Result<Escape, Wrong> {
    let Some(c) = reader.next() else { return Err(reader.wrong("\\ at end of pattern")) };
    Ok(match c {
        b'a' => Escape::Char(7),
        b'e' => Escape::Char(0x1b),
        b'f' => Escape::Char(0x0c),
        b'n' => Escape::Char(b'\n'.into()),
        b'r' => Escape::Char(b'\r'.into()),
        b't' => Escape::Char(b'\t'.into()),
        b'c' => Escape::Char(control(reader)?),
        b'o' => Escape::Char(octal(reader)?),
        b'x' => Escape::Char(hexadecimal(reader)?),
        b'0' => Escape::Char(short_octal(reader, c)?),
        b'1'..=b'9' => numbered(reader, groups, c, in_class)?,
        b'g' if in_class => Escape::Char(c.into()),
        b'g' => relative(reader)?,
        b'k' => Escape::Named,
        b'p' | b'P' => Escape::Property,
        b'N' => not_a_name(reader)?,
        b'C' | b'D' | b'd' | b'H' | b'h' | b'R' | b'S' | b's' | b'V' | b'v' | b'W' | b'w'
        | b'X' => Escape::Kind(c),
        b'b' | b'B' | b'A' | b'G' | b'K' | b'Z' | b'z' => Escape::Place(c),
        b'F' | b'L' | b'l' | b'U' | b'u' => return Err(reader.wrong(NOT_SUPPORTED)),
        c if c.is_ascii_alphabetic() => {
            return Err(reader.back("unrecognized character follows \\"));
        }
        c => Escape::Char(character(reader, c)),
    })
}

/// The character that begins with this byte.
pub fn character(reader: &mut Reader, first: u8) -> u32 {
    if !reader.utf || first.is_ascii() {
        return first.into();
    }
    let more = first.leading_ones() as usize - 1;
    let first = u32::from(first & (0x3f >> more));
    (0..more).fold(first, |c, _| c << 6 | u32::from(reader.next().unwrap_or(0) & 0x3f))
}

fn control(reader: &mut Reader) -> Result<u32, Wrong> {
    match reader.peek() {
        None => Err(reader.wrong("\\c at end of pattern")),
        Some(c @ b' '..=b'~') => {
            reader.at += 1;
            Ok(u32::from(c.to_ascii_uppercase()) ^ 0x40)
        }
        Some(_) => Err(reader.wrong("\\c must be followed by a printable ASCII character")),
    }
}

/// `\o{…}`.
fn octal(reader: &mut Reader) -> Result<u32, Wrong> {
    const MISSING: &str = "missing opening brace after \\o";
    match reader.peek() {
        Some(b'{') => reader.at += 1,
        Some(_) => return Err(reader.wrong(MISSING)),
        None => return Err(reader.back(MISSING)),
    }
    braced(reader, 8, "non-octal character in \\o{} (closing brace missing?)")
}

/// `\x{…}`, or up to two digits.
fn hexadecimal(reader: &mut Reader) -> Result<u32, Wrong> {
    if reader.take(b"{") {
        return braced(reader, 16, NO_HEX);
    }
    let mut number = 0;
    for _ in 0..2 {
        let Some(digit) = reader.peek().and_then(|c| char::from(c).to_digit(16)) else { break };
        reader.at += 1;
        number = number * 16 + digit;
    }
    Ok(number)
}

/// Digits behind a brace.
fn braced(reader: &mut Reader, radix: u32, no_digit: &'static str) -> Result<u32, Wrong> {
    if matches!(reader.peek(), None | Some(b'}')) {
        return Err(reader.wrong(NO_DIGITS));
    }
    let max = if reader.utf { 0x10_ffff } else { 0xff };
    let mut number = 0;
    while let Some(digit) = reader.peek().and_then(|c| char::from(c).to_digit(radix)) {
        reader.at += 1;
        number = number * radix + digit;
        if number > max {
            while reader.peek().is_some_and(|c| char::from(c).is_digit(radix)) {
                reader.at += 1;
            }
            return Err(reader.wrong(TOO_LARGE));
        }
    }
    match reader.peek() {
        Some(b'}') => {}
        Some(_) => return Err(reader.wrong(no_digit)),
        None => return Err(reader.back(no_digit)),
    }
    if (0xd800..=0xdfff).contains(&number) {
        return Err(reader.wrong("disallowed Unicode code point (>= 0xd800 && <= 0xdfff)"));
    }
    reader.at += 1;
    Ok(number)
}

/// Up to three octal digits.
fn short_octal(reader: &mut Reader, first: u8) -> Result<u32, Wrong> {
    let mut number = u32::from(first - b'0');
    for _ in 0..2 {
        let Some(digit @ b'0'..=b'7') = reader.peek() else { break };
        reader.at += 1;
        number = number * 8 + u32::from(digit - b'0');
    }
    if number > 0xff && !reader.utf {
        return Err(reader.wrong("octal value is greater than \\377 in 8-bit non-UTF-8 mode"));
    }
    Ok(number)
}

/// `\1` and the like: a group, or an octal number, or a digit.
fn numbered(reader: &mut Reader, groups: u64, first: u8, in_class: bool) -> Result<Escape, Wrong> {
    if !in_class {
        let behind_first = reader.at;
        reader.at -= 1;
        let number =
            reader.number(i32::MAX as u64 / 10 - 1, "subpattern number is too big")?.unwrap_or(0);
        if number < 10 || first >= b'8' || number <= groups {
            if number > GROUPS {
                return Err(reader.wrong("subpattern number is too big"));
            }
            return Ok(Escape::Group(number));
        }
        reader.at = behind_first;
    }
    match first {
        b'8' | b'9' => Ok(Escape::Char(first.into())),
        _ => Ok(Escape::Char(short_octal(reader, first)?)),
    }
}

/// `\g1`, `\g-1`, `\g{1}`; else the name of a group follows, or a call.
fn relative(reader: &mut Reader) -> Result<Escape, Wrong> {
    match reader.peek() {
        Some(b'<' | b'\'') => return Ok(Escape::Named),
        None => return Err(reader.wrong(NO_NUMBER)),
        Some(_) => {}
    }
    // What is wrong within braces is wrong at the first of them.
    let mut inner = reader.clone();
    let in_braces = inner.take(b"{");
    let at = |wrong: Wrong| if in_braces { reader.wrong(wrong.cause) } else { wrong };
    let Some(number) = inner.group_number().map_err(at)? else {
        return if in_braces { Ok(Escape::Named) } else { Err(reader.wrong(NO_NUMBER)) };
    };
    if in_braces && !inner.take(b"}") {
        return Err(reader.wrong(NO_NUMBER));
    }
    *reader = inner;
    if number == 0 { Err(reader.wrong(NO_GROUP)) } else { Ok(Escape::Group(number)) }
}

/// `\N`, or a character by its number (`\N{U+41}`).
fn not_a_name(reader: &mut Reader) -> Result<Escape, Wrong> {
    let mut inner = reader.clone();
    if !inner.take(b"{") {
        return Ok(Escape::Kind(b'N'));
    }
    if inner.repeat_counts().map_err(|wrong| reader.wrong(wrong.cause))? {
        return Ok(Escape::Kind(b'N'));
    }
    if !inner.take(b"U+") {
        return Err(reader.wrong(NOT_SUPPORTED));
    }
    if !reader.utf {
        return Err(reader.wrong("\\N{U+dddd} is supported only in Unicode (UTF) mode"));
    }
    *reader = inner;
    Ok(Escape::Char(braced(reader, 16, NO_HEX)?))
}
