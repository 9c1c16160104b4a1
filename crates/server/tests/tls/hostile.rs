//! Clients that shake hands as they should, and then send what is no record, or none that may come: the
//! alert and the line of the log.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error, RootCertStore};

use super::*;

/// A connection whose handshake is done, and a request, if `kept`.
fn connected(
    server: &Server,
    version: &'static rustls::SupportedProtocolVersion,
    kept: bool,
) -> (ClientConnection, TcpStream) {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(certificates().join("ca.pem")).unwrap();
    roots.add(root).unwrap();
    let config = ClientConfig::builder_with_protocol_versions(&[version]);
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let name = "localhost".try_into().unwrap();
    let mut client = ClientConnection::new(config, name).unwrap();
    let mut socket = TcpStream::connect(server.addr()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    while client.is_handshaking() || client.wants_write() {
        client.complete_io(&mut socket).unwrap();
    }
    if kept {
        ask(&mut client, &mut socket, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "answer");
    }
    (client, socket)
}

/// Sends that much and waits until what came ends so: the server has read all of it.
fn ask(client: &mut ClientConnection, socket: &mut TcpStream, text: &str, end: &str) {
    let mut stream = rustls::Stream::new(client, socket);
    stream.write_all(text.as_bytes()).unwrap();
    let mut came = Vec::new();
    while !came.ends_with(end.as_bytes()) {
        let mut piece = [0; 1000];
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&came));
        came.extend_from_slice(&piece[..read]);
    }
}

/// The alert that came in answer to these bytes.
fn answered(mut client: ClientConnection, mut socket: TcpStream, bytes: &[u8]) -> AlertDescription {
    socket.write_all(bytes).unwrap();
    loop {
        assert!(client.read_tls(&mut socket).unwrap() > 0, "closed without an alert");
        match client.process_new_packets() {
            Ok(_) => {}
            Err(Error::AlertReceived(alert)) => return alert,
            Err(error) => panic!("{error}"),
        }
    }
}

/// What the log says of failed reads, but for levels and numbers.
fn lines(server: &Server) -> Vec<String> {
    let shown = |line: &str| {
        let text = line.split_once('*')?.1.split_once(' ')?.1;
        Some(text.split_once(", client: ")?.0.to_owned())
    };
    let log = server.error_log();
    log.lines().filter(|line| line.contains("SSL_read()")).filter_map(shown).collect()
}

#[test]
fn records_that_must_not_come_are_told_and_end_the_connection() {
    use AlertDescription as A;
    let http = server("return 200 answer;");
    let ours = forebay(&http);
    let theirs = have("nginx").then(|| builder(Kind::Nginx, &http).start().unwrap());
    let versions = [&rustls::version::TLS12, &rustls::version::TLS13];
    let garbage = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
    let too_long = [23, 3, 3, 0x48, 1];
    let mac = "0A000119:SSL routines::decryption failed or bad record mac";
    let version = "0A00010B:SSL routines::wrong version number";
    let length = "0A0000C6:SSL routines::packet length too long";
    let kind = "0A0001BB:SSL routines::bad record type";
    // Whether they are nginx's, with OpenSSL 3.0, in TLS 1.2 and 1.3.
    let cases: [(&[u8], _, _, [bool; 2]); 6] = [
        (&garbage, A::BadRecordMac, mac, [false, true]),
        (b"GET / HTTP/1.1\r\n\r\n", A::ProtocolVersion, version, [true, true]),
        (&too_long, A::RecordOverflow, length, [true, true]),
        (&[23, 3, 3, 0, 5, 1, 2, 3, 4, 5], A::BadRecordMac, mac, [false, true]),
        (&[23, 3, 3, 0, 0], A::BadRecordMac, mac, [false, true]),
        (&[99, 3, 3, 0, 1, 1], A::UnexpectedMessage, kind, [false, true]),
    ];
    for (bytes, alert, reason, agreed) in cases {
        for (version, agreed) in versions.into_iter().zip(agreed) {
            for (kept, doing) in [(false, "waiting for request"), (true, "keepalive")] {
                let line = format!("SSL_read() failed (SSL: error:{reason}) while {doing}");
                for server in [Some(&ours), theirs.as_ref().filter(|_| agreed)] {
                    let Some(server) = server else { continue };
                    let before = lines(server).len();
                    let (client, socket) = connected(server, version, kept);
                    assert_eq!(answered(client, socket, bytes), alert, "{version:?} {line}");
                    assert!(wait_for(|| lines(server).len() > before, LIMIT), "no line: {line}");
                    assert_eq!(
                        &lines(server)[before..],
                        std::slice::from_ref(&line),
                        "{version:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_breaks_off_a_request_is_told_with_it() {
    let http = "location / { proxy_pass http://127.0.0.1:1; } location /a { return 200 answer; }";
    let ours = forebay(&server(http));
    let mac = "SSL_read() failed (SSL: error:0A000119:SSL routines::decryption failed or bad record \
               mac)";
    let first = "GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (begun, answer, doing) in [
        ("GET /", "answer", " while reading client pipelined request line"),
        (
            "GET / HTTP/1.1\r\nHost: localhost\r\n",
            "answer",
            " while reading client request headers",
        ),
        (
            "POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
            "100 Continue\r\n\r\n",
            "",
        ),
    ] {
        let before = lines(&ours).len();
        let (mut client, mut socket) = connected(&ours, &rustls::version::TLS13, false);
        ask(&mut client, &mut socket, &format!("{first}{begun}"), answer);
        let garbage = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
        assert_eq!(answered(client, socket, &garbage), AlertDescription::BadRecordMac);
        assert!(wait_for(|| lines(&ours).len() > before, LIMIT), "{begun}");
        assert_eq!(lines(&ours)[before..], [format!("{mac}{doing}")], "{begun}");
    }
}
