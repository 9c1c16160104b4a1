//! A client that sends exactly the bytes it is given and reads responses strictly (RFC 9112).
//! Invariant: nothing is repaired; a response that the RFC does not allow is an error that says why.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

const HEAD_LIMIT: usize = 256 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);

/// How the end of a body was marked (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body: HEAD, 1xx, 204, 304.
    None,
    /// `Content-Length`.
    Length,
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// The end of the connection.
    Close,
}

/// A response, its parts as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: String,
    /// The status code.
    pub status: u16,
    /// The reason phrase; may be empty.
    pub reason: String,
    /// Names in their case, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body without its transfer coding.
    pub body: Vec<u8>,
    /// How the body ended.
    pub framing: Framing,
    /// Fields after the last chunk.
    pub trailers: Vec<(String, Vec<u8>)>,
}

impl Response {
    /// The first value of a header, its name compared without regard to case.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_slice())
    }

    /// Whether the connection ends after this response, by what the response says.
    pub fn closes(&self) -> bool {
        let says = |word: &[u8]| {
            self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case(word))
        };
        self.framing == Framing::Close
            || says(b"close")
            || (self.version == "HTTP/1.0" && !says(b"keep-alive"))
    }
}

/// Why no response could be read.
#[derive(Debug)]
pub enum ReadError {
    /// The connection ended, or was reset, before the first byte.
    Closed,
    /// Nothing came for the time of the client's read timeout; what had come by then.
    Timeout(Vec<u8>),
    /// The connection ended inside a response; what had come by then.
    Truncated(Vec<u8>),
    /// The response breaks a rule; what had come by then.
    Malformed(&'static str, Vec<u8>),
    /// Another failure of the socket.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Closed => f.write_str("connection closed without a response"),
            ReadError::Timeout(got) => {
                write!(f, "timed out after {:?}", got.escape_ascii().to_string())
            }
            ReadError::Truncated(got) => {
                write!(f, "cut off after {:?}", got.escape_ascii().to_string())
            }
            ReadError::Malformed(why, got) => {
                write!(f, "malformed ({why}): {:?}", got.escape_ascii().to_string())
            }
            ReadError::Io(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One connection.
pub struct Client {
    stream: Stream,
    buf: Vec<u8>,
}

impl Client {
    /// Connects over TCP, without Nagle's algorithm, with a read timeout of ten seconds.
    pub fn connect(addr: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
        stream.set_nodelay(true)?;
        let client = Client { stream: Stream::Tcp(stream), buf: Vec::new() };
        client.set_timeout(TIMEOUT)?;
        Ok(client)
    }

    /// Connects to a unix socket.
    pub fn connect_unix(path: &Path) -> io::Result<Client> {
        let client = Client { stream: Stream::Unix(UnixStream::connect(path)?), buf: Vec::new() };
        client.set_timeout(TIMEOUT)?;
        Ok(client)
    }

    /// Bounds each wait for bytes, and each wait for room to send.
    pub fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(s) => s.set_read_timeout(Some(limit)).and(s.set_write_timeout(Some(limit))),
            Stream::Unix(s) => {
                s.set_read_timeout(Some(limit)).and(s.set_write_timeout(Some(limit)))
            }
        }
    }

    /// This side's port; 0 on a unix socket.
    pub fn local_port(&self) -> u16 {
        match &self.stream {
            Stream::Tcp(s) => s.local_addr().map_or(0, |addr| addr.port()),
            Stream::Unix(_) => 0,
        }
    }

    /// Sends all bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(s) => s.write_all(bytes),
            Stream::Unix(s) => s.write_all(bytes),
        }
    }

    /// Sends the parts one by one, with a pause between them so that they arrive apart.
    pub fn send_split(&mut self, parts: &[&[u8]], pause: Duration) -> io::Result<()> {
        for (i, part) in parts.iter().enumerate() {
            if i > 0 {
                std::thread::sleep(pause);
            }
            self.send(part)?;
        }
        Ok(())
    }

    /// Ends the connection with a reset.
    pub fn reset(self) -> io::Result<()> {
        let now = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        match &self.stream {
            Stream::Tcp(s) => Ok(setsockopt(s, sockopt::Linger, &now)?),
            // There are no resets between processes of one machine.
            Stream::Unix(_) => Ok(()),
        }
    }

    /// Says that nothing more will be sent.
    pub fn shutdown_write(&self) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(s) => s.shutdown(Shutdown::Write),
            Stream::Unix(s) => s.shutdown(Shutdown::Write),
        }
    }

    /// Reads one response, interim ones (1xx) included; `head` says that the request was HEAD.
    pub fn read_response(&mut self, head: bool) -> Result<Response, ReadError> {
        let end = self.read_until_blank_line()?;
        let text: Vec<u8> = self.buf[..end].to_vec();
        let mut response =
            parse_head(&text, head).map_err(|why| ReadError::Malformed(why, text))?;
        self.buf.drain(..end);
        match response.framing {
            Framing::None => {}
            Framing::Length => {
                let length = content_length(&response).unwrap_or(0);
                response.body = self.take_exactly(length)?;
            }
            Framing::Chunked => self.read_chunked(&mut response)?,
            Framing::Close => response.body = self.read_to_end()?,
        }
        Ok(response)
    }

    /// Reads until the peer ends the connection; a reset counts as an end.
    pub fn read_to_end(&mut self) -> Result<Vec<u8>, ReadError> {
        while self.fill()? {}
        Ok(std::mem::take(&mut self.buf))
    }

    /// Reads the rest of a response of which the first bytes were read.
    pub fn read_response_after(&mut self, first: &[u8]) -> Result<Response, ReadError> {
        self.buf.splice(..0, first.iter().copied());
        self.read_response(false)
    }

    /// Reads so many bytes of something that is no response.
    pub fn read_exactly(&mut self, length: usize) -> Result<Vec<u8>, ReadError> {
        self.take_exactly(length)
    }

    /// Whether the peer has ended the connection with nothing left unread.
    pub fn is_at_end(&mut self) -> Result<bool, ReadError> {
        Ok(self.buf.is_empty() && !self.fill()?)
    }

    fn read_until_blank_line(&mut self) -> Result<usize, ReadError> {
        let mut from = 0;
        loop {
            if let Some(at) = find(&self.buf[from..], b"\r\n\r\n") {
                return Ok(from + at + 4);
            }
            from = self.buf.len().saturating_sub(3);
            if self.buf.len() > HEAD_LIMIT {
                return Err(ReadError::Malformed("head too long", std::mem::take(&mut self.buf)));
            }
            if !self.fill()? {
                let got = std::mem::take(&mut self.buf);
                return Err(if got.is_empty() {
                    ReadError::Closed
                } else {
                    ReadError::Truncated(got)
                });
            }
        }
    }

    fn take_exactly(&mut self, length: usize) -> Result<Vec<u8>, ReadError> {
        while self.buf.len() < length {
            if !self.fill()? {
                return Err(ReadError::Truncated(std::mem::take(&mut self.buf)));
            }
        }
        let rest = self.buf.split_off(length);
        Ok(std::mem::replace(&mut self.buf, rest))
    }

    fn take_line(&mut self) -> Result<Vec<u8>, ReadError> {
        loop {
            if let Some(at) = find(&self.buf, b"\n") {
                let line = self.take_exactly(at + 1)?;
                return match line.strip_suffix(b"\r\n") {
                    Some(text) => Ok(text.to_vec()),
                    None => Err(ReadError::Malformed("line ends without CR", line)),
                };
            }
            if !self.fill()? {
                return Err(ReadError::Truncated(std::mem::take(&mut self.buf)));
            }
        }
    }

    fn read_chunked(&mut self, response: &mut Response) -> Result<(), ReadError> {
        loop {
            let line = self.take_line()?;
            let size = chunk_size(&line).ok_or(ReadError::Malformed("chunk size", line))?;
            if size == 0 {
                break;
            }
            response.body.extend(self.take_exactly(size)?);
            let end = self.take_line()?;
            if !end.is_empty() {
                return Err(ReadError::Malformed("chunk longer than its size", end));
            }
        }
        loop {
            let line = self.take_line()?;
            if line.is_empty() {
                return Ok(());
            }
            response
                .trailers
                .push(parse_field(&line).map_err(|why| ReadError::Malformed(why, line))?);
        }
    }

    /// Reads what there is; false at the end of the connection.
    fn fill(&mut self) -> Result<bool, ReadError> {
        let mut piece = [0; 64 * 1024];
        let read = loop {
            let result = match &mut self.stream {
                Stream::Tcp(s) => s.read(&mut piece),
                Stream::Unix(s) => s.read(&mut piece),
            };
            match result {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        match read {
            Ok(n) => {
                self.buf.extend_from_slice(&piece[..n]);
                Ok(n > 0)
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(ReadError::Timeout(std::mem::take(&mut self.buf)))
            }
            Err(e) => Err(ReadError::Io(e)),
        }
    }
}

/// Parses a head that ends with its blank line, and decides the framing of the body.
pub fn parse_head(text: &[u8], head: bool) -> Result<Response, &'static str> {
    let text = text.strip_suffix(b"\r\n\r\n").ok_or("no blank line")?;
    let mut lines = split_lines(text)?.into_iter();
    let line = lines.next().ok_or("empty head")?;
    let line = std::str::from_utf8(line).map_err(|_| "status line is not text")?;
    let mut parts = line.splitn(3, ' ');
    let version = parts.next().unwrap_or_default();
    if version != "HTTP/1.1" && version != "HTTP/1.0" {
        return Err("version");
    }
    let status = parts.next().filter(|s| s.len() == 3).and_then(|s| s.parse::<u16>().ok());
    let reason = parts.next().ok_or("no space after the status")?;
    let headers = lines.map(parse_field).collect::<Result<Vec<_>, _>>()?;
    let mut response = Response {
        version: version.to_owned(),
        status: status.filter(|s| *s >= 100).ok_or("status")?,
        reason: reason.to_owned(),
        headers,
        body: Vec::new(),
        framing: Framing::None,
        trailers: Vec::new(),
    };
    response.framing = framing(&response, head)?;
    Ok(response)
}

fn framing(response: &Response, head: bool) -> Result<Framing, &'static str> {
    let count =
        |name: &str| response.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).count();
    let (lengths, codings) = (count("content-length"), count("transfer-encoding"));
    if lengths + codings > 1 {
        return Err("more than one of Content-Length and Transfer-Encoding");
    }
    if lengths == 1 {
        content_length(response).ok_or("Content-Length")?;
    }
    if codings == 1 && response.header("transfer-encoding") != Some(b"chunked") {
        return Err("Transfer-Encoding");
    }
    if codings == 1 && response.version == "HTTP/1.0" {
        return Err("chunked in HTTP/1.0");
    }
    // RFC 9110 §8.6 and RFC 9112 §6.1: neither field in 1xx and 204.
    let informational = response.status < 200;
    if (informational || response.status == 204) && lengths + codings > 0 {
        return Err("a length in a response that has no body");
    }
    Ok(if head || informational || matches!(response.status, 204 | 304) {
        Framing::None
    } else if codings == 1 {
        Framing::Chunked
    } else if lengths == 1 {
        Framing::Length
    } else {
        Framing::Close
    })
}

fn content_length(response: &Response) -> Option<usize> {
    let value = response.header("content-length")?;
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn chunk_size(line: &[u8]) -> Option<usize> {
    if line.is_empty() || !line.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    usize::from_str_radix(std::str::from_utf8(line).ok()?, 16).ok()
}

fn split_lines(text: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = find(rest, b"\r\n") {
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    lines.push(rest);
    if lines.iter().any(|line| line.iter().any(|b| matches!(b, b'\r' | b'\n' | 0))) {
        return Err("CR, LF or NUL inside a line");
    }
    Ok(lines)
}

fn parse_field(line: &[u8]) -> Result<(String, Vec<u8>), &'static str> {
    let colon = find(line, b":").ok_or("field without colon")?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    if name.is_empty() || !name.iter().all(token) {
        return Err("field name");
    }
    let value = value.trim_ascii();
    if value.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
        return Err("control character in a field value");
    }
    Ok((String::from_utf8_lossy(name).into_owned(), value.to_vec()))
}

/// Where `needle` first is in `haystack`.
pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn read_all(bytes: &'static [u8], heads: &[bool]) -> Vec<Result<Response, ReadError>> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let addr = listener.local_addr().expect("addr");
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            for byte in bytes {
                stream.write_all(&[*byte]).expect("write");
            }
        });
        let mut client = Client::connect(addr).expect("connect");
        let responses = heads.iter().map(|head| client.read_response(*head)).collect();
        peer.join().expect("peer");
        responses
    }

    #[test]
    fn responses_are_read_one_after_another() {
        let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc\
            HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nHTTP/1.1 304 Not Modified\r\n\r\n\
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\n\
            HTTP/1.0 200 OK\r\n\r\nto the end";
        let got = read_all(bytes, &[false, false, true, false, false, false]);
        let got: Vec<Response> = got.into_iter().map(|r| r.expect("response")).collect();
        let bodies: Vec<&[u8]> = got.iter().map(|r| r.body.as_slice()).collect();
        assert_eq!(bodies, [b"".as_slice(), b"abc", b"", b"", b"abc0123456789", b"to the end"]);
        assert_eq!(got[4].trailers, [("X".to_owned(), b"y".to_vec())]);
        assert_eq!(got[5].framing, Framing::Close);
    }

    #[test]
    fn broken_heads_are_errors() {
        let table: &[(&[u8], &str)] = &[
            (b"HTTP/1.1 200\r\n\r\n", "no space after the status"),
            (b"HTTP/2 200 OK\r\n\r\n", "version"),
            (b"HTTP/1.1 20 OK\r\n\r\n", "status"),
            (b"HTTP/1.1 200 OK\nA: b\r\n\r\n", "CR, LF or NUL inside a line"),
            (b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "field name"),
            (b"HTTP/1.1 200 OK\r\nA\r\n\r\n", "field without colon"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", "Content-Length"),
            (
                b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
                "a length in a response that has no body",
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "more than one of Content-Length and Transfer-Encoding",
            ),
        ];
        for (text, why) in table {
            assert_eq!(parse_head(text, false), Err(*why), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn cut_bodies_and_bad_chunks_are_errors() {
        let cut = read_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", &[false]);
        assert!(matches!(&cut[0], Err(ReadError::Truncated(got)) if got == b"abc"));
        let bad = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n";
        assert!(matches!(read_all(bad, &[false])[0], Err(ReadError::Malformed(..))));
        assert!(matches!(read_all(b"", &[false])[0], Err(ReadError::Closed)));
    }
}
