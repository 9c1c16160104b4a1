//! Finds SSI commands in a page that comes in pieces (`ngx_http_ssi_parse`).
//!
//! Invariant: gives the same however the page is cut; keeps no more than one command, whose parts
//! are of bounded length.

use bytes::Bytes;
use forebay_session::log::Shown;

/// `NGX_HTTP_SSI_COMMAND_LEN`.
const MAX_COMMAND: usize = 32;
/// `NGX_HTTP_SSI_PARAM_LEN`.
const MAX_PARAM: usize = 32;
/// `NGX_HTTP_SSI_MAX_PARAMS`; one more is kept, for the error.
pub const MAX_PARAMS: usize = 16;

/// A command and its parameters, as they stand in the page. Backslashes are still there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Its name.
    pub name: Vec<u8>,
    /// Names and values.
    pub params: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Command {
    /// The command as text again, for a block that is used later.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"<!--#");
        out.extend_from_slice(&self.name);
        for (name, value) in &self.params {
            out.push(b' ');
            out.extend_from_slice(name);
            out.extend_from_slice(b"=\"");
            out.extend_from_slice(value);
            out.push(b'"');
        }
        out.extend_from_slice(b" -->");
    }
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Text to be sent as it is: from the input, up to here.
    Text(Bytes),
    /// A command.
    Command(Command),
    /// Something that is no command; the message for the log.
    Bad(String),
    /// The end of a command that is none; its message came before.
    Error,
    /// Nothing more in the input.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// So many bytes of `<!--#` have come.
    Tag(u8),
    Precommand,
    Command,
    Preparam,
    Param,
    Preequal,
    Prevalue,
    /// Within these quotes.
    Value(u8),
    /// Behind a backslash within them.
    Quoted(u8),
    Postparam,
    /// So many minus signs of `-->` have come.
    End(u8),
    Error,
    /// The same within an error.
    ErrorEnd(u8),
}

const TAG: &[u8] = b"<!--#";

/// The state between pieces.
#[derive(Debug)]
pub struct Parser {
    state: State,
    command: Command,
    max_value: usize,
}

/// How much of the input is text, and how much of a tag follows it: all, or what has come of it.
fn text_and_tag(input: &[u8]) -> (usize, u8) {
    if let Some(at) = memchr::memmem::find(input, TAG) {
        return (at, TAG.len() as u8);
    }
    let end = input.len().saturating_sub(TAG.len() - 1);
    match memchr::memrchr(b'<', &input[end..]).map(|at| &input[end + at..]) {
        Some(begun) if TAG.starts_with(begun) => (input.len() - begun.len(), begun.len() as u8),
        _ => (input.len(), 0),
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\r' | b'\n' | b'\t')
}

fn shown(text: &[u8]) -> String {
    Shown(text).to_string()
}

impl Parser {
    /// A parser whose parameters have values of at most that many bytes.
    pub fn new(max_value: usize) -> Parser {
        Parser { state: State::Text, command: Command::default(), max_value }
    }

    /// Finds the next thing in the input, and takes it away.
    pub fn next(&mut self, input: &mut Bytes) -> Found {
        loop {
            match self.state {
                State::Text => {
                    if input.is_empty() {
                        return Found::End;
                    }
                    let (len, seen) = text_and_tag(input);
                    let text = input.split_to(len);
                    drop(input.split_to(usize::from(seen)));
                    self.state = match seen {
                        0 => State::Text,
                        5 => State::Precommand,
                        seen => State::Tag(seen),
                    };
                    if len > 0 {
                        return Found::Text(text);
                    }
                }
                State::Tag(seen) => {
                    let Some(&byte) = input.first() else { return Found::End };
                    if byte == TAG[usize::from(seen)] {
                        drop(input.split_to(1));
                        self.state = match seen {
                            4 => State::Precommand,
                            seen => State::Tag(seen + 1),
                        };
                        continue;
                    }
                    self.state = State::Text;
                    return Found::Text(Bytes::from_static(&TAG[..usize::from(seen)]));
                }
                _ => {
                    let Some(&byte) = input.first() else { return Found::End };
                    drop(input.split_to(1));
                    if let Some(found) = self.step(byte) {
                        return found;
                    }
                }
            }
        }
    }

    /// One byte within a command.
    fn step(&mut self, byte: u8) -> Option<Found> {
        match self.state {
            State::Text | State::Tag(_) => None,
            State::Precommand if is_space(byte) => None,
            State::Precommand => {
                self.command = Command { name: vec![byte], params: Vec::new() };
                self.state = State::Command;
                None
            }
            State::Command => self.command(byte),
            State::Preparam if is_space(byte) => None,
            State::Preparam if byte == b'-' => self.go(State::End(1)),
            State::Preparam => {
                // Those beyond the limit are read, and only the first of them is kept.
                self.command.params.truncate(MAX_PARAMS);
                self.command.params.push((vec![byte], Vec::new()));
                self.go(State::Param)
            }
            State::Param => self.param(byte),
            State::Preequal if is_space(byte) => None,
            State::Preequal if byte == b'=' => self.go(State::Prevalue),
            State::Preequal => self.unexpected(byte, "after", "parameter"),
            State::Prevalue if is_space(byte) => None,
            State::Prevalue if matches!(byte, b'"' | b'\'') => self.go(State::Value(byte)),
            State::Prevalue => self.unexpected(byte, "before value of", "parameter"),
            State::Value(quote) if byte == quote => self.go(State::Postparam),
            State::Value(quote) => {
                if byte == b'\\' {
                    self.state = State::Quoted(quote);
                }
                self.value(byte)
            }
            State::Quoted(quote) => {
                self.state = State::Value(quote);
                self.value(byte)
            }
            State::Postparam => self.postparam(byte),
            State::End(seen) => self.end(byte, seen),
            State::Error if byte == b'-' => self.go(State::ErrorEnd(1)),
            State::Error => None,
            State::ErrorEnd(1) if byte == b'-' => self.go(State::ErrorEnd(2)),
            State::ErrorEnd(2) if byte == b'>' => {
                self.state = State::Text;
                Some(Found::Error)
            }
            // As in nginx, `--->` does not end it: the third minus begins nothing.
            State::ErrorEnd(_) => self.go(State::Error),
        }
    }

    fn go(&mut self, state: State) -> Option<Found> {
        self.state = state;
        None
    }

    fn bad(&mut self, state: State, message: String) -> Option<Found> {
        self.state = state;
        Some(Found::Bad(message))
    }

    /// Where an error goes on after this byte.
    fn error_after(byte: u8) -> State {
        if byte == b'-' { State::ErrorEnd(1) } else { State::Error }
    }

    fn last_param(&self) -> (&[u8], &[u8]) {
        self.command.params.last().map_or((b"", b""), |(name, value)| (name, value))
    }

    fn command(&mut self, byte: u8) -> Option<Found> {
        match byte {
            byte if is_space(byte) => self.go(State::Preparam),
            b'-' => self.go(State::End(1)),
            byte if self.command.name.len() == MAX_COMMAND => {
                let (name, byte) = (shown(&self.command.name), byte as char);
                let text = format!("the \"{name}{byte}...\" SSI command is too long");
                self.bad(State::Error, text)
            }
            byte => {
                self.command.name.push(byte);
                None
            }
        }
    }

    fn param(&mut self, byte: u8) -> Option<Found> {
        let name = shown(&self.command.name);
        let (key, _) = self.command.params.last_mut()?;
        match byte {
            byte if is_space(byte) => self.go(State::Preequal),
            b'=' => self.go(State::Prevalue),
            b'-' => self.unexpected(byte, "after", "parameter"),
            byte if key.len() == MAX_PARAM => {
                let (key, byte) = (shown(key), byte as char);
                let text =
                    format!("too long \"{key}{byte}...\" parameter in \"{name}\" SSI command");
                self.bad(State::Error, text)
            }
            byte => {
                key.push(byte);
                None
            }
        }
    }

    fn value(&mut self, byte: u8) -> Option<Found> {
        let (key, value) = self.command.params.last_mut()?;
        if value.len() < self.max_value {
            value.push(byte);
            return None;
        }
        let (value, key, byte) = (shown(value), shown(key), byte as char);
        let name = shown(&self.command.name);
        let text = format!(
            "too long \"{value}{byte}...\" value of \"{key}\" parameter in \"{name}\" SSI command"
        );
        self.bad(State::Error, text)
    }

    fn unexpected(&mut self, byte: u8, place: &str, what: &str) -> Option<Found> {
        let (key, name) = (shown(self.last_param().0), shown(&self.command.name));
        let text = format!(
            "unexpected \"{}\" symbol {place} \"{key}\" {what} in \"{name}\" SSI command",
            byte as char
        );
        self.bad(Self::error_after(byte), text)
    }

    fn postparam(&mut self, byte: u8) -> Option<Found> {
        match byte {
            byte if is_space(byte) => self.go(State::Preparam),
            b'-' => self.go(State::End(1)),
            byte => {
                let (key, value) = self.last_param();
                let text = format!(
                    "unexpected \"{}\" symbol after \"{}\" value of \"{}\" parameter in \"{}\" \
                     SSI command",
                    byte as char,
                    shown(value),
                    shown(key),
                    shown(&self.command.name)
                );
                self.bad(State::Error, text)
            }
        }
    }

    fn end(&mut self, byte: u8, seen: u8) -> Option<Found> {
        match (seen, byte) {
            (1, b'-') => self.go(State::End(2)),
            (2, b'>') => {
                self.state = State::Text;
                Some(Found::Command(std::mem::take(&mut self.command)))
            }
            (_, byte) => {
                let name = shown(&self.command.name);
                let text =
                    format!("unexpected \"{}\" symbol in \"{name}\" SSI command", byte as char);
                self.bad(State::Error, text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that is found in a page, one a line; texts that follow each other are one.
    fn parse(pieces: &[&[u8]]) -> String {
        let mut parser = Parser::new(8);
        let (mut out, mut in_text) = (String::new(), false);
        for piece in pieces {
            let mut input = Bytes::copy_from_slice(piece);
            loop {
                let found = parser.next(&mut input);
                let text = matches!(found, Found::Text(_));
                if in_text && !text && found != Found::End {
                    out.push('\n');
                    in_text = false;
                }
                match found {
                    Found::End => break,
                    Found::Text(text) => {
                        out.push_str(&shown(&text));
                        in_text = true;
                    }
                    Found::Command(command) => {
                        let mut text = Vec::new();
                        command.write(&mut text);
                        out.push_str(&shown(&text));
                        out.push('\n');
                    }
                    Found::Bad(message) => out.push_str(&format!("! {message}\n")),
                    Found::Error => out.push_str("error\n"),
                }
            }
        }
        out
    }

    fn check(page: &[u8]) -> String {
        let whole = parse(&[page]);
        for at in 0..page.len() {
            assert_eq!(parse(&[&page[..at], &page[at..]]), whole, "{} at {at}", shown(page));
        }
        let bytes: Vec<&[u8]> = page.chunks(1).collect();
        assert_eq!(parse(&bytes), whole, "{}", shown(page));
        whole
    }

    #[test]
    fn commands_are_found_wherever_the_page_is_cut() {
        for (page, want) in [
            ("text", "text"),
            ("a<!--#echo var=\"x\" -->b", "a\n<!--#echo var=\"x\" -->\nb"),
            ("<!--#endif-->", "<!--#endif -->\n"),
            ("<!--# if expr='$a = 1' -->", "<!--#if expr=\"$a = 1\" -->\n"),
            ("<!--#a\r\n\tb = 'c'  d=\"e\"-->", "<!--#a b=\"c\" d=\"e\" -->\n"),
            ("<!--#a b='c\\'d' -->", "<!--#a b=\"c\\'d\" -->\n"),
            ("<!-- comment -->", "<!-- comment -->"),
            ("<<!--<!<!--#a-->", "<<!--<!\n<!--#a -->\n"),
            ("<!-", ""),
            ("a<", "a"),
            ("<!--#echo var=\"x", ""),
            ("<!--#-->", "! unexpected \">\" symbol in \"-\" SSI command\n"),
        ] {
            assert_eq!(check(page.as_bytes()), want, "{page}");
        }
    }

    #[test]
    fn what_is_no_command_is_told() {
        for (page, want) in [
            (
                "<!--#a b-->",
                "! unexpected \"-\" symbol after \"b\" parameter in \"a\" SSI command\nerror\n",
            ),
            (
                "<!--#a b c-->",
                "! unexpected \"c\" symbol after \"b\" parameter in \"a\" SSI command\nerror\n",
            ),
            (
                "<!--#a b=c-->",
                "! unexpected \"c\" symbol before value of \"b\" parameter in \"a\" SSI command\n\
                 error\n",
            ),
            (
                "<!--#a b='c'd-->",
                "! unexpected \"d\" symbol after \"c\" value of \"b\" parameter in \"a\" SSI \
                 command\nerror\n",
            ),
            (
                "<!--#a b='123456789'-->x",
                "! too long \"123456789...\" value of \"b\" parameter in \"a\" SSI command\n\
                 error\nx",
            ),
            ("<!--#a -x-->", "! unexpected \"x\" symbol in \"a\" SSI command\nerror\n"),
            ("<!--#a --x -->", "! unexpected \"x\" symbol in \"a\" SSI command\nerror\n"),
        ] {
            assert_eq!(check(page.as_bytes()), want, "{page}");
        }
        let long = format!("<!--#{}-->", "c".repeat(33));
        assert!(check(long.as_bytes()).ends_with("...\" SSI command is too long\nerror\n"));
        let long = format!("<!--#a {}='1'-->", "p".repeat(33));
        assert!(check(long.as_bytes()).contains("! too long \"pppppppppppppppp"));
        let many = format!("<!--#a {}-->", "p='' ".repeat(1000));
        let mut parser = Parser::new(8);
        let Found::Command(command) = parser.next(&mut Bytes::from(many)) else { panic!() };
        assert_eq!(command.params.len(), MAX_PARAMS + 1);
    }

    #[test]
    fn any_bytes_are_read_to_their_end() {
        const PAGE: &[u8] = b"a<!--#if expr='$x=/y/' --><!--#include virtual=\"/a\" wait='yes'-->\
                              <!--#else--><!--#echo var=\"a\\\"b\" default='' --><!--#endif -->b";
        let mut state = 11u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        for _ in 0..3000 {
            let mut page = PAGE.to_vec();
            for _ in 0..next() % 4 + 1 {
                let at = next() % page.len();
                match next() % 3 {
                    0 => page[at] = b"<!-#>\"'\\ =\0a"[next() % 12],
                    1 if page.len() > 1 => drop(page.remove(at)),
                    _ => page.truncate(at + 1),
                }
            }
            let whole = parse(&[&page]);
            let at = next() % page.len();
            assert_eq!(parse(&[&page[..at], &page[at..]]), whole, "{} at {at}", shown(&page));
        }
    }
}
