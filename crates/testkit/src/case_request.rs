//! The `requests` section of a case file: from lines to bytes and what to do with them.
//! Invariant: the bytes sent are those written; only the one-line form adds `Host` and
//! `Content-Length`, and a request that must not have them is written with `raw`.

use crate::case::{CaseError, error};

/// What is done on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes in one write.
    Send(Vec<u8>),
    /// Let what was sent arrive before more is sent.
    Pause,
    /// Read one response; `head` says that it answers a HEAD.
    Read {
        /// No body follows.
        head: bool,
    },
    /// Read everything until the connection ends.
    ReadToEnd,
    /// Say that nothing more will be sent.
    Shutdown,
}

impl Action {
    /// Whether this reads an answer.
    pub fn is_read(&self) -> bool {
        matches!(self, Action::Read { .. } | Action::ReadToEnd)
    }
}

/// One connection: what is sent and read on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where it stands in the file, 1-based.
    pub line: usize,
    /// The line as written.
    pub text: String,
    /// Its name, when a difference refers to it.
    pub label: Option<String>,
    /// Index of the port to connect to: 0 for `{port}`.
    pub port: usize,
    /// Whether to look at the state of the connection after the last response.
    pub sync: bool,
    /// In order.
    pub actions: Vec<Action>,
}

/// Modifiers that stand on lines of their own before a request.
#[derive(Default)]
struct Pending {
    label: Option<String>,
    port: usize,
    no_sync: bool,
}

pub(crate) fn parse_requests(lines: &[&str], first: usize) -> Result<Vec<Step>, CaseError> {
    let mut steps = Vec::new();
    let mut pending = Pending::default();
    let mut i = 0;
    while i < lines.len() {
        let line = first + 1 + i;
        let text = lines[i].trim();
        i += 1;
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if modifier(text, line, &mut pending)? {
            continue;
        }
        let block = matches!(text, "pipe" | "seq" | "script");
        let actions = if block {
            let length = lines[i..].iter().position(|l| l.trim() == "end");
            let Some(length) = length else { return error(line, "block without end") };
            let inner = &lines[i..i + length];
            i += length + 1;
            parse_block(text, inner, line)?
        } else {
            parse_single(text, line)?
        };
        let Pending { label, port, no_sync } = std::mem::take(&mut pending);
        let sync = !no_sync && !actions.contains(&Action::ReadToEnd);
        steps.push(Step { line, text: text.to_owned(), label, port, sync, actions });
    }
    Ok(steps)
}

fn modifier(text: &str, line: usize, pending: &mut Pending) -> Result<bool, CaseError> {
    if let Some(label) = text.strip_prefix('@') {
        pending.label = Some(label.to_owned());
    } else if let Some(port) = text.strip_prefix("!port") {
        match port.trim().parse::<usize>() {
            Ok(n @ 1..=4) => pending.port = n - 1,
            _ => return error(line, "!port takes a number from 1 to 4"),
        }
    } else if text == "!nosync" {
        pending.no_sync = true;
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn parse_single(text: &str, line: usize) -> Result<Vec<Action>, CaseError> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let mut actions = Vec::new();
    match word {
        "raw" => {
            actions.extend(sends(rest, line)?);
            actions.push(Action::Read { head: starts_with_head(&actions) });
        }
        "raw-eof" => {
            actions.extend(sends(rest, line)?);
            actions.push(Action::ReadToEnd);
        }
        "raw-shut" => {
            actions.extend(sends(rest, line)?);
            actions.extend([Action::Shutdown, Action::ReadToEnd]);
        }
        _ => {
            let (bytes, head) = one_line(text, line)?;
            actions.extend([Action::Send(bytes), Action::Read { head }]);
        }
    }
    Ok(actions)
}

fn parse_block(kind: &str, inner: &[&str], line: usize) -> Result<Vec<Action>, CaseError> {
    let mut actions = Vec::new();
    let mut reads = Vec::new();
    let mut pipelined = Vec::new();
    for (i, text) in inner.iter().enumerate() {
        let (text, line) = (text.trim(), line + 1 + i);
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match kind {
            "pipe" => {
                let (bytes, head) = request(text, line)?;
                pipelined.extend(bytes);
                reads.push(Action::Read { head });
            }
            "seq" => {
                let (bytes, head) = request(text, line)?;
                actions.extend([Action::Send(bytes), Action::Read { head }]);
            }
            _ => actions.extend(script_line(text, line)?),
        }
    }
    if kind == "pipe" {
        actions.push(Action::Send(pipelined));
        actions.extend(reads);
    }
    Ok(actions)
}

fn script_line(text: &str, line: usize) -> Result<Vec<Action>, CaseError> {
    Ok(match text.split_once(' ').unwrap_or((text, "")) {
        ("send", rest) => sends(rest, line)?,
        ("read", "") => vec![Action::Read { head: false }],
        ("read-head", "") => vec![Action::Read { head: true }],
        ("eof", "") => vec![Action::ReadToEnd],
        ("shut", "") => vec![Action::Shutdown],
        ("pause", "") => vec![Action::Pause],
        _ => return error(line, format!("unknown script line {text:?}")),
    })
}

/// A request inside `pipe` and `seq`: one line, or `raw`.
fn request(text: &str, line: usize) -> Result<(Vec<u8>, bool), CaseError> {
    match text.strip_prefix("raw ") {
        Some(rest) => {
            let bytes = words(rest, line)?.concat();
            let head = bytes.starts_with(b"HEAD ");
            Ok((bytes, head))
        }
        None => one_line(text, line),
    }
}

fn starts_with_head(actions: &[Action]) -> bool {
    matches!(actions.first(), Some(Action::Send(bytes)) if bytes.starts_with(b"HEAD "))
}

/// `METHOD TARGET [VERSION] [| Name: value]… [|| body]`
fn one_line(text: &str, line: usize) -> Result<(Vec<u8>, bool), CaseError> {
    let (head, body) = match text.split_once(" || ") {
        Some((head, body)) => (head, Some(words(body, line)?.concat())),
        None => (text, None),
    };
    let mut parts = head.split(" | ");
    let start = parts.next().unwrap_or_default();
    let mut pieces = start.split(' ');
    let (Some(method), Some(target)) = (pieces.next(), pieces.next()) else {
        return error(line, "expected: METHOD TARGET [VERSION] [| Name: value]… [|| body]");
    };
    let version = pieces.next().unwrap_or("HTTP/1.1");
    if pieces.next().is_some() || !version.starts_with("HTTP/") {
        return error(
            line,
            "a request line with other than two or three words is written with raw",
        );
    }
    let headers: Vec<&str> = parts.collect();
    let has = |name: &str| {
        headers.iter().any(|h| h.split(':').next().is_some_and(|n| n.eq_ignore_ascii_case(name)))
    };
    let mut request = unescape(&format!("{method} {target} {version}"), line)?;
    request.extend_from_slice(b"\r\n");
    if version == "HTTP/1.1" && !has("host") {
        request.extend_from_slice(b"Host: localhost\r\n");
    }
    for header in &headers {
        request.extend(unescape(header, line)?);
        request.extend_from_slice(b"\r\n");
    }
    if let Some(body) = &body
        && !has("content-length")
        && !has("transfer-encoding")
    {
        request.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    request.extend_from_slice(b"\r\n");
    request.extend(body.unwrap_or_default());
    Ok((request, method == "HEAD"))
}

/// Quoted words; a comma between them parts two writes.
fn sends(text: &str, line: usize) -> Result<Vec<Action>, CaseError> {
    let mut actions = Vec::new();
    for (i, part) in split_outside_quotes(text).into_iter().enumerate() {
        if i > 0 {
            actions.push(Action::Pause);
        }
        actions.push(Action::Send(words(part, line)?.concat()));
    }
    Ok(actions)
}

fn split_outside_quotes(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Words like `"text"` or `"text"*20`, with the escapes `\r \n \t \0 \\ \" \xHH`.
pub(crate) fn words(text: &str, line: usize) -> Result<Vec<Vec<u8>>, CaseError> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let Some(inner) = rest.strip_prefix('"') else {
            return error(line, format!("expected a quoted word at {rest:?}"));
        };
        let Some(end) = closing_quote(inner) else { return error(line, "quote is not closed") };
        let word = unescape(&inner[..end], line)?;
        rest = &inner[end + 1..];
        let mut count = 1;
        if let Some(number) = rest.strip_prefix('*') {
            let digits = number.bytes().take_while(u8::is_ascii_digit).count();
            let Ok(n) = number[..digits].parse() else { return error(line, "count after *") };
            count = n;
            rest = &number[digits..];
        }
        found.push(word.repeat(count));
        rest = rest.trim_start();
    }
    Ok(found)
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|b| {
        let closes = b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        closes
    })
}

/// Replaces `\r \n \t \0 \\ \" \xHH`.
pub(crate) fn unescape(text: &str, line: usize) -> Result<Vec<u8>, CaseError> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b != b'\\' {
            out.push(b);
            continue;
        }
        out.push(match bytes.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(b'\\') => b'\\',
            Some(b'"') => b'"',
            Some(b'x') => {
                let hex: Vec<u8> = bytes.by_ref().take(2).collect();
                let value =
                    std::str::from_utf8(&hex).ok().and_then(|h| u8::from_str_radix(h, 16).ok());
                let Some(value) = value else { return error(line, "\\x takes two hex digits") };
                value
            }
            _ => return error(line, "unknown escape"),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Step {
        parse_requests(&text.lines().collect::<Vec<_>>(), 0).expect(text).remove(0)
    }

    fn sent(text: &str) -> String {
        let Action::Send(bytes) = &one(text).actions[0] else { panic!("no send in {text}") };
        String::from_utf8_lossy(bytes).into_owned()
    }

    #[test]
    fn one_line_requests_become_bytes() {
        let table = [
            ("GET /a", "GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            ("GET /a HTTP/1.0", "GET /a HTTP/1.0\r\n\r\n"),
            ("GET / | host: b | X: \\t1", "GET / HTTP/1.1\r\nhost: b\r\nX: \t1\r\n\r\n"),
            (
                "POST / || \"ab\"*2",
                "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabab",
            ),
            (
                "POST / | Transfer-Encoding: chunked || \"0\\r\\n\\r\\n\"",
                "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            ),
        ];
        for (text, bytes) in table {
            assert_eq!(sent(text), bytes, "{text}");
        }
    }

    #[test]
    fn raw_words_are_split_at_commas_outside_quotes() {
        let step = one("raw \"a,b\\\",\" \"c\", \"d\"");
        let send = |text: &str| Action::Send(text.as_bytes().to_vec());
        let read = Action::Read { head: false };
        assert_eq!(step.actions, [send("a,b\",c"), Action::Pause, send("d"), read]);
    }

    #[test]
    fn blocks_and_modifiers() {
        let step = one("@x\n!port 2\n!nosync\npipe\n  GET /a\n  HEAD /b\nend");
        assert_eq!((step.label.as_deref(), step.port, step.sync), (Some("x"), 1, false));
        let reads: Vec<&Action> = step.actions[1..].iter().collect();
        assert_eq!(reads, [&Action::Read { head: false }, &Action::Read { head: true }]);
        let step = one("script\nsend \"a\"\nread\nshut\neof\nend");
        assert_eq!(step.actions.len(), 4);
        assert!(!step.sync);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, cause) in [
            ("GET", "expected"),
            ("GET /a b c d", "raw"),
            ("pipe\nGET /", "without end"),
            ("raw \"a", "not closed"),
            ("raw a", "quoted word"),
            ("raw \"\\q\"", "unknown escape"),
            ("raw \"\\xzz\"", "hex"),
            ("!port 9", "from 1 to 4"),
        ] {
            let error = parse_requests(&text.lines().collect::<Vec<_>>(), 0).expect_err(text);
            assert!(error.cause.contains(cause), "{text}: {error}");
        }
    }
}
