//! Rows of `docs/differences.md` that only a running server can hold and no comparison of single
//! responses shows.

use std::time::{Duration, Instant};

use forebay_testkit::raw::Client;
use forebay_testkit::{Kind, Server, wait_for};

const LIMIT: Duration = Duration::from_secs(20);

fn start(http: &str, inside: &str) -> Server {
    Server::start(
        Kind::Forebay,
        &format!(
            "error_log {{prefix}}/error.log notice; events {{ }}
            http {{ {{temp_paths}} {http} access_log {{prefix}}/access.log;
                server {{ listen 127.0.0.1:{{port}}; root {{root}}; {inside} }} }}"
        ),
    )
}

fn ask(client: &mut Client, path: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    client.send(request.as_bytes()).expect("send");
    client.read_response(false).expect("response").status
}

#[test]
fn the_next_request_does_not_wait_for_a_mirror() {
    let server = start(
        "limit_req_zone $server_name zone=z:64k rate=3r/m;",
        "location /copied { mirror /mirror; }
         location = /mirror { internal; limit_req zone=z burst=5; }",
    );
    std::fs::write(server.root().join("copied"), "x").expect("file");
    let mut client = Client::connect(server.addr()).expect("connect");
    let started = Instant::now();
    // The copy of the first is answered at once, that of the second twenty seconds later.
    for _ in 0..3 {
        assert_eq!(ask(&mut client, "/copied"), 200);
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn one_post_action_follows_a_request() {
    let server = start(
        "",
        "location = /a { post_action /b; }
         location = /b { internal; access_log {prefix}/b.log; post_action /c; }
         location = /c { internal; access_log {prefix}/c.log; }",
    );
    for name in ["a", "b", "c"] {
        std::fs::write(server.root().join(name), "x").expect("file");
    }
    let mut client = Client::connect(server.addr()).expect("connect");
    for _ in 0..2 {
        assert_eq!(ask(&mut client, "/a"), 200);
    }
    let logged = || server.read("b.log").lines().count();
    assert!(wait_for(|| logged() == 2, LIMIT), "{}", server.error_log());
    assert_eq!(server.read("c.log"), "");
}

#[test]
fn subrequests_are_logged_with_what_they_gave() {
    let server = start(
        "log_format sizes '$uri $body_bytes_sent'; types { text/html html; }",
        "access_log {prefix}/sizes.log sizes; log_subrequest on;
         location = /a.html { add_before_body /before; add_after_body /after.html; }
         location = /before { return 200 12345; }",
    );
    std::fs::write(server.root().join("a.html"), "x").expect("file");
    std::fs::write(server.root().join("after.html"), "y".repeat(100_000)).expect("file");
    let mut client = Client::connect(server.addr()).expect("connect");
    assert_eq!(ask(&mut client, "/a.html"), 200);
    let logged = || server.read("sizes.log");
    assert!(wait_for(|| logged().lines().count() == 3, LIMIT), "{}", logged());
    // The whole is chunked: its size has the sizes of chunks in it.
    assert!(logged().starts_with("/before 5\n/after.html 100000\n/a.html "), "{}", logged());
}

#[test]
fn a_status_below_200_has_no_content() {
    let server = start("", "location / { return 199 text; }");
    let mut client = Client::connect(server.addr()).expect("connect");
    client.send(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").expect("send");
    let all = client.read_to_end().expect("response");
    assert!(all.starts_with(b"HTTP/1.1 199 ") && all.ends_with(b"\r\n\r\n"));
}

#[test]
fn what_is_ready_leaves_before_what_is_waited_for() {
    let server = start(
        "limit_req_zone $server_name zone=z:64k rate=1r/m; types { text/html html; }",
        "location = /page.html { ssi on; } location = /held.html { limit_req zone=z burst=5; }",
    );
    let page = "first<!--#include virtual='/held.html' -->last";
    std::fs::write(server.root().join("page.html"), page).expect("file");
    std::fs::write(server.root().join("held.html"), "x").expect("file");
    let mut client = Client::connect(server.addr()).expect("connect");
    assert_eq!(ask(&mut client, "/held.html"), 200);
    client.send(b"GET /page.html HTTP/1.1\r\nHost: test\r\n\r\n").expect("send");
    // What follows comes a minute later, after the client's patience.
    let mut got = Vec::new();
    while !got.ends_with(b"5\r\nfirst\r\n") {
        got.extend(client.read_exactly(1).expect("a byte"));
    }
}
