//! Regular expressions as the configuration writes them: PCRE's syntax, in time linear in the text.
//!
//! `pcre` writes a pattern in the notation of an engine. Most patterns run on `regex`, which never
//! backtracks. Look-around and back-references need `fancy-regex`, whose steps are bounded: a text that
//! would take longer counts as no match.
//!
//! DIFFERS(regex-bounded): PCRE runs recursions, conditions, branch resets and look-arounds with a
//! quantifier, and a pattern that backtracks as long as its match limit allows.
//!
//! Invariant: no pattern, however written, and no text can hold up a worker.

mod check;
mod pcre;

use std::{borrow::Cow, sync::Arc};

use forebay_conf::{Error, Span};

use self::pcre::Dialect;
use crate::var::{Captures, Registry, Scope, VarId};

/// How many steps a backtracking pattern may take for one text (PCRE's default match limit is ten
/// times that).
const BACKTRACK_LIMIT: usize = 1_000_000;

/// How large a pattern may become, and what it needs to run, where it does not come from the configuration.
const UNTRUSTED_BYTES: usize = 256 << 10;

/// Named groups and the variables that they set.
pub type Groups = Vec<(usize, VarId)>;

/// A compiled pattern. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Regex {
    engine: Engine,
    names: Arc<[(usize, Box<str>)]>,
    groups: usize,
    /// It began with `(*UTF8)`.
    utf: bool,
}

#[derive(Clone, Debug)]
enum Engine {
    Linear(Arc<regex::bytes::Regex>),
    /// Over characters if the second says so, else over bytes.
    Bounded(Arc<fancy_regex::Regex>, bool),
}

impl Regex {
    /// Compiles a pattern; `caseless` as by `~*`.
    ///
    /// Errors: the cause in PCRE2's words, and the place in the pattern where it is known, as nginx tells
    /// them (ngx_regex_compile).
    pub fn compile(pattern: &[u8], caseless: bool, span: Span) -> Result<Regex, Error> {
        Regex::build(pattern, caseless, span, None)
    }

    /// Compiles a pattern that does not come from the configuration: it may not become as large as one of
    /// those, nor take as long (PCRE's bound for all of them is 64 kB).
    pub fn compile_untrusted(pattern: &[u8], caseless: bool) -> Result<Regex, Error> {
        Regex::build(pattern, caseless, Span::default(), Some(UNTRUSTED_BYTES))
    }

    fn build(
        pattern: &[u8],
        caseless: bool,
        span: Span,
        limit: Option<usize>,
    ) -> Result<Regex, Error> {
        let fail = |cause: &str| {
            let shown = String::from_utf8_lossy(pattern);
            Error::emerg(span, format!("pcre2_compile() failed: {cause} in \"{shown}\""))
        };
        check::check(pattern).map_err(|wrong| {
            let mut error = fail(wrong.cause);
            if let Some(rest @ [_, ..]) = pattern.get(wrong.at..) {
                error.message.push_str(&format!(" at \"{}\"", String::from_utf8_lossy(rest)));
            }
            error
        })?;
        let text = &*pcre::text(pattern).ok_or_else(|| fail("invalid UTF-8"))?;
        let (engine, names) = match linear(text, caseless, limit).map_err(fail)? {
            Ok(regex) => {
                let names = owned(regex.capture_names());
                (Engine::Linear(Arc::new(regex)), names)
            }
            Err(first) => {
                let (regex, utf) = bounded(text, caseless, limit)
                    .map_err(|second| fail(&pcre::cause(&first.to_string(), &second)))?;
                let names = owned(regex.capture_names());
                (Engine::Bounded(Arc::new(regex), utf), names)
            }
        };
        let groups = names.len();
        let named = names.into_iter().enumerate();
        let names = named.filter_map(|(n, name)| Some((n, name?.into()))).collect();
        Ok(Regex { engine, names, groups, utf: pcre::is_utf(text) })
    }

    /// How many groups it has, the whole match not counted.
    pub fn groups(&self) -> usize {
        self.groups - 1
    }

    /// The named groups: `(group, name)`.
    pub fn names(&self) -> &[(usize, Box<str>)] {
        &self.names
    }

    /// Declares the variables that the named groups set: `(group, variable)`.
    pub fn bind<S: Scope>(&self, registry: &mut Registry<S>, span: Span) -> Result<Groups, Error> {
        self.names.iter().map(|(n, name)| Ok((*n, registry.stored(name, span)?))).collect()
    }

    /// Whether it can look at the text: one that begins with `(*UTF8)` looks at characters only.
    pub fn reads(&self, text: &[u8]) -> bool {
        !self.utf || std::str::from_utf8(text).is_ok()
    }

    /// Whether it matches anywhere in the text.
    pub fn is_match(&self, text: &[u8]) -> bool {
        if !self.reads(text) {
            return false;
        }
        match &self.engine {
            Engine::Linear(regex) => regex.is_match(text),
            Engine::Bounded(regex, utf) => regex.is_match(&as_text(text, *utf)).unwrap_or(false),
        }
    }

    /// Matches, and keeps the groups; they are left alone when it does not match.
    pub fn captures(&self, text: &[u8], into: &mut Captures) -> bool {
        if !self.reads(text) {
            return false;
        }
        match &self.engine {
            Engine::Linear(regex) => {
                let Some(found) = regex.captures(text) else { return false };
                into.set(text, found.iter().map(|g| g.map(|g| (g.start(), g.end()))));
                true
            }
            Engine::Bounded(regex, utf) => {
                let shown = as_text(text, *utf);
                let Ok(Some(found)) = regex.captures(&shown) else { return false };
                let groups = found.iter().map(|g| g.map(|g| (g.start(), g.end())));
                if *utf {
                    into.set(shown.as_bytes(), groups);
                } else {
                    let at = |offset: usize| shown[..offset].chars().count();
                    into.set(text, groups.map(|g| g.map(|(start, end)| (at(start), at(end)))));
                }
                true
            }
        }
    }

    /// Matches within a scope: the groups become `$1`…, the named ones their variables.
    pub fn run<S: Scope>(&self, scope: &S, text: &[u8], named: &[(usize, VarId)]) -> bool {
        if self.groups == 1 {
            let matched = self.is_match(text);
            if matched {
                scope.store().captures_mut().clear();
            }
            return matched;
        }
        if !self.captures(text, &mut scope.store().captures_mut()) {
            return false;
        }
        let captures = scope.store().captures();
        for (group, id) in named {
            scope.store().keep(*id, captures.group(*group));
        }
        true
    }
}

/// The pattern for the engine that never backtracks; the inner error if it needs the other.
fn linear(
    text: &str,
    caseless: bool,
    limit: Option<usize>,
) -> Result<Result<regex::bytes::Regex, regex::Error>, &'static str> {
    let written = pcre::write(text, Dialect::Linear, caseless)?;
    if written.possessive {
        return Ok(Err(regex::Error::Syntax("possessive quantifiers".to_owned())));
    }
    let mut builder = regex::bytes::RegexBuilder::new(&written.text);
    if let Some(bytes) = limit {
        builder.size_limit(bytes).dfa_size_limit(bytes);
    }
    Ok(builder.case_insensitive(caseless).unicode(written.utf).build())
}

/// What the engine that backtracks looks at.
fn as_text(text: &[u8], utf: bool) -> Cow<'_, str> {
    if utf { String::from_utf8_lossy(text) } else { pcre::bytes_as_chars(text) }
}

/// The pattern for the engine that backtracks; whether it runs over characters.
fn bounded(
    text: &str,
    caseless: bool,
    limit: Option<usize>,
) -> Result<(fancy_regex::Regex, bool), String> {
    let pcre::Written { text: written, utf, .. } = pcre::write(text, Dialect::Bounded, caseless)?;
    let flagged = if caseless { format!("(?i){written}") } else { written };
    let mut builder = fancy_regex::RegexBuilder::new(&flagged);
    if let Some(bytes) = limit {
        builder.delegate_size_limit(bytes).delegate_dfa_size_limit(bytes);
    }
    let regex = builder.backtrack_limit(BACKTRACK_LIMIT).build();
    Ok((regex.map_err(|error| error.to_string())?, utf))
}

fn owned<'n>(names: impl Iterator<Item = Option<&'n str>>) -> Vec<Option<String>> {
    names.map(|name| name.map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regex(pattern: &str) -> Regex {
        Regex::compile(pattern.as_bytes(), false, Span::default()).unwrap()
    }

    #[test]
    fn groups_are_kept_by_number() {
        let mut captures = Captures::default();
        assert!(regex(r"^/(\w+)/(x)?(\d+)$").captures(b"/a/12", &mut captures));
        assert_eq!(captures.group(1), Some(&b"a"[..]));
        assert_eq!(captures.group(2), None);
        assert_eq!(captures.group(3), Some(&b"12"[..]));
    }

    #[test]
    fn a_name_is_that_of_one_group() {
        for pattern in [r"(?<a>x)(?<a>y)", r"(?=x)(?<a>x)(?P<a>y)", r"(?'a'x)|(?<a>y)"] {
            let error = Regex::compile(pattern.as_bytes(), false, Span::default()).unwrap_err();
            let want = "two named subpatterns have the same name (PCRE2_DUPNAMES not set)";
            assert!(error.to_string().contains(want), "{error}");
        }
        for pattern in [r"(?<a>x)(?<A>y)", r"(?<a>x)\(?<a>y", r"(?<a>x)[(?<a>]"] {
            assert_eq!(regex(pattern).names()[0].1, "a".into(), "{pattern}");
        }
    }

    #[test]
    fn look_ahead_works() {
        assert!(regex(r"^/(?!admin)").is_match(b"/user"));
        assert!(!regex(r"^/(?!admin)").is_match(b"/admin"));
    }

    #[test]
    fn without_utf_bytes_are_matched_whichever_the_engine() {
        let groups = |pattern: &[u8], text: &[u8]| {
            let regex = Regex::compile(pattern, false, Span::default()).unwrap();
            let mut captures = Captures::default();
            regex.captures(text, &mut captures).then(|| captures.group(1).unwrap().to_owned())
        };
        for (pattern, text, group) in [
            (&b"^/(?!api)(.*)$"[..], &b"/a\xE9b"[..], Some(&b"a\xE9b"[..])),
            (b"^(?=.)(.).$", "é".as_bytes(), Some(b"\xC3")),
            (b"^(.).$", "é".as_bytes(), Some(b"\xC3")),
            ("(?!x)(é)b".as_bytes(), "aéb".as_bytes(), Some("é".as_bytes())),
            ("^([é])".as_bytes(), b"\xA9", Some(b"\xA9")),
            (b"^(?=.)([\xE9])", b"\xE9", Some(b"\xE9")),
            (b"^(\\p{L})", "é".as_bytes(), Some(b"\xC3")),
            (b"^(\\x{e9})", b"\xE9", Some(b"\xE9")),
            (b"^(?=.)(\\w+)", "aé".as_bytes(), Some(b"a")),
            (b"^(?=.)(..?)\\b", "éa".as_bytes(), Some("é".as_bytes())),
            (b"(*UTF8)^(?=.)(.)", "é".as_bytes(), Some("é".as_bytes())),
            (b"(*UTF8)^(.)", "é".as_bytes(), Some("é".as_bytes())),
            (b"^(?=.)(.)$", "é".as_bytes(), None),
        ] {
            let shown = String::from_utf8_lossy(pattern).into_owned();
            assert_eq!(groups(pattern, text).as_deref(), group, "{shown}");
        }
        let error = Regex::compile(b"(*UTF8)\xE9", false, Span::default()).unwrap_err();
        assert!(error.message.contains("failed: "), "{}", error.message);
    }

    #[test]
    fn a_possessive_quantifier_gives_nothing_back() {
        for pattern in ["^a++a", "^a*+a", "^a{1,2}+a$", "^(?:a|b)++b", "^[^/]++a"] {
            assert!(!regex(pattern).is_match(b"aab"), "{pattern}");
        }
        assert!(regex("^([^/]++)/(.*+)$").is_match(b"a/b"));
    }

    #[test]
    fn catastrophic_backtracking_is_no_match() {
        let text = [b"a".repeat(60), b"!".to_vec()].concat();
        assert!(!regex(r"^(?=(a+)+$)(a+)+$").is_match(&text));
    }

    #[test]
    fn a_pattern_of_a_page_does_not_become_large() {
        // A few bytes, a million states.
        let error = Regex::compile_untrusted(b"((a{1,100}){1,100}){1,20}", true).unwrap_err();
        assert!(error.message.starts_with("pcre2_compile() failed: "), "{}", error.message);
        for pattern in [r"^(\w{1,50})-([^/]{2,20})\.\d+$", r"^(?!no)(\w{1,50})-\S+$"] {
            let usual = Regex::compile_untrusted(pattern.as_bytes(), true).unwrap();
            assert!(usual.is_match(b"some-THING.42"), "{pattern}");
        }
    }

    #[test]
    fn an_escaped_slash_and_minus_are_accepted() {
        assert!(regex(r"\/a\-b\.php$").is_match(b"/a-b.php"));
    }

    #[test]
    fn a_bad_pattern_names_the_cause() {
        let error = Regex::compile(b"(", false, Span::default()).unwrap_err();
        assert!(error.message.starts_with("pcre2_compile() failed: "), "{}", error.message);
    }

    #[test]
    fn what_pcre_refuses_is_refused_and_shown() {
        for (pattern, words) in [
            ("a**b", r#"quantifier does not follow a repeatable item in "a**b" at "*b""#),
            ("(a", r#"missing closing parenthesis in "(a""#),
            ("é)", r#"unmatched closing parenthesis in "é)" at ")""#),
            (r"a\p{Foo}", r#"unknown property after \P or \p in "a\p{Foo}""#),
            // PCRE takes this; no engine here does.
            ("(?=a)*b", r#"quantifier does not follow a repeatable item in "(?=a)*b""#),
        ] {
            let error = Regex::compile(pattern.as_bytes(), false, Span::default()).unwrap_err();
            assert_eq!(error.message, format!("pcre2_compile() failed: {words}"));
        }
    }

    #[test]
    fn a_pattern_over_characters_does_not_look_at_other_bytes() {
        for pattern in ["(*UTF8)^a", "(*UTF8)^(?=a)", "(*UTF)a(.)"] {
            let regex = regex(pattern);
            let mut captures = Captures::default();
            for (text, reads) in [(&b"a\xc3\xa9"[..], true), (b"a\xe9", false)] {
                assert_eq!(regex.reads(text), reads, "{pattern}");
                assert_eq!(regex.is_match(text), reads, "{pattern}");
                assert_eq!(regex.captures(text, &mut captures), reads, "{pattern}");
            }
        }
        assert!(regex("^a").reads(b"a\xe9"));
    }

    #[test]
    fn options_hold_to_the_end_of_their_group() {
        for (pattern, takes, refuses) in [
            ("^(?x: a )#b", "a#b", "a"),
            ("^(?x)a(?-x)#b", "a#b", "a"),
            ("^(?:(?x) a )#b", "a#b", "a"),
            ("^(?x:(?-x)a )#b", "a #b", "a#b"),
            ("^(?m:a$)\nb$", "a\nb\n", "a\nb\nc"),
            ("^(?=(?i)a).(?-i)b", "Ab", "AB"),
            ("^(?=.)((?i)a)+b", "aAb", "aAB"),
            ("^(?=.)(?:(?x) a )b c", "ab c", "abc"),
            ("^(?!q)(?:(?s).).x", "\nax", "\n\nx"),
            ("^(?!(?i)x)b", "b", "B"),
        ] {
            assert!(regex(pattern).is_match(takes.as_bytes()), "{pattern}");
            assert!(!regex(pattern).is_match(refuses.as_bytes()), "{pattern}");
        }
    }
}
