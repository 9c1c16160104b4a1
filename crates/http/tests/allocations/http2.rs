//! HTTP/2: what a request takes from the heap, and what a connection holds at most, whatever its client
//! does (security notes: a mebibyte).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_testkit::tempdir::TempDir;
use forebay_wire::h2::{
    Head, PREFACE,
    frame::{self, HEAD_BYTES, flag, kind},
    settings::id,
};

use crate::{ALONE, HELD, MOST, REQUESTS, WARM_UP, Worker, best_round, start};

/// What a connection may hold beside what an idle one does.
const MOST_HELD: i64 = 1 << 20;
/// What a flood may send before it is stopped, or has made its point.
const FLOOD: usize = 4 << 20;

/// A client of one connection.
struct Peer {
    stream: TcpStream,
    input: Vec<u8>,
    next: u32,
}

impl Peer {
    fn connect(worker: &Worker, settings: &[(u16, u32)]) -> Peer {
        let stream = TcpStream::connect(worker.addr).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).expect("timeout");
        stream.set_write_timeout(limit).expect("timeout");
        let mut peer = Peer { stream, input: Vec::new(), next: 1 };
        let mut out = PREFACE.to_vec();
        frame::write_settings(&mut out, settings);
        frame::write_settings_ack(&mut out);
        assert!(peer.send(&out));
        peer
    }

    /// Whether the server takes it.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    fn open(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// The next frame; `None` at the end of the connection.
    fn next(&mut self) -> Option<(Head, Vec<u8>)> {
        loop {
            if let Some(head) = Head::parse(&self.input)
                && self.input.len() >= HEAD_BYTES + head.len
            {
                let payload = self.input[HEAD_BYTES..HEAD_BYTES + head.len].to_vec();
                self.input.drain(..HEAD_BYTES + head.len);
                return Some((head, payload));
            }
            let mut piece = [0; 65_536];
            match self.stream.read(&mut piece) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.input.extend_from_slice(&piece[..read]),
            }
        }
    }

    /// The body of an answer.
    fn answer(&mut self, stream: u32) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let (head, payload) = self.next().expect("a frame");
            if head.stream != stream {
                continue;
            }
            assert_ne!(head.kind, kind::RST_STREAM);
            if head.kind == kind::DATA {
                body.extend_from_slice(&payload);
            }
            if head.flags & flag::END_STREAM != 0 {
                return body;
            }
        }
    }

    /// Waits until the server has done all that was asked of it so far.
    fn settle(&mut self) {
        assert!(self.send(&framed(kind::PING, 0, 0, b"12345678")));
        while self.next().expect("an answer").0.kind != kind::PING {}
    }
}

fn framed(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Head { len: payload.len(), kind, flags, stream }.write(&mut out);
    out.extend_from_slice(payload);
    out
}

/// A block of a request that touches no table: `method` is the number of a pair in the static one.
fn block(method: u8, path: &str, more: &[u8]) -> Vec<u8> {
    let mut block = vec![0x80 | method, 0x86, 0x01, 4];
    block.extend_from_slice(b"test\x04");
    block.push(path.len() as u8);
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(more);
    block
}

const GET: u8 = 2;
const POST: u8 = 3;

/// What a thousand requests take, each in turn.
fn taken(worker: &Worker, path: &str, body: &[u8]) -> u64 {
    let mut peer = Peer::connect(worker, &[]);
    let block = block(GET, path, b"");
    let mut ask = |times: usize| {
        for _ in 0..times {
            let stream = peer.open();
            let end = flag::END_HEADERS | flag::END_STREAM;
            assert!(peer.send(&framed(kind::HEADERS, end, stream, &block)));
            assert!(peer.answer(stream) == body);
            let mut out = Vec::new();
            frame::write_window_update(&mut out, 0, body.len() as u32);
            assert!(peer.send(&out));
        }
    };
    ask(WARM_UP);
    best_round(|| ask(REQUESTS))
}

#[test]
fn a_request_on_a_kept_connection_takes_next_to_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("directory");
    let root = env!("CARGO_MANIFEST_DIR");
    let file = std::fs::read(format!("{root}/Cargo.toml")).expect("file");
    let inside = format!(
        "http2 on; access_log off; root {root}; types {{ text/plain toml; }} gzip off;
        open_file_cache max=100 inactive=60s; open_file_cache_valid 60s;
        location = /text {{ return 200 \"a short text\"; }}"
    );
    let worker = start(&inside, dir.path());
    for (path, body) in [("/text", &b"a short text"[..]), ("/Cargo.toml", &file)] {
        let taken = taken(&worker, path, body);
        println!("{path}: {taken} in {REQUESTS} requests");
        assert!(taken <= AT_MOST * REQUESTS as u64, "{path}: {taken} in {REQUESTS} requests");
    }
}

/// The mailbox between a stream and its handler, which handlers may keep.
const AT_MOST: u64 = 1;

/// What a connection holds at most while its client does that, beside an idle one.
fn most(worker: &Worker, play: impl FnOnce(&mut Peer)) -> i64 {
    let mut peer = Peer::connect(worker, &[(id::INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
    peer.settle();
    let before = HELD.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    play(&mut peer);
    let most = MOST.load(Ordering::Relaxed) - before;
    drop(peer);
    // The next one begins when this one is gone.
    let mut other = Peer::connect(worker, &[]);
    other.settle();
    most
}

fn flood(peer: &mut Peer, bytes: &[u8]) {
    let many = bytes.repeat(((64 << 10) / bytes.len()).max(1));
    let mut sent = 0;
    while sent < FLOOD && peer.send(&many) {
        sent += many.len();
    }
    while peer.next().is_some_and(|(head, _)| head.kind != kind::GOAWAY) {}
}

#[test]
fn a_connection_holds_no_more_than_a_mebibyte() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("directory");
    std::fs::write(dir.path().join("large"), vec![b'x'; 8 << 20]).expect("a file");
    let inside = format!(
        "http2 on; access_log off; root {}; client_max_body_size 0; send_timeout 2s;
        location = /text {{ return 200 \"a short text\"; }}
        location /slow {{ auth_delay 20s; auth_basic x; auth_basic_user_file none; }}",
        dir.path().display()
    );
    let worker = start(&inside, dir.path());
    let end = flag::END_HEADERS | flag::END_STREAM;
    let mut found = Vec::new();
    let mut note = |name: &str, held: i64| found.push((held, name.to_owned()));
    for (name, bytes) in [
        ("ping", framed(kind::PING, 0, 0, b"12345678")),
        ("settings", framed(kind::SETTINGS, 0, 0, b"\0\x04\0\0\xff\xff")),
        ("priority update", framed(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1")),
        ("unknown", framed(0x55, 0, 0, &[b'x'; 16_000])),
        ("garbage", vec![0xff; 1000]),
    ] {
        note(name, most(&worker, |peer| flood(peer, &bytes)));
    }
    let continued = most(&worker, |peer| {
        peer.send(&framed(kind::HEADERS, flag::END_STREAM, 1, b"\x82"));
        flood(peer, &framed(kind::CONTINUATION, 0, 1, &[0x82; 8000]));
    });
    note("continuation", continued);
    let unread = most(&worker, |peer| {
        peer.send(&framed(kind::WINDOW_UPDATE, 0, 0, b"\x7f\xff\0\0"));
        for _ in 0..200 {
            let stream = peer.open();
            peer.send(&framed(kind::HEADERS, end, stream, &block(GET, "/large", b"")));
        }
        while peer.next().is_some_and(|(head, _)| head.kind != kind::DATA) {}
        while peer.next().is_some_and(|(head, _)| head.kind != kind::RST_STREAM) {
            std::thread::yield_now();
            if peer.input.len() > 4 << 20 {
                break;
            }
        }
    });
    note("large files", unread);
    let bodies = most(&worker, |peer| {
        for _ in 0..128 {
            let stream = peer.open();
            peer.send(&framed(
                kind::HEADERS,
                flag::END_HEADERS,
                stream,
                &block(POST, "/slow", b""),
            ));
            peer.send(&framed(kind::DATA, 0, stream, &[b'x'; 4000]));
        }
        peer.settle();
    });
    note("bodies that nobody reads, and requests that wait", bodies);
    let heads = most(&worker, |peer| {
        // A field of 4 kB goes into the table once, and is named seven times by each request.
        let mut first = b"\x40\x01a\x7f\x81\x1e".to_vec();
        first.extend_from_slice(&[b'x'; 3968]);
        let more = [0xbe; 7];
        for at in 0..128 {
            let stream = peer.open();
            let block = block(GET, "/slow", if at == 0 { &first } else { &more });
            peer.send(&framed(kind::HEADERS, end, stream, &block));
        }
        peer.settle();
    });
    note("large heads that wait", heads);
    println!("{found:#?}");
    found.retain(|(held, _)| *held > MOST_HELD);
    assert!(found.is_empty(), "{found:#?}");
}
