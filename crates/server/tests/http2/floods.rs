//! What only costs work: the connection is closed with ENHANCE_YOUR_CALM, it is logged, the memory stays
//! within its bound, and others do not notice (security notes on HTTP/2; CVE numbers beside each).

use forebay_testkit::{Server, wait_for};
use forebay_wire::h2::{
    ErrorCode,
    frame::{flag, kind},
    settings::id,
};
use std::time::Duration;

use crate::{
    client::{Peer, get, with},
    start, start_with,
};

/// What a flood may send before it is stopped.
const BUDGET: usize = 4 << 20;
/// What a connection may cost, beside what the process takes anyway.
const MEMORY: usize = 2 << 20;

/// What all processes of the server have taken, in bytes; not the pages of the program itself.
fn weight(server: &Server) -> usize {
    let of = |pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("Anonymous:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.and_then(|number| number.parse::<usize>().ok()).unwrap_or(0) << 10
    };
    server.process_tree().iter().map(|pid| of(*pid)).sum()
}

/// Sends the same frames until the server closes: how, and that others are served.
fn calmed(server: &Server, prepare: &[u8], bytes: &[u8]) {
    let mut other = Peer::connect(server.addr(), &[]);
    assert_eq!(other.ask(1, "/text").status(), "200");
    let before = weight(server);
    let mut peer = Peer::connect(server.addr(), &[]);
    peer.send(prepare);
    let end = peer.flood(bytes, BUDGET);
    assert_eq!(end.map(|(_, code)| code), Some(with(ErrorCode::EnhanceYourCalm)));
    let grown = weight(server).saturating_sub(before);
    assert!(grown < MEMORY, "{grown} bytes more");
    assert_eq!(other.ask(3, "/text").body, b"alive");
    assert!(server.error_log().contains("http2 flood detected"), "{}", server.error_log());
}

#[test]
fn frames_that_only_cost_work_are_counted() {
    let server = start_with("", 100_000);
    let frame = Peer::frame;
    let open = {
        let mut peer = Peer::raw(server.addr());
        peer.request(1, &[&get("/text")[..], &[("content-length", "9")]].concat(), false)
    };
    // CVE-2019-9511: a body, a byte at a time.
    let shut = {
        let mut peer = Peer::raw(server.addr());
        let no_window = frame(kind::SETTINGS, 0, 0, b"\0\x04\0\0\0\0");
        [no_window, peer.get(1, "/file")].concat()
    };
    // CVE-2019-9512, 9515, 9513, 9518, and what is like them.
    for (name, prepare, bytes) in [
        ("ping", &[][..], frame(kind::PING, 0, 0, b"12345678")),
        ("ping answers", &[], frame(kind::PING, flag::ACK, 0, b"12345678")),
        ("settings", &[], frame(kind::SETTINGS, 0, 0, b"")),
        ("settings with one", &[], frame(kind::SETTINGS, 0, 0, b"\0\x04\0\0\xff\xff")),
        ("priority", &[], frame(kind::PRIORITY, 0, 1, b"\0\0\0\x03\x01")),
        ("priority update", &[], frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1")),
        ("window update", &[], frame(kind::WINDOW_UPDATE, 0, 0, b"\0\0\0\x01")),
        ("dribble", &shut, frame(kind::WINDOW_UPDATE, 0, 1, b"\0\0\0\x01")),
        ("unknown", &[], frame(0x55, 0, 0, b"")),
        ("empty data", &open, frame(kind::DATA, 0, 1, b"")),
        ("padding", &open, frame(kind::DATA, flag::PADDED, 1, b"\0")),
    ] {
        println!("{name}");
        calmed(&server, prepare, &bytes);
    }
}

#[test]
fn a_flood_is_not_read_behind_its_goaway() {
    let server = start("lingering_time 60s;");
    let mut peer = Peer::connect(server.addr(), &[]);
    let pings = Peer::frame(kind::PING, 0, 0, b"12345678").repeat(4096);
    let most = (64 << 20) / pings.len();
    let sent = (0..most).take_while(|_| peer.try_send(&pings)).count();
    assert!(sent < most, "64 MB were taken");
    let end = peer.goodbye().map(|(_, code)| code);
    assert_eq!(end, Some(with(ErrorCode::EnhanceYourCalm)));
}

#[test]
fn continuations_without_end_are_stopped() {
    // CVE-2024-27316 and its kin: by bytes, and by number where they are empty.
    let server = start("");
    let begin = Peer::frame(kind::HEADERS, flag::END_STREAM, 1, b"\x82");
    for (part, log) in [
        (vec![0x82; 16_000], "client exceeded large_client_header_buffers"),
        (Vec::new(), "http2 flood detected"),
    ] {
        let mut peer = Peer::connect(server.addr(), &[]);
        peer.send(&begin);
        let end = peer.flood(&Peer::frame(kind::CONTINUATION, 0, 1, &part), BUDGET);
        assert_eq!(end.map(|(_, code)| code), Some(with(ErrorCode::EnhanceYourCalm)));
        assert!(server.error_log().contains(log));
    }
}

#[test]
fn rapid_resets_are_stopped_and_never_more_at_work_than_streams() {
    // CVE-2023-44487: requests that wait (auth_delay), each cancelled at once.
    let inside = "http2_max_concurrent_streams 8;
        location /slow { auth_delay 20s; auth_basic x; auth_basic_user_file {root}/none; }
        location = /status { stub_status; }";
    let server = start(inside);
    let mut peer = Peer::connect(server.addr(), &[]);
    let mut stream = 1;
    loop {
        let mut bytes = Vec::new();
        for _ in 0..50 {
            bytes.extend(peer.get(stream, "/slow/"));
            bytes.extend(Peer::frame(kind::RST_STREAM, 0, stream, b"\0\0\0\x08"));
            stream += 2;
        }
        if !peer.try_send(&bytes) || stream > 100_000 {
            break;
        }
    }
    let end = peer.goodbye();
    assert_eq!(end.map(|(_, code)| code), Some(with(ErrorCode::EnhanceYourCalm)));
    let mut other = Peer::connect(server.addr(), &[]);
    let status = String::from_utf8(other.ask(1, "/status").body).expect("text");
    let writing = status.split("Writing: ").nth(1).and_then(|rest| rest.split(' ').next());
    let writing: u32 = writing.and_then(|number| number.parse().ok()).expect("a number");
    assert!(writing <= 9, "{status}");
}

#[test]
fn resets_that_the_client_makes_us_send_count_too() {
    // CVE-2025-8671, MadeYouReset, in each of its ways.
    let server = start("http2_max_concurrent_streams 100000;");
    for way in 0..4 {
        let mut peer = Peer::connect(server.addr(), &[]);
        let mut stream = 1;
        loop {
            let mut bytes = Vec::new();
            for _ in 0..50 {
                let post = [&get("/text")[..], &[("content-length", "5")]].concat();
                let request = peer.request(stream, &post, false);
                bytes.extend(&request);
                bytes.extend(match way {
                    0 => Peer::frame(kind::WINDOW_UPDATE, 0, stream, &[0; 4]),
                    1 => Peer::frame(kind::WINDOW_UPDATE, 0, stream, b"\x7f\xff\xff\xff"),
                    2 => Peer::frame(kind::DATA, flag::END_STREAM, stream, b"more than 5"),
                    _ => Peer::frame(kind::PRIORITY, 0, stream, b"\0"),
                });
                stream += 2;
            }
            if !peer.try_send(&bytes) || stream > 100_000 {
                break;
            }
        }
        let end = peer.goodbye();
        assert_eq!(end.map(|(_, code)| code), Some(with(ErrorCode::EnhanceYourCalm)), "{way}");
    }
}

#[test]
fn a_compressed_bomb_is_one_refused_request() {
    // Imperva 2016: one entry of the table, named again and again.
    let server = start("");
    let mut peer = Peer::connect(server.addr(), &[]);
    let mut block = b"\x82\x86\x84\x41\x04test\x40\x01a\x7f\x81\x1e".to_vec();
    block.extend_from_slice(&[b'x'; 4000]);
    block.extend_from_slice(&[0xbe; 10_000]);
    let end = flag::END_STREAM | flag::END_HEADERS;
    peer.send(&Peer::frame(kind::HEADERS, end, 1, &block));
    assert_eq!(peer.answer(1).status(), "400");
    // The tables are still the same on both sides.
    assert_eq!(peer.ask(3, "/text").status(), "200");
}

#[test]
fn compressed_bombs_without_end_are_stopped() {
    // In heads that are refused, in trailers, and behind a stream that was reset; by value and by name.
    let server = start("");
    let keep = |name: &[u8], value: &[u8]| {
        let mut block = b"\x82\x86\x84\x01\x04test\x40".to_vec();
        for text in [name, value] {
            match text.len() {
                len @ ..127 => block.push(len as u8),
                len => {
                    block.extend([0x7f, (len - 127) as u8 & 0x7f | 0x80, ((len - 127) >> 7) as u8])
                }
            }
            block.extend(text);
        }
        block
    };
    let (by_value, by_name) = (keep(b"a", &[b'x'; 4000]), keep(&[b'x'; 4000], b"a"));
    let again = vec![0xbe; 16_000];
    let named_again = b"\x0f\x2f\x00".repeat(5_000);
    for (way, kept, bomb) in [
        (0, &by_value, &again),
        (1, &by_value, &again),
        (2, &by_value, &again),
        (0, &by_name, &named_again),
    ] {
        let mut peer = Peer::connect(server.addr(), &[]);
        let end = flag::END_STREAM | flag::END_HEADERS;
        peer.send(&Peer::frame(kind::HEADERS, end, 1, kept));
        let open = Peer::frame(kind::HEADERS, flag::END_HEADERS, 3, b"\x83\x86\x84\x01\x04test");
        if way == 2 {
            peer.send(&open);
            // An error of the stream, which we reset then.
            peer.send(&Peer::frame(kind::WINDOW_UPDATE, 0, 3, &[0; 4]));
        }
        let mut stream = 3;
        for _ in 0..100 {
            let mut bytes = Vec::new();
            match way {
                0 => {
                    let head = [&b"\x82\x86\x84\x01\x04test"[..], bomb].concat();
                    bytes.extend(Peer::frame(kind::HEADERS, end, stream, &head));
                }
                1 => {
                    let head = b"\x83\x86\x84\x01\x04test";
                    bytes.extend(Peer::frame(kind::HEADERS, flag::END_HEADERS, stream, head));
                    bytes.extend(Peer::frame(kind::HEADERS, end, stream, bomb));
                }
                _ => bytes.extend(Peer::frame(kind::HEADERS, end, stream, bomb)),
            }
            if way < 2 {
                stream += 2;
            }
            if !peer.try_send(&bytes) {
                break;
            }
        }
        let end = peer.goodbye().map(|(_, code)| code);
        assert_eq!(end, Some(with(ErrorCode::EnhanceYourCalm)), "{way}");
    }
}

#[test]
fn a_client_that_opens_no_window_is_given_up() {
    let server = start_with("send_timeout 1s;", 300_000);
    // CVE-2019-9517, CVE-2016-8740: the window of the stream, and that of the connection.
    let mut peer = Peer::connect(server.addr(), &[(id::INITIAL_WINDOW_SIZE, 0)]);
    let answer = peer.ask(1, "/file");
    assert_eq!((answer.status(), answer.reset), ("200", Some(with(ErrorCode::Cancel))));
    assert_eq!(peer.ask(3, "/text").reset, Some(with(ErrorCode::Cancel)));
    assert!(server.error_log().contains("client timed out"));
}

#[test]
fn a_client_that_does_not_read_is_given_up_and_bounded() {
    let server = start("send_timeout 1s; keepalive_requests 100000000;");
    let mut other = Peer::connect(server.addr(), &[]);
    assert_eq!(other.ask(1, "/text").status(), "200");
    let before = weight(&server);
    // It asks for more than anything between the two can hold, and never reads.
    let mut peer = Peer::connect(server.addr(), &[]);
    peer.send(&Peer::frame(kind::WINDOW_UPDATE, 0, 0, b"\x7f\xff\0\0"));
    let mut stream = 1;
    let mut sent = 0;
    while sent < 64 << 20 {
        let mut bytes = Vec::new();
        for _ in 0..500 {
            bytes.extend(peer.get(stream, "/text"));
            stream += 2;
        }
        if !peer.try_send(&bytes) {
            break;
        }
        sent += bytes.len();
        let grown = weight(&server).saturating_sub(before);
        assert!(grown < MEMORY, "{grown} bytes more");
    }
    let timed_out = || server.error_log().contains("client timed out");
    assert!(wait_for(timed_out, Duration::from_secs(20)), "{}", server.error_log());
}

#[test]
fn a_head_that_does_not_end_and_a_preface_that_does_not_come_time_out() {
    let server = start("client_header_timeout 1s;");
    let mut peer = Peer::connect(server.addr(), &[]);
    peer.send(&Peer::frame(kind::HEADERS, flag::END_STREAM, 1, b"\x82"));
    assert_eq!(peer.goodbye(), Some((0, 0)));
    let mut peer = Peer::raw(server.addr());
    peer.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(peer.goodbye(), Some((0, 0)));
    let mut peer = Peer::raw(server.addr());
    peer.send(b"PRI * HT");
    assert_eq!(peer.goodbye(), None);
}

#[test]
fn unread_bodies_stay_within_the_windows() {
    // Nobody reads what goes to a handler that waits.
    let inside =
        "location /slow { auth_delay 20s; auth_basic x; auth_basic_user_file {root}/none; }";
    let server = start(inside);
    let mut other = Peer::connect(server.addr(), &[]);
    assert_eq!(other.ask(1, "/text").status(), "200");
    let before = weight(&server);
    let mut peer = Peer::connect(server.addr(), &[]);
    let post = [(":method", "POST"), (":scheme", "http"), (":path", "/slow/"), (":authority", "a")];
    let mut bytes = Vec::new();
    for stream in (1..17).step_by(2) {
        bytes.extend(peer.request(stream, &post, false));
        for _ in 0..4 {
            bytes.extend(Peer::frame(kind::DATA, 0, stream, &[b'x'; 16_000]));
        }
    }
    peer.send(&bytes);
    peer.send(&Peer::frame(kind::PING, 0, 0, b"12345678"));
    assert!(peer.next_of(kind::PING).is_some());
    let grown = weight(&server).saturating_sub(before);
    assert!(grown < MEMORY, "{grown} bytes more");
    // One more byte than the window has.
    peer.send(&Peer::frame(kind::DATA, 0, 1, &[b'x'; 1_600]));
    let (head, payload) = peer.next_of(kind::RST_STREAM).expect("a reset");
    assert_eq!((head.stream, payload), (1, vec![0, 0, 0, ErrorCode::FlowControlError as u8]));
}
