//! OCSP (RFC 6960): requests, and what responses say. Who asks over HTTP, and when, is the caller's.
//!
//! Answers the parts of `ngx_event_openssl_stapling.c` that are not HTTP: `ngx_ssl_ocsp_create_request`
//! and `ngx_ssl_ocsp_verify`, with their texts.
//! Invariant: never panics, whatever the bytes: a response is peer input.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::{crypto::aws_lc_rs::default_provider, pki_types::CertificateDer};
use x509_parser::extensions::{GeneralName, ParsedExtension};

use crate::x509::Certificate;

/// How far clocks may be apart, in seconds (nginx's 300).
const LEEWAY_S: i64 = 300;

/// The content of a SHA-1 `AlgorithmIdentifier`: OID 1.3.14.3.2.26, NULL.
const SHA1: &[u8] = &[0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00];
/// id-pkix-ocsp-basic: 1.3.6.1.5.5.7.48.1.1.
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
/// id-ad-ocsp: 1.3.6.1.5.5.7.48.1.
const ACCESS_OCSP: &str = "1.3.6.1.5.5.7.48.1";

const SEQUENCE: u8 = 0x30;
const OCTETS: u8 = 0x04;
const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;

/// What a responder says of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OcspStatus {
    /// It is not revoked.
    Good,
    /// It is.
    Revoked,
    /// The responder does not know it.
    Unknown,
}

impl OcspStatus {
    /// OpenSSL's word (`OCSP_cert_status_str`).
    pub fn name(self) -> &'static str {
        match self {
            OcspStatus::Good => "good",
            OcspStatus::Revoked => "revoked",
            OcspStatus::Unknown => "unknown",
        }
    }
}

/// A response that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OcspResponse {
    /// Of the certificate that was asked about.
    pub status: OcspStatus,
    /// Until when it may be used, in seconds since 1970.
    pub valid_until_s: Option<i64>,
}

/// The responder that a certificate names (its authority information access).
pub fn ocsp_responder(der: &CertificateDer<'_>) -> Option<String> {
    let certificate = Certificate::parse(der)?;
    certificate.parsed().extensions().iter().find_map(|extension| {
        let ParsedExtension::AuthorityInfoAccess(access) = extension.parsed_extension() else {
            return None;
        };
        access.accessdescs.iter().find_map(|access| match access.access_location {
            GeneralName::URI(url) if access.access_method.to_id_string() == ACCESS_OCSP => {
                Some(url.to_owned())
            }
            _ => None,
        })
    })
}

/// A request about a certificate, in DER; `None`: one of the two is malformed.
pub fn ocsp_request(der: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let id = certificate_id(&Certificate::parse(der)?, &Certificate::parse(issuer)?);
    // OCSPRequest { tbsRequest { requestList { Request { reqCert }}}}.
    Some((0..4).fold(id, |inner, _| wrap(SEQUENCE, &inner)))
}

/// RFC 6960 §4.1.1, the `CertID` with SHA-1, whole.
fn certificate_id(certificate: &Certificate<'_>, issuer: &Certificate<'_>) -> Vec<u8> {
    let hash = |bytes: &[u8]| digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes);
    let name = hash(certificate.parsed().issuer().as_raw());
    let key = hash(&issuer.parsed().public_key().subject_public_key.data);
    let parts = [
        wrap(SEQUENCE, SHA1),
        wrap(OCTETS, name.as_ref()),
        wrap(OCTETS, key.as_ref()),
        wrap(INTEGER, certificate.parsed().raw_serial()),
    ];
    wrap(SEQUENCE, &parts.concat())
}

/// The encoding of a sequence with that content.
pub(crate) fn sequence(content: &[u8]) -> Vec<u8> {
    wrap(SEQUENCE, content)
}

fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        len @ 0..=0x7f => out.push(len as u8),
        len @ 0x80..=0xff => out.extend([0x81, len as u8]),
        len => out.extend([0x82, (len >> 8) as u8, len as u8]),
    }
    out.extend_from_slice(content);
    out
}

/// Reads a response about a certificate and checks its time, and its signature if `verify` (by the
/// issuer, or by one that the issuer made for this). The error is what nginx logs.
pub fn ocsp_check(
    response: &[u8],
    der: &CertificateDer<'_>,
    issuer: &CertificateDer<'_>,
    now_s: i64,
    verify: bool,
) -> Result<OcspResponse, String> {
    let certificate = Certificate::parse(der).ok_or("malformed certificate")?;
    let issuer = Certificate::parse(issuer).ok_or("malformed issuer certificate")?;
    let basic = basic_response(response)?;
    if verify && !is_signed(&basic, &issuer, now_s) {
        return Err("OCSP_basic_verify() failed".to_owned());
    }
    let id = certificate_id(&certificate, &issuer);
    let single = singles(basic.data).ok_or(MALFORMED)?;
    let found = single.into_iter().find(|single| single.id == id);
    let single = found.ok_or("certificate status not found in the OCSP response")?;
    let invalid = |why: &str| Err(format!("OCSP_check_validity() failed (SSL: error:{why})"));
    if single.this_update_s > now_s + LEEWAY_S {
        return invalid("1380007E:OCSP routines::status not yet valid");
    }
    if single.next_update_s.is_some_and(|next| next < now_s - LEEWAY_S) {
        return invalid("1380007D:OCSP routines::status expired");
    }
    Ok(OcspResponse { status: single.status, valid_until_s: single.next_update_s })
}

/// Whether a response says anything about a certificate, told by its serial number.
pub fn ocsp_names(response: &[u8], der: &CertificateDer<'_>) -> bool {
    let Some(certificate) = Certificate::parse(der) else { return false };
    let serial = wrap(INTEGER, certificate.parsed().raw_serial());
    let singles = basic_response(response).ok().and_then(|basic| singles(basic.data));
    // A `CertID` ends with it, whatever it was hashed with.
    singles.is_some_and(|list| list.iter().any(|single| single.id.ends_with(&serial)))
}

const MALFORMED: &str = "d2i_OCSP_RESPONSE() failed";

/// RFC 6960 §4.2.1, the parts that are needed.
struct Basic<'a> {
    /// `tbsResponseData`, whole and its content.
    signed: &'a [u8],
    data: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
    certificates: &'a [u8],
}

fn basic_response(response: &[u8]) -> Result<Basic<'_>, String> {
    let mut outer = Der(response).within(SEQUENCE).ok_or(MALFORMED)?;
    let status = outer.take(0x0a).and_then(|status| status.first()).ok_or(MALFORMED)?;
    if *status != 0 {
        let name = match status {
            1 => "malformedrequest",
            2 => "internalerror",
            3 => "trylater",
            5 => "sigrequired",
            6 => "unauthorized",
            _ => "(UNKNOWN)",
        };
        return Err(format!("OCSP response not successful ({status}: {name})"));
    }
    basic_bytes(outer)
        .ok_or("OCSP_response_get1_basic() failed")
        .and_then(|basic| parse_basic(basic).ok_or(MALFORMED))
        .map_err(str::to_owned)
}

fn basic_bytes<'a>(mut outer: Der<'a>) -> Option<&'a [u8]> {
    let mut bytes = Der(outer.take(0xa0)?).within(SEQUENCE)?;
    let kind = bytes.take(0x06)?;
    bytes.take(OCTETS).filter(|_| kind == BASIC)
}

fn parse_basic(basic: &[u8]) -> Option<Basic<'_>> {
    let mut basic = Der(basic).within(SEQUENCE)?;
    let before = basic.0;
    let data = basic.take(SEQUENCE)?;
    let signed = &before[..before.len() - basic.0.len()];
    let algorithm = basic.take(SEQUENCE)?;
    let signature = basic.take(BITS)?.strip_prefix(&[0])?;
    let certificates = match basic.take(0xa0) {
        Some(list) => Der(list).take(SEQUENCE)?,
        None => &[],
    };
    Some(Basic { signed, data, algorithm, signature, certificates })
}

struct Single {
    id: Vec<u8>,
    status: OcspStatus,
    this_update_s: i64,
    next_update_s: Option<i64>,
}

fn singles(data: &[u8]) -> Option<Vec<Single>> {
    let mut data = Der(data);
    // The version, which has been 1 ever since; then who answers, and when.
    data.take(0xa0);
    data.any()?;
    data.take(0x18)?;
    let mut list = Der(data.take(SEQUENCE)?);
    let mut found = Vec::new();
    while !list.0.is_empty() {
        let mut single = Der(list.take(SEQUENCE)?);
        let id = wrap(SEQUENCE, single.take(SEQUENCE)?);
        let status = match single.any()?.0 {
            0x80 => OcspStatus::Good,
            0xa1 => OcspStatus::Revoked,
            0x82 => OcspStatus::Unknown,
            _ => return None,
        };
        let this_update_s = time(single.take(0x18)?)?;
        let next_update_s = match single.take(0xa0) {
            Some(next) => Some(time(Der(next).take(0x18)?)?),
            None => None,
        };
        found.push(Single { id, status, this_update_s, next_update_s });
    }
    Some(found)
}

/// A GeneralizedTime as RFC 6960 has it: `YYYYMMDDHHMMSSZ`.
fn time(text: &[u8]) -> Option<i64> {
    let digits: &[u8; 14] = text.strip_suffix(b"Z")?.first_chunk()?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |at: usize, len: usize| {
        digits[at..at + len].iter().fold(0i64, |n, digit| n * 10 + i64::from(digit - b'0'))
    };
    let (year, month, day) = (number(0, 4), number(4, 2), number(6, 2));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days from the civil calendar, with years that begin in March.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 1
        - 719_468;
    Some(days * 86_400 + number(8, 2) * 3600 + number(10, 2) * 60 + number(12, 2))
}

/// RFC 6960 §4.2.2.2: signed by the issuer itself, or by one with the issuer's authorisation.
fn is_signed(basic: &Basic<'_>, issuer: &Certificate<'_>, now_s: i64) -> bool {
    let signs = |signer: &Certificate<'_>| {
        is_signature(signer, basic.algorithm, basic.signed, basic.signature)
    };
    if signs(issuer) {
        return true;
    }
    let mut list = Der(basic.certificates);
    let mut before = list.0;
    while list.any().is_some() {
        let der = &before[..before.len() - list.0.len()];
        before = list.0;
        let delegated = Certificate::parse(der);
        if delegated.is_some_and(|delegated| {
            is_delegate(&delegated, der, issuer, now_s) && signs(&delegated)
        }) {
            return true;
        }
    }
    false
}

fn is_delegate(
    delegate: &Certificate<'_>,
    der: &[u8],
    issuer: &Certificate<'_>,
    now_s: i64,
) -> bool {
    let parsed = delegate.parsed();
    let usage = parsed.extended_key_usage().ok().flatten();
    let in_time = delegate.start_s() <= now_s && now_s <= delegate.end_s();
    let parts = || {
        let mut outer = Der(der).within(SEQUENCE)?;
        let before = outer.0;
        outer.take(SEQUENCE)?;
        let signed = &before[..before.len() - outer.0.len()];
        Some((signed, outer.take(SEQUENCE)?, outer.take(BITS)?.strip_prefix(&[0])?))
    };
    usage.is_some_and(|usage| usage.value.ocsp_signing)
        && in_time
        && parsed.issuer().as_raw() == issuer.parsed().subject().as_raw()
        && parts().is_some_and(|(signed, algorithm, signature)| {
            is_signature(issuer, algorithm, signed, signature)
        })
}

fn is_signature(
    signer: &Certificate<'_>,
    algorithm: &[u8],
    signed: &[u8],
    signature: &[u8],
) -> bool {
    let key = signer.parsed().public_key();
    let Some(kind) = Der(key.raw).within(SEQUENCE).and_then(|mut key| key.take(SEQUENCE)) else {
        return false;
    };
    default_provider().signature_verification_algorithms.all.iter().any(|known| {
        known.signature_alg_id().as_ref() == algorithm
            && known.public_key_alg_id().as_ref() == kind
            && known.verify_signature(&key.subject_public_key.data, signed, signature).is_ok()
    })
}

/// Everything that reads a response, without the signatures that a fuzzer cannot make.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let _ = singles(data);
    let _ = time(data);
    if let Ok(basic) = basic_response(data) {
        assert!(basic.data.len() < basic.signed.len());
        let _ = singles(basic.data);
        let mut list = Der(basic.certificates);
        while let Some((_, content)) = list.any() {
            let _ = Certificate::parse(content);
        }
    }
}

/// DER, taken apart from the front.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next value: its tag and content.
    fn any(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (first, rest) = rest.split_first()?;
        let (len, rest) = match *first {
            len @ 0..=0x7f => (usize::from(len), rest),
            0x81 => (usize::from(*rest.first()?), &rest[1..]),
            0x82 => {
                let len: &[u8; 2] = rest.first_chunk()?;
                (usize::from(u16::from_be_bytes(*len)), &rest[2..])
            }
            // Nothing here is longer than 64 kB.
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((*tag, content))
    }

    /// The next value's content, if it has that tag; else nothing is taken.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        if *self.0.first()? != tag {
            return None;
        }
        Some(self.any()?.1)
    }

    /// What is within the next value.
    fn within(mut self, tag: u8) -> Option<Der<'a>> {
        self.take(tag).map(Der)
    }
}
