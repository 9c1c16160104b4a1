//! PCRE's notation in that of the engines: what both know and mean otherwise is written so that it
//! means what PCRE means (pcre2pattern(3)).
//!
//! Leaves out recursion, branch resets, conditions on groups, `\X` and `\C`, which no engine here has:
//! they stay as they are and are refused by the compiler, `(?R)` here, because `regex` has another
//! meaning for it.
//!
//! Invariant: a pattern is only written anew; what is wrong with it stays wrong, but for what an engine
//! would take.

use std::{borrow::Cow, collections::HashSet, iter::Peekable, str::Chars};

/// Which engine a pattern is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `regex` over bytes, without Unicode.
    Linear,
    /// `fancy-regex` over text, each byte of which is a character ([`bytes_as_chars`]).
    Bounded,
}

/// A pattern for one of the engines.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    /// The pattern.
    pub text: String,
    /// It began with `(*UTF8)`: its letters are characters, not bytes.
    pub utf: bool,
    /// It has quantifiers that give nothing back (`a++`), which `regex` takes for others.
    pub possessive: bool,
}

/// A pattern as text: its characters where it says that it has some, else its bytes.
pub fn text(pattern: &[u8]) -> Option<Cow<'_, str>> {
    let bytes = bytes_as_chars(pattern);
    let (_, utf) = without_verbs(&bytes);
    if utf { std::str::from_utf8(pattern).ok().map(Cow::Borrowed) } else { Some(bytes) }
}

/// Each byte as the character of its number: what PCRE takes for one without `(*UTF)`.
pub fn bytes_as_chars(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => Cow::Borrowed(text),
        _ => Cow::Owned(bytes.iter().copied().map(char::from).collect()),
    }
}

/// Writes a pattern for an engine, which is told apart from it whether it is `caseless`. The error is
/// the cause.
pub fn write(pattern: &str, dialect: Dialect, caseless: bool) -> Result<Written, &'static str> {
    let (pattern, utf) = without_verbs(pattern);
    let mut writer = Writer {
        rest: pattern.chars().peekable(),
        out: String::with_capacity(pattern.len() + 16),
        dialect,
        utf,
        possessive: false,
        groups: count_groups(pattern),
        opened: 0,
        open: Vec::new(),
        names: HashSet::new(),
        options: Options { caseless, ..Options::default() },
    };
    writer.pattern()?;
    Ok(Written { text: writer.out, utf, possessive: writer.possessive })
}

/// What is wrong with a pattern, in PCRE's words where it has some for it: they are what is searched
/// for.
pub fn cause(linear: &str, bounded: &str) -> String {
    let last = |text: &str| text.lines().last().unwrap_or_default().trim().to_owned();
    // The engine that knows more is asked first; what it hands on to the other it does not explain.
    let known = [bounded, linear].into_iter().find_map(|text| {
        CAUSES.iter().find(|(theirs, _)| text.contains(theirs)).map(|(_, words)| *words)
    });
    match known {
        Some(words) => words.to_owned(),
        None if bounded.contains("Regex error") => last(linear),
        None => last(bounded),
    }
}

/// Words of the engines, and PCRE's.
const CAUSES: &[(&str, &str)] = &[
    ("Opening parenthesis without closing", "missing closing parenthesis"),
    ("end of string not reached", "unmatched closing parenthesis"),
    ("Target of repeat operator is invalid", "quantifier does not follow a repeatable item"),
    ("Invalid character class", "missing terminating ] for character class"),
    ("Backslash without following character", "\\ at end of pattern"),
    ("Could not parse group name", "syntax error in subpattern name (missing terminator?)"),
    ("Unknown group flag", "unrecognized character after (? or (?-"),
    ("Look-behind assertion without constant size", "lookbehind assertion is not fixed length"),
    ("Invalid back reference", "reference to non-existent subpattern"),
    ("Invalid group name in back reference", "reference to non-existent subpattern"),
    ("Invalid escape", "unrecognized character follows \\"),
    ("Invalid hex escape", "non-hex character in \\x{} (closing brace missing?)"),
    ("invalid character class range", "range out of order in character class"),
    ("invalid repetition count range", "numbers out of order in {} quantifier"),
    ("Unicode property not found", "unknown property after \\P or \\p"),
    // Said before the property is looked for; what there is, the other engine takes.
    ("Unicode not allowed here", "unknown property after \\P or \\p"),
    ("exceeds size limit", "regular expression is too large"),
];

/// Without `(*UTF8)` and the like in front, which matters, and options of newlines and of PCRE's
/// working, which do not.
fn without_verbs(mut pattern: &str) -> (&str, bool) {
    let mut utf = false;
    while let Some((verb, rest)) = pattern.strip_prefix("(*").and_then(|p| p.split_once(')')) {
        match verb {
            "UTF" | "UTF8" => utf = true,
            "UCP" | "CR" | "LF" | "CRLF" | "ANYCRLF" | "ANY" | "BSR_ANYCRLF" | "BSR_UNICODE"
            | "NO_START_OPT" | "NO_AUTO_POSSESS" | "NO_JIT" => {}
            _ if verb.starts_with("LIMIT_") => {}
            _ => break,
        }
        pattern = rest;
    }
    (pattern, utf)
}

/// Whether a pattern is over characters.
pub fn is_utf(pattern: &str) -> bool {
    without_verbs(pattern).1
}

/// How many capturing groups a pattern has.
fn count_groups(pattern: &str) -> u32 {
    let (mut count, mut in_class, mut rest) = (0, false, pattern.chars());
    while let Some(c) = rest.next() {
        match c {
            '\\' => drop(rest.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => count += u32::from(captures(rest.as_str())),
            _ => {}
        }
    }
    count
}

/// Whether the parenthesis before this opens a capturing group.
fn captures(rest: &str) -> bool {
    match rest.strip_prefix('?') {
        None => !rest.starts_with('*'),
        Some(kind) => {
            let named = kind.starts_with('<') && !kind.starts_with("<=") && !kind.starts_with("<!");
            named || kind.starts_with("P<") || kind.starts_with('\'')
        }
    }
}

/// The name of the group that begins here.
fn group_name(rest: &str) -> Option<&str> {
    let rest = rest.strip_prefix('?')?;
    let (name, end) = match rest.strip_prefix('\'') {
        Some(name) => (name, '\''),
        None => (rest.strip_prefix('P').unwrap_or(rest).strip_prefix('<')?, '>'),
    };
    Some(name.split_once(end)?.0)
}

struct Writer<'p> {
    rest: Peekable<Chars<'p>>,
    out: String,
    dialect: Dialect,
    utf: bool,
    possessive: bool,
    /// Capturing groups, of the whole pattern and so far.
    groups: u32,
    opened: u32,
    /// Whether each open parenthesis captures, and the options that hold again behind it.
    open: Vec<(bool, Options)>,
    /// Those of its groups.
    names: HashSet<String>,
    options: Options,
}

/// Options that matter to the writing.
#[derive(Clone, Copy, Default)]
struct Options {
    caseless: bool,
    multiline: bool,
    dot_all: bool,
    extended: bool,
}

impl Options {
    /// What makes these options of others, such as `(?i-x)`.
    fn instead_of(self, other: Options) -> String {
        let flags = [
            ('i', self.caseless, other.caseless),
            ('m', self.multiline, other.multiline),
            ('s', self.dot_all, other.dot_all),
            ('x', self.extended, other.extended),
        ];
        let set = |to: bool| {
            let changed = flags.iter().filter(move |(_, is, was)| is != was && *is == to);
            changed.map(|(flag, ..)| *flag).collect::<String>()
        };
        match (set(true), set(false)) {
            (on, off) if on.is_empty() && off.is_empty() => String::new(),
            (on, off) if off.is_empty() => format!("(?{on})"),
            (on, off) => format!("(?{on}-{off})"),
        }
    }
}

impl Writer<'_> {
    fn pattern(&mut self) -> Result<(), &'static str> {
        // Whether the end of a quantifier was the last thing, and whether one in braces is open.
        let (mut quantified, mut in_braces) = (false, false);
        while let Some(c) = self.rest.next() {
            self.possessive |= quantified && c == '+';
            in_braces |= c == '{' && self.at_quantifier();
            quantified = !quantified && matches!(c, '*' | '+' | '?') || c == '}' && in_braces;
            in_braces &= c != '}';
            match c {
                '\\' => self.escape(),
                '[' => self.class(),
                '(' => self.parenthesis()?,
                ')' => {
                    if let Some((_, options)) = self.open.pop() {
                        if self.dialect == Dialect::Bounded {
                            // That engine's options hold on behind the group.
                            self.out.push_str(&options.instead_of(self.options));
                        }
                        self.options = options;
                    }
                    self.out.push(c);
                }
                '$' if !self.options.multiline => self.end(),
                '{' if !self.at_quantifier() => self.out.push_str("\\{"),
                '#' if self.options.extended => self.comment(),
                _ => self.push(c),
            }
        }
        Ok(())
    }

    /// `$` and `\Z`: the end of the text, or before a line feed that ends it. Where that would show,
    /// within a group, an engine without look-around knows the very end only.
    fn end(&mut self) {
        let captured = self.open.iter().any(|(captures, _)| *captures);
        self.out.push_str(match self.dialect {
            Dialect::Bounded => "(?=\\n?\\z)",
            Dialect::Linear if captured => "\\z",
            Dialect::Linear => "(?:\\n?\\z)",
        });
    }

    /// Whether what follows a brace makes it a quantifier: `n}`, `n,}`, `n,m}`.
    fn at_quantifier(&self) -> bool {
        let mut rest = self.rest.clone();
        let digits = |rest: &mut Peekable<Chars<'_>>| {
            let mut count = 0;
            while rest.next_if(char::is_ascii_digit).is_some() {
                count += 1;
            }
            count
        };
        if digits(&mut rest) == 0 {
            return false;
        }
        if rest.next_if_eq(&',').is_some() {
            digits(&mut rest);
        }
        rest.next() == Some('}')
    }

    /// A comment of `(?x)`, to the end of its line.
    fn comment(&mut self) {
        while self.rest.next_if(|c| *c != '\n').is_some() {}
    }

    fn parenthesis(&mut self) -> Result<(), &'static str> {
        let rest: String = self.rest.clone().collect();
        let is_group = captures(&rest);
        if let Some(comment) = rest.strip_prefix("?#").or(rest.strip_prefix("?C")) {
            // A comment, or a call of the program, which nginx never asks for.
            let skipped = comment.chars().take_while(|c| *c != ')').count() + 3;
            self.skip(skipped);
            return Ok(());
        }
        if rest.starts_with("?R)") || rest.starts_with("?0)") {
            return Err("recursion is not supported");
        }
        if let Some(name) = group_name(&rest).filter(|_| is_group)
            && !self.names.insert(name.to_owned())
        {
            return Err("two named subpatterns have the same name (PCRE2_DUPNAMES not set)");
        }
        self.open.push((is_group, self.options));
        self.opened += u32::from(is_group);
        self.out.push('(');
        if let Some((name, _)) = rest.strip_prefix("?'").and_then(|name| name.split_once('\'')) {
            self.out.push_str(&format!("?<{name}>"));
            self.skip(name.chars().count() + 3);
        } else if let Some(flags) = rest.strip_prefix('?') {
            self.set_options(flags);
        }
        Ok(())
    }

    /// Options behind `(?`: for the group that they begin, or else for the rest of the one around them.
    fn set_options(&mut self, flags: &str) {
        let end = flags.find(|c: char| !c.is_ascii_alphabetic() && c != '-');
        let Some((flags, after)) = end.map(|end| flags.split_at(end)) else { return };
        if !after.starts_with([')', ':']) {
            return;
        }
        let (on, off) = flags.split_once('-').unwrap_or((flags, ""));
        let set = |was: bool, flag: char| (was || on.contains(flag)) && !off.contains(flag);
        self.options = Options {
            caseless: set(self.options.caseless, 'i'),
            multiline: set(self.options.multiline, 'm'),
            dot_all: set(self.options.dot_all, 's'),
            extended: set(self.options.extended, 'x'),
        };
        if after.starts_with(')')
            && let Some((_, around)) = self.open.last_mut()
        {
            *around = self.options;
        }
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.rest.next();
        }
    }

    /// What follows a backslash outside of a class.
    fn escape(&mut self) {
        let Some(c) = self.rest.next() else { return self.out.push('\\') };
        match c {
            'Z' => self.end(),
            'R' => self.out.push_str("(?:\\r\\n|[\\n\\x0B\\f\\r])"),
            'N' => self.out.push_str("[^\\n]"),
            'g' => self.group_reference(),
            'k' => {
                self.out.push_str("\\k");
                if let Some(name) = self.braced() {
                    self.out.push_str(&format!("<{name}>"));
                }
            }
            '1'..='9' => self.back_reference(c),
            'd' | 'w' | 's' | 'h' | 'v' | 'D' | 'W' | 'S' | 'H' | 'V' => self.kind(c, false),
            'b' | 'B' if self.dialect == Dialect::Bounded => self.boundary(c == 'b'),
            _ => self.shared_escape(c),
        }
    }

    /// Where words begin and end, or do not, which over text would be words of all scripts.
    fn boundary(&mut self, is_one: bool) {
        let (not, does) = if is_one { ("!", "=") } else { ("=", "!") };
        let word = "[A-Za-z0-9_]";
        let text = format!("(?:(?<={word})(?{not}{word})|(?<!{word})(?{does}{word}))");
        self.out.push_str(&text);
    }

    /// An escape that means the same within a class.
    fn shared_escape(&mut self, c: char) {
        match c {
            'Q' => self.quoted(),
            'E' => {}
            'e' => self.out.push_str("\\x1B"),
            'c' => {
                if let Some(c) = self.rest.next().filter(char::is_ascii) {
                    self.byte(u32::from(c.to_ascii_uppercase()) ^ 0x40);
                }
            }
            '0'..='7' => self.octal(c),
            'o' => match self.braced().map(|digits| u32::from_str_radix(&digits, 8)) {
                Some(Ok(number @ ..=0xff)) => self.byte(number),
                Some(Ok(number)) => self.out.push_str(&format!("\\x{{{number:X}}}")),
                _ => self.out.push_str("\\o"),
            },
            'x' | 'p' | 'P' => {
                let inner = self.braced();
                let number = inner.as_deref().and_then(|hex| u32::from_str_radix(hex, 16).ok());
                match (c, number.filter(|_| !self.utf)) {
                    ('x', Some(number @ ..=0xff)) => return self.byte(number),
                    _ => self.out.extend(['\\', c]),
                }
                if let Some(inner) = inner {
                    self.out.push_str(&format!("{{{inner}}}"));
                }
            }
            // `regex` has meanings of its own for these.
            '<' | '>' => self.out.push(c),
            _ if c.is_ascii() => self.out.extend(['\\', c]),
            _ => self.push(c),
        }
    }

    /// `\Q…\E`: all of it as it stands.
    fn quoted(&mut self) {
        while let Some(c) = self.rest.next() {
            if c == '\\' && self.rest.next_if_eq(&'E').is_some() {
                return;
            }
            self.literal(c);
        }
    }

    fn literal(&mut self, c: char) {
        if c.is_ascii_punctuation() && c != '<' && c != '>' || c == ' ' {
            self.out.push('\\');
        }
        self.push(c);
    }

    /// A letter that stands for itself.
    fn push(&mut self, c: char) {
        if c.is_ascii() || self.utf { self.out.push(c) } else { self.byte(c.into()) }
    }

    fn byte(&mut self, byte: u32) {
        self.out.push_str(&format!("\\x{:02X}", byte & 0xff));
    }

    /// Up to three octal digits.
    fn octal(&mut self, first: char) {
        let mut number = first.to_digit(8).unwrap_or(0);
        for _ in 0..2 {
            let Some(digit) = self.rest.next_if(|c| c.is_digit(8)) else { break };
            number = number * 8 + digit.to_digit(8).unwrap_or(0);
        }
        self.byte(number);
    }

    /// `\1` to `\9`, and more digits where there are as many groups; else an octal number.
    fn back_reference(&mut self, first: char) {
        let more: String = self.rest.clone().take_while(char::is_ascii_digit).collect();
        let number: u32 = format!("{first}{more}").parse().unwrap_or(u32::MAX);
        if !more.is_empty() && number > self.groups && first.is_digit(8) {
            return self.octal(first);
        }
        self.out.push_str(&format!("\\{first}{more}"));
        self.skip(more.len());
    }

    /// `\g1`, `\g{1}`, `\g{-1}`, `\g{name}`.
    fn group_reference(&mut self) {
        let name = self.braced().unwrap_or_else(|| {
            let mut name = String::new();
            while let Some(c) = self.rest.next_if(|c| c.is_ascii_digit() || *c == '-') {
                name.push(c);
            }
            name
        });
        match name.parse::<i64>() {
            Ok(number) if number < 0 => {
                let from_here = i64::from(self.opened) + 1 + number;
                self.out.push_str(&format!("\\{from_here}"));
            }
            Ok(number) => self.out.push_str(&format!("\\{number}")),
            Err(_) => self.out.push_str(&format!("\\k<{name}>")),
        }
    }

    /// `{…}`, if that follows.
    fn braced(&mut self) -> Option<String> {
        self.rest.next_if_eq(&'{')?;
        let inner: String = self.rest.clone().take_while(|c| *c != '}').collect();
        self.skip(inner.chars().count() + 1);
        Some(inner)
    }

    /// Kinds of bytes. Those of lines and blanks mean other things to the engines, and over text
    /// digits and words would be those of all scripts.
    fn kind(&mut self, c: char, in_class: bool) {
        let members = match (c.to_ascii_lowercase(), self.dialect) {
            ('h', _) => "\\t \\xA0",
            ('v', _) => "\\n\\x0B\\f\\r",
            ('d', Dialect::Bounded) => "0-9",
            ('w', Dialect::Bounded) => "A-Za-z0-9_",
            ('s', Dialect::Bounded) => "\\t\\n\\x0B\\f\\r ",
            _ => return self.out.extend(['\\', c]),
        };
        match (c.is_ascii_uppercase(), in_class) {
            (true, _) => self.out.push_str(&format!("[^{members}]")),
            (false, true) => self.out.push_str(members),
            (false, false) => self.out.push_str(&format!("[{members}]")),
        }
    }

    /// A class, behind its bracket. A bracket within it, `&&`, `--` and `~~` are nothing special.
    fn class(&mut self) {
        self.out.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push('^');
        }
        if self.rest.next_if_eq(&']').is_some() {
            self.out.push_str("\\]");
        }
        // Whether a minus may begin the second half of a range: there is a first half.
        let mut begun = false;
        while let Some(c) = self.rest.next() {
            match c {
                ']' => return self.out.push(c),
                '-' if begun && self.rest.peek() != Some(&']') => {
                    self.out.push('-');
                    if self.rest.next_if_eq(&'-').is_some() {
                        self.out.push_str("\\-");
                    }
                    begun = false;
                    continue;
                }
                '[' if self.posix_name() => {
                    begun = false;
                    continue;
                }
                '\\' => {
                    begun = self.class_escape();
                    continue;
                }
                '[' | '-' | '&' | '~' => self.out.extend(['\\', c]),
                '#' | ' ' if self.options.extended => self.out.extend(['\\', c]),
                _ => self.push(c),
            }
            begun = true;
        }
    }

    /// `[:alpha:]` within a class, behind its bracket.
    fn posix_name(&mut self) -> bool {
        let rest: String = self.rest.clone().collect();
        let Some((name, _)) = rest.strip_prefix(':').and_then(|rest| rest.split_once(":]")) else {
            return false;
        };
        if name.contains(['[', ']', '\\']) {
            return false;
        }
        self.out.push_str(&format!("[:{name}:]"));
        self.skip(name.chars().count() + 3);
        true
    }

    /// What follows a backslash within a class; whether it is one byte, which may begin a range.
    fn class_escape(&mut self) -> bool {
        let Some(c) = self.rest.next() else {
            self.out.push('\\');
            return false;
        };
        match c {
            'd' | 'w' | 's' | 'h' | 'v' | 'D' | 'W' | 'S' | 'H' | 'V' => {
                self.kind(c, true);
                return false;
            }
            'b' => self.byte(8),
            _ => self.shared_escape(c),
        }
        !matches!(c, 'p' | 'P' | 'Q' | 'E')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(pattern: &str) -> String {
        write(pattern, Dialect::Linear, false).unwrap().text
    }

    #[test]
    fn what_means_the_same_stays_as_it_is() {
        for pattern in [
            r"^/(?<name>[^/]+)/(?P<rest>.*)x",
            r"\.(?:css|js|jpe?g)",
            r"[\w\-\.]+[[:alpha:]][^a-z0-9_-]{2,}?",
            r"(?i)a{2}b{2,}c{2,3}+\d\D\s\S\w\W\b\B\A\z",
            r"\x41\x{142}\p{L}\pL\n\r\t\f\a\_\-\/\ ",
            r"(?=a)(?!a)(?<=a)(?<!a)(?>a)a\1",
            r"(?m)^a$",
            "a\\",
            "[a",
            "(?'a",
        ] {
            let written = linear(pattern);
            // But for a minus that stands for itself, which may be escaped.
            assert_eq!(written.replace("_\\-]", "_-]"), pattern, "{pattern}");
        }
    }

    #[test]
    fn what_the_engines_read_otherwise_is_written_anew() {
        for (pattern, expected) in [
            ("^/a$", r"^/a(?:\n?\z)"),
            ("(a|$)", r"(a|\z)"),
            ("(?:a|$)", r"(?:a|(?:\n?\z))"),
            (r"a\Z", r"a(?:\n?\z)"),
            (r"a\$", r"a\$"),
            ("[$]", "[$]"),
            ("[[]", r"[\[]"),
            ("[^[a]", r"[^\[a]"),
            ("[]a]", r"[\]a]"),
            ("[^]a]", r"[^\]a]"),
            ("[a&&b~~c]", r"[a\&\&b\~\~c]"),
            ("[+--]", r"[+-\-]"),
            (r"[\w-x]", r"[\w\-x]"),
            ("[-a]", r"[\-a]"),
            ("[[:alpha:]-x]", r"[[:alpha:]\-x]"),
            ("[[:a]", r"[\[:a]"),
            (r"\h+\H\v", r"[\t \xA0]+[^\t \xA0][\n\x0B\f\r]"),
            (r"[\h\b]", r"[\t \xA0\x08]"),
            (r"\<a\>", "<a>"),
            (r"\Qa.b\E+", r"a\.b+"),
            (r"\Q[x", r"\[x"),
            (r"\e\cA\ca", r"\x1B\x01\x01"),
            (r"\0\012\101", r"\x00\x0A\x41"),
            (r"[\101]\o{101}\o{500}", r"[\x41]\x41\x{140}"),
            (r"\R\N", r"(?:\r\n|[\n\x0B\f\r])[^\n]"),
            (r"(a)\g1\g{1}\g{-1}\g{n}", r"(a)\1\1\1\k<n>"),
            (r"\k{n}", r"\k<n>"),
            ("(?'n'a)", "(?<n>a)"),
            ("a(?#b)c", "ac"),
            ("a{,3}b{x}{", r"a\{,3}b\{x}\{"),
            ("(?x)a # (b\n[ #]", "(?x)a \n[\\ \\#]"),
            (r"\x{42}[\x{E9}]", r"\x42[\xE9]"),
            ("\\é[é]é", r"\xE9[\xE9]\xE9"),
            ("(*UTF8)\\é\\x{E9}[é]", r"é\x{E9}[é]"),
        ] {
            assert_eq!(linear(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn quantifiers_that_give_nothing_back_are_seen() {
        let possessive = |pattern| write(pattern, Dialect::Linear, false).unwrap().possessive;
        for pattern in
            ["a++b", "a*+", "a?+", "a{2}+", "[^/]{1,2}+/", r"\d++", "(?:a|b)++", "x(a)*+"]
        {
            assert!(possessive(pattern), "{pattern}");
        }
        for pattern in [
            "a+", "a+?", r"a\++", "[+]+", "[a++]", "a{x}+", "(?:a+)+", r"a+\+", r"\Qa++\E", "(?i)+",
        ] {
            assert!(!possessive(pattern), "{pattern}");
        }
    }

    #[test]
    fn over_text_kinds_are_those_of_ascii() {
        for (pattern, expected) in [
            (r"\d\W", "[0-9][^A-Za-z0-9_]"),
            (r"[\w\S]", r"[A-Za-z0-9_[^\t\n\x0B\f\r ]]"),
            ("(a$)", r"(a(?=\n?\z))"),
            ("((?i)a|b)+(?x-s:c)", "((?i)a|b(?-i))+(?x-s:c(?-x))"),
            (r"\b", "(?:(?<=[A-Za-z0-9_])(?![A-Za-z0-9_])|(?<![A-Za-z0-9_])(?=[A-Za-z0-9_]))"),
            (r"\B", "(?:(?<=[A-Za-z0-9_])(?=[A-Za-z0-9_])|(?<![A-Za-z0-9_])(?![A-Za-z0-9_]))"),
        ] {
            assert_eq!(
                write(pattern, Dialect::Bounded, false).unwrap().text,
                expected,
                "{pattern}"
            );
        }
    }

    #[test]
    fn verbs_in_front_are_taken_off() {
        let utf = |text: &str| Ok(Written { text: text.into(), utf: true, possessive: false });
        assert_eq!(write("(*UTF8)a", Dialect::Linear, false), utf("a"));
        assert_eq!(write("(*ANYCRLF)(*UTF)a", Dialect::Linear, false), utf("a"));
        assert_eq!(linear("(*LIMIT_MATCH=9)a"), "a");
        assert_eq!(linear("(*FAIL)"), "(*FAIL)");
    }

    #[test]
    fn causes_are_told_in_its_words() {
        let bounded =
            "Parsing error at position 2: Opening parenthesis without closing parenthesis";
        assert_eq!(cause("regex parse error:\nerror: x", bounded), "missing closing parenthesis");
        let linear = "regex parse error:\n  [z-a]\nerror: invalid character class range, the start";
        let handed_on = "Error compiling regex: Regex error: error parsing pattern 0";
        assert_eq!(cause(linear, handed_on), "range out of order in character class");
        assert_eq!(cause("x\nerror: news", handed_on), "error: news");
        assert_eq!(cause("x", "other"), "other");
    }

    #[test]
    fn recursion_is_refused() {
        assert_eq!(write("a(?R)?", Dialect::Linear, false), Err("recursion is not supported"));
    }
}
