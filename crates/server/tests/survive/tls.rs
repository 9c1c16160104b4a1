//! The same over TLS: clients that stall in the handshake or behind it, that leave in its midst, and a
//! worker that is killed.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use forebay_testkit::{Server, Signal, certs, process, wait_for};
use nix::{sys::signal::kill, unistd::Pid};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs::default_provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};

use crate::{LIMIT, conf, narrow, pattern, raise_file_limit, start};

const CROWD: usize = 200;

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Believes everything: who the server is, is not asked here.
#[derive(Debug)]
struct Anybody(CryptoProvider);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn client() -> ClientConnection {
    let provider = Arc::new(default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(default_provider())))
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    ClientConnection::new(Arc::new(config), name).expect("a client")
}

fn connect(server: &Server) -> Stream {
    let tcp = narrow(server.addr_of(1));
    StreamOwned::new(client(), tcp)
}

/// The first bytes of a client.
fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    client().write_tls(&mut bytes).expect("a hello");
    bytes
}

/// One request on a connection of its own; what came of it.
fn try_ask(server: &Server) -> std::io::Result<String> {
    let mut stream = connect(server);
    stream.write_all(b"GET /text HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn others_are_served(server: &Server) {
    for _ in 0..20 {
        assert!(try_ask(server).expect("an answer").ends_with("alive"));
    }
}

fn start_tls(main: &str, inside: &str) -> Server {
    let dir = format!("{}/survive-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        fs::create_dir_all(&dir).expect("a directory");
        certs::write(dir.as_ref()).expect("certificates");
    });
    raise_file_limit();
    let tls = format!(
        "listen 127.0.0.1:{{port2}} ssl; ssl_certificate {dir}/ec.pem; \
         ssl_certificate_key {dir}/ec.key; {inside}"
    );
    start(&conf(main, &tls))
}

fn descriptors(server: &Server) -> usize {
    let of =
        |pid: &process::Pid| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    server.worker_pids().iter().map(of).sum()
}

#[test]
fn stalled_handshakes_end_at_the_header_timeout_and_nobody_waits_for_them() {
    let server = start_tls("", "client_header_timeout 2s;");
    let hello = hello();
    let mut crowd: Vec<TcpStream> = (0..CROWD)
        .map(|n| {
            let mut stream = TcpStream::connect(server.addr_of(1)).expect("connect");
            // A half, or all of it and nothing that it is answered with.
            let len = if n % 2 == 0 { hello.len() / 2 } else { hello.len() };
            stream.write_all(&hello[..len]).expect("send");
            stream.set_read_timeout(Some(LIMIT)).expect("timeout");
            stream
        })
        .collect();
    others_are_served(&server);
    for stream in &mut crowd {
        // They are closed, or reset; nothing else.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    others_are_served(&server);
}

#[test]
fn handshakes_that_are_left_leave_nothing() {
    let server = start_tls("worker_processes 1;", "");
    others_are_served(&server);
    let (before, hello) = (descriptors(&server), hello());
    for n in 0..1000 {
        let mut stream = TcpStream::connect(server.addr_of(1)).expect("connect");
        let bytes: &[u8] = match n % 4 {
            0 => b"",
            1 => &hello[..hello.len() / 2],
            2 => &hello,
            _ => b"\x16\x03\x01\x00\x04\xff\xff\xff\xff garbage",
        };
        // It may have been refused already.
        let _ = stream.write_all(bytes);
    }
    others_are_served(&server);
    let is_over = || descriptors(&server) <= before + 2;
    assert!(wait_for(is_over, LIMIT), "{} {before}", descriptors(&server));
}

#[test]
fn a_head_sent_record_by_record_ends_at_the_header_timeout() {
    let server = start_tls("", "client_header_timeout 2s;");
    let mut stream = connect(&server);
    stream.write_all(b"GET /te").expect("send");
    others_are_served(&server);
    stream.sock.set_read_timeout(Some(Duration::from_millis(300))).expect("timeout");
    let mut drips = 0;
    let ended = loop {
        match stream.read(&mut [0; 64]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                drips += 1;
                if stream.write_all(b"x").and_then(|()| stream.flush()).is_err() {
                    break true;
                }
            }
            // Closed, with a word or without.
            _ => break true,
        }
        if drips > 60 {
            break false;
        }
    };
    assert!(ended && drips > 3, "{drips}");
    let logged = || server.access_log().contains("\" 408 ");
    assert!(wait_for(logged, LIMIT), "{}", server.access_log());
}

#[test]
fn a_client_that_does_not_read_is_given_up() {
    let server = start_tls("", "send_timeout 1s;");
    fs::write(server.root().join("large"), pattern(8 << 20)).expect("a file");
    let mut stream = connect(&server);
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n").expect("send");
    others_are_served(&server);
    let logged = || server.access_log().contains("GET /large");
    assert!(wait_for(logged, LIMIT), "{}", server.access_log());
    let mut got = Vec::new();
    assert!(stream.read_to_end(&mut got).is_err(), "the client can tell that it was cut");
    assert!(got.len() < 8 << 20);
}

#[test]
fn a_killed_worker_is_replaced_and_handshakes_go_on() {
    let server = start_tls("worker_processes 1;", "");
    others_are_served(&server);
    for _ in 0..3 {
        let before = server.worker_pids();
        for pid in &before {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        let is_back = || try_ask(&server).is_ok_and(|answer| answer.ends_with("alive"));
        assert!(wait_for(is_back, LIMIT), "{}", server.error_log());
        assert_ne!(server.worker_pids(), before);
        others_are_served(&server);
    }
}
