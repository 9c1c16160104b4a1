//! HTTP/2 on a connection of a scripted [`Origin`](crate::origin::Origin), frame by frame: a server that
//! does what no well-behaved one does.
//!
//! Invariant: nothing is sent but what a script says, [`H2::request`] and its sisters excepted, which
//! acknowledge settings and give windows back as they read.

use std::{collections::HashMap, io};

use forebay_wire::h2::{
    ErrorCode, Head, PREFACE,
    frame::{self, HEAD_BYTES, flag, kind},
    hpack::{self, Decoder},
};

use crate::origin::{Conn, Received};

/// A request as it came, or as much of it as has.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Its stream.
    pub stream: u32,
    /// The fields in order, pseudo-header fields among them.
    pub fields: Vec<(String, String)>,
    /// The compressed fields.
    pub block: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
    /// Whether it is whole.
    pub ended: bool,
    /// Whether its head is the end of it.
    is_head_only: bool,
}

impl Asked {
    /// The values of a field.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let named = self.fields.iter().filter(|(known, _)| known == name);
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// The first value of a field.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values(name).first().copied()
    }

    /// What is asked for.
    pub fn path(&self) -> &str {
        self.value(":path").unwrap_or_default()
    }

    /// In the form of HTTP/1: `GET /path HTTP/2`, then the fields, pseudo-header fields without colon.
    fn received(&self) -> Received {
        let of = |name| self.value(name).unwrap_or_default();
        let mut head = format!("{} {} HTTP/2\r\n", of(":method"), of(":path"));
        for (name, value) in &self.fields {
            head += &format!("{}: {value}\r\n", name.trim_start_matches(':'));
        }
        head += "\r\n";
        let body = self.body.clone();
        Received { head: head.into_bytes(), raw_body: body.clone(), body }
    }
}

/// A connection that begins with the preface.
pub struct H2<'a> {
    /// The bytes below.
    pub conn: &'a mut Conn,
    decoder: Decoder,
    open: HashMap<u32, Asked>,
    /// Whether windows are given back as data comes.
    pub gives_windows: bool,
}

fn broken(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

impl<'a> H2<'a> {
    /// Reads the preface; `None`: the connection ended before it.
    pub fn accept(conn: &'a mut Conn) -> io::Result<Option<H2<'a>>> {
        let preface = match conn.take(PREFACE.len()) {
            Ok(preface) => preface,
            Err(error) if is_end(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if preface != PREFACE {
            return Err(broken(format!("no preface: {}", preface.escape_ascii())));
        }
        let (decoder, open) = (Decoder::default(), HashMap::new());
        Ok(Some(H2 { conn, decoder, open, gives_windows: true }))
    }

    /// The same, and sends these settings.
    pub fn serve(conn: &'a mut Conn, settings: &[(u16, u32)]) -> io::Result<Option<H2<'a>>> {
        let Some(mut h2) = H2::accept(conn)? else { return Ok(None) };
        h2.settings(settings)?;
        Ok(Some(h2))
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.conn.send(bytes)
    }

    /// Sends SETTINGS.
    pub fn settings(&mut self, settings: &[(u16, u32)]) -> io::Result<()> {
        let mut out = Vec::new();
        frame::write_settings(&mut out, settings);
        self.send(&out)
    }

    /// The bytes of a frame.
    pub fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Head { len: payload.len(), kind, flags, stream }.write(&mut out);
        out.extend_from_slice(payload);
        out
    }

    /// Sends a frame.
    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.send(&H2::bytes(kind, flags, stream, payload))
    }

    /// The bytes of a field section in one frame.
    pub fn section(stream: u32, fields: &[(&str, &str)], end: bool) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            // Without a table: nginx allows none.
            hpack::write_field(&mut block, name.as_bytes(), value.as_bytes(), false);
        }
        let end = if end { flag::END_STREAM } else { 0 };
        H2::bytes(kind::HEADERS, flag::END_HEADERS | end, stream, &block)
    }

    /// Sends a field section.
    pub fn head(&mut self, stream: u32, fields: &[(&str, &str)], end: bool) -> io::Result<()> {
        let section = H2::section(stream, fields, end);
        self.send(&section)
    }

    /// Sends data in one frame.
    pub fn data(&mut self, stream: u32, data: &[u8], end: bool) -> io::Result<()> {
        self.frame(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, data)
    }

    /// Sends a whole response with status 200.
    pub fn ok(&mut self, stream: u32, body: &[u8]) -> io::Result<()> {
        let mut out = H2::section(stream, &[(":status", "200")], body.is_empty());
        for (index, part) in body.chunks(16_384).enumerate() {
            let last = (index + 1) * 16_384 >= body.len();
            let flags = if last { flag::END_STREAM } else { 0 };
            out.extend(H2::bytes(kind::DATA, flags, stream, part));
        }
        self.send(&out)
    }

    /// Sends RST_STREAM.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) -> io::Result<()> {
        let mut out = Vec::new();
        frame::write_reset(&mut out, stream, code);
        self.send(&out)
    }

    /// Sends GOAWAY.
    pub fn goaway(&mut self, last: u32, code: ErrorCode) -> io::Result<()> {
        let mut out = Vec::new();
        frame::write_goaway(&mut out, last, code);
        self.send(&out)
    }

    /// Sends WINDOW_UPDATE.
    pub fn window(&mut self, stream: u32, increment: u32) -> io::Result<()> {
        let mut out = Vec::new();
        frame::write_window_update(&mut out, stream, increment);
        self.send(&out)
    }

    /// The next frame; `None`: the connection has ended.
    pub fn next_frame(&mut self) -> io::Result<Option<(Head, Vec<u8>)>> {
        match self.read() {
            Ok(frame) => Ok(Some(frame)),
            Err(error) if is_end(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self) -> io::Result<(Head, Vec<u8>)> {
        let head = self.conn.take(HEAD_BYTES)?;
        let head = Head::parse(&head).ok_or_else(|| broken("a short head"))?;
        let payload = self.conn.take(head.len)?;
        Ok((head, payload))
    }

    /// The next frame of a type, the others being dealt with as usual.
    pub fn next_of(&mut self, wanted: u8) -> io::Result<Option<(Head, Vec<u8>)>> {
        while let Some((head, payload)) = self.next_frame()? {
            self.take(&head, &payload)?;
            if head.kind == wanted {
                return Ok(Some((head, payload)));
            }
        }
        Ok(None)
    }

    /// Reads until the head of a request is there.
    pub fn request_head(&mut self) -> io::Result<Option<Asked>> {
        while let Some((head, payload)) = self.next_frame()? {
            self.take(&head, &payload)?;
            if matches!(head.kind, kind::HEADERS | kind::CONTINUATION)
                && head.flags & flag::END_HEADERS != 0
                && let Some(asked) = self.open.get(&head.stream)
            {
                return Ok(Some(asked.clone()));
            }
        }
        Ok(None)
    }

    /// Reads a whole request and records it; `None`: the connection has ended.
    pub fn request(&mut self) -> io::Result<Option<Asked>> {
        loop {
            if let Some(asked) = self.take_ended() {
                self.conn.record(&asked.received());
                return Ok(Some(asked));
            }
            let Some((head, payload)) = self.next_frame()? else { return Ok(None) };
            self.take(&head, &payload)?;
        }
    }

    fn take_ended(&mut self) -> Option<Asked> {
        let stream = *self.open.iter().find(|(_, asked)| asked.ended)?.0;
        self.open.remove(&stream)
    }

    /// What has come of the request on a stream that goes on.
    pub fn so_far(&self, stream: u32) -> Option<&Asked> {
        self.open.get(&stream)
    }

    fn take(&mut self, head: &Head, payload: &[u8]) -> io::Result<()> {
        match frame::parse(head, payload).map_err(|violation| broken(violation.reason))? {
            frame::Frame::Settings(_) => {
                let mut out = Vec::new();
                frame::write_settings_ack(&mut out);
                self.send(&out)?;
            }
            frame::Frame::Headers { block, end_stream, end_headers } => {
                let asked = self.open.entry(head.stream).or_default();
                (asked.stream, asked.is_head_only) = (head.stream, end_stream);
                asked.block.extend_from_slice(block);
                if end_headers {
                    self.decode(head.stream)?;
                }
            }
            frame::Frame::Continuation { block, end_headers } => {
                let asked = self.open.entry(head.stream).or_default();
                asked.block.extend_from_slice(block);
                if end_headers {
                    self.decode(head.stream)?;
                }
            }
            frame::Frame::Data { data, end_stream } => {
                let asked = self.open.entry(head.stream).or_default();
                asked.body.extend_from_slice(data);
                asked.ended = end_stream;
                if self.gives_windows && head.len > 0 {
                    self.window(0, head.len as u32)?;
                    if !end_stream {
                        self.window(head.stream, head.len as u32)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn decode(&mut self, stream: u32) -> io::Result<()> {
        let asked = self.open.entry(stream).or_default();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = &mut asked.fields;
        let each = |field: forebay_wire::h2::hpack::Field<'_>| {
            fields.push((text(field.name), text(field.value)));
        };
        asked.ended = asked.is_head_only;
        self.decoder.decode(&asked.block, each).map_err(|_| broken("a block that is none"))
    }
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset)
}
