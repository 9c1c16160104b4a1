//! A response head of an upstream as slices of the connection's buffer.
//! Hot path: no allocation once the vector of fields has grown.
//!
//! Answers `ngx_http_parse_status_line`, `ngx_http_parse_header_line` and what
//! `ngx_http_proxy_process_header` makes of them. An upstream may be hostile: what is not plainly a
//! head is refused, never guessed at.
//!
//! DIFFERS(upstream-http09): nginx takes what does not begin with a status line for the body of an
//! HTTP/0.9 response and passes it on with 200; here it is refused.
//! DIFFERS(upstream-header-strict): a header line without a colon, and CR CR LF at its end, are
//! refused; nginx takes the first as a field with an empty value, and the second as one CR.
//! DIFFERS(upstream-field-names): nginx passes on a field whose name is no token (`X@A`).
//!
//! *Invariant:* no header's meaning is decided here; that is `h1::framing`.

use std::fmt;

use super::head::{Progress, Version};
use super::response_field::ResponseFieldId;
use crate::Span;
use crate::class::{NAME, NameByte, TOKEN, plain_run};
use crate::h2::Fault;
use crate::scan::line_end;

/// What an upstream did wrong. `Copy`, as [`crate::Reject`]; the bytes stay in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BadResponse {
    /// It does not begin with `HTTP/1.x` and a status of three digits.
    NotHttp,
    /// A header line is malformed.
    InvalidHeader,
    /// The head does not fit its buffer, or has too many lines.
    TooBig,
    /// A second `Content-Length`, or a second `Transfer-Encoding`.
    DuplicateHeader,
    /// `Content-Length` is not a decimal number below 2^63.
    ContentLength,
    /// A transfer coding other than `chunked`.
    UnknownTransferEncoding,
    /// Both lengths.
    LengthAndChunked,
    /// A 101 to a request that did not ask for another protocol.
    UnexpectedUpgrade,
    /// More interim responses than anybody needs.
    TooManyInterim,
    /// A malformed chunked body.
    InvalidChunked,
    /// What only HTTP/2 can have wrong.
    Http2(Fault),
}

impl BadResponse {
    /// Whether the upstream has said that it did not look at the request.
    pub fn unprocessed(self) -> bool {
        matches!(self, BadResponse::Http2(fault) if fault.unprocessed())
    }

    /// nginx's text for the error log, where it has one.
    fn reason(self) -> &'static str {
        match self {
            BadResponse::NotHttp => "upstream sent no valid HTTP/1.0 header",
            BadResponse::InvalidHeader => "upstream sent invalid header",
            BadResponse::TooBig => "upstream sent too big header",
            BadResponse::DuplicateHeader => "upstream sent duplicate header line",
            BadResponse::ContentLength => "upstream sent invalid \"Content-Length\" header",
            BadResponse::UnknownTransferEncoding => "upstream sent unknown \"Transfer-Encoding\"",
            BadResponse::LengthAndChunked => {
                "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time"
            }
            BadResponse::UnexpectedUpgrade => "upstream sent unexpected status code 101",
            BadResponse::TooManyInterim => "upstream sent too many interim responses",
            BadResponse::InvalidChunked => "upstream sent invalid chunked response",
            BadResponse::Http2(_) => "",
        }
    }
}

impl From<Fault> for BadResponse {
    fn from(fault: Fault) -> BadResponse {
        BadResponse::Http2(fault)
    }
}

impl fmt::Display for BadResponse {
    /// As the error log has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadResponse::Http2(fault) => fault.fmt(f),
            other => f.write_str(other.reason()),
        }
    }
}

/// One header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseField {
    /// The name in the case it came in.
    pub name: Span,
    /// The value without the spaces around it.
    pub value: Span,
    /// The name, if it is a known one.
    pub id: ResponseFieldId,
}

/// A parsed response head.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ResponseHead {
    /// 1.0, or 1.1 for any later minor version.
    pub version: Version,
    /// The status, 100 to 999.
    pub status: u16,
    /// The status and the reason phrase: `200 OK`.
    pub status_text: Span,
    /// The header lines in order.
    pub fields: Vec<ResponseField>,
    /// Lines whose names are no tokens: they are not passed on.
    pub skipped: Vec<Span>,
    /// The start of the line that was refused, up to the byte that is.
    pub refused: Option<Span>,
}

impl ResponseHead {
    /// The value of the first field with that id.
    pub fn value(&self, id: ResponseFieldId) -> Option<Span> {
        self.fields.iter().find(|field| field.id == id).map(|field| field.value)
    }

    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        let (mut fields, mut skipped) =
            (std::mem::take(&mut self.fields), std::mem::take(&mut self.skipped));
        fields.clear();
        skipped.clear();
        *self = ResponseHead { fields, skipped, ..ResponseHead::default() };
    }
}

/// How many header lines a response may have; the buffer bounds their bytes.
pub const MAX_FIELDS: usize = 1000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Status,
    Fields,
}

/// A resumable parser of response heads. Call [`ResponseParser::parse`] with the same buffer, grown,
/// until it is complete; each line is looked at once, when it is whole.
#[derive(Clone, Debug, Default)]
pub struct ResponseParser {
    head: ResponseHead,
    phase: Phase,
    /// Where the line at hand begins.
    line_start: usize,
    /// Up to where no line feed was found.
    searched: usize,
}

impl ResponseParser {
    /// A parser that uses the memory of an old head, of which nothing is left.
    pub fn with_head(head: ResponseHead) -> ResponseParser {
        debug_assert!(head.fields.is_empty() && head.skipped.is_empty());
        ResponseParser { head, ..ResponseParser::default() }
    }

    /// Gives the head away.
    pub fn take_head(&mut self) -> ResponseHead {
        std::mem::take(&mut self.head)
    }

    /// Prepares for the next response, keeping the capacity of its vectors.
    pub fn reset(&mut self) {
        self.head.clear();
        self.phase = Phase::Status;
        (self.line_start, self.searched) = (0, 0);
    }

    /// The head as far as it was read; complete after [`Progress::Complete`].
    pub fn head(&self) -> &ResponseHead {
        &self.head
    }

    /// Reads on. `buf` begins with the response's first byte and holds all that came so far; the head
    /// may have up to `limit` bytes.
    pub fn parse(&mut self, buf: &[u8], limit: usize) -> Result<Progress, BadResponse> {
        let seen = &buf[..buf.len().min(limit)];
        loop {
            if self.phase == Phase::Fields && self.searched == self.line_start {
                self.plain_fields(seen);
            }
            let rest = &seen[self.searched..];
            let at_once = rest.starts_with(b"\r\n").then_some(1);
            let Some(len) = at_once.or_else(|| memchr::memchr(b'\n', rest)) else {
                self.searched = seen.len();
                return self.incomplete(seen, limit);
            };
            let end = self.searched + len;
            let (start, next) = (self.line_start, end + 1);
            (self.line_start, self.searched) = (next, next);
            // RFC 9112 §2.2: a bare LF may end a line of the head.
            let end = if end > start && seen[end - 1] == b'\r' { end - 1 } else { end };
            match self.phase {
                Phase::Status => {
                    self.status_line(seen, start, end)?;
                    self.phase = Phase::Fields;
                }
                Phase::Fields if start == end => return Ok(Progress::Complete { consumed: next }),
                Phase::Fields => self.field(seen, start, end)?,
            }
        }
    }

    /// Takes header lines as long as they are like nearly all: a name of letters, digits and hyphens, a
    /// value, CR LF. What is not is left for [`ResponseParser::field`], which knows the rules.
    fn plain_fields(&mut self, seen: &[u8]) {
        while self.head.fields.len() + self.head.skipped.len() < MAX_FIELDS {
            let start = self.line_start;
            let colon = start + plain_run(&seen[start..]);
            if colon == start || seen.get(colon) != Some(&b':') {
                return;
            }
            let value = &seen[colon + 1..];
            let Some(len) = line_end(value) else { return };
            if !value[len..].starts_with(b"\r\n") {
                return;
            }
            self.push(seen, start, colon, colon + 1 + len);
            self.line_start = colon + 1 + len + 2;
            self.searched = self.line_start;
        }
    }

    fn push(&mut self, buf: &[u8], start: usize, colon: usize, end: usize) {
        let name = Span::new(start, colon);
        let (mut from, mut to) = (colon + 1, end);
        while from < to && buf[from] == b' ' {
            from += 1;
        }
        while from < to && buf[to - 1] == b' ' {
            to -= 1;
        }
        let id = ResponseFieldId::of(name.of(buf));
        self.head.fields.push(ResponseField { name, value: Span::new(from, to), id });
    }

    /// What has come of a line can be wrong already; a peer that talks something else is not waited
    /// for.
    fn incomplete(&mut self, seen: &[u8], limit: usize) -> Result<Progress, BadResponse> {
        let line = &seen[self.line_start..];
        if self.phase == Phase::Status {
            let begins = line.iter().zip(b"HTTP/1.").all(|(came, wanted)| came == wanted);
            if !begins {
                return Err(BadResponse::NotHttp);
            }
        } else if let Some(&first) = line.first()
            && first != b'\r'
            && NAME[usize::from(first)] == NameByte::Refused
        {
            return Err(self.refuse(self.line_start, self.line_start));
        }
        if seen.len() >= limit {
            return Err(BadResponse::TooBig);
        }
        Ok(Progress::Partial)
    }

    /// `HTTP/1.1 200 OK`: RFC 9112 §4, and after the status anything that nginx takes (`200`, `403.1`).
    fn status_line(&mut self, buf: &[u8], start: usize, end: usize) -> Result<(), BadResponse> {
        let line = &buf[start..end];
        let rest = line.strip_prefix(b"HTTP/1.").ok_or(BadResponse::NotHttp)?;
        let (minor, rest) = rest.split_first().ok_or(BadResponse::NotHttp)?;
        self.head.version = match minor {
            b'0' => Version::Http10,
            b'1'..=b'9' => Version::Http11,
            _ => return Err(BadResponse::NotHttp),
        };
        let text = rest.strip_prefix(b" ").ok_or(BadResponse::NotHttp)?;
        let spaces = text.iter().take_while(|ch| **ch == b' ').count();
        let text = &text[spaces..];
        let (digits, reason) = text.split_at_checked(3).ok_or(BadResponse::NotHttp)?;
        let three = digits.iter().all(u8::is_ascii_digit) && digits[0] != b'0';
        if !three || !matches!(reason.first(), None | Some(b' ' | b'.')) {
            return Err(BadResponse::NotHttp);
        }
        if line_end(reason).is_some() {
            return Err(BadResponse::NotHttp);
        }
        let digit = |at: usize| u16::from(digits[at] - b'0');
        self.head.status = digit(0) * 100 + digit(1) * 10 + digit(2);
        self.head.status_text = Span::new(end - text.len(), end);
        Ok(())
    }

    fn field(&mut self, buf: &[u8], start: usize, end: usize) -> Result<(), BadResponse> {
        let line = &buf[start..end];
        let mut token = true;
        let mut colon = None;
        for (at, &ch) in line.iter().enumerate() {
            match NAME[usize::from(ch)] {
                NameByte::Colon => {
                    colon = Some(at);
                    break;
                }
                // RFC 9112 §5.1 and §5.2: no space before the colon, no folded lines.
                NameByte::Refused => return Err(self.refuse(start, start + at)),
                NameByte::Odd => token &= TOKEN[usize::from(ch)],
                NameByte::Plain | NameByte::Underscore => {}
            }
        }
        let colon = match colon {
            Some(0) => return Err(self.refuse(start, start)),
            Some(colon) => colon,
            None => return Err(self.refuse(start, end)),
        };
        let value = &line[colon + 1..];
        if let Some(at) = line_end(value) {
            return Err(self.refuse(start, start + colon + 1 + at));
        }
        if self.head.fields.len() + self.head.skipped.len() >= MAX_FIELDS {
            return Err(BadResponse::TooBig);
        }
        if !token {
            self.head.skipped.push(Span::new(start, end));
            return Ok(());
        }
        self.push(buf, start, start + colon, end);
        Ok(())
    }

    fn refuse(&mut self, start: usize, at: usize) -> BadResponse {
        self.head.refused = Some(Span::new(start, at));
        BadResponse::InvalidHeader
    }
}

#[cfg(test)]
mod tests;
