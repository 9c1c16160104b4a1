//! Reads a pattern as PCRE2 does (parse_regex of pcre2_compile.c), and tells what PCRE2 finds wrong with
//! it, and where: the engines take patterns that it refuses, and have words of their own.
//!
//! Leaves out what no engine here runs: behind a verb (`(*SKIP)`) or a condition (`(?(1)…)`) nothing is
//! read. Leaves to the engines: the names of properties, and the lengths of look-behinds.
//!
//! Invariant: what PCRE2 takes passes.

use std::collections::HashMap;

use self::{
    class::Class,
    escape::{Escape, escape},
};

mod class;
mod escape;
#[cfg(test)]
mod tests;

/// What is wrong with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The cause, in PCRE2's words.
    pub cause: &'static str,
    /// How many bytes it had read.
    pub at: usize,
}

/// PCRE2's bounds: MAX_REPEAT_COUNT, MAX_GROUP_NUMBER, MAX_NAME_SIZE, PARENS_NEST_LIMIT.
const REPEATS: u64 = 65_535;
const GROUPS: u64 = 65_535;
const NAME: usize = 32;
const NESTED: usize = 250;

const MISPLACED: &str =
    "\\K is not allowed in lookarounds (but see PCRE2_EXTRA_ALLOW_LOOKAROUND_BSK)";

/// Reads a pattern.
///
/// Errors: the first thing that is wrong with it.
pub fn check(pattern: &[u8]) -> Result<(), Wrong> {
    let mut reader = Reader { bytes: pattern, at: 0, utf: false, groups: 0 };
    if !reader.verbs()? {
        return Ok(());
    }
    let mut check = Check {
        reader,
        options: Options::default(),
        open: Vec::new(),
        names: HashMap::new(),
        references: Vec::new(),
        last: Last::Nothing,
        misplaced: false,
    };
    match check.pattern()? {
        End::Read => check.references(),
        End::Foreign => Ok(()),
    }
}

/// Whether the whole pattern was read.
enum End {
    Read,
    /// From here on, it says what no engine here runs.
    Foreign,
}

/// Options that matter to the reading.
#[derive(Clone, Copy, Default)]
struct Options {
    extended: bool,
    /// `(?xx)`: blanks in classes do not count.
    more: bool,
    no_capture: bool,
    same_names: bool,
    /// Within a look-around, where `\K` must not be.
    looks_around: bool,
}

/// What a quantifier would follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Nothing,
    Item,
    /// Behind which there may be `+` or `?`.
    Quantifier,
}

/// What a reference names.
enum Reference<'p> {
    Number(u64),
    Name(&'p [u8]),
}

struct Check<'p> {
    reader: Reader<'p>,
    options: Options,
    /// The options that hold again behind each open parenthesis.
    open: Vec<Options>,
    names: HashMap<&'p [u8], u64>,
    /// Those to groups, and how far was read by then: they may be behind.
    references: Vec<(Reference<'p>, usize)>,
    last: Last,
    /// There is a `\K` in a look-around.
    misplaced: bool,
}

impl<'p> Check<'p> {
    fn pattern(&mut self) -> Result<End, Wrong> {
        while let Some(c) = self.reader.next() {
            if self.is_skipped(c)? {
                continue;
            }
            let last = std::mem::replace(&mut self.last, Last::Item);
            match c {
                b'\\' => self.escape()?,
                b'^' | b'$' | b'|' => self.last = Last::Nothing,
                b'[' => {
                    Class { reader: &mut self.reader, blanks: self.options.more }.read()?;
                }
                b'(' => {
                    self.last = Last::Nothing;
                    if let End::Foreign = self.parenthesis()? {
                        return Ok(End::Foreign);
                    }
                }
                b')' => {
                    let Some(options) = self.open.pop() else {
                        return Err(self.reader.back("unmatched closing parenthesis"));
                    };
                    self.options = options;
                }
                b'+' | b'?' if last == Last::Quantifier => self.last = Last::Nothing,
                b'*' | b'+' | b'?' => self.quantifier(last)?,
                b'{' if self.reader.repeat_counts()? => self.quantifier(last)?,
                _ => {}
            }
        }
        if !self.open.is_empty() {
            return Err(self.reader.wrong("missing closing parenthesis"));
        }
        if self.misplaced {
            return Err(self.reader.wrong(MISPLACED));
        }
        Ok(End::Read)
    }

    /// Whether this is passed over, and with it what belongs to it: it changes nothing for a quantifier
    /// behind it.
    fn is_skipped(&mut self, c: u8) -> Result<bool, Wrong> {
        let reader = &mut self.reader;
        match c {
            b'\\' if reader.take(b"E") => Ok(true),
            b'\\' if reader.take(b"Q") => {
                if reader.quoted() {
                    self.last = Last::Item;
                }
                Ok(true)
            }
            b' ' | b'\t'..=b'\r' if self.options.extended => Ok(true),
            b'#' if self.options.extended => {
                while reader.next().is_some_and(|c| c != b'\n') {}
                Ok(true)
            }
            b'(' if reader.take(b"?#") => loop {
                match reader.next() {
                    Some(b')') => return Ok(true),
                    Some(_) => {}
                    None => return Err(reader.wrong("missing ) after (?# comment")),
                }
            },
            _ => Ok(false),
        }
    }

    fn quantifier(&mut self, last: Last) -> Result<(), Wrong> {
        if last != Last::Item {
            return Err(self.reader.back("quantifier does not follow a repeatable item"));
        }
        self.last = Last::Quantifier;
        Ok(())
    }

    fn escape(&mut self) -> Result<(), Wrong> {
        let groups = self.reader.groups;
        match escape(&mut self.reader, groups, false)? {
            Escape::Char(_) | Escape::Kind(_) => {}
            Escape::Group(number) => {
                // check_escape has read all of it; the offset is that before its last byte.
                let at = self.reader.at - 1;
                self.references.push((Reference::Number(number), at));
            }
            Escape::Place(c) => {
                self.last = Last::Nothing;
                self.misplaced |= c == b'K' && self.options.looks_around;
            }
            Escape::Named => self.named_reference()?,
            Escape::Property => self.reader.property()?,
        }
        Ok(())
    }

    /// `\k{n}`, `\k<n>`, `\k'n'`, `\g{n}`; `\g<n>` and `\g'n'`, which are recursion.
    fn named_reference(&mut self) -> Result<(), Wrong> {
        let reader = &mut self.reader;
        let calls = reader.bytes[reader.at - 1] == b'g';
        let end = match reader.peek() {
            Some(b'<') => b'>',
            Some(b'\'') => b'\'',
            Some(b'{') if !calls || reader.bytes[reader.at - 1] == b'g' => b'}',
            _ if calls => return Err(reader.wrong(escape::NO_NUMBER)),
            _ => return Err(reader.wrong(escape::NO_NAME)),
        };
        if calls && end != b'}' {
            let mut number = reader.clone();
            number.at += 1;
            if let Some(group) = number.group_number()? {
                if number.peek() != Some(end) {
                    return Err(reader.wrong(escape::NO_NUMBER));
                }
                *reader = number;
                let at = reader.at;
                reader.at += 1;
                if group != 0 {
                    self.references.push((Reference::Number(group), at));
                }
                return Ok(());
            }
        }
        let (name, at) = reader.name(end)?;
        self.references.push((Reference::Name(name), at));
        Ok(())
    }

    fn parenthesis(&mut self) -> Result<End, Wrong> {
        let reader = &mut self.reader;
        match reader.peek() {
            None => return Err(reader.wrong("missing closing parenthesis")),
            Some(b'*') => return Ok(End::Foreign),
            Some(b'?') => {
                reader.at += 1;
                return self.special_group();
            }
            Some(_) => {}
        }
        if !self.options.no_capture {
            self.capture()?;
        }
        self.open(self.options)?;
        Ok(End::Read)
    }

    fn capture(&mut self) -> Result<(), Wrong> {
        if self.reader.groups >= GROUPS {
            return Err(self.reader.wrong("too many capturing groups (maximum 65535)"));
        }
        self.reader.groups += 1;
        Ok(())
    }

    fn open(&mut self, after: Options) -> Result<(), Wrong> {
        if self.open.len() >= NESTED {
            return Err(self.reader.wrong("parentheses are too deeply nested"));
        }
        self.open.push(after);
        Ok(())
    }

    /// Behind `(?`.
    fn special_group(&mut self) -> Result<End, Wrong> {
        let reader = &mut self.reader;
        let Some(kind) = reader.peek() else {
            return Err(reader.wrong("missing closing parenthesis"));
        };
        let next = reader.bytes.get(reader.at + 1).copied();
        match (kind, next) {
            (b'(' | b'C', _) => return Ok(End::Foreign),
            (b':' | b'|' | b'>', _) => {
                reader.at += 1;
                self.open(self.options)?;
            }
            (b'=' | b'!' | b'*', _) | (b'<', Some(b'=' | b'!' | b'*')) => {
                reader.at += if kind == b'<' { 2 } else { 1 };
                self.open(self.options)?;
                self.options.looks_around = true;
            }
            (b'<', _) => self.named_group(b'>')?,
            (b'\'', _) => self.named_group(b'\'')?,
            (b'P', _) => self.python_group()?,
            (b'R', _) => {
                reader.at += 1;
                if reader.peek() != Some(b')') {
                    return Err(reader.wrong(
                        "(?R (recursive pattern call) must be followed by a closing parenthesis",
                    ));
                }
                reader.at += 1;
                self.last = Last::Item;
            }
            (b'&', _) => self.group_call(b')')?,
            (b'0'..=b'9' | b'+', _) | (b'-', Some(b'0'..=b'9')) => self.numbered_call()?,
            _ => self.set_options()?,
        }
        Ok(End::Read)
    }

    /// `(?P<n>`, `(?P>n)`, `(?P=n)`.
    fn python_group(&mut self) -> Result<(), Wrong> {
        let reader = &mut self.reader;
        reader.at += 1;
        match reader.peek() {
            None => Err(reader.wrong("missing closing parenthesis")),
            Some(b'<') => self.named_group(b'>'),
            Some(b'>' | b'=') => self.group_call(b')'),
            Some(_) => Err(reader.wrong("unrecognized character after (?P")),
        }
    }

    /// A reference to a group, or a call of it, by its name.
    fn group_call(&mut self, end: u8) -> Result<(), Wrong> {
        let (name, at) = self.reader.name(end)?;
        self.references.push((Reference::Name(name), at));
        self.last = Last::Item;
        Ok(())
    }

    /// `(?1)`, `(?+1)`, `(?-1)`.
    fn numbered_call(&mut self) -> Result<(), Wrong> {
        let reader = &mut self.reader;
        let Some(number) = reader.group_number()? else {
            return Err(reader.wrong("digit expected after (?+ or (?-"));
        };
        if reader.peek() != Some(b')') {
            return Err(reader.wrong("missing closing parenthesis"));
        }
        let at = reader.at;
        reader.at += 1;
        if number != 0 {
            self.references.push((Reference::Number(number), at));
        }
        self.last = Last::Item;
        Ok(())
    }

    fn named_group(&mut self, end: u8) -> Result<(), Wrong> {
        let (name, _) = self.reader.name(end)?;
        self.capture()?;
        self.open(self.options)?;
        let number = self.reader.groups;
        if self.names.insert(name, number).is_some() && !self.options.same_names {
            return Err(self
                .reader
                .wrong("two named subpatterns have the same name (PCRE2_DUPNAMES not set)"));
        }
        Ok(())
    }

    /// `(?i)`, `(?i-s:`, `(?^)`.
    fn set_options(&mut self) -> Result<(), Wrong> {
        let before = self.options;
        let (mut on, mut minus_may_come) = (true, true);
        if self.reader.take(b"^") {
            minus_may_come = false;
            self.options = Options {
                same_names: before.same_names,
                looks_around: before.looks_around,
                ..Options::default()
            };
        }
        loop {
            let Some(c) = self.reader.next() else {
                return Err(self.reader.wrong("missing closing parenthesis"));
            };
            match c {
                b')' => return Ok(()),
                b':' => return self.open(before),
                b'-' if minus_may_come => (on, minus_may_come) = (false, false),
                b'-' => return Err(self.reader.back("invalid hyphen in option setting")),
                b'J' => self.options.same_names = on,
                b'n' => self.options.no_capture = on,
                b'x' => {
                    self.options.more = on && self.reader.take(b"x");
                    self.options.extended = on;
                }
                b'U' | b'i' | b'm' | b's' => {}
                _ => return Err(self.reader.back("unrecognized character after (? or (?-")),
            }
        }
    }

    /// Whether there is a group for each reference, once all is read.
    fn references(&self) -> Result<(), Wrong> {
        let there = |reference: &Reference| match reference {
            Reference::Number(number) => *number <= self.reader.groups,
            Reference::Name(name) => self.names.contains_key(name),
        };
        match self.references.iter().find(|(reference, _)| !there(reference)) {
            Some((_, at)) => Err(Wrong { cause: escape::NO_GROUP, at: *at }),
            None => Ok(()),
        }
    }
}

/// A pattern, and how far it is read.
#[derive(Clone)]
struct Reader<'p> {
    bytes: &'p [u8],
    at: usize,
    /// It began with `(*UTF)`: its letters are characters.
    utf: bool,
    /// Capturing groups so far.
    groups: u64,
}

impl<'p> Reader<'p> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn rest(&self) -> &'p [u8] {
        &self.bytes[self.at..]
    }

    /// Passes over this, if it follows.
    fn take(&mut self, text: &[u8]) -> bool {
        let follows = self.rest().starts_with(text);
        self.at += if follows { text.len() } else { 0 };
        follows
    }

    fn wrong(&self, cause: &'static str) -> Wrong {
        Wrong { cause, at: self.at }
    }

    /// ... but for the last character.
    fn back(&self, cause: &'static str) -> Wrong {
        let continues = |at: usize| self.utf && self.bytes[at] & 0xc0 == 0x80;
        let mut at = self.at - 1;
        while continues(at) {
            at -= 1;
        }
        Wrong { cause, at }
    }

    /// The options in front, as `(*UTF)`; whether the rest is to be read.
    fn verbs(&mut self) -> Result<bool, Wrong> {
        while let Some(verb) = self.rest().strip_prefix(b"(*") {
            let Some(len) = verb.iter().position(|b| *b == b')') else { return Ok(false) };
            match &verb[..len] {
                b"UTF" | b"UTF8" => self.utf = true,
                b"UCP" | b"CR" | b"LF" | b"CRLF" | b"ANYCRLF" | b"ANY" | b"BSR_ANYCRLF"
                | b"BSR_UNICODE" | b"NO_START_OPT" | b"NO_AUTO_POSSESS" | b"NO_JIT" => {}
                verb if verb.starts_with(b"LIMIT_") => {}
                _ => return Ok(false),
            }
            self.at += len + 3;
        }
        Ok(true)
    }

    /// Behind `\Q`, to `\E` or the end; whether anything is between.
    fn quoted(&mut self) -> bool {
        let rest = self.rest();
        let len = rest.windows(2).position(|w| w == b"\\E");
        self.at += len.map_or(rest.len(), |len| len + 2);
        len.unwrap_or(rest.len()) > 0
    }

    /// A number of at most so much.
    fn number(&mut self, max: u64, too_big: &'static str) -> Result<Option<u64>, Wrong> {
        let mut number = None;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            self.at += 1;
            let n = number.unwrap_or(0) * 10 + u64::from(digit - b'0');
            if n > max {
                return Err(self.wrong(too_big));
            }
            number = Some(n);
        }
        Ok(number)
    }

    /// The number of a group, which a sign makes one from here (read_number).
    fn group_number(&mut self) -> Result<Option<u64>, Wrong> {
        let start = self.at;
        let sign = self.peek().filter(|c| matches!(c, b'+' | b'-'));
        self.at += usize::from(sign.is_some());
        let max = if sign == Some(b'+') { GROUPS - self.groups } else { GROUPS };
        let Some(number) = self.number(max, "subpattern number is too big")? else {
            self.at = start;
            return Ok(None);
        };
        match sign {
            Some(_) if number == 0 => Err(self.wrong("a relative value of zero is not allowed")),
            Some(b'+') => Ok(Some(self.groups + number)),
            Some(_) if number > self.groups => Err(self.wrong(escape::NO_GROUP)),
            Some(_) => Ok(Some(self.groups - number + 1)),
            None => Ok(Some(number)),
        }
    }

    /// Behind a brace: whether it begins a quantifier, which is read then.
    fn repeat_counts(&mut self) -> Result<bool, Wrong> {
        let rest = self.rest();
        let digits = |rest: &[u8]| rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let first = digits(rest);
        let comma = usize::from(rest.get(first) == Some(&b','));
        let second = if comma == 1 { digits(&rest[first + 1..]) } else { 0 };
        if first == 0 || rest.get(first + comma + second) != Some(&b'}') {
            return Ok(false);
        }
        const TOO_BIG: &str = "number too big in {} quantifier";
        let min = self.number(REPEATS, TOO_BIG)?.unwrap_or(0);
        self.at += comma;
        let max = self.number(REPEATS, TOO_BIG)?;
        if max.is_some_and(|max| max < min) {
            return Err(self.wrong("numbers out of order in {} quantifier"));
        }
        self.at += 1;
        Ok(true)
    }

    /// The name of a group, of which one byte before it is read (read_name), and where it begins.
    fn name(&mut self, end: u8) -> Result<(&'p [u8], usize), Wrong> {
        self.at += 1;
        let start = self.at;
        match self.peek() {
            None => return Err(self.wrong("subpattern name expected")),
            Some(b'0'..=b'9') => {
                return Err(self.wrong("subpattern name must start with a non-digit"));
            }
            Some(_) => {}
        }
        let rest = self.rest();
        let len = rest
            .iter()
            .take_while(|b| b.is_ascii_alphanumeric() || **b == b'_' || self.utf && !b.is_ascii())
            .count();
        self.at += len;
        if len > NAME {
            return Err(self.wrong("subpattern name is too long (maximum 32 code units)"));
        }
        if len == 0 {
            return Err(self.wrong("subpattern name expected"));
        }
        if self.peek() != Some(end) {
            return Err(self.wrong("syntax error in subpattern name (missing terminator?)"));
        }
        self.at += 1;
        Ok((&rest[..len], start))
    }

    /// Behind `\p` or `\P`.
    fn property(&mut self) -> Result<(), Wrong> {
        const MALFORMED: &str = "malformed \\P or \\p sequence";
        match self.next() {
            Some(b'{') => {
                while let Some(c) = self.next() {
                    match c {
                        b'}' => return Ok(()),
                        0 => break,
                        _ => {}
                    }
                }
                Err(self.wrong(MALFORMED))
            }
            Some(c) if c.is_ascii_alphabetic() => Ok(()),
            _ => Err(self.wrong(MALFORMED)),
        }
    }
}
