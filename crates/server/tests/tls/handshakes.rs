//! Handshakes: what is agreed on, and the line in the log when there is nothing to agree on.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

/// What a connection agreed on, with the lines that openssl prints of it.
fn agreed(server: &Server, words: &[&str]) -> String {
    let said = s_client(server, words, &request("localhost"));
    let keep = |line: &&str| {
        [
            "New, ",
            "Reused, ",
            "Server Temp Key",
            "Peer signature type",
            "ALPN protocol",
            "subject=",
            "No ALPN",
        ]
        .iter()
        .any(|start| line.starts_with(start))
    };
    said.lines().filter(keep).map(|line| format!("{line}\n")).collect()
}

#[test]
fn versions_ciphers_curves_and_certificates_are_agreed_on_as_by_nginx() {
    if !have("openssl") {
        return;
    }
    let http = server(
        "ssl_certificate {certs}/ec.pem; ssl_certificate_key {certs}/ec.key; \
         ssl_certificate {certs}/rsa.pem; ssl_certificate_key {certs}/rsa.key; return 200 x;",
    );
    let asked: &[&[&str]] = &[
        &["-tls1_2"],
        &["-tls1_3"],
        &["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"],
        &["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
        &["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
        &["-tls1_3", "-curves", "P-384"],
        &["-tls1_3", "-curves", "P-256"],
        &["-tls1_3", "-sigalgs", "rsa_pss_rsae_sha256"],
        &["-tls1_2", "-sigalgs", "RSA+SHA256"],
        &["-alpn", "http/1.1"],
        &["-alpn", "http/1.0,http/1.1"],
        &["-servername", "localhost"],
        &["-noservername"],
    ];
    let [ours, theirs] = both(&http, |server| {
        asked.iter().map(|words| format!("{words:?}\n{}", agreed(server, words))).collect()
    });
    assert_eq!(ours, theirs);
}

/// The failure that the log tells of a client's handshake, without the detail behind OpenSSL's reason.
fn failure(server: &Server) -> String {
    let line = || {
        let log = server.error_log();
        let mut lines = log.lines().filter(|line| line.contains(" while SSL handshaking"));
        // Whoever started it looked whether it accepts, and said nothing.
        let silent = |line: &&str| line.contains("client closed connection while");
        let lines: Vec<&str> = lines.by_ref().collect();
        let probe = lines.iter().position(silent);
        let of_ours = lines.iter().enumerate().filter(|(at, _)| Some(*at) != probe);
        of_ours.map(|(_, line)| (*line).to_owned()).next()
    };
    assert!(wait_for(|| line().is_some(), LIMIT), "{}", server.error_log());
    let line = line().unwrap_or_default();
    let level = line.split(['[', ']']).nth(1).unwrap_or_default();
    let text =
        line.split_once('*').and_then(|(_, text)| text.split_once(' ')).unwrap_or_default().1;
    let (why, rest) = text.split_once(" while ").unwrap_or((text, ""));
    let why = match why.split_once("SSL routines::") {
        Some((before, reason)) => {
            let reason = reason.split([':', ')']).next().unwrap_or_default();
            format!("{before}SSL routines::{reason}")
        }
        None => why.to_owned(),
    };
    let rest = rest.replace(&server.addr().port().to_string(), "{port}");
    format!("[{level}] {why} while {rest}")
}

/// Each failure on servers of their own, as the log has one line of it.
fn failures(http: &str, play: impl Fn(&Server)) -> [String; 2] {
    both(http, |server| {
        play(server);
        failure(server)
    })
}

fn send(server: &Server, bytes: &[u8]) {
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(bytes).unwrap();
}

#[test]
fn a_client_without_a_common_cipher_is_logged_as_by_nginx() {
    if !have("openssl") {
        return;
    }
    let http = server("ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256;");
    let words = ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"];
    let [ours, theirs] = failures(&http, |server| {
        let heard = s_client(server, &words, "");
        assert!(heard.contains("SSL alert number 40"), "{heard}");
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("no shared cipher"), "{ours}");
}

#[test]
fn a_client_that_takes_no_signature_of_ours_is_told_so_by_the_right_alert() {
    if !have("openssl") {
        return;
    }
    let words = [
        (&["-tls1_2", "-sigalgs", "RSA+SHA256"][..], "no shared cipher"),
        (&["-tls1_3", "-sigalgs", "RSA-PSS+SHA256"], "no suitable signature algorithm"),
    ];
    for (words, why) in words {
        let [ours, theirs] = failures(&server("ssl_protocols TLSv1.2 TLSv1.3;"), |server| {
            let heard = s_client(server, words, "");
            assert!(heard.contains("SSL alert number 40"), "{heard}");
        });
        assert_eq!(ours, theirs);
        assert!(ours.contains(why), "{ours}");
    }
}

#[test]
fn a_client_of_another_version_is_logged_as_by_nginx() {
    if !have("openssl") {
        return;
    }
    let [ours, theirs] = failures(&server("ssl_protocols TLSv1.3;"), |server| {
        s_client(server, &["-tls1_2"], "");
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("unsupported protocol"), "{ours}");
}

#[test]
fn a_client_that_does_not_trust_the_certificate_is_logged_as_by_nginx() {
    if !have("curl") {
        return;
    }
    let [ours, theirs] = failures(&server(""), |server| {
        curl(server, &["--cacert", "{certs}/client-ca.pem", "https://localhost:{port}/"]);
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("tlsv1 alert unknown ca"), "{ours}");
}

#[test]
fn a_client_of_unknown_protocols_is_logged_as_by_nginx() {
    if !have("openssl") {
        return;
    }
    let [ours, theirs] = failures(&server(""), |server| {
        s_client(server, &["-alpn", "imap"], "");
    });
    assert_eq!(ours, theirs);
}

#[test]
fn a_client_that_says_nothing_is_logged_as_by_nginx() {
    let [ours, theirs] = failures(&server(""), |server| send(server, b""));
    assert_eq!(ours, theirs);
    assert!(ours.starts_with("[info] client closed connection while"), "{ours}");
}

#[test]
fn a_client_that_closes_in_the_midst_is_logged_as_by_nginx() {
    let hello = [&[22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3][..], &[7; 60]].concat();
    let [ours, theirs] = failures(&server(""), |server| send(server, &hello));
    assert_eq!(ours, theirs);
    assert!(ours.contains("peer closed connection in SSL handshake"), "{ours}");
}

#[test]
fn a_client_that_takes_too_long_is_logged_as_by_nginx() {
    let http = server("client_header_timeout 100ms;");
    let [ours, theirs] = failures(&http, |server| {
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        stream.write_all(&[22, 3, 1, 0, 200, 1]).unwrap();
        let _ = stream.read(&mut [0; 64]);
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("client timed out (110: Connection timed out)"), "{ours}");
}

#[test]
fn a_rejected_name_is_logged_as_by_nginx() {
    if !have("openssl") {
        return;
    }
    let http = format!(
        "server {{ listen 127.0.0.1:{{port}} ssl default_server; ssl_reject_handshake on; }} {}",
        server("server_name a.test; return 200 a;")
    );
    let [ours, theirs] = failures(&http, |server| {
        assert_eq!(curl(server, &["-k", "https://a.test:{port}/"]), "a");
        let said = s_client(server, &["-servername", "b.test"], "");
        assert!(said.contains("alert number 112"), "{said}");
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("handshake rejected"), "{ours}");
}

#[test]
fn a_name_that_is_none_ends_the_handshake() {
    if !have("openssl") {
        return;
    }
    let server = forebay(&server("server_name a.test; return 200 a;"));
    for name in ["a-.test", "a.test:443", "../a.test"] {
        let said = s_client(&server, &["-servername", name], "");
        assert!(said.contains("alert illegal parameter"), "{name}\n{said}");
    }
    for name in ["127.0.0.1", "a_b.test", "a.test."] {
        let said = s_client(&server, &["-servername", name], "");
        assert!(said.contains("BEGIN CERTIFICATE"), "{name}\n{said}");
    }
}

#[test]
fn an_unreadable_certificate_of_a_name_fails_that_handshake_alone() {
    if !have("openssl") {
        return;
    }
    let http = server(
        "ssl_certificate {prefix}/$ssl_server_name.pem; ssl_certificate_key \
         {prefix}/$ssl_server_name.key; return 200 $ssl_server_name;",
    );
    let [ours, theirs] = both(&http, |server| {
        for end in ["pem", "key"] {
            let from = certificates().join(format!("other.{end}"));
            let to = server.prefix().join(format!("other.example.{end}"));
            fs::write(&to, fs::read(from).unwrap()).unwrap();
        }
        let found = curl(server, &["--cacert", "{certs}/ca.pem", "https://other.example:{port}/"]);
        s_client(server, &["-servername", "a.test"], "");
        let said = ["cannot load certificate", "cert cb error"].map(|what| logged(server, what));
        let log = server.error_log();
        let last = log.lines().find(|line| line.contains("cert cb error")).unwrap_or_default();
        let level = last.split(['[', ']']).nth(1).unwrap_or_default();
        let said = said.concat().replace(&server.prefix().display().to_string(), "{prefix}");
        let said = said.replace(&server.addr().port().to_string(), "{port}");
        format!("{found}\n{level}\n{said}")
    });
    assert_eq!(ours, theirs);
}

#[test]
fn certificates_with_variables_are_kept_as_long_as_the_cache_says() {
    if !have("curl") {
        return;
    }
    let http = |cache: &str| {
        server(&format!(
            "ssl_certificate_cache {cache}; ssl_certificate {{prefix}}/$ssl_server_name.pem; \
             ssl_certificate_key {{prefix}}/$ssl_server_name.key; return 200 $ssl_server_name;"
        ))
    };
    for (cache, kept) in [("max=4 inactive=1h valid=1h", true), ("off", false)] {
        let server = forebay(&http(cache));
        let files = ["pem", "key"].map(|end| server.prefix().join(format!("localhost.{end}")));
        for (file, end) in files.iter().zip(["pem", "key"]) {
            fs::write(file, fs::read(certificates().join(format!("ec.{end}"))).unwrap()).unwrap();
        }
        let ask = || curl(&server, &["-k", "https://localhost:{port}/"]);
        assert_eq!(ask(), "localhost");
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
        assert_eq!(ask() == "localhost", kept, "{cache}");
    }
}

#[test]
fn commands_of_openssl_are_obeyed() {
    if !have("openssl") {
        return;
    }
    let preferring = "Options ServerPreference,PrioritizeChaCha";
    let cases: [(&str, &[&str], &str); 10] = [
        ("Ciphersuites TLS_CHACHA20_POLY1305_SHA256", &["-tls1_3"], "TLS_CHACHA20_POLY1305_SHA256"),
        (
            "CipherString ECDHE-ECDSA-AES128-GCM-SHA256",
            &["-tls1_2"],
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
        ("Curves P-384", &["-tls1_3"], "ECDH, secp384r1"),
        ("MaxProtocol TLSv1.2", &[], "New, TLSv1.2"),
        ("MaxProtocol None", &["-tls1_3"], "New, TLSv1.3"),
        ("MinProtocol TLSv1.3", &["-tls1_2"], "alert protocol version"),
        // A server's order, and those who would rather have the other.
        (
            preferring,
            &["-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384"],
            "TLS_CHACHA20_POLY1305_SHA256",
        ),
        (
            preferring,
            &["-ciphersuites", "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"],
            "TLS_CHACHA20_POLY1305_SHA256",
        ),
        (
            "Options ServerPreference",
            &["-ciphersuites", "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384"],
            "TLS_AES_256_GCM_SHA384",
        ),
        (
            "Options -ServerPreference",
            &["-ciphersuites", "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384"],
            "TLS_AES_128_GCM_SHA256",
        ),
    ];
    for (command, words, want) in cases {
        let http = server(&format!("ssl_conf_command {command}; return 200 x;"));
        for said in both(&http, |server| s_client(server, words, &request("localhost"))) {
            assert!(said.contains(want), "{command}\n{said}");
        }
    }
}

#[test]
fn garbage_within_a_handshake_is_a_client_s_fault() {
    let hello = [&[22, 3, 1, 0, 5, 1, 0, 0, 1, 0][..], &[22, 3, 1, 0, 2, 9, 9]].concat();
    let server = forebay(&server(""));
    send(&server, &hello);
    let said = failure(&server);
    assert!(said.starts_with("[info] SSL_do_handshake() failed (SSL: error:"), "{said}");
}
