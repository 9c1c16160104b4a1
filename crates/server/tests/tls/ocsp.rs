//! Whether certificates are still good, asked of an authority while the server runs: of its own, to
//! staple the answer, and of clients'.

use std::process::Child;

use forebay_testkit::dns::{A, DnsServer, Record, Reply};

use super::*;

/// `openssl ocsp`, answering at `{port3}` of a server.
struct Responder(Child);

impl Responder {
    /// For what an authority signed: numbers that are good, and one that was revoked.
    fn start(server: &Server, ca: &str) -> Responder {
        let dir = certificates();
        let index = dir.join(format!("{ca}-{}.index", server.pid()));
        let said = index.with_extension("said");
        let line = |state: &str, revoked: &str, serial: u32| {
            format!("{state}\t491231235959Z\t{revoked}\t{serial:02X}\tunknown\t/CN={serial}\n")
        };
        let lines = [
            line("V", "", 1),
            line("V", "", 11),
            line("V", "", 12),
            line("V", "", 13),
            line("R", "220101000000Z", 66),
        ];
        fs::write(&index, lines.concat()).unwrap();
        let output = fs::File::create(&said).unwrap();
        let child = Command::new("openssl")
            .args(["ocsp", "-port", &server.addr_of(2).port().to_string(), "-nmin", "60"])
            .arg("-index")
            .arg(&index)
            .arg("-CA")
            .arg(dir.join(format!("{ca}.pem")))
            .arg("-rsigner")
            .arg(dir.join(format!("{ca}.pem")))
            .arg("-rkey")
            .arg(dir.join(format!("{ca}.key")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        // A connection without a request would end it.
        let up = || fs::read_to_string(&said).is_ok_and(|said| said.contains("waiting for OCSP"));
        assert!(wait_for(up, LIMIT));
        Responder(child)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_staple_is_fetched_and_shown() {
    if !have("openssl") {
        return;
    }
    let http = server(
        "ssl_stapling on; ssl_stapling_verify on; ssl_trusted_certificate {certs}/ca.pem; \
         ssl_stapling_responder http://127.0.0.1:{port3}; return 200 x;",
    );
    for play in both(&http, |server| {
        let _responder = Responder::start(server, "ca");
        let stapled = || {
            let said = s_client(server, &["-status"], &request("localhost"));
            said.contains("OCSP Response Status: successful") && said.contains("Cert Status: good")
        };
        wait_for(stapled, LIMIT).to_string()
    }) {
        assert_eq!(play, "true");
    }
}

#[test]
fn all_addresses_of_a_responder_are_asked() {
    if !have("openssl") {
        return;
    }
    // Nobody can be reached at the first.
    let addrs = ["127.255.255.255", "127.0.0.1"].map(|ip| Record::addr("o.test", 60, ip));
    let dns = DnsServer::start(move |query| match query.kind {
        A => vec![Reply::records(query, &addrs)],
        _ => vec![Reply::records(query, &[])],
    });
    let http = server(
        "ssl_stapling on; ssl_trusted_certificate {certs}/ca.pem; \
         ssl_stapling_responder http://o.test:{port3}; return 200 x;",
    );
    let server = forebay(&format!("resolver {}; {http}", dns.addr()));
    let _responder = Responder::start(&server, "ca");
    let stapled = || {
        let said = s_client(&server, &["-status"], &request("localhost"));
        said.contains("OCSP Response Status: successful")
    };
    assert!(wait_for(stapled, LIMIT), "{}", server.error_log());
}

#[test]
fn a_responder_that_is_not_there_is_told_and_no_handshake_waits_for_it() {
    if !have("openssl") {
        return;
    }
    let server = forebay(&server(
        "ssl_stapling on; ssl_trusted_certificate {certs}/ca.pem; \
         ssl_stapling_responder http://127.0.0.1:{port3}; return 200 x;",
    ));
    let said = s_client(&server, &["-status"], &request("localhost"));
    assert!(said.contains("OCSP response: no response sent"), "{said}");
    let said = logged(&server, "connect()");
    assert!(said.contains("while requesting certificate status, responder: 127.0.0.1"), "{said}");
    let (peer, file) = (server.addr_of(2), certificates().join("ec.pem"));
    logged(&server, &format!(", peer: {peer}, certificate: \"{}\"", file.display()));
}

/// Makes `staple.der`, about `ec.pem`.
fn write_staple() {
    let dir = certificates();
    fs::write(dir.join("staple.index"), "V\t491231235959Z\t\t01\tunknown\t/CN=x\n").unwrap();
    let made = Command::new("openssl")
        .current_dir(dir)
        .args(["ocsp", "-index", "staple.index", "-CA", "ca.pem", "-rsigner", "ca.pem"])
        .args(["-rkey", "ca.key", "-issuer", "ca.pem", "-cert", "ec.pem", "-ndays", "7"])
        .args(["-respout", "staple.der"])
        .output()
        .unwrap();
    assert!(dir.join("staple.der").is_file(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn a_staple_of_a_file_is_shown() {
    if !have("openssl") {
        return;
    }
    write_staple();
    let http = server("ssl_stapling on; ssl_stapling_file {certs}/staple.der; return 200 x;");
    let [ours, theirs] = both(&http, |server| {
        let said = s_client(server, &["-status"], &request("localhost"));
        said.contains("OCSP Response Status: successful").to_string()
    });
    assert_eq!((&*ours, &*theirs), ("true", "true"));
}

#[test]
fn a_staple_of_a_file_is_for_the_certificate_that_it_speaks_of() {
    if !have("openssl") {
        return;
    }
    write_staple();
    let server = forebay(&server(
        "ssl_certificate {certs}/rsa.pem; ssl_certificate_key {certs}/rsa.key; \
         ssl_certificate {certs}/ec.pem; ssl_certificate_key {certs}/ec.key; \
         ssl_stapling on; ssl_stapling_file {certs}/staple.der; return 200 x;",
    ));
    for (signature, is_stapled) in
        [("ecdsa_secp256r1_sha256", true), ("rsa_pss_rsae_sha256", false)]
    {
        let said = s_client(&server, &["-status", "-sigalgs", signature], &request("localhost"));
        assert!(said.contains("BEGIN CERTIFICATE"), "{said}");
        assert_eq!(said.contains("OCSP Response Status: successful"), is_stapled, "{signature}");
    }
}

#[test]
fn what_cannot_be_stapled_is_warned_of() {
    let cases = [
        ("", "\"ssl_stapling\" ignored, issuer certificate not found for certificate"),
        (
            "ssl_trusted_certificate {certs}/ca.pem;",
            "\"ssl_stapling\" ignored, no OCSP responder URL in the certificate",
        ),
        (
            "ssl_trusted_certificate {certs}/ca.pem; ssl_stapling_responder https://x/;",
            "\"ssl_stapling\" ignored, invalid URL prefix in OCSP responder \"https://x/\" in the \
             certificate \"",
        ),
    ];
    for (more, want) in cases {
        let http = server(&format!("ssl_stapling on; {more}"));
        let [ours, theirs] = both(&http, |server| {
            let said = server.output() + &server.error_log();
            said.contains(want).to_string()
        });
        assert_eq!((&*ours, &*theirs), ("true", "true"), "{want}");
    }
}

#[test]
fn clients_are_asked_about_as_by_nginx() {
    if !have("openssl") {
        return;
    }
    let http = server(
        "ssl_verify_client on; ssl_client_certificate {certs}/client-ca.pem; ssl_ocsp on; \
         ssl_ocsp_responder http://127.0.0.1:{port3}/; ssl_ocsp_cache shared:O:1m; \
         error_page 495 =200 /page; location = /page { return 200 \"no $ssl_client_verify\"; } \
         location / { return 200 \"in $ssl_client_verify\"; }",
    );
    let [ours, theirs] = both(&http, |server| {
        let ask = |client: &str| {
            let (cert, key) =
                (format!("{{certs}}/{client}.pem"), format!("{{certs}}/{client}.key"));
            let url = "https://localhost:{port}/";
            curl(server, &["-k", "--cert", &cert, "--key", &key, url]) + "\n"
        };
        let responder = Responder::start(server, "client-ca");
        let first = ask("client") + &ask("revoked");
        // What was answered is remembered.
        drop(responder);
        first + &ask("client") + &ask("revoked")
    });
    assert_eq!(ours, theirs);
    assert_eq!(ours, "in SUCCESS\nno FAILED:certificate revoked\n".repeat(2));
}

#[test]
fn a_client_is_not_let_in_without_an_answer() {
    if !have("curl") {
        return;
    }
    let cases = [
        ("ssl_ocsp_responder http://127.0.0.1:{port3}/;", ", responder: 127.0.0.1, peer: 127"),
        ("", "no OCSP responder URL in certificate while requesting certificate status"),
    ];
    for (more, why) in cases {
        let server = forebay(&server(&format!(
            "ssl_verify_client on; ssl_client_certificate {{certs}}/client-ca.pem; ssl_ocsp leaf; \
             {more} return 200 in;",
        )));
        let words = ["-k", "--cert", "{certs}/client.pem", "--key", "{certs}/client.key"];
        let said = curl(&server, &[&words[..], &["https://localhost:{port}/"]].concat());
        assert!(said.contains("The SSL certificate error"), "{said}");
        logged(&server, why);
        logged(&server, "client SSL certificate verify error: certificate status request failed");
    }
}

#[test]
fn settings_of_ocsp_have_nginx_s_texts() {
    let auth = "ssl_client_certificate {certs}/client-ca.pem;";
    let cases = [
        (
            format!("{auth} ssl_verify_client optional_no_ca; ssl_ocsp on;"),
            "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"",
        ),
        (
            format!("{auth} ssl_verify_client on; ssl_ocsp on; ssl_ocsp_responder https://x;"),
            "invalid URL prefix in OCSP responder \"https://x\" in \"ssl_ocsp_responder\"",
        ),
        ("ssl_ocsp_cache shared:a;".to_owned(), "invalid OCSP cache \"shared:a\""),
        ("ssl_ocsp_cache shared:a:1k;".to_owned(), "OCSP cache \"shared:a:1k\" is too small"),
        ("ssl_stapling on; ssl_stapling_file {certs}/ec.pem;".to_owned(), "d2i_OCSP_RESPONSE_bio("),
    ];
    for (more, want) in cases {
        for kind in [Kind::Forebay, Kind::Nginx] {
            if kind == Kind::Nginx && !have("nginx") {
                continue;
            }
            let error = builder(kind, &server(&more)).start().expect_err("it must not start");
            assert!(error.output.contains(want), "{kind} {more}\n{error}");
        }
    }
}
