//! The tree that a configuration is parsed to: directives with their arguments and blocks.
//!
//! Invariant: a node knows where it stands, never what it means; `include` is never in a tree.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::Error;
use crate::source::Span;

/// One word of a directive, with quotes and escapes resolved. nginx's files need not be UTF-8, so a
/// word is bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    /// The bytes that the word stands for.
    pub value: Box<[u8]>,
    /// Where it stands.
    pub span: Span,
    /// Whether it was written in quotes.
    pub quoted: bool,
}

impl Arg {
    /// The value.
    pub fn bytes(&self) -> &[u8] {
        &self.value
    }

    /// The value as text, or an error at its place when it is not UTF-8.
    pub fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.value).map_err(|_| {
            Error::emerg(self.span, format!("invalid value \"{}\"", self.lossy()))
                .with_hint("this value must be UTF-8")
        })
    }

    /// The value for messages: what is not UTF-8 is replaced.
    pub fn lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.value)
    }

    /// The value as a file name; file names need not be UTF-8.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.value))
    }

    /// Whether the value is `text`, in this case.
    pub fn is(&self, text: &str) -> bool {
        *self.value == *text.as_bytes()
    }

    /// The rest of the value after `prefix`, as for `zone=NAME`.
    pub fn after(&self, prefix: &str) -> Option<&[u8]> {
        self.value.strip_prefix(prefix.as_bytes())
    }
}

/// One directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name: the first word.
    pub name: Arg,
    /// The words after the name.
    pub args: Vec<Arg>,
    /// What stands in its `{ }`; `None` when it ends with `;`.
    pub block: Option<Vec<Node>>,
    /// Where the name stands.
    pub span: Span,
    /// Where the block's `}` stands.
    pub block_end: Option<Span>,
}

impl Node {
    /// The name for messages and look-ups; empty when it is not UTF-8, which no directive's name is.
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.name.value).unwrap_or("")
    }

    /// The argument at `index`, or nginx's error about the number of arguments.
    pub fn arg(&self, index: usize) -> Result<&Arg, Error> {
        self.args.get(index).ok_or_else(|| self.wrong_count())
    }

    /// The text of the argument at `index`.
    pub fn text(&self, index: usize) -> Result<&str, Error> {
        self.arg(index)?.text()
    }

    /// What stands in the block; nothing when there is none.
    pub fn children(&self) -> &[Node] {
        self.block.as_deref().unwrap_or(&[])
    }

    /// nginx's error for a wrong number of arguments (`ngx_conf_handler`).
    pub fn wrong_count(&self) -> Error {
        let name = self.name.lossy();
        let message = format!("invalid number of arguments in \"{name}\" directive");
        let error = Error::emerg(self.span, message);
        match self.args.iter().find(|a| a.span.line > self.span.line) {
            Some(next) if next.span.file == self.span.file => {
                let line = next.span.line - 1;
                error.with_hint(format!("a \";\" may be missing at the end of line {line}"))
            }
            _ => error,
        }
    }

    /// nginx's error for a setter that answers a text: `"NAME" directive TEXT`.
    pub fn error(&self, text: impl std::fmt::Display) -> Error {
        Error::emerg(self.span, format!("\"{}\" directive {text}", self.name.lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arg(value: &[u8], line: u32) -> Arg {
        let span = Span { line, column: 1, len: value.len() as u32, ..Span::default() };
        Arg { value: value.into(), span, quoted: false }
    }

    #[test]
    fn text_that_is_not_utf8_is_an_error_at_its_place() {
        let a = arg(b"caf\xe9", 7);
        let error = a.text().unwrap_err();
        assert_eq!(error.message, "invalid value \"caf\u{fffd}\"");
        assert_eq!(error.span.unwrap().line, 7);
        assert_eq!(a.path().as_os_str().as_bytes(), b"caf\xe9");
    }

    #[test]
    fn a_missing_argument_is_an_error_and_names_the_line_that_misses_its_semicolon() {
        let args = vec![arg(b"/srv", 1), arg(b"index", 2)];
        let node = Node {
            name: arg(b"root", 1),
            args,
            block: None,
            span: arg(b"root", 1).span,
            block_end: None,
        };
        let error = node.arg(2).unwrap_err();
        assert_eq!(error.message, "invalid number of arguments in \"root\" directive");
        assert_eq!(error.hint.as_deref(), Some("a \";\" may be missing at the end of line 1"));
        assert_eq!(node.error("is duplicate").message, "\"root\" directive is duplicate");
    }
}
