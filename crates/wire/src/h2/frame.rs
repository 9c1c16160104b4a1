//! Frames: parsed one at a time from whole payloads, and written (RFC 9113 §4 and §6, RFC 9218 §7).
//!
//! Answers the parsing half of ngx_http_v2.c, and its words for what is wrong.
//!
//! *Invariant:* a frame that is given out is valid by itself: its length, its identifier, its padding.

/// The length of what stands before each payload.
pub const HEAD_BYTES: usize = 9;
/// The longest payload that is taken: what each side may send unless told otherwise.
pub const MAX_PAYLOAD: usize = 16_384;

/// Frame types.
pub mod kind {
    #![allow(missing_docs)]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

/// Frame flags.
pub mod flag {
    #![allow(missing_docs)]
    pub const ACK: u8 = 1;
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 0x20;
}

/// Why a stream or a connection ends (RFC 9113 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum ErrorCode {
    NoError = 0,
    ProtocolError = 1,
    InternalError = 2,
    FlowControlError = 3,
    SettingsTimeout = 4,
    StreamClosed = 5,
    FrameSizeError = 6,
    RefusedStream = 7,
    Cancel = 8,
    CompressionError = 9,
    ConnectError = 10,
    EnhanceYourCalm = 11,
    InadequateSecurity = 12,
    Http11Required = 13,
}

/// What an error ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The stream that the frame is for.
    Stream,
    /// The connection.
    Connection,
}

/// A rule that a peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What ends.
    pub scope: Scope,
    /// The code that it ends with.
    pub code: ErrorCode,
    /// What the log says the peer did.
    pub reason: &'static str,
}

impl Violation {
    /// One that ends the connection.
    pub const fn connection(code: ErrorCode, reason: &'static str) -> Violation {
        Violation { scope: Scope::Connection, code, reason }
    }

    /// One that ends the stream.
    pub const fn stream(code: ErrorCode, reason: &'static str) -> Violation {
        Violation { scope: Scope::Stream, code, reason }
    }
}

/// What stands before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The length of the payload.
    pub len: usize,
    /// The type, see [`kind`].
    pub kind: u8,
    /// The flags, see [`flag`].
    pub flags: u8,
    /// The stream; 0: the connection.
    pub stream: u32,
}

impl Head {
    /// Reads it from the first nine bytes; `None`: there are fewer.
    pub fn parse(bytes: &[u8]) -> Option<Head> {
        let &[a, b, c, kind, flags, ref stream @ ..] = bytes.first_chunk::<HEAD_BYTES>()?;
        let len = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Some(Head { len, kind, flags, stream: u32::from_be_bytes(*stream) & 0x7fff_ffff })
    }

    /// Writes it.
    pub fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// What it is written as.
    pub fn bytes(self) -> [u8; HEAD_BYTES] {
        let len = (self.len as u32).to_be_bytes();
        let stream = self.stream.to_be_bytes();
        [len[1], len[2], len[3], self.kind, self.flags, stream[0], stream[1], stream[2], stream[3]]
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A frame that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A part of a body. Padding counts against the windows: the length of the payload does.
    Data {
        /// The part.
        data: &'a [u8],
        /// Whether it is the last one.
        end_stream: bool,
    },
    /// A field section, or its first part.
    Headers {
        /// The compressed fields.
        block: &'a [u8],
        /// Whether no body and no trailers follow.
        end_stream: bool,
        /// Whether no CONTINUATION follows.
        end_headers: bool,
    },
    /// A priority of RFC 7540, which nobody obeys any more.
    Priority,
    /// The stream is cancelled, with a code that may be any.
    Reset(u32),
    /// The settings of the peer: pairs of 2 and 4 bytes.
    Settings(&'a [u8]),
    /// Ours are in force.
    SettingsAck,
    /// To be sent back.
    Ping([u8; 8]),
    /// What we sent.
    PingAck([u8; 8]),
    /// The peer will open (or accept) no further streams.
    GoAway {
        /// The last stream that it has dealt with.
        last: u32,
        /// Why.
        code: u32,
    },
    /// More may be sent.
    WindowUpdate(u32),
    /// The rest of a field section, or its next part.
    Continuation {
        /// The compressed fields.
        block: &'a [u8],
        /// Whether no further one follows.
        end_headers: bool,
    },
    /// The priority of a stream has changed (RFC 9218 §7.1).
    PriorityUpdate {
        /// The stream.
        stream: u32,
        /// A structured field.
        value: &'a [u8],
    },
    /// A type that means nothing here and is passed over.
    Unknown,
}

/// Reads the payload of a frame: `payload` has the length that `head` says.
pub fn parse<'a>(head: &Head, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
    debug_assert_eq!(head.len, payload.len());
    match head.kind {
        kind::DATA => data(head, payload),
        kind::HEADERS => headers(head, payload),
        kind::PRIORITY => priority(head, payload),
        kind::RST_STREAM => {
            on_stream(head, "client sent RST_STREAM frame with incorrect identifier")?;
            let code = exactly(payload, "client sent RST_STREAM frame with incorrect length")?;
            Ok(Frame::Reset(u32::from_be_bytes(code)))
        }
        kind::SETTINGS => settings(head, payload),
        // RFC 9113 §8.4: a client cannot push.
        kind::PUSH_PROMISE => Err(protocol("client sent PUSH_PROMISE frame")),
        kind::PING => {
            let opaque = exactly(payload, "client sent PING frame with incorrect length")?;
            on_connection(head, "client sent PING frame with incorrect identifier")?;
            Ok(if head.has(flag::ACK) { Frame::PingAck(opaque) } else { Frame::Ping(opaque) })
        }
        kind::GOAWAY => {
            on_connection(head, "client sent GOAWAY frame with incorrect identifier")?;
            let Some((last, rest)) = payload.split_first_chunk() else {
                return Err(size("client sent GOAWAY frame with incorrect length"));
            };
            let Some(code) = rest.first_chunk() else {
                return Err(size("client sent GOAWAY frame with incorrect length"));
            };
            let last = u32::from_be_bytes(*last) & 0x7fff_ffff;
            Ok(Frame::GoAway { last, code: u32::from_be_bytes(*code) })
        }
        kind::WINDOW_UPDATE => window_update(head, payload),
        kind::CONTINUATION => {
            on_stream(head, "client sent CONTINUATION frame with incorrect identifier")?;
            Ok(Frame::Continuation { block: payload, end_headers: head.has(flag::END_HEADERS) })
        }
        kind::PRIORITY_UPDATE => {
            on_connection(head, "client sent PRIORITY_UPDATE frame with incorrect identifier")?;
            let Some((stream, value)) = payload.split_first_chunk() else {
                return Err(size("client sent PRIORITY_UPDATE frame with incorrect length"));
            };
            match u32::from_be_bytes(*stream) & 0x7fff_ffff {
                0 => Err(protocol("client sent PRIORITY_UPDATE frame for no stream")),
                stream => Ok(Frame::PriorityUpdate { stream, value }),
            }
        }
        _ => Ok(Frame::Unknown),
    }
}

const fn protocol(reason: &'static str) -> Violation {
    Violation::connection(ErrorCode::ProtocolError, reason)
}

const fn size(reason: &'static str) -> Violation {
    Violation::connection(ErrorCode::FrameSizeError, reason)
}

fn on_stream(head: &Head, reason: &'static str) -> Result<(), Violation> {
    if head.stream == 0 { Err(protocol(reason)) } else { Ok(()) }
}

fn on_connection(head: &Head, reason: &'static str) -> Result<(), Violation> {
    if head.stream == 0 { Ok(()) } else { Err(protocol(reason)) }
}

fn exactly<const N: usize>(payload: &[u8], reason: &'static str) -> Result<[u8; N], Violation> {
    payload.try_into().map_err(|_| size(reason))
}

/// Takes the padding off (RFC 9113 §6.1).
fn unpadded<'a>(
    head: &Head,
    payload: &'a [u8],
    reason: &'static str,
) -> Result<&'a [u8], Violation> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(size(reason))?;
    let len = rest.len().checked_sub(usize::from(*padding)).ok_or(protocol(reason))?;
    Ok(&rest[..len])
}

fn data<'a>(head: &Head, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
    on_stream(head, "client sent DATA frame with incorrect identifier")?;
    let data = unpadded(head, payload, "client sent padded DATA frame with incorrect length")?;
    Ok(Frame::Data { data, end_stream: head.has(flag::END_STREAM) })
}

fn headers<'a>(head: &Head, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
    on_stream(head, "client sent HEADERS frame with incorrect identifier")?;
    let mut block =
        unpadded(head, payload, "client sent padded HEADERS frame with incorrect length")?;
    if head.has(flag::PRIORITY) {
        let Some((depends_on, rest)) = block.split_first_chunk::<5>() else {
            return Err(size("client sent HEADERS frame with incorrect length"));
        };
        // A section that is not read leaves the two tables apart: this ends the connection, where
        // RFC 7540 §5.3.1 would have ended the stream.
        if stream_in(depends_on) == head.stream {
            let reason = "client sent HEADERS frame with incorrect dependency";
            return Err(protocol(reason));
        }
        block = rest;
    }
    let (end_stream, end_headers) = (head.has(flag::END_STREAM), head.has(flag::END_HEADERS));
    Ok(Frame::Headers { block, end_stream, end_headers })
}

/// The stream that a priority of RFC 7540 depends on.
fn stream_in(priority: &[u8; 5]) -> u32 {
    let [a, b, c, d, _weight] = *priority;
    u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff
}

fn priority<'a>(head: &Head, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
    on_stream(head, "client sent PRIORITY frame with incorrect identifier")?;
    let Ok(priority) = payload.try_into() else {
        let reason = "client sent PRIORITY frame with incorrect length";
        return Err(Violation::stream(ErrorCode::FrameSizeError, reason));
    };
    if stream_in(priority) == head.stream {
        let reason = "client sent PRIORITY frame with incorrect dependency";
        return Err(Violation::stream(ErrorCode::ProtocolError, reason));
    }
    Ok(Frame::Priority)
}

fn settings<'a>(head: &Head, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
    on_connection(head, "client sent SETTINGS frame with incorrect identifier")?;
    if head.has(flag::ACK) {
        return match payload {
            [] => Ok(Frame::SettingsAck),
            _ => Err(size("client sent SETTINGS frame with the ACK flag and nonzero length")),
        };
    }
    if !payload.len().is_multiple_of(6) {
        return Err(size("client sent SETTINGS frame with incorrect length"));
    }
    Ok(Frame::Settings(payload))
}

fn window_update<'a>(head: &Head, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
    let bytes = exactly(payload, "client sent WINDOW_UPDATE frame with incorrect length")?;
    match u32::from_be_bytes(bytes) & 0x7fff_ffff {
        0 => {
            let reason = "client sent WINDOW_UPDATE frame with incorrect window increment 0";
            let scope = if head.stream == 0 { Scope::Connection } else { Scope::Stream };
            Err(Violation { scope, code: ErrorCode::ProtocolError, reason })
        }
        increment => Ok(Frame::WindowUpdate(increment)),
    }
}

/// Appends a SETTINGS frame.
pub fn write_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    Head { len: settings.len() * 6, kind: kind::SETTINGS, flags: 0, stream: 0 }.write(out);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of the peer's settings.
pub fn write_settings_ack(out: &mut Vec<u8>) {
    Head { len: 0, kind: kind::SETTINGS, flags: flag::ACK, stream: 0 }.write(out);
}

/// Appends a PING, or the answer to one.
pub fn write_ping(out: &mut Vec<u8>, opaque: [u8; 8], ack: bool) {
    let flags = if ack { flag::ACK } else { 0 };
    Head { len: 8, kind: kind::PING, flags, stream: 0 }.write(out);
    out.extend_from_slice(&opaque);
}

/// Appends a GOAWAY.
pub fn write_goaway(out: &mut Vec<u8>, last: u32, code: ErrorCode) {
    Head { len: 8, kind: kind::GOAWAY, flags: 0, stream: 0 }.write(out);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&(code as u32).to_be_bytes());
}

/// Appends an RST_STREAM.
pub fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    Head { len: 4, kind: kind::RST_STREAM, flags: 0, stream }.write(out);
    out.extend_from_slice(&(code as u32).to_be_bytes());
}

/// Appends a WINDOW_UPDATE of a stream, or of the connection (0).
pub fn write_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    Head { len: 4, kind: kind::WINDOW_UPDATE, flags: 0, stream }.write(out);
    out.extend_from_slice(&increment.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::{ErrorCode::*, *};

    fn read(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<Frame<'_>, Violation> {
        parse(&Head { len: payload.len(), kind, flags, stream }, payload)
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head = Head { len: 0x01_02_03, kind: 4, flags: 5, stream: 0x0607_0809 };
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(Head::parse(&bytes), Some(head));
        assert_eq!(Head::parse(&bytes[..8]), None);
        // The reserved bit means nothing.
        bytes[5] |= 0x80;
        assert_eq!(Head::parse(&bytes), Some(head));
    }

    #[test]
    fn frames_are_read() {
        let data = |data, end_stream| Frame::Data { data, end_stream };
        let headers =
            |block, end_stream, end_headers| Frame::Headers { block, end_stream, end_headers };
        type Case<'a> = (u8, u8, u32, &'a [u8], Frame<'a>);
        let cases: &[Case<'_>] = &[
            (kind::DATA, 0, 1, b"abc", data(b"abc", false)),
            (kind::DATA, 9, 1, b"\x02abc..", data(b"abc", true)),
            (kind::DATA, 8, 1, b"\x00", data(b"", false)),
            (kind::HEADERS, 4, 1, b"abc", headers(b"abc", false, true)),
            (kind::HEADERS, 0x20, 1, b"\0\0\0\0\x0fabc", headers(b"abc", false, false)),
            (kind::HEADERS, 0x29, 1, b"\x01\x80\0\0\x03\x0fabc.", headers(b"abc", true, false)),
            (kind::PRIORITY, 0, 3, b"\0\0\0\x01\0", Frame::Priority),
            (kind::RST_STREAM, 0, 3, b"\0\0\0\x08", Frame::Reset(8)),
            (kind::SETTINGS, 0, 0, b"\0\x01\0\0\0\0", Frame::Settings(b"\0\x01\0\0\0\0")),
            (kind::SETTINGS, 1, 0, b"", Frame::SettingsAck),
            (kind::PING, 0, 0, b"12345678", Frame::Ping(*b"12345678")),
            (kind::PING, 1, 0, b"12345678", Frame::PingAck(*b"12345678")),
            (kind::GOAWAY, 0, 0, b"\0\0\0\x05\0\0\0\x02why", Frame::GoAway { last: 5, code: 2 }),
            (kind::WINDOW_UPDATE, 0, 0, b"\x80\0\0\x07", Frame::WindowUpdate(7)),
            (
                kind::CONTINUATION,
                4,
                1,
                b"abc",
                Frame::Continuation { block: b"abc", end_headers: true },
            ),
            (
                kind::PRIORITY_UPDATE,
                0,
                0,
                b"\0\0\0\x07u=1",
                Frame::PriorityUpdate { stream: 7, value: b"u=1" },
            ),
            (0x55, 0xff, 9, b"anything", Frame::Unknown),
        ];
        for (kind, flags, stream, payload, frame) in cases {
            assert_eq!(read(*kind, *flags, *stream, payload), Ok(*frame));
        }
    }

    #[test]
    fn frames_that_break_a_rule_are_refused() {
        let connection = Scope::Connection;
        type Case<'a> = (u8, u8, u32, &'a [u8], Scope, ErrorCode);
        let cases: &[Case<'_>] = &[
            (kind::DATA, 0, 0, b"", connection, ProtocolError),
            (kind::DATA, 8, 1, b"", connection, FrameSizeError),
            (kind::DATA, 8, 1, b"\x03ab", connection, ProtocolError),
            (kind::HEADERS, 0, 0, b"", connection, ProtocolError),
            (kind::HEADERS, 8, 1, b"\x01", connection, ProtocolError),
            (kind::HEADERS, 0x20, 1, b"\0\0\0\0", connection, FrameSizeError),
            (kind::HEADERS, 0x20, 1, b"\0\0\0\x01\0", connection, ProtocolError),
            (kind::PRIORITY, 0, 0, b"\0\0\0\0\0", connection, ProtocolError),
            (kind::PRIORITY, 0, 1, b"\0\0\0\0", Scope::Stream, FrameSizeError),
            (kind::PRIORITY, 0, 1, b"\x80\0\0\x01\0", Scope::Stream, ProtocolError),
            (kind::RST_STREAM, 0, 0, b"\0\0\0\0", connection, ProtocolError),
            (kind::RST_STREAM, 0, 1, b"\0\0\0", connection, FrameSizeError),
            (kind::SETTINGS, 0, 1, b"", connection, ProtocolError),
            (kind::SETTINGS, 0, 0, b"\0\x01\0\0\0", connection, FrameSizeError),
            (kind::SETTINGS, 1, 0, b"\0\x01\0\0\0\0", connection, FrameSizeError),
            (kind::PUSH_PROMISE, 4, 1, b"\0\0\0\x02", connection, ProtocolError),
            (kind::PING, 0, 1, b"12345678", connection, ProtocolError),
            (kind::PING, 0, 0, b"1234567", connection, FrameSizeError),
            (kind::GOAWAY, 0, 1, b"\0\0\0\0\0\0\0\0", connection, ProtocolError),
            (kind::GOAWAY, 0, 0, b"\0\0\0\0\0\0\0", connection, FrameSizeError),
            (kind::WINDOW_UPDATE, 0, 0, b"\0\0\0", connection, FrameSizeError),
            (kind::WINDOW_UPDATE, 0, 0, b"\0\0\0\0", connection, ProtocolError),
            (kind::WINDOW_UPDATE, 0, 1, b"\x80\0\0\0", Scope::Stream, ProtocolError),
            (kind::CONTINUATION, 4, 0, b"", connection, ProtocolError),
            (kind::PRIORITY_UPDATE, 0, 1, b"\0\0\0\x01", connection, ProtocolError),
            (kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0", connection, FrameSizeError),
            (kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\0", connection, ProtocolError),
        ];
        for (kind, flags, stream, payload, scope, code) in cases {
            let violation = read(*kind, *flags, *stream, payload).expect_err("refused");
            assert_eq!((violation.scope, violation.code), (*scope, *code), "{kind} {payload:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut out = Vec::new();
        write_settings(&mut out, &[(3, 128), (4, 65_536)]);
        write_settings_ack(&mut out);
        write_ping(&mut out, *b"12345678", true);
        write_goaway(&mut out, 7, EnhanceYourCalm);
        write_reset(&mut out, 5, Cancel);
        write_window_update(&mut out, 5, 9);
        let mut frames = Vec::new();
        let mut rest = &out[..];
        while let Some(head) = Head::parse(rest) {
            let payload = &rest[HEAD_BYTES..HEAD_BYTES + head.len];
            frames.push(parse(&head, payload).expect("a frame"));
            rest = &rest[HEAD_BYTES + head.len..];
        }
        assert_eq!(
            frames,
            [
                Frame::Settings(b"\0\x03\0\0\0\x80\0\x04\0\x01\0\0"),
                Frame::SettingsAck,
                Frame::PingAck(*b"12345678"),
                Frame::GoAway { last: 7, code: 11 },
                Frame::Reset(8),
                Frame::WindowUpdate(9),
            ]
        );
    }
}
