//! A server's frames, and what a session makes of them, whatever pieces they come in.

use forebay_wire::{
    h1::ResponseHead,
    h2::{
        Head, PREFACE,
        frame::{self, ErrorCode, HEAD_BYTES, MAX_PAYLOAD, flag, kind},
        hpack::{Encoder, Indexing},
        settings::id,
    },
};

use super::*;
use crate::upstream::{Codec, Outgoing, Remains};

/// What a server sends.
#[derive(Default)]
pub struct Server {
    pub bytes: Vec<u8>,
    encoder: Encoder,
}

impl Server {
    /// One that has sent its settings.
    pub fn new() -> Server {
        Server::default().settings(&[])
    }

    pub fn settings(mut self, settings: &[(u16, u32)]) -> Server {
        frame::write_settings(&mut self.bytes, settings);
        self
    }

    pub fn frame(mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Server {
        Head { len: payload.len(), kind, flags, stream }.write(&mut self.bytes);
        self.bytes.extend_from_slice(payload);
        self
    }

    pub fn block(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            self.encoder.field(name, value, Indexing::Kept, &mut block);
        }
        block
    }

    pub fn head(mut self, fields: &[(&str, &str)], flags: u8) -> Server {
        let block = self.block(fields);
        self.frame(kind::HEADERS, flag::END_HEADERS | flags, 1, &block)
    }

    pub fn ok(self) -> Server {
        self.head(&[(":status", "200")], 0)
    }

    pub fn data(self, data: &[u8], flags: u8) -> Server {
        self.frame(kind::DATA, flags, 1, data)
    }

    pub fn window_update(mut self, stream: u32, increment: u32) -> Server {
        frame::write_window_update(&mut self.bytes, stream, increment);
        self
    }

    pub fn reset(mut self, stream: u32, code: ErrorCode) -> Server {
        frame::write_reset(&mut self.bytes, stream, code);
        self
    }

    pub fn goaway(mut self, last: u32, code: ErrorCode) -> Server {
        frame::write_goaway(&mut self.bytes, last, code);
        self
    }
}

const END: u8 = flag::END_STREAM;
const LIMIT: usize = 512;

/// What a client has of a response.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    interim: Vec<u16>,
    status: u16,
    body: String,
    trailers: Vec<(String, String)>,
    done: bool,
    /// Whether the connection may be used again; else why not, if that is told.
    reusable: bool,
    left_over: Option<String>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Opens a stream for a request without a body.
fn codec() -> Http2 {
    let mut codec = Http2::new(false, ResponseHead::default());
    codec.begin(None);
    codec.open(b"\x82\x86\x84", true).expect("frames");
    codec
}

/// Reads a response from these pieces, as the exchange does.
fn read<'a>(codec: &mut Http2, pieces: impl Iterator<Item = &'a [u8]>) -> Result<Seen, String> {
    let (mut seen, mut has_head) = (Seen::default(), false);
    for piece in pieces {
        let mut buf = piece.to_vec();
        let mut from = 0;
        while !has_head {
            match codec.read_head(&mut buf, LIMIT) {
                Ok(Some(len)) => {
                    let framing = codec.framing(&buf).map_err(|bad| codec.explain(bad, &buf))?;
                    if framing.interim {
                        seen.interim.push(codec.head().status);
                        buf.drain(..len);
                        codec.reset();
                        continue;
                    }
                    (has_head, from) = (true, len);
                    seen.status = codec.head().status;
                }
                Ok(None) => break,
                Err(bad) => return Err(codec.explain(bad, &buf)),
            }
        }
        if has_head && !seen.done {
            let decoded = codec.decode(&mut buf, from);
            seen.body.push_str(&text(&buf[from..decoded.data_end]));
            if let Some(bad) = decoded.bad {
                return Err(codec.explain(bad, &buf));
            }
            seen.done = decoded.done;
            seen.left_over = codec.left_over().filter(|_| decoded.left_over > 0);
        }
    }
    let trailers = codec.take_trailers().into_iter();
    seen.trailers = trailers.map(|f| (text(&f.name), text(&f.value))).collect();
    seen.reusable = seen.left_over.is_none() && matches!(codec.release(), Remains::Session(_));
    Ok(seen)
}

/// The same, at once and bytewise; what comes behind the end then is for the idle connection.
fn read_all(server: &Server) -> Result<Seen, String> {
    let at_once = read(&mut codec(), std::iter::once(&server.bytes[..]));
    let in_pieces = read(&mut codec(), server.bytes.chunks(1));
    match (&at_once, &in_pieces) {
        (Ok(one), Ok(other)) => {
            assert_eq!((one.status, &one.body), (other.status, &other.body));
            assert_eq!((one.done, &one.trailers), (other.done, &other.trailers));
            assert_eq!(one.interim, other.interim);
        }
        _ => assert_eq!(at_once, in_pieces),
    }
    at_once
}

#[test]
fn a_stream_is_opened_behind_the_preface_and_in_frames_of_any_server() {
    let mut session = Session::default();
    let long = vec![7; 2 * MAX_PAYLOAD];
    let out = session.open(&long, true);
    let mut rest = out.strip_prefix(PREFACE.as_slice()).expect("the preface first");
    let mut frames = Vec::new();
    while let Some(head) = Head::parse(rest) {
        frames.push((head.kind, head.flags, head.stream, head.len));
        rest = &rest[HEAD_BYTES + head.len..];
    }
    assert_eq!(
        frames,
        [
            (kind::SETTINGS, 0, 0, 12),
            (kind::WINDOW_UPDATE, 0, 0, 4),
            (kind::HEADERS, END, 1, MAX_PAYLOAD),
            (kind::CONTINUATION, 0, 1, MAX_PAYLOAD),
            // What empties the table takes a byte.
            (kind::CONTINUATION, flag::END_HEADERS, 1, 1),
        ]
    );
    let again = session.open(b"\x82", false);
    let head = Head::parse(&again).expect("a frame");
    assert_eq!((head.kind, head.stream, head.flags, head.len), (1, 3, flag::END_HEADERS, 1));
}

#[test]
fn responses_come_in_any_pieces() {
    let all = Server::new()
        .head(&[(":status", "103"), ("link", "x")], 0)
        .frame(kind::PING, 0, 0, b"12345678")
        .head(&[(":status", "200"), ("content-length", "11"), ("server", "x")], 0)
        .data(b"hello", 0)
        .frame(kind::DATA, flag::PADDED, 1, b"\x03 wo...")
        .frame(0x55, 0xff, 9, b"anything")
        .frame(kind::PRIORITY, 0, 1, b"\0\0\0\x03\x10")
        .window_update(0, 5)
        .data(b"", 0)
        .frame(kind::DATA, flag::PADDED, 1, b"\x00rld")
        .head(&[("x-sum", "5"), ("content-length", "7")], END);
    let seen = Seen {
        interim: vec![103],
        status: 200,
        body: "hello world".to_owned(),
        trailers: vec![("x-sum".to_owned(), "5".to_owned())],
        done: true,
        reusable: true,
        left_over: None,
    };
    for at in 0..=all.bytes.len() {
        let (first, second) = all.bytes.split_at(at);
        let got = read(&mut codec(), [first, second].into_iter());
        assert_eq!(got.as_ref(), Ok(&seen), "at {at}");
    }
    assert_eq!(read_all(&all), Ok(seen));
}

#[test]
fn a_head_may_be_continued_and_padded() {
    let mut server = Server::new();
    let block = server.block(&[(":status", "204"), ("a", "b"), ("c", "d")]);
    let (first, rest) = block.split_at(2);
    let (second, third) = rest.split_at(1);
    let padded = [b"\x04\0\0\0\x09\x20", first, b"...."].concat();
    let flags = flag::PADDED | flag::PRIORITY | END;
    let server = server
        .frame(kind::HEADERS, flags, 1, &padded)
        .frame(kind::CONTINUATION, 0, 1, second)
        .frame(kind::CONTINUATION, flag::END_HEADERS, 1, third);
    let seen = read_all(&server).expect("a response");
    assert_eq!((seen.status, seen.done, seen.reusable), (204, true, true));
}

#[test]
fn what_a_server_must_not_do_fails_the_response() {
    let early = "upstream prematurely closed stream";
    let unexpected = |kind: u8| format!("upstream sent unexpected http2 frame: {kind}");
    let unknown = |stream: u32| format!("upstream sent frame for unknown stream {stream}");
    let settings = |id, value| Server::new().settings(&[(id, value)]);
    let big = "x".repeat(LIMIT);
    let cases: Vec<(Server, String)> = vec![
        (
            Server { bytes: b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), ..Server::default() },
            "upstream sent HTTP/1 response to HTTP/2 request".into(),
        ),
        (Server::default().ok(), "upstream sent no SETTINGS frame first".into()),
        (
            Server::default().frame(kind::SETTINGS, flag::ACK, 0, b""),
            "upstream sent no SETTINGS frame first".into(),
        ),
        (
            Server::new().frame(kind::DATA, 0, 1, &[0; MAX_PAYLOAD + 1]),
            "upstream sent too large http2 frame: 16385".into(),
        ),
        (Server::new().data(b"x", 0), unexpected(0)),
        (Server::new().ok().frame(kind::DATA, 0, 3, b"x"), unknown(3)),
        (Server::new().ok().frame(kind::DATA, 0, 2, b"x"), unknown(2)),
        (Server::new().ok().frame(kind::DATA, 0, 0, b"x"), unknown(0)),
        (Server::new().frame(kind::HEADERS, flag::END_HEADERS, 3, b"\x88"), unknown(3)),
        (Server::new().frame(kind::HEADERS, flag::END_HEADERS, 0, b"\x88"), unknown(0)),
        (Server::new().reset(3, ErrorCode::Cancel), unknown(3)),
        (Server::new().reset(2, ErrorCode::Cancel), unknown(2)),
        (Server::new().window_update(5, 1), unknown(5)),
        (Server::new().frame(kind::CONTINUATION, 0, 1, b""), unexpected(9)),
        (
            Server::new().frame(kind::HEADERS, 0, 1, b"\x88").frame(kind::PING, 0, 0, &[0; 8]),
            unexpected(6),
        ),
        (
            Server::new().frame(kind::HEADERS, 0, 1, b"\x88").frame(
                kind::CONTINUATION,
                flag::END_HEADERS,
                3,
                b"",
            ),
            unknown(3),
        ),
        (
            Server::new().frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, b"\0\0\0\x02\x82"),
            "upstream sent unexpected push promise frame".into(),
        ),
        (
            Server::new().frame(kind::PING, flag::ACK, 0, &[0; 8]),
            "upstream sent ping frame with ack flag".into(),
        ),
        (
            Server::new().frame(kind::PING, 0, 0, &[0; 7]),
            "upstream sent PING frame with incorrect length".into(),
        ),
        (
            Server::new().frame(kind::SETTINGS, 0, 0, &[0; 5]),
            "upstream sent SETTINGS frame with incorrect length".into(),
        ),
        (
            settings(id::INITIAL_WINDOW_SIZE, 1 << 31),
            "upstream sent SETTINGS frame with incorrect INITIAL_WINDOW_SIZE".into(),
        ),
        (
            settings(id::MAX_FRAME_SIZE, 16_383),
            "upstream sent SETTINGS frame with incorrect MAX_FRAME_SIZE".into(),
        ),
        (settings(id::ENABLE_PUSH, 1), "upstream sent SETTINGS frame with ENABLE_PUSH".into()),
        (
            Server::new().window_update(0, 0x7fff_ffff),
            "upstream sent too large window update".into(),
        ),
        (
            Server::new().window_update(1, 0x7fff_ffff),
            "upstream sent too large window update".into(),
        ),
        (
            Server::new().window_update(1, 1).settings(&[(id::INITIAL_WINDOW_SIZE, 0x7fff_ffff)]),
            "upstream sent too large window update".into(),
        ),
        (
            Server::new().window_update(1, 0),
            "upstream sent WINDOW_UPDATE frame with incorrect window increment 0".into(),
        ),
        (
            Server::new().ok().frame(kind::DATA, flag::PADDED, 1, b"\x03ab"),
            "upstream sent http2 frame with too long padding".into(),
        ),
        (
            Server::new().ok().frame(kind::DATA, flag::PADDED, 1, b""),
            "upstream sent http2 frame with too long padding".into(),
        ),
        (
            Server::new().reset(1, ErrorCode::RefusedStream),
            "upstream rejected request with error 7".into(),
        ),
        (
            Server::new().ok().data(b"x", 0).reset(1, ErrorCode::NoError),
            "upstream rejected request with error 0".into(),
        ),
        (
            Server::new().goaway(0, ErrorCode::EnhanceYourCalm),
            "upstream sent goaway with error 11".into(),
        ),
        (
            Server::new().ok().goaway(0, ErrorCode::NoError),
            "upstream sent goaway with error 0".into(),
        ),
        (
            Server::new().frame(kind::HEADERS, flag::END_HEADERS, 1, b"\xff\xff\xff\xff\xff"),
            "upstream sent invalid encoded header".into(),
        ),
        (
            Server::new().frame(kind::HEADERS, flag::END_HEADERS, 1, b"\xbe"),
            "upstream sent invalid encoded header".into(),
        ),
        (Server::new().head(&[("a", "b")], 0), "upstream sent no :status header".into()),
        (
            Server::new().head(&[(":status", "200"), ("a", "b\rc")], 0),
            "upstream sent invalid header: \"a: b\\x0Dc\"".into(),
        ),
        (
            Server::new().head(&[(":status", "200"), ("transfer-encoding", "chunked")], 0),
            "upstream sent invalid header: \"transfer-encoding: chunked\"".into(),
        ),
        (
            Server::new().head(&[(":status", "200"), ("a", &big)], 0),
            "upstream sent too big header".into(),
        ),
        (
            Server::new().frame(kind::HEADERS, 0, 1, &[0; 4 * LIMIT + 1]),
            "upstream sent too big header".into(),
        ),
        (Server::new().head(&[(":status", "103")], END), early.into()),
        (Server::new().head(&[(":status", "200"), ("content-length", "2")], END), early.into()),
        (
            Server::new().head(&[(":status", "200"), ("content-length", "2")], 0).data(b"x", END),
            early.into(),
        ),
        (
            Server::new()
                .head(&[(":status", "200"), ("content-length", "2")], 0)
                .data(b"x", 0)
                .head(&[("x", "y")], END),
            early.into(),
        ),
        (
            Server::new().head(&[(":status", "200"), ("content-length", "2")], 0).data(b"xyz", 0),
            "upstream sent response body larger than indicated content length".into(),
        ),
        (
            Server::new().ok().data(b"x", 0).head(&[("x", "y")], 0),
            "upstream sent trailer without end stream flag".into(),
        ),
        (
            Server::new().ok().head(&[(":status", "200")], END),
            "upstream sent invalid trailer".into(),
        ),
        (Server::new().ok().head(&[("X", "y")], END), "upstream sent invalid trailer".into()),
        (Server::new().ok().head(&[("a", &big)], END), "upstream sent too big header".into()),
    ];
    for (server, why) in cases {
        assert_eq!(read_all(&server), Err(why), "{}", server.bytes.escape_ascii());
    }
}

#[test]
fn a_response_to_head_has_no_body() {
    let head = |flags| Server::new().head(&[(":status", "200"), ("content-length", "5")], flags);
    for (server, late) in [
        (head(END), None),
        (head(0).data(b"", END), None),
        (head(0), None),
        (head(0).data(b"hello", END), Some("response body larger than indicated content length")),
        (head(0).reset(1, ErrorCode::Cancel), Some("rejected request with error 8")),
    ] {
        let mut codec = Http2::new(true, ResponseHead::default());
        codec.open(b"\x82\x86\x84", true);
        let seen = read(&mut codec, std::iter::once(&server.bytes[..])).expect("a response");
        assert!(seen.done && seen.body.is_empty());
        assert_eq!(seen.reusable, late.is_none());
        let text = seen.left_over.unwrap_or_default();
        assert_eq!(text.is_empty(), late.is_none());
        assert!(text.contains(late.unwrap_or_default()), "{text}");
    }
}

#[test]
fn the_end_of_a_response_without_body_may_come_while_its_connection_is_idle() {
    let head = Server::new().head(&[(":status", "204")], 0);
    // What is wrong behind it is the connection's matter, whenever it comes.
    let bad = Server::new().head(&[(":status", "204")], 0).data(b"x", END);
    let seen = read(&mut codec(), std::iter::once(&bad.bytes[..])).expect("a response");
    assert!(seen.done && !seen.reusable && seen.body.is_empty() && seen.left_over.is_some());
    let after = |server: &Server| server.bytes[head.bytes.len()..].to_vec();
    let again = || Server::new().head(&[(":status", "204")], 0);
    for (bytes, quiet) in [
        (vec![], Some(false)),
        (after(&again().data(b"", END)), Some(true)),
        (after(&again().frame(kind::PING, 0, 0, &[1; 8]).data(b"", END)), Some(true)),
        (after(&again().data(b"", END).goaway(1, ErrorCode::NoError)), None),
        (after(&again().data(b"", END).data(b"", END)), None),
        (after(&again().data(b"x", END)), None),
        (after(&again().reset(1, ErrorCode::NoError)), None),
        (after(&again().head(&[("x", "y")], END)), None),
    ] {
        for size in [1, bytes.len().max(1)] {
            let mut codec = codec();
            assert!(read_without_release(&mut codec, head.bytes.clone()));
            let Remains::Session(mut session) = codec.release() else { panic!("spent") };
            assert!(!session.is_quiet());
            let fine = bytes.chunks(size).all(|piece| session.idle(piece).is_ok());
            assert_eq!(fine.then(|| session.is_quiet()), quiet, "{bytes:?}");
        }
    }
}

#[test]
fn what_came_before_a_fault_is_data() {
    let mut codec = codec();
    let server = Server::new().ok().data(b"so ", 0).data(b"far", 0);
    let mut buf = server.frame(kind::PUSH_PROMISE, 0, 1, b"\0\0\0\x02").bytes;
    let len = codec.read_head(&mut buf, LIMIT).expect("a head").expect("a whole one");
    codec.framing(&buf).expect("framing");
    let decoded = codec.decode(&mut buf, len);
    assert_eq!(&buf[len..decoded.data_end], b"so far");
    assert!(decoded.bad.is_some() && !decoded.done);
}

#[test]
fn a_complete_response_stands_whatever_follows_but_its_connection_does_not() {
    let done = || Server::new().ok().data(b"ok", END);
    let closed = "upstream sent frame for closed stream 1 after its response".to_owned();
    let cases: Vec<(Server, bool, Option<String>)> = vec![
        (done(), true, None),
        (done().reset(1, ErrorCode::NoError), true, None),
        (done().window_update(1, 5).frame(kind::PING, 0, 0, &[1; 8]), true, None),
        (done().settings(&[(id::MAX_CONCURRENT_STREAMS, 1)]), true, None),
        // No further stream is taken.
        (done().goaway(1, ErrorCode::NoError), false, None),
        (done().goaway(0, ErrorCode::NoError), false, None),
        (done().settings(&[(id::MAX_CONCURRENT_STREAMS, 0)]), false, None),
        // A part of a frame.
        (done().frame(kind::PING, 0, 0, &[1; 8][..7]).cut(8), false, None),
        // More of the stream.
        (done().data(b"more", 0), false, Some(closed.clone())),
        (done().head(&[(":status", "200")], END), false, Some(closed)),
        (
            done().frame(kind::DATA, END, 3, b"for another"),
            false,
            Some("upstream sent frame for unknown stream 3 after its response".to_owned()),
        ),
    ];
    for (server, reusable, left_over) in cases {
        let seen = read(&mut codec(), std::iter::once(&server.bytes[..])).expect("a response");
        assert_eq!((seen.body.as_str(), seen.done), ("ok", true));
        assert_eq!((seen.reusable, seen.left_over), (reusable, left_over));
    }
}

impl Server {
    /// Without the last bytes.
    fn cut(mut self, bytes: usize) -> Server {
        self.bytes.truncate(self.bytes.len() - bytes);
        self
    }
}

#[test]
fn what_is_asked_is_answered() {
    let mut codec = codec();
    let server = Server::new().frame(kind::PING, 0, 0, b"12345678").settings(&[(0x99, 7)]);
    codec.read_head(&mut server.bytes.clone(), LIMIT).expect("no head yet");
    assert!(codec.has_output());
    let mut expected = Vec::new();
    frame::write_settings_ack(&mut expected);
    frame::write_ping(&mut expected, *b"12345678", true);
    frame::write_settings_ack(&mut expected);
    assert_eq!(codec.take_output(), expected);
    assert!(!codec.has_output());
}

/// What of a body of so many bytes goes out, in frames, as (length, last).
fn send(codec: &mut Http2, mut left: usize) -> (Vec<(usize, bool)>, usize) {
    let mut frames = Vec::new();
    while left > 0 {
        let take = codec.credit(left);
        if take == 0 {
            break;
        }
        left -= take;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        codec.wrap(take, left == 0, &mut before, &mut after);
        let head = Head::parse(&before).expect("a head");
        assert_eq!((head.kind, head.len, after.len()), (kind::DATA, take, 0));
        frames.push((take, head.flags & END != 0));
    }
    (frames, left)
}

#[test]
fn bodies_go_out_within_windows_and_frames() {
    let open = || {
        let mut codec = Http2::new(false, ResponseHead::default());
        codec.open(b"\x83\x86\x84", false);
        codec
    };
    let take = |codec: &mut Http2, server: Server| {
        codec.read_head(&mut server.bytes.clone(), LIMIT).expect("no head yet");
    };
    // Windows as they are before anything is said.
    let mut codec = open();
    let (frames, left) = send(&mut codec, 100_000);
    assert_eq!(frames, [(16_384, false), (16_384, false), (16_384, false), (16_383, false)]);
    assert_eq!(left, 34_465);
    // Both windows must be open.
    take(&mut codec, Server::new().window_update(0, 20));
    assert_eq!(codec.credit(100), 0);
    take(&mut codec, Server::default().window_update(1, 10));
    assert_eq!(codec.credit(100), 10);
    // A smaller first window takes away what was given: 65535 less, and 30 more.
    take(&mut codec, Server::default().settings(&[(id::INITIAL_WINDOW_SIZE, 65_505)]));
    assert_eq!(codec.credit(100), 0);
    take(&mut codec, Server::default().window_update(1, 20));
    assert_eq!(codec.credit(100), 0);
    take(&mut codec, Server::default().window_update(1, 5));
    assert_eq!(codec.credit(100), 5);
    // Larger frames, where the server takes them.
    let mut codec = open();
    take(&mut codec, Server::default().settings(&[(id::MAX_FRAME_SIZE, 40_000)]));
    assert_eq!(send(&mut codec, 50_000).0, [(40_000, false), (10_000, true)]);
    // No window at all from the beginning of the next stream.
    let mut codec = open();
    take(&mut codec, Server::default().settings(&[(id::INITIAL_WINDOW_SIZE, 0)]));
    assert_eq!(codec.credit(1), 0);
}

#[test]
fn a_server_that_wants_no_more_of_a_request_gets_no_more() {
    let mut codec = Http2::new(false, ResponseHead::default());
    codec.open(b"\x83\x86\x84", false);
    assert!(codec.frames(&Outgoing::None) && codec.goes_on());
    let server = Server::new().ok().data(b"ok", END).reset(1, ErrorCode::NoError);
    read_one(&mut codec, server.bytes);
    assert_eq!(codec.credit(1), 0);
    assert!(matches!(codec.release(), Remains::Spent), "the request did not end");
}

#[test]
fn windows_are_held_and_opened_again() {
    let mut session = Session::with_window(100);
    session.open(b"\x82", true);
    let mut feed = |server: Server| {
        let (mut at, mut got) = (0, 0);
        loop {
            match session.next(&server.bytes, &mut at) {
                Ok(Event::Starved) => return Ok((got, session.take_output())),
                Ok(Event::Data(range)) => got += range.len(),
                Ok(Event::Section { .. }) => {
                    session.decode_section(|_| {}).expect("a block");
                    session.expect_body();
                }
                Ok(Event::End) => {}
                Err(fault) => return Err(fault.to_string()),
            }
        }
    };
    feed(Server::new().ok()).expect("a head");
    // Padding counts, too.
    let padded = [b"\x09", &b"x".repeat(65)[..], b"........."].concat();
    let frame = |flags, data: &[u8]| Server::default().frame(kind::DATA, flags, 1, data);
    assert_eq!(feed(frame(flag::PADDED, &padded)), Ok((65, Vec::new())));
    let mut update = Vec::new();
    frame::write_window_update(&mut update, 1, 76);
    assert_eq!(feed(frame(0, b"x")), Ok((1, update)));
    let text = "upstream violated stream flow control, received 101 data frame with window 100";
    assert_eq!(feed(frame(0, &[0; 101])), Err(text.to_owned()));
}

#[test]
fn the_window_of_the_connection_is_held_too() {
    let mut session = Session::with_window(forebay_wire::h2::MAX_WINDOW);
    let out = session.open(b"\x82", true);
    let mut granted = Vec::new();
    frame::write_window_update(&mut granted, 0, forebay_wire::h2::MAX_WINDOW - 65_535);
    assert!(out.windows(granted.len()).any(|part| part == granted));
}

#[test]
fn floods_end_the_response() {
    let no_use = "upstream sent too many frames of no use";
    let pings = Server::default().frame(kind::PING, 0, 0, &[0; 8]);
    let cases = [
        (Server::default().settings(&[]), "upstream sent too many settings frames", 1001),
        (pings, "upstream sent too many ping frames", 5001),
        (Server::default().data(b"", 0), no_use, 2001),
        (Server::default().frame(kind::DATA, flag::PADDED, 1, b"\x02.."), no_use, 2001),
        (Server::default().window_update(0, 1), no_use, 10_001),
        (Server::default().frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 0]), no_use, 10_001),
        (Server::default().frame(0x77, 0, 0, &[0; 4096]), no_use, 1200),
        (Server::default().goaway(1, ErrorCode::NoError), no_use, 10_001),
    ];
    for (one, why, most) in cases {
        let mut session = Session::default();
        session.open(b"\x82", true);
        let opening = Server::new().ok().bytes;
        let mut at = 0;
        assert_eq!(session.next(&opening, &mut at), Ok(Event::Section { end_stream: false }));
        session.expect_body();
        let mut count = 0;
        let fault = loop {
            count += 1;
            assert!(count <= most + 100, "{why}: still going on");
            match session.next(&one.bytes, &mut 0) {
                Ok(Event::Starved) => {}
                Ok(other) => panic!("{other:?}"),
                Err(fault) => break fault,
            }
            // A server that reads what it asked for.
            session.take_output();
        };
        assert_eq!(fault.to_string(), why);
    }
}

#[test]
fn answers_that_nobody_reads_are_bounded() {
    let mut session = Session::default();
    session.open(b"\x82", true);
    let pings = Server::new().frame(kind::PING, 0, 0, &[0; 8]).bytes;
    let (first, ping) = pings.split_at(HEAD_BYTES);
    session.next(first, &mut 0).expect("settings");
    let stops = (0..5000).find(|_| session.next(ping, &mut 0).is_err());
    assert!(stops.is_some() && session.take_output().len() < 70_000);
}

#[test]
fn a_bomb_of_fields_is_let_off_within_its_limit() {
    // An entry of 4000 bytes, and a reference to it in each byte that follows.
    let mut block = vec![0x88, 0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
    block.extend(vec![b'x'; 4000]);
    block.extend(vec![0xbe; 4000]);
    let server = Server::new().frame(kind::HEADERS, flag::END_HEADERS, 1, &block);
    let mut codec = codec();
    let mut buf = server.bytes;
    let bad = codec.read_head(&mut buf, 4096).expect_err("too big");
    assert_eq!(codec.explain(bad, &buf), "upstream sent too big header");
    assert!(codec.head().fields.len() <= 1);
}

#[test]
fn an_idle_connection_answers_and_hears_of_its_end() {
    let mut codec = codec();
    let server = Server::new().head(&[(":status", "204")], END);
    read_one(&mut codec, server.bytes);
    let Remains::Session(mut session) = codec.release() else { panic!("it may be used again") };
    session.take_output();
    let ping = Server::default().frame(kind::PING, 0, 0, b"12345678").bytes;
    for piece in ping.chunks(5) {
        assert_eq!(session.idle(piece), Ok(()));
    }
    assert!(session.has_output() && session.is_quiet());
    assert_eq!(session.idle(&Server::default().window_update(1, 7).bytes), Ok(()));
    for ends in [
        Server::default().goaway(1, ErrorCode::NoError),
        Server::default().settings(&[(id::MAX_CONCURRENT_STREAMS, 0)]),
        Server::default().data(b"x", 0),
        Server::default().frame(kind::HEADERS, flag::END_HEADERS, 3, b"\x88"),
        Server::default().frame(kind::PUSH_PROMISE, 0, 1, b"\0\0\0\x02"),
    ] {
        let mut codec = self::codec();
        read_one(&mut codec, Server::new().head(&[(":status", "204")], END).bytes);
        let Remains::Session(mut session) = codec.release() else { panic!("not quiet") };
        assert!(session.idle(&ends.bytes).is_err(), "{}", ends.bytes.escape_ascii());
    }
}

fn read_one(codec: &mut Http2, bytes: Vec<u8>) {
    let seen = read_without_release(codec, bytes);
    assert!(seen, "a whole response");
}

/// Reads a response; whether it is complete.
fn read_without_release(codec: &mut Http2, mut buf: Vec<u8>) -> bool {
    let len = codec.read_head(&mut buf, LIMIT).expect("well-formed").expect("whole");
    codec.framing(&buf).expect("a head");
    let decoded = codec.decode(&mut buf, len);
    assert_eq!(decoded.bad, None);
    decoded.done
}

#[test]
fn responses_survive_mutation() {
    let mut server = Server::new().settings(&[(id::INITIAL_WINDOW_SIZE, 100)]);
    let block = server.block(&[(":status", "200"), ("content-length", "5"), ("x", "y")]);
    let sized = server
        .frame(
            kind::HEADERS,
            flag::PADDED | flag::END_HEADERS,
            1,
            &[&[2], &block[..], b"ab"].concat(),
        )
        .data(b"hel", 0)
        .frame(kind::DATA, flag::PADDED | END, 1, b"\x01lo.")
        .reset(1, ErrorCode::NoError);
    let long = Server::new()
        .head(&[(":status", "103"), ("link", "</a>; rel=preload")], 0)
        .frame(kind::PING, 0, 0, b"12345678")
        .head(&[(":status", "404"), ("server", "x"), ("set-cookie", "a=b")], 0)
        .data(b"not here", 0)
        .window_update(0, 5)
        .goaway(1, ErrorCode::NoError)
        .head(&[("grpc-status", "0"), ("x-sum", "1")], END);
    let cut = Server::new().frame(kind::HEADERS, 0, 1, &block[..3]);
    let cut = cut.frame(kind::CONTINUATION, flag::END_HEADERS, 1, &block[3..]).data(b"hello", END);
    let seeds: Vec<Vec<u8>> = [sized, long, cut]
        .iter()
        .flat_map(|server| [0u8, 2, 0x45].map(|bits| [&[bits], &server.bytes[..]].concat()))
        .collect();
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    let frames = [
        Server::default().data(b"x", 0).bytes,
        Server::default().data(b"", END).bytes,
        Server::default().head(&[("a", "b")], END).bytes,
        Server::default().head(&[(":status", "204")], END).bytes,
        Server::default().frame(kind::PING, 0, 0, &[0; 8]).bytes,
        Server::default().settings(&[(id::MAX_FRAME_SIZE, 16_385)]).bytes,
        Server::default().window_update(1, 0x7fff_ffff).bytes,
        Server::default().reset(1, ErrorCode::Cancel).bytes,
        Server::default().goaway(0, ErrorCode::NoError).bytes,
        Server::default().frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"\x88").bytes,
    ];
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    forebay_wire::fuzzing::mutate::run(fuzzing::response, &seeds, &frames, 60_000);
}
