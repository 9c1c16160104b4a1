//! What the variables of a request say, one after another.

use forebay_session::var;

use super::*;
use crate::{
    body_in::RequestBody,
    response::Field,
    testing::{self, request},
};

/// The value of `$name`; `None`: not found.
fn value(r: &Request, name: &str) -> Option<String> {
    let id = r.plan.registry.find(name).expect("the configuration mentions it");
    let mut out = Vec::new();
    var::read(r, id, &mut out).then(|| String::from_utf8_lossy(&out).into_owned())
}

/// A request for a server that mentions these variables.
fn mentioning(names: &[&str], server: &str, head: &str) -> Request {
    let text: String = names.iter().map(|name| format!("${name} ")).collect();
    request(&format!("{server} root \"/srv/{text}\";"), head)
}

fn check(head: &str, cases: &[(&str, Option<&str>)]) {
    let names: Vec<_> = cases.iter().map(|(name, _)| *name).collect();
    let r = mentioning(&names, "server_name a.example b.example;", head);
    for (name, expected) in cases {
        assert_eq!(value(&r, name).as_deref(), *expected, "${name} of {head:?}");
    }
}

#[test]
fn the_target_is_told_in_all_its_parts() {
    check(
        "GET /a/b.html?x=1&y=2 HTTP/1.1\r\nHost: h\r\n\r\n",
        &[
            ("request", Some("GET /a/b.html?x=1&y=2 HTTP/1.1")),
            ("request_method", Some("GET")),
            ("request_uri", Some("/a/b.html?x=1&y=2")),
            ("uri", Some("/a/b.html")),
            ("document_uri", Some("/a/b.html")),
            ("Document_URI", Some("/a/b.html")),
            ("args", Some("x=1&y=2")),
            ("query_string", Some("x=1&y=2")),
            ("is_args", Some("?")),
            ("scheme", Some("http")),
            ("https", Some("")),
            ("server_name", Some("a.example")),
            ("pipe", Some(".")),
        ],
    );
    check("GET / HTTP/1.1\r\n\r\n", &[("args", None), ("is_args", Some(""))]);
    check("GET /? HTTP/1.1\r\n\r\n", &[("args", None), ("is_args", Some(""))]);
}

#[test]
fn the_connection_is_told() {
    check(
        "GET / HTTP/1.1\r\n\r\n",
        &[
            ("remote_addr", Some("127.0.0.1")),
            ("remote_port", Some("4000")),
            ("binary_remote_addr", Some("\x7f\0\0\x01")),
            ("server_addr", Some("127.0.0.1")),
            ("server_port", Some("8080")),
            ("connection", Some("1")),
            ("connection_requests", Some("1")),
            ("nginx_version", Some(crate::special::NGINX_VERSION)),
            ("tcpinfo_rtt", None),
            ("proxy_protocol_addr", None),
            ("proxy_protocol_server_port", None),
        ],
    );
}

#[test]
fn fields_of_one_name_are_joined() {
    check(
        "GET / HTTP/1.1\r\nX-A-b: 1\r\nx-a-B: 2\r\nCookie: a=1\r\ncookie: b=2\r\nX: \r\n\r\n",
        &[
            ("http_x_a_b", Some("1, 2")),
            ("http_x", Some("")),
            ("http_x_a", None),
            ("http_cookie", Some("a=1; b=2")),
            ("cookie_a", Some("1")),
            ("cookie_b", Some("2")),
            ("cookie_c", None),
            ("content_length", None),
        ],
    );
}

#[test]
fn the_host_is_the_servers_name_unless_one_was_asked_for() {
    let names = ["host", "request_port", "is_request_port"];
    let mut r = mentioning(&names, "server_name a.example;", "GET / HTTP/1.1\r\n\r\n");
    assert_eq!(value(&r, "host").as_deref(), Some("a.example"));
    assert_eq!(value(&r, "request_port").as_deref(), Some(""));
    assert_eq!(value(&r, "is_request_port").as_deref(), Some(""));
    r.input_mut().host = b"h.example".to_vec();
    r.input_mut().port = Some(81);
    assert_eq!(value(&r, "host").as_deref(), Some("h.example"));
    assert_eq!(value(&r, "request_port").as_deref(), Some("81"));
    assert_eq!(value(&r, "is_request_port").as_deref(), Some(":"));
}

#[test]
fn the_response_is_told() {
    let names = [
        "status",
        "body_bytes_sent",
        "bytes_sent",
        "request_completion",
        "sent_http_connection",
        "sent_http_content_length",
        "sent_http_content_type",
        "sent_http_keep_alive",
        "sent_http_last_modified",
        "sent_http_location",
        "sent_http_transfer_encoding",
        "sent_http_x_y",
        "sent_http_server",
        "sent_trailer_t",
    ];
    let server = "keepalive_timeout 5 7;";
    let begin = || mentioning(&names, server, "GET / HTTP/1.1\r\n\r\n");
    let mut r = begin();
    assert_eq!(value(&r, "status").as_deref(), Some("000"));
    assert_eq!(value(&r, "request_completion").as_deref(), Some(""));
    r.respond(206, "text/html".into(), "abc".into());
    r.response.charset = Some("utf-8".into());
    assert_eq!(value(&r, "sent_http_content_type").as_deref(), Some("text/html"));
    assert_eq!(value(&r, "sent_http_content_length").as_deref(), Some("3"));
    let mut r = begin();
    r.respond(206, "text/html".into(), "abc".into());
    r.response.charset = Some("utf-8".into());
    r.response.location = Some("/x".into());
    r.response.last_modified = Some(0);
    r.response.chunked = true;
    r.response.add("X-Y", "1");
    r.response.add("x-y", "2");
    r.response.trailers.push(Field { name: "T".into(), value: "t".into() });
    (r.bytes_sent, r.head_sent, r.completed, r.keep_alive) = (110, 100, true, true);
    let expected = [
        ("status", Some("206")),
        ("bytes_sent", Some("110")),
        ("body_bytes_sent", Some("10")),
        ("request_completion", Some("OK")),
        ("sent_http_connection", Some("keep-alive")),
        ("sent_http_keep_alive", Some("timeout=7")),
        ("sent_http_content_length", None),
        ("sent_http_content_type", Some("text/html; charset=utf-8")),
        ("sent_http_last_modified", Some("Thu, 01 Jan 1970 00:00:00 GMT")),
        ("sent_http_location", Some("http://127.0.0.1:8080/x")),
        ("sent_http_transfer_encoding", Some("chunked")),
        ("sent_http_x_y", Some("1, 2")),
        ("sent_http_server", None),
        ("sent_trailer_t", Some("t")),
    ];
    for (name, expected) in expected {
        assert_eq!(value(&r, name).as_deref(), expected, "${name}");
    }
    r.error_status = 404;
    assert_eq!(value(&r, "status").as_deref(), Some("404"));
}

#[test]
fn a_request_id_holds_for_the_request() {
    let names = ["request_id"];
    let r = mentioning(&names, "", "GET / HTTP/1.1\r\n\r\n");
    let id = value(&r, "request_id").expect("always there");
    assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
    assert_eq!(value(&r, "request_id"), Some(id.clone()));
    let other = mentioning(&names, "", "GET / HTTP/1.1\r\n\r\n");
    assert_ne!(value(&other, "request_id"), Some(id));
}

#[test]
fn the_body_is_told_where_it_is_in_memory() {
    let names = ["request_body", "request_body_file", "content_length"];
    let mut r = mentioning(&names, "", "POST / HTTP/1.1\r\n\r\n");
    r.body = RequestBody::Memory("a=b".into());
    assert_eq!(value(&r, "request_body").as_deref(), Some("a=b"));
    assert_eq!(value(&r, "content_length").as_deref(), Some("3"));
    assert_eq!(value(&r, "request_body_file"), None);
}

#[test]
fn what_was_read_too_early_stays_what_it_was() {
    let names = ["request_body", "sent_http_content_type", "sent_http_x", "bytes_sent", "status"];
    let mut r = mentioning(&names, "", "POST / HTTP/1.1\r\n\r\n");
    r.body = RequestBody::Memory("a=b".into());
    assert_eq!(value(&r, "request_body").as_deref(), Some("a=b"));
    let mut r = mentioning(&names, "", "POST / HTTP/1.1\r\n\r\n");
    let read = |r: &Request| names.map(|name| value(r, name).unwrap_or("none".to_owned()));
    assert_eq!(read(&r), ["none", "none", "none", "0", "000"]);
    r.body = RequestBody::Memory("a=b".into());
    r.respond(200, "text/plain".into(), "x".into());
    r.response.add("X", "1");
    r.bytes_sent = 5;
    assert_eq!(read(&r), ["none", "none", "none", "0", "200"]);
}

#[test]
fn a_user_is_told_only_from_whole_credentials() {
    check("GET / HTTP/1.1\r\nAuthorization: Basic dTpw\r\n\r\n", &[("remote_user", Some("u"))]);
    check("GET / HTTP/1.1\r\nAuthorization: Basic !\r\n\r\n", &[("remote_user", None)]);
}

#[test]
fn limit_rate_can_be_set_and_nonsense_cannot() {
    let mut r = mentioning(&["limit_rate"], "limit_rate 4k;", "GET / HTTP/1.1\r\n\r\n");
    let id = r.plan.registry.find("limit_rate").unwrap();
    assert_eq!(value(&r, "limit_rate").as_deref(), Some("0"));
    r.head_sent = 1;
    assert_eq!(value(&r, "limit_rate").as_deref(), Some("4096"));
    var::assign(&mut r, id, b"1k");
    assert_eq!(value(&r, "limit_rate").as_deref(), Some("1024"));
    var::assign(&mut r, id, b"fast");
    assert_eq!(r.limit_rate, Some(1024));
}

#[test]
fn a_variable_that_nobody_defines_is_an_error() {
    let error = testing::conf_error("server { root /srv/$nothing; }");
    assert!(error.contains("unknown \"nothing\" variable"), "{error}");
}

#[test]
fn what_was_sent_is_told_after_a_post_action() {
    let server = "post_action @done; return 200 hello;";
    let location = "location @done { default_type a/b; return 404; }";
    let names = ["sent_http_content_length", "sent_http_content_type"];
    let server = format!("location / {{ {server} }} {location}");
    let mut r = mentioning(&names, &server, "GET / HTTP/1.1\r\n\r\n");
    testing::answer(&mut r);
    forebay_rt::task::block_on(crate::engine::post_action(&mut r));
    assert_eq!(names.map(|name| value(&r, name).unwrap()), ["5", "text/plain"]);
}
