//! Entry points of the fuzz targets in `fuzz/`: each parser of what a peer sends, with what must hold
//! whatever the bytes.
//! Invariant: exists for tests and fuzzing only.

use rustls::{ProtocolVersion, pki_types::CertificateDer};

use crate::{
    hello::{ClientHello, Scan, scan},
    ocsp, x509,
};

/// A ClientHello in its records, and as a message.
pub fn hello(data: &[u8]) {
    if let Scan::Hello(body) = scan(data) {
        // Whatever is found whole stays what it is when more follows.
        let longer = [data, b"more"].concat();
        assert_eq!(scan(&longer), Scan::Hello(body));
    }
    let hello = ClientHello::parse(data);
    assert!(hello.server_name().is_none_or(|name| name.is_ascii() && !name.is_empty()));
    assert!(hello.alpn().map(<[u8]>::len).sum::<usize>() <= data.len());
    let numbers = hello.ciphers().count() + hello.groups().count();
    assert!(2 * (numbers + hello.signature_schemes().count()) <= data.len());
}

/// A certificate: everything that the variables show.
pub fn certificate(data: &[u8]) {
    let Some(certificate) = x509::Certificate::parse(data) else { return };
    for text in [
        certificate.subject(),
        certificate.issuer(),
        certificate.subject_legacy(),
        certificate.issuer_legacy(),
        certificate.serial(),
        certificate.start(),
        certificate.end(),
    ] {
        // They go into headers and logs.
        assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
    }
    assert_eq!(certificate.fingerprint().len(), 40);
    assert!(certificate.remain_days(0) >= 0);
    let der = CertificateDer::from(data);
    crate::verify::is_for_host(&der, "www.example.com");
    let _ = ocsp::ocsp_responder(&der);
    let _ = ocsp::ocsp_request(&der, &der);
}

/// An OCSP response.
pub fn ocsp_response(data: &[u8]) {
    ocsp::fuzz(data);
}

/// Records that nobody sealed: never opened, in either version.
pub fn records(data: &[u8]) {
    for version in [ProtocolVersion::TLSv1_2, ProtocolVersion::TLSv1_3] {
        for chacha in [false, true] {
            let mut key = crate::records::test_key(version, chacha, 0);
            if let Some(Ok(len)) = crate::records::record_len(data)
                && len <= data.len()
            {
                assert!(key.open(&mut data[..len].to_vec()).is_err());
            }
        }
    }
}

/// What operators write: a list of ciphers, and keys and certificates in PEM.
pub fn configuration(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = crate::Ciphers::parse(&text);
    let _ = crate::Groups::parse(&text);
    let _ = crate::PrivateKey::from_pem(data, &[b"password".to_vec()]);
    let _ = crate::Chain::from_pem(data);
    let _ = crate::crls_from_pem(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::certs::{Authority, Leaf};

    /// Changes, cuts and doubles bytes at places that a number decides.
    fn mutate(seed: &[u8], mut state: u64) -> Vec<u8> {
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below.max(1)
        };
        let mut out = seed.to_vec();
        for _ in 0..1 + next(6) {
            let at = next(out.len());
            match next(5) {
                0 => out.truncate(at),
                1 => out.extend_from_within(at..),
                2 => out.insert(at.min(out.len()), [0, 0x7f, 0x80, 0xff, 0x30][next(5)]),
                _ if !out.is_empty() => out[at] ^= 1 << next(8),
                _ => {}
            }
        }
        out
    }

    #[test]
    fn nothing_that_a_peer_sends_is_a_panic() {
        let root = Authority::root("Root");
        let issued = root.issue(Leaf::default());
        let der = crate::certificates_from_pem(issued.certificate.as_bytes()).unwrap().remove(0);
        let hello: Vec<u8> = (0..120u8).map(|n| n.wrapping_mul(7)).collect();
        let hello = [&[22, 3, 1, 0, 124, 1, 0, 0, 120][..], &hello].concat();
        let record = [&[23, 3, 3, 0, 64][..], &[9; 64]].concat();
        for state in 0..3000 {
            self::hello(&mutate(&hello, state));
            certificate(&mutate(&der, state));
            ocsp_response(&mutate(&der, state));
            records(&mutate(&record, state));
            if state % 10 == 0 {
                configuration(&mutate(issued.certificate.as_bytes(), state));
                configuration(&mutate(issued.key.as_bytes(), state));
                configuration(&mutate(b"HIGH:!aNULL:+ECDHE:@STRENGTH:X25519:prime256v1", state));
            }
        }
    }
}
