//! `sub_filter`: replaces strings in responses, whatever their case (`ngx_http_sub_filter_module.c`).
//!
//! The leftmost match wins, and of several there the one whose directive stands first. What may be
//! the beginning of a match is held back until the next bytes come.
//!
//! Replacements with variables are worked out when the head is, not at the first match.
//!
//! Invariant: what is held back is always shorter than the longest pattern.

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_conf::{Arity, Error, Node, value};
use forebay_session::var::Template;

use crate::{
    body::{Body, Chunk, Fault, Piece, Reader, Source},
    handler::{Filter, Filtered},
    mime::Types,
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    request::Request,
};

/// `ngx_http_sub_filter_module`.
pub struct Sub;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    pairs: Option<Arc<Vec<Pair>>>,
    types: Option<Types>,
    once: Option<bool>,
    last_modified: Option<bool>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; pairs, types, once, last_modified);
    }
}

/// One `sub_filter`.
struct Pair {
    find: Template,
    replacement: Template,
}

impl Module for Sub {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_sub_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "sub_filter",
            &["string replacement"],
            "",
            ANY,
            Arity::TWO,
            "A string to replace in responses, in any case, and by what.",
            pair,
        ),
        set(
            "sub_filter_types",
            &["mime-type ..."],
            "text/html",
            ANY,
            Arity::SOME,
            "In which types strings are replaced, beside text/html.",
            |c, n, cx| Types::set(&mut c.types, n, cx),
        ),
        set(
            "sub_filter_once",
            &["on | off"],
            "on",
            ANY,
            Arity::FLAG,
            "Whether each string is replaced only where it comes first.",
            |c, n, _| value::set_flag(&mut c.once, n),
        ),
        set(
            "sub_filter_last_modified",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether Last-Modified of the original response stays.",
            |c, n, _| value::set_flag(&mut c.last_modified, n),
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let Some(pairs) = conf.pairs.clone() else { return Ok(()) };
        let texts: Option<Vec<_>> = pairs.iter().map(|pair| pair.find.as_text()).collect();
        let fixed = texts.map(|texts| Arc::new(Table::new(texts.into_iter())));
        b.filter(SubFilter {
            pairs,
            fixed,
            types: conf.types.clone().unwrap_or_else(Types::html),
            once: conf.once.unwrap_or(true),
            last_modified: conf.last_modified.unwrap_or(false),
        });
        Ok(())
    }
}

fn pair(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (find, replacement) = (&node.args[0], &node.args[1]);
    if find.value.is_empty() {
        return Err(Error::emerg(find.span, "empty search pattern"));
    }
    let mut parse =
        |arg: &forebay_conf::Arg| Template::parse(&arg.value, arg.span, &mut cx.registry);
    let pair = Pair { find: parse(find)?, replacement: parse(replacement)? };
    let pairs = conf.pairs.get_or_insert_default();
    // Only this level holds it while its directives are being read.
    Arc::get_mut(pairs).expect("not shared before inheritance").push(pair);
    Ok(())
}

struct SubFilter {
    pairs: Arc<Vec<Pair>>,
    /// The patterns, where none has variables.
    fixed: Option<Arc<Table>>,
    types: Types,
    once: bool,
    last_modified: bool,
}

impl Filter for SubFilter {
    fn filter(&self, r: &mut Request) -> Filtered {
        let response = &r.response;
        if response.content_length == Some(0) || !self.types.has(response.content_type.as_ref()) {
            return Filtered::Continue;
        }
        let (table, pairs): (_, Vec<&Pair>) = match &self.fixed {
            Some(table) => (table.clone(), self.pairs.iter().collect()),
            None => {
                let found = self.pairs.iter().map(|pair| (pair.find.value(r), pair));
                let found: Vec<_> = found.filter(|(text, _)| !text.is_empty()).collect();
                if found.is_empty() {
                    return Filtered::Continue;
                }
                let table = Table::new(found.iter().map(|(text, _)| &text[..]));
                (Arc::new(table), found.into_iter().map(|(_, pair)| pair).collect())
            }
        };
        if !r.subrequest {
            let response = &mut r.response;
            response.content_length = None;
            if self.last_modified {
                response.weaken_etag();
            } else {
                response.last_modified = None;
                response.remove("Last-Modified");
                response.remove("ETag");
            }
        }
        if !matches!(r.response.body, Body::Empty) {
            let replacements = pairs.iter().map(|pair| pair.replacement.value(r)).collect();
            let body = mem::take(&mut r.response.body);
            let body = Reader::new(body, r.location().core.output_buffers.1);
            let replacer = Replacer::new(table, replacements, self.once);
            r.response.body =
                Body::Stream(Box::new(Replaced { body, replacer, out: VecDeque::new() }));
        }
        Filtered::Continue
    }
}

/// Patterns in lower case, and how far a byte that is in none of them at that place lets one skip
/// (`ngx_http_sub_init_tables`).
#[derive(Debug)]
struct Table {
    patterns: Vec<Box<[u8]>>,
    min: usize,
    max: usize,
    shift: [u8; 256],
}

impl Table {
    /// Of patterns none of which is empty.
    fn new<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Table {
        let patterns: Vec<Box<[u8]>> = texts.map(|text| text.to_ascii_lowercase().into()).collect();
        let min = patterns.iter().map(|p| p.len()).min().unwrap_or(1).min(255);
        let max = patterns.iter().map(|p| p.len()).max().unwrap_or(1);
        let mut shift = [min as u8; 256];
        for pattern in &patterns {
            for back in 0..min {
                let byte = pattern[min - 1 - back];
                for byte in [byte, byte.to_ascii_uppercase()] {
                    let shift = &mut shift[usize::from(byte)];
                    *shift = (*shift).min(back as u8);
                }
            }
        }
        Table { patterns, min, max, shift }
    }
}

/// What was found in some bytes.
enum Found {
    /// Pattern `index` at `start`.
    Match { start: usize, index: usize },
    /// Nothing begins before that byte; a match may begin there, with bytes that are still to come.
    Nothing { from: usize },
}

/// The search, and what it has replaced so far.
struct Replacer {
    table: Arc<Table>,
    replacements: Vec<Vec<u8>>,
    /// `sub_filter_once`: which have been replaced.
    used: Option<Vec<bool>>,
    left: usize,
    /// The end of what came, which may be the beginning of a match.
    held: Vec<u8>,
}

impl Replacer {
    fn new(table: Arc<Table>, replacements: Vec<Vec<u8>>, once: bool) -> Replacer {
        let left = table.patterns.len();
        let used = once.then(|| vec![false; left]);
        Replacer { table, replacements, used, left, held: Vec::new() }
    }

    /// Looks for the first match that begins at `from` or later.
    fn find(&self, text: &[u8], mut from: usize) -> Found {
        let table = &*self.table;
        while let Some(&byte) = text.get(from + table.min - 1) {
            let shift = usize::from(table.shift[usize::from(byte)]);
            if shift > 0 {
                from += shift;
                continue;
            }
            if let Some(found) = self.test(text, from) {
                return found;
            }
            from += 1;
        }
        // What is left is too short for any pattern, but may be the beginning of one.
        while from < text.len() {
            if let Some(found) = self.test(text, from) {
                return found;
            }
            from += 1;
        }
        Found::Nothing { from: text.len() }
    }

    /// Whether a pattern stands there, or may with more bytes.
    fn test(&self, text: &[u8], start: usize) -> Option<Found> {
        let rest = &text[start..];
        for (index, pattern) in self.table.patterns.iter().enumerate() {
            if self.used.as_ref().is_some_and(|used| used[index]) {
                continue;
            }
            let common = rest.len().min(pattern.len());
            if !rest[..common].eq_ignore_ascii_case(&pattern[..common]) {
                continue;
            }
            return Some(if common == pattern.len() {
                Found::Match { start, index }
            } else {
                Found::Nothing { from: start }
            });
        }
        None
    }

    /// Replaces in what comes next; what can be handed out.
    fn feed(&mut self, piece: Bytes) -> Bytes {
        if self.left == 0 && self.held.is_empty() {
            return piece;
        }
        let text = if self.held.is_empty() {
            piece
        } else {
            let mut joined = mem::take(&mut self.held);
            joined.extend_from_slice(&piece);
            joined.into()
        };
        let mut out = Vec::new();
        let (mut copied, mut at) = (0, 0);
        while self.left > 0 {
            match self.find(&text, at) {
                Found::Match { start, index } => {
                    out.extend_from_slice(&text[copied..start]);
                    out.extend_from_slice(&self.replacements[index]);
                    at = start + self.table.patterns[index].len();
                    copied = at;
                    if let Some(used) = &mut self.used {
                        used[index] = true;
                        self.left -= 1;
                    }
                }
                Found::Nothing { from } => {
                    self.held.extend_from_slice(&text[from..]);
                    debug_assert!(self.held.len() < self.table.max);
                    if copied == 0 && out.is_empty() && at == 0 {
                        return text.slice(..from);
                    }
                    out.extend_from_slice(&text[copied..from]);
                    return out.into();
                }
            }
        }
        out.extend_from_slice(&text[copied..]);
        out.into()
    }

    /// What was held back, once nothing more comes. As in nginx, shorter patterns are not looked for
    /// within the beginning of a longer one.
    fn finish(&mut self) -> Bytes {
        mem::take(&mut self.held).into()
    }
}

struct Replaced {
    body: Reader,
    replacer: Replacer,
    out: VecDeque<Chunk>,
}

impl Source for Replaced {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        loop {
            if let Some(chunk) = self.out.pop_front() {
                return Poll::Ready(Some(Ok(chunk)));
            }
            match ready!(self.body.poll_next(cx)) {
                Some(Ok(Piece::Bytes(bytes))) => {
                    let bytes = self.replacer.feed(bytes);
                    if !bytes.is_empty() {
                        return Poll::Ready(Some(Ok(Chunk::Bytes(bytes))));
                    }
                }
                Some(Ok(Piece::Flush)) => return Poll::Ready(Some(Ok(Chunk::Flush))),
                Some(Ok(Piece::Nested(child))) => {
                    // What stands behind a body is no part of its text (`last_in_chain`).
                    let rest = self.replacer.finish();
                    if !rest.is_empty() {
                        self.out.push_back(Chunk::Bytes(rest));
                    }
                    self.out.push_back(Chunk::Nested(child));
                }
                Some(Err(fault)) => return Poll::Ready(Some(Err(fault))),
                None => {
                    let rest = self.replacer.finish();
                    if rest.is_empty() {
                        return Poll::Ready(None);
                    }
                    self.out.push_back(Chunk::Bytes(rest));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    fn replace(conf: &str, text: &str) -> String {
        testing::filtered_text(conf, text)
    }

    #[test]
    fn strings_are_replaced_wherever_the_pieces_end() {
        for (conf, text, want) in [
            ("sub_filter a b;", "xaxa", "xbxa"),
            ("sub_filter a b; sub_filter_once off;", "xaxaA", "xbxbb"),
            ("sub_filter Hello bye; sub_filter_once off;", "hELLO HELLO hell", "bye bye hell"),
            ("sub_filter aab X; sub_filter_once off;", "aaaab aab aa", "aaX X aa"),
            ("sub_filter abab X; sub_filter_once off;", "abababab", "XX"),
            ("sub_filter abab X; sub_filter_once off;", "ababab", "Xab"),
            ("sub_filter a '';", "aba", "ba"),
            ("sub_filter a aa; sub_filter_once off;", "aaa", "aaaaaa"),
            ("sub_filter abc 1; sub_filter b 2;", "ab abc b", "a2 1 b"),
            ("sub_filter b 2; sub_filter abc 1;", "ab abc b", "a2 1 b"),
            ("sub_filter abcd 1; sub_filter ab 2;", "abab abcd", "2ab 1"),
            ("sub_filter abc 1; sub_filter b 2;", "xxab", "xxab"),
            ("sub_filter a 1; sub_filter a 2;", "aaa", "12a"),
            ("sub_filter longest 1; sub_filter t 2;", "longes t longest", "longes 2 1"),
            ("sub_filter '</head>' '$host</head>';", "<HEAD></HEAD>", "<HEAD></head>"),
            ("set $x ab; sub_filter $x Y; sub_filter c$x Z;", "ab", "ab"),
            ("sub_filter '\u{e9}' e;", "caf\u{e9}", "cafe"),
        ] {
            assert_eq!(replace(conf, text), want, "{conf}");
        }
    }

    #[test]
    fn several_patterns_take_the_leftmost_match() {
        let conf = "sub_filter abcde 1; sub_filter cd 2; sub_filter_once off;";
        assert_eq!(replace(conf, "abcdx abcde cd"), "ab2x 1 2");
    }

    #[test]
    fn a_long_pattern_is_found() {
        let long = "x".repeat(300);
        let conf = format!("sub_filter {long} y; sub_filter_once off;");
        assert_eq!(replace(&conf, &"x".repeat(900)), "yyy");
    }

    #[test]
    fn the_head_says_that_the_body_changed() {
        for (conf, want_modified, want_fields) in [
            ("sub_filter a b;", None, ""),
            ("sub_filter a b; sub_filter_last_modified on;", Some(5), "ETag: W/\"a\"\n"),
        ] {
            let mut r = testing::request(conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            r.respond(200, "text/html".into(), "a".into());
            r.response.last_modified = Some(5);
            r.response.add("ETag", "\"a\"");
            testing::filter(&mut r);
            assert_eq!(r.response.content_length, None);
            assert_eq!(r.response.last_modified, want_modified);
            assert_eq!(testing::fields(&r), want_fields);
        }
    }

    #[test]
    fn other_types_are_left_alone() {
        for (conf, content_type, want) in [
            ("sub_filter a b;", "text/plain", "a"),
            ("sub_filter a b; sub_filter_types text/plain;", "text/plain", "b"),
            ("sub_filter a b; sub_filter_types text/plain;", "text/html", "b"),
            ("sub_filter a b; sub_filter_types *;", "image/png", "b"),
        ] {
            let mut r = testing::request(conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            r.respond(200, content_type.into(), "a".into());
            testing::filter(&mut r);
            assert_eq!(testing::text(&mut r), want, "{conf}");
        }
    }

    #[test]
    fn mistakes_are_told_in_nginx_words() {
        let error = testing::conf_error("sub_filter '' b;");
        assert!(error.contains("empty search pattern"), "{error}");
    }

    #[test]
    fn a_level_without_patterns_has_no_filter() {
        let plain = testing::request("", "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let conf = "sub_filter_once off; sub_filter_types text/css;";
        let set = testing::request(conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(plain.location().filters.len(), set.location().filters.len());
    }
}
