//! CONNECT: tunnels that clients ask for, and all that is none.

use std::net::SocketAddr;

use forebay_testkit::dns::{A, DnsServer, Record, Reply};
use forebay_testkit::origin::{Conn, Origin};
use forebay_testkit::raw::Client;
use forebay_testkit::{Kind, Server};

use crate::{CRLF2, LIMIT, ask, client, last_access, seen, start, wait_logged};

fn forebay(inside: &str) -> Server {
    start(Kind::Forebay, "", inside)
}

fn connect(target: impl std::fmt::Display) -> Vec<u8> {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes()
}

/// Asks for a tunnel, sending `early` with the head; the head of the answer.
fn open(server: &Server, target: SocketAddr, early: &[u8]) -> (Client, String) {
    let mut client = client(server);
    client.send(&[&connect(target)[..], early].concat()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(CRLF2) {
        head.extend(client.read_exactly(1).unwrap());
    }
    (client, String::from_utf8(head).unwrap())
}

#[test]
fn a_tunnel_has_nothing_of_the_response_before_it() {
    let backend = Origin::answering("HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi");
    let origin = Origin::start(echo);
    let inside = format!("tunnel_pass; location /p {{ proxy_pass http://{}; }}", backend.addr());
    let server = forebay(&inside);
    for _ in 0..3 {
        assert_eq!(ask(server.addr(), &crate::get("/p")), "200 hi");
        let (mut client, head) = open(&server, origin.addr(), b"early");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.contains("X-A"), "{head}");
        assert_eq!(client.read_exactly(5).unwrap(), b"early");
    }
}

/// Says back what comes, with its last words when the other side has ended.
fn echo(conn: &mut Conn) -> std::io::Result<()> {
    while let Ok(byte) = conn.take(1) {
        conn.send(&byte)?;
    }
    conn.send(b" bye")
}

#[test]
fn a_tunnel_takes_bytes_both_ways_until_both_sides_have_ended() {
    let origin = Origin::start(echo);
    let log = "log_format tunnel '$request|$uri|$host|$request_port|$status|$body_bytes_sent|$upstream_addr';";
    let inside = "tunnel_pass; access_log {prefix}/access.log tunnel;";
    let server = start(Kind::Forebay, log, inside);
    let (mut client, head) = open(&server, origin.addr(), b"early");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    for field in ["Content-Length", "Transfer-Encoding", "Connection", "Content-Type"] {
        assert!(!head.contains(field), "{head}");
    }
    assert_eq!(client.read_exactly(5).unwrap(), b"early");
    let text = [b'x'; 100_000];
    client.send(&text).unwrap();
    assert_eq!(client.read_exactly(text.len()).unwrap(), text);
    client.shutdown_write().unwrap();
    assert_eq!(client.read_to_end().unwrap(), b" bye");
    let to = origin.addr();
    let want = format!("CONNECT {to} HTTP/1.1|/|127.0.0.1|{}|200|100009|{to}", to.port());
    assert_eq!(last_access(&server, 1), want);
}

#[test]
fn without_a_tunnel_connect_is_405_and_with_one_nothing_else_is() {
    let origin = Origin::start(echo);
    let pass = format!("proxy_pass http://{};", origin.addr());
    let to = origin.addr();
    for (inside, want) in [
        ("return 200 hello;".to_owned(), "405"),
        (format!("location / {{ {pass} }}"), "405"),
        // Where a tunnel is elsewhere.
        (format!("location / {{ {pass} }} location /t {{ tunnel_pass; }}"), "405"),
        ("location / { return 200 hello; } location /t { tunnel_pass; }".to_owned(), "405"),
        ("location / { error_page 405 =200 /e; } location = /e { return 204; } location /t { tunnel_pass; }".to_owned(), "405"),
        ("location / { deny all; tunnel_pass; }".to_owned(), "403"),
    ] {
        let server = forebay(&inside);
        let mut client = client(&server);
        // What comes behind it is no request.
        let early = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
        client.send(&[&connect(to)[..], early].concat()).unwrap();
        assert_eq!(seen(&client.read_to_end().unwrap(), false), want, "{inside}");
        assert!(!server.access_log().contains("smuggled"), "{inside}");
    }
    assert_eq!(origin.connections(), 0);
    let server = forebay("location / { tunnel_pass; }");
    assert_eq!(ask(server.addr(), &crate::get("/")), "405");
}

#[test]
fn a_target_that_is_none_is_400() {
    let server = forebay("tunnel_pass;");
    for (head, want) in [
        ("CONNECT / HTTP/1.1\r\nHost: a", "400"),
        ("CONNECT a HTTP/1.1\r\nHost: a", "400"),
        ("CONNECT a:0 HTTP/1.1\r\nHost: a", "400"),
        ("CONNECT a:99999 HTTP/1.1\r\nHost: a", "400"),
        ("CONNECT http://a:1/ HTTP/1.1\r\nHost: a", "400"),
        ("CONNECT a:1 HTTP/1.1", "400"),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0", "400"),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", "400"),
        // A host of that name, and never a socket in the file system.
        ("CONNECT unix:1 HTTP/1.1\r\nHost: a", "500"),
    ] {
        assert_eq!(ask(server.addr(), format!("{head}\r\n\r\n").as_bytes()), want, "{head}");
    }
    wait_logged(&server, "invalid host in upstream \"unix:1\"");
}

#[test]
fn it_may_be_said_which_servers_are_allowed() {
    let (mine, other) = (Origin::start(echo), Origin::start(echo));
    let http = format!(
        "map $upstream_last_addr $mine {{ volatile; {} 1; }} map $request_port $port {{ default 1; 1 0; }}",
        mine.addr()
    );
    let server = start(Kind::Forebay, &http, "tunnel_pass; tunnel_allow_upstream $port $mine;");
    let (mut client, head) = open(&server, mine.addr(), b"a");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(client.read_exactly(1).unwrap(), b"a");
    for target in [other.addr().to_string(), "127.0.0.1:1".into()] {
        assert_eq!(ask(server.addr(), &connect(target)), "403");
    }
    wait_logged(&server, "access to upstream server denied while connecting to upstream");
    assert_eq!(other.connections(), 0);
    // Another server may be allowed where this one is not.
    let http =
        format!("{http} upstream u {{ server {}; server {} backup; }}", other.addr(), mine.addr());
    for (next, want) in [("error", "403"), ("denied", "200")] {
        let inside =
            format!("tunnel_pass u; tunnel_allow_upstream $mine; tunnel_next_upstream {next};");
        let server = start(Kind::Forebay, &http, &inside);
        let (_, head) = open(&server, mine.addr(), b"");
        assert!(head.starts_with(&format!("HTTP/1.1 {want}")), "{next}: {head}");
    }
}

#[test]
fn servers_that_fail_are_followed_by_others_within_their_limits() {
    let origin = Origin::start(echo);
    let hole = forebay_testkit::origin::Blackhole::new().unwrap();
    for (servers, more, want) in [
        ("server 127.0.0.1:1; server {origin} backup;", "", "200"),
        ("server 127.0.0.1:1; server {origin} backup;", "tunnel_next_upstream off;", "502"),
        ("server 127.0.0.1:1; server {origin} backup;", "tunnel_next_upstream_tries 1;", "502"),
        ("server {hole}; server {origin} backup;", "tunnel_connect_timeout 200ms;", "200"),
        ("server {hole};", "tunnel_connect_timeout 200ms;", "504"),
    ] {
        let servers = servers
            .replace("{origin}", &origin.addr().to_string())
            .replace("{hole}", &hole.addr().to_string());
        let http = format!("upstream u {{ {servers} }}");
        let server = start(Kind::Forebay, &http, &format!("tunnel_pass u; {more}"));
        let (_, head) = open(&server, origin.addr(), b"");
        assert!(head.starts_with(&format!("HTTP/1.1 {want}")), "{servers} {more}: {head}");
    }
}

#[test]
fn names_are_resolved() {
    let origin = Origin::start(echo);
    let dns = DnsServer::start(|query| match (query.name.as_str(), query.kind) {
        ("there.test", A) => {
            vec![Reply::records(query, &[Record::addr("there.test", 60, "127.0.0.1")])]
        }
        ("there.test", _) => vec![Reply::records(query, &[])],
        _ => vec![Reply::code(query, 3)],
    });
    let server = forebay(&format!("resolver {}; tunnel_pass;", dns.addr()));
    let mut client = client(&server);
    let target = format!("there.test:{}", origin.addr().port());
    client.send(&[&connect(target)[..], b"x"].concat()).unwrap();
    client.shutdown_write().unwrap();
    let answer = client.read_to_end().unwrap();
    assert!(answer.ends_with(b"\r\n\r\nx bye"), "{}", answer.escape_ascii());
    assert_eq!(ask(server.addr(), &connect("none.test:1")), "502");
}

#[test]
fn a_tunnel_that_is_silent_ends_with_its_timeout() {
    let origin = Origin::start(|conn| conn.wait_closed());
    let server = forebay("tunnel_pass; tunnel_read_timeout 300ms;");
    let (mut client, _) = open(&server, origin.addr(), b"");
    assert!(client.is_at_end().unwrap());
    wait_logged(&server, "upstream timed out (110: Connection timed out) while proxying upgraded");
    origin.wait_closed(1);
}

#[test]
fn whoever_takes_nothing_is_given_up() {
    // The origin reads nothing.
    let origin = Origin::start(|conn| conn.hang());
    let server = forebay("tunnel_pass; tunnel_send_timeout 300ms; tunnel_buffer_size 4k;");
    let (mut client, _) = open(&server, origin.addr(), b"");
    client.set_timeout(LIMIT).unwrap();
    let piece = vec![b'x'; 1 << 20];
    while client.send(&piece).is_ok() {}
    wait_logged(&server, "upstream timed out (110: Connection timed out) while proxying upgraded");
    // The client reads nothing.
    let origin = Origin::start(|conn| conn.flood(&[b'x'; 65536], 1 << 30).map(drop));
    let server = forebay("tunnel_pass; send_timeout 300ms;");
    let (_client, _) = open(&server, origin.addr(), b"");
    wait_logged(&server, "client timed out (110: Connection timed out) while proxying upgraded");
    origin.wait_closed(1);
}

#[test]
fn a_tunnel_counts_as_a_request_until_it_ends() {
    let origin = Origin::start(echo);
    let http = "limit_conn_zone $server_addr zone=one:64k;";
    let server = start(Kind::Forebay, http, "tunnel_pass; limit_conn one 1;");
    let (tunnel, _) = open(&server, origin.addr(), b"");
    assert_eq!(ask(server.addr(), &connect(origin.addr())), "503");
    drop(tunnel);
    let free = || open(&server, origin.addr(), b"").1.starts_with("HTTP/1.1 200");
    assert!(forebay_testkit::wait_for(free, LIMIT));
}
