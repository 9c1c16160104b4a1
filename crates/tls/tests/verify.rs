//! Certificates of clients and upstreams: what verifies, and what OpenSSL's words are for the rest.

mod common;

use common::*;
use forebay_testkit::certs::{Authority, Issued, Key, Leaf};
use forebay_tls::*;

struct Case<'a> {
    name: &'a str,
    trust: Trust,
    chain: Option<Issued>,
    want: &'a str,
}

fn with_chain(issued: &Issued, chain: &[&Authority]) -> Issued {
    let mut certificate = issued.certificate.clone();
    chain.iter().for_each(|authority| certificate.push_str(authority.pem()));
    Issued { certificate, key: issued.key.clone() }
}

#[test]
fn client_certificates_are_judged_as_openssl_judges_them() {
    let root = Authority::root("Client Root");
    let below = root.intermediate("Client Below");
    let deepest = below.intermediate("Client Deepest");
    let stranger = Authority::root("Stranger");
    let leaf = Leaf { name: "me", client: true, serial: 66, ..Leaf::default() };
    let good = root.issue(leaf);
    let deep = below.issue(leaf);
    let deeper = deepest.issue(leaf);
    let crl = |authority: &Authority, revoked: &[u64]| {
        crls_from_pem(authority.crl(revoked).as_bytes()).unwrap()
    };
    let listed = Trust { crls: crl(&root, &[1]), ..trust(&[&root]) };
    let revoked = Trust { crls: crl(&root, &[66]), ..trust(&[&root]) };
    let unlisted = Trust { crls: crl(&stranger, &[1]), ..trust(&[&root]) };
    let shallow = Trust { depth: 0, ..trust(&[&root]) };
    let case =
        |name, trust, chain: &Issued, want| Case { name, trust, chain: Some(chain.clone()), want };
    let cases = [
        Case { name: "none", trust: trust(&[&root]), chain: None, want: "NONE" },
        case("good", trust(&[&root]), &good, "SUCCESS"),
        case("chain", trust(&[&root]), &with_chain(&deep, &[&below]), "SUCCESS"),
        case("known between", trust(&[&root, &below]), &deep, "SUCCESS"),
        case(
            "between missing",
            trust(&[&root]),
            &deep,
            "FAILED:unable to verify the first certificate",
        ),
        case("root missing", trust(&[&below]), &deep, "FAILED:unable to get issuer certificate"),
        case(
            "root unknown",
            trust(&[&stranger]),
            &with_chain(&deep, &[&below]),
            "FAILED:unable to get local issuer certificate",
        ),
        case(
            "root sent",
            trust(&[&stranger]),
            &with_chain(&good, &[&root]),
            "FAILED:self-signed certificate in certificate chain",
        ),
        case(
            "depth 1",
            trust(&[&root]),
            &with_chain(&deeper, &[&deepest, &below]),
            "FAILED:certificate chain too long",
        ),
        case(
            "depth 0",
            shallow,
            &with_chain(&deep, &[&below]),
            "FAILED:certificate chain too long",
        ),
        case(
            "expired",
            trust(&[&root]),
            &root.issue(Leaf { expired: true, ..leaf }),
            "FAILED:certificate has expired",
        ),
        case(
            "a server's",
            trust(&[&root]),
            &root.issue(Leaf { client: false, ..leaf }),
            "FAILED:unsuitable certificate purpose",
        ),
        case("listed", listed, &good, "SUCCESS"),
        case("revoked", revoked, &good, "FAILED:certificate revoked"),
        case("no list", unlisted, &good, "FAILED:unable to get certificate CRL"),
    ];
    judge(cases);
}

/// Has a server of that trust judge each, in both versions of TLS.
fn judge<'a>(cases: impl IntoIterator<Item = Case<'a>>) {
    let (base, _) = settings(Key::P256);
    for Case { name, trust, chain, want } in cases {
        let names = trust.certificates.clone();
        let client_auth = Some(ClientAuth { trust, names });
        let server = ServerConfig::new(&ServerSettings { client_auth, ..base.clone() }).unwrap();
        for tls13 in [false, true] {
            // Without SNI: nothing depends on it.
            let client = ClientConfig::new(&ClientSettings {
                certificate: chain.as_ref().map(key_pair),
                protocols: Protocols { tls12: !tls13, tls13 },
                ..ClientSettings::default()
            });
            run(async {
                let accepted = shake(&server, &client.unwrap()).await.0;
                let session = accepted.unwrap().1;
                // A client that knows none of the named authorities sends nothing at all.
                let sent = !session.peer_certificates().is_empty();
                if sent || chain.is_none() {
                    assert_eq!(session.verdict().to_string(), want, "{name}");
                    assert_eq!(session.peer_signature_algorithm().is_some(), sent);
                }
            });
        }
    }
}

/// As `openssl req -x509` and `openssl x509 -req` make them where no extensions are named.
#[test]
fn certificates_of_version_1_serve_and_are_judged() {
    let root = include_str!("version1/root.crt");
    let leaf = Issued {
        certificate: include_str!("version1/leaf.crt").to_owned(),
        key: include_str!("version1/leaf.key").to_owned(),
    };
    let trusting = |pem: &str| {
        let certificates = certificates_from_pem(pem.as_bytes()).unwrap();
        Trust { certificates, crls: Vec::new(), depth: 1 }
    };
    let namesake = Authority::root("root");
    let case = |name, trust, want| Case { name, trust, chain: Some(leaf.clone()), want };
    judge([
        case("issued", trusting(root), "SUCCESS"),
        case("namesake", trust(&[&namesake]), "FAILED:unable to verify the first certificate"),
    ]);
    let server =
        ServerSettings { certificates: vec![key_pair(&leaf)], ..ServerSettings::default() };
    let server = ServerConfig::new(&server).unwrap();
    for tls13 in [false, true] {
        let protocols = Protocols { tls12: !tls13, tls13 };
        let settings = ClientSettings { protocols, ..ClientSettings::default() };
        let client = ClientConfig::new(&settings).unwrap();
        run(async { assert!(shake(&server, &client).await.1.is_ok()) });
    }
}

/// A root that may be shown itself.
struct Made {
    pem: String,
    key: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Made {
    fn new(name: &str) -> Made {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.serial_number = Some(rcgen::SerialNumber::from(66_u64));
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let (pem, text) = (params.self_signed(&key).unwrap().pem(), key.serialize_pem());
        Made { pem, key: text, issuer: rcgen::Issuer::new(params, key) }
    }

    fn list(&self, revoked: &[u64]) -> String {
        let revoked = revoked.iter().map(|serial| rcgen::RevokedCertParams {
            serial_number: rcgen::SerialNumber::from(*serial),
            revocation_time: rcgen::date_time_ymd(2022, 1, 2),
            reason_code: None,
            invalidity_date: None,
        });
        let params = rcgen::CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2022, 1, 3),
            next_update: rcgen::date_time_ymd(2049, 1, 2),
            crl_number: rcgen::SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

/// What is shown, what is trusted, by which lists; what comes of it.
type Shown<'a> = (&'a Made, &'a Made, &'a str, &'a str);

fn judge_shown(cases: &[Shown<'_>]) {
    judge(cases.iter().map(|(shown, root, lists, want)| {
        let certificates = certificates_from_pem(root.pem.as_bytes()).unwrap();
        let crls = match *lists {
            "" => Vec::new(),
            lists => crls_from_pem(lists.as_bytes()).unwrap(),
        };
        let trust = Trust { certificates, crls, depth: 1 };
        let issued = Issued { certificate: shown.pem.clone(), key: shown.key.clone() };
        Case { name: want, trust, chain: Some(issued), want }
    }));
}

#[test]
fn roots_that_are_shown_are_held_against_lists() {
    let (root, namesake, stranger) = (Made::new("root"), Made::new("root"), Made::new("stranger"));
    let (of_root, of_stranger) = (root.list(&[]), stranger.list(&[]));
    let none = "FAILED:unable to get certificate CRL";
    judge_shown(&[
        (&root, &root, "", "SUCCESS"),
        (&root, &root, &of_root, "SUCCESS"),
        (&root, &root, &root.list(&[66]), "FAILED:certificate revoked"),
        (&root, &root, &of_stranger, none),
        (&stranger, &root, "", "FAILED:self-signed certificate"),
        (&stranger, &root, &of_root, none),
        (&namesake, &root, &of_root, "FAILED:self-signed certificate"),
    ]);
}

/// As `openssl ca -gencrl` makes them where no `crl_extensions` are named.
#[test]
fn lists_without_extensions_are_held_against_certificates() {
    let issued = |certificate: &str, key: &str| Issued {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    };
    let below = include_str!("lists/below.crt");
    let leaf = issued(include_str!("lists/leaf.crt"), include_str!("lists/leaf.key"));
    // Of version 1.
    let old = issued(include_str!("lists/old.crt"), include_str!("lists/old.key"));
    let deep = &(include_str!("lists/deep.crt").to_owned() + below);
    let deep = issued(deep, include_str!("lists/deep.key"));
    let [empty, revoked, over] = [
        include_str!("lists/empty.crl"),
        include_str!("lists/revoked.crl"),
        include_str!("lists/over.crl"),
    ];
    let [below_empty, below_revoked] =
        [include_str!("lists/below-empty.crl"), include_str!("lists/below-revoked.crl")];
    // By another key, but of the same name.
    let forged = include_str!("lists/forged.crl");
    let stranger = Authority::root("stranger").crl(&[]);
    let none = "FAILED:unable to get certificate CRL";
    let cases: [(&Issued, &[&str], &str); 14] = [
        (&leaf, &[empty], "SUCCESS"),
        (&leaf, &[revoked], "FAILED:certificate revoked"),
        (&leaf, &[over], "FAILED:CRL has expired"),
        (&leaf, &[over, empty], "SUCCESS"),
        (&leaf, &[below_empty], none),
        (&leaf, &[empty, &stranger], "SUCCESS"),
        (&leaf, &[below_empty, &stranger], none),
        (&leaf, &[forged], "FAILED:CRL signature failure"),
        (&old, &[empty], "SUCCESS"),
        (&old, &[revoked], "FAILED:certificate revoked"),
        (&old, &[&stranger], none),
        (&deep, &[empty, below_empty], "SUCCESS"),
        (&deep, &[empty, below_revoked], "FAILED:certificate revoked"),
        (&deep, &[below_empty], none),
    ];
    judge(cases.map(|(issued, lists, want)| {
        let certificates = certificates_from_pem(include_bytes!("lists/ca.crt")).unwrap();
        let crls = crls_from_pem(lists.concat().as_bytes()).unwrap();
        let trust = Trust { certificates, crls, depth: 1 };
        Case { name: "lists", trust, chain: Some(issued.clone()), want }
    }));
}

#[test]
fn upstream_certificates_are_held_against_their_name_and_root() {
    let (settings, root) = settings(Key::P256);
    let other = Authority::root("Other");
    let wildcard = root.issue(Leaf { name: "x", hosts: &["*.example.com"], ..Leaf::default() });
    let common = root.issue(Leaf { name: "www.example.org", hosts: &[], ..Leaf::default() });
    let cases: [(Option<Issued>, &Authority, &str, Option<&str>); 8] = [
        (None, &root, "localhost", None),
        (None, &root, "LOCALHOST", None),
        (None, &root, "elsewhere", Some("upstream SSL certificate does not match \"elsewhere\"")),
        (
            None,
            &other,
            "localhost",
            Some(
                "upstream SSL certificate verify error: (21:unable to verify the first certificate)",
            ),
        ),
        (Some(wildcard.clone()), &root, "a.example.com", None),
        (
            Some(wildcard.clone()),
            &root,
            "a.b.example.com",
            Some("upstream SSL certificate does not match \"a.b.example.com\""),
        ),
        (Some(wildcard), &root, "x", Some("upstream SSL certificate does not match \"x\"")),
        (Some(common), &root, "www.example.org", None),
    ];
    for (issued, authority, name, want) in cases {
        let mut settings = settings.clone();
        if let Some(issued) = issued {
            settings.certificates = vec![key_pair(&issued)];
        }
        let server = ServerConfig::new(&settings).unwrap();
        let verify = Some(trust(&[authority]));
        let client = ClientConfig::new(&ClientSettings { verify, ..ClientSettings::default() });
        let client = client.unwrap();
        run(async {
            let (ours, theirs) = pair();
            let connected =
                tokio::join!(accept(ours, Vec::new(), |_| Choice::Serve(server.clone())), async {
                    let (mut stream, session) = connect(theirs, &client, name).await?;
                    write(&mut stream, b"x").await.unwrap();
                    Ok::<_, ConnectError>(session)
                },);
            let found = match connected.1 {
                Ok(_) => None,
                Err(ConnectError::Certificate(text)) => Some(text),
                Err(error) => panic!("{name}: {error:?}"),
            };
            assert_eq!(found.as_deref(), want, "{name}");
        });
    }
}

#[test]
fn a_certificate_that_is_trusted_itself_verifies() {
    // openssl req -x509, as many upstreams have it: an authority that serves.
    let own = rcgen_self_signed();
    let settings = ServerSettings { certificates: vec![key_pair(&own)], ..Default::default() };
    let server = ServerConfig::new(&settings).unwrap();
    let certificates = certificates_from_pem(own.certificate.as_bytes()).unwrap();
    for (certificates, want) in [
        (certificates, None),
        (trust(&[&Authority::root("Other")]).certificates, Some("(18:self-signed certificate)")),
    ] {
        let verify = Some(Trust { certificates, crls: Vec::new(), depth: 1 });
        let client = ClientConfig::new(&ClientSettings { verify, ..Default::default() }).unwrap();
        run(async {
            let (_, connected) = shake(&server, &client).await;
            match (connected, want) {
                (Ok(_), None) => {}
                (Err(ConnectError::Certificate(text)), Some(want)) => {
                    assert!(text.contains(want), "{text}");
                }
                (_, want) => panic!("not {want:?}"),
            }
        });
    }
}

#[test]
fn certificates_are_taken_for_what_they_say_they_are_for() {
    use rcgen::{ExtendedKeyUsagePurpose as Extended, KeyUsagePurpose as Usage};
    // As `openssl verify -purpose sslclient` and `sslserver` have it.
    let cases: [(&[Usage], &[Extended], bool, bool); 10] = [
        (&[], &[], true, true),
        (&[Usage::DigitalSignature], &[], true, true),
        (&[Usage::KeyAgreement], &[], true, true),
        (&[Usage::KeyEncipherment], &[], false, true),
        (&[Usage::KeyCertSign], &[], false, false),
        (&[Usage::KeyCertSign, Usage::DigitalSignature], &[], true, true),
        (&[], &[Extended::ClientAuth], true, false),
        (&[], &[Extended::ServerAuth], false, true),
        (&[], &[Extended::Any], false, false),
        (&[Usage::KeyEncipherment], &[Extended::ClientAuth], false, false),
    ];
    let (base, _) = settings(Key::P256);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "Root");
    let root = params.self_signed(&key).unwrap().pem();
    let issuer = rcgen::Issuer::new(params, key);
    for (usages, extended, as_client, as_server) in cases {
        for self_signed in [false, true] {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.key_usages = usages.to_vec();
            params.extended_key_usages = extended.to_vec();
            let made = match self_signed {
                true => params.self_signed(&key),
                false => params.signed_by(&key, &issuer),
            };
            let issued = Issued { certificate: made.unwrap().pem(), key: key.serialize_pem() };
            let trusted = if self_signed { &issued.certificate } else { &root };
            let certificates = certificates_from_pem(trusted.as_bytes()).unwrap();
            let trust = Trust { certificates, crls: Vec::new(), depth: 1 };
            let shown = format!("{usages:?} {extended:?} {self_signed}");
            let client_auth = ClientAuth { trust: trust.clone(), names: Vec::new() };
            let server = ServerSettings { client_auth: Some(client_auth), ..base.clone() };
            let client = ClientSettings {
                certificate: Some(key_pair(&issued)),
                ..ClientSettings::default()
            };
            let verdict = verdict_of(&server, &client);
            assert_eq!(verdict == Verdict::Success, as_client, "client, {shown}: {verdict}");
            let server = ServerSettings {
                certificates: vec![key_pair(&issued)],
                ..ServerSettings::default()
            };
            let server = ServerConfig::new(&server).unwrap();
            let client = ClientSettings { verify: Some(trust), ..ClientSettings::default() };
            let client = ClientConfig::new(&client).unwrap();
            run(async {
                let taken = shake(&server, &client).await.1.is_ok();
                assert_eq!(taken, as_server, "server, {shown}");
            });
        }
    }
}

/// What is different about a certificate.
type Change = fn(&mut rcgen::CertificateParams);

fn authority(name: &str, change: Change) -> rcgen::CertificateParams {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    change(&mut params);
    params
}

/// What a server makes of a client's certificate below trusted roots, of one name and key, and, where there
/// is one, a certificate in between.
fn verdict_below(roots: &[Change], between: Option<Change>) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let roots: Vec<_> = roots.iter().map(|change| authority("Root", *change)).collect();
    let trusted: String = roots.iter().map(|root| root.self_signed(&key).unwrap().pem()).collect();
    let mut issuer = rcgen::Issuer::new(roots[0].clone(), key);
    let mut sent = String::new();
    if let Some(change) = between {
        let (params, key) = (authority("Between", change), rcgen::KeyPair::generate().unwrap());
        sent = params.signed_by(&key, &issuer).unwrap().pem();
        issuer = rcgen::Issuer::new(params, key);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(Vec::new()).unwrap();
    let certificate = leaf.signed_by(&key, &issuer).unwrap().pem() + &sent;
    let issued = Issued { certificate, key: key.serialize_pem() };
    let certificates = certificates_from_pem(trusted.as_bytes()).unwrap();
    let trust = Trust { certificates, crls: Vec::new(), depth: 5 };
    let (base, _) = settings(Key::P256);
    let server =
        ServerSettings { client_auth: Some(ClientAuth { trust, names: Vec::new() }), ..base };
    let certificate = Some(key_pair(&issued));
    verdict_of(&server, &ClientSettings { certificate, ..ClientSettings::default() }).to_string()
}

#[test]
fn who_signs_must_be_allowed_to() {
    use rcgen::{
        BasicConstraints::Constrained, CustomExtension, ExtendedKeyUsagePurpose as Extended, IsCa,
        KeyUsagePurpose as Usage, date_time_ymd,
    };
    let plain: Change = |_| {};
    // As nginx with OpenSSL 3.0 has it, of the root and of what stands between.
    let cases: [(Change, &str, &str); 11] = [
        (plain, "SUCCESS", "SUCCESS"),
        (|p| p.key_usages = vec![Usage::KeyCertSign], "SUCCESS", "SUCCESS"),
        (
            |p| p.key_usages = vec![Usage::CrlSign],
            "FAILED:key usage does not include certificate signing",
            "FAILED:key usage does not include certificate signing",
        ),
        (
            |p| p.is_ca = IsCa::ExplicitNoCa,
            "FAILED:unsuitable certificate purpose",
            "FAILED:unsuitable certificate purpose",
        ),
        (
            |p| p.is_ca = IsCa::NoCa,
            "FAILED:unsuitable certificate purpose",
            "FAILED:unsuitable certificate purpose",
        ),
        (
            |p| p.not_after = date_time_ymd(2020, 1, 1),
            "FAILED:certificate has expired",
            "FAILED:certificate has expired",
        ),
        (
            |p| p.not_before = date_time_ymd(2100, 1, 1),
            "FAILED:certificate is not yet valid",
            "FAILED:certificate is not yet valid",
        ),
        (
            |p| p.extended_key_usages = vec![Extended::CodeSigning],
            "FAILED:unsuitable certificate purpose",
            "FAILED:unsuitable certificate purpose",
        ),
        (|p| p.extended_key_usages = vec![Extended::ClientAuth], "SUCCESS", "SUCCESS"),
        (
            |p| {
                let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3, 4, 5], vec![5, 0]);
                unknown.set_criticality(true);
                p.custom_extensions = vec![unknown];
            },
            "FAILED:unhandled critical extension",
            "FAILED:unhandled critical extension",
        ),
        (|p| p.is_ca = IsCa::Ca(Constrained(0)), "SUCCESS", "SUCCESS"),
    ];
    for (at, (change, of_root, of_between)) in cases.into_iter().enumerate() {
        assert_eq!(verdict_below(&[change], None), of_root, "root, {at}");
        assert_eq!(verdict_below(&[plain], Some(change)), of_between, "between, {at}");
    }
    let short: Change = |p| p.is_ca = IsCa::Ca(Constrained(0));
    assert_eq!(verdict_below(&[short], Some(plain)), "FAILED:path length constraint exceeded");
    // One that is renewed serves, two that each lack something do not.
    let expired: Change = |p| p.not_after = date_time_ymd(2020, 1, 1);
    assert_eq!(verdict_below(&[expired, plain], None), "SUCCESS");
    assert_eq!(verdict_below(&[plain, expired], None), "SUCCESS");
    let no_authority: Change = |p| p.is_ca = IsCa::ExplicitNoCa;
    assert!(verdict_below(&[expired, no_authority], None).starts_with("FAILED:"));
}

/// What a server makes of a client's certificate.
fn verdict_of(server: &ServerSettings, client: &ClientSettings) -> Verdict {
    let (server, client) = (ServerConfig::new(server).unwrap(), ClientConfig::new(client).unwrap());
    let mut verdict = Verdict::None;
    run(async {
        let accepted = shake(&server, &client).await.0;
        verdict = accepted.unwrap().1.verdict().clone();
    });
    verdict
}

fn rcgen_self_signed() -> Issued {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    Issued { certificate: certificate.pem(), key: key.serialize_pem() }
}
