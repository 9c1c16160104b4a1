//! Every kind of handshake that fails, and the line that it leaves: Forebay's beside nginx's.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use super::*;

/// Why lines differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// They do not.
    Same,
    /// On purpose: a row of `docs/differences.md`.
    Row(&'static str),
    /// Because nginx does that since.
    Newer(&'static str),
}

/// What a client does.
enum Play {
    /// `openssl s_client` with these words.
    Openssl(&'static [&'static str]),
    /// These bytes, and the end of what it sends.
    Bytes(Vec<u8>),
    /// The ClientHello of openssl, with these words; the server's answer; these bytes, and the end.
    After(&'static [&'static str], Vec<u8>),
}

use Play::{After, Bytes, Openssl};

/// The ClientHello that openssl sends.
fn hello(words: &[&str]) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", &listener.local_addr().unwrap().to_string()])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut body).unwrap();
    drop(stream);
    child.wait().unwrap();
    [&head[..], &body].concat()
}

fn send(server: &Server, hello: &[u8], bytes: &[u8]) {
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(hello).unwrap();
    if !hello.is_empty() {
        let mut flight = [0; 16_384];
        assert!(stream.read(&mut flight).unwrap() > 0);
    }
    // It may have closed already.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

/// The lines about handshakes so far, but for that of whoever looked whether the server accepts.
fn lines(server: &Server) -> Vec<String> {
    let log = server.error_log();
    let is_one =
        |line: &&str| line.contains("while SSL handshaking") || line.contains("plain HTTP");
    log.lines().filter(is_one).map(str::to_owned).collect()
}

/// A line without what differs from run to run, and without the detail behind OpenSSL's reason.
fn shown(line: &str) -> String {
    let level = line.split(['[', ']']).nth(1).unwrap_or_default();
    let text =
        line.split_once('*').and_then(|(_, text)| text.split_once(' ')).unwrap_or_default().1;
    let (why, rest) = text.split_once(", client: ").unwrap_or((text, ""));
    let rest = if rest.is_empty() { "" } else { ", client" };
    let why = match why.split_once("SSL routines::") {
        Some((before, reason)) => {
            let (reason, doing) = reason.split_once(" while ").unwrap_or((reason, ""));
            let reason = reason.split([':', ')']).next().unwrap_or_default();
            format!("{before}SSL routines::{reason} while {doing}")
        }
        None => why.to_owned(),
    };
    format!("[{level}] {why}{rest}")
}

fn run(server: &Server, play: &Play) -> String {
    let before = lines(server).len();
    match play {
        Openssl(words) => _ = s_client(server, words, ""),
        Bytes(bytes) => send(server, b"", bytes),
        After(words, bytes) => send(server, &hello(words), bytes),
    }
    let came = wait_for(|| lines(server).len() > before, Duration::from_secs(5));
    match came {
        true => shown(&lines(server)[before]),
        false => "nothing".to_owned(),
    }
}

const OLD: &str = "ALL:@SECLEVEL=0";

#[test]
fn each_failure_leaves_the_line_that_nginx_writes() {
    if !have("openssl") || !have("nginx") {
        return;
    }
    let alert = |level: u8, number: u8| vec![21, 3, 3, 0, 2, level, number];
    let record = |kind: u8, body: &[u8]| [&[kind, 3, 3, 0, body.len() as u8], body].concat();
    let cases: Vec<(&str, Play, Why)> = vec![
        ("TLS 1.1", Openssl(&["-tls1_1", "-cipher", OLD]), Why::Same),
        ("TLS 1.0", Openssl(&["-tls1", "-cipher", OLD]), Why::Same),
        ("no cipher of 1.2", Openssl(&["-tls1_2", "-cipher", "AES128-SHA"]), Why::Same),
        (
            "no cipher of 1.3",
            Openssl(&["-tls1_3", "-ciphersuites", "TLS_AES_128_CCM_SHA256"]),
            Why::Same,
        ),
        ("no group of 1.3", Openssl(&["-tls1_3", "-groups", "P-384"]), Why::Same),
        ("no group of 1.2", Openssl(&["-tls1_2", "-groups", "P-384"]), Why::Same),
        (
            "no signature of 1.3",
            Openssl(&["-tls1_3", "-sigalgs", "rsa_pss_rsae_sha256"]),
            Why::Same,
        ),
        ("no signature of 1.2", Openssl(&["-tls1_2", "-sigalgs", "RSA+SHA256"]), Why::Same),
        ("an unknown CA", Openssl(&["-verify_return_error"]), Why::Same),
        ("an unknown CA in 1.2", Openssl(&["-tls1_2", "-verify_return_error"]), Why::Same),
        (
            "another name",
            Openssl(&[
                "-verify_return_error",
                "-CAfile",
                "{certs}/ca.pem",
                "-verify_hostname",
                "b.example",
            ]),
            Why::Same,
        ),
        ("plain HTTP", Bytes(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()), Why::Same),
        ("a text", Bytes(b"hello\r\n".to_vec()), Why::Same),
        (
            "an old hello",
            Bytes([&b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10"[..], &[7; 37]].concat()),
            Why::Same,
        ),
        (
            "another version of records",
            Bytes(b"\x16\x09\x01\x00\x05\x01\0\0\x01\0".to_vec()),
            Why::Same,
        ),
        ("an empty record", Bytes(b"\x16\x03\x01\x00\x00".to_vec()), Why::Row("ssl-empty-record")),
        (
            "a record that is too long",
            Bytes([&b"\x16\x03\x01\xff\xff"[..], &[1; 100]].concat()),
            Why::Newer("1.23.4"),
        ),
        ("another message", Bytes(b"\x16\x03\x01\x00\x04\x02\x00\x00\x00".to_vec()), Why::Same),
        (
            "a broken hello",
            Bytes(b"\x16\x03\x01\x00\x08\x01\x00\x00\x04\x03\x03\x00\x00".to_vec()),
            Why::Same,
        ),
        ("nothing", Bytes(Vec::new()), Why::Same),
        ("half a record", Bytes(b"\x16\x03\x01\x00\xc8\x01\x00".to_vec()), Why::Same),
        ("the end behind the hello", After(&["-tls1_3"], Vec::new()), Why::Same),
        ("the end behind the hello of 1.2", After(&["-tls1_2"], Vec::new()), Why::Same),
        ("certificate unknown", After(&["-tls1_2"], alert(2, 46)), Why::Same),
        ("bad certificate", After(&["-tls1_2"], alert(2, 42)), Why::Same),
        ("certificate expired in 1.3", After(&["-tls1_3"], alert(2, 45)), Why::Same),
        ("close notify", After(&["-tls1_2"], alert(1, 0)), Why::Same),
        ("user cancelled", After(&["-tls1_2"], [alert(1, 90), alert(1, 0)].concat()), Why::Same),
        ("data before the end", After(&["-tls1_2"], record(23, b"hello")), Why::Same),
        ("a broken finish", After(&["-tls1_3"], record(23, &[9; 40])), Why::Same),
        (
            "another message behind the hello",
            After(&["-tls1_2"], record(22, &[20, 0, 0, 1, 0])),
            Why::Same,
        ),
        ("garbage behind the hello", After(&["-tls1_2"], vec![0xff; 50]), Why::Same),
    ];
    let http = server("ssl_ecdh_curve X25519:prime256v1;");
    let mut wrong = String::new();
    let start = |kind| builder(kind, &http).start().unwrap_or_else(|error| panic!("{error}"));
    let (forebay, nginx) = (start(Kind::Forebay), start(Kind::Nginx));
    // Whoever started them looked whether they accept.
    for server in [&forebay, &nginx] {
        assert!(wait_for(|| !lines(server).is_empty(), LIMIT), "{}", server.error_log());
    }
    for (name, play, why) in &cases {
        let (ours, theirs) = (run(&forebay, play), run(&nginx, play));
        if (ours == theirs) != (*why == Why::Same) {
            wrong += &format!("--- {name} ({why:?})\nnginx:   {theirs}\nForebay: {ours}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
