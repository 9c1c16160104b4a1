//! Parses files into a tree and expands every `include` in place, as nginx's `ngx_conf_parse` and
//! `ngx_conf_include` do; names are relative to the directory of the main file.
//!
//! Where nginx stops at the first error, this goes on, so that all errors of all files are found in
//! one run. A directive with an error of spelling in it is left out of the tree.
//! DIFFERS(conf-include-everywhere): `include` is expanded in every block; nginx takes it as an
//! entry in `split_clients` and `charset_map`.
//!
//! Invariant: whatever the files hold, parsing ends, in time linear in what is read, within the bounds
//! below.

use std::path::{Path, PathBuf};

use crate::error::{Braces, Diagnostics, Error, Level};
use crate::files::Files;
use crate::glob::is_mask;
use crate::lexer::{Fault, Lexer, MAX_WORD, Token, Word, unescape};
use crate::source::{FileId, Origin, Sources, Span};
use crate::tree::{Arg, Node};

/// Blocks within blocks, over all files.
/// DIFFERS(conf-bounds): nginx has no such bound. The deepest that nginx's directives can use is
/// far below.
pub const MAX_DEPTH: usize = 64;
/// Files that include files.
pub const MAX_INCLUDE_DEPTH: usize = 64;
/// Inclusions in all.
pub const MAX_INCLUSIONS: usize = 1 << 17;
/// Bytes of all inclusions.
pub const MAX_BYTES: usize = 1 << 30;
/// Words after the name of one directive.
pub const MAX_ARGS: usize = 1 << 16;

/// How to parse.
#[derive(Clone, Debug, Default)]
pub struct ParseOptions {
    /// What relative names in `include` are relative to: the directory of the main file.
    pub conf_prefix: PathBuf,
}

/// Parses a file and all that it includes. What is wrong is in `diags`.
pub fn parse(
    path: &Path,
    files: &mut dyn Files,
    opts: &ParseOptions,
    sources: &mut Sources,
    diags: &mut Diagnostics,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    Parser::new(files, opts, sources, diags).file(path, None, &mut nodes);
    nodes
}

/// Parses a configuration that is built into the program; `name` stands for its file in messages.
pub fn parse_text(
    name: &str,
    text: &[u8],
    files: &mut dyn Files,
    opts: &ParseOptions,
    sources: &mut Sources,
    diags: &mut Diagnostics,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    let file = sources.add(Origin::Embedded, Path::new(name), text.to_vec(), None);
    Parser::new(files, opts, sources, diags).source(file, &mut nodes);
    nodes
}

/// Parses the argument of `-g`: directives without blocks (`ngx_conf_param`).
pub fn parse_command_line(
    text: &[u8],
    files: &mut dyn Files,
    opts: &ParseOptions,
    sources: &mut Sources,
    diags: &mut Diagnostics,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    let file = sources.add(Origin::CommandLine, Path::new("command line"), text.to_vec(), None);
    Parser::new(files, opts, sources, diags).source(file, &mut nodes);
    nodes
}

struct Parser<'a> {
    files: &'a mut dyn Files,
    opts: &'a ParseOptions,
    sources: &'a mut Sources,
    diags: &'a mut Diagnostics,
    /// The files that are being read now, the outermost first.
    open_files: Vec<PathBuf>,
    /// The blocks that are open now, over all files.
    depth: usize,
    bytes: usize,
}

/// A block that is open: its directive, and what was in the list that the directive will join.
struct Frame {
    /// `None` when the block is not wanted, because of an error in what it belongs to.
    owner: Option<Node>,
    before: Vec<Node>,
    opened: Span,
}

/// The directive that is being read.
#[derive(Default)]
struct Pending {
    words: Vec<Arg>,
    broken: bool,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.words.is_empty() && !self.broken
    }

    /// The directive, unless something is wrong with it; ready for the next one.
    fn take(&mut self) -> Option<Node> {
        let Pending { words, broken } = std::mem::take(self);
        let mut words = words.into_iter();
        let name = words.next().filter(|_| !broken)?;
        let span = name.span;
        Some(Node { name, args: words.collect(), block: None, span, block_end: None })
    }
}

impl<'a> Parser<'a> {
    fn new(
        files: &'a mut dyn Files,
        opts: &'a ParseOptions,
        sources: &'a mut Sources,
        diags: &'a mut Diagnostics,
    ) -> Parser<'a> {
        Parser { files, opts, sources, diags, open_files: Vec::new(), depth: 0, bytes: 0 }
    }

    /// Reads a file and appends its directives to `nodes`.
    fn file(&mut self, path: &Path, at: Option<Span>, nodes: &mut Vec<Node>) {
        let error = |message: String| Error { span: at, ..Error::global(message) };
        let shown = path.display();
        // DIFFERS(conf-include-itself): nginx reads a file that includes itself again and again
        // until its descriptors are used up.
        if self.open_files.iter().any(|p| p == path) {
            return self.diags.push(error(format!("\"{shown}\" includes itself")));
        }
        if self.open_files.len() >= MAX_INCLUDE_DEPTH || self.sources.len() >= MAX_INCLUSIONS {
            return self.diags.push(error(format!("too many includes at \"{shown}\"")));
        }
        let file = match self.sources.add_again(path, at) {
            Some(file) => file,
            None => match self.files.read(path) {
                Ok(text) => self.sources.add(Origin::File, path, text, at),
                Err(e) => {
                    // What open() lets through and read() refuses is a directory.
                    // DIFFERS(conf-include-directory): nginx has this one at the level "crit" and
                    // without the place for an included file, too.
                    let is_dir = e.kind() == std::io::ErrorKind::IsADirectory;
                    let call = if is_dir { "pread()" } else { "open()" };
                    let error = Error::io(at, call, path, &e);
                    let level = if is_dir && at.is_none() { Level::Crit } else { error.level };
                    return self.diags.push(Error { level, ..error });
                }
            },
        };
        self.bytes = self.bytes.saturating_add(self.sources.text(file).len());
        if self.bytes > MAX_BYTES {
            return self
                .diags
                .push(error(format!("\"{shown}\" makes the configuration too large")));
        }
        self.open_files.push(path.into());
        self.source(file, nodes);
        self.open_files.pop();
    }

    /// Parses a text that was read and appends its directives to `nodes`.
    fn source(&mut self, file: FileId, nodes: &mut Vec<Node>) {
        let Some(entry) = self.sources.entry(file) else { return };
        let (text, origin) = (entry.text.clone(), entry.origin);
        let max_word = if origin == Origin::CommandLine { usize::MAX } else { MAX_WORD };
        let mut lexer = Lexer::new(file, &text, max_word);
        let mut frames: Vec<Frame> = Vec::new();
        let mut pending = Pending::default();
        loop {
            match lexer.next() {
                Ok(Token::Word(word)) => self.word(&text, word, &mut pending),
                Ok(Token::Comment(..)) => {}
                Ok(Token::Semicolon(span)) if pending.is_empty() => {
                    self.diags.push(Error::emerg(span, "unexpected \";\""));
                }
                Ok(Token::Semicolon(_)) => {
                    if let Some(node) = pending.take() {
                        self.finish(node, nodes);
                    }
                }
                Ok(Token::Open(span)) => {
                    if origin == Origin::CommandLine {
                        let text = match pending.is_empty() {
                            true => "unexpected \"{\"",
                            false => "block directives are not supported in -g option",
                        };
                        return self.diags.push(Error::emerg(span, text));
                    }
                    if is_doubtful(&text, lexer.position(), &pending) {
                        self.diags.doubt(span);
                    }
                    let owner = self.open(span, &mut pending);
                    if owner.as_ref().is_some_and(is_foreign) {
                        lexer.skip_foreign_block();
                        nodes.extend(owner.map(|o| Node { block: Some(Vec::new()), ..o }));
                        continue;
                    }
                    self.depth += 1;
                    frames.push(Frame { owner, before: std::mem::take(nodes), opened: span });
                }
                Ok(Token::Close(span)) => {
                    if !pending.is_empty() {
                        self.missing_semicolon(span, &pending);
                        pending = Pending::default();
                    }
                    match frames.pop() {
                        Some(frame) => self.close(frame, Some(span), nodes),
                        None => {
                            let error = Error::emerg(span, "unexpected \"}\"");
                            self.diags.push(error.of_braces(Braces::Unbalanced));
                        }
                    }
                }
                Ok(Token::End(span)) => {
                    self.end(span, origin, &pending, frames.last());
                    break;
                }
                Err(Fault::Word(error)) => {
                    pending.broken = true;
                    self.diags.push(error);
                }
                Err(Fault::End(mut error)) => {
                    if origin == Origin::CommandLine {
                        error.message = END_OF_PARAMETER.into();
                    }
                    self.diags.push(error);
                    break;
                }
            }
        }
        while let Some(frame) = frames.pop() {
            self.close(frame, None, nodes);
        }
    }

    fn word(&mut self, text: &[u8], word: Word, pending: &mut Pending) {
        if pending.words.len() > MAX_ARGS {
            if !pending.broken {
                self.diags.push(Error::emerg(word.span, "too many parameters"));
            }
            pending.broken = true;
            return;
        }
        let value = unescape(&text[word.body]);
        pending.words.push(Arg { value, span: word.span, quoted: word.quoted });
    }

    fn missing_semicolon(&mut self, span: Span, pending: &Pending) {
        let error = Error::emerg(span, "unexpected \"}\"").of_braces(Braces::Misplaced);
        self.diags.push(match pending.words.last() {
            Some(last) => error.with_hint(format!(
                "a \";\" is missing after \"{}\" in line {}",
                last.lossy(),
                last.span.line
            )),
            None => error,
        });
    }

    /// The directive whose block opens here, if the block is wanted.
    fn open(&mut self, span: Span, pending: &mut Pending) -> Option<Node> {
        if pending.is_empty() {
            let error = Error::emerg(span, "unexpected \"{\"");
            self.diags.push(error.of_braces(Braces::Misplaced));
        }
        let node = pending.take()?;
        if node.name.is("include") {
            let text = "directive \"include\" is not terminated by \";\"";
            self.diags.push(Error::emerg(node.span, text).of_braces(Braces::Misplaced));
            return None;
        }
        if self.depth >= MAX_DEPTH {
            if self.depth == MAX_DEPTH {
                let text = format!("too many nested blocks, more than {MAX_DEPTH}");
                self.diags.push(Error::emerg(node.span, text));
            }
            return None;
        }
        Some(node)
    }

    /// Puts a closed block into the list that it stands in.
    fn close(&mut self, frame: Frame, end: Option<Span>, nodes: &mut Vec<Node>) {
        self.depth -= 1;
        let children = std::mem::replace(nodes, frame.before);
        if let Some(owner) = frame.owner {
            nodes.push(Node { block: Some(children), block_end: end, ..owner });
        }
    }

    /// A directive that ended with `;`.
    fn finish(&mut self, node: Node, nodes: &mut Vec<Node>) {
        if !node.name.is("include") {
            return nodes.push(node);
        }
        match node.args.as_slice() {
            [name] => self.include(name, nodes),
            _ => self.diags.push(node.wrong_count()),
        }
    }

    fn include(&mut self, name: &Arg, nodes: &mut Vec<Node>) {
        let path = self.opts.conf_prefix.join(name.path());
        let Some(mask) = path.to_str().filter(|p| is_mask(p.as_bytes())) else {
            return self.file(&path, Some(name.span), nodes);
        };
        match self.files.glob(mask) {
            Ok(found) => found.iter().for_each(|p| self.file(p, Some(name.span), nodes)),
            Err(e) => self.diags.push(Error::io(Some(name.span), "glob()", &path, &e)),
        }
    }

    fn end(&mut self, span: Span, origin: Origin, pending: &Pending, open: Option<&Frame>) {
        let error = |text: &str| Error::emerg(span, text);
        if !pending.is_empty() {
            self.diags.push(match origin {
                Origin::CommandLine => error(END_OF_PARAMETER),
                _ => error("unexpected end of file, expecting \";\" or \"}\""),
            });
        } else if let Some(frame) = open {
            let at = frame.opened;
            let hint =
                format!("the \"{{\" of line {}, column {} is never closed", at.line, at.column);
            let error = error("unexpected end of file, expecting \"}\"").with_hint(hint);
            self.diags.push(error.of_braces(Braces::Unbalanced));
        }
    }
}

const END_OF_PARAMETER: &str = "unexpected end of parameter, expecting \";\"";

/// Whether the brace before `at` does not look like one that opens a block: it stands in the midst of a word
/// (`^/a{2}`), or before a semicolon.
fn is_doubtful(text: &[u8], at: usize, pending: &Pending) -> bool {
    let before = at.checked_sub(2).and_then(|before| text.get(before));
    let is_glued = before.is_some_and(|b| !b.is_ascii_whitespace()) && pending.words.len() > 1;
    match text.get(at) {
        Some(b';' | b',') => true,
        Some(b) => is_glued && !b.is_ascii_whitespace(),
        None => false,
    }
}

/// Whether the block of a directive is in a language that is not nginx's: OpenResty's Lua. nginx
/// stops at such a directive as unknown; to go on, its block must not be read as nginx's.
pub(crate) fn is_foreign(node: &Node) -> bool {
    is_foreign_name(&node.name.value)
}

pub(crate) fn is_foreign_name(name: &[u8]) -> bool {
    name.ends_with(b"_by_lua_block")
}

#[cfg(test)]
mod tests;
