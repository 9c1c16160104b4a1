//! Certificates and keys as operators have them: PEM files, read by the caller.
//!
//! Answers `ngx_ssl_certificate` and `ngx_ssl_cache_cert_create`, `ngx_ssl_cache_pkey_create`; the
//! errors are what nginx prints behind `cannot load certificate "FILE": `.
//! Invariant: no file is opened here.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::{
    crypto::aws_lc_rs::sign::any_supported_type,
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
        pem::{self, SectionKind},
    },
    sign::{CertifiedKey, SigningKey},
};

use crate::{
    key,
    x509::{self, Certificate},
};

/// A certificate and those that lead from it to a root, in the order in which they are sent.
#[derive(Clone, Debug)]
pub struct Chain(pub(crate) Vec<CertificateDer<'static>>);

/// A private key that can sign.
#[derive(Clone, Debug)]
pub struct PrivateKey(pub(crate) Arc<dyn SigningKey>);

/// A chain and the key of its first certificate, which fit; and what is stapled to them. Clones share
/// it all.
#[derive(Clone, Debug)]
pub struct KeyPair(Arc<Pair>);

#[derive(Debug)]
struct Pair {
    chain: Vec<CertificateDer<'static>>,
    current: RwLock<Arc<CertifiedKey>>,
}

impl KeyPair {
    /// The certificates, the own one first.
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.chain
    }
}

impl Chain {
    /// Reads all certificates of a PEM file. The error is the text behind the file's name.
    pub fn from_pem(text: &[u8]) -> Result<Chain, String> {
        let certificates = certificates_from_pem(text)
            .map_err(|error| format!("PEM_read_bio_X509_AUX() failed (SSL: {error})"))?;
        if let Some(text) = certificates.iter().find_map(|der| x509::problem(der)) {
            return Err(format!("PEM_read_bio_X509_AUX() failed ({text})"));
        }
        Ok(Chain(certificates))
    }

    /// Says so if the certificates are all there, but not in the order from the server's own to the
    /// root (RFC 8446 §4.4.2): clients fail on it, one sooner, one later.
    pub fn misordered(&self) -> Option<String> {
        x509::misordered(&self.0)
    }

    /// What is doubtful about it, each as a sentence: expired, not valid yet, with a stranger in it.
    /// `now_s`: seconds since 1970.
    pub fn warnings(&self, now_s: i64) -> Vec<String> {
        x509::chain_warnings(&self.0, now_s)
    }
}

/// The certificates of a PEM file (`ssl_client_certificate`, `ssl_trusted_certificate`). The error is
/// OpenSSL's, without the function.
pub fn certificates_from_pem(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut found = Vec::new();
    for section in pem_sections(text) {
        match section {
            Ok((SectionKind::Certificate, mut der)) => {
                // What stands behind it in a trusted one (`openssl x509 -trustout`) is not sent.
                der.truncate(x509::len(&der));
                found.push(CertificateDer::from(der));
            }
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
    match found.is_empty() {
        // ERR_LIB_PEM, PEM_R_NO_START_LINE.
        true => {
            Err("error:0480006C:PEM routines::no start line:Expecting: TRUSTED CERTIFICATE"
                .to_owned())
        }
        false => Ok(found),
    }
}

/// The revocation lists of a PEM file (`ssl_crl`). The error is OpenSSL's, without the function.
pub fn crls_from_pem(text: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let mut found = Vec::new();
    for section in pem_sections(text) {
        if let (SectionKind::Crl, der) = section? {
            found.push(CertificateRevocationListDer::from(der));
        }
    }
    match found.is_empty() {
        true => Err("error:0480006C:PEM routines::no start line:Expecting: X509 CRL".to_owned()),
        false => Ok(found),
    }
}

/// What stands between the BEGIN and END lines that rustls knows, decoded.
fn pem_sections(text: &[u8]) -> impl Iterator<Item = Result<(SectionKind, Vec<u8>), String>> {
    let text = relabel(text);
    let mut rest = std::io::Cursor::new(text);
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        match pem::from_buf(&mut rest) {
            Ok(Some(section)) => Some(Ok(section)),
            Ok(None) => None,
            Err(error) => {
                ended = true;
                Some(Err(pem_error(&error)))
            }
        }
    })
}

/// OpenSSL writes certificates with trust settings, and old programs X509, under other names; Windows
/// begins files with a mark.
fn relabel(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_start_matches('\u{feff}');
    let text = text.replace("X509 CERTIFICATE-----", "CERTIFICATE-----");
    text.replace("TRUSTED CERTIFICATE-----", "CERTIFICATE-----").into_bytes()
}

fn pem_error(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            "error:04800066:PEM routines::bad end line".to_owned()
        }
        pem::Error::Base64Decode(_) => "error:04800064:PEM routines::bad base64 decode".to_owned(),
        _ => "error:0480006C:PEM routines::no start line".to_owned(),
    }
}

impl PrivateKey {
    /// Reads the key of a PEM file; `passwords` are tried one after the other if it is encrypted
    /// (`ssl_password_file`). The error is the text behind the file's name.
    pub fn from_pem(text: &[u8], passwords: &[Vec<u8>]) -> Result<PrivateKey, String> {
        let der = key::read(text, passwords)
            .map_err(|error| format!("PEM_read_bio_PrivateKey() failed (SSL: {error})"))?;
        PrivateKey::from_der(der)
    }

    fn from_der(der: PrivateKeyDer<'static>) -> Result<PrivateKey, String> {
        any_supported_type(&der).map(PrivateKey).map_err(|_| {
            "PEM_read_bio_PrivateKey() failed (the key is of a kind that is not supported: use RSA \
             of 2048 to 8192 bits, ECDSA on P-256, P-384 or P-521, or Ed25519)"
                .to_owned()
        })
    }
}

impl KeyPair {
    /// Puts chain and key together. The error is OpenSSL's for a key of another certificate, to stand
    /// behind `SSL_CTX_use_PrivateKey("FILE") failed`.
    pub fn new(chain: &Chain, key: &PrivateKey) -> Result<KeyPair, String> {
        let pair = CertifiedKey::new(chain.0.clone(), key.0.clone());
        // Not `CertifiedKey::keys_match`, which knows no certificates of version 1.
        let leaf = pair.cert.first().and_then(|der| Certificate::parse(der));
        let same = match (&leaf, pair.key.public_key()) {
            (Some(leaf), Some(key)) => leaf.public_key() == key.as_ref(),
            (leaf, None) => leaf.is_some(),
            (None, _) => false,
        };
        match same {
            true => Ok(KeyPair::of(pair)),
            false => {
                Err("(SSL: error:05800074:x509 certificate routines::key values mismatch)"
                    .to_owned())
            }
        }
    }

    fn of(pair: CertifiedKey) -> KeyPair {
        let chain = pair.cert.clone();
        KeyPair(Arc::new(Pair { chain, current: RwLock::new(Arc::new(pair)) }))
    }

    /// The same with a stapled OCSP response, in DER (`ssl_stapling_file`); `None`: without one.
    pub fn with_ocsp(&self, response: Option<Vec<u8>>) -> KeyPair {
        let mut pair = (*self.current()).clone();
        pair.ocsp = response;
        KeyPair::of(pair)
    }

    /// Staples another OCSP response from now on, wherever this pair serves (`ssl_stapling`).
    pub fn staple(&self, response: Option<Vec<u8>>) {
        let mut pair = (*self.current()).clone();
        pair.ocsp = response;
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(pair);
    }

    pub(crate) fn current(&self) -> Arc<CertifiedKey> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The certificates, the server's own first, in DER.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.0.chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::certs::{Authority, Leaf};

    #[test]
    fn chains_are_told_to_be_out_of_order_or_out_of_date() {
        let root = Authority::root("Root");
        let below = root.intermediate("Below");
        let leaf = below.issue(Leaf::default()).certificate;
        let stranger = Authority::root("Stranger");
        let chain = |pems: &[&str]| Chain::from_pem(pems.concat().as_bytes()).unwrap();
        // 2026.
        let now_s = 1_780_000_000;
        let good = chain(&[&leaf, below.pem(), root.pem()]);
        assert_eq!((good.misordered(), good.warnings(now_s)), (None, Vec::new()));
        let wrong = chain(&[&leaf, root.pem(), below.pem()]);
        let text = wrong.misordered().unwrap();
        assert!(text.starts_with("the chain is in the wrong order: \"CN=localhost"), "{text}");
        let wrong = chain(&[below.pem(), &leaf]);
        assert!(wrong.misordered().is_some());
        let odd = chain(&[&leaf, below.pem(), stranger.pem()]);
        assert_eq!(odd.misordered(), None);
        assert!(odd.warnings(now_s)[0].contains("did not issue"));
        assert!(good.warnings(0)[0].contains("is not valid before Jan  2 00:00:00 2020 GMT"));
        assert!(good.warnings(4_000_000_000)[0].contains("expired on Jan  2 00:00:00 2049 GMT"));
    }

    #[test]
    fn files_are_read_or_refused_in_openssls_words() {
        let certificate = Authority::root("Root").pem().to_owned();
        let cut = certificate.replace("-----END CERTIFICATE-----", "");
        let garbled = certificate.replacen("M", "!", 1);
        let no_der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (text, want) in [
            ("", "no start line"),
            (&cut, "bad end line"),
            (&garbled, "bad base64 decode"),
            (no_der, "asn1 encoding routines"),
        ] {
            let error = Chain::from_pem(text.as_bytes()).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
        let marked = format!("\u{feff}{certificate}");
        assert!(Chain::from_pem(marked.as_bytes()).is_ok());
        assert!(crls_from_pem(certificate.as_bytes()).unwrap_err().contains("X509 CRL"));
    }
}
