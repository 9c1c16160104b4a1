//! Heads as tables: what is read, what is refused, at which byte, and the same in pieces.

use super::*;

fn parse(buf: &[u8], opts: &Options) -> Result<(usize, Head), Reject> {
    let mut parser = Parser::new();
    match parser.parse(buf, opts)? {
        Progress::Partial => Ok((0, std::mem::take(&mut parser.head))),
        Progress::Complete { consumed } => Ok((consumed, std::mem::take(&mut parser.head))),
    }
}

fn head(buf: &[u8]) -> Head {
    let (consumed, head) = parse(buf, &Options::default()).expect("a head");
    assert!(consumed > 0, "{} is incomplete", buf.escape_ascii());
    head
}

/// The header lines as nginx would print them, known names with their id.
fn fields(buf: &[u8], head: &Head) -> Vec<String> {
    let text = |span: Span| String::from_utf8_lossy(span.of(buf)).into_owned();
    head.headers.iter().map(|field| format!("{}={}", text(field.name), text(field.value))).collect()
}

/// Heads and what becomes of them, with nginx's defaults.
const HEADS: &[(&[u8], Result<(), Reject>)] = &[
    (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Ok(())),
    (b"GET / HTTP/1.1\nHost: a\n\n", Ok(())),
    (b"\r\n\n\rGET / HTTP/1.0\r\n\r\n", Ok(())),
    (b"GET  /  HTTP/1.1  \r\n\r\n", Ok(())),
    (b"GET /x\r\n", Ok(())),
    (b"GET /x \n", Ok(())),
    (b"GET / HTTP/1.2\r\n\r\n", Ok(())),
    (b"GET / HTTP/1.01\r\n\r\n", Ok(())),
    (b"X-Y_Z / HTTP/1.0\r\n\r\n", Ok(())),
    (b"GET http://Foo:80/a?b HTTP/1.1\r\n\r\n", Ok(())),
    (b"GET http://[::1]:8080/ HTTP/1.1\r\n\r\n", Ok(())),
    (b"GET http://a_b%20c/ HTTP/1.1\r\n\r\n", Ok(())),
    (b"GET http:///x HTTP/1.1\r\n\r\n", Ok(())),
    (b"GET /a?b#c%zz HTTP/1.1\r\n\r\n", Ok(())),
    (b"GET /\xff\x80 HTTP/1.1\r\n\r\n", Ok(())),
    (b"GET / HTTP/1.1\r\nA:\r\nB:   \r\nC: d  e  \r\n\r\n", Ok(())),
    (b"GET / HTTP/1.1\r\nA:\tb\t\r\nC: \x01\r\n\r\n", Ok(())),
    (b"get / HTTP/1.1\r\n\r\n", Err(Reject::InvalidMethod)),
    (b"G@T / HTTP/1.1\r\n\r\n", Err(Reject::InvalidMethod)),
    (b" GET / HTTP/1.1\r\n\r\n", Err(Reject::InvalidMethod)),
    (b"\x16\x03\x01", Err(Reject::InvalidMethod)),
    (b"GET\r\n", Err(Reject::InvalidMethod)),
    (b"GET\t/ HTTP/1.1\r\n\r\n", Err(Reject::InvalidMethod)),
    (b"HEAD /x\r\n", Err(Reject::Invalid09Method)),
    (b"OPTIONS * HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"CONNECT a:443 HTTP/1.1\r\n\r\n", Ok(())),
    (b"CONNECT [::1]:443 HTTP/1.0\r\n\r\n", Ok(())),
    (b"CONNECT /a HTTP/1.1\r\n\r\n", Ok(())),
    (b"CONNECT a HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"CONNECT a: HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"CONNECT a:1/ HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"CONNECT a:1?x HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"CONNECT u@a:1 HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"CONNECT http://a:1/ HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"CONNECT a:1 \r\n", Err(Reject::Invalid09Method)),
    (b"GET a HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET http:/a HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET http://a@b/ HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET http://a:x/ HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET http://a%2/ HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET http://[::1/ HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET http://a#b HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET http://a\r\n", Err(Reject::InvalidRequest)),
    (b"GET /a b HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET /\tx HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET /x\0 HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET /\x7f HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET /?\x01 HTTP/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET / http/1.1\r\n", Err(Reject::InvalidRequest)),
    (b"GET / HTTP/1.1x\r\n", Err(Reject::InvalidRequest)),
    (b"GET / HTTP/0.9\r\n", Err(Reject::InvalidRequest)),
    (b"GET / HTTP/1\r\n", Err(Reject::InvalidRequest)),
    (b"GET / HTTP/1.\r\n", Err(Reject::InvalidRequest)),
    (b"GET / HTTP/1.1000\r\n", Err(Reject::InvalidRequest)),
    (b"GET / HTTP/1.1\rX", Err(Reject::InvalidRequest)),
    (b"GET / HTTP/1.1 x\r\n", Err(Reject::InvalidRequest)),
    (b"GET / HTTP/2.0\r\n", Err(Reject::InvalidVersion)),
    (b"PRI / HTTP/2.0\r\n", Err(Reject::InvalidVersion)),
    (b"GET / HTTP/11.1\r\n", Err(Reject::InvalidVersion)),
    (b"GET / HTTP/1.1\r\nA : b\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA b: c\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\n: b\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA\0: b\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA\x0b: b\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\n A: b\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA: b\r\n\tc\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA: b\rc\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA: b\r\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA: b\0\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\nA:\0\r\n", Err(Reject::InvalidHeader)),
    (b"GET / HTTP/1.1\r\n\rX", Err(Reject::InvalidHeader)),
];

#[test]
fn heads_are_read_and_refused_as_the_table_says() {
    for (buf, want) in HEADS {
        let got = parse(buf, &Options::default()).map(|(consumed, _)| consumed);
        assert_eq!(got, want.map(|()| buf.len()), "{}", buf.escape_ascii());
    }
}

#[test]
fn a_split_at_any_byte_changes_nothing() {
    let opts = Options::default();
    for (buf, _) in HEADS {
        let whole = parse(buf, &opts);
        for at in 0..buf.len() {
            let mut parser = Parser::new();
            let split = match parser.parse(&buf[..at], &opts) {
                Ok(Progress::Partial) => parser.parse(buf, &opts),
                other => other,
            };
            match (&whole, split) {
                (Err(reject), split) => assert_eq!(split, Err(*reject), "{}", buf.escape_ascii()),
                (Ok((consumed, head)), split) => {
                    let complete = Progress::Complete { consumed: *consumed };
                    assert_eq!((split, parser.head()), (Ok(complete), head), "{at}");
                }
            }
        }
    }
}

#[test]
fn the_rest_after_a_head_is_left_alone() {
    let buf = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nPOST / HTTP/1.1\r\n";
    let (consumed, _) = parse(buf, &Options::default()).unwrap();
    assert_eq!(&buf[consumed..], b"POST / HTTP/1.1\r\n");
}

#[test]
fn a_parser_is_reused() {
    let mut parser = Parser::new();
    let opts = Options::default();
    for (buf, _) in HEADS {
        parser.reset();
        let got = parser.parse(buf, &opts);
        match parse(buf, &opts) {
            Ok((consumed, head)) => {
                assert_eq!(got, Ok(Progress::Complete { consumed }));
                assert_eq!(parser.head(), &head);
            }
            Err(reject) => assert_eq!(got, Err(reject)),
        }
    }
}

#[test]
fn spans_name_the_parts_of_the_target() {
    /// Target, URI, schema, host, port, of a request line.
    type Parts<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);
    let rows: &[(&str, Parts)] = &[
        ("GET /a?b HTTP/1.1", ("/a?b", "/a?b", "", "", "")),
        ("GET  /a  HTTP/1.1 ", ("/a", "/a", "", "", "")),
        ("GET http://H:80/a HTTP/1.1", ("http://H:80/a", "/a", "http", "H", "80")),
        ("GET http://h HTTP/1.1", ("http://h", "/", "http", "h", "")),
        ("GET http://h: HTTP/1.1", ("http://h:", "/", "http", "h", "")),
        ("GET http://h?x HTTP/1.1", ("http://h?x", "?x", "http", "h", "")),
        ("GET https://[::1]:1?x HTTP/1.1", ("https://[::1]:1?x", "?x", "https", "[::1]", "1")),
    ];
    for (line, want) in rows {
        let buf = format!("{line}\r\n\r\n").into_bytes();
        let head = head(&buf);
        let text = |span: Span| std::str::from_utf8(span.of(&buf)).unwrap();
        let part = |span: Option<Span>| text(span.unwrap_or_default());
        let got = (
            text(head.target),
            text(head.uri),
            part(head.schema),
            part(head.host),
            part(head.port),
        );
        assert_eq!(&got, want, "{line}");
        assert_eq!(text(head.request_line), *line);
        assert_eq!(text(head.method_span), "GET");
    }
}

#[test]
fn the_uri_is_flagged_where_it_needs_work() {
    // complex, quoted, plus, empty path, arguments from, extension
    let rows: &[(&str, &str)] = &[
        ("/a/b", ""),
        ("/a.html?x.y", "args=8 ext=html"),
        ("/a.b/c", ""),
        ("/.a", "complex"),
        ("/a/../b", "complex"),
        ("//a", "complex"),
        ("/a#b", "complex"),
        ("/%61.b", "quoted"),
        ("/a+b", "plus"),
        ("/+", "plus"),
        ("/a?%+..//", "args=3"),
        ("/?a", "args=2"),
        ("http://h?x", "empty args=9"),
    ];
    for (uri, want) in rows {
        let buf = format!("GET {uri} HTTP/1.1\r\n\r\n").into_bytes();
        let flags = head(&buf).uri_flags;
        let mut got = Vec::new();
        for (set, name) in [
            (flags.complex, "complex"),
            (flags.quoted, "quoted"),
            (flags.plus_in, "plus"),
            (flags.empty_path, "empty"),
        ] {
            if set {
                got.push(name.to_string());
            }
        }
        got.extend(flags.args_start.map(|at| format!("args={}", at - 4)));
        got.extend(flags.ext.map(|ext| format!("ext={}", String::from_utf8_lossy(ext.of(&buf)))));
        assert_eq!(got.join(" "), *want, "{uri}");
    }
}

#[test]
fn versions_and_their_text_are_kept() {
    for (line, version, protocol) in [
        ("GET /", Version::Http09, ""),
        ("GET / HTTP/1.0", Version::Http10, "HTTP/1.0"),
        ("GET / HTTP/1.00", Version::Http10, "HTTP/1.00"),
        ("GET / HTTP/1.1", Version::Http11, "HTTP/1.1"),
        ("GET / HTTP/1.1  ", Version::Http11, "HTTP/1.1  "),
        ("GET / HTTP/1.99", Version::Http11, "HTTP/1.99"),
    ] {
        let buf = format!("{line}\r\n\r\n").into_bytes();
        let head = head(&buf);
        assert_eq!(head.version, version, "{line}");
        assert_eq!(head.protocol.unwrap_or_default().of(&buf), protocol.as_bytes(), "{line}");
    }
}

#[test]
fn values_lose_spaces_but_not_tabs() {
    let buf = b"GET / HTTP/1.1\r\nA:b\r\nC-1:  d  e  \r\nF:\tg\t\r\nH:\r\nI:   \r\n\r\n";
    assert_eq!(fields(buf, &head(buf)), ["A=b", "C-1=d  e", "F=\tg\t", "H=", "I="]);
}

#[test]
fn invalid_names_are_skipped_or_kept_by_option() {
    let buf = b"GET / HTTP/1.1\r\nA_b: 1\r\nA(b: 2\r\nC: 3\r\n\xe9: 4\r\n\r\n";
    for (underscores, ignore, want) in [
        (false, true, vec!["C=3"]),
        (true, true, vec!["A_b=1", "C=3"]),
        (false, false, vec!["A_b=1", "A(b=2", "C=3", "\u{fffd}=4"]),
    ] {
        let opts = Options { underscores, ignore_invalid_headers: ignore, ..Options::default() };
        let (_, head) = parse(buf, &opts).unwrap();
        assert_eq!(fields(buf, &head), want);
        assert_eq!(head.skipped.len() + want.len(), 4);
        if !underscores && ignore {
            assert_eq!(head.skipped[0].of(buf), b"A_b: 1");
        }
    }
}

#[test]
fn a_refused_line_is_shown_up_to_the_bad_byte() {
    for (line, shown) in [("A : b", "A"), ("A: b\rc", "A: b"), (": b", ""), (" b", ""), ("A", "A")]
    {
        let buf = format!("GET / HTTP/1.1\r\n{line}\r\n\r\n").into_bytes();
        let mut parser = Parser::new();
        assert_eq!(parser.parse(&buf, &Options::default()), Err(Reject::InvalidHeader));
        let refused = parser.head().refused.unwrap();
        assert_eq!(refused.of(&buf), shown.as_bytes());
        assert_eq!(parser.head().request_line.of(&buf), b"GET / HTTP/1.1");
    }
}

#[test]
fn a_refused_request_line_is_shown_up_to_its_end() {
    for (buf, shown) in [
        (&b"get / HTTP/1.1\r\nHost: a\r\n"[..], &b"get / HTTP/1.1"[..]),
        (b"\r\nGET /a b\nx", b"GET /a b"),
        (b"\x16\x03\x01", b"\x16\x03\x01"),
    ] {
        let mut parser = Parser::new();
        assert!(parser.parse(buf, &Options::default()).is_err());
        assert_eq!(parser.head().request_line.of(buf), shown);
    }
}

/// A head with a request line and then header lines of these lengths, line ends included.
fn sized(lines: &[usize]) -> Vec<u8> {
    let mut buf = Vec::new();
    for (index, &len) in lines.iter().enumerate() {
        let (prefix, suffix) = match index {
            0 => (&b"GET /"[..], &b" HTTP/1.1\r\n"[..]),
            _ => (&b"X: "[..], &b"\r\n"[..]),
        };
        buf.extend_from_slice(prefix);
        buf.resize(buf.len() + len - prefix.len() - suffix.len(), b'a');
        buf.extend_from_slice(suffix);
    }
    buf.extend_from_slice(b"\r\n");
    buf
}

/// Checked against nginx 1.22 with its default buffers.
#[test]
fn limits_bite_at_the_byte_where_nginx_runs_out_of_buffers() {
    let many = [&[16][..], &[505; 70]].concat();
    let rows: &[(&[usize], Result<(), Reject>)] = &[
        (&[16], Ok(())),
        (&[8192], Ok(())),
        (&[8193], Err(Reject::UriTooLong)),
        (&[16, 8192], Ok(())),
        (&[16, 8193], Err(Reject::HeaderTooLong)),
        (&[8192, 8192, 8192, 8190], Ok(())),
        (&[8192, 8192, 8192, 8192], Err(Reject::HeaderTooLong)),
        (&[8192, 8192, 8192, 8191], Err(Reject::HeaderTooLong)),
        (&[16, 8000, 8000, 8000, 8000], Ok(())),
        (&[16, 8000, 8000, 8000, 8000, 8000], Err(Reject::HeaderTooLong)),
        (&many, Err(Reject::HeaderTooLong)),
    ];
    let opts = Options::default();
    for (lines, want) in rows {
        let buf = sized(lines);
        let got = parse(&buf, &opts);
        assert_eq!(got.map(|(consumed, _)| consumed), want.map(|()| buf.len()), "{lines:?}");
        let mut parser = Parser::new();
        let mut bytewise = Ok(Progress::Partial);
        for len in 1..=buf.len() {
            bytewise = parser.parse(&buf[..len], &opts);
            if bytewise.is_err() {
                break;
            }
        }
        assert_eq!(bytewise.err(), want.err(), "{lines:?} bytewise");
    }
}

#[test]
fn buffers_that_end_with_the_request_line_are_a_too_large_request() {
    let opts =
        Options { client_header_buffer_size: 16, large_buffers: (0, 0), ..Options::default() };
    assert_eq!(parse(&sized(&[16]), &opts).err(), Some(Reject::RequestTooLarge));
    let opts = Options { client_header_buffer_size: 26, ..opts };
    let mut parser = Parser::new();
    let buf = sized(&[16, 10]);
    assert_eq!(parser.parse(&buf, &opts), Err(Reject::HeaderTooLong));
    assert_eq!(parser.head().refused.unwrap().of(&buf), b"X: aaaaa\r\n");
}

#[test]
fn a_line_that_cannot_fit_is_refused_before_it_ends() {
    let opts = Options::default();
    let buf = [b"GET /".to_vec(), vec![b'a'; 9000]].concat();
    let mut parser = Parser::new();
    assert_eq!(parser.parse(&buf[..8191], &opts), Ok(Progress::Partial));
    assert_eq!(parser.parse(&buf[..8192], &opts), Err(Reject::UriTooLong));
    assert_eq!(parser.head().request_line.len(), 8192);
}

#[test]
fn header_lines_are_counted_without_the_skipped() {
    let opts = Options { max_headers: 2, ..Options::default() };
    let with = |lines: &str| format!("GET / HTTP/1.1\r\n{lines}\r\n").into_bytes();
    assert!(parse(&with("A: 1\r\nB: 2\r\n"), &opts).is_ok());
    assert!(parse(&with("A: 1\r\nB_: x\r\nB: 2\r\n"), &opts).is_ok());
    let many = parse(&with("A: 1\r\nB: 2\r\nC: 3\r\n"), &opts);
    assert_eq!(many.err(), Some(Reject::TooManyHeaders));
}

#[test]
fn a_head_stops_once_behind_its_host_for_whoever_asks() {
    let opts =
        Options { large_buffers: (1, 32), client_header_buffer_size: 64, ..Options::default() };
    let generous = Options { underscores: true, large_buffers: (1, 64), ..opts };
    let long = "X: ".to_owned() + &"x".repeat(40) + "\r\n";
    let heads = [
        "GET / HTTP/1.1\r\nA_: 1\r\nHost: a\r\nB_: 2\r\nHost: b\r\n",
        "GET http://a/ HTTP/1.1\r\nB_: 2\r\nHost: b\r\n",
    ];
    for (start, behind) in heads.iter().zip([32, 24]) {
        let buf = format!("{start}{long}\r\n").into_bytes();
        assert_eq!(parse(&buf, &opts).err(), Some(Reject::HeaderTooLong));
        let mut parser = Parser::new();
        parser.stop_at_host();
        assert_eq!(parser.advance(&buf[..behind - 1], &opts), Ok(Some(Progress::Partial)));
        assert_eq!(parser.advance(&buf[..behind], &opts), Ok(None), "{start}");
        let complete = Progress::Complete { consumed: buf.len() };
        assert_eq!(parser.advance(&buf, &generous), Ok(Some(complete)), "{start}");
        let head = parser.head();
        assert!(head.headers.iter().any(|field| field.name.of(&buf) == b"B_"));
        assert!(head.headers.iter().all(|field| field.name.of(&buf) != b"A_"));
    }
}

#[test]
fn empty_lines_before_a_request_are_bounded() {
    let opts = Options { client_header_buffer_size: 8, ..Options::default() };
    let request = b"GET /\r\n";
    for (blank, want) in [(8, None), (9, Some(Reject::InvalidRequest))] {
        let buf = [b"\r\n".repeat(5)[..blank].to_vec(), request.to_vec()].concat();
        assert_eq!(parse(&buf, &opts).err(), want);
        assert_eq!(parse(&buf[..blank], &opts).err(), want);
    }
}
