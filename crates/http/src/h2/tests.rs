//! A connection by itself: frames in, frames out, and the clock stands still.

use std::{
    future::{Future, poll_fn},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
};

use forebay_rt::{clock, listen::Addr, task, timer::Timer};
use forebay_wire::h2::{
    Head, PREFACE,
    frame::{HEAD_BYTES, flag, kind},
    settings::id,
};

use super::{
    conn::{Closing, Conn, End},
    stream,
};
use crate::{
    request::Request,
    testing::{self, Line},
    worker::Listening,
};

/// Whether a task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// A connection and its client.
struct Pair<F> {
    conn: Conn<F>,
    line: Line,
    timer: Timer,
    woken: Arc<Woken>,
}

fn pair(server: &str) -> Pair<impl Future<Output = Request> + use<>> {
    clock::pause();
    let server = format!("http2 on; {server}");
    let connection = testing::request(&server, "GET / HTTP/1.1\r\n\r\n").connection.clone();
    connection.requests.set(0);
    let listening = Rc::new(Listening::new(Addr::Unix("/".into()), 0));
    let conn = Conn::new(stream::run, connection, listening, None);
    let pair = Pair { conn, line: Line::default(), timer: Timer::new(), woken: Arc::default() };
    pair.line.say(PREFACE);
    pair
}

impl<F: Future<Output = Request>> Pair<F> {
    fn say(&self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut head = Vec::new();
        Head { len: payload.len(), kind, flags, stream }.write(&mut head);
        self.line.say(&head);
        self.line.say(payload);
    }

    /// Lets the connection go on until it waits for something.
    fn go_on(&mut self) -> Poll<End> {
        for _ in 0..100 {
            let waker = Waker::from(self.woken.clone());
            let mut io = self.line.clone();
            let polled = self.conn.poll(&mut io, &self.timer, &mut Context::from_waker(&waker));
            if polled.is_ready() || !self.woken.0.swap(false, Relaxed) {
                return polled;
            }
        }
        panic!("it never waits");
    }

    /// The kinds of the frames that the client got, and their streams.
    fn told(&self) -> Vec<(u8, u32)> {
        let (told, mut at, mut frames) = (self.line.0.told.borrow(), 0, Vec::new());
        while let Some(head) = Head::parse(&told[at..]) {
            frames.push((head.kind, head.stream));
            at += HEAD_BYTES + head.len;
        }
        frames
    }
}

const WHOLE: u8 = flag::END_STREAM | flag::END_HEADERS;
/// `GET http://a/`.
const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
const POST: &[u8] = b"\x83\x86\x84\x41\x01a";

#[test]
fn a_head_that_does_not_end_costs_nothing_while_the_client_takes_nothing() {
    let mut pair = pair("client_header_timeout 1s; send_timeout 60s;");
    pair.line.0.is_full.set(true);
    pair.say(kind::SETTINGS, 0, 0, b"");
    pair.say(kind::HEADERS, flag::END_STREAM, 1, GET);
    assert!(pair.go_on().is_pending());
    clock::advance(2_000);
    assert!(pair.go_on().is_pending());
    clock::advance(58_000);
    assert_eq!(pair.go_on(), Poll::Ready(End::TimedOut { resets: false }));
}

#[test]
fn what_comes_on_a_stream_that_was_too_late_is_passed_over() {
    let mut pair = pair("return 200 text;");
    // A response that stays: there is no window for it.
    pair.say(kind::SETTINGS, 0, 0, &[&id::INITIAL_WINDOW_SIZE.to_be_bytes()[..], &[0; 4]].concat());
    pair.say(kind::HEADERS, WHOLE, 1, GET);
    assert!(pair.go_on().is_pending());
    pair.conn.close_finally();
    pair.say(kind::HEADERS, flag::END_HEADERS, 3, POST);
    pair.say(kind::DATA, 0, 3, b"some");
    pair.say(kind::WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1]);
    pair.say(kind::HEADERS, WHOLE, 3, b"\x40\x01a\x01b");
    pair.say(kind::RST_STREAM, 0, 3, &[0; 4]);
    assert!(pair.go_on().is_pending());
    assert_eq!(pair.conn.closing, Closing::Final);
    // One that the client never opened is an error still.
    pair.say(kind::DATA, flag::END_STREAM, 5, b"some");
    assert_eq!(pair.go_on(), Poll::Ready(End::Linger));
}

#[test]
fn nobody_works_on_for_a_connection_that_malformed_requests_ended() {
    let mut pair = pair("keepalive_requests 100000;");
    pair.say(kind::SETTINGS, 0, 0, b"");
    pair.say(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]);
    let mut stream = 1;
    let end = loop {
        // It has no path.
        pair.say(kind::HEADERS, WHOLE, stream, b"\x82\x86");
        stream += 2;
        match pair.go_on() {
            Poll::Ready(end) => break end,
            Poll::Pending => assert!(stream < 10_000),
        }
    };
    assert_eq!(end, End::Linger);
    pair.conn.abandon();
    assert!(pair.conn.poll_abandoned(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn who_asks_without_a_pause_lets_others_have_their_turn() {
    let mut pair = pair("keepalive_requests 100000; return 204;");
    pair.say(kind::SETTINGS, 0, 0, b"");
    for stream in (1..10_000).step_by(2) {
        pair.say(kind::HEADERS, WHOLE, stream, GET);
    }
    let mut turns = 0;
    task::block_on(poll_fn(|cx| {
        turns += 1;
        assert!(pair.conn.poll(&mut pair.line.clone(), &pair.timer, cx).is_pending());
        let answered = pair.told().iter().filter(|frame| frame.0 == kind::HEADERS).count();
        assert!(answered <= turns * 1024, "{answered} in {turns} turns");
        if answered == 5_000 { Poll::Ready(()) } else { Poll::Pending }
    }));
}

#[test]
fn a_request_that_is_closed_without_a_word_is_reset() {
    for status in [408, 444, 499] {
        let mut pair = pair(&format!("return {status};"));
        pair.say(kind::SETTINGS, 0, 0, b"");
        pair.say(kind::HEADERS, WHOLE, 1, GET);
        assert!(pair.go_on().is_pending());
        let told = pair.line.0.told.borrow();
        assert_eq!(told[told.len() - HEAD_BYTES - 4..], *b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x02");
    }
}

#[test]
fn a_text_is_sent_whatever_its_status() {
    for status in [408, 444, 499] {
        let mut pair = pair(&format!("return {status} text;"));
        pair.say(kind::SETTINGS, 0, 0, b"");
        pair.say(kind::HEADERS, WHOLE, 1, GET);
        assert!(pair.go_on().is_pending());
        let of_stream: Vec<u8> =
            pair.told().iter().filter(|(_, stream)| *stream == 1).map(|(kind, _)| *kind).collect();
        assert_eq!(of_stream, [kind::HEADERS, kind::DATA], "{status}");
    }
}

#[test]
fn a_connection_that_breaks_off_counts_none_of_its_requests() {
    let mut pair = pair("location / { return 200 text; } location /done { return 204; }");
    let worker = pair.conn.connection.worker.clone();
    let writing = || worker.counters().writing.load(Relaxed);
    // Responses that stay, for want of a window, and one that does not.
    pair.say(kind::SETTINGS, 0, 0, &[&id::INITIAL_WINDOW_SIZE.to_be_bytes()[..], &[0; 4]].concat());
    for stream in [1, 3] {
        pair.say(kind::HEADERS, WHOLE, stream, GET);
    }
    pair.say(kind::HEADERS, WHOLE, 5, b"\x82\x86\x44\x05/done\x41\x01a");
    assert!(pair.go_on().is_pending());
    assert_eq!(writing(), 2);
    // As after a panic.
    drop(pair);
    assert_eq!(writing(), 0);
}
