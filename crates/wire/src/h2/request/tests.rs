use super::*;

const OPTIONS: Options = Options {
    underscores: false,
    ignore_invalid_headers: true,
    client_header_buffer_size: 1024,
    large_buffers: (4, 100),
    max_headers: 5,
};

type Case<'a> = (&'a [(&'a str, &'a str)], Option<Reject>);

fn build(fields: &[(&str, &str)], end: bool) -> (Head, String, Result<Framing, Refusal>) {
    build_with(fields, end, false)
}

fn build_with(
    fields: &[(&str, &str)],
    end: bool,
    on: bool,
) -> (Head, String, Result<Framing, Refusal>) {
    let (mut buf, mut head) = (Vec::new(), Head::default());
    let mut builder = RequestBuilder::new(&mut buf, &mut head, &OPTIONS).connect_protocol(on);
    for (name, value) in fields {
        let (name, value) = (name.as_bytes(), value.as_bytes());
        builder.field(Field { name, value, known_name: false });
    }
    let framing = builder.finish(end);
    let line = String::from_utf8_lossy(head.request_line.of(&buf)).into_owned();
    let mut text = line + "\n";
    for field in &head.headers {
        let part = |span: Span| String::from_utf8_lossy(span.of(&buf)).into_owned();
        text += &format!("{}: {}\n", part(field.name), part(field.value));
    }
    (head, text, framing)
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/a?b"), (":authority", "A:80")];

#[test]
fn the_cookie_stands_behind_all_other_fields() {
    let fields = [&GET[..], &[("cookie", "a=b"), ("x", "1"), ("y", "2")]].concat();
    let (_, text, _) = build(&fields, true);
    assert_eq!(text, "GET /a?b HTTP/2.0\nhost: A:80\nx: 1\ny: 2\ncookie: a=b\n");
}

#[test]
fn a_request_looks_as_if_it_had_come_by_http_1() {
    let fields =
        [&GET[..], &[("cookie", "a=b"), ("x", ""), ("cookie", "c=d"), ("host", "a:80")]].concat();
    let (head, text, framing) = build(&fields, true);
    assert_eq!(text, "GET /a?b HTTP/2.0\nhost: A:80\nx: \ncookie: a=b; c=d\n");
    let framing = framing.expect("a request");
    assert_eq!((framing.body, framing.keep_alive), (BodyLength::None, true));
    assert_eq!((head.method, head.version), (Method::Get, Version::Http2));
    assert_eq!(head.uri_flags.args_start, Some(head.uri.start + 3));
    assert!(head.uri_flags.is_simple());
}

#[test]
fn fields_are_judged_by_the_options_of_the_host() {
    let choose = |host: &[u8]| {
        let chosen = Options { underscores: true, large_buffers: (0, 0), ..OPTIONS };
        (host == b"A:80").then_some(chosen)
    };
    let by_authority = GET.to_vec();
    let by_host = [&GET[..3], &[("b_c", ""), ("host", "A:80")]].concat();
    let of_another = [&GET[..3], &[(":authority", "B")]].concat();
    let tables = [(by_authority, "host x_y"), (by_host, "host x_y"), (of_another, "host")];
    for (fields, want) in tables {
        let (mut buf, mut head) = (Vec::new(), Head::default());
        let mut builder =
            RequestBuilder::new(&mut buf, &mut head, &OPTIONS).options_by_host(&choose);
        for (name, value) in fields.iter().chain(&[("x_y", "1")]) {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            builder.field(Field { name, value, known_name: false });
        }
        builder.finish(true).expect("a request");
        let names: Vec<_> = head.headers.iter().map(|field| field.name.of(&buf)).collect();
        assert_eq!(names.join(&b' '), want.as_bytes(), "{fields:?}");
    }
}

#[test]
fn extended_connect_is_the_upgrade_that_http_1_would_have_had() {
    let connect = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat?a"),
        (":authority", "a"),
        ("origin", "b"),
    ];
    let (head, text, framing) = build_with(&connect, false, true);
    assert_eq!(
        text,
        "GET /chat?a HTTP/2.0\nhost: a\nconnection: upgrade\nupgrade: websocket\norigin: b\n"
    );
    let framing = framing.expect("a request");
    assert_eq!((head.method, framing.body), (Method::Get, BodyLength::None));
    assert!(framing.upgrade && !framing.expect_continue);
    // Without the setting, of another method, without a path, of no name.
    assert!(build_with(&connect, false, false).2.is_err());
    for (at, field) in [
        (0, (":method", "GET")),
        (1, (":protocol", "a b")),
        (1, (":protocol", "")),
        (3, ("x", "y")),
        (5, ("connection", "x")),
        (5, ("upgrade", "x")),
        (5, ("content-length", "1")),
    ] {
        let mut fields = connect;
        fields[at] = field;
        let refused = build_with(&fields, false, true).2.expect_err("refused");
        assert!(matches!(refused, Refusal::Malformed(_)), "{field:?}");
    }
}

#[test]
fn connect_names_a_host_and_a_port() {
    let (head, text, framing) = build(&[(":method", "CONNECT"), (":authority", "a:443")], false);
    assert_eq!(text, "CONNECT a:443 HTTP/2.0\nhost: a:443\n");
    let framing = framing.expect("a request");
    assert_eq!((head.method, framing.body), (Method::Connect, BodyLength::None));
    assert!(head.uri.is_empty() && head.host.is_some() && head.port.is_some());
}

#[test]
fn bodies_are_announced_by_length_or_by_the_open_stream() {
    for (length, end, body) in [
        (None, false, BodyLength::Chunked),
        (Some("7"), false, BodyLength::Length(7)),
        (Some("0"), true, BodyLength::Length(0)),
    ] {
        let length = length.map(|length| ("content-length", length));
        let fields: Vec<_> = GET.into_iter().chain(length).collect();
        assert_eq!(build(&fields, end).2.expect("a request").body, body);
    }
}

#[test]
fn malformed_requests_are_told_from_others() {
    let long = "x".repeat(101);
    let cases: &[Case<'_>] = &[
        (&[("A", "b")], None),
        (&[("a b", "c")], None),
        (&[("a:b", "c")], None),
        (&[("", "c")], None),
        (&[("a\u{e9}", "c")], None),
        (&[("a", "b\r\nc: d")], None),
        (&[("a", "b\0")], None),
        (&[("a", " b")], None),
        (&[("a", "b\t")], None),
        (&[("a", "b"), (":authority", "b")], None),
        (&[(":status", "200")], None),
        (&[(":protocol", "websocket")], None),
        (&[(":path", "/")], None),
        (&[(":method", "GET")], None),
        (&[("connection", "close")], None),
        (&[("keep-alive", "1")], None),
        (&[("proxy-connection", "close")], None),
        (&[("transfer-encoding", "chunked")], None),
        (&[("upgrade", "h2c")], None),
        (&[("te", "gzip")], None),
        (&[("host", "b")], None),
        (&[("content-length", "1")], None),
        (&[("host", "a:80"), ("host", "a:80")], Some(Reject::DuplicateHost)),
        (&[("expect", "x"), ("expect", "x")], Some(Reject::DuplicateHeader)),
        (&[("content-length", "x")], Some(Reject::ContentLength)),
        (&[("a", &long)], Some(Reject::HeaderTooLong)),
        (&[("a", &long[..98]); 4], Some(Reject::RequestTooLarge)),
        (&[("a", "b"); 5], Some(Reject::TooManyHeaders)),
    ];
    for (fields, reject) in cases {
        let fields = [&GET[..], fields].concat();
        match (build(&fields, true).2.expect_err("refused"), reject) {
            (Refusal::Malformed(_), None) => {}
            (Refusal::Reject(found), Some(reject)) => assert_eq!(found, *reject, "{fields:?}"),
            (other, _) => panic!("{fields:?}: {other:?}"),
        }
    }
}

#[test]
fn pseudo_headers_must_be_there_and_right() {
    let long = format!("/{}", "x".repeat(100));
    let cases: &[Case<'_>] = &[
        (&[(":scheme", "http"), (":path", "/"), (":authority", "a")], None),
        (&[(":method", "GET"), (":path", "/"), (":authority", "a")], None),
        (&[(":method", "GET"), (":scheme", "http"), (":authority", "a")], None),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "")], None),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "a")], None),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/a b")], None),
        (&[(":method", "GET"), (":scheme", "ht tp"), (":path", "/")], None),
        (&[(":method", "G\r\nT"), (":scheme", "http"), (":path", "/")], None),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/")], Some(Reject::NoHost)),
        (&[(":method", "GET"), (":scheme", "http"), (":path", &long)], Some(Reject::UriTooLong)),
        (&[(":method", "CONNECT"), (":scheme", "http"), (":path", "/")], None),
        (&[(":method", "CONNECT"), (":authority", "a")], Some(Reject::InvalidRequest)),
        (&[(":method", "CONNECT"), (":authority", "a:0")], Some(Reject::InvalidRequest)),
        (
            &[(":method", "TRACE"), (":scheme", "http"), (":path", "/"), ("host", "a")],
            Some(Reject::Trace),
        ),
        (
            &[(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), ("host", "a")],
            Some(Reject::InvalidRequest),
        ),
    ];
    for (fields, reject) in cases {
        match (build(fields, true).2.expect_err("refused"), reject) {
            (Refusal::Malformed(_), None) => {}
            (Refusal::Reject(found), Some(reject)) => assert_eq!(found, *reject, "{fields:?}"),
            (other, _) => panic!("{fields:?}: {other:?}"),
        }
    }
}

#[test]
fn an_empty_crumb_is_one() {
    for (crumbs, want) in [(["", "a=1"], "; a=1"), (["a=1", ""], "a=1; "), (["", ""], "; ")] {
        let fields = [&GET[..], &crumbs.map(|crumb| ("cookie", crumb))].concat();
        let (_, text, _) = build(&fields, true);
        assert!(text.ends_with(&format!("\ncookie: {want}\n")), "{text}");
    }
}

#[test]
fn odd_names_are_passed_over_as_configured() {
    let fields = [&GET[..], &[("a_b", "c"), ("a(b", "c"), ("x", "y")]].concat();
    let (head, text, framing) = build(&fields, true);
    assert!(framing.is_ok());
    assert_eq!(text, "GET /a?b HTTP/2.0\nhost: A:80\nx: y\n");
    assert_eq!(head.skipped.len(), 2);
}

#[test]
fn trailers_are_plain_fields() {
    let of = |name: &str, value: &str| {
        let (name, value) = (name.as_bytes(), value.as_bytes());
        is_trailer(Field { name, value, known_name: false })
    };
    assert!(of("grpc-status", "0"));
    assert!(!of(":path", "/") && !of("", "x") && !of("A", "x") && !of("a", "\n"));
    // RFC 9113 §8.2.2: any message.
    for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "te"] {
        assert!(!of(name, "close"), "{name}");
    }
}
