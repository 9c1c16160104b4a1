//! What OpenSSL asks of the certificates of a chain and webpki does not: whether who signed may sign, for
//! this purpose, and now.
//!
//! Answers `check_extensions`, `check_purpose` and `internal_verify` (but for signatures). nginx has OpenSSL go
//! on after each error, so that the last of them counts.
//! Invariant: what is asked here can only refuse a chain; webpki has found it.

use x509_parser::{
    der_parser::asn1_rs::Oid,
    extensions::{BasicConstraints, KeyUsage, NSCertType, ParsedExtension},
    oid_registry::*,
    x509::X509Version,
};

use crate::x509::Certificate;

/// What a certificate is shown for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Client,
    Server,
}

/// What a certificate says of itself.
pub(crate) struct Claims {
    is_old: bool,
    is_self_issued: bool,
    start_s: i64,
    end_s: i64,
    basic: Option<BasicConstraints>,
    key: Option<KeyUsage>,
    extended: Option<Extended>,
    netscape: Option<NSCertType>,
    has_unknown_critical: bool,
    /// An extension cannot be read, or stands there twice.
    is_broken: bool,
}

struct Extended {
    client: bool,
    server: bool,
}

/// Whether a certificate is an authority's (`check_ca`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    None,
    /// It does not say so, and is taken for one at the end of a chain only.
    Tolerated,
    Authority,
}

impl Claims {
    pub fn of(certificate: &Certificate<'_>) -> Claims {
        let parsed = certificate.parsed();
        let mut claims = Claims {
            is_old: parsed.version() != X509Version::V3,
            is_self_issued: parsed.subject().as_raw() == parsed.issuer().as_raw(),
            start_s: certificate.start_s(),
            end_s: certificate.end_s(),
            basic: None,
            key: None,
            extended: None,
            netscape: None,
            has_unknown_critical: false,
            is_broken: false,
        };
        let extensions = parsed.extensions();
        for (at, one) in extensions.iter().enumerate() {
            let is_understood = UNDERSTOOD.contains(&one.oid.to_id_string().as_str());
            claims.has_unknown_critical |= one.critical && !is_understood;
            let is_again = extensions[..at].iter().any(|before| before.oid == one.oid);
            claims.is_broken |= is_again && READ.contains(&one.oid);
            claims.read(one.parsed_extension(), &one.oid);
        }
        claims
    }

    fn read(&mut self, extension: &ParsedExtension<'_>, oid: &Oid<'_>) {
        match extension {
            ParsedExtension::BasicConstraints(basic) => self.basic = Some(basic.clone()),
            ParsedExtension::KeyUsage(usage) => {
                self.is_broken |= usage.flags == 0;
                self.key = Some(*usage);
            }
            ParsedExtension::NSCertType(kinds) => self.netscape = Some(*kinds),
            ParsedExtension::ExtendedKeyUsage(usage) => {
                let is_gated = |oid: &Oid<'_>| GATED.contains(&oid.to_id_string().as_str());
                self.extended = Some(Extended {
                    client: usage.client_auth,
                    server: usage.server_auth || usage.other.iter().any(is_gated),
                });
            }
            ParsedExtension::ParseError { .. } => self.is_broken |= READ.contains(oid),
            _ => {}
        }
    }

    /// OpenSSL's number, where it is too early or too late.
    pub fn expiry(&self, now_s: i64) -> Option<u32> {
        if self.start_s > now_s {
            return Some(9);
        }
        (self.end_s < now_s).then_some(10)
    }

    /// Whether it may be used for that by whoever holds its key (`check_purpose_ssl_client`,
    /// `check_purpose_ssl_server`). What cannot be read suits nothing.
    pub fn suits(&self, purpose: Purpose) -> bool {
        let key = self.key.is_none_or(|key| {
            let agrees = key.digital_signature() || key.key_agreement();
            agrees || matches!(purpose, Purpose::Server) && key.key_encipherment()
        });
        let netscape = self.netscape.is_none_or(|kinds| match purpose {
            Purpose::Client => kinds.ssl_client(),
            Purpose::Server => kinds.ssl_server(),
        });
        key && netscape && self.extends_to(purpose)
    }

    /// Whether it may issue certificates for that (`check_ssl_ca`).
    fn issues_for(&self, purpose: Purpose) -> bool {
        let by_netscape_alone =
            self.basic.is_none() && self.key.is_none() && !(self.is_old && self.is_self_issued);
        let is_for_others = by_netscape_alone && self.netscape.is_some_and(|kinds| !kinds.ssl_ca());
        self.standing() != Standing::None && !is_for_others && self.extends_to(purpose)
    }

    fn extends_to(&self, purpose: Purpose) -> bool {
        !self.is_broken
            && self.extended.as_ref().is_none_or(|extended| match purpose {
                Purpose::Client => extended.client,
                Purpose::Server => extended.server,
            })
    }

    fn standing(&self) -> Standing {
        let any_authority =
            |kinds: NSCertType| kinds.ssl_ca() || kinds.smime_ca() || kinds.object_signing_ca();
        match &self.basic {
            _ if !self.may_sign() => Standing::None,
            Some(basic) if basic.ca => Standing::Authority,
            Some(_) => Standing::None,
            None if self.is_old && self.is_self_issued || self.key.is_some() => Standing::Tolerated,
            None if self.netscape.is_some_and(any_authority) => Standing::Tolerated,
            None => Standing::None,
        }
    }

    fn may_sign(&self) -> bool {
        self.key.is_none_or(|key| key.key_cert_sign())
    }
}

/// The last error that OpenSSL has for a chain, from the leaf to the root: what [`fault_of_role`] says comes
/// before it, and what revocation lists say between the two.
pub(crate) fn fault_of_time(chain: &[&Claims], now_s: i64) -> Option<u32> {
    chain.iter().enumerate().find_map(|(at, one)| {
        let signer = chain.get(at + 1);
        let unsigned = signer.and_then(|signer| (!signer.may_sign()).then_some(32));
        one.expiry(now_s).or(unsigned)
    })
}

/// `check_extensions`.
pub(crate) fn fault_of_role(chain: &[&Claims], purpose: Purpose) -> Option<u32> {
    chain.iter().enumerate().rev().find_map(|(at, one)| {
        let below = chain[..at].iter().skip(1).filter(|below| !below.is_self_issued).count();
        let longest = one.basic.as_ref().and_then(|basic| basic.path_len_constraint);
        if at > 1 && longest.is_some_and(|longest| below > longest as usize) {
            return Some(25);
        }
        let suits = if at == 0 { one.suits(purpose) } else { one.issues_for(purpose) };
        if !suits {
            return Some(26);
        }
        let is_between = at > 0 && at + 1 < chain.len();
        if is_between && one.standing() != Standing::Authority {
            return Some(79);
        }
        one.has_unknown_critical.then_some(34)
    })
}

/// What is read here.
const READ: [Oid<'static>; 4] = [
    OID_X509_EXT_BASIC_CONSTRAINTS,
    OID_X509_EXT_KEY_USAGE,
    OID_X509_EXT_EXTENDED_KEY_USAGE,
    OID_X509_EXT_CERT_TYPE,
];

/// Old names for the purpose of servers (`XKU_SGC`).
const GATED: [&str; 2] = ["1.3.6.1.4.1.311.10.3.3", "2.16.840.1.113730.4.1"];

/// Extensions that may be critical (`X509_supported_extension`).
const UNDERSTOOD: [&str; 15] = [
    "2.16.840.1.113730.1.1",
    "2.5.29.15",
    "2.5.29.17",
    "2.5.29.19",
    "2.5.29.32",
    "2.5.29.31",
    "2.5.29.37",
    "1.3.6.1.5.5.7.1.7",
    "1.3.6.1.5.5.7.1.8",
    "1.3.6.1.5.5.7.48.1.5",
    "2.5.29.36",
    "1.3.6.1.5.5.7.1.14",
    "2.5.29.30",
    "2.5.29.33",
    "2.5.29.54",
];
