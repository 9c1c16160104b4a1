//! What the tests of handshakes share: certificates, socket pairs, and both ends of a connection.

#![allow(dead_code)]

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    os::unix::net::UnixStream,
    sync::Arc,
    task::Poll,
};

use forebay_rt::transport::{Socket, Transport};
use forebay_testkit::certs::{Authority, Issued, Key, Leaf};
use forebay_tls::*;

pub use forebay_rt::task::block_on as run;

pub fn pair() -> (Socket, Socket) {
    let (a, b) = UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    (Socket::new(a.into()), Socket::new(b.into()))
}

pub fn key_pair(issued: &Issued) -> KeyPair {
    let chain = Chain::from_pem(issued.certificate.as_bytes()).unwrap();
    let key = PrivateKey::from_pem(issued.key.as_bytes(), &[]).unwrap();
    KeyPair::new(&chain, &key).unwrap()
}

pub fn trust(authorities: &[&Authority]) -> Trust {
    let pem = authorities.iter().map(|authority| authority.pem()).collect::<String>();
    let certificates = certificates_from_pem(pem.as_bytes()).unwrap();
    Trust { certificates, crls: Vec::new(), depth: 1 }
}

/// A server's settings with one certificate of that key, and its authority.
pub fn settings(key: Key) -> (ServerSettings, Authority) {
    let root = Authority::root("Root");
    let issued = root.issue(Leaf { key, ..Leaf::default() });
    let certificates = vec![key_pair(&issued)];
    (ServerSettings { certificates, ..ServerSettings::default() }, root)
}

pub type Stream = TlsStream<Socket>;
pub type Accepted = Result<(Stream, Session), AcceptError<Socket>>;
pub type Connected = Result<(Stream, Session), ConnectError>;

pub async fn shake(server: &Arc<ServerConfig>, client: &ClientConfig) -> (Accepted, Connected) {
    let (ours, theirs) = pair();
    tokio::join!(accept(ours, Vec::new(), |_| Choice::Serve(server.clone())), async {
        let mut connected = connect(theirs, client, "localhost").await?;
        // Its last flight waits for the request.
        let mut buf = Vec::with_capacity(4096);
        poll_fn(|cx| Poll::Ready(connected.0.poll_read(cx, &mut buf).is_pending())).await;
        Ok(connected)
    })
}

/// Both ends of a connection that came about.
pub async fn connected(
    server: &Arc<ServerConfig>,
    client: &ClientConfig,
) -> ((Stream, Session), (Stream, Session)) {
    let (accepted, connected) = shake(server, client).await;
    (accepted.unwrap(), connected.unwrap())
}

pub async fn write<T: Transport>(stream: &mut T, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let half = bytes.len() / 2;
        let slices = [IoSlice::new(&bytes[..half]), IoSlice::new(&bytes[half..])];
        let written = poll_fn(|cx| stream.poll_write(cx, &slices, false)).await?;
        assert!(written > 0 && written <= bytes.len());
        bytes = &bytes[written..];
    }
    Ok(())
}

pub async fn read<T: Transport>(stream: &mut T, room: usize) -> io::Result<Vec<u8>> {
    let mut buf = Vec::with_capacity(room);
    poll_fn(|cx| stream.poll_read(cx, &mut buf)).await?;
    Ok(buf)
}

/// Reads that many bytes, in pieces of at most `room`.
pub async fn read_all<T: Transport>(stream: &mut T, len: usize, room: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let piece = read(stream, room.min(len - all.len())).await.unwrap();
        assert!(!piece.is_empty(), "ended after {} of {len}", all.len());
        all.extend(piece);
    }
    all
}
