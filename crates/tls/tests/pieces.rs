//! Handshakes whose messages come in the smallest pieces, or are the largest, that there are.

mod common;

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
};

use common::*;
use forebay_rt::transport::Socket;
use forebay_testkit::certs::{Authority, Issued, Key, Leaf};
use forebay_tls::*;
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};

const HANDSHAKE: u8 = 22;

/// A client of TLS 1.2 with that certificate, behind which the root's is sent so many times.
fn client(root: &Authority, issued: &Issued, times: usize) -> rustls::ClientConnection {
    let root = certificates_from_pem(root.pem().as_bytes()).unwrap().remove(0);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let mut chain = certificates_from_pem(issued.certificate.as_bytes()).unwrap();
    chain.extend(vec![root; times]);
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
    let config = rustls::ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS12]);
    let config = config.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
    rustls::ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
}

/// Records as they are, but those of the handshake in the clear in records of one byte.
fn in_pieces(sent: &[u8]) -> Vec<u8> {
    let (mut out, mut rest, mut clear) = (Vec::new(), sent, true);
    while let [kind, major, minor, a, b, body @ ..] = rest {
        let (body, after) = body.split_at(usize::from(u16::from_be_bytes([*a, *b])));
        clear &= *kind == HANDSHAKE;
        if clear {
            out.extend(body.iter().flat_map(|byte| [HANDSHAKE, *major, *minor, 0, 1, *byte]));
        } else {
            out.extend_from_slice(&rest[..5 + body.len()]);
        }
        rest = after;
    }
    out
}

/// Shakes hands, and says what the server made of it; the client's error, if it has one.
fn shake(
    client: rustls::ClientConnection,
    root: &Authority,
    cut: fn(&[u8]) -> Vec<u8>,
) -> (Accepted, Option<rustls::Error>) {
    let (base, _) = settings(Key::P256);
    let issued = root.issue(Leaf::default());
    let trust = trust(&[root]);
    let auth = ClientAuth { names: trust.certificates.clone(), trust };
    let certificates = vec![key_pair(&issued)];
    let settings = ServerSettings { certificates, client_auth: Some(auth), ..base };
    let server = ServerConfig::new(&settings).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let playing = thread::spawn(move || play(client, theirs, cut));
    let accepted = run(async {
        accept(Socket::new(ours.into()), Vec::new(), |_| Choice::Serve(server.clone())).await
    });
    (accepted, playing.join().unwrap())
}

fn play(
    mut client: rustls::ClientConnection,
    mut socket: UnixStream,
    cut: fn(&[u8]) -> Vec<u8>,
) -> Option<rustls::Error> {
    while client.is_handshaking() {
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        // A server that has had enough closes.
        let _ = socket.write_all(&cut(&sent));
        let mut came = vec![0; 16 << 10];
        let read = socket.read(&mut came).unwrap_or(0);
        if read == 0 {
            return Some(rustls::Error::General("closed".into()));
        }
        let mut rest = io::Cursor::new(&came[..read]);
        while rest.position() < read as u64 {
            client.read_tls(&mut rest).unwrap();
            if let Err(error) = client.process_new_packets() {
                return Some(error);
            }
        }
    }
    None
}

#[test]
fn messages_may_come_byte_by_byte() {
    let root = Authority::root("Root");
    let issued = root.issue(Leaf { client: true, ..Leaf::default() });
    let (accepted, error) = shake(client(&root, &issued, 0), &root, in_pieces);
    let (_, session) = accepted.unwrap();
    assert_eq!((session.verdict(), error), (&Verdict::Success, None));
}

#[test]
fn a_chain_has_a_length() {
    let root = Authority::root("Root");
    let issued = root.issue(Leaf { client: true, ..Leaf::default() });
    let one = certificates_from_pem(root.pem().as_bytes()).unwrap()[0].len() + 3;
    // What a handshake message may hold.
    let most = 0xffff / one - 2;
    let (accepted, error) = shake(client(&root, &issued, most), &root, <[u8]>::to_vec);
    let (_, session) = accepted.unwrap();
    assert_eq!((session.verdict(), error), (&Verdict::Success, None));
    let (accepted, error) = shake(client(&root, &issued, most + 4), &root, <[u8]>::to_vec);
    let Err(AcceptError::Failed(failure)) = accepted else { panic!("taken, or closed") };
    assert!(failure.text.contains("excessive message size"), "{failure}");
    assert!(error.is_some());
    // With a header to each byte, it is more than is kept of a handshake.
    let (accepted, error) = shake(client(&root, &issued, most), &root, in_pieces);
    let Err(AcceptError::Failed(failure)) = accepted else { panic!("taken, or closed") };
    assert!(failure.text.contains("encrypted length too long"), "{failure}");
    assert!(error.is_some());
}
