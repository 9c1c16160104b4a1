//! Tables of directives: where each may stand, how many arguments it takes, how it is documented, and
//! which setter takes it; and the checks that nginx's `ngx_conf_handler` makes before it calls one.
//!
//! Invariant: a check looks at the shape of a node only, never at what a value means.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Braces, Diagnostics, Error};
use crate::files::Files;
use crate::source::{Sources, Span};
use crate::tree::Node;
use crate::value;

/// Where a directive may stand, or the one place that is being loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Contexts(pub u32);

impl Contexts {
    /// Nowhere.
    pub const NONE: Contexts = Contexts(0);
    /// Outside all blocks.
    pub const MAIN: Contexts = Contexts(1);
    /// `events {}`.
    pub const EVENTS: Contexts = Contexts(1 << 1);
    /// `http {}`.
    pub const HTTP: Contexts = Contexts(1 << 2);
    /// `server {}` in `http`.
    pub const SERVER: Contexts = Contexts(1 << 3);
    /// `location {}`.
    pub const LOCATION: Contexts = Contexts(1 << 4);
    /// `if {}` in `server`.
    pub const SIF: Contexts = Contexts(1 << 5);
    /// `if {}` in `location`.
    pub const LIF: Contexts = Contexts(1 << 6);
    /// `limit_except {}`.
    pub const LMT: Contexts = Contexts(1 << 7);
    /// `upstream {}` in `http`.
    pub const UPSTREAM: Contexts = Contexts(1 << 8);
    /// `stream {}`.
    pub const STREAM: Contexts = Contexts(1 << 9);
    /// `server {}` in `stream`.
    pub const STREAM_SERVER: Contexts = Contexts(1 << 10);
    /// `upstream {}` in `stream`.
    pub const STREAM_UPSTREAM: Contexts = Contexts(1 << 11);
    /// Everywhere.
    pub const ANY: Contexts = Contexts(u32::MAX);

    /// The most usual set: `http`, `server`, `location`.
    pub const HTTP_SERVER_LOCATION: Contexts =
        Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

    /// Both.
    pub const fn or(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    /// Whether they have a place in common.
    pub const fn has(self, other: Contexts) -> bool {
        self.0 & other.0 != 0
    }

    /// The name of the first place in it, as nginx's documentation has it.
    pub fn name(self) -> &'static str {
        self.names().next().unwrap_or("nowhere")
    }

    /// The names of all places in it, without repetition.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let here = move |(i, n): &(usize, &(Contexts, &'static str))| {
            let earlier = NAMES[..*i].iter().any(|(c, name)| self.has(*c) && *name == n.1);
            self.has(n.0) && !earlier
        };
        NAMES.iter().enumerate().filter(here).map(|(_, n)| n.1)
    }
}

impl fmt::Display for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Contexts::ANY {
            return f.write_str("any");
        }
        let names: Vec<_> = self.names().collect();
        f.write_str(&names.join(", "))
    }
}

static NAMES: [(Contexts, &str); 12] = [
    (Contexts::MAIN, "main"),
    (Contexts::EVENTS, "events"),
    (Contexts::HTTP, "http"),
    (Contexts::STREAM, "stream"),
    (Contexts::SERVER, "server"),
    (Contexts::STREAM_SERVER, "server"),
    (Contexts::LOCATION, "location"),
    (Contexts::SIF, "if in server"),
    (Contexts::LIF, "if in location"),
    (Contexts::LMT, "limit_except"),
    (Contexts::UPSTREAM, "upstream"),
    (Contexts::STREAM_UPSTREAM, "upstream"),
];

/// How many arguments a directive takes, and whether a block follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity {
    /// Bit n is set when n arguments are right.
    counts: u32,
    /// This number and more are right too.
    at_least: Option<u32>,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Plain,
    Flag,
    Block,
}

impl Arity {
    /// No argument.
    pub const NONE: Arity = Arity::exactly(0);
    /// One argument.
    pub const ONE: Arity = Arity::exactly(1);
    /// Two arguments.
    pub const TWO: Arity = Arity::exactly(2);
    /// Three arguments.
    pub const THREE: Arity = Arity::exactly(3);
    /// `on` or `off`.
    pub const FLAG: Arity = Arity { shape: Shape::Flag, ..Arity::ONE };
    /// Any number of arguments, none too.
    pub const ANY: Arity = Arity::at_least(0);
    /// One or two.
    pub const ONE_OR_TWO: Arity = Arity::between(1, 2);
    /// One or more.
    pub const SOME: Arity = Arity::at_least(1);
    /// A block without arguments.
    pub const BLOCK: Arity = Arity::NONE.block();
    /// A block with one argument.
    pub const BLOCK_ONE: Arity = Arity::ONE.block();
    /// A block with two arguments.
    pub const BLOCK_TWO: Arity = Arity::TWO.block();

    /// So many, at most 31.
    pub const fn exactly(n: u32) -> Arity {
        Arity::between(n, n)
    }

    /// So many or more.
    pub const fn at_least(n: u32) -> Arity {
        Arity { counts: 0, at_least: Some(n), shape: Shape::Plain }
    }

    /// From `low` to `high`, at most 31.
    pub const fn between(low: u32, high: u32) -> Arity {
        assert!(low <= high && high < 32);
        let mut counts = 0;
        let mut n = low;
        while n <= high {
            counts |= 1 << n;
            n += 1;
        }
        Arity { counts, at_least: None, shape: Shape::Plain }
    }

    /// Either, as nginx's `TAKE13` is `exactly(1).or(exactly(3))`. The shape is that of the first.
    pub const fn or(self, other: Arity) -> Arity {
        let at_least = match (self.at_least, other.at_least) {
            (Some(a), Some(b)) => Some(if a < b { a } else { b }),
            (Some(a), None) | (None, Some(a)) => Some(a),
            (None, None) => None,
        };
        Arity { counts: self.counts | other.counts, at_least, shape: self.shape }
    }

    /// The same with a block behind.
    pub const fn block(self) -> Arity {
        Arity { shape: Shape::Block, ..self }
    }

    /// Whether a block follows.
    pub const fn is_block(self) -> bool {
        matches!(self.shape, Shape::Block)
    }

    /// Whether so many arguments are right.
    pub fn takes(self, count: usize) -> bool {
        let listed = count < 32 && self.counts & (1 << count) != 0;
        listed || self.at_least.is_some_and(|n| count >= n as usize)
    }
}

/// What a directive is, for checks, messages and the reference.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Its name.
    pub name: &'static str,
    /// Its forms as in nginx's documentation, without the name: `&["on | off"]`.
    pub syntax: &'static [&'static str],
    /// Its default; empty for none.
    pub default: &'static str,
    /// Where it may stand.
    pub contexts: Contexts,
    /// How many arguments it takes, and whether a block.
    pub arity: Arity,
    /// One line for the reference.
    pub doc: &'static str,
}

/// A directive with the setter that takes it into a `C`.
pub struct Directive<C: 'static> {
    /// What it is.
    pub spec: Spec,
    /// Takes a node that passed [`check`].
    pub set: Setter<C>,
}

/// Takes a node that passed [`check`] into a `C`.
pub type Setter<C> = fn(&mut C, &Node, &mut Loader<'_>) -> Result<(), Error>;

/// What a setter may use while a configuration is loaded.
pub struct Loader<'a> {
    /// Reads what the configuration names.
    pub files: &'a mut dyn Files,
    /// The configuration's files.
    pub sources: &'a mut Sources,
    /// Where to put warnings, and errors that are not the setter's last word.
    pub diags: &'a mut Diagnostics,
    /// What relative names are relative to (`-p`).
    pub prefix: PathBuf,
    /// What relative names of configuration files are relative to: the directory of the main file.
    pub conf_prefix: PathBuf,
}

impl Loader<'_> {
    /// A name relative to the prefix (`ngx_conf_full_name` with 0): logs, roots, temporary files.
    pub fn full_path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.prefix.join(name)
    }

    /// A name relative to the configuration (`ngx_conf_full_name` with 1): certificates, user files.
    pub fn conf_path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.conf_prefix.join(name)
    }

    /// Warns.
    pub fn warn(&mut self, span: Span, message: impl Into<String>) {
        self.diags.push(Error::warn(span, message));
    }

    /// Remarks.
    pub fn info(&mut self, span: Span, message: impl Into<String>) {
        self.diags.push(Error::info(span, message));
    }
}

/// Whether a node is right as a `spec` in `context`: place, block, number of arguments, `on` or `off`.
/// The order and the texts are `ngx_conf_handler`'s.
pub fn check(spec: &Spec, node: &Node, context: Contexts) -> Result<(), Error> {
    if !spec.contexts.has(context) {
        return Err(not_allowed(node, spec.contexts));
    }
    let name = spec.name;
    match (spec.arity.is_block(), node.block.is_some()) {
        (false, true) => {
            let text = format!("directive \"{name}\" is not terminated by \";\"");
            return Err(Error::emerg(node.span, text).of_braces(Braces::Misplaced));
        }
        (true, false) => {
            let text = format!("directive \"{name}\" has no opening \"{{\"");
            return Err(Error::emerg(node.span, text));
        }
        _ => {}
    }
    if !spec.arity.takes(node.args.len()) {
        let error = node.wrong_count();
        return Err(match error.hint {
            Some(_) => error,
            None => error.with_hint(format!("syntax: {}", spec.usage().join(" or "))),
        });
    }
    match spec.arity.shape {
        Shape::Flag => value::flag(node).map(drop),
        Shape::Plain | Shape::Block => Ok(()),
    }
}

/// nginx's error for a directive in a wrong place.
pub(crate) fn not_allowed(node: &Node, allowed: Contexts) -> Error {
    let text = format!("\"{}\" directive is not allowed here", node.name.lossy());
    Error::emerg(node.span, text).with_hint(format!("allowed in: {allowed}"))
}

/// The error for an entry of a data block (`types`, `map`, `geo` …) that has a block of its own.
pub fn check_entry(node: &Node) -> Result<(), Error> {
    match node.block {
        Some(_) => Err(Error::emerg(node.span, "unexpected \"{\"")),
        None => Ok(()),
    }
}

impl Spec {
    /// Its forms with name and end, as the documentation shows them: `sendfile on | off;`.
    pub fn usage(&self) -> Vec<String> {
        let end = if self.arity.is_block() { " { ... }" } else { ";" };
        let form = |args: &&str| match args.is_empty() {
            true => format!("{}{end}", self.name),
            false => format!("{} {args}{end}", self.name),
        };
        self.syntax.iter().map(form).collect()
    }
}

/// `include`, which is expanded before any table is asked: for the reference.
pub const INCLUDE: Spec = Spec {
    name: "include",
    syntax: &["file | mask"],
    default: "",
    contexts: Contexts::ANY,
    arity: Arity::ONE,
    doc: "Puts the directives of another file, or of all files that match a mask, in its place.",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Memory;
    use crate::parse::{ParseOptions, parse_text};

    const FLAG: Spec = Spec {
        name: "sendfile",
        syntax: &["on | off"],
        default: "off",
        contexts: Contexts::HTTP_SERVER_LOCATION,
        arity: Arity::FLAG,
        doc: "Sends files without copying.",
    };

    fn node(text: &str) -> Node {
        let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
        let (mut files, opts) = (Memory::default(), ParseOptions::default());
        let nodes = parse_text("t", text.as_bytes(), &mut files, &opts, &mut sources, &mut diags);
        assert!(diags.is_empty(), "{text}: {diags:?}");
        nodes.into_iter().next().unwrap()
    }

    #[test]
    fn a_node_of_wrong_shape_has_nginx_text() {
        let block = Spec { name: "server", arity: Arity::BLOCK, syntax: &[""], ..FLAG };
        let two = Spec { name: "x", arity: Arity::TWO, ..FLAG };
        let cases: &[(&Spec, &str, &str)] = &[
            (&FLAG, "sendfile on;", ""),
            (&FLAG, "sendfile OFF;", ""),
            (
                &FLAG,
                "sendfile yes;",
                "invalid value \"yes\" in \"sendfile\" directive, it must be \"on\" or \"off\"",
            ),
            (&FLAG, "sendfile;", "invalid number of arguments in \"sendfile\" directive"),
            (&FLAG, "sendfile on on;", "invalid number of arguments in \"sendfile\" directive"),
            (&FLAG, "sendfile {}", "directive \"sendfile\" is not terminated by \";\""),
            (&block, "server;", "directive \"server\" has no opening \"{\""),
            (&block, "server x {}", "invalid number of arguments in \"server\" directive"),
            (&block, "server {}", ""),
            (&two, "x a b;", ""),
        ];
        for (spec, text, want) in cases {
            let got = check(spec, &node(text), Contexts::HTTP).err().map(|e| e.message);
            assert_eq!(got.unwrap_or_default(), *want, "{text}");
        }
    }

    #[test]
    fn a_wrong_place_is_told_before_a_wrong_count() {
        let error = check(&FLAG, &node("sendfile;"), Contexts::EVENTS).unwrap_err();
        assert_eq!(error.message, "\"sendfile\" directive is not allowed here");
        assert_eq!(error.hint.as_deref(), Some("allowed in: http, server, location"));
        let error = check(&FLAG, &node("sendfile;"), Contexts::HTTP).unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("syntax: sendfile on | off;"));
    }

    #[test]
    fn arities_take_what_they_say() {
        let take13 = Arity::exactly(1).or(Arity::exactly(3));
        let cases = [
            (Arity::NONE, "0"),
            (Arity::ONE_OR_TWO, "1 2"),
            (Arity::at_least(3), "3 4 5"),
            (Arity::ANY, "0 1 2 3 4 5"),
            (take13, "1 3"),
            (Arity::NONE.or(Arity::at_least(4)), "0 4 5"),
        ];
        for (arity, want) in cases {
            let taken: Vec<_> = (0..6).filter(|n| arity.takes(*n)).map(|n| n.to_string()).collect();
            assert_eq!(taken.join(" "), want);
        }
        assert!(Arity::SOME.takes(100_000) && !Arity::ONE.takes(32));
    }

    #[test]
    fn contexts_have_nginx_names() {
        let c = Contexts::HTTP.or(Contexts::SIF).or(Contexts::LIF);
        assert_eq!(c.to_string(), "http, if in server, if in location");
        let servers = Contexts::SERVER.or(Contexts::STREAM_SERVER);
        assert_eq!((servers.to_string().as_str(), servers.name()), ("server", "server"));
        assert_eq!((Contexts::ANY.to_string().as_str(), Contexts::NONE.name()), ("any", "nowhere"));
    }

    #[test]
    fn entries_of_data_blocks_have_no_blocks() {
        assert_eq!(check_entry(&node("a { b; }")).unwrap_err().message, "unexpected \"{\"");
        assert!(check_entry(&node("a b;")).is_ok());
    }

    #[test]
    fn a_loader_resolves_names_and_collects_remarks() {
        let (mut files, mut sources, mut diags) =
            (Memory::default(), Sources::new(), Diagnostics::new());
        let mut loader = Loader {
            files: &mut files,
            sources: &mut sources,
            diags: &mut diags,
            prefix: "/p".into(),
            conf_prefix: "/p/conf".into(),
        };
        assert_eq!(loader.full_path("logs/a"), Path::new("/p/logs/a"));
        assert_eq!(loader.conf_path("cert.pem"), Path::new("/p/conf/cert.pem"));
        assert_eq!(loader.conf_path("/cert.pem"), Path::new("/cert.pem"));
        loader.warn(Span::default(), "w");
        loader.info(Span::default(), "i");
        assert_eq!(diags.iter().map(|e| e.level.name()).collect::<Vec<_>>(), ["warn", "info"]);
    }
}
