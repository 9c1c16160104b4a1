//! What the response to a check must be: NGINX Plus's `match {}`, Tengine's
//! `check_http_expect_alive`.
//!
//! Invariant: looks at bytes, waits for nothing.

use forebay_wire::h1::ResponseHead;

use super::Answer;
use crate::{regex::Regex, var::VarId};

/// What a response must be.
#[derive(Clone, Debug)]
pub enum Expect {
    /// `check_http_expect_alive`: the classes of status that will do, by their first digit.
    Alive([bool; 10]),
    /// `match`, or the default: a status of 2xx or 3xx.
    Match(std::sync::Arc<Match>),
}

/// `match name { … }`: all of it must hold.
#[derive(Debug, Default)]
pub struct Match {
    /// Its name; empty: the default.
    pub name: Box<str>,
    /// `status`.
    pub status: Option<Statuses>,
    /// `header`.
    pub headers: Vec<HeaderTest>,
    /// `body`.
    pub bodies: Vec<Pattern>,
    /// `require`: variables that must have a value other than `0`.
    pub required: Vec<VarId>,
}

/// `status 200-299 404` and `status ! 500`.
#[derive(Debug, PartialEq, Eq)]
pub struct Statuses {
    /// Whether the status must be none of these.
    pub not: bool,
    /// The statuses, first and last.
    pub ranges: Vec<(u16, u16)>,
}

/// A pattern that a text must match, or must not.
#[derive(Debug)]
pub struct Pattern {
    /// Must not.
    pub not: bool,
    /// The pattern.
    pub regex: Regex,
}

/// `header …`.
#[derive(Debug)]
pub enum HeaderTest {
    /// `header NAME`, `header ! NAME`: whether there is such a field.
    There {
        /// The name.
        name: Box<[u8]>,
        /// There must be none.
        not: bool,
    },
    /// `header NAME = VALUE`, `header NAME != VALUE`.
    Is {
        /// The name.
        name: Box<[u8]>,
        /// The value.
        value: Box<[u8]>,
        /// It must be another one.
        not: bool,
    },
    /// `header NAME ~ PATTERN`, `header NAME !~ PATTERN`.
    Like {
        /// The name.
        name: Box<[u8]>,
        /// The pattern.
        pattern: Pattern,
    },
}

impl Statuses {
    fn holds(&self, status: u16) -> bool {
        self.not != self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

impl Pattern {
    fn holds(&self, text: &[u8]) -> bool {
        self.not != self.regex.is_match(text)
    }
}

impl HeaderTest {
    fn holds(&self, head: &ResponseHead, buf: &[u8]) -> bool {
        let value = |name: &[u8]| {
            let field = head.fields.iter().find(|f| f.name.of(buf).eq_ignore_ascii_case(name));
            field.map(|field| field.value.of(buf))
        };
        match self {
            HeaderTest::There { name, not } => *not != value(name).is_some(),
            HeaderTest::Is { name, value: want, not } => {
                *not != value(name).is_some_and(|got| got == &**want)
            }
            HeaderTest::Like { name, pattern } => match value(name) {
                Some(got) => pattern.holds(got),
                None => pattern.not,
            },
        }
    }
}

impl Expect {
    /// Whether the body must be read.
    pub fn wants_body(&self) -> bool {
        matches!(self, Expect::Match(tests) if !tests.bodies.is_empty())
    }

    /// Looks at a response; what was looked at when it was not right. `holds`: whether these variables
    /// are set.
    pub fn look(
        &self,
        answer: &Answer<'_>,
        holds: &dyn Fn(&[VarId], &Answer<'_>) -> bool,
    ) -> Result<(), &'static str> {
        let Answer { head, text: buf, body_at } = *answer;
        let tests = match self {
            Expect::Alive(classes) => {
                let class = usize::from(head.status / 100);
                let alive = classes.get(class).copied().unwrap_or(false);
                return alive.then_some(()).ok_or("checking status code");
            }
            Expect::Match(tests) => tests,
        };
        let status = tests.status.as_ref();
        if !status.map_or((200..400).contains(&head.status), |status| status.holds(head.status)) {
            return Err("checking status code");
        }
        if !tests.headers.iter().all(|header| header.holds(head, buf)) {
            return Err("checking header");
        }
        if !tests.bodies.iter().all(|pattern| pattern.holds(&buf[body_at..])) {
            return Err("checking body");
        }
        if !tests.required.is_empty() && !holds(&tests.required, answer) {
            return Err("checking variables");
        }
        Ok(())
    }
}
