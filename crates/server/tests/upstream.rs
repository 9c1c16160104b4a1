//! Groups of servers, from outside: health checks, names that change, and what a reload keeps.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use forebay_testkit::{
    Kind, Server, Signal, certs,
    dns::{A, DnsServer, Record, Reply},
    origin::Origin,
    origin_h2::H2,
    raw::Client,
    tempdir::TempDir,
    wait_for,
};

const LIMIT: Duration = Duration::from_secs(20);

/// A server that answers with its name; `/health` with 200 while it is well, else with 500.
struct Backend {
    addr: SocketAddr,
    well: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
}

fn backend(at: &str, name: &'static str) -> Backend {
    let listener = TcpListener::bind(at).unwrap();
    let addr = listener.local_addr().unwrap();
    let well = Arc::new(AtomicBool::new(true));
    let connections = Arc::<AtomicUsize>::default();
    let (is_well, count) = (well.clone(), connections.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let (is_well, count) = (is_well.clone(), count.clone());
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut buf = [0; 1024];
                let mut counted = false;
                while let Ok(read @ 1..) = stream.read(&mut buf) {
                    head.extend_from_slice(&buf[..read]);
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let checked = head.starts_with(b"GET /health");
                    if !checked && !std::mem::replace(&mut counted, true) {
                        count.fetch_add(1, SeqCst);
                    }
                    head.clear();
                    let status =
                        if checked && !is_well.load(SeqCst) { "500 Ill" } else { "200 OK" };
                    let length = name.len();
                    let answer =
                        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{name}");
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    Backend { addr, well, connections }
}

fn conf(http: &str, location: &str) -> String {
    format!(
        "worker_processes 2;
        error_log {{prefix}}/error.log notice;
        events {{ }}
        http {{
            {{temp_paths}}
            {http}
            server {{
                listen 127.0.0.1:{{port}};
                location / {{ {location} }}
                location /status {{ check_status csv; }}
            }}
        }}"
    )
}

fn start(text: &str) -> Server {
    Server::builder(Kind::Forebay, text).binary(env!("CARGO_BIN_EXE_forebay")).start().unwrap()
}

fn get(server: &Server, target: &str) -> String {
    let mut client = Client::connect(server.addr()).unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).unwrap();
    let response = client.read_response(false).unwrap();
    match response.status {
        200 => String::from_utf8_lossy(&response.body).into_owned(),
        status => status.to_string(),
    }
}

/// Who answers eight requests, each once, in order of name.
fn who(server: &Server) -> String {
    let mut all: Vec<_> = (0..8).map(|_| get(server, "/")).collect();
    all.sort();
    all.dedup();
    all.join(" ")
}

fn until(server: &Server, want: &str) {
    let got = || who(server) == want;
    assert!(wait_for(got, LIMIT), "{} and not {want}: {}", who(server), server.error_log());
}

#[test]
fn a_server_that_is_not_well_gets_no_requests() {
    let (a, b) = (backend("127.0.0.1:0", "a"), backend("127.0.0.1:0", "b"));
    let group = format!("upstream u {{ server {}; server {}; }}", a.addr, b.addr);
    let check = "proxy_pass http://u; health_check interval=50ms uri=/health;";
    let server = start(&conf(&group, check));
    until(&server, "a b");
    b.well.store(false, SeqCst);
    until(&server, "a");
    let told = format!(
        "peer is unhealthy while checking status code, health check \"\" of peer {} in upstream \"u\"",
        b.addr
    );
    assert!(server.error_log().contains(&told), "{}", server.error_log());
    // A reload knows.
    server.rewrite_conf(&conf(&group, &format!("{check} add_header X y;"))).unwrap();
    server.signal(Signal::SIGHUP);
    assert!((0..4).all(|_| who(&server) == "a"));
    b.well.store(true, SeqCst);
    until(&server, "a b");
    a.well.store(false, SeqCst);
    b.well.store(false, SeqCst);
    until(&server, "502");
    assert!(server.error_log().contains("no live upstreams while connecting to upstream"));
}

#[test]
fn a_match_may_require_what_variables_make_of_an_answer() {
    let (a, b) = (backend("127.0.0.1:0", "a"), backend("127.0.0.1:0", "b"));
    let group = format!(
        "upstream u {{ server {}; server {}; }} \
         map $upstream_status$upstream_http_content_length $well {{ 2001 $upstream_addr; default 0; }} \
         match well {{ status 200-599; require $upstream_response_time $well; }}",
        a.addr, b.addr
    );
    let check = "proxy_pass http://u; health_check interval=50ms uri=/health match=well;";
    let server = start(&conf(&group, check));
    until(&server, "a b");
    b.well.store(false, SeqCst);
    until(&server, "a");
    let told = format!(
        "peer is unhealthy while checking variables, health check \"well\" of peer {} in upstream \"u\"",
        b.addr
    );
    assert!(server.error_log().contains(&told), "{}", server.error_log());
    b.well.store(true, SeqCst);
    until(&server, "a b");
}

#[test]
fn checks_speak_tls_where_requests_do_and_see_who_answers() {
    let dir = TempDir::new().unwrap();
    certs::write(dir.path()).unwrap();
    let certs = dir.path().display();
    let well = "return 200 well;";
    let http = |name: &str| {
        format!(
            "ssl_certificate {certs}/ec.pem; ssl_certificate_key {certs}/ec.key; \
             server {{ listen 127.0.0.1:{{port2}} ssl; location / {{ {well} }} }} \
             upstream u {{ server 127.0.0.1:{{port2}}; }} \
             proxy_ssl_verify on; proxy_ssl_trusted_certificate {certs}/ca.pem; \
             proxy_ssl_name {name};"
        )
    };
    let location = "proxy_pass https://u; health_check interval=50ms mandatory uri=/health;";
    let good = start(&conf(&http("localhost"), location));
    until(&good, "well");
    let bad = start(&conf(&http("elsewhere.test"), &location.replace("mandatory", "")));
    let told = "peer is unhealthy while SSL handshaking to upstream";
    assert!(wait_for(|| bad.error_log().contains(told), LIMIT), "{}", bad.error_log());
}

const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// A gRPC server that says of its health what `status` is, and answers all else with its name.
fn grpc_server(status: &Arc<AtomicUsize>) -> Origin {
    let status = status.clone();
    Origin::start(move |conn| {
        let Some(mut h2) = H2::serve(conn, &[])? else { return Ok(()) };
        while let Some(asked) = h2.request()? {
            let stream = asked.stream;
            if asked.path() != HEALTH {
                h2.ok(stream, b"a")?;
                continue;
            }
            h2.head(stream, &[(":status", "200"), ("content-type", "application/grpc")], false)?;
            h2.data(stream, &[0, 0, 0, 0, 2, 8, status.load(SeqCst) as u8], false)?;
            h2.head(stream, &[("grpc-status", "0")], true)?;
        }
        Ok(())
    })
}

#[test]
fn grpc_servers_are_asked_for_their_health() {
    const SERVING: usize = 1;
    let status = Arc::new(AtomicUsize::new(2));
    let origin = grpc_server(&status);
    let group = format!("upstream u {{ server {}; }}", origin.addr());
    let location = "proxy_http_version 2; proxy_pass http://u; \
                    health_check interval=20ms mandatory keepalive_time=1h type=grpc grpc_service=a.B;";
    let server = start(&conf(&group, location));
    let asked = || origin.requests().iter().filter(|r| r.line().contains(HEALTH)).count();
    assert!(wait_for(|| asked() >= 3, LIMIT), "{}", server.error_log());
    assert_eq!(get(&server, "/"), "502");
    status.store(SERVING, SeqCst);
    until(&server, "a");
    let before = asked();
    assert!(wait_for(|| asked() >= before + 10, LIMIT));
    status.store(0, SeqCst);
    until(&server, "502");
    let told = "peer is unhealthy while checking serving status, health check \"\" of peer";
    assert!(server.error_log().contains(told), "{}", server.error_log());
    let first = &origin.requests()[0];
    assert_eq!(first.body, b"\0\0\0\0\x05\x0a\x03a.B");
    for (name, value) in
        [("authority", "u"), ("te", "trailers"), ("content-type", "application/grpc")]
    {
        assert_eq!(first.value(name).as_deref(), Some(value));
    }
}

#[test]
fn grpc_servers_are_asked_over_tls_whatever_requests_speak() {
    let dir = TempDir::new().unwrap();
    certs::write(dir.path()).unwrap();
    let certs = dir.path().display();
    let status = Arc::new(AtomicUsize::new(1));
    let origin = grpc_server(&status);
    // Somebody who agrees on HTTP/2 by ALPN alone.
    let http = format!(
        "ssl_certificate {certs}/ec.pem; ssl_certificate_key {certs}/ec.key; \
         log_format asked '$ssl_alpn_protocol $server_protocol $request_uri'; \
         server {{ listen 127.0.0.1:{{port2}} ssl; http2 on; access_log {{prefix}}/asked.log asked; \
             location / {{ proxy_http_version 2; proxy_pass_trailers on; proxy_pass http://{}; }} }} \
         upstream u {{ server 127.0.0.1:{{port2}}; }} \
         proxy_ssl_verify on; proxy_ssl_trusted_certificate {certs}/ca.pem; \
         proxy_ssl_name localhost;",
        origin.addr()
    );
    let location = "proxy_pass https://u; health_check interval=50ms mandatory type=grpc;";
    let server = start(&conf(&http, location));
    until(&server, "a");
    status.store(3, SeqCst);
    until(&server, "502");
    let log = std::fs::read_to_string(server.prefix().join("asked.log")).unwrap();
    assert!(log.contains(&format!("h2 HTTP/2.0 {HEALTH}")), "{log}");
    assert!(log.lines().any(|line| line.contains("HTTP/1.") && line.ends_with(" /")), "{log}");
}

#[test]
fn a_server_must_pass_before_it_gets_requests() {
    let (a, b) = (backend("127.0.0.1:0", "a"), backend("127.0.0.1:0", "b"));
    b.well.store(false, SeqCst);
    let group = format!(
        "upstream u {{ server {}; server {}; check interval=50 rise=1 fall=1 type=http; \
         check_http_send \"GET /health HTTP/1.0\\r\\n\\r\\n\"; }}",
        a.addr, b.addr
    );
    let server = start(&conf(&group, "proxy_pass http://u;"));
    until(&server, "a");
    let page = get(&server, "/status");
    let rows: Vec<&str> = page.lines().collect();
    assert!(rows[0].starts_with(&format!("0,u,{},up,", a.addr)), "{page}");
    assert!(rows[1].starts_with(&format!("1,u,{},down,0,", b.addr)), "{page}");
    b.well.store(true, SeqCst);
    until(&server, "a b");
    assert!(server.error_log().contains(&format!("enable check peer: {} ", b.addr)));
}

#[test]
fn kept_connections_and_failures_survive_a_reload() {
    let a = backend("127.0.0.1:0", "a");
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let group = format!(
        "upstream u {{ server {}; keepalive 4; }} \
         upstream v {{ server {dead} weight=9 fail_timeout=1h; server {}; keepalive 0; }}",
        a.addr, a.addr
    );
    let location = |n: u32| {
        format!(
            "proxy_http_version 1.1; proxy_set_header Connection \"\"; add_header X {n}; \
             if ($arg_v) {{ proxy_pass http://v; }} proxy_pass http://u;"
        )
    };
    // One thread: it has kept a connection before it hears of the next request.
    let conf = |n| conf(&group, &location(n)).replace("worker_processes 2", "worker_processes 1");
    let server = start(&conf(1));
    assert!((0..4).all(|_| get(&server, "/") == "a"));
    assert_eq!(a.connections.load(SeqCst), 1);
    assert!((0..4).all(|_| get(&server, "/?v=1") == "a"));
    let refused = || server.error_log().matches("connect() failed (111").count();
    assert_eq!(refused(), 1, "{}", server.error_log());
    let before = a.connections.load(SeqCst);
    server.rewrite_conf(&conf(2)).unwrap();
    server.signal(Signal::SIGHUP);
    let is_new = || {
        let mut client = Client::connect(server.addr()).unwrap();
        client.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        client.read_response(false).unwrap().header("X") == Some(b"2")
    };
    assert!(wait_for(is_new, LIMIT));
    assert!((0..4).all(|_| get(&server, "/") == "a"));
    assert_eq!(a.connections.load(SeqCst), before);
    assert!((0..4).all(|_| get(&server, "/?v=1") == "a"));
    assert_eq!(refused(), 1, "{}", server.error_log());
}

#[test]
fn threads_use_each_other_s_connections() {
    let a = backend("127.0.0.1:0", "a");
    let group = format!("upstream u {{ server {}; keepalive 4; }}", a.addr);
    let location = "proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_pass http://u;";
    let server = start(&conf(&group, location));
    assert!((0..40).all(|_| get(&server, "/") == "a"));
    // A request may come before the connection of the one before is kept.
    assert!(a.connections.load(SeqCst) <= 4, "{}", a.connections.load(SeqCst));
}

#[test]
fn threads_use_each_other_s_connections_in_http_2() {
    let origin = Origin::start(|conn| {
        let Some(mut h2) = H2::serve(conn, &[])? else { return Ok(()) };
        while let Some(asked) = h2.request()? {
            h2.ok(asked.stream, asked.stream.to_string().as_bytes())?;
        }
        Ok(())
    });
    let group = format!("upstream u {{ server {}; keepalive 4; }}", origin.addr());
    let server = start(&conf(&group, "proxy_http_version 2; proxy_pass http://u;"));
    let highest = (0..40).filter_map(|_| get(&server, "/").parse::<u32>().ok()).max();
    assert!(origin.connections() <= 4, "{}", origin.connections());
    assert!(highest > Some(10), "{highest:?}");
}

#[test]
fn a_name_is_followed_and_one_that_does_not_resolve_stops_nobody() {
    let a = backend("127.0.0.1:0", "a");
    let b = backend(&format!("127.0.0.2:{}", a.addr.port()), "b");
    let moved = Arc::new(AtomicBool::new(false));
    let has_moved = moved.clone();
    let dns = DnsServer::start(move |query| {
        let ip = if has_moved.load(SeqCst) { "127.0.0.2" } else { "127.0.0.1" };
        match (&*query.name, query.kind) {
            ("back.test", A) => vec![Reply::records(query, &[Record::addr("back.test", 1, ip)])],
            ("back.test", _) => vec![Reply::records(query, &[])],
            _ => vec![Reply::code(query, 3)],
        }
    });
    let group = format!(
        "resolver {} valid=1s; upstream u {{ server back.test:{} resolve; \
         server nowhere.test:1 resolve; }}",
        dns.addr(),
        b.addr.port()
    );
    let server = start(&conf(&group, "proxy_pass http://u;"));
    until(&server, "a");
    moved.store(true, SeqCst);
    until(&server, "b");
    let log = server.error_log();
    assert!(log.contains("nowhere.test could not be resolved (3: Host not found)"), "{log}");
}
