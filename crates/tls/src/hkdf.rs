//! The key schedule of TLS 1.3 over AWS-LC's HMAC, with keys that are set up once.
//!
//! rustls's own binding extracts a secret anew for each key that it expands from it, and sets the HMAC
//! up each time: a resumed handshake computes twice as many hash blocks as it must, which with SHA-384
//! is a quarter of its time. Here each secret is extracted once (RFC 5869; RFC 8446 §7.1).
//! Invariant: the same results; what is computed is rustls's `HkdfUsingHmac`.

use std::sync::LazyLock;

use aws_lc_rs::hmac;
use rustls::{
    SupportedCipherSuite, Tls13CipherSuite,
    crypto::{
        CipherSuiteCommon, hmac as rustls_hmac,
        tls13::{Hkdf, HkdfUsingHmac},
    },
};

struct Hmac(hmac::Algorithm);

struct Key(hmac::Key);

impl rustls_hmac::Hmac for Hmac {
    fn with_key(&self, key: &[u8]) -> Box<dyn rustls_hmac::Key> {
        Box::new(Key(hmac::Key::new(self.0, key)))
    }

    fn hash_output_len(&self) -> usize {
        self.0.digest_algorithm().output_len
    }
}

impl rustls_hmac::Key for Key {
    fn sign_concat(&self, first: &[u8], middle: &[&[u8]], last: &[u8]) -> rustls_hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(first);
        middle.iter().for_each(|part| context.update(part));
        context.update(last);
        rustls_hmac::Tag::new(context.sign().as_ref())
    }

    fn tag_len(&self) -> usize {
        self.0.algorithm().digest_algorithm().output_len
    }
}

static SHA256: HkdfUsingHmac<'static> = HkdfUsingHmac(&Hmac(hmac::HMAC_SHA256));
static SHA384: HkdfUsingHmac<'static> = HkdfUsingHmac(&Hmac(hmac::HMAC_SHA384));

/// The suite with its key schedule replaced; one of TLS 1.2 stays as it is.
pub(crate) fn with_hkdf(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    static REPLACED: LazyLock<Vec<&'static Tls13CipherSuite>> = LazyLock::new(|| {
        let known = rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES.iter();
        known.filter_map(|suite| suite.tls13()).map(replaced).collect()
    });
    let found = REPLACED.iter().find(|replaced| replaced.common.suite == suite.suite());
    found.map_or(suite, |replaced| SupportedCipherSuite::Tls13(replaced))
}

fn replaced(suite: &'static Tls13CipherSuite) -> &'static Tls13CipherSuite {
    let hkdf: &'static dyn Hkdf = match suite.common.hash_provider.output_len() {
        32 => &SHA256,
        48 => &SHA384,
        _ => suite.hkdf_provider,
    };
    // Three of them, made once: rustls wants suites that live for ever.
    Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: suite.common.confidentiality_limit,
        },
        hkdf_provider: hkdf,
        aead_alg: suite.aead_alg,
        quic: suite.quic,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::{aws_lc_rs::ALL_CIPHER_SUITES, tls13::OkmBlock};

    #[test]
    fn secrets_are_those_of_rustls() {
        for theirs in ALL_CIPHER_SUITES.iter().filter_map(|suite| suite.tls13()) {
            let ours = with_hkdf(SupportedCipherSuite::Tls13(theirs));
            let (ours, theirs) = (ours.tls13().unwrap().hkdf_provider, theirs.hkdf_provider);
            let expanders = |hkdf: &'static dyn Hkdf| {
                let okm = OkmBlock::new(&[8; 48][..hkdf.extract_from_zero_ikm(None).hash_len()]);
                [
                    hkdf.extract_from_zero_ikm(None),
                    hkdf.extract_from_zero_ikm(Some(b"salt")),
                    hkdf.extract_from_secret(None, b"secret"),
                    hkdf.extract_from_secret(Some(b"salt"), b"secret"),
                    hkdf.expander_for_okm(&okm),
                ]
            };
            for (ours, theirs) in expanders(ours).iter().zip(&expanders(theirs)) {
                let info: [&[u8]; 2] = [b"tls13 ", b"key"];
                assert_eq!(ours.expand_block(&info).as_ref(), theirs.expand_block(&info).as_ref());
                let mut two = [[0; 100]; 2];
                ours.expand_slice(&info, &mut two[0]).unwrap();
                theirs.expand_slice(&info, &mut two[1]).unwrap();
                assert_eq!(two[0], two[1]);
            }
            let okm = OkmBlock::new(&[7; 32]);
            let tags = [ours.hmac_sign(&okm, b"message"), theirs.hmac_sign(&okm, b"message")];
            assert_eq!(tags[0].as_ref(), tags[1].as_ref());
        }
    }
}
