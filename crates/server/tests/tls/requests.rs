//! Requests over TLS: which server answers them, what they know of their connection, and what they are
//! refused with because of it.

use super::*;

const SAID: &str = "return 200 \"$server_name|$ssl_client_verify|$ssl_client_s_dn|$ssl_client_i_dn|\
    $ssl_client_serial|$ssl_client_fingerprint|$ssl_client_v_start|$ssl_client_v_end|\
    $ssl_client_v_remain|$ssl_client_s_dn_legacy|$ssl_client_i_dn_legacy\\n\";";

pub fn policies() -> String {
    let verifies = |name: &str, more: &str| {
        server(&format!(
            "server_name {name}; ssl_client_certificate {{certs}}/client-ca.pem; {more} {SAID}"
        ))
    };
    [
        server(&format!("server_name a.test; {SAID}")),
        verifies("b.test", "ssl_verify_client on;"),
        verifies("c.test", "ssl_verify_client optional; ssl_crl {certs}/client-ca.crl;"),
        verifies("d.test", "ssl_verify_client optional_no_ca;"),
    ]
    .concat()
}

#[test]
fn client_certificates_are_judged_as_by_nginx() {
    if !have("curl") {
        return;
    }
    let clients = ["", "client", "stranger", "expired-client", "revoked", "deep"];
    let [ours, theirs] = both(&policies(), |server| {
        let mut said = String::new();
        for host in ["a.test", "b.test", "c.test", "d.test"] {
            for client in clients {
                let url = format!("https://{host}:{{port}}/");
                let mut words = vec!["-k", "-w", "%{http_code}\n", &url];
                let (cert, key) =
                    (format!("{{certs}}/{client}.pem"), format!("{{certs}}/{client}.key"));
                if !client.is_empty() {
                    words.extend(["--cert", &cert, "--key", &key]);
                }
                let answer = curl(server, &words);
                // The built-in pages name their server.
                let lines = answer.lines().filter(|line| !line.starts_with("<hr>"));
                said += &format!("{host} {client}\n{}\n", lines.collect::<Vec<_>>().join("\n"));
            }
        }
        said
    });
    assert_eq!(ours, theirs);
}

#[test]
fn the_connection_s_variables_are_nginx_s() {
    if !have("curl") {
        return;
    }
    let http = server(
        "ssl_verify_client optional_no_ca; return 200 \
         \"$ssl_protocol|$ssl_cipher|$ssl_ciphers|$ssl_curve|$ssl_curves|$ssl_server_name|$https|\
         $scheme|$ssl_session_reused|$ssl_early_data|$ssl_client_escaped_cert|\
         $ssl_client_raw_cert|$ssl_client_cert|$server_port\\n\";",
    );
    let asked: &[&[&str]] = &[
        &["https://localhost:{port}/"],
        &["https://127.0.0.1:{port}/"],
        &["--tls-max", "1.2", "https://localhost:{port}/"],
        &["--curves", "P-256:P-384", "https://localhost:{port}/"],
        &[
            "-i",
            "--cert",
            "{certs}/client.pem",
            "--key",
            "{certs}/client.key",
            "https://localhost:{port}/",
        ],
    ];
    let [ours, theirs] = both(&http, |server| {
        let ask = |words: &&[&str]| curl(server, &[&["-k"], *words].concat());
        let lines: String = asked.iter().map(ask).collect();
        let keep = |line: &&str| !line.starts_with("Date:") && !line.starts_with("Server:");
        lines.lines().filter(keep).map(|line| format!("{line}\n")).collect()
    });
    assert_eq!(ours, theirs);
}

#[test]
fn a_name_chosen_in_the_handshake_and_another_in_the_request_are_told_apart() {
    if !have("openssl") {
        return;
    }
    let asked = [
        ("a.test", "a.test"),
        ("a.test", "b.test"),
        ("b.test", "a.test"),
        ("c.test", "b.test"),
        ("b.test", "c.test"),
        ("B.test", "b.TEST:1"),
        ("nobody.test", "a.test"),
        ("nobody.test", "b.test"),
        ("a.test", "nobody.test"),
    ];
    let [ours, theirs] = both(&policies(), |server| {
        let ask = |(name, host): &(&str, &str)| {
            let words = ["-servername", name, "-quiet"];
            let said = s_client(server, &words, &request(host));
            let status = said.lines().find(|line| line.starts_with("HTTP/1.1"));
            format!("{name} {host} {}\n", status.unwrap_or(&said))
        };
        asked.iter().map(ask).collect()
    });
    assert_eq!(ours, theirs);
}

#[test]
fn a_handshake_chooses_by_exact_names_wildcards_and_expressions() {
    if !have("openssl") {
        return;
    }
    let of = |names: &str, certificate: &str| {
        let pair = format!(
            "ssl_certificate {{certs}}/{certificate}.pem; \
             ssl_certificate_key {{certs}}/{certificate}.key;"
        );
        server(&format!("server_name {names}; {pair} return 200 \"in $server_name $x\\n\";"))
    };
    // The first inherits nothing, the last everything.
    let http = format!(
        "ssl_certificate {{certs}}/chain.pem; ssl_certificate_key {{certs}}/chain.key; {} {} {} {}",
        of("a.test", "ec"),
        of("*.wild.test", "other"),
        of("'~^(?<x>r[0-9]+)\\.test$'", "other"),
        "server { listen 127.0.0.1:{port} ssl; server_name own.test; return 200 \"in own\\n\"; }",
    );
    let names = ["a.test", "A.TEST", "x.wild.test", "wild.test", "r12.test", "own.test", "z.test"];
    let [ours, theirs] = both(&http, |server| {
        let ask = |name: &&str| {
            let said = s_client(server, &["-servername", name], &request(name));
            let lines = said.lines().filter(|line| {
                line.starts_with("subject=")
                    || line.starts_with("issuer=")
                    || line.starts_with("in ")
            });
            format!("{name}: {}\n", lines.collect::<Vec<_>>().join(" "))
        };
        names.iter().map(ask).collect()
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("CN = other.example") && ours.contains("CA below"), "{ours}");
}

#[test]
fn refusals_are_logged_as_by_nginx_and_have_error_pages() {
    if !have("curl") {
        return;
    }
    let http = format!(
        "error_page 495 496 497 = /page; {}",
        server(
            "server_name localhost; ssl_client_certificate {certs}/client-ca.pem; \
             ssl_verify_client on; location / { return 200 in; } \
             location = /page { return 200 \"$status $scheme $ssl_client_verify\"; }"
        )
    );
    let [ours, theirs] = both(&http, |server| {
        let stranger = ["--cert", "{certs}/stranger.pem", "--key", "{certs}/stranger.key"];
        let answers = [
            curl(server, &["-k", "https://localhost:{port}/"]),
            curl(server, &[&["-k", "https://localhost:{port}/"], &stranger[..]].concat()),
            curl(server, &["-i", "http://localhost:{port}/"]),
        ];
        let mut said = answers.join("\n");
        for line in ["no required SSL certificate", "SSL certificate verify error", "plain HTTP"] {
            said += "\n";
            said += &logged(server, line).replace(&server.addr().port().to_string(), "{port}");
        }
        let keep = |line: &&str| !line.starts_with("Date:") && !line.starts_with("Server:");
        said.lines().filter(keep).map(|line| format!("{line}\n")).collect()
    });
    assert_eq!(ours, theirs);
}

#[test]
fn redirects_are_to_https_with_its_own_usual_port() {
    if !have("curl") {
        return;
    }
    let http = server(
        "location / { return 301 /x; } location /n { port_in_redirect off; return 301 /y; }",
    );
    let [ours, theirs] = both(&http, |server| {
        let ask = |path: &str| {
            let url = format!("https://localhost:{{port}}{path}");
            curl(server, &["-k", "-o", "/dev/null", "-w", "%{redirect_url}\n", &url])
        };
        ask("/") + &ask("/n")
    });
    assert_eq!(ours, theirs);
    assert_eq!(ours, "https://localhost:{port}/x\nhttps://localhost/y\n");
}

#[test]
fn a_proxy_header_comes_before_the_handshake() {
    if !have("curl") {
        return;
    }
    let http = "server { listen 127.0.0.1:{port} ssl proxy_protocol; \
         ssl_certificate {certs}/ec.pem; ssl_certificate_key {certs}/ec.key; \
         return 200 \"$proxy_protocol_addr $https\"; }";
    let [ours, theirs] = both(http, |server| {
        curl(server, &["-k", "--haproxy-protocol", "https://localhost:{port}/"])
    });
    assert_eq!((&*ours, &*theirs), ("127.0.0.1 on", "127.0.0.1 on"));
}

#[test]
fn large_bodies_go_both_ways() {
    if !have("curl") {
        return;
    }
    let http = server(
        "root {prefix}; client_max_body_size 0; location / { } \
         location /put/ { dav_methods PUT; create_full_put_path on; client_body_temp_path {prefix}/put; }",
    );
    let server = forebay(&http);
    let file = server.prefix().join("big");
    let bytes: Vec<u8> =
        (0..5_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&file, &bytes).unwrap();
    let (source, got) = (file.display().to_string(), server.prefix().join("got"));
    let target = got.display().to_string();
    curl(&server, &["-k", "-o", &target, "https://localhost:{port}/big"]);
    assert!(fs::read(&got).unwrap() == bytes);
    let put = curl(
        &server,
        &[
            "-k",
            "-T",
            &source,
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "https://localhost:{port}/put/big",
        ],
    );
    assert_eq!(put, "201");
    assert!(fs::read(server.prefix().join("put/big")).unwrap() == bytes);
}
