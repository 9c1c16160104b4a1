//! What TLS says of requests over HTTP/2: client certificates, and requests for another server than the
//! handshake was with (421).

use super::{requests::policies, *};

fn over_http2() -> String {
    policies().replace(" ssl; ", " ssl http2; ")
}

/// What curl gets over HTTP/2, without what names the server.
fn ask(server: &Server, words: &[&str]) -> String {
    let words = [&["-k", "--http2", "-w", "%{http_code} %{http_version}\n"], words].concat();
    let answer = curl(server, &words);
    let lines = answer.lines().filter(|line| !line.starts_with("<hr>"));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn client_certificates_are_judged_as_by_nginx() {
    if !have("curl") {
        return;
    }
    let clients = ["", "client", "stranger", "expired-client", "revoked"];
    let [ours, theirs] = both(&over_http2(), |server| {
        let mut said = String::new();
        for host in ["a.test", "b.test", "c.test", "d.test"] {
            for client in clients {
                let url = format!("https://{host}:{{port}}/");
                let (cert, key) =
                    (format!("{{certs}}/{client}.pem"), format!("{{certs}}/{client}.key"));
                let mut words = vec![&url[..]];
                if !client.is_empty() {
                    words.extend(["--cert", &cert, "--key", &key]);
                }
                said += &format!("{host} {client}\n{}", ask(server, &words));
            }
        }
        said
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("200 2\n") && ours.contains("400 2\n"), "{ours}");
}

#[test]
fn requests_for_another_server_than_the_handshake_s_are_misdirected() {
    if !have("curl") {
        return;
    }
    let asked = [
        ("a.test", "a.test"),
        ("a.test", "b.test"),
        ("b.test", "a.test"),
        ("c.test", "b.test"),
        ("b.test", "c.test"),
        ("d.test", "D.TEST:1"),
        ("localhost", "b.test"),
        ("a.test", "nobody.test"),
    ];
    // The page is that of the handshake's server.
    let page = "server_name a.test; error_page 421 @page; \
                location @page { return 200 \"of $server_name\n\"; } ";
    let conf = over_http2().replace("server_name a.test; ", page);
    let [ours, theirs] = both(&conf, |server| {
        let one = |(name, host): &(&str, &str)| {
            let (url, host) = (format!("https://{name}:{{port}}/"), format!("Host: {host}"));
            let said = ask(server, &["-H", &host, &url]);
            format!("{name} {host} {said}")
        };
        asked.iter().map(one).collect()
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("421 2\n") && ours.contains("of a.test\n421 2\n"), "{ours}");
}
