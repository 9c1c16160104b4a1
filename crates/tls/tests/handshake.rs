//! Handshakes of our own two sides with each other, over socket pairs: what is agreed on, what is
//! carried, what is refused.

mod common;

use std::{
    future::poll_fn,
    io::{Read, Seek, SeekFrom, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::Arc,
};

use common::*;
use forebay_rt::transport::Transport;
use forebay_testkit::certs::{Authority, Key, Leaf};
use forebay_tls::*;

fn client(settings: ClientSettings) -> Arc<ClientConfig> {
    ClientConfig::new(&settings).unwrap()
}

fn only(tls13: bool) -> Protocols {
    Protocols { tls12: !tls13, tls13 }
}

#[test]
fn each_key_and_version_makes_a_connection_that_carries_bytes() {
    for key in [Key::Rsa2048, Key::P256, Key::P384, Key::Ed25519] {
        for tls13 in [false, true] {
            let (settings, root) = settings(key);
            let server = ServerConfig::new(&settings).unwrap();
            let client = client(ClientSettings {
                protocols: only(tls13),
                verify: Some(trust(&[&root])),
                alpn: vec![b"h2".to_vec()],
                send_name: true,
                ..ClientSettings::default()
            });
            run(async {
                let ((mut ours, session), (mut theirs, other)) = connected(&server, &client).await;
                let protocol = if tls13 { "TLSv1.3" } else { "TLSv1.2" };
                assert_eq!((session.protocol(), other.protocol()), (protocol, protocol));
                assert_eq!(session.cipher(), other.cipher());
                assert_eq!(session.server_name(), Some("localhost"));
                assert_eq!(session.verdict(), &Verdict::None);
                assert_eq!(other.verdict(), &Verdict::Success);
                assert!(!session.is_reused() && session.id().len() == 64 || !tls13);
                let text = vec![7u8; 200_000];
                let both =
                    tokio::join!(write(&mut theirs, &text), read_all(&mut ours, 200_000, 1 << 14));
                both.0.unwrap();
                assert!(both.1 == text);
                let both =
                    tokio::join!(write(&mut ours, &text), read_all(&mut theirs, 200_000, 100));
                both.0.unwrap();
                assert!(both.1 == text);
                assert!(ours.is_idle() && theirs.is_idle());
                poll_fn(|cx| theirs.poll_shutdown(cx)).await.unwrap();
                assert_eq!(read(&mut ours, 1000).await.unwrap(), b"");
            });
        }
    }
}

#[test]
fn alpn_takes_the_servers_order() {
    let (mut settings, _) = settings(Key::P256);
    settings.alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let server = ServerConfig::new(&settings).unwrap();
    for (offered, want) in [(vec!["http/1.1", "h2"], "h2"), (vec!["http/1.1"], "http/1.1")] {
        let alpn = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let client = client(ClientSettings { alpn, ..ClientSettings::default() });
        run(async {
            let ((_, session), (_, other)) = connected(&server, &client).await;
            assert_eq!(session.alpn(), Some(want.as_bytes()));
            assert_eq!(other.alpn(), Some(want.as_bytes()));
        });
    }
    let client = client(ClientSettings { alpn: vec![b"x".to_vec()], ..ClientSettings::default() });
    run(async {
        let (accepted, _) = shake(&server, &client).await;
        let Err(AcceptError::Failed(failure)) = accepted else { panic!() };
        assert!(failure.text.contains("no application protocol"), "{failure}");
    });
}

#[test]
fn plain_http_is_handed_back_with_its_connection() {
    run(async {
        let (ours, mut theirs) = pair();
        write(&mut theirs, b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let accepted = accept(ours, Vec::new(), |_| unreachable!()).await;
        let Err(AcceptError::PlainText(read_already, mut io)) = accepted else { panic!() };
        assert_eq!(read_already, b"GET / HTTP/1.0\r\n\r\n");
        write(&mut io, b"400").await.unwrap();
        assert_eq!(read(&mut theirs, 10).await.unwrap(), b"400");
    });
}

#[test]
fn a_rejected_name_is_an_alert_and_garbage_fails() {
    run(async {
        let (ours, theirs) = pair();
        let client = client(ClientSettings::default());
        let both = tokio::join!(
            accept(ours, Vec::new(), |_| Choice::Reject),
            connect(theirs, &client, "localhost"),
        );
        assert!(matches!(both.0, Err(AcceptError::Rejected)));
        let Err(ConnectError::Failed(failure)) = both.1 else { panic!() };
        assert!(failure.text.contains("unrecognized name:SSL alert number 112"), "{failure}");
        let (settings, _) = settings(Key::P256);
        let server = ServerConfig::new(&settings).unwrap();
        for (bytes, want) in [
            (&b"\x80\x09\x01\x03\x01\0\0\0\0\0\0"[..], "unsupported protocol"),
            (b"\xff\x2e\x02\x03\x01\x00\x15", "wrong version number"),
            (b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00", "unexpected message"),
            (b"\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03", "length mismatch"),
            (b"\x16\x03\x01\x00\x04\x01\x01\x00\x00", "excessive message size"),
        ] {
            let (ours, mut theirs) = pair();
            write(&mut theirs, bytes).await.unwrap();
            let accepted = accept(ours, Vec::new(), |_| Choice::Serve(server.clone())).await;
            let Err(AcceptError::Failed(failure)) = accepted else { panic!("{bytes:?}") };
            assert!(failure.text.contains(want) && failure.peers_fault, "{failure}");
            // The alert came before the end.
            assert_eq!(read(&mut theirs, 100).await.unwrap()[0], 21);
        }
    });
}

#[test]
fn a_large_hello_chooses_its_server_too() {
    // An extension that nobody knows, and behind it the name.
    let name = b"\0\0\0\x0e\0\x0c\0\0\x09localhost";
    for unknown in [100, 16 << 10, 60_000_u16] {
        let len = unknown.to_be_bytes();
        let extensions = [b"\x1a\x1a", &len[..], &vec![0; usize::from(unknown)], name].concat();
        let len = u16::try_from(extensions.len()).unwrap().to_be_bytes();
        let before = b"\x03\x03................................\0\0\x02\x13\x01\x01\0";
        let body = [&before[..], &len, &extensions].concat();
        let size = u32::try_from(body.len()).unwrap() | 1 << 24;
        let message = [&size.to_be_bytes()[..], &body].concat();
        run(async {
            let (ours, mut theirs) = pair();
            let sent = async {
                for piece in message.chunks(16 << 10) {
                    let len = u16::try_from(piece.len()).unwrap().to_be_bytes();
                    let record = [&[22, 3, 1][..], &len, piece].concat();
                    write(&mut theirs, &record).await.unwrap();
                }
            };
            let mut named = None;
            let accepted = accept(ours, Vec::new(), |hello| {
                named = hello.server_name().map(str::to_owned);
                Choice::Reject
            });
            let (_, accepted) = tokio::join!(sent, accepted);
            assert!(matches!(accepted, Err(AcceptError::Rejected)), "{unknown}");
            assert_eq!(named.as_deref(), Some("localhost"), "{unknown}");
        });
    }
}

#[test]
fn a_client_that_leaves_is_told_apart_by_what_it_sent() {
    run(async {
        let (ours, theirs) = pair();
        drop(theirs);
        let accepted = accept(ours, Vec::new(), |_| unreachable!()).await;
        assert!(matches!(accepted, Err(AcceptError::Silent)));
        let (ours, mut theirs) = pair();
        write(&mut theirs, b"\x16\x03\x01\x02").await.unwrap();
        drop(theirs);
        let accepted = accept(ours, Vec::new(), |_| unreachable!()).await;
        assert!(matches!(accepted, Err(AcceptError::Closed(None))));
    });
}

#[test]
fn the_client_gets_the_certificate_that_it_can_use() {
    let root = Authority::root("Root");
    let issue = |key| key_pair(&root.issue(Leaf { key, ..Leaf::default() }));
    let certificates = vec![issue(Key::Rsa2048), issue(Key::P256)];
    let server = ServerSettings { certificates, ..ServerSettings::default() };
    let server = ServerConfig::new(&server).unwrap();
    run(async {
        for (list, want) in [
            ("ECDHE-RSA-AES128-GCM-SHA256", "rsa_pss_rsae_sha512"),
            ("ECDHE-ECDSA-AES128-GCM-SHA256", "ecdsa_secp256r1_sha256"),
        ] {
            let ciphers = Ciphers::parse(list).unwrap().0;
            let protocols = only(false);
            let client = client(ClientSettings { ciphers, protocols, ..Default::default() });
            let ((_, session), _) = connected(&server, &client).await;
            assert_eq!(session.cipher(), list);
            assert_eq!(session.signature_algorithm().as_deref(), Some(want));
        }
    });
}

#[test]
fn files_leave_in_records_and_end_where_they_end() {
    let (mut settings, _) = settings(Key::P256);
    settings.buffer_bytes = 4096;
    let server = ServerConfig::new(&settings).unwrap();
    let path = std::env::temp_dir().join(format!("forebay-tls-{}", std::process::id()));
    let mut file =
        std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let text: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    file.write_all(&text).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    run(async {
        let ((mut ours, _), (mut theirs, _)) =
            connected(&server, &client(ClientSettings::default())).await;
        let send = async {
            // A head that is held back until its file.
            ours.file_follows(true);
            write(&mut ours, b"head").await.unwrap();
            assert!(!ours.is_idle());
            let mut offset = 1000;
            loop {
                let fd = file.as_fd();
                let sent =
                    poll_fn(|cx| ours.poll_send_file(cx, fd, offset, 400_000)).await.unwrap();
                ours.file_follows(false);
                if sent == 0 {
                    return offset;
                }
                offset += sent as u64;
            }
        };
        let (end, got) = tokio::join!(send, read_all(&mut theirs, 299_004, 5000));
        assert_eq!(end, 300_000);
        assert!(got[..4] == *b"head" && got[4..] == text[1000..]);
        // One that no file follows leaves with what does.
        ours.file_follows(true);
        write(&mut ours, b"head").await.unwrap();
        ours.file_follows(false);
        write(&mut ours, b"body").await.unwrap();
        assert_eq!(read(&mut theirs, 5000).await.unwrap(), b"headbody");
    });
}

/// A server, and a client of rustls that trusts it.
fn server_and_rustls() -> (Arc<ServerConfig>, rustls::ClientConnection) {
    let (settings, root) = settings(Key::P256);
    let server = ServerConfig::new(&settings).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificates_from_pem(root.pem().as_bytes()).unwrap().remove(0)).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots);
    let config = Arc::new(config.with_no_client_auth());
    let name = "localhost".try_into().unwrap();
    (server, rustls::ClientConnection::new(config, name).unwrap())
}

#[test]
fn keys_are_renewed_when_the_peer_asks() {
    let (server, mut connection) = server_and_rustls();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let asking = std::thread::spawn(move || {
        let mut stream = rustls::Stream::new(&mut connection, &mut theirs);
        for _ in 0..5 {
            stream.write_all(b"ask").unwrap();
            // Ours is new from here on, and theirs is to be.
            for _ in 0..3 {
                stream.conn.refresh_traffic_keys().unwrap();
            }
            stream.write_all(b"more").unwrap();
            let mut answer = [0; 6];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"answer");
        }
    });
    run(async {
        let choose = |_: &ClientHello<'_>| Choice::Serve(server.clone());
        let socket = forebay_rt::transport::Socket::new(ours.into());
        let (mut stream, _) = accept(socket, Vec::new(), choose).await.unwrap();
        for _ in 0..5 {
            assert_eq!(read_all(&mut stream, 7, 4096).await, b"askmore");
            write(&mut stream, b"answer").await.unwrap();
        }
        assert!(stream.is_idle());
    });
    asking.join().unwrap();
}

#[test]
fn a_flood_of_key_updates_ends_with_an_alert() {
    let (server, mut connection) = server_and_rustls();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let asking = std::thread::spawn(move || {
        let mut stream = rustls::Stream::new(&mut connection, &mut theirs);
        stream.write_all(b"ask").unwrap();
        // What comes from here on is read for itself.
        stream.read_exact(&mut [0; 6]).unwrap();
        for _ in 0..32 {
            stream.conn.refresh_traffic_keys().unwrap();
        }
        stream.flush().unwrap();
        // An answer to all that were taken, and the alert under the key that it says.
        let error = stream.read(&mut [0; 10]).unwrap_err();
        let alert = rustls::AlertDescription::UnexpectedMessage;
        assert_eq!(error.to_string(), rustls::Error::AlertReceived(alert).to_string());
    });
    run(async {
        let choose = |_: &ClientHello<'_>| Choice::Serve(server.clone());
        let socket = forebay_rt::transport::Socket::new(ours.into());
        let (mut stream, _) = accept(socket, Vec::new(), choose).await.unwrap();
        assert_eq!(read_all(&mut stream, 3, 4096).await, b"ask");
        write(&mut stream, b"answer").await.unwrap();
        let error = read(&mut stream, 4096).await.unwrap_err();
        let error = RecordError::of(&error).unwrap();
        assert_eq!(error.to_string(), "SSL: error:0A0000F4:SSL routines::unexpected message");
    });
    asking.join().unwrap();
}
