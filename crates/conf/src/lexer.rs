//! Splits the text of one file into words, `;`, `{`, `}` and comments, exactly where nginx's
//! `ngx_conf_read_token` does.
//!
//! What is easily got wrong: `}` and `#` are special only at the start of a word (`80}` is a word); a
//! `{` right after `$` belongs to the word; a `\` takes the next byte out of the syntax, but is removed
//! only before `"`, `'`, `\`, `t`, `r`, `n`; a quoted word must be followed by a space, `;`, `{` or
//! `)`, and that `)` starts the next word.
//!
//! Invariant: linear in the text, and no allocation but for words and errors.

use std::ops::Range;

use crate::error::Error;
use crate::source::{FileId, Span};

/// Bytes that a word of a file, with its closing quote, is shorter than: nginx's `NGX_CONF_BUFFER`. The command line has no
/// such limit, as it is not read through that buffer.
pub(crate) const MAX_WORD: usize = 4096;

/// Bytes of a word that nginx quotes when it is too long.
const SHOWN_OF_LONG_WORD: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// The word as written, with its quotes.
    pub raw: Range<usize>,
    /// The same without its quotes.
    pub body: Range<usize>,
    pub quoted: bool,
    pub span: Span,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Word(Word),
    Semicolon(Span),
    Open(Span),
    Close(Span),
    /// From its `#` to the end of its line, without that.
    Comment(Range<usize>, Span),
    End(Span),
}

/// What the text cannot be split at. The lexer goes on behind it, so that one run finds all errors;
/// after a quote that is never closed there is nothing to go on with but [`Token::End`].
#[derive(Debug)]
pub(crate) enum Fault {
    /// The word is unusable; so is its directive.
    Word(Error),
    /// The text ended within a word.
    End(Error),
}

pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    file: FileId,
    pos: usize,
    line: u32,
    line_start: usize,
    after_quote: bool,
    max_word: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(file: FileId, text: &'a [u8], max_word: usize) -> Lexer<'a> {
        Lexer { text, file, pos: 0, line: 1, line_start: 0, after_quote: false, max_word }
    }

    /// The next token. After the last it is [`Token::End`] for ever.
    pub fn next(&mut self) -> Result<Token, Fault> {
        if std::mem::take(&mut self.after_quote) {
            self.check_after_quote()?;
        }
        self.skip_spaces();
        let at = self.pos;
        let span = self.span(1);
        let Some(&first) = self.text.get(at) else {
            return Ok(Token::End(Span { len: 0, ..span }));
        };
        let token = match first {
            b';' => Token::Semicolon(span),
            b'{' => Token::Open(span),
            b'}' => Token::Close(span),
            b'#' => return Ok(self.comment()),
            _ => return self.word().map(Token::Word),
        };
        self.pos += 1;
        Ok(token)
    }

    /// Skips a block in a foreign language, such as Lua's, from behind its `{` to behind the `}` that
    /// closes it by count. False when the text ends before.
    pub fn skip_foreign_block(&mut self) -> bool {
        let mut depth = 1usize;
        while let Some(&b) = self.text.get(self.pos) {
            self.bump(b);
            depth = match b {
                b'{' => depth + 1,
                b'}' => depth - 1,
                _ => depth,
            };
            if depth == 0 {
                return true;
            }
        }
        false
    }

    /// Where the lexer stands, in bytes.
    pub fn position(&self) -> usize {
        self.pos
    }

    fn span(&self, len: usize) -> Span {
        let column = u32::try_from(self.pos - self.line_start + 1).unwrap_or(u32::MAX);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Span { file: self.file, line: self.line, column, len }
    }

    fn bump(&mut self, byte: u8) {
        self.pos += 1;
        if byte == b'\n' {
            self.line += 1;
            self.line_start = self.pos;
        }
    }

    fn skip_spaces(&mut self) {
        while let Some(&b @ (b' ' | b'\t' | b'\r' | b'\n')) = self.text.get(self.pos) {
            self.bump(b);
        }
    }

    fn check_after_quote(&self) -> Result<(), Fault> {
        match self.text.get(self.pos) {
            None | Some(b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' | b')') => Ok(()),
            Some(&b) => {
                let shown = String::from_utf8_lossy(std::slice::from_ref(&b)).into_owned();
                let error = Error::emerg(self.span(1), format!("unexpected \"{shown}\""));
                let hint = "a quoted word must be followed by a space, \";\", \"{\" or \")\"";
                Err(Fault::Word(error.with_hint(hint)))
            }
        }
    }

    // DIFFERS(conf-long-comment): a comment may be longer than 4096 bytes; nginx takes that for a
    // too long parameter.
    fn comment(&mut self) -> Token {
        let rest = &self.text[self.pos..];
        let len = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
        let span = self.span(len);
        let range = self.pos..self.pos + len;
        self.pos += len;
        Token::Comment(range, span)
    }

    fn word(&mut self) -> Result<Word, Fault> {
        let quote = match self.text[self.pos] {
            b @ (b'"' | b'\'') => Some(b),
            _ => None,
        };
        let raw_start = self.pos;
        let span = self.span(1);
        self.pos += usize::from(quote.is_some());
        let start = self.pos;
        let (mut escaped, mut variable, mut nul) = (false, false, false);
        loop {
            let Some(&b) = self.text.get(self.pos) else {
                let too_long = self.pos - start > self.max_word;
                return Err(Fault::End(match too_long {
                    true => self.too_long(quote, span, start),
                    false => self.ended_in_word(quote, span),
                }));
            };
            let ends = match quote {
                Some(q) => b == q,
                None => matches!(b, b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{'),
            };
            if escaped {
                escaped = false;
            } else if b == b'{' && variable {
                // "${name}": the brace opens no block, in quotes or not.
            } else if ends {
                break;
            } else {
                escaped = b == b'\\';
                variable = b == b'$';
            }
            nul |= b == 0;
            self.bump(b);
            if self.pos - start == self.max_word && quote.is_some() && self.pos < self.text.len() {
                self.pos = self.text.len();
                return Err(Fault::End(self.too_long(quote, span, start)));
            }
        }
        let body = start..self.pos;
        self.pos += usize::from(quote.is_some());
        self.after_quote = quote.is_some();
        // nginx's buffer must hold the closing quote and the byte behind the word too; by then it has
        // forgotten that there was a quote.
        if body.len() + usize::from(quote.is_some()) >= self.max_word {
            return Err(Fault::Word(self.too_long(None, span, start)));
        }
        let len = u32::try_from(self.pos - raw_start).unwrap_or(u32::MAX);
        let span = Span { len, ..span };
        if nul {
            // DIFFERS(conf-nul-byte): nginx takes the word and cuts it at the NUL in some uses, but
            // not in others.
            return Err(Fault::Word(Error::emerg(span, "unexpected NUL byte")));
        }
        Ok(Word { raw: raw_start..self.pos, body, quoted: quote.is_some(), span })
    }

    fn too_long(&self, quote: Option<u8>, span: Span, start: usize) -> Error {
        let message = match quote {
            Some(q) => format!(
                "too long parameter, probably missing terminating \"{}\" character",
                q as char
            ),
            None => {
                let shown = &self.text[start..start + SHOWN_OF_LONG_WORD];
                format!("too long parameter \"{}...\" started", String::from_utf8_lossy(shown))
            }
        };
        Error::emerg(span, message)
    }

    /// nginx names the last line; the hint names the one that matters.
    fn ended_in_word(&self, quote: Option<u8>, started: Span) -> Error {
        let end = Span { len: 0, ..self.span(0) };
        let error = Error::emerg(end, "unexpected end of file, expecting \";\" or \"}\"");
        match quote {
            Some(q) => error.with_hint(format!(
                "the {} of line {}, column {} is never closed",
                q as char, started.line, started.column
            )),
            None => error,
        }
    }
}

/// What a word stands for: its bytes without the escapes that nginx removes.
pub(crate) fn unescape(body: &[u8]) -> Box<[u8]> {
    if !body.contains(&b'\\') {
        return body.into();
    }
    let mut out = Vec::with_capacity(body.len());
    let mut at = 0;
    while let Some(&b) = body.get(at) {
        let escaped = if b == b'\\' { body.get(at + 1) } else { None };
        let replaced = match escaped {
            Some(&e @ (b'"' | b'\'' | b'\\')) => Some(e),
            Some(b't') => Some(b'\t'),
            Some(b'r') => Some(b'\r'),
            Some(b'n') => Some(b'\n'),
            _ => None,
        };
        out.push(replaced.unwrap_or(b));
        at += 1 + usize::from(replaced.is_some());
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of a text: words in brackets, their values unescaped, errors after "!".
    fn tokens(text: &str) -> String {
        let mut lexer = Lexer::new(FileId(0), text.as_bytes(), MAX_WORD);
        let mut out = Vec::new();
        loop {
            out.push(match lexer.next() {
                Ok(Token::Word(w)) => {
                    let value = unescape(&text.as_bytes()[w.body]);
                    format!("[{}]", String::from_utf8_lossy(&value))
                }
                Ok(Token::Semicolon(_)) => ";".into(),
                Ok(Token::Open(_)) => "{".into(),
                Ok(Token::Close(_)) => "}".into(),
                Ok(Token::Comment(range, _)) => text[range].into(),
                Ok(Token::End(_)) => break,
                Err(Fault::Word(e) | Fault::End(e)) => format!("!{}", e.message),
            });
        }
        out.join(" ")
    }

    #[test]
    fn words_end_where_nginx_ends_them() {
        let cases: &[(&str, &str)] = &[
            ("a b;", "[a] [b] ;"),
            ("a{b;}", "[a] { [b] ; }"),
            ("a 80}", "[a] !unexpected end of file, expecting \";\" or \"}\""),
            ("a b}c;", "[a] [b}c] ;"),
            ("a b#c;", "[a] [b#c] ;"),
            ("a #b;\nc;", "[a] #b; [c] ;"),
            ("a ${b}c{d;}", "[a] [${b}c] { [d] ; }"),
            ("a $b{c;}", "[a] [$b] { [c] ; }"),
            ("a \"${b}{c}\";", "[a] [${b}{c}] ;"),
            ("a $\"b\";", "[a] [$\"b\"] ;"),
            ("a b\"c d\";", "[a] [b\"c] [d\"] ;"),
            ("a 'b \"c\"';", "[a] [b \"c\"] ;"),
            ("a \"\" '';", "[a] [] [] ;"),
            ("a \"b\"c;", "[a] [b] !unexpected \"c\" [c] ;"),
            ("if (a = \"b\") {}", "[if] [(a] [=] [b] [)] { }"),
            ("a \"b\");", "[a] [b] [)] ;"),
            ("a \"b\"{c;}", "[a] [b] { [c] ; }"),
            ("a\tb\r\nc;\r\n", "[a] [b] [c] ;"),
            ("a b", "[a] !unexpected end of file, expecting \";\" or \"}\""),
            ("a 'b;\n", "[a] !unexpected end of file, expecting \";\" or \"}\""),
            ("# only", "# only"),
            ("", ""),
            (")x;", "[)x] ;"),
        ];
        for (text, want) in cases {
            assert_eq!(tokens(text), *want, "{text:?}");
        }
    }

    #[test]
    fn escapes_are_removed_only_where_nginx_removes_them() {
        let cases: &[(&str, &str)] = &[
            (r#"\"a\'\\"#, r#""a'\"#),
            (r"\t\r\n", "\t\r\n"),
            (r"\d+\.php\$", r"\d+\.php\$"),
            (r"\\n", r"\n"),
            (r"a\ b\;c\{", r"a\ b\;c\{"),
        ];
        for (body, want) in cases {
            assert_eq!(*unescape(body.as_bytes()), *want.as_bytes(), "{body}");
            for text in [format!("{body};"), format!("\"{body}\";"), format!("'{body}';")] {
                assert_eq!(tokens(&text), format!("[{want}] ;"), "{text}");
            }
        }
    }

    #[test]
    fn a_word_of_4096_bytes_is_too_long() {
        let word = |n: usize| "x".repeat(n);
        assert!(tokens(&format!("{};", word(4095))).ends_with("x] ;"));
        let long = "!too long parameter \"xxxxxxxxxx...\" started ; [a] ;";
        assert_eq!(tokens(&format!("{};a;", word(4096))), long);
        assert!(tokens(&format!("\"{}\";", word(4094))).ends_with("x] ;"));
        assert_eq!(tokens(&format!("\"{}\";a;", word(4095))), long);
        let quoted = "!too long parameter, probably missing terminating \"'\" character";
        assert_eq!(tokens(&format!("'{}'; a b;", word(4096))), quoted);
        let comment = format!("#{}", word(5000));
        assert_eq!(tokens(&comment), comment);
    }

    #[test]
    fn a_nul_byte_is_refused() {
        assert_eq!(tokens("a\0b c;"), "!unexpected NUL byte [c] ;");
    }

    #[test]
    fn places_count_lines_and_bytes() {
        let text = "a\n  \"b\nc\"  d;";
        let mut lexer = Lexer::new(FileId(0), text.as_bytes(), MAX_WORD);
        let mut places = Vec::new();
        while let Ok(Token::Word(w)) = lexer.next() {
            places.push((w.span.line, w.span.column, w.span.len));
        }
        assert_eq!(places, [(1, 1, 1), (2, 3, 5), (3, 5, 1)]);
    }

    #[test]
    fn foreign_blocks_are_skipped_by_their_braces() {
        let text = b" if {'x'} '\" }; a";
        let mut lexer = Lexer::new(FileId(0), text, MAX_WORD);
        assert!(lexer.skip_foreign_block());
        assert_eq!(&text[lexer.position()..], b"; a");
        assert!(!lexer.skip_foreign_block());
    }
}
