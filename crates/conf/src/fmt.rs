//! Formats a configuration file without changing what it means: four spaces for each block, one space
//! between words, one directive a line, no more than one empty line, each word and comment kept as
//! written. A line break between the words of a directive stays, as long values are laid out so.
//!
//! Invariant: the result parses to the same tree, and formatting it again changes nothing.

use std::ops::Range;

use crate::error::Error;
use crate::lexer::{Fault, Lexer, MAX_WORD, Token};
use crate::parse::is_foreign_name;
use crate::source::{FileId, Span};

/// Formats the text of one file; files that it includes are not looked at. An error has the place in
/// `file`, which is what the caller's [`crate::Sources`] has the text as.
pub fn format(file: FileId, text: &[u8]) -> Result<Vec<u8>, Error> {
    let lexer = Lexer::new(file, text, MAX_WORD);
    let formatter =
        Formatter { text, lexer, out: Vec::new(), opened: Vec::new(), last: Last::Nothing, end: 0 };
    formatter.run()
}

/// What was written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Nothing,
    Word,
    Semicolon,
    Open,
    Close,
    Comment,
    /// A comment between the words of a directive.
    CommentWithin,
}

struct Formatter<'a> {
    text: &'a [u8],
    lexer: Lexer<'a>,
    out: Vec<u8>,
    /// Where each open block's `{` stands.
    opened: Vec<Span>,
    last: Last,
    /// Where the last token of the text ended.
    end: usize,
}

impl Formatter<'_> {
    fn run(mut self) -> Result<Vec<u8>, Error> {
        let mut name: Range<usize> = 0..0;
        loop {
            let token = self.lexer.next().map_err(|fault| match fault {
                Fault::Word(error) | Fault::End(error) => error,
            })?;
            let in_directive = matches!(self.last, Last::Word | Last::CommentWithin);
            match token {
                Token::Word(word) => {
                    if !in_directive {
                        name = word.body.clone();
                    }
                    self.word(word.raw, in_directive);
                }
                Token::Semicolon(span) if !in_directive => return Err(unexpected(";", span)),
                Token::Open(span) if !in_directive => return Err(unexpected("{", span)),
                Token::Close(span) if in_directive => return Err(unexpected("}", span)),
                Token::Semicolon(_) => self.semicolon(),
                Token::Open(span) => self.open(span, is_foreign_name(&self.text[name.clone()])),
                Token::Close(span) => self.close(span)?,
                Token::Comment(range, _) => self.comment(range, in_directive),
                Token::End(span) => return self.finish(span, in_directive),
            }
        }
    }

    fn finish(mut self, span: Span, in_directive: bool) -> Result<Vec<u8>, Error> {
        if in_directive {
            let text = "unexpected end of file, expecting \";\" or \"}\"";
            return Err(Error::emerg(span, text));
        }
        if let Some(open) = self.opened.last() {
            let error = Error::emerg(span, "unexpected end of file, expecting \"}\"");
            return Err(
                error.with_hint(format!("the \"{{\" of line {} is never closed", open.line))
            );
        }
        if self.last != Last::Nothing {
            self.out.push(b'\n');
        }
        Ok(self.out)
    }

    /// Line feeds between the last token and the one at `start`.
    fn line_feeds(&self, start: usize) -> usize {
        self.text[self.end..start].iter().filter(|b| **b == b'\n').count()
    }

    fn new_line(&mut self, extra_depth: usize) {
        self.out.push(b'\n');
        let spaces = 4 * (self.opened.len() + extra_depth);
        self.out.resize(self.out.len() + spaces, b' ');
    }

    /// Begins the line of a directive, comment or `}`, after an empty line if there was one.
    fn begin(&mut self, start: usize, may_follow_empty: bool) {
        if self.last == Last::Nothing {
            return;
        }
        if may_follow_empty && self.last != Last::Open && self.line_feeds(start) > 1 {
            self.out.push(b'\n');
        }
        self.new_line(0);
    }

    fn write(&mut self, range: Range<usize>, last: Last) {
        self.out.extend_from_slice(&self.text[range.clone()]);
        self.end = range.end;
        self.last = last;
    }

    fn word(&mut self, raw: Range<usize>, in_directive: bool) {
        if !in_directive {
            self.begin(raw.start, true);
        } else if self.last == Last::CommentWithin || self.line_feeds(raw.start) > 0 {
            self.new_line(1);
        } else if raw.start > self.end {
            self.out.push(b' ');
        }
        // Otherwise it is a ")" right after a quote, as in: if ($a = "b")
        self.write(raw, Last::Word);
    }

    fn semicolon(&mut self) {
        if self.last == Last::CommentWithin {
            self.new_line(1);
        }
        self.out.push(b';');
        self.last = Last::Semicolon;
        self.end = self.lexer.position();
    }

    fn open(&mut self, span: Span, foreign: bool) {
        match self.last {
            Last::CommentWithin => self.new_line(0),
            _ => self.out.push(b' '),
        }
        self.out.push(b'{');
        let start = self.lexer.position();
        if foreign && self.lexer.skip_foreign_block() {
            return self.write(start..self.lexer.position(), Last::Close);
        }
        self.opened.push(span);
        self.last = Last::Open;
        self.end = start;
    }

    fn close(&mut self, span: Span) -> Result<(), Error> {
        if self.opened.pop().is_none() {
            return Err(unexpected("}", span));
        }
        if self.last != Last::Open {
            self.begin(self.lexer.position() - 1, false);
        }
        self.out.push(b'}');
        self.last = Last::Close;
        self.end = self.lexer.position();
        Ok(())
    }

    fn comment(&mut self, range: Range<usize>, in_directive: bool) {
        let same_line = self.line_feeds(range.start) == 0 && self.last != Last::Nothing;
        match (in_directive, same_line) {
            (_, true) => self.out.push(b' '),
            (true, false) => self.new_line(1),
            (false, false) => self.begin(range.start, true),
        }
        let end = range.end;
        let text = self.text[range.clone()].trim_ascii_end();
        let last = if in_directive { Last::CommentWithin } else { Last::Comment };
        self.write(range.start..range.start + text.len(), last);
        self.end = end;
    }
}

fn unexpected(what: &str, span: Span) -> Error {
    Error::emerg(span, format!("unexpected \"{what}\""))
}

#[cfg(test)]
mod tests;
