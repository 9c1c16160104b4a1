//! Early data: answered before the client has finished, and only once.

mod common;

use std::{
    future::poll_fn,
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    task::Poll,
    thread,
};

use common::*;
use forebay_rt::transport::{Socket, Transport};
use forebay_testkit::certs::{Authority, Key};
use forebay_tls::*;
use rustls::{ClientConnection, RootCertStore, Stream, pki_types::ServerName};

fn client(root: &Authority) -> Arc<rustls::ClientConfig> {
    let mut roots = RootCertStore::empty();
    for der in certificates_from_pem(root.pem().as_bytes()).unwrap() {
        roots.add(der).unwrap();
    }
    let mut config =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.enable_early_data = true;
    Arc::new(config)
}

/// Sends `early` as early data if it may, else afterwards; reads what comes back to its end.
fn ask(socket: UnixStream, config: Arc<rustls::ClientConfig>, early: &[u8]) -> (bool, Vec<u8>) {
    let mut socket = socket;
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(config, name).unwrap();
    let sent = match connection.early_data() {
        Some(mut stream) => stream.write(early).unwrap(),
        None => 0,
    };
    let mut stream = Stream::new(&mut connection, &mut socket);
    stream.write_all(&early[sent..]).unwrap();
    stream.flush().unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    (connection.is_early_data_accepted(), answer)
}

fn sockets() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (ours, theirs)
}

/// One connection that is answered with `answer`: whether its request was early when it was read, and
/// when it had been answered and the client had finished; whether the client knows.
fn exchange(
    server: &Arc<ServerConfig>,
    client: &Arc<rustls::ClientConfig>,
    answer: &[u8],
) -> (bool, bool, bool) {
    let (ours, theirs) = sockets();
    let config = client.clone();
    let asking = thread::spawn(move || ask(theirs, config, b"GET / early"));
    let (early, still) = run(async {
        let choose = |_: &ClientHello<'_>| Choice::Serve(server.clone());
        let accepted = accept(Socket::new(ours.into()), Vec::new(), choose).await;
        let (mut stream, session) = accepted.unwrap();
        assert_eq!(read_all(&mut stream, 11, 1000).await, b"GET / early");
        let early = session.in_early_data();
        assert!(!early || session.is_reused());
        write(&mut stream, answer).await.unwrap();
        // The client finishes, and says no more.
        while session.in_early_data() {
            let mut buf = Vec::with_capacity(100);
            poll_fn(|cx| match stream.poll_read(cx, &mut buf) {
                Poll::Ready(read) => panic!("{read:?}"),
                Poll::Pending if session.in_early_data() => Poll::Pending,
                Poll::Pending => Poll::Ready(()),
            })
            .await;
        }
        let still = session.in_early_data();
        write(&mut stream, b"!").await.unwrap();
        poll_fn(|cx| stream.poll_shutdown(cx)).await.unwrap();
        (early, still)
    });
    let (accepted, got) = asking.join().unwrap();
    assert!(got == [answer, b"!"].concat());
    (early, still, accepted)
}

#[test]
fn early_data_is_read_and_answered_before_the_client_finishes() {
    let (mut settings, root) = settings(Key::P256);
    settings.early_data = true;
    settings.resumption.tickets = Some(TicketKeys::rotating(300));
    let server = ServerConfig::new(&settings).unwrap();
    for answer in [&b"answer"[..], &[7; 300_000]] {
        let client = client(&root);
        assert_eq!(exchange(&server, &client, answer), (false, false, false));
        assert_eq!(exchange(&server, &client, answer), (true, false, true));
        assert_eq!(exchange(&server, &client, answer), (true, false, true));
    }
}

#[test]
fn without_the_directive_nothing_is_early() {
    let (mut settings, root) = settings(Key::P256);
    settings.resumption.tickets = Some(TicketKeys::rotating(300));
    let server = ServerConfig::new(&settings).unwrap();
    let client = client(&root);
    for _ in 0..3 {
        assert_eq!(exchange(&server, &client, b"answer"), (false, false, false));
    }
}

#[test]
fn nothing_is_early_where_clients_are_verified() {
    let (mut settings, root) = settings(Key::P256);
    settings.early_data = true;
    settings.client_auth = Some(ClientAuth::default());
    settings.resumption.tickets = Some(TicketKeys::rotating(300));
    let server = ServerConfig::new(&settings).unwrap();
    let client = client(&root);
    for _ in 0..2 {
        assert_eq!(exchange(&server, &client, b"answer"), (false, false, false));
    }
}
