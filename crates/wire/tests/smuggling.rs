//! One case or more for each vector of HTTP/1 request smuggling that is known (RFC 9112 §11.2):
//! what the server makes of a request must be what every other reader of it makes of it, or
//! nothing.

use forebay_wire::Reject;
use forebay_wire::h1::chunked::Decoder;
use forebay_wire::h1::{BodyLength, Framing, Options, Parser, Progress, framing};

/// The framing of `POST / HTTP/1.1`, `Host: a` and these lines.
fn frame(lines: &str) -> Result<Framing, Reject> {
    whole(&format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"))
}

fn whole(head: &str) -> Result<Framing, Reject> {
    let mut parser = Parser::new();
    match parser.parse(head.as_bytes(), &Options::default())? {
        Progress::Complete { consumed } => assert_eq!(consumed, head.len()),
        Progress::Partial => panic!("{head:?} is incomplete"),
    }
    framing(parser.head(), head.as_bytes(), b"")
}

fn body(lines: &str) -> Result<BodyLength, Reject> {
    frame(lines).map(|framing| framing.body)
}

fn refused(rows: &[(&str, Reject)]) {
    for (lines, reject) in rows {
        assert_eq!(frame(lines), Err(*reject), "{lines:?}");
    }
}

#[test]
fn plain_framing_is_accepted() {
    assert_eq!(body(""), Ok(BodyLength::None));
    assert_eq!(body("Content-Length: 0\r\n"), Ok(BodyLength::Length(0)));
    assert_eq!(body("Content-Length: 0005\r\n"), Ok(BodyLength::Length(5)));
    let max = i64::MAX;
    assert_eq!(body(&format!("Content-Length: {max}\r\n")), Ok(BodyLength::Length(max as u64)));
    assert_eq!(body("Transfer-Encoding: Chunked\r\n"), Ok(BodyLength::Chunked));
    assert_eq!(body("transfer-encoding:chunked\n"), Ok(BodyLength::Chunked));
}

#[test]
fn length_with_chunked_is_rejected() {
    refused(&[
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Reject::LengthAndChunked),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Reject::LengthAndChunked),
        ("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", Reject::LengthAndChunked),
    ]);
}

#[test]
fn obfuscated_transfer_encoding_is_rejected() {
    let unknown = Reject::UnknownTransferEncoding;
    refused(&[
        ("Transfer-Encoding: xchunked\r\n", unknown),
        ("Transfer-Encoding: chunkedx\r\n", unknown),
        ("Transfer-Encoding: \"chunked\"\r\n", unknown),
        ("Transfer-Encoding: 'chunked'\r\n", unknown),
        ("Transfer-Encoding: chunked, identity\r\n", unknown),
        ("Transfer-Encoding: identity, chunked\r\n", unknown),
        ("Transfer-Encoding: chunked, chunked\r\n", unknown),
        ("Transfer-Encoding: gzip, chunked\r\n", unknown),
        ("Transfer-Encoding: ,chunked\r\n", unknown),
        ("Transfer-Encoding: chunked;q=1\r\n", unknown),
        ("Transfer-Encoding: identity\r\n", unknown),
        ("Transfer-Encoding:\r\n", unknown),
        ("Transfer-Encoding: \x0bchunked\r\n", unknown),
        ("Transfer-Encoding: chunked\x0b\r\n", unknown),
        ("Transfer-Encoding:\tchunked\r\n", unknown),
        ("Transfer-Encoding: chunked\0\r\n", Reject::InvalidHeader),
        ("Transfer-Encoding: chunked\r\r\n", Reject::InvalidHeader),
        ("Transfer-Encoding : chunked\r\n", Reject::InvalidHeader),
        ("Transfer-Encoding\t: chunked\r\n", Reject::InvalidHeader),
        ("Transfer-Encoding\0: chunked\r\n", Reject::InvalidHeader),
        ("Transfer-Encoding\r\n: chunked\r\n", Reject::InvalidHeader),
        ("Transfer-Encoding\r\n", Reject::InvalidHeader),
        (" Transfer-Encoding: chunked\r\n", Reject::InvalidHeader),
        ("Transfer-Encoding:\r\n chunked\r\n", Reject::InvalidHeader),
        ("X: a\rTransfer-Encoding: chunked\r\n", Reject::InvalidHeader),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", Reject::DuplicateHeader),
    ]);
}

#[test]
fn names_that_only_look_like_framing_frame_nothing() {
    for lines in [
        "Transfer_Encoding: chunked\r\n",
        "Content_Length: 5\r\n",
        "Transfer-Encoding\u{a0}: chunked\r\n",
        "X-Transfer-Encoding: chunked\r\n",
        "Content-Length-X: 5\r\n",
    ] {
        assert_eq!(body(lines), Ok(BodyLength::None), "{lines:?}");
    }
}

#[test]
fn a_content_length_that_is_no_number_is_rejected() {
    for value in [
        "",
        "+5",
        "-5",
        "0x5",
        "5,5",
        "5, 5",
        "5 5",
        "5_0",
        "5.0",
        "5;",
        "a",
        "\t5",
        "5\t",
        "9223372036854775808",
        "18446744073709551616",
        "99999999999999999999999",
    ] {
        let lines = format!("Content-Length: {value}\r\n");
        assert_eq!(frame(&lines), Err(Reject::ContentLength), "{value:?}");
    }
    refused(&[
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Reject::DuplicateHeader),
        ("Content-Length: 5\r\ncontent-length: 6\r\n", Reject::DuplicateHeader),
        ("Content-Length : 5\r\n", Reject::InvalidHeader),
        ("Content-Length: 5\r\n 6\r\n", Reject::InvalidHeader),
    ]);
}

#[test]
fn transfer_encoding_in_http_10_is_rejected() {
    for lines in ["", "Connection: keep-alive\r\n", "Content-Length: 5\r\n"] {
        let head = format!("POST / HTTP/1.0\r\n{lines}Transfer-Encoding: chunked\r\n\r\n");
        assert_eq!(whole(&head), Err(Reject::TransferEncodingIn10), "{lines:?}");
    }
}

/// CL.0 and TE.0: the method does not decide whether there is a body.
#[test]
fn a_body_is_a_body_whatever_the_method() {
    for method in ["GET", "HEAD", "OPTIONS", "DELETE", "X"] {
        let head = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
        assert_eq!(whole(&head).unwrap().body, BodyLength::Length(5));
        let head = format!("{method} / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(whole(&head).unwrap().body, BodyLength::Chunked);
    }
}

#[test]
fn chunk_lines_need_crlf_and_plain_sizes() {
    for body in [
        &b"0\n\n"[..],
        b"0\r\n\n",
        b"1\nx\r\n0\r\n\r\n",
        b"1\r\nx\n0\r\n\r\n",
        b"1\r\nx0\r\n\r\n",
        b"1\r\nxx\r\n0\r\n\r\n",
        b"1;\n\r\nx\r\n0\r\n\r\n",
        b"1;a\rb\r\nx\r\n0\r\n\r\n",
        b"0x1\r\nx\r\n",
        b"+1\r\nx\r\n",
        b"-1\r\nx\r\n",
        b"1_0\r\n",
        b"\r\n",
        b"FFFFFFFFFFFFFFFF\r\n",
        b"10000000000000001\r\n",
        b"0\r\nContent-Length : 5\r\n\r\n",
        b"0\r\n\0\r\n\r\n",
    ] {
        let mut decoder = Decoder::new();
        let mut rest = body;
        let result = loop {
            match decoder.decode(rest) {
                Ok(step) if step.done || step.consumed == rest.len() => break Ok(step.done),
                Ok(step) => rest = &rest[step.consumed..],
                Err(reject) => break Err(reject),
            }
        };
        assert_eq!(result, Err(Reject::InvalidChunked), "{}", body.escape_ascii());
    }
}

#[test]
fn trailers_are_read_past_and_not_returned() {
    let body = b"1\r\nx\r\n0\r\nContent-Length: 5\r\nHost: b\r\n\r\nGET";
    let step = Decoder::new().decode(body).unwrap();
    assert_eq!(
        (step.done, &body[step.data], &body[step.consumed..]),
        (true, &b"x"[..], &b"GET"[..])
    );
}

#[test]
fn hosts_that_readers_could_differ_on_are_rejected() {
    for (head, reject) in [
        ("GET / HTTP/1.1\r\n\r\n", Reject::NoHost),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Reject::DuplicateHost),
        ("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", Reject::DuplicateHost),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", Reject::InvalidHost),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", Reject::InvalidHost),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", Reject::InvalidHost),
        ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", Reject::InvalidHost),
        ("GET / HTTP/1.1\r\nHost: a:80:81\r\n\r\n", Reject::InvalidHost),
        ("GET / HTTP/1.1\r\nHost: a:8x\r\n\r\n", Reject::InvalidHost),
        ("GET / HTTP/1.1\r\nHost:\ta\r\n\r\n", Reject::InvalidHost),
        ("GET http://a/ HTTP/1.1\r\n\r\n", Reject::NoHost),
        ("GET http://a/ HTTP/1.1\r\nHost: b/c\r\n\r\n", Reject::InvalidHost),
        ("GET http://a:99999/ HTTP/1.1\r\nHost: a\r\n\r\n", Reject::InvalidTargetHost),
        ("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", Reject::InvalidTargetHost),
        ("GET http://b@a/ HTTP/1.1\r\nHost: a\r\n\r\n", Reject::InvalidRequest),
    ] {
        assert_eq!(whole(head), Err(reject), "{head:?}");
    }
}

#[test]
fn the_target_replaces_host() {
    let head = "GET http://real/ HTTP/1.1\r\nHost: other\r\n\r\n";
    assert_eq!(whole(head).unwrap().host.unwrap().of(head.as_bytes()), b"real");
}

/// What nominates a framing header in `Connection` changes nothing (RFC 9110 §7.6.1).
#[test]
fn connection_cannot_remove_the_framing() {
    let lines = "Connection: Content-Length\r\nContent-Length: 5\r\n";
    assert_eq!(body(lines), Ok(BodyLength::Length(5)));
    let lines = "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(body(lines), Ok(BodyLength::Chunked));
}

/// Bytes after an upgrade request belong to the next message until a 101 was sent.
#[test]
fn an_upgrade_does_not_unframe_the_body() {
    let framing =
        frame("Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n").unwrap();
    assert_eq!((framing.upgrade, framing.body), (true, BodyLength::Length(5)));
}
