//! Classes: what is between brackets.

use super::{
    Reader, Wrong,
    escape::{Escape, character, escape},
};

const RANGE: &str = "invalid range in character class";
const ESCAPE: &str = "escape sequence is invalid in character class";
const COLLATING: &str = "POSIX collating elements are not supported";

/// Names that PCRE2 knows.
const NAMES: &[&[u8]] = &[
    b"alpha", b"lower", b"upper", b"alnum", b"ascii", b"blank", b"cntrl", b"digit", b"graph",
    b"print", b"punct", b"space", b"word", b"xdigit",
];

/// What may come behind what was read.
#[derive(Clone, Copy)]
enum Range {
    No,
    /// A minus.
    Begun(u32),
    /// The end of a range.
    Open(u32),
}

/// Reads a class.
pub struct Class<'r, 'p> {
    pub reader: &'r mut Reader<'p>,
    /// Whether blanks are passed over: `(?xx)`.
    pub blanks: bool,
}

impl Class<'_, '_> {
    /// Behind its bracket, to the one that ends it.
    pub fn read(&mut self) -> Result<(), Wrong> {
        let reader = &mut *self.reader;
        if reader.take(b"[:<:]]") || reader.take(b"[:>:]]") {
            return Ok(());
        }
        if let Some(kind @ (b':' | b'.' | b'=')) = reader.peek()
            && posix(reader).is_some()
        {
            return Err(match kind {
                b':' => reader.back("POSIX named classes are supported only within a class"),
                _ => reader.back(COLLATING),
            });
        }
        let mut c = self.first()?;
        let mut range = Range::No;
        loop {
            range = self.member(c, range)?;
            c = self.next()?;
            if c == b']' {
                return Ok(());
            }
        }
    }

    fn next(&mut self) -> Result<u8, Wrong> {
        let missing = "missing terminating ] for character class";
        let c = self.reader.next();
        c.ok_or_else(|| self.reader.wrong(missing))
    }

    /// The first member, behind `^`: a bracket would be one.
    fn first(&mut self) -> Result<u8, Wrong> {
        let mut negated = false;
        loop {
            match self.next()? {
                b'\\' if self.reader.take(b"E") || self.reader.take(b"Q\\E") => {
                    if self.reader.peek().is_none() {
                        return Err(self.reader.wrong("\\ at end of pattern"));
                    }
                }
                b' ' | b'\t' if self.blanks => {}
                b'^' if !negated => negated = true,
                c => return Ok(c),
            }
        }
    }

    fn member(&mut self, c: u8, range: Range) -> Result<Range, Wrong> {
        match c {
            b' ' | b'\t' if self.blanks => Ok(range),
            b'[' if posix(self.reader).is_some() => self.posix(range),
            b'-' if let Range::Begun(from) = range => Ok(Range::Open(from)),
            b'\\' => self.escape(range),
            c => {
                let c = character(self.reader, c);
                self.literal(c, range)
            }
        }
    }

    fn literal(&mut self, c: u32, range: Range) -> Result<Range, Wrong> {
        match range {
            Range::Open(from) if from > c => {
                Err(self.reader.back("range out of order in character class"))
            }
            Range::Open(_) => Ok(Range::No),
            _ => Ok(Range::Begun(c)),
        }
    }

    /// `[:alpha:]`, behind its bracket.
    fn posix(&mut self, range: Range) -> Result<Range, Wrong> {
        let reader = &mut *self.reader;
        let Some(name) = posix(reader) else { return Ok(range) };
        if let Range::Open(_) = range {
            return Err(reader.wrong(RANGE));
        }
        if reader.peek() != Some(b':') {
            return Err(reader.back(COLLATING));
        }
        let end = reader.at + 1 + name.len() + 2;
        reader.at += 1 + usize::from(name.starts_with(b"^"));
        if !NAMES.contains(&name.strip_prefix(b"^").unwrap_or(name)) {
            return Err(reader.wrong("unknown POSIX class name"));
        }
        reader.at = end;
        self.no_range_begins()
    }

    /// A kind of characters cannot begin a range: a minus stands at the end.
    fn no_range_begins(&mut self) -> Result<Range, Wrong> {
        match self.reader.rest() {
            [b'-', next, ..] if *next != b']' => Err(self.reader.wrong(RANGE)),
            _ => Ok(Range::No),
        }
    }

    fn escape(&mut self, range: Range) -> Result<Range, Wrong> {
        if self.reader.take(b"E") {
            return Ok(range);
        }
        if self.reader.take(b"Q") {
            return self.quoted(range);
        }
        let groups = self.reader.groups;
        let escape = escape(self.reader, groups, true)?;
        match escape {
            Escape::Char(c) => return self.literal(c, range),
            Escape::Place(b'b') => return self.literal(8, range),
            Escape::Place(b'B') | Escape::Kind(b'R' | b'X') => {
                return Err(self.reader.back(ESCAPE));
            }
            _ => {}
        }
        if let Range::Open(_) = range {
            return Err(self.reader.wrong(RANGE));
        }
        match escape {
            Escape::Kind(b'N') => {
                return Err(self.reader.wrong("\\N is not supported in a class"));
            }
            Escape::Kind(kind) if kind != b'C' => {}
            Escape::Property => self.reader.property()?,
            _ => return Err(self.reader.back(ESCAPE)),
        }
        self.no_range_begins()
    }

    /// `\Q…\E`, behind `\Q`: all of it as it stands.
    fn quoted(&mut self, mut range: Range) -> Result<Range, Wrong> {
        loop {
            if self.reader.take(b"\\E") {
                return Ok(range);
            }
            let c = self.next()?;
            let c = character(self.reader, c);
            range = self.literal(c, range)?;
        }
    }
}

/// The name in `[:name:]`, `[.name.]` or `[=name=]`, behind the bracket (check_posix_syntax).
fn posix<'p>(reader: &Reader<'p>) -> Option<&'p [u8]> {
    let rest = reader.rest();
    let kind = *rest.first()?;
    if !matches!(kind, b':' | b'.' | b'=') {
        return None;
    }
    let mut at = 1;
    while let [a, b] = *rest.get(at..at + 2)? {
        match (a, b) {
            (b'\\', b']' | b'\\') => at += 1,
            (b']', _) => return None,
            (b'[', b) if b == kind => return None,
            (a, b']') if a == kind => return Some(&rest[1..at]),
            _ => {}
        }
        at += 1;
    }
    None
}
