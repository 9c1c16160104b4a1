//! TLS to upstreams (`proxy_ssl_…`): a server asks another one of its own, and what that one sees, or
//! why it is not asked, is what nginx does.

use super::*;

const ORIGIN: &str = "server { listen 127.0.0.1:{port2} ssl; ssl_certificate {certs}/chain.pem; \
    ssl_certificate_key {certs}/chain.key; ssl_verify_client optional_no_ca; \
    return 200 \"$ssl_protocol|$ssl_server_name|$ssl_client_verify|$ssl_client_serial|$http_host|\
    $ssl_session_reused\"; }";

/// A server in the clear that passes on to one that speaks TLS.
fn proxy(more: &str) -> String {
    format!(
        "{ORIGIN} server {{ listen 127.0.0.1:{{port}}; proxy_pass https://127.0.0.1:{{port2}}; \
         proxy_ssl_protocols TLSv1.2 TLSv1.3; {more} }}"
    )
}

fn ask(server: &Server) -> String {
    let said = curl(server, &["-w", " %{http_code}", "http://localhost:{port}/"]);
    let said = said.replace(&server.addr_of(1).port().to_string(), "{port2}");
    // A built-in page.
    if said.contains("<html>") {
        said.split("</html>").last().unwrap_or_default().trim().to_owned()
    } else {
        said
    }
}

const VERIFY: &str = "proxy_ssl_verify on; proxy_ssl_trusted_certificate {certs}/ca.pem;";

#[test]
fn upstreams_see_what_nginx_shows_them() {
    if !have("curl") {
        return;
    }
    let cases = [
        "",
        "proxy_ssl_server_name on;",
        "proxy_ssl_server_name on; proxy_ssl_name localhost:1;",
        "proxy_ssl_protocols TLSv1.2;",
        "proxy_ssl_certificate {certs}/client.pem; proxy_ssl_certificate_key {certs}/client.key;",
        &format!("{VERIFY} proxy_ssl_verify_depth 2; proxy_ssl_name localhost;"),
        "proxy_ssl_server_name on; proxy_ssl_name $host; set $name {certs}/client; \
         proxy_ssl_certificate $name.pem; proxy_ssl_certificate_key $name.key;",
    ];
    for case in cases {
        let case = match case.contains("proxy_ssl_protocols") {
            true => format!(
                "{ORIGIN} server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass https://127.0.0.1:{{port2}}; {case} }} }}"
            ),
            false => {
                proxy(&format!("location / {{ proxy_pass https://127.0.0.1:{{port2}}; {case} }}"))
                    .replacen("proxy_pass https://127.0.0.1:{port2}; proxy_ssl", "proxy_ssl", 1)
            }
        };
        let [ours, theirs] = both(&case, |server| {
            // What a variable names is read by the worker.
            open_keys();
            ask(server)
        });
        assert_eq!(ours, theirs, "{case}");
        assert!(ours.ends_with(" 200"), "{case}\n{ours}");
    }
}

/// Lets the worker read the client's key, as it must where a variable names it.
fn open_keys() {
    use std::os::unix::fs::PermissionsExt;
    let key = certificates().join("client.key");
    fs::set_permissions(key, fs::Permissions::from_mode(0o644)).unwrap();
}

#[test]
fn upstreams_that_are_not_who_they_should_be_are_not_asked_as_by_nginx() {
    if !have("curl") {
        return;
    }
    let cases = [
        (format!("{VERIFY} proxy_ssl_verify_depth 2; proxy_ssl_name other.example;"), "does not match"),
        ("proxy_ssl_verify on; proxy_ssl_trusted_certificate {certs}/client-ca.pem;".to_owned(), "verify error"),
        ("proxy_ssl_ciphers ECDHE-RSA-AES128-GCM-SHA256; proxy_ssl_conf_command MaxProtocol TLSv1.2;".to_owned(), "SSL_do_handshake() failed"),
    ];
    for (case, line) in cases {
        let http = format!(
            "{ORIGIN} server {{ listen 127.0.0.1:{{port}}; proxy_ssl_protocols TLSv1.2 TLSv1.3; \
             location / {{ proxy_pass https://127.0.0.1:{{port2}}; {case} }} }}"
        );
        let [ours, theirs] = both(&http, |server| {
            let answer = ask(server);
            let said = logged(server, line);
            let said = said.split(" (SSL").next().unwrap_or_default().to_owned();
            let ports = server.addr_of(1).port().to_string();
            let said = said.replace(&server.addr().port().to_string(), "{port}");
            format!("{answer} {}", said.replace(&ports, "{port2}"))
        });
        assert_eq!(ours, theirs, "{case}");
        assert!(ours.starts_with("502"), "{ours}");
    }
}

#[test]
fn what_is_wrong_with_proxying_over_tls_is_said_in_nginx_s_words() {
    let cases = [
        ("proxy_ssl_verify on;", "no proxy_ssl_trusted_certificate for proxy_ssl_verify"),
        (
            "proxy_ssl_certificate {certs}/client.pem;",
            "no \"proxy_ssl_certificate_key\" is defined for certificate \"{certs}/client.pem\"",
        ),
    ];
    for (case, want) in cases {
        let http = format!(
            "server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass https://127.0.0.1:1; {case} }} }}"
        );
        let error = builder(Kind::Forebay, &http).start().expect_err("it must not start");
        let want = want.replace("{certs}", &certificates().display().to_string());
        assert!(error.output.contains(&want), "{case}\n{error}");
    }
}

#[test]
fn a_certificate_that_cannot_be_read_is_told_before_the_handshake() {
    if !have("curl") {
        return;
    }
    let http = "server { listen 127.0.0.1:{port2} ssl; ssl_certificate {certs}/ec.pem; \
                ssl_certificate_key {certs}/ec.key; return 204; } \
                server { listen 127.0.0.1:{port}; location / { \
                proxy_pass https://127.0.0.1:{port2}; \
                proxy_ssl_certificate {certs}/none$arg_a.pem; \
                proxy_ssl_certificate_key {certs}/none$arg_a.key; } }";
    let [ours, theirs] = both(http, |server| {
        curl(server, &["http://localhost:{port}/"]);
        let said = logged(server, "cannot load certificate");
        let doing = said.split(" while ").nth(1).unwrap_or_default();
        doing.split(',').next().unwrap_or_default().to_owned()
    });
    assert_eq!(ours, theirs);
}

#[test]
fn connections_to_upstreams_are_kept_and_sessions_resumed() {
    if !have("curl") {
        return;
    }
    let http = |more: &str| {
        format!(
            "upstream o {{ server 127.0.0.1:{{port2}}; keepalive 4; }} \
             server {{ listen 127.0.0.1:{{port2}} ssl; ssl_certificate {{certs}}/ec.pem; \
             ssl_certificate_key {{certs}}/ec.key; \
             return 200 \"$connection_requests $ssl_session_reused\\n\"; }} \
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass https://o; \
             proxy_http_version 1.1; {more} }} }}"
        )
    };
    let urls = ["http://localhost:{port}/"; 3];
    let kept = forebay(&http("proxy_set_header Connection '';"));
    assert_eq!(curl(&kept, &urls), "1 .\n2 .\n3 .\n");
    let resumed = forebay(&http("proxy_set_header Connection close;"));
    assert_eq!(curl(&resumed, &urls), "1 .\n1 r\n1 r\n");
    let neither = forebay(&http("proxy_set_header Connection close; proxy_ssl_session_reuse off;"));
    assert_eq!(curl(&neither, &urls), "1 .\n1 .\n1 .\n");
}

#[test]
fn an_upstream_s_address_is_held_against_those_in_its_certificate() {
    if !have("curl") {
        return;
    }
    for (name, status) in
        [("", " 200"), ("proxy_ssl_name 127.0.0.2;", "502"), ("proxy_ssl_name [::1]:1;", "502")]
    {
        let server = forebay(&format!(
            "{ORIGIN} server {{ listen 127.0.0.1:{{port}}; {VERIFY} proxy_ssl_verify_depth 2; \
             location / {{ proxy_pass https://127.0.0.1:{{port2}}; {name} }} }}"
        ));
        let answer = ask(&server);
        assert!(answer.ends_with(status), "{name} {answer} {}", server.error_log());
    }
}

#[test]
fn connections_and_sessions_outlive_a_reload_that_leaves_their_settings() {
    if !have("curl") {
        return;
    }
    let http = |connection: &str, more: &str, version: usize| {
        format!(
            "upstream o {{ server 127.0.0.1:{{port2}}; keepalive 4; }} \
             server {{ listen 127.0.0.1:{{port2}} ssl; ssl_certificate {{certs}}/ec.pem; \
             ssl_certificate_key {{certs}}/ec.key; \
             return 200 \"$connection_requests $ssl_session_reused\\n\"; }} \
             server {{ listen 127.0.0.1:{{port}}; location = /version {{ return 200 {version}; }} \
             location / {{ proxy_pass https://o; proxy_set_header Connection '{connection}'; \
             {more} }} }}"
        )
    };
    let verified = "proxy_ssl_verify on; proxy_ssl_name localhost; \
        proxy_ssl_trusted_certificate {certs}/ca.pem;";
    for (connection, answers) in
        [("", ["1 .\n", "2 .\n", "1 .\n"]), ("close", ["1 .\n", "1 r\n", "1 .\n"])]
    {
        let server = forebay(&http(connection, "", 0));
        for (version, more) in ["", "", verified].into_iter().enumerate() {
            server.rewrite_conf(&conf(&http(connection, more, version))).unwrap();
            server.signal(forebay_testkit::Signal::SIGHUP);
            let is_new =
                || curl(&server, &["http://localhost:{port}/version"]) == version.to_string();
            assert!(wait_for(is_new, LIMIT), "{}", server.error_log());
            let answer = curl(&server, &["http://localhost:{port}/"]);
            assert_eq!(answer, answers[version], "{connection} {more}");
        }
    }
}

#[test]
fn a_kept_connection_is_not_used_under_other_demands() {
    if !have("curl") {
        return;
    }
    let http = "upstream o { server 127.0.0.1:{port2}; keepalive 4; } \
         server { listen 127.0.0.1:{port2} ssl; ssl_certificate {certs}/ec.pem; \
         ssl_certificate_key {certs}/ec.key; return 200 \"in \"; } \
         server { listen 127.0.0.1:{port}; proxy_set_header Connection ''; \
         proxy_http_version 1.1; error_page 502 =502 @no; location @no { return 502 \"no \"; } \
         location /a { proxy_pass https://o; } \
         location /b { proxy_pass https://o; proxy_ssl_verify on; proxy_ssl_name localhost; \
         proxy_ssl_trusted_certificate {certs}/client-ca.pem; } }";
    let server = forebay(http);
    let urls = ["a", "b", "a", "b"].map(|path| format!("http://localhost:{{port}}/{path}"));
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    assert_eq!(curl(&server, &urls), "in no in no ");
}
