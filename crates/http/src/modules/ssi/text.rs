//! Variables in the parameters of SSI commands, and the conditions of `if`
//! (`ngx_http_ssi_evaluate_string`, `ngx_http_ssi_if`).
//!
//! Invariant: what comes out is bounded, whatever the variables hold.

use std::{cell::RefCell, collections::VecDeque};

use forebay_rt::{clock, task};
use forebay_session::{
    log::{Severity, Shown},
    regex::Regex,
    var::{Captures, read_named},
};
use forebay_wire::h1::encode::write_decimal;

use super::shared::Shared;
use crate::request::Request;

/// How long a value may become.
///
/// DIFFERS(ssi-bounded): nginx has no limit.
const MAX_VALUE: usize = 64 << 10;

/// The command ends with the message of errors; what is wrong is in the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed;

/// Where variables come from.
pub struct Scope<'a> {
    /// The request whose page it is.
    pub r: &'a Request,
    /// What sends the page ([`crate::request::Main::doing`]).
    pub doing: &'static str,
    /// `config timefmt`.
    pub time_format: &'a [u8],
}

fn lossy(text: &[u8]) -> String {
    Shown(text).to_string()
}

impl Scope<'_> {
    /// Writes the value of a variable of that name, in lower case; `false`: there is none.
    pub fn variable(&self, name: &[u8], out: &mut Vec<u8>) -> bool {
        let found = self.r.main.context(|shared: &mut Shared| match shared.variable(name) {
            Some(value) => {
                out.extend_from_slice(value);
                true
            }
            None => false,
        });
        if found {
            return true;
        }
        match name {
            b"date_local" => self.date(false, out),
            b"date_gmt" => self.date(true, out),
            _ => std::str::from_utf8(name).is_ok_and(|name| read_named(self.r, name, out)),
        }
    }

    fn date(&self, utc: bool, out: &mut Vec<u8>) -> bool {
        let seconds = clock::wall_ms() / 1000;
        if self.time_format == b"%s" {
            write_decimal(out, seconds);
            return true;
        }
        clock::format_time(self.time_format, seconds as i64, utc, out)
    }

    /// Tells the error log.
    pub fn fail(&self, text: std::fmt::Arguments<'_>) -> Failed {
        self.r.log_error(Severity::Error, format_args!("{text}{}", self.doing));
        Failed
    }

    /// Fills in the variables of a parameter. `prefix`: a path that does not begin with a slash
    /// belongs to the directory of the page.
    pub fn fill(&self, text: &[u8], prefix: bool) -> Result<Vec<u8>, Failed> {
        let mut out = Vec::with_capacity(text.len());
        let mut at = 0;
        while at < text.len() {
            if text[at] == b'$' {
                let (name, after) = self.name(text, at + 1)?;
                self.variable(&name.to_ascii_lowercase(), &mut out);
                at = after;
            } else {
                at = plain(text, at, &mut out);
            }
            if out.len() > MAX_VALUE {
                return Err(self.fail(format_args!("too long SSI value \"{}\"", lossy(text))));
            }
        }
        if prefix && out.first() != Some(&b'/') && !(out.is_empty() && text.contains(&b'$')) {
            let dir = memchr::memrchr(b'/', &self.r.uri).map_or(0, |slash| slash + 1);
            out.splice(0..0, self.r.uri[..dir].iter().copied());
        }
        Ok(out)
    }

    /// The name behind a `$`, and where what follows it begins.
    fn name<'t>(&self, text: &'t [u8], start: usize) -> Result<(&'t [u8], usize), Failed> {
        let braced = text.get(start) == Some(&b'{');
        let start = start + usize::from(braced);
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
        let len = text[start..].iter().take_while(|b| is_name(b)).count();
        let (name, end) = (&text[start..start + len], start + len);
        let closed = !braced || text.get(end) == Some(&b'}');
        if !closed && start < text.len() {
            let name = lossy(name);
            let text = format_args!("the closing bracket in \"{name}\" variable is missing");
            return Err(self.fail(text));
        }
        if name.is_empty() {
            let text = lossy(text);
            return Err(self.fail(format_args!("invalid variable name in \"{text}\"")));
        }
        Ok((name, end + usize::from(braced)))
    }

    /// Whether the expression of an `if` or `elif` holds.
    pub fn holds(&self, expression: &[u8]) -> Result<bool, Failed> {
        let invalid = || self.fail(format_args!("invalid expression in \"{}\"", lossy(expression)));
        let is_left = |b: &u8| {
            b.is_ascii_alphanumeric() || matches!(b, b'$' | b'{' | b'}' | b'_' | b'"' | b'\'')
        };
        let len = expression.iter().take_while(|b| is_left(b)).count();
        let left = self.fill(&expression[..len].to_ascii_lowercase(), false)?;
        let rest = skip_spaces(&expression[len..]);
        let (negative, rest) = match rest {
            [] => return Ok(!left.is_empty()),
            [b'=', rest @ ..] => (false, rest),
            [b'!', b'=', rest @ ..] => (true, rest),
            _ => return Err(invalid()),
        };
        let right = skip_spaces(rest);
        let same = match right {
            [b'/', pattern @ .., b'/'] => {
                let pattern = self.fill(pattern, false)?;
                self.matches(&pattern, &left)?
            }
            [b'/', _, ..] => return Err(invalid()),
            [b'\\', right @ ..] if right.first() == Some(&b'/') => self.fill(right, false)? == left,
            right => self.fill(right, false)? == left,
        };
        Ok(same != negative)
    }

    /// Matches, and keeps what the groups captured for all pages of the request, until another matches.
    fn matches(&self, pattern: &[u8], text: &[u8]) -> Result<bool, Failed> {
        let regex = match compiled(pattern) {
            Ok(regex) => regex,
            Err(cause) => return Err(self.fail(format_args!("{cause}"))),
        };
        let mut captures = Captures::default();
        if !regex.captures(text, &mut captures) {
            return Ok(false);
        }
        self.r.main.context(|shared: &mut Shared| {
            for (group, name) in regex.names() {
                let value = captures.group(*group).unwrap_or_default().to_vec();
                // What is too much to keep is as good as not matched.
                let _ = shared.set(name.to_ascii_lowercase().as_bytes(), value);
            }
            shared.captures = captures;
        });
        Ok(true)
    }
}

/// What it costs to compile a pattern: few in a turn.
const COMPILING_WORK: usize = 64 << 10;

/// How many patterns a thread keeps compiled.
const PATTERNS: usize = 32;

/// Compiles a pattern. Pages that are asked for again have the same ones, and compiling costs more than
/// all the rest of a page.
fn compiled(pattern: &[u8]) -> Result<Regex, String> {
    thread_local! {
        static COMPILED: RefCell<VecDeque<(Box<[u8]>, Regex)>> = const { RefCell::new(VecDeque::new()) };
    }
    COMPILED.with_borrow_mut(|kept| {
        let found = match kept.iter().position(|(known, _)| **known == *pattern) {
            Some(at) => kept.remove(at),
            None => None,
        };
        let (known, regex) = match found {
            Some(known) => known,
            None => {
                task::worked(COMPILING_WORK);
                let regex = Regex::compile_untrusted(pattern, true);
                (pattern.into(), regex.map_err(|error| error.message)?)
            }
        };
        kept.truncate(PATTERNS - 1);
        kept.push_front((known, regex.clone()));
        Ok(regex)
    })
}

/// Text up to the next variable: a backslash guards itself, quotes and `$`, and stays elsewhere.
fn plain(text: &[u8], mut at: usize, out: &mut Vec<u8>) -> usize {
    while at < text.len() && text[at] != b'$' {
        if text[at] == b'\\' {
            at += 1;
            let Some(&byte) = text.get(at) else { break };
            if !matches!(byte, b'\\' | b'\'' | b'"' | b'$') {
                out.push(b'\\');
            }
        }
        out.push(text[at]);
        at += 1;
    }
    at
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|b| **b == b' ').count();
    &text[spaces..]
}
