//! A client that speaks in frames, whole or broken, as it is told.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use forebay_wire::h2::{
    ErrorCode, Head, PREFACE,
    frame::{self, HEAD_BYTES, flag, kind},
    hpack::{Decoder, Encoder, Indexing},
};
use socket2::{Domain, Socket, Type};

/// What came back on a stream.
#[derive(Debug, Default)]
pub struct Answer {
    /// `:status` of interim and final responses.
    pub statuses: Vec<String>,
    /// The fields of the last of them.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The fields behind it.
    pub trailers: Vec<(String, String)>,
    /// The code of an RST_STREAM in place of the end, or behind it.
    pub reset: Option<u32>,
}

impl Answer {
    /// The final status.
    pub fn status(&self) -> &str {
        self.statuses.last().map_or("", String::as_str)
    }

    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A connection.
pub struct Peer {
    stream: TcpStream,
    input: Vec<u8>,
    encoder: Encoder,
    decoder: Decoder,
}

/// How a connection was closed: last stream and code of the last GOAWAY.
pub type GoAway = (u32, u32);

impl Peer {
    /// Connects, and sends the preface with these settings.
    pub fn connect(addr: SocketAddr, settings: &[(u16, u32)]) -> Peer {
        Peer::raw(addr).greeted(settings)
    }

    fn greeted(mut self, settings: &[(u16, u32)]) -> Peer {
        let mut out = PREFACE.to_vec();
        frame::write_settings(&mut out, settings);
        self.send(&out);
        self
    }

    /// The same from an address of its own, which the server can log.
    pub fn connect_from(from: Ipv4Addr, addr: SocketAddr, settings: &[(u16, u32)]) -> Peer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::new(IpAddr::V4(from), 0).into()).expect("bind");
        socket.connect(&addr.into()).expect("connect");
        Peer::over(socket.into()).greeted(settings)
    }

    /// Connects and says nothing.
    pub fn raw(addr: SocketAddr) -> Peer {
        Peer::over(TcpStream::connect(addr).expect("connect"))
    }

    fn over(stream: TcpStream) -> Peer {
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).expect("timeout");
        stream.set_write_timeout(limit).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
        let (encoder, decoder) = (Encoder::default(), Decoder::default());
        Peer { stream, input: Vec::new(), encoder, decoder }
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("send");
    }

    /// Sends bytes, unless the connection has been closed: floods do not end well.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The bytes of a frame.
    pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Head { len: payload.len(), kind, flags, stream }.write(&mut out);
        out.extend_from_slice(payload);
        out
    }

    /// The bytes of a request.
    pub fn request(&mut self, stream: u32, fields: &[(&str, &str)], end_stream: bool) -> Vec<u8> {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            self.encoder.field(name, value, Indexing::Kept, &mut block);
        }
        let end = if end_stream { flag::END_STREAM } else { 0 };
        Peer::frame(kind::HEADERS, flag::END_HEADERS | end, stream, &block)
    }

    /// The bytes of a GET.
    pub fn get(&mut self, stream: u32, path: &str) -> Vec<u8> {
        self.request(stream, &get(path), true)
    }

    /// Sends a GET and reads its answer.
    pub fn ask(&mut self, stream: u32, path: &str) -> Answer {
        let request = self.get(stream, path);
        self.send(&request);
        self.answer(stream)
    }

    /// The next frame; `None` when the connection is closed.
    pub fn next(&mut self) -> Option<(Head, Vec<u8>)> {
        self.try_next().unwrap_or_else(|error| panic!("nothing comes: {error}"))
    }

    /// The same, where nothing may come.
    pub fn try_next(&mut self) -> io::Result<Option<(Head, Vec<u8>)>> {
        loop {
            if let Some(head) = Head::parse(&self.input)
                && self.input.len() >= HEAD_BYTES + head.len
            {
                let payload = self.input[HEAD_BYTES..HEAD_BYTES + head.len].to_vec();
                self.input.drain(..HEAD_BYTES + head.len);
                return Ok(Some((head, payload)));
            }
            let mut piece = [0; 65_536];
            match self.stream.read(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(read) => self.input.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next frame of that type.
    pub fn next_of(&mut self, kind: u8) -> Option<(Head, Vec<u8>)> {
        loop {
            let (head, payload) = self.next()?;
            if head.kind == kind {
                return Some((head, payload));
            }
            if head.kind == kind::HEADERS {
                // The table of the blocks that follow builds on it.
                self.fields(&payload);
            }
        }
    }

    /// Fields of a block.
    pub fn fields(&mut self, block: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let taken =
            self.decoder.decode(block, |field| fields.push((text(field.name), text(field.value))));
        taken.expect("a block");
        fields
    }

    /// Reads the answer on a stream; gives windows back as it goes.
    pub fn answer(&mut self, stream: u32) -> Answer {
        let mut answer = Answer::default();
        loop {
            let Some((head, payload)) = self.next() else { return answer };
            if head.stream != stream {
                continue;
            }
            match head.kind {
                kind::HEADERS => {
                    assert!(head.flags & flag::END_HEADERS != 0, "heads are short here");
                    let fields = self.fields(&payload);
                    match fields.iter().find(|(name, _)| name == ":status") {
                        Some((_, status)) => {
                            answer.statuses.push(status.clone());
                            answer.fields = fields;
                        }
                        None => answer.trailers = fields,
                    }
                }
                kind::DATA => {
                    if !payload.is_empty() {
                        let mut out = Vec::new();
                        frame::write_window_update(&mut out, 0, payload.len() as u32);
                        frame::write_window_update(&mut out, stream, payload.len() as u32);
                        self.try_send(&out);
                    }
                    answer.body.extend_from_slice(&payload);
                }
                kind::RST_STREAM => {
                    answer.reset = Some(code(&payload));
                    return answer;
                }
                _ => continue,
            }
            if matches!(head.kind, kind::HEADERS | kind::DATA) && head.flags & flag::END_STREAM != 0
            {
                return answer;
            }
        }
    }

    /// Reads until the connection is closed.
    pub fn goodbye(&mut self) -> Option<GoAway> {
        let mut last = None;
        while let Some((head, payload)) = self.next() {
            if head.kind == kind::GOAWAY {
                last = Some((code(&payload), code(&payload[4..])));
            }
        }
        last
    }

    /// Sends the same again and again, up to so many bytes, until the server has had enough; how the
    /// connection ended.
    pub fn flood(&mut self, bytes: &[u8], most: usize) -> Option<GoAway> {
        let mut sent = 0;
        let many = bytes.repeat((64 << 10) / bytes.len());
        while sent < most && self.try_send(&many) {
            sent += many.len();
        }
        self.goodbye()
    }
}

/// The fields of a GET.
pub fn get(path: &str) -> [(&str, &str); 4] {
    [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "test")]
}

/// The number that a payload begins with.
pub fn code(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(u32::MAX, |bytes| u32::from_be_bytes(*bytes))
}

/// A closed connection, for comparison.
pub fn with(code: ErrorCode) -> u32 {
    code as u32
}
