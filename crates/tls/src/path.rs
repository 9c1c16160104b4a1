//! Paths from certificates that webpki takes for no leaf: those older than version 3, and those of
//! authorities, as `openssl ca` makes them of everything where its `x509_extensions` say so. OpenSSL takes
//! both (`build_chain`, `check_extensions`).
//! Invariant: what cannot be judged here (constraints of names, say) fails.

use rustls::{
    crypto::WebPkiSupportedAlgorithms,
    pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime},
};
use webpki::EndEntityCert;

use crate::{
    revocation::{self, PlainList},
    verify::{Purpose, code_of, expiry, is_self_issued},
    x509::Certificate,
};

/// OpenSSL's number for a path that ends below the roots.
pub(crate) const NO_ISSUER: u32 = 20;

/// What a path is looked for among, and by.
pub(crate) struct Search<'a> {
    pub roots: &'a [Certificate<'a>],
    pub between: &'a [CertificateDer<'a>],
    /// `None`: nobody asks for lists.
    pub lists: Option<Vec<&'a PlainList>>,
    /// How many authorities may stand between.
    pub depth: usize,
    pub purpose: Purpose,
    pub now: UnixTime,
    pub algorithms: &'a WebPkiSupportedAlgorithms,
    /// How many signatures may still be checked: namesakes make many paths.
    pub budget: u32,
}

impl Search<'_> {
    /// Follows the signatures from a certificate to a root; `passed`: the authorities below it, with itself
    /// where it is one. The error is OpenSSL's number.
    pub(crate) fn climb(
        &mut self,
        certificate: &Certificate<'_>,
        passed: usize,
    ) -> Result<(), u32> {
        let mut failure = NO_ISSUER;
        for root in self.roots {
            if self.has_signed(root, certificate) {
                match self.step(certificate, root, passed) {
                    Ok(()) => return Ok(()),
                    Err(code) => failure = code,
                }
            }
        }
        for der in self.between {
            let Some(issuer) = Certificate::parse(der).filter(|one| !is_self_issued(one)) else {
                continue;
            };
            if !self.has_signed(&issuer, certificate) {
                continue;
            }
            let through = authority(der, &issuer)
                .and_then(|()| self.step(certificate, &issuer, passed))
                .and_then(|()| match passed < self.depth {
                    true => self.climb(&issuer, passed + 1),
                    false => Err(22),
                });
            match through {
                Ok(()) => return Ok(()),
                Err(NO_ISSUER) => {}
                Err(code) => failure = code,
            }
        }
        Err(failure)
    }

    fn has_signed(&mut self, issuer: &Certificate<'_>, certificate: &Certificate<'_>) -> bool {
        let parsed = certificate.parsed();
        if issuer.parsed().subject().as_raw() != parsed.issuer().as_raw() || self.budget == 0 {
            return false;
        }
        self.budget -= 1;
        let (signed, signature) = (parsed.tbs_certificate.as_ref(), &parsed.signature_value.data);
        revocation::is_signed(signed, signature, &key_of(issuer), self.algorithms)
    }

    /// Whether an issuer, a root or another authority, may have signed that certificate, and still
    /// stands by it.
    fn step(
        &self,
        certificate: &Certificate<'_>,
        issuer: &Certificate<'_>,
        passed: usize,
    ) -> Result<(), u32> {
        if let Some(code) = expiry(issuer, self.now.as_secs() as i64) {
            return Err(code);
        }
        let parsed = issuer.parsed();
        let constraints = parsed.basic_constraints().map_err(|_| 24_u32)?.map(|one| one.value);
        let is_too_long = |length: u32| usize::try_from(length).is_ok_and(|length| passed > length);
        match constraints {
            Some(constraints) if !constraints.ca => return Err(24),
            Some(constraints) if constraints.path_len_constraint.is_some_and(is_too_long) => {
                return Err(25);
            }
            _ => {}
        }
        let usage = parsed.key_usage().map_err(|_| 24_u32)?;
        if usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err(24);
        }
        if !self.purpose.suits_extended(issuer) {
            return Err(26);
        }
        if !matches!(parsed.name_constraints(), Ok(None)) {
            return Err(47);
        }
        self.unrevoked(certificate, issuer)
    }

    fn unrevoked(
        &self,
        certificate: &Certificate<'_>,
        issuer: &Certificate<'_>,
    ) -> Result<(), u32> {
        let Some(lists) = &self.lists else { return Ok(()) };
        let said = revocation::judge(
            lists.iter().copied(),
            certificate,
            &key_of(issuer),
            self.now,
            self.algorithms,
        );
        said.ok_or(3_u32)?.map_err(|error| code_of(&error))
    }
}

/// A root is one because it is trusted; another certificate has to say so, and nothing critical that nobody
/// understands.
fn authority(der: &CertificateDer<'_>, certificate: &Certificate<'_>) -> Result<(), u32> {
    match EndEntityCert::try_from(der) {
        Ok(_) => {}
        Err(webpki::Error::UnsupportedCertVersion) => return Err(24),
        Err(error) => return Err(code_of(&error)),
    }
    let is_one = matches!(certificate.parsed().basic_constraints(), Ok(Some(_)));
    if is_one { Ok(()) } else { Err(24) }
}

fn key_of(certificate: &Certificate<'_>) -> SubjectPublicKeyInfoDer<'static> {
    SubjectPublicKeyInfoDer::from(certificate.public_key().to_vec())
}
