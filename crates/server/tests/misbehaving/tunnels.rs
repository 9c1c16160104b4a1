//! Connections that become something else: WebSocket and any `Upgrade`.

use forebay_testkit::origin::{Conn, Origin};
use forebay_testkit::raw::Client;
use forebay_testkit::{Kind, Server, Signal, wait_for};

use crate::{LIMIT, last_access, of_both, pass, start};

const UPGRADE: &str =
    "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;";
const REQUEST: &[u8] =
    b"GET /ws HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
const SWITCH: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

/// Says back what comes until the end.
fn echo(conn: &mut Conn) -> std::io::Result<()> {
    while let Ok(byte) = conn.take(1) {
        conn.send(&byte)?;
    }
    Ok(())
}

fn upgraded(server: &Server, more: &[u8]) -> Client {
    let mut client = Client::connect(server.addr()).unwrap();
    client.send(&[REQUEST, more].concat()).unwrap();
    let response = client.read_response(false).unwrap();
    assert_eq!(response.status, 101);
    assert_eq!(response.header("Upgrade"), Some(&b"websocket"[..]));
    assert!(
        response.header("Connection").is_some_and(|value| value.eq_ignore_ascii_case(b"upgrade"))
    );
    client
}

fn say(client: &mut Client, text: &[u8], answer: &[u8]) {
    client.send(text).unwrap();
    let got: Vec<u8> = (0..answer.len()).map(|_| byte(client)).collect();
    assert_eq!(got, answer);
}

fn byte(client: &mut Client) -> u8 {
    client.read_exactly(1).unwrap()[0]
}

#[test]
fn bytes_go_both_ways_after_101() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        // What follows the head at once belongs to the new protocol.
        conn.send(&[SWITCH, b"hi"].concat())?;
        echo(conn)
    });
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), UPGRADE));
        let mut client = upgraded(&server, b"");
        say(&mut client, b"", b"hi");
        for text in [&b"a"[..], b"\0\xff\r\n\r\n", &[b'x'; 5000]] {
            say(&mut client, text, text);
        }
        let closed = origin.connections() - origin.open();
        drop(client);
        origin.wait_closed(closed + 1);
    });
}

#[test]
fn what_a_client_sends_too_early_is_not_lost() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(SWITCH)?;
        echo(conn)
    });
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), UPGRADE));
        let mut client = upgraded(&server, b"early");
        say(&mut client, b"!", b"early!");
    });
}

#[test]
fn the_end_of_one_side_ends_the_other() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(&[SWITCH, b"bye"].concat())
    });
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), UPGRADE));
        let mut client = upgraded(&server, b"");
        assert_eq!(client.read_to_end().unwrap(), b"bye", "{kind}");
    });
}

#[test]
fn what_is_said_to_an_origin_that_has_closed_is_no_failure() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(&[SWITCH, b"bye"].concat())
    });
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), UPGRADE));
        for lines in 1..=5 {
            let mut client = upgraded(&server, b"");
            assert_eq!(client.read_to_end().unwrap(), b"bye", "{kind}");
            // nginx has closed its side.
            let _ = client.send(b"bye, too").and_then(|()| client.send(b"!"));
            drop(client);
            assert!(last_access(&server, lines).contains(" 101 "));
        }
        let log = server.error_log();
        assert!(!log.contains("while proxying"), "{kind}: {log}");
    });
}

#[test]
fn a_client_s_half_close_reaches_the_origin_and_the_answer_comes_back() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(SWITCH)?;
        let all = conn.to_end()?;
        conn.send(&all)
    });
    let server = start(Kind::Forebay, "", &pass(origin.addr(), UPGRADE));
    let mut client = upgraded(&server, b"");
    client.send(b"last words").unwrap();
    client.shutdown_write().unwrap();
    assert_eq!(client.read_to_end().unwrap(), b"last words");
}

#[test]
fn a_tunnel_that_is_silent_ends_with_its_timeout() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(SWITCH)?;
        conn.wait_closed()
    });
    of_both(|kind| {
        let more = format!("{UPGRADE} proxy_read_timeout 1500ms;");
        let server = start(kind, "", &pass(origin.addr(), &more));
        let mut client = upgraded(&server, b"");
        assert!(client.is_at_end().unwrap(), "{kind}");
    });
}

#[test]
fn an_origin_may_decline() {
    let origin = Origin::answering("HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno");
    of_both(|kind| {
        let server = start(kind, "", &pass(origin.addr(), UPGRADE));
        let mut client = Client::connect(server.addr()).unwrap();
        client.send(REQUEST).unwrap();
        assert_eq!(client.read_response(false).unwrap().body, b"no", "{kind}");
    });
}

#[test]
fn a_reload_does_not_end_a_tunnel() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(SWITCH)?;
        echo(conn)
    });
    let server = start(Kind::Forebay, "", &pass(origin.addr(), UPGRADE));
    let mut client = upgraded(&server, b"");
    say(&mut client, b"a", b"a");
    let worker = server.worker_pids();
    let text = server.read("nginx.conf").replace("server {", "server { return 204;");
    server.rewrite_conf(&text).unwrap();
    server.signal(Signal::SIGHUP);
    let is_new = || crate::ask(server.addr(), &crate::get("/")).starts_with("204");
    assert!(wait_for(is_new, LIMIT), "{}", server.error_log());
    say(&mut client, b"still here", b"still here");
    assert_eq!(server.worker_pids(), worker);
}

#[test]
fn what_goes_through_a_tunnel_is_no_part_of_the_request() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(&[SWITCH, b"hello"].concat())?;
        echo(conn)
    });
    let told = |kind| {
        let format = "log_format went '$request_length $body_bytes_sent $upstream_bytes_received';";
        let more =
            format!("{UPGRADE} proxy_read_timeout 300ms; access_log {{prefix}}/access.log went;");
        let server = start(kind, format, &pass(origin.addr(), &more));
        let mut client = upgraded(&server, b"early");
        say(&mut client, b"later", b"helloearlylater");
        assert!(client.is_at_end().unwrap(), "{kind}");
        last_access(&server, 1)
    };
    let (head, received) = (REQUEST.len(), SWITCH.len() + "helloearlylater".len());
    of_both(|kind| assert_eq!(told(kind), format!("{head} 15 {received}"), "{kind}"));
}

#[test]
fn what_goes_through_a_tunnel_is_no_response() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send(&[SWITCH, b"bye"].concat())
    });
    of_both(|kind| {
        let format = "log_format it '$upstream_response_length $upstream_bytes_received';";
        let more = format!("{UPGRADE} access_log {{prefix}}/access.log it;");
        let server = start(kind, format, &pass(origin.addr(), &more));
        let mut client = upgraded(&server, b"");
        assert_eq!(client.read_to_end().unwrap(), b"bye", "{kind}");
        drop(client);
        assert_eq!(last_access(&server, 1), format!("0 {}", SWITCH.len() + 3), "{kind}");
    });
}
