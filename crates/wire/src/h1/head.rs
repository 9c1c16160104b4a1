//! A request head as slices of the connection's buffer, in order, in the case it came in.
//! Hot path: no allocation once the vector of fields has grown.
//!
//! Answers ngx_http_process_request_line and ngx_http_process_request_headers: the state machines,
//! the buffer limits and the options that relax them. Where nginx copies an incomplete line into
//! a large buffer, the parser only counts as if it had, so limits bite at the same byte.
//!
//! DIFFERS(header-without-colon): a header line without a colon is refused with 400 (RFC 9112 §5);
//! nginx takes it as a header with an empty value, and what a back end takes it for nobody knows.
//! DIFFERS(header-cr-cr-lf): CR CR LF at the end of a header line is refused with 400 (RFC 9112
//! §2.2: a bare CR); nginx accepts it.
//! DIFFERS(empty-lines-bound): empty lines before the request line may be as long as
//! client_header_buffer_size in total; nginx reads them until client_header_timeout.
//!
//! *Invariant:* no header's meaning is decided here; that is `h1::framing`.

use super::field::FieldId;
use super::method::Method;
use super::request_line::RequestLine;
use crate::class::{self, NAME, NameByte};
use crate::scan::line_end;
use crate::{Reject, Span};

/// What the configuration says about request heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `underscores_in_headers`: `_` does not make a name invalid.
    pub underscores: bool,
    /// `ignore_invalid_headers`: lines with invalid names are skipped, else kept.
    pub ignore_invalid_headers: bool,
    /// `client_header_buffer_size`, bytes.
    pub client_header_buffer_size: usize,
    /// `large_client_header_buffers`: number, and bytes each.
    pub large_buffers: (usize, usize),
    /// `max_headers`: how many header lines a request may have; skipped ones do not count.
    pub max_headers: usize,
}

impl Options {
    /// Whether a head is judged otherwise by `other` once its first line and its first buffer are past.
    pub fn differs_behind_host(&self, other: &Options) -> bool {
        *self != Options { client_header_buffer_size: self.client_header_buffer_size, ..*other }
    }
}

impl Default for Options {
    /// nginx's defaults.
    fn default() -> Options {
        Options {
            underscores: false,
            ignore_invalid_headers: true,
            client_header_buffer_size: 1024,
            large_buffers: (4, 8192),
            max_headers: 1000,
        }
    }
}

/// The protocol version. Minor versions above 1 are taken as 1.1 (RFC 9110 §2.5). HTTP/2 has heads of
/// its own, which are put together in this form (`h2::request`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[allow(missing_docs)]
pub enum Version {
    #[default]
    Http09,
    Http10,
    Http11,
    Http2,
}

/// What the request line's parser saw of the URI; decides whether it must be normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UriFlags {
    /// `/.`, `//` or `#` occurs.
    pub complex: bool,
    /// `%` occurs in the path.
    pub quoted: bool,
    /// `+` occurs in the path.
    pub plus_in: bool,
    /// Absolute form without a path: `uri` begins with `?`.
    pub empty_path: bool,
    /// Offset after the `?`. Not known for a complex or quoted URI: see `uri::normalize`.
    pub args_start: Option<u32>,
    /// What follows the last dot of the last segment. Not known for a complex or quoted URI.
    pub ext: Option<Span>,
}

impl UriFlags {
    /// Whether the path, up to the arguments, is already its normal form.
    pub fn is_simple(&self) -> bool {
        !(self.complex || self.quoted || self.empty_path)
    }
}

/// One header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in the case it came in.
    pub name: Span,
    /// The value without the spaces around it.
    pub value: Span,
    /// The name, if it is a known one.
    pub id: FieldId,
}

impl Field {
    fn is_host(&self) -> bool {
        self.id == FieldId::Host
    }
}

/// A parsed request head. After a [`Reject`] it holds what was read before.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// The method's text.
    pub method_span: Span,
    /// The whole request target.
    pub target: Span,
    /// Path and query of the target: `$request_uri`.
    pub uri: Span,
    /// Schema of an absolute-form target.
    pub schema: Option<Span>,
    /// Host of an absolute-form target, without the port. Wins over `Host` (RFC 9112 §3.2.2).
    pub host: Option<Span>,
    /// Port of an absolute-form target; empty for `host:`.
    pub port: Option<Span>,
    /// What is known of the URI.
    pub uri_flags: UriFlags,
    /// The version.
    pub version: Version,
    /// The version's text up to the end of the line (`$server_protocol`); none in HTTP/0.9.
    pub protocol: Option<Span>,
    /// The request line without its line end: `$request`.
    pub request_line: Span,
    /// The header lines in order.
    pub headers: Vec<Field>,
    /// Lines that were skipped for an invalid name (`ignore_invalid_headers`), to be logged.
    pub skipped: Vec<Span>,
    /// The start of the header line that was refused, for the log: of an invalid one up to the
    /// byte that is (`client sent invalid header line: "…\x20..."`), of a too long one as much as
    /// fitted (`client sent too long header line: "…..."`).
    pub refused: Option<Span>,
}

impl Head {
    /// The value of the first header with this id.
    pub fn value(&self, id: FieldId) -> Option<Span> {
        self.headers.iter().find(|field| field.id == id).map(|field| field.value)
    }

    /// Empties it, keeping its memory.
    pub(crate) fn clear(&mut self) {
        let Head {
            method,
            method_span,
            target,
            uri,
            schema,
            host,
            port,
            uri_flags,
            version,
            protocol,
            request_line,
            headers,
            skipped,
            refused,
        } = self;
        // One by one: a new head would be made elsewhere and moved here.
        (*method, *version, *uri_flags) = Default::default();
        (*method_span, *target, *uri, *request_line) = Default::default();
        (*schema, *host, *port, *protocol, *refused) = Default::default();
        headers.clear();
        skipped.clear();
    }
}

/// How far [`Parser::parse`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Partial,
    /// The head is complete.
    Complete {
        /// Length of the head in bytes; the body or the next request begins there.
        consumed: usize,
    },
}

/// Which part of the head the next byte belongs to.
#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    RequestLine,
    /// At a header line's first byte, or in its name.
    Name { invalid: bool },
    /// In a header line's value.
    Value { invalid: bool, colon: usize },
}

/// A resumable parser of request heads. Call [`Parser::parse`] with the same buffer, grown, until
/// it is complete; each byte is looked at once.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    head: Head,
    line: RequestLine,
    phase: Phase,
    /// The next byte to look at.
    pos: usize,
    /// Where the current header line began.
    line_start: usize,
    space: Space,
    /// Whether somebody wants to know the host before what follows it is read.
    stops_at_host: bool,
}

impl Parser {
    /// A parser before its first byte.
    pub fn new() -> Parser {
        Parser::default()
    }

    /// Prepares for the next request, keeping the capacity of its vectors.
    pub fn reset(&mut self) {
        self.head.clear();
        self.line = RequestLine::default();
        self.phase = Phase::RequestLine;
        (self.pos, self.line_start) = (0, 0);
        self.space = Space::default();
        self.stops_at_host = false;
    }

    /// Makes [`Parser::advance`] stop behind the host of this head.
    pub fn stop_at_host(&mut self) {
        self.stops_at_host = true;
    }

    /// The head as far as it was read; complete after [`Progress::Complete`].
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// How many bytes the lines have that were read whole.
    pub fn lines_bytes(&self) -> u64 {
        match self.phase {
            Phase::RequestLine => 0,
            Phase::Name { .. } | Phase::Value { .. } => {
                (self.line_start - self.line.start()) as u64
            }
        }
    }

    /// The version of a line that was not read whole: empty, where it has begun.
    pub fn begun_version(&self) -> Option<Span> {
        self.line.protocol().map(|start| Span::new(start, start))
    }

    /// Gives the head away for an old one, whose memory is used again. The parser is not reset.
    pub fn swap_head(&mut self, head: &mut Head) {
        std::mem::swap(&mut self.head, head);
    }

    /// Reads on. `buf` begins with the request's first byte and holds all that came so far.
    pub fn parse(&mut self, buf: &[u8], opts: &Options) -> Result<Progress, Reject> {
        loop {
            if let Some(progress) = self.advance(buf, opts)? {
                return Ok(progress);
            }
        }
    }

    /// The same; `None`: the host has been read, for whoever asked to be told ([`Parser::stop_at_host`]).
    /// What follows may be judged by other options.
    pub fn advance(&mut self, buf: &[u8], opts: &Options) -> Result<Option<Progress>, Reject> {
        // Spans are 32 bits wide; no limit that anybody sets comes near.
        let buf = &buf[..buf.len().min(u32::MAX as usize)];
        loop {
            let step = match self.phase {
                Phase::RequestLine => self.request_line(buf, opts)?,
                Phase::Name { invalid } => self.name(buf, opts, invalid)?,
                Phase::Value { invalid, colon } => self.value(buf, opts, invalid, colon)?,
            };
            match step {
                Step::Next => {}
                Step::Host => {
                    self.stops_at_host = false;
                    return Ok(None);
                }
                Step::More => return Ok(Some(Progress::Partial)),
                Step::End => return Ok(Some(Progress::Complete { consumed: self.pos })),
            }
        }
    }

    fn request_line(&mut self, buf: &[u8], opts: &Options) -> Result<Step, Reject> {
        let read = self.line.advance(buf, &mut self.pos, &mut self.head);
        let start = self.line.start();
        // Empty lines fill no buffer in nginx, but neither may they go on for ever.
        let blank = if self.line.is_blank() { self.pos } else { start };
        if blank > opts.client_header_buffer_size {
            return Err(Reject::InvalidRequest);
        }
        if !self.line.is_blank() {
            self.space.begin(start, opts);
        }
        // An error beyond the buffer is one that nginx would not have come to see.
        let more = !matches!(read, Ok(true));
        if !self.line.is_blank() && !self.space.fits(start, self.pos, more, opts) {
            let end = self.space.full_at.min(buf.len());
            self.forget_line(Span::new(start, end));
            return Err(Reject::UriTooLong);
        }
        match read {
            Err(reject) => Err(self.refuse_line(buf, opts, reject)),
            Ok(false) => Ok(Step::More),
            Ok(true) if self.head.version == Version::Http09 => Ok(Step::End),
            Ok(true) => {
                self.line_start = self.pos;
                self.phase = Phase::Name { invalid: false };
                let stops = self.stops_at_host && self.head.host.is_some();
                Ok(if stops { Step::Host } else { Step::Next })
            }
        }
    }

    /// `$request` after an error: up to the line end, or what has come of it
    /// (ngx_http_variable_request_line).
    fn refuse_line(&mut self, buf: &[u8], opts: &Options, reject: Reject) -> Reject {
        let start = self.line.start();
        let limit = opts.large_buffers.1.max(opts.client_header_buffer_size);
        let seen = &buf[start..buf.len().min(start.saturating_add(limit))];
        let len = memchr::memchr2(b'\r', b'\n', seen).unwrap_or(seen.len());
        self.forget_line(Span::new(start, start + len));
        self.head.protocol = self.begun_version();
        reject
    }

    /// Nothing in a line that is none means anything.
    fn forget_line(&mut self, line: Span) {
        let head = &mut self.head;
        head.request_line = line;
        (head.method_span, head.uri, head.target, head.protocol) = Default::default();
    }

    fn name(&mut self, buf: &[u8], opts: &Options, mut invalid: bool) -> Result<Step, Reject> {
        if self.pos == self.line_start {
            match buf.get(self.pos) {
                Some(b'\r' | b'\n') => return self.head_end(buf, opts),
                Some(b':') => return Err(self.refuse(self.pos, self.pos, opts)),
                _ => {}
            }
        }
        loop {
            self.pos += class::plain_run(&buf[self.pos..]);
            let Some(&ch) = buf.get(self.pos) else { break };
            match NAME[ch as usize] {
                NameByte::Plain => {}
                NameByte::Underscore => invalid |= !opts.underscores,
                NameByte::Odd => invalid = true,
                NameByte::Colon => {
                    let colon = self.pos;
                    self.pos += 1;
                    self.phase = Phase::Value { invalid, colon };
                    return self.value(buf, opts, invalid, colon);
                }
                NameByte::Refused => return Err(self.refuse(self.pos, self.pos, opts)),
            }
            self.pos += 1;
        }
        self.phase = Phase::Name { invalid };
        self.more(opts)
    }

    fn head_end(&mut self, buf: &[u8], opts: &Options) -> Result<Step, Reject> {
        let len = match (buf[self.pos], buf.get(self.pos + 1)) {
            (b'\n', _) => 1,
            (_, Some(b'\n')) => 2,
            (_, Some(_)) => return Err(self.refuse(self.pos, self.pos + 1, opts)),
            (_, None) => {
                self.fit(self.pos + 1, true, opts)?;
                return Ok(Step::More);
            }
        };
        self.fit(self.pos + len, false, opts)?;
        self.pos += len;
        Ok(Step::End)
    }

    fn value(
        &mut self,
        buf: &[u8],
        opts: &Options,
        invalid: bool,
        colon: usize,
    ) -> Result<Step, Reject> {
        let Some(len) = line_end(&buf[self.pos..]) else {
            self.pos = buf.len();
            return self.more(opts);
        };
        self.pos += len;
        let end = self.pos;
        match (buf[end], buf.get(end + 1)) {
            (b'\n', _) => self.pos += 1,
            (b'\r', Some(b'\n')) => self.pos += 2,
            (b'\r', None) => {
                self.fit(end + 1, true, opts)?;
                return Ok(Step::More);
            }
            // RFC 9110 §5.5: NUL and a bare CR in a value are dangerous, refuse.
            (b'\r', Some(_)) => return Err(self.refuse(end, end + 1, opts)),
            _ => return Err(self.refuse(end, end, opts)),
        }
        self.fit(self.pos, false, opts)?;
        self.push(buf, opts, invalid, colon, end)?;
        self.line_start = self.pos;
        self.phase = Phase::Name { invalid: false };
        let stops = self.stops_at_host && self.head.headers.last().is_some_and(Field::is_host);
        Ok(if stops { Step::Host } else { Step::Next })
    }

    fn push(
        &mut self,
        buf: &[u8],
        opts: &Options,
        invalid: bool,
        colon: usize,
        end: usize,
    ) -> Result<(), Reject> {
        if invalid && opts.ignore_invalid_headers {
            self.head.skipped.push(Span::new(self.line_start, end));
            return Ok(());
        }
        if self.head.headers.len() >= opts.max_headers {
            return Err(Reject::TooManyHeaders);
        }
        let name = Span::new(self.line_start, colon);
        // nginx strips spaces and leaves tabs; so "Transfer-Encoding:\tchunked" is an unknown
        // coding to both, and nobody reads a framing header in two ways.
        let mut start = colon + 1;
        let mut end = end;
        while start < end && buf[start] == b' ' {
            start += 1;
        }
        while start < end && buf[end - 1] == b' ' {
            end -= 1;
        }
        let id = if invalid { FieldId::Other } else { FieldId::of(name.of(buf)) };
        self.head.headers.push(Field { name, value: Span::new(start, end), id });
        Ok(())
    }

    fn more(&mut self, opts: &Options) -> Result<Step, Reject> {
        self.fit(self.pos, true, opts)?;
        Ok(Step::More)
    }

    /// Accounts for the header line up to `end`.
    #[inline]
    fn fit(&mut self, end: usize, more: bool, opts: &Options) -> Result<(), Reject> {
        match self.space.fits(self.line_start, end, more, opts) {
            true => Ok(()),
            false => Err(self.too_large()),
        }
    }

    /// nginx logs the line that it read last, even where the buffers end between two lines.
    #[cold]
    fn too_large(&mut self) -> Reject {
        let full_at = self.space.full_at;
        let mut start = self.line_start;
        if start >= full_at {
            let kept = self.head.headers.last().map(|field| field.name.start);
            let skipped = self.head.skipped.last().map(|line| line.start);
            let Some(last) = kept.max(skipped) else { return Reject::RequestTooLarge };
            start = last as usize;
        }
        self.head.refused = Some(Span::new(start, full_at));
        Reject::HeaderTooLong
    }

    /// Refuses the line for what `seen`, the last byte read, made of the byte at `at`; unless the
    /// buffers were full before.
    fn refuse(&mut self, at: usize, seen: usize, opts: &Options) -> Reject {
        if let Err(reject) = self.fit(seen, true, opts) {
            return reject;
        }
        self.head.refused = Some(Span::new(self.line_start, at));
        Reject::InvalidHeader
    }
}

/// What a phase came to.
enum Step {
    /// The next one follows.
    Next,
    /// The same, and the host has been read.
    Host,
    More,
    End,
}

/// The buffers that nginx would have used, by count (ngx_http_alloc_large_header_buffer).
#[derive(Clone, Copy, Debug, Default)]
struct Space {
    /// Offset at which the current buffer is full; 0 before the first line.
    full_at: usize,
    large_used: usize,
}

impl Space {
    fn begin(&mut self, start: usize, opts: &Options) {
        if self.full_at == 0 {
            self.full_at = start.saturating_add(opts.client_header_buffer_size);
        }
    }

    /// Accounts for a line from `start` to `end`; `more` says that it is not complete, so that a
    /// buffer that is just full is too small.
    #[inline]
    fn fits(&mut self, start: usize, end: usize, more: bool, opts: &Options) -> bool {
        while end > self.full_at || (more && end == self.full_at) {
            if !self.next_large(start, opts) {
                return false;
            }
        }
        true
    }

    #[cold]
    fn next_large(&mut self, start: usize, opts: &Options) -> bool {
        let (number, size) = opts.large_buffers;
        // The part of the line that nginx would copy; none if the line begins with the buffer.
        let kept = self.full_at - start.min(self.full_at);
        if kept >= size || self.large_used >= number {
            return false;
        }
        self.large_used += 1;
        self.full_at = self.full_at - kept + size;
        true
    }
}

#[cfg(test)]
mod tests;
