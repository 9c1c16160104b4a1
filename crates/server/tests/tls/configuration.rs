//! What is wrong with certificates and settings, as `-t` and a reload say it.

use super::*;
use forebay_testkit::Signal;

/// The first error of a configuration that must not start, with paths and places as they are.
fn error(kind: Kind, http: &str) -> String {
    let error = builder(kind, http).start().expect_err("it must not start");
    let line = error.output.lines().find(|line| line.contains("[emerg]"));
    let line = line.unwrap_or_else(|| panic!("{error}"));
    let text = line.split_once("[emerg] ").map_or(line, |(_, text)| text);
    // A log line has a process in front.
    let text = text.split_once("#0: ").map_or(text, |(_, text)| text);
    let text = text.replace(&certificates().display().to_string(), "{certs}");
    // The prefix is of another directory with each start.
    text.split(" in /").next().unwrap_or_default().to_owned()
}

const BOTH: &[(&str, &str)] = &[
    (
        "server { listen 127.0.0.1:{port} ssl; }",
        "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/ec.pem; }",
        "no \"ssl_certificate_key\" is defined for certificate \"{certs}/ec.pem\"",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/none.pem; \
         ssl_certificate_key {certs}/ec.key; }",
        "cannot load certificate \"{certs}/none.pem\": BIO_new_file() failed (SSL: \
         error:80000002:system library::No such file or directory:calling fopen({certs}/none.pem, \
         r) error:10000080:BIO routines::no such file)",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/ec.pem; \
         ssl_certificate_key {certs}/none.key; }",
        "cannot load certificate key \"{certs}/none.key\": BIO_new_file() failed (SSL: \
         error:80000002:system library::No such file or directory:calling fopen({certs}/none.key, \
         r) error:10000080:BIO routines::no such file)",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/ec.pem; \
         ssl_certificate_key {certs}/none.key; ssl_trusted_certificate {certs}/none.pem; }",
        "cannot load certificate key \"{certs}/none.key\": BIO_new_file() failed (SSL: \
         error:80000002:system library::No such file or directory:calling fopen({certs}/none.key, \
         r) error:10000080:BIO routines::no such file)",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/ec.key; \
         ssl_certificate_key {certs}/ec.key; }",
        "cannot load certificate \"{certs}/ec.key\": PEM_read_bio_X509_AUX() failed (SSL: \
         error:0480006C:PEM routines::no start line:Expecting: TRUSTED CERTIFICATE)",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/ec.pem; \
         ssl_certificate_key {certs}/other.key; }",
        "SSL_CTX_use_PrivateKey(\"{certs}/other.key\") failed (SSL: error:05800074:x509 \
         certificate routines::key values mismatch)",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/ec.pem; \
         ssl_certificate_key {certs}/ec.key; ssl_verify_client on; }",
        "no ssl_client_certificate",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/ec.pem; \
         ssl_certificate_key {certs}/ec.key; ssl_session_ticket_key {certs}/ec.pem; }",
        "\"{certs}/ec.pem\" must be 48 or 80 bytes",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_session_cache shared:a; }",
        "invalid session cache \"shared:a\"",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_session_cache shared:a:1k; }",
        "session cache \"shared:a:1k\" is too small",
    ),
    ("ssl_session_cache huge;", "invalid session cache \"huge\""),
    (
        "ssl_session_cache shared:a:1m; server { listen 127.0.0.1:{port}; \
         ssl_session_cache shared:a:2m; }",
        "the size 2097152 of shared memory zone \"a\" conflicts with already declared size 1048576",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/ec.pem; \
         ssl_certificate_key {certs}/ec.key; ssl_ciphers NONSENSE; }",
        "SSL_CTX_set_cipher_list(\"NONSENSE\") failed (SSL: error:0A0000B9:SSL routines::no cipher \
         match)",
    ),
    ("ssl_protocols TLSv1.4;", "invalid value \"TLSv1.4\""),
    ("ssl_verify_client maybe;", "invalid value \"maybe\""),
    (
        "ssl_password_file {certs}/none;",
        "open() \"{certs}/none\" failed (2: No such file or directory)",
    ),
    (
        "server { listen 127.0.0.1:{port} ssl; ssl_certificate {certs}/ec.pem; \
         ssl_certificate_key {certs}/ec.key; ssl_dhparam {certs}/none; }",
        "BIO_new_file(\"{certs}/none\") failed (SSL: error:80000002:system library::No such file \
         or directory:calling fopen({certs}/none, r) error:10000080:BIO routines::no such file)",
    ),
];

#[test]
fn what_is_wrong_is_said_in_nginx_s_words() {
    for (http, want) in BOTH {
        let said = error(Kind::Forebay, http);
        assert!(said.starts_with(want), "{http}\n{said}");
        if have("nginx") {
            let said = error(Kind::Nginx, http);
            assert!(said.starts_with(want), "nginx: {http}\n{said}");
        }
    }
}

#[test]
fn what_newer_versions_refuse_is_refused() {
    let cases = [
        (server("ssl on;"), "\"ssl\" directive was removed in nginx 1.25.1"),
        (server("ssl_ech_file x;"), "\"ssl_ech_file\" directive is not supported"),
        (
            server("ssl_conf_command Curves x;"),
            "SSL_CONF_cmd(\"Curves\", \"x\") failed: unknown curve",
        ),
        (
            server("ssl_conf_command Options NoSuch;"),
            "SSL_CONF_cmd(\"Options\", \"NoSuch\") failed",
        ),
        (server("ssl_conf_command Engine x;"), "SSL_CONF_cmd(\"Engine\", \"x\") failed"),
        (server("ssl_ecdh_curve none;"), "SSL_CTX_set1_curves_list(\"none\") failed"),
        (server("ssl_certificate_cache inactive=1s;"), "must have the \"max\" parameter"),
        (server("ssl_certificate_cache max=0;"), "invalid parameter \"max=0\""),
        (
            server("ssl_certificate {certs}/ec.pem; ssl_certificate_key engine:x:y;"),
            "keys of \"engine:\" are not supported",
        ),
        (
            server("ssl_certificate {certs}/ec.pem; ssl_certificate_key {certs}/ec-encrypted.key;"),
            "cannot load certificate key \"{certs}/ec-encrypted.key\": PEM_read_bio_PrivateKey()",
        ),
        (server("ssl_protocols TLSv1 TLSv1.1;"), "no protocol is left"),
    ];
    for (http, want) in cases {
        let said = error(Kind::Forebay, &http);
        assert!(said.contains(want), "{http}\n{said}");
    }
}

#[test]
fn a_chain_in_the_wrong_order_is_told_from_a_wrong_key() {
    let http =
        server("ssl_certificate {certs}/wrong-order.pem; ssl_certificate_key {certs}/chain.key;");
    let error = builder(Kind::Forebay, &http).start().expect_err("it must not start");
    let want = "help: the certificate of this key must come first in its file";
    assert!(error.output.contains("key values mismatch") && error.output.contains(want), "{error}");
}

#[test]
fn an_address_that_is_listened_on_in_two_ways_is_warned_of() {
    let certificate = "ssl_certificate {certs}/ec.pem; ssl_certificate_key {certs}/ec.key;";
    let http = |first: &str, second: &str| {
        format!(
            "{certificate} server {{ listen 127.0.0.1:{{port}} {first}; server_name a.test; }} \
             server {{ listen 127.0.0.1:{{port}} {second}; server_name b.test; }}"
        )
    };
    let cases = [
        ("ssl", "ssl", false),
        ("ssl", "", false),
        ("", "ssl", false),
        ("ssl", "proxy_protocol", true),
        ("ssl backlog=9", "ssl", false),
        ("backlog=9", "ssl", true),
        ("ssl", "backlog=9", true),
    ];
    for (first, second, warned) in cases {
        let said = warnings(&http(first, second));
        let found = said.contains("protocol options redefined for 127.0.0.1:");
        assert_eq!(found, warned, "{first} {second}: {said}");
    }
}

/// What a start that succeeds has warned of.
fn warnings(http: &str) -> String {
    let server = forebay(http);
    server.output()
}

#[test]
fn what_is_doubtful_is_warned_of() {
    let own = |name: &str| {
        server(&format!(
            "ssl_certificate {{certs}}/{name}.pem; ssl_certificate_key {{certs}}/{name}.key;"
        ))
    };
    assert_eq!(warnings(&own("chain")), "");
    assert!(warnings(&own("expired")).contains("expired on Jan  2 00:00:00 2021 GMT"));
    let order = server("ssl_certificate {certs}/extra.pem; ssl_certificate_key {certs}/chain.key;");
    let dir = certificates();
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    fs::write(dir.join("extra.pem"), read("chain.pem") + &read("other.pem")).unwrap();
    assert!(warnings(&order).contains("did not issue the one before it"), "{}", warnings(&order));
    fs::write(dir.join("open.key"), read("ec.key")).unwrap();
    fs::write(dir.join("open.pem"), read("ec.pem")).unwrap();
    assert!(warnings(&own("open")).contains("is readable by everybody (mode 0644)"));
}

#[test]
fn old_versions_are_left_out_with_a_word() {
    let said = warnings(&server("ssl_protocols TLSv1 TLSv1.1 TLSv1.2;"));
    assert!(said.contains("TLSv1 is left out") && said.contains("RFC 8996"), "{said}");
}

#[test]
fn ciphers_that_are_left_out_are_named() {
    let said =
        warnings(&server("ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:DHE-RSA-AES128-SHA:RC4-SHA;"));
    assert!(said.contains("[warn]") && said.contains("DHE-RSA-AES128-SHA"), "{said}");
    for usual in ["HIGH:!aNULL:!MD5", "ALL:!kEDH!ADH:RC4+RSA:+HIGH:+EXP"] {
        let server = forebay(&server(&format!("ssl_ciphers '{usual}'; return 200 x;")));
        assert_eq!(curl(&server, &["-k", "https://localhost:{port}/"]), "x", "{usual}");
    }
}

#[test]
fn authorities_of_clients_are_read_only_where_clients_are_verified() {
    let unread = server("ssl_client_certificate {certs}/none.pem; return 200 x;");
    for said in both(&unread, |server| curl(server, &["-k", "https://localhost:{port}/"])) {
        assert_eq!(said, "x");
    }
    let read = server("ssl_client_certificate {certs}/none.pem; ssl_verify_client optional;");
    assert!(error(Kind::Forebay, &read).contains("none.pem"));
}

#[test]
fn settings_without_a_meaning_say_so() {
    let dir = certificates();
    let parameters = "-----BEGIN DH PARAMETERS-----\nMA==\n-----END DH PARAMETERS-----\n";
    fs::write(dir.join("dh.pem"), parameters).unwrap();
    let conf = conf(&server("ssl_dhparam {certs}/dh.pem;"));
    let here = dir.display().to_string();
    let conf =
        conf.replace("{prefix}", &here).replace("{temp_paths}", "").replace("{port}", "18443");
    fs::write(dir.join("dh.conf"), format!("pid {here}/pid; {conf}")).unwrap();
    let mut test = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let words = ["-t", "-p", &here, "-c", "dh.conf", "-e", "dh.log"];
    let output = test.args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("\"ssl_dhparam\" directive changes nothing here"), "{said}");
}

#[test]
fn encrypted_keys_are_opened_by_a_password_of_the_file() {
    if !have("openssl") {
        return;
    }
    for name in ["ec", "rsa"] {
        let server = forebay(&server(&format!(
            "ssl_password_file {{certs}}/password; ssl_certificate {{certs}}/{name}.pem; \
             ssl_certificate_key {{certs}}/{name}-encrypted.key; return 200 open;"
        )));
        assert_eq!(
            curl(&server, &["--cacert", "{certs}/ca.pem", "https://localhost:{port}/"]),
            "open"
        );
    }
}

#[test]
fn certificates_in_the_configuration_itself_are_taken() {
    let dir = certificates();
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let http = server(&format!(
        "ssl_certificate \"data:{}\"; ssl_certificate_key \"data:{}\"; return 200 data;",
        read("ec.pem"),
        read("ec.key")
    ));
    let server = forebay(&http);
    assert_eq!(curl(&server, &["--cacert", "{certs}/ca.pem", "https://localhost:{port}/"]), "data");
}

#[test]
fn a_reload_with_a_bad_certificate_changes_nothing() {
    let good = server("return 200 good;");
    let running = forebay(&good);
    let bad = server("ssl_certificate {certs}/none.pem; ssl_certificate_key {certs}/ec.key;");
    running.rewrite_conf(&conf(&bad)).unwrap();
    running.signal(Signal::SIGHUP);
    logged(&running, "[emerg]");
    let said = logged(&running, "cannot load certificate");
    assert!(said.contains("BIO_new_file() failed"), "{said}");
    assert_eq!(curl(&running, &["-k", "https://localhost:{port}/"]), "good");
}
