//! Revocation lists that webpki does not read: those of version 1, without extensions or without an end,
//! as `openssl ca -gencrl` makes them where no `crl_extensions` are named. OpenSSL takes them
//! (`check_crl`, `cert_crl`).
//! Invariant: a list that must be understood further than here (a part of a list, say) is none of these.

use std::collections::HashSet;

use rustls::{
    crypto::WebPkiSupportedAlgorithms,
    pki_types::{SubjectPublicKeyInfoDer, UnixTime},
};
use webpki::{Error, RawPublicKeyEntity};
use x509_parser::{
    oid_registry::{OID_X509_EXT_DELTA_CRL_INDICATOR, OID_X509_EXT_ISSUER_DISTRIBUTION_POINT},
    prelude::{CertificateRevocationList, FromDer, X509Extension},
};

use crate::x509::Certificate;

/// A list.
pub(crate) struct PlainList {
    /// The name of who signed it.
    issuer: Vec<u8>,
    next_update_s: Option<i64>,
    serials: HashSet<Vec<u8>>,
    signed: Vec<u8>,
    signature: Vec<u8>,
}

impl PlainList {
    /// Whether the issuer of that certificate is named as the list's.
    pub fn is_by_issuer_of(&self, certificate: &Certificate<'_>) -> bool {
        self.issuer == certificate.parsed().issuer().as_raw()
    }

    /// `None`: it is not one.
    pub(crate) fn parse(der: &[u8]) -> Option<PlainList> {
        let (rest, list) = CertificateRevocationList::from_der(der).ok()?;
        let is_part = |extension: &X509Extension<'_>| {
            extension.oid == OID_X509_EXT_DELTA_CRL_INDICATOR
                || extension.oid == OID_X509_EXT_ISSUER_DISTRIBUTION_POINT
        };
        let mut entries = list.iter_revoked_certificates().flat_map(|entry| entry.extensions());
        let is_plain = list.extensions().iter().all(|one| !one.critical && !is_part(one))
            && entries.all(|one| !one.critical);
        (rest.is_empty() && is_plain).then(|| PlainList {
            issuer: list.issuer().as_raw().to_vec(),
            next_update_s: list.next_update().map(|time| time.timestamp()),
            serials: list
                .iter_revoked_certificates()
                .map(|one| one.raw_serial().to_vec())
                .collect(),
            // Were there more than was understood, the signature would be over something else.
            signed: list.tbs_cert_list.as_ref().to_vec(),
            signature: list.signature_value.data.to_vec(),
        })
    }

    fn judge(
        &self,
        serial: &[u8],
        issuer: &SubjectPublicKeyInfoDer<'_>,
        now: UnixTime,
        known: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        if !is_signed(&self.signed, &self.signature, issuer, known) {
            return Err(Error::InvalidCrlSignatureForPublicKey);
        }
        if self.serials.contains(serial) {
            return Err(Error::CertRevoked);
        }
        match self.next_update_s.map(|at| UnixTime::since_unix_epoch(seconds(at))) {
            Some(next_update) if next_update <= now => {
                Err(Error::CrlExpired { time: now, next_update })
            }
            _ => Ok(()),
        }
    }
}

fn seconds(at: i64) -> std::time::Duration {
    std::time::Duration::from_secs(at.try_into().unwrap_or(0))
}

/// What these lists say of a certificate whose issuer has that key; `None`: nothing.
pub(crate) fn judge<'a>(
    lists: impl IntoIterator<Item = &'a PlainList>,
    certificate: &Certificate<'_>,
    issuer: &SubjectPublicKeyInfoDer<'_>,
    now: UnixTime,
    known: &WebPkiSupportedAlgorithms,
) -> Option<Result<(), Error>> {
    let parsed = certificate.parsed();
    let of_issuer = lists.into_iter().filter(|list| list.is_by_issuer_of(certificate));
    let said: Vec<_> =
        of_issuer.map(|list| list.judge(parsed.raw_serial(), issuer, now, known)).collect();
    // A list that is good does for one that is over, but for what that revokes.
    let revoked = said.iter().find(|one| matches!(one, Err(Error::CertRevoked)));
    revoked.or_else(|| said.iter().find(|one| one.is_ok())).or(said.first()).cloned()
}

/// Whether the owner of that key has signed it.
pub(crate) fn is_signed(
    message: &[u8],
    signature: &[u8],
    key: &SubjectPublicKeyInfoDer<'_>,
    known: &WebPkiSupportedAlgorithms,
) -> bool {
    let Ok(key) = RawPublicKeyEntity::try_from(key) else { return false };
    known.all.iter().any(|one| key.verify_signature(*one, message, signature).is_ok())
}
