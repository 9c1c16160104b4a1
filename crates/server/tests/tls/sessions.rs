//! Sessions that are resumed, and those that must not be; certificates that change while it runs.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use forebay_testkit::{
    Signal,
    certs::{Authority, Leaf},
};

/// Whether a connection that offers an earlier one's session resumes it. `file` is the session's.
struct Resumer<'a> {
    server: &'a Server,
    words: &'a [&'a str],
    file: String,
}

impl<'a> Resumer<'a> {
    fn new(server: &'a Server, words: &'a [&'a str]) -> Resumer<'a> {
        let file = server.prefix().join("session").display().to_string();
        Resumer { server, words, file }
    }

    fn first(&self, name: &str) -> String {
        self.connect(name, "-sess_out")
    }

    fn again(&self, name: &str) -> String {
        self.connect(name, "-sess_in")
    }

    fn connect(&self, name: &str, file: &str) -> String {
        let words = [self.words, &["-servername", name, file, &self.file]].concat();
        let said = s_client(self.server, &words, &request(name));
        let line =
            said.lines().find(|line| line.starts_with("New, ") || line.starts_with("Reused, "));
        let how = line.and_then(|line| line.split(',').next()).unwrap_or("failed");
        let body = said.lines().find(|line| line.starts_with("answer"));
        format!("{how} {}", body.unwrap_or("no answer"))
    }
}

const ANSWER: &str = "return 200 \"answer $server_name $ssl_session_reused\\n\";";

/// A client of TLS 1.2 that has no tickets, and two that have.
const CLIENTS: [&[&str]; 3] = [&["-tls1_2", "-no_ticket"], &["-tls1_2"], &["-tls1_3"]];

#[test]
fn sessions_are_resumed_over_threads_and_reloads() {
    if !have("openssl") {
        return;
    }
    let http = server(&format!("server_name a.test; ssl_session_cache shared:S:1m; {ANSWER}"));
    for words in CLIENTS {
        let server = forebay(&http);
        let resumer = Resumer::new(&server, words);
        assert_eq!(resumer.first("a.test"), "New answer a.test .", "{words:?}");
        for _ in 0..8 {
            assert_eq!(resumer.again("a.test"), "Reused answer a.test r", "{words:?}");
        }
        reload(&server, &conf(&http), 1);
        assert_eq!(resumer.again("a.test"), "Reused answer a.test r", "{words:?} after a reload");
    }
}

fn reload(server: &Server, conf: &str, count: usize) {
    server.rewrite_conf(conf).unwrap();
    server.signal(Signal::SIGHUP);
    let done = || server.error_log().matches(": reconfiguring").count() >= count;
    assert!(wait_for(done, LIMIT), "{}", server.error_log());
}

#[test]
fn what_is_switched_off_is_not_resumed() {
    if !have("openssl") {
        return;
    }
    let http = server(&format!(
        "server_name a.test; ssl_session_cache off; ssl_session_tickets off; {ANSWER}"
    ));
    let server = forebay(&http);
    for words in CLIENTS {
        let resumer = Resumer::new(&server, words);
        assert_eq!(resumer.first("a.test"), "New answer a.test .", "{words:?}");
        let kept = fs::exists(&resumer.file).unwrap();
        assert!(!kept || resumer.again("a.test").starts_with("New"), "{words:?}");
    }
}

#[test]
fn tickets_are_good_wherever_their_key_is() {
    if !have("openssl") {
        return;
    }
    let http = |keys: &str| server(&format!("server_name a.test; {keys} {ANSWER}"));
    let (new, old) =
        ("ssl_session_ticket_key {certs}/ticket48;", "ssl_session_ticket_key {certs}/ticket80;");
    let first = forebay(&http(old));
    assert_eq!(Resumer::new(&first, &["-tls1_3"]).first("a.test"), "New answer a.test .");
    let second = forebay(&http(&format!("{new} {old}")));
    let resumer = Resumer {
        server: &second,
        words: &["-tls1_3"],
        file: first.prefix().join("session").display().to_string(),
    };
    assert_eq!(resumer.again("a.test"), "Reused answer a.test r");
    let third = forebay(&http(new));
    assert_eq!(Resumer { server: &third, ..resumer }.again("a.test"), "New answer a.test .");
}

#[test]
fn a_session_is_not_resumed_under_another_server_s_demands() {
    if !have("openssl") {
        return;
    }
    let http = format!(
        "ssl_session_cache shared:S:1m; {} {}",
        server(&format!("server_name a.test; {ANSWER}")),
        server(&format!(
            "server_name b.test; ssl_client_certificate {{certs}}/client-ca.pem; \
             ssl_verify_client on; {ANSWER}"
        ))
    );
    let server = forebay(&http);
    for words in CLIENTS {
        let resumer = Resumer::new(&server, words);
        assert_eq!(resumer.first("a.test"), "New answer a.test .", "{words:?}");
        assert_eq!(resumer.again("b.test"), "New no answer", "{words:?}");
        assert_eq!(resumer.again("a.test"), "Reused answer a.test r", "{words:?}");
    }
}

#[test]
fn a_resumed_client_is_still_the_one_that_it_was() {
    if !have("openssl") {
        return;
    }
    let http = server(
        "server_name a.test; ssl_client_certificate {certs}/client-ca.pem; ssl_verify_client on; \
         ssl_session_cache shared:S:1m; \
         return 200 \"answer $ssl_client_serial $ssl_client_verify\\n\";",
    );
    let server = forebay(&http);
    let (cert, key) = ("{certs}/client.pem", "{certs}/client.key");
    for words in CLIENTS {
        let words = [words, &["-cert", cert, "-key", key]].concat();
        let resumer = Resumer::new(&server, &words);
        assert_eq!(resumer.first("a.test"), "New answer 0B SUCCESS", "{words:?}");
        assert_eq!(resumer.again("a.test"), "Reused answer 0B SUCCESS", "{words:?}");
    }
}

#[test]
fn early_data_is_taken_and_told() {
    if !have("openssl") {
        return;
    }
    let http = server("ssl_early_data on; return 200 \"answer ${ssl_early_data}.\\n\";");
    let [ours, theirs] = both(&http, |server| {
        let file = server.prefix().join("session").display().to_string();
        let early = server.prefix().join("early").display().to_string();
        fs::write(&early, request("localhost")).unwrap();
        s_client(server, &["-tls1_3", "-sess_out", &file], &request("localhost"));
        let words = ["-tls1_3", "-sess_in", &file, "-early_data", &early];
        let said = s_client(server, &words, "\n");
        let line =
            |start: &str| said.lines().find(|line| line.starts_with(start)).map(str::to_owned);
        format!("{:?} {:?}", line("Early data was"), line("answer"))
    });
    // nginx has forgotten that it was early data, once the end of the handshake is there as well.
    assert!(theirs.contains("accepted") && theirs.contains("answer "), "{theirs}");
    assert!(ours.contains("accepted") && ours.contains("answer 1."), "{ours}");
}

#[test]
fn early_data_is_taken_once() {
    if !have("openssl") {
        return;
    }
    let server = forebay(&server("ssl_early_data on; return 200 \"answer\\n\";"));
    let file = server.prefix().join("session").display().to_string();
    let early = server.prefix().join("early").display().to_string();
    fs::write(&early, request("localhost")).unwrap();
    s_client(&server, &["-tls1_3", "-sess_out", &file], &request("localhost"));
    let again = || {
        s_client(
            &server,
            &["-tls1_3", "-sess_in", &file, "-early_data", &early],
            &request("localhost"),
        )
    };
    assert!(again().contains("Early data was accepted"));
    assert!(again().contains("Early data was rejected"));
}

#[test]
fn certificates_change_a_hundred_times_without_a_failed_request() {
    if !have("curl") {
        return;
    }
    let ca = Authority::root("Changing");
    let dir = certificates().join("changing");
    fs::create_dir_all(&dir).unwrap();
    let write = |serial: u64| {
        let issued = ca.issue(Leaf { serial, ..Leaf::default() });
        fs::write(dir.join("it.pem"), issued.certificate).unwrap();
        fs::write(dir.join("it.key"), issued.key).unwrap();
    };
    write(1000);
    let http = |round: u64| {
        server(&format!(
            "ssl_certificate {{certs}}/changing/it.pem; \
             ssl_certificate_key {{certs}}/changing/it.key; return 200 {round:4};"
        ))
    };
    let running = forebay(&http(1000));
    let over = AtomicBool::new(false);
    let (asked, failed) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let (mut asked, mut failed) = (0, Vec::new());
            while !over.load(Ordering::Relaxed) {
                let url = "https://localhost:{port}/";
                let close = ["-k", "-H", "Connection: close"];
                let said = curl(&running, &[&close[..], &[url; 8]].concat());
                asked += 8;
                if said.len() != 32 || said.bytes().any(|b| !b.is_ascii_digit()) {
                    failed.push(said);
                }
            }
            (asked, failed)
        });
        for round in 1001..=1100 {
            write(round);
            running.rewrite_conf(&conf(&http(round))).unwrap();
            running.signal(Signal::SIGHUP);
            let ask = || curl(&running, &["-k", "https://localhost:{port}/"]);
            assert!(wait_for(|| ask() == round.to_string(), LIMIT), "{}", running.error_log());
        }
        over.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    assert!(asked > 0 && failed.is_empty(), "{asked} requests, failed: {failed:?}");
    assert!(!running.error_log().contains("[emerg]"), "{}", running.error_log());
}
