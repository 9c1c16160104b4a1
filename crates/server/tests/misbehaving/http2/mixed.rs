//! Many requests at once, several servers in a row, and servers that know no ALPN.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_testkit::Kind;
use forebay_testkit::origin_h2::H2;
use forebay_testkit::ports::Port;
use forebay_wire::h2::frame::{self, flag, kind};

use super::{backends::certificates, serving, with};
use crate::{LIMIT, ask, get, start, wait_for, wait_logged};

#[test]
fn no_byte_of_one_response_reaches_another_s_client() {
    // Each answer is made of the path that was asked for, and now and then breaks off.
    let origin = serving(|h2, asked| {
        let number: usize = asked.path()[1..].parse().expect("a number");
        let body = asked.path().repeat(1 + number % 4000);
        h2.head(asked.stream, &[(":status", "200"), ("x-path", asked.path())], false)?;
        let (first, rest) = body.as_bytes().split_at(body.len() / 2);
        h2.data(asked.stream, first, false)?;
        if number % 7 == 3 {
            return h2.reset(asked.stream, forebay_wire::h2::ErrorCode::InternalError);
        }
        for part in rest.chunks(16_000) {
            h2.data(asked.stream, part, false)?;
        }
        h2.data(asked.stream, b"", true)?;
        // What comes behind the end, on a connection that may be taken again already.
        match number % 11 {
            5 => h2.data(asked.stream, b"stray", false),
            6 => h2.window(asked.stream, 1),
            _ => Ok(()),
        }
    });
    let http = format!("upstream o {{ server {}; keepalive 8; }}", origin.addr());
    for buffering in ["", "proxy_buffering off;"] {
        let server = with(&http, buffering);
        let cut = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for client in 0..8 {
                let (addr, cut) = (server.addr(), &cut);
                scope.spawn(move || {
                    for turn in 0..40 {
                        let number = client * 1000 + turn * 13;
                        let path = format!("/{number}");
                        if turn % 5 == 4 {
                            // One that leaves in the middle.
                            let mut leaving = std::net::TcpStream::connect(addr).expect("connect");
                            leaving.write_all(&get(&path)).expect("send");
                            let _ = leaving.read(&mut [0; 10]);
                            continue;
                        }
                        let got = ask(addr, &get(&path));
                        let want = path.repeat(1 + number % 4000);
                        match got.strip_prefix("200 cut ").or(got.strip_prefix("200 cut")) {
                            Some(part) => {
                                assert!(want.starts_with(part), "{path}");
                                cut.fetch_add(1, Relaxed);
                            }
                            None => assert!(got == format!("200 {want}"), "{path}: {got:.80}"),
                        }
                    }
                });
            }
        });
        assert!(cut.into_inner() > 0);
    }
    assert!(origin.connections() < origin.requests().len(), "connections were used again");
}

#[test]
fn trailers_go_through_two_proxies_in_http_2() {
    let origin = serving(|h2, asked| {
        let te = asked.value("te").unwrap_or("none").to_owned();
        h2.head(asked.stream, &[(":status", "200")], false)?;
        h2.data(asked.stream, te.as_bytes(), false)?;
        h2.head(asked.stream, &[("x-sum", "5")], true)
    });
    let behind = start(
        Kind::Forebay,
        "",
        &format!(
            "http2 on; location / {{ proxy_pass http://{}; proxy_http_version 2; \
             proxy_pass_trailers on; }}",
            origin.addr()
        ),
    );
    let front = super::proxy(behind.addr(), "proxy_pass_trailers on;");
    let mut client = crate::client(&front);
    let head = "Host: test\r\nConnection: close, TE\r\nTE: trailers";
    client.send(format!("GET / HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()).expect("send");
    let bytes = client.read_to_end().expect("a response");
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("\r\n8\r\ntrailers\r\n0\r\nx-sum: 5\r\n\r\n"), "{text}");
}

#[test]
fn a_server_that_knows_no_alpn_is_spoken_to_in_http_2_all_the_same() {
    if Command::new("openssl").arg("version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "openssl is not installed");
        eprintln!("skipped: openssl is not installed");
        return;
    }
    let port = Port::reserve().expect("a port");
    let dir = certificates();
    let mut server = Command::new("openssl")
        .args(["s_server", "-quiet", "-accept", &format!("127.0.0.1:{}", port.number())])
        .arg("-cert")
        .arg(dir.join("ec.pem"))
        .arg("-key")
        .arg(dir.join("ec.key"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("openssl");
    let mut answer = Vec::new();
    frame::write_settings(&mut answer, &[]);
    answer.extend(H2::bytes(kind::HEADERS, flag::END_HEADERS, 1, b"\x88"));
    answer.extend(H2::bytes(kind::DATA, flag::END_STREAM, 1, b"hello"));
    server.stdin.as_mut().expect("a pipe").write_all(&answer).expect("written");
    let inside = format!(
        "location / {{ proxy_pass https://127.0.0.1:{}; proxy_http_version 2; }}",
        port.number()
    );
    let proxy = start(Kind::Forebay, "", &inside);
    // It may not listen yet.
    assert!(
        wait_for(|| ask(proxy.addr(), &get("/")) == "200 hello", LIMIT),
        "{}",
        proxy.error_log()
    );
    wait_logged(&proxy, "upstream did not select \"h2\" by ALPN while SSL handshaking to upstream");
    let _ = server.kill();
    let _ = server.wait();
}

#[test]
fn checks_speak_http_1_where_requests_speak_http_2() {
    let dir = certificates().display();
    let back = "server { listen 127.0.0.1:{port2} ssl; http2 on; ssl_certificate DIR/ec.pem; \
        ssl_certificate_key DIR/ec.key; location / { return 200 $server_protocol; } \
        location = /health { access_log {prefix}/health.log v; return 200; } }";
    let http = format!(
        "log_format v $server_protocol; {} upstream o {{ server 127.0.0.1:{{port2}}; }}",
        back.replace("DIR", &dir.to_string())
    );
    let inside = "location / { proxy_pass https://o; proxy_http_version 2; \
        health_check interval=50ms mandatory uri=/health; }";
    let server = start(Kind::Forebay, &http, inside);
    assert!(
        wait_for(|| ask(server.addr(), &get("/")) == "200 HTTP/2.0", LIMIT),
        "{}",
        server.error_log()
    );
    let log = std::fs::read_to_string(server.prefix().join("health.log")).expect("a log");
    assert!(log.lines().next().is_some_and(|line| line.starts_with("HTTP/1.")), "{log}");
}
