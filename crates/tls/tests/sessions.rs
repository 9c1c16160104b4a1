//! Sessions resumed, and not resumed where they must not be.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use common::*;
use forebay_testkit::certs::{Authority, Key, Leaf};
use forebay_tls::*;

fn tickets(mut settings: ServerSettings) -> ServerSettings {
    settings.resumption.tickets = Some(TicketKeys::rotating(300));
    settings
}

fn cached(mut settings: ServerSettings) -> ServerSettings {
    settings.resumption.cache = Some(SessionCache::new(1 << 20));
    settings
}

/// A client like no other: those of equal settings share their sessions, also those of another test.
fn client(tls13: bool) -> Arc<ClientConfig> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let protocols = Protocols { tls12: !tls13, tls13 };
    let buffer_bytes = (16 << 10) - MADE.fetch_add(1, Ordering::Relaxed);
    let settings = ClientSettings { protocols, buffer_bytes, ..ClientSettings::default() };
    ClientConfig::new(&settings).unwrap()
}

/// Connects, and exchanges a byte each way so that tickets arrive; whether a session was resumed.
async fn resumed(server: &Arc<ServerConfig>, client: &ClientConfig) -> bool {
    let ((mut ours, session), (mut theirs, other)) = connected(server, client).await;
    write(&mut ours, b"x").await.unwrap();
    assert_eq!(read(&mut theirs, 4096).await.unwrap(), b"x");
    assert_eq!(session.is_reused(), other.is_reused());
    session.is_reused()
}

#[test]
fn sessions_are_resumed_by_ticket_and_by_cache_in_both_versions() {
    for tls13 in [false, true] {
        for prepare in [tickets, cached] {
            let server = ServerConfig::new(&prepare(settings(Key::P256).0)).unwrap();
            let client = client(tls13);
            run(async {
                assert!(!resumed(&server, &client).await);
                assert!(resumed(&server, &client).await, "tls13 {tls13}");
                assert!(resumed(&server, &client).await);
            });
        }
        let server = ServerConfig::new(&settings(Key::P256).0).unwrap();
        let client = client(tls13);
        run(async {
            assert!(!resumed(&server, &client).await);
            assert!(!resumed(&server, &client).await);
        });
    }
}

#[test]
fn sessions_outlive_their_configuration_with_what_they_are_bound_to() {
    for tls13 in [false, true] {
        for prepare in [tickets, cached] {
            let before = prepare(settings(Key::P256).0);
            let mut same = before.clone();
            same.buffer_bytes = 4096;
            let mut other_policy = before.clone();
            other_policy.client_auth = Some(ClientAuth::default());
            let client = client(tls13);
            let config = |settings: &ServerSettings| ServerConfig::new(settings).unwrap();
            run(async {
                resumed(&config(&before), &client).await;
                assert!(resumed(&config(&same), &client).await);
                // CVE-2025-23419: nor under another server's demands on clients.
                assert!(!resumed(&config(&other_policy), &client).await);
                assert!(!resumed(&config(&before), &client).await);
            });
        }
    }
}

#[test]
fn tickets_of_one_key_file_open_with_it_in_any_place() {
    let (base, _) = settings(Key::P256);
    let with = |files: &[Vec<u8>]| {
        let mut settings = base.clone();
        settings.resumption.tickets = Some(TicketKeys::from_files(files).unwrap());
        ServerConfig::new(&settings).unwrap()
    };
    let (old, new, other) = (vec![1; 48], vec![2; 80], vec![3; 48]);
    let client = client(true);
    run(async {
        resumed(&with(std::slice::from_ref(&old)), &client).await;
        assert!(resumed(&with(&[new.clone(), old.clone()]), &client).await);
        assert!(resumed(&with(std::slice::from_ref(&new)), &client).await);
        assert!(!resumed(&with(&[other]), &client).await);
    });
    assert_eq!(TicketKeys::from_files(&[old, vec![0; 47]]).unwrap_err().0, 1);
}

#[test]
fn a_session_is_resumed_with_the_certificate_of_its_client_verified_anew() {
    let (mut base, server_root) = settings(Key::P256);
    let root = Authority::root("Client Root");
    let issued = root.issue(Leaf { name: "me", client: true, serial: 7, ..Leaf::default() });
    base.client_auth = Some(ClientAuth { trust: trust(&[&root]), names: Vec::new() });
    for tls13 in [false, true] {
        let server = ServerConfig::new(&tickets(base.clone())).unwrap();
        let client = ClientConfig::new(&ClientSettings {
            certificate: Some(key_pair(&issued)),
            protocols: Protocols { tls12: !tls13, tls13 },
            verify: Some(trust(&[&server_root])),
            ..ClientSettings::default()
        });
        let client = client.unwrap();
        run(async {
            for again in [false, true] {
                let ((mut ours, session), (mut theirs, _)) = connected(&server, &client).await;
                assert_eq!(session.is_reused(), again);
                assert_eq!(session.verdict(), &Verdict::Success);
                assert_eq!(session.peer_certificates().len(), 1);
                write(&mut ours, b"x").await.unwrap();
                read(&mut theirs, 4096).await.unwrap();
            }
        });
    }
}
