//! Requests that go on while their responses come, as gRPC has them: HTTP/2 on both sides, nothing
//! buffered in between.

use forebay_testkit::{Server, origin::Origin, origin_h2::H2};
use forebay_wire::h2::{
    ErrorCode, Head,
    frame::{self, flag, kind},
    settings::id,
};

use crate::{client::Peer, pattern, start};

/// An origin that sends back what comes, as it comes, and the number of bytes behind it.
fn echo(window: u32) -> Origin {
    Origin::start(move |conn| {
        let Some(mut h2) = H2::serve(conn, &[(id::INITIAL_WINDOW_SIZE, window)])? else {
            return Ok(());
        };
        while let Some(asked) = h2.request_head()? {
            let stream = asked.stream;
            h2.head(stream, &[(":status", "200")], false)?;
            let mut sent = 0;
            loop {
                let Some(asked) = h2.so_far(stream) else { return Ok(()) };
                let (more, ended) = (asked.body[sent..].to_vec(), asked.ended);
                if !more.is_empty() {
                    sent += more.len();
                    h2.data(stream, &more, false)?;
                }
                if ended {
                    break;
                }
                if h2.next_of(kind::DATA)?.is_none() {
                    return Ok(());
                }
            }
            h2.head(stream, &[("x-bytes", &sent.to_string())], true)?;
        }
        Ok(())
    })
}

fn between(origin: &Origin, more: &str) -> Server {
    start(&format!(
        "location /echo {{ proxy_pass http://{}; proxy_http_version 2; proxy_buffering off; \
         proxy_request_buffering off; proxy_pass_trailers on; client_max_body_size 0; {more} }}",
        origin.addr()
    ))
}

fn post(peer: &mut Peer, stream: u32, more: &[(&str, &str)]) {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/echo"),
        (":authority", "test"),
        ("te", "trailers"),
    ];
    let request = peer.request(stream, &[&fields, more].concat(), false);
    peer.send(&request);
}

fn data(stream: u32, bytes: &[u8], end: bool) -> Vec<u8> {
    Peer::frame(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, bytes)
}

/// Reads the head of a response.
fn head(peer: &mut Peer) -> Head {
    let (head, block) = peer.next_of(kind::HEADERS).expect("an open connection");
    assert_eq!(peer.fields(&block)[0], (":status".to_owned(), "200".to_owned()));
    head
}

/// Reads so many bytes of a body.
fn take(peer: &mut Peer, bytes: usize) -> Vec<u8> {
    let mut got = Vec::new();
    while got.len() < bytes {
        let (head, payload) = peer.next_of(kind::DATA).expect("an open connection");
        if head.len > 0 {
            let mut out = Vec::new();
            frame::write_window_update(&mut out, 0, head.len as u32);
            frame::write_window_update(&mut out, head.stream, head.len as u32);
            peer.send(&out);
        }
        got.extend_from_slice(&payload);
    }
    got
}

#[test]
fn question_and_answer_take_turns_on_one_stream() {
    let origin = echo(65_535);
    let server = between(&origin, "");
    let mut peer = Peer::connect(server.addr(), &[]);
    for stream in [1, 3] {
        post(&mut peer, stream, &[]);
        // It comes before the body goes.
        let head = head(&mut peer);
        assert_eq!((head.stream, head.flags & flag::END_STREAM), (stream, 0));
        for turn in 0..20 {
            let question = format!("question {turn}");
            peer.send(&data(stream, question.as_bytes(), false));
            assert_eq!(take(&mut peer, question.len()), question.as_bytes());
        }
        peer.send(&data(stream, b"!", true));
        let answer = peer.answer(stream);
        assert_eq!(answer.body, b"!");
        let total = (0..20).map(|turn| format!("question {turn}").len()).sum::<usize>() + 1;
        assert_eq!(answer.trailers, [("x-bytes".to_owned(), total.to_string())]);
    }
    assert_eq!(origin.connections(), 1, "{}", server.error_log());
}

#[test]
fn more_than_all_windows_goes_both_ways_at_once() {
    const LEN: usize = 1 << 20;
    let origin = echo(5000);
    for buffering in ["off", "on"] {
        let server = start(&format!(
            "location /echo {{ proxy_pass http://{}; proxy_http_version 2; proxy_pass_trailers on; \
             proxy_request_buffering off; client_max_body_size 0; proxy_buffering {buffering}; }}",
            origin.addr()
        ));
        let mut peer = Peer::connect(server.addr(), &[(id::INITIAL_WINDOW_SIZE, 1 << 24)]);
        let mut grant = Vec::new();
        frame::write_window_update(&mut grant, 0, 1 << 24);
        peer.send(&grant);
        post(&mut peer, 1, &[]);
        head(&mut peer);
        // A piece is sent when the one before it has come back.
        let body = pattern(LEN);
        for part in body.chunks(16_000) {
            peer.send(&data(1, part, false));
            assert!(take(&mut peer, part.len()) == part);
        }
        peer.send(&data(1, b"", true));
        assert_eq!(peer.answer(1).trailers, [("x-bytes".to_owned(), LEN.to_string())]);
    }
}

#[test]
fn a_client_that_cancels_ends_both_ways() {
    let origin = echo(65_535);
    let server = between(&origin, "");
    let mut peer = Peer::connect(server.addr(), &[]);
    post(&mut peer, 1, &[]);
    head(&mut peer);
    peer.send(&data(1, b"so far", false));
    take(&mut peer, 6);
    let mut reset = Vec::new();
    frame::write_reset(&mut reset, 1, ErrorCode::Cancel);
    peer.send(&reset);
    origin.wait_closed(1);
    assert_eq!(peer.ask(3, "/text").body, b"alive");
}

#[test]
fn a_client_that_says_nothing_more_is_not_waited_for_longer_than_it_may_be() {
    let origin = echo(65_535);
    let server = between(&origin, "client_body_timeout 300ms;");
    let mut peer = Peer::connect(server.addr(), &[]);
    post(&mut peer, 1, &[]);
    head(&mut peer);
    let answer = peer.answer(1);
    assert_eq!(answer.reset, Some(ErrorCode::InternalError as u32), "{}", server.error_log());
    origin.wait_closed(1);
}
