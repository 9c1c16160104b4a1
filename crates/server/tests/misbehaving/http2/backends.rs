//! Real servers behind: Debian's nginx and Forebay itself, in the clear and over TLS.

use std::path::PathBuf;
use std::sync::OnceLock;

use forebay_testkit::case::FileSpec;
use forebay_testkit::{Kind, Server, certs};

use crate::{ask, get, is_held, wait_logged};

pub fn certificates() -> &'static PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let name = format!("{}/proxy2-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        let dir = PathBuf::from(name);
        std::fs::create_dir_all(&dir).expect("a directory");
        certs::write(&dir).expect("certificates");
        dir
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| b'a' + ((at.wrapping_mul(2_654_435_761) >> 13) % 26) as u8).collect()
}

const LARGE: usize = 2 << 20;

/// A server that speaks HTTP/2 and nothing else; `tls`: over TLS.
fn backend(kind: Kind, tls: bool) -> Server {
    let (listen, own) = match (kind, tls) {
        (Kind::Nginx, false) => ("http2", String::new()),
        (Kind::Nginx, true) => ("ssl http2", pair()),
        (Kind::Forebay, false) => ("", "http2 on;".to_owned()),
        (Kind::Forebay, true) => ("ssl", format!("http2 on; {}", pair())),
    };
    let conf = format!(
        "user root; worker_processes 1; error_log {{prefix}}/error.log info; events {{ }}
        http {{ {{temp_paths}} access_log off; client_max_body_size 0;
            server {{ listen 127.0.0.1:{{port}} {listen}; {own} root {{root}};
                location = /who {{ return 200 '$server_protocol $scheme $host $request_method'; }}
                location = /moved {{ return 302 /elsewhere; }}
                location = /none {{ return 204; }} }} }}"
    );
    let files = [FileSpec::new("large", pattern(LARGE)), FileSpec::new("small", b"small".to_vec())];
    let builder = Server::builder(kind, &conf).files(&files);
    let builder = match kind {
        Kind::Forebay => builder.binary(env!("CARGO_BIN_EXE_forebay")),
        Kind::Nginx => builder,
    };
    builder.start().unwrap_or_else(|e| panic!("{e}"))
}

fn pair() -> String {
    let dir = certificates().display();
    format!("ssl_certificate {dir}/ec.pem; ssl_certificate_key {dir}/ec.key;")
}

fn proxy_to(back: &Server, tls: bool, more: &str) -> Server {
    let http = format!("upstream o {{ server {}; keepalive 4; }}", back.addr());
    let scheme = if tls { "https" } else { "http" };
    let inside = format!(
        "location / {{ proxy_pass {scheme}://o; proxy_http_version 2; \
         proxy_set_header Host test; {more} }}"
    );
    crate::start(Kind::Forebay, &http, &inside)
}

#[test]
fn real_servers_are_spoken_to_in_the_clear_and_over_tls() {
    for kind in [Kind::Nginx, Kind::Forebay].into_iter().filter(|kind| is_held(*kind)) {
        for tls in [false, true] {
            let back = backend(kind, tls);
            let server = proxy_to(&back, tls, "");
            let what = format!("{kind} {tls}");
            let scheme = if tls { "https" } else { "http" };
            for _ in 0..3 {
                let want = format!("200 HTTP/2.0 {scheme} test GET");
                assert_eq!(
                    ask(server.addr(), &get("/who")),
                    want,
                    "{what}\n{}",
                    server.error_log()
                );
            }
            assert_eq!(ask(server.addr(), &get("/small")), "200 small", "{what}");
            assert_eq!(ask(server.addr(), &get("/absent")), "404", "{what}");
            assert!(ask(server.addr(), &get("/none")).starts_with("204"), "{what}");
            assert!(ask(server.addr(), &get("/moved")).starts_with("302"), "{what}");
            let got = ask(server.addr(), &get("/large"));
            assert!(got == format!("200 {}", pattern(LARGE).escape_ascii()), "{what}");
            let head = b"HEAD /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            assert_eq!(ask(server.addr(), head), "200 ", "{what}");
            let range =
                b"GET /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\nRange: bytes=1-2\r\n\r\n";
            assert_eq!(ask(server.addr(), range), "206 ma", "{what}");
            // A body that nobody wants: answered early, or read and thrown away.
            let body = pattern(300_000);
            let head = format!(
                "POST /who HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let post = [head.as_bytes(), &body].concat();
            let want = format!("200 HTTP/2.0 {scheme} test POST");
            assert_eq!(ask(server.addr(), &post), want, "{what}\n{}", server.error_log());
        }
    }
}

#[test]
fn a_server_of_http_1_over_tls_is_not_spoken_to_in_http_2() {
    for kind in [Kind::Nginx, Kind::Forebay].into_iter().filter(|kind| is_held(*kind)) {
        let conf = format!(
            "user root; error_log {{prefix}}/error.log info; events {{ }} http {{ {{temp_paths}} \
             server {{ listen 127.0.0.1:{{port}} ssl; {} return 200 one; }} }}",
            pair()
        );
        let builder = Server::builder(kind, &conf);
        let builder = match kind {
            Kind::Forebay => builder.binary(env!("CARGO_BIN_EXE_forebay")),
            Kind::Nginx => builder,
        };
        let back = builder.start().unwrap_or_else(|e| panic!("{e}"));
        let server = proxy_to(&back, true, "");
        assert_eq!(ask(server.addr(), &get("/")), "502", "{kind}");
        wait_logged(&server, "while SSL handshaking to upstream");
    }
}
