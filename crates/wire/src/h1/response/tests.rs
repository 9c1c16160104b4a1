use super::*;
use crate::h1::{ResponseBody, ResponseFraming, Sent, response_framing};

const LIMIT: usize = 4096;

fn parse(text: &[u8]) -> Result<(ResponseHead, Option<usize>), BadResponse> {
    let mut parser = ResponseParser::default();
    match parser.parse(text, LIMIT)? {
        Progress::Complete { consumed } => Ok((parser.head().clone(), Some(consumed))),
        Progress::Partial => Ok((parser.head().clone(), None)),
    }
}

fn frame(text: &str, sent: Sent) -> Result<ResponseFraming, BadResponse> {
    let (head, consumed) = parse(text.as_bytes())?;
    assert!(consumed.is_some(), "{text}");
    response_framing(&head, text.as_bytes(), sent)
}

/// Status, status text and fields.
type Want = Result<(u16, &'static str, &'static [(&'static str, &'static str)]), BadResponse>;

const NOT_HTTP: Want = Err(BadResponse::NotHttp);
const BAD_LINE: Want = Err(BadResponse::InvalidHeader);

const HEADS: &[(&[u8], Want)] = &[
    (b"HTTP/1.1 200 OK\r\n\r\n", Ok((200, "200 OK", &[]))),
    (b"HTTP/1.0 200 OK\n\n", Ok((200, "200 OK", &[]))),
    (b"HTTP/1.1 200\r\n\r\n", Ok((200, "200", &[]))),
    (b"HTTP/1.1 200 \r\n\r\n", Ok((200, "200 ", &[]))),
    (b"HTTP/1.1  200 OK\r\n\r\n", Ok((200, "200 OK", &[]))),
    (b"HTTP/1.1 403.1 No\r\n\r\n", Ok((403, "403.1 No", &[]))),
    (b"HTTP/1.9 999 x y\r\n\r\n", Ok((999, "999 x y", &[]))),
    (
        b"HTTP/1.1 200 OK\r\nA: b\r\nC:d \r\nE:\r\nF_g:  h  \n\r\n",
        Ok((200, "200 OK", &[("A", "b"), ("C", "d"), ("E", ""), ("F_g", "h")])),
    ),
    // Names that are no tokens are not passed on.
    (b"HTTP/1.1 200 OK\r\nA(: b\r\n\xff: c\r\nD: e\r\n\r\n", Ok((200, "200 OK", &[("D", "e")]))),
    // A tab is part of the value: nobody trims what decides about framing.
    (b"HTTP/1.1 200 OK\r\nA:\tb\t\r\n\r\n", Ok((200, "200 OK", &[("A", "\tb\t")]))),
    // Not HTTP.
    (b"\r\nHTTP/1.1 200 OK\r\n\r\n", NOT_HTTP),
    (b" HTTP/1.1 200 OK\r\n\r\n", NOT_HTTP),
    (b"hello\r\n\r\n", NOT_HTTP),
    (b"h", NOT_HTTP),
    (b"HTTP/2 200 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/2.0 200 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/11 200 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.10 200 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1. 200 OK\r\n\r\n", NOT_HTTP),
    (b"http/1.1 200 OK\r\n\r\n", NOT_HTTP),
    (b"ICY 200 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 \r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 20 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 20\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 2000 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 099 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 2x0 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 +20 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 200OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1\t200 OK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 200 O\0K\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 200 O\rK\r\n\r\n", NOT_HTTP),
    (b"HTTP/1.1 200 OK\r\r\n\r\n", NOT_HTTP),
    // Not header lines.
    (b"HTTP/1.1 200 OK\r\nA\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\n: b\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\nA: b\r\n\tc\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\n A: b\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\nA\0: b\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\nA\x7f: b\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\nA: b\r\r\n\r\n", BAD_LINE),
    (b"HTTP/1.1 200 OK\r\n\rA: b\r\n\r\n", BAD_LINE),
];

#[test]
fn heads_are_read_and_refused_as_the_table_says() {
    for (text, want) in HEADS {
        let shown = text.escape_ascii().to_string();
        let got = parse(text);
        let Ok((status, status_text, fields)) = want else {
            assert_eq!(got.map(|(_, consumed)| consumed), Err(want.unwrap_err()), "{shown}");
            continue;
        };
        let (head, consumed) = got.expect(&shown);
        assert_eq!(consumed, Some(text.len()), "{shown}");
        assert_eq!(head.status, *status, "{shown}");
        assert_eq!(head.status_text.of(text), status_text.as_bytes(), "{shown}");
        let found: Vec<_> =
            head.fields.iter().map(|f| (f.name.of(text), f.value.of(text))).collect();
        let wanted: Vec<_> = fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect();
        assert_eq!(found, wanted, "{shown}");
    }
}

#[test]
fn every_truncation_is_incomplete_or_refused_and_a_split_changes_nothing() {
    for (text, _) in HEADS {
        let whole = parse(text);
        for at in 0..=text.len() {
            let mut parser = ResponseParser::default();
            let first = parser.parse(&text[..at], LIMIT);
            if at < text.len() {
                assert!(!matches!(first, Ok(Progress::Complete { .. })), "{}", text.escape_ascii());
            }
            let both = first.and_then(|progress| match progress {
                Progress::Partial => parser.parse(text, LIMIT),
                done => Ok(done),
            });
            let both = both.map(|_| parser.head().clone());
            assert_eq!(both, whole.clone().map(|(head, _)| head), "{}", text.escape_ascii());
        }
    }
}

#[test]
fn a_head_fits_its_buffer_or_is_too_big() {
    let head = b"HTTP/1.1 200 OK\r\nA: bbbb\r\n\r\nbody";
    let len = head.len() - 4;
    for limit in 0..len + 2 {
        let mut parser = ResponseParser::default();
        let want = match limit >= len {
            true => Ok(Progress::Complete { consumed: len }),
            false => Err(BadResponse::TooBig),
        };
        assert_eq!(parser.parse(head, limit), want, "{limit}");
    }
    let endless = [&b"HTTP/1.1 200 OK\r\n"[..], &b"A: b\r\n".repeat(MAX_FIELDS + 1)].concat();
    assert_eq!(ResponseParser::default().parse(&endless, 1 << 20), Err(BadResponse::TooBig));
}

#[test]
fn the_framing_is_one_thing_or_refused() {
    use BadResponse::*;
    use ResponseBody::*;
    let ok = |body, keep_alive| Ok((body, keep_alive));
    for (fields, want) in [
        ("", ok(Close, false)),
        ("Content-Length: 5\r\n", ok(Length(5), true)),
        ("Content-Length: 0\r\n", ok(Length(0), true)),
        ("Transfer-Encoding: Chunked\r\n", ok(Chunked, true)),
        ("Content-Length: 5\r\nConnection: x, Close\r\n", ok(Length(5), false)),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Err(DuplicateHeader)),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", Err(DuplicateHeader)),
        ("Content-Length: 5, 5\r\n", Err(ContentLength)),
        ("Content-Length: +5\r\n", Err(ContentLength)),
        ("Content-Length: -5\r\n", Err(ContentLength)),
        ("Content-Length: 0x5\r\n", Err(ContentLength)),
        ("Content-Length:\r\n", Err(ContentLength)),
        ("Content-Length:\t5\r\n", Err(ContentLength)),
        ("Content-Length: 9223372036854775808\r\n", Err(ContentLength)),
        ("Transfer-Encoding: gzip\r\n", Err(UnknownTransferEncoding)),
        ("Transfer-Encoding: gzip, chunked\r\n", Err(UnknownTransferEncoding)),
        ("Transfer-Encoding: chunked, chunked\r\n", Err(UnknownTransferEncoding)),
        ("Transfer-Encoding: xchunked\r\n", Err(UnknownTransferEncoding)),
        ("Transfer-Encoding: identity\r\n", Err(UnknownTransferEncoding)),
        ("Transfer-Encoding:\tchunked\r\n", Err(UnknownTransferEncoding)),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Err(DuplicateHeader)),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Err(LengthAndChunked)),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Err(LengthAndChunked)),
    ] {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let got = frame(&text, Sent::default()).map(|f| (f.body, f.keep_alive));
        assert_eq!(got, want, "{text}");
        // What makes no sense makes none in the answer to a HEAD either.
        let got = frame(&text, Sent { head: true, upgrade: false }).map(|f| f.body);
        assert_eq!(got, want.map(|_| None), "{text}");
    }
}

#[test]
fn statuses_and_versions_have_their_say() {
    let upgrade = Sent { upgrade: true, head: false };
    for (head, sent, want) in [
        ("1.0 200 OK\r\nContent-Length: 5", Sent::default(), (ResponseBody::Length(5), false)),
        ("1.0 200 OK\r\nTransfer-Encoding: chunked", upgrade, (ResponseBody::Chunked, false)),
        ("1.1 204 x\r\nContent-Length: 5", upgrade, (ResponseBody::None, true)),
        ("1.1 304 x\r\nTransfer-Encoding: chunked", upgrade, (ResponseBody::None, true)),
        ("1.1 205 x\r\nContent-Length: 0", upgrade, (ResponseBody::Length(0), true)),
    ] {
        let framing = frame(&format!("HTTP/{head}\r\n\r\n"), sent).expect(head);
        assert_eq!((framing.body, framing.keep_alive), want, "{head}");
        assert!(!framing.interim && !framing.upgrade);
    }
    for status in [100, 102, 103, 199] {
        let head = format!("HTTP/1.1 {status} x\r\nContent-Length: 5\r\n\r\n");
        let framing = frame(&head, Sent::default()).expect("interim");
        assert!(framing.interim && framing.body == ResponseBody::None);
    }
}

#[test]
fn a_101_comes_to_those_who_asked_for_it() {
    let asked = Sent { upgrade: true, head: false };
    let full = "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let framing = frame(full, asked).expect("switched");
    assert!(framing.upgrade && !framing.keep_alive && !framing.interim);
    for (head, sent) in [
        (full, Sent::default()),
        ("HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n", asked),
        ("HTTP/1.0 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", asked),
    ] {
        assert_eq!(frame(head, sent), Err(BadResponse::UnexpectedUpgrade), "{head}");
    }
}

#[test]
fn connection_nominates_fields() {
    let text = b"HTTP/1.1 200 OK\r\nConnection: close, X-Secret\r\nconnection: , Y ,\r\n\r\n";
    let (head, _) = parse(text).unwrap();
    let nominees = crate::h1::Nominees::of_response(&head, text);
    assert!(nominees.has(b"x-secret") && nominees.has(b"Y") && !nominees.has(b"Z"));
}
