//! Verifies certificates of peers, and says of failures what OpenSSL says.
//!
//! Answers `ngx_ssl_verify_callback`, `SSL_get_verify_result`, `ngx_ssl_check_host` and the results of
//! `$ssl_client_verify`. The handshake itself succeeds with any certificate whose key is proved: HTTP
//! answers 495 or 496 afterwards, and an upstream is left with a line in the log, as in nginx.
//! Invariant: a session that is resumed is verified as a new one is.

use std::{cell::Cell, collections::HashSet, fmt, net::IpAddr, time::SystemTime};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs::default_provider,
        verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
    },
    pki_types::{
        CertificateDer, ServerName, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer,
        TrustAnchor, UnixTime,
    },
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use webpki::{
    EndEntityCert, Error as PkiError, KeyUsage, OwnedCertRevocationList, RawPublicKeyEntity,
};
use x509_parser::x509::X509Version;

use crate::{
    authority::{Claims, Purpose, fault_of_role, fault_of_time},
    ocsp,
    revocation::{self, PlainList},
    settings::{ClientAuth, Trust},
    x509::Certificate,
};

/// What came of verifying a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There was none.
    None,
    /// It is good.
    Success,
    /// It is not: OpenSSL's number and text.
    Failed(u32, &'static str),
}

impl fmt::Display for Verdict {
    /// As `$ssl_client_verify` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::None => f.write_str("NONE"),
            Verdict::Success => f.write_str("SUCCESS"),
            Verdict::Failed(_, text) => write!(f, "FAILED:{text}"),
        }
    }
}

thread_local! {
    /// The algorithm of the peer's signature in the handshake that this thread works on.
    pub(crate) static PROVED: Cell<Option<SignatureScheme>> = const { Cell::new(None) };
}

impl Verdict {
    fn failed(code: u32) -> Verdict {
        Verdict::Failed(code, verify_text(code))
    }
}

/// `X509_verify_cert_error_string`.
fn verify_text(code: u32) -> &'static str {
    match code {
        2 => "unable to get issuer certificate",
        3 => "unable to get certificate CRL",
        7 => "certificate signature failure",
        8 => "CRL signature failure",
        9 => "certificate is not yet valid",
        10 => "certificate has expired",
        12 => "CRL has expired",
        18 => "self-signed certificate",
        19 => "self-signed certificate in certificate chain",
        20 => "unable to get local issuer certificate",
        21 => "unable to verify the first certificate",
        22 => "certificate chain too long",
        23 => "certificate revoked",
        25 => "path length constraint exceeded",
        26 => "unsuitable certificate purpose",
        32 => "key usage does not include certificate signing",
        34 => "unhandled critical extension",
        47 => "permitted subtree violation",
        66 => "EE certificate key too weak",
        79 => "invalid CA certificate",
        _ => "unspecified certificate verification error",
    }
}

impl Purpose {
    fn usage(self) -> KeyUsage {
        match self {
            Purpose::Client => KeyUsage::client_auth(),
            Purpose::Server => KeyUsage::server_auth(),
        }
    }
}

/// What certificates are held against, prepared.
pub(crate) struct Verifier {
    /// Self-signed: where a chain may end. OpenSSL takes no other end without `-partial_chain`.
    roots: Vec<TrustAnchor<'static>>,
    /// What each of them says of itself.
    root_claims: Vec<Claims>,
    /// The same whole: one may be presented itself.
    root_certificates: HashSet<Vec<u8>>,
    /// The others, which help to find the way.
    between: Vec<CertificateDer<'static>>,
    crls: Vec<webpki::CertRevocationList<'static>>,
    /// Lists that webpki does not read.
    plain_lists: Vec<PlainList>,
    /// Those that it reads once more, for certificates that it does not look at.
    read_lists: Vec<PlainList>,
    depth: usize,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verifier({} roots)", self.roots.len())
    }
}

impl Verifier {
    /// The error names what cannot be used.
    pub(crate) fn new(trust: &Trust) -> Result<Verifier, String> {
        let mut verifier = Verifier {
            roots: Vec::new(),
            root_claims: Vec::new(),
            root_certificates: HashSet::new(),
            between: Vec::new(),
            crls: Vec::new(),
            plain_lists: Vec::new(),
            read_lists: Vec::new(),
            depth: trust.depth,
            algorithms: default_provider().signature_verification_algorithms,
        };
        for der in &trust.certificates {
            let parsed = Certificate::parse(der).ok_or("a trusted certificate is malformed")?;
            match is_self_issued(&parsed) {
                true => {
                    verifier.root_certificates.insert(der.to_vec());
                    // One that webpki cannot use (version 1, say) may still be presented itself.
                    if let Ok(anchor) = webpki::anchor_from_trusted_cert(der) {
                        verifier.roots.push(anchor.to_owned());
                        verifier.root_claims.push(Claims::of(&parsed));
                    }
                }
                false => verifier.between.push(der.clone()),
            }
        }
        for crl in &trust.crls {
            match (OwnedCertRevocationList::from_der(crl), PlainList::parse(crl)) {
                (Ok(crl), plain) => {
                    verifier.crls.push(crl.into());
                    verifier.read_lists.extend(plain);
                }
                (Err(_), Some(plain)) => verifier.plain_lists.push(plain),
                (Err(error), None) => {
                    return Err(format!("a revocation list cannot be used: {error}"));
                }
            }
        }
        Ok(verifier)
    }

    pub(crate) fn for_clients(auth: &ClientAuth) -> Result<Verifier, String> {
        Verifier::new(&auth.trust)
    }

    pub(crate) fn verify_client(&self, chain: &[CertificateDer<'_>]) -> Verdict {
        self.verify(chain, Purpose::Client)
    }

    pub(crate) fn verify_server(&self, chain: &[CertificateDer<'_>]) -> Verdict {
        self.verify(chain, Purpose::Server)
    }

    fn verify(&self, chain: &[CertificateDer<'_>], purpose: Purpose) -> Verdict {
        let Some((leaf, sent)) = chain.split_first() else { return Verdict::None };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let Some(parsed) = Certificate::parse(leaf) else { return Verdict::failed(1) };
        let claims = Claims::of(&parsed);
        if let Some(code) = claims.expiry(now.as_secs() as i64) {
            return Verdict::failed(code);
        }
        if is_self_issued(&parsed) {
            let is_known = self.root_certificates.contains(leaf.as_ref());
            return self.verdict_of_root(
                &parsed,
                is_known,
                purpose,
                UnixTime::since_unix_epoch(now),
            );
        }
        let between: Vec<CertificateDer<'_>> = sent.iter().chain(&self.between).cloned().collect();
        let now = UnixTime::since_unix_epoch(now);
        let refused = Cell::new(None);
        let found = self.find_path(leaf, &between, purpose, now, |path| {
            refused.set(self.fault(path, &claims, purpose, now));
            refused.get().map_or(Ok(()), |_| Err(PkiError::UnknownIssuer))
        });
        if let (Err(_), Some(code)) = (&found, refused.get()) {
            // webpki has found a path, which OpenSSL would not take.
            return Verdict::failed(code);
        }
        match found {
            Ok(()) => Verdict::Success,
            Err(PkiError::UnknownIssuer) => self.missing_issuer(&parsed, &between, sent.len()),
            // Only version 3 has extensions: nobody has looked at these.
            Err(PkiError::UnsupportedCertVersion) if !parsed.parsed().extensions().is_empty() => {
                Verdict::failed(34)
            }
            Err(PkiError::UnsupportedCertVersion) => match self.root_of(&parsed) {
                Some((root, key)) => {
                    self.verdict_of_old(&parsed, &[&claims, &root], &key, purpose, now)
                }
                None => self.missing_issuer(&parsed, &between, sent.len()),
            },
            Err(error) => Verdict::failed(code_of(&error)),
        }
    }

    fn find_path(
        &self,
        leaf: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        purpose: Purpose,
        now: UnixTime,
        allowed: impl Fn(&webpki::VerifiedPath<'_>) -> Result<(), PkiError>,
    ) -> Result<(), PkiError> {
        let leaf = EndEntityCert::try_from(leaf)?;
        let crls: Vec<_> = self.crls.iter().collect();
        let unknown = match self.plain_lists.is_empty() {
            true => webpki::UnknownStatusPolicy::Deny,
            // `unrevoked` denies what neither kind of list has.
            false => webpki::UnknownStatusPolicy::Allow,
        };
        let revocation = match crls.is_empty() {
            true => None,
            // X509_V_FLAG_CRL_CHECK_ALL: each certificate needs a list that is not over.
            false => webpki::RevocationOptionsBuilder::new(&crls).ok().map(|options| {
                options
                    .with_depth(webpki::RevocationCheckDepth::Chain)
                    .with_status_policy(unknown)
                    .with_expiration_policy(webpki::ExpirationPolicy::Enforce)
                    .build()
            }),
        };
        let depth = self.depth;
        let within =
            |path: &webpki::VerifiedPath<'_>| match path.intermediate_certificates().count()
                <= depth
            {
                true => allowed(path),
                false => Err(PkiError::MaximumPathDepthExceeded),
            };
        let algorithms = self.algorithms.all;
        leaf.verify_for_usage(
            algorithms,
            &self.roots,
            between,
            now,
            purpose.usage(),
            revocation,
            Some(&within),
        )?;
        Ok(())
    }

    /// Holds a path against what OpenSSL asks of it beside webpki, and gives its number where it would refuse. Of
    /// several roots with one name and key it is enough that one may be its end.
    fn fault(
        &self,
        path: &webpki::VerifiedPath<'_>,
        leaf: &Claims,
        purpose: Purpose,
        now: UnixTime,
    ) -> Option<u32> {
        let between: Option<Vec<Claims>> = path
            .intermediate_certificates()
            .map(|one| Some(Claims::of(&Certificate::parse(&one.der())?)))
            .collect();
        let Some(between) = between else { return Some(1) };
        let by_lists = self.unrevoked(path, now).err().map(|error| code_of(&error));
        let mut chain: Vec<&Claims> = std::iter::once(leaf).chain(&between).collect();
        let anchor = path.anchor();
        let mut fault = Some(1);
        for (root, claims) in self.roots.iter().zip(&self.root_claims) {
            if root.subject == anchor.subject
                && root.subject_public_key_info == anchor.subject_public_key_info
            {
                chain.push(claims);
                fault = fault_of_time(&chain, now.as_secs() as i64)
                    .or(by_lists)
                    .or_else(|| fault_of_role(&chain, purpose));
                chain.pop();
            }
            if fault.is_none() {
                break;
            }
        }
        fault
    }

    /// Holds a path against the lists that webpki does not read. Of a certificate that they do not know
    /// webpki has seen whether it is revoked, if one of its lists is for all of the issuer's.
    fn unrevoked(&self, path: &webpki::VerifiedPath<'_>, now: UnixTime) -> Result<(), PkiError> {
        if self.plain_lists.is_empty() {
            return Ok(());
        }
        let mut certificate: &webpki::Cert<'_> = path.end_entity();
        let mut above = path.intermediate_certificates();
        loop {
            let issuer = above.next();
            let key = match issuer {
                Some(issuer) => issuer.subject_public_key_info(),
                None => ocsp::sequence(&path.anchor().subject_public_key_info).into(),
            };
            let is_listed = |list: &webpki::CertRevocationList<'_>| {
                list.issuer() == certificate.issuer() && list.issuing_distribution_point().is_none()
            };
            match self.said_by_lists(&certificate.der(), &key, now) {
                Some(said) => said?,
                None if self.crls.iter().any(is_listed) => {}
                None => return Err(PkiError::UnknownRevocationStatus),
            }
            certificate = match issuer {
                Some(issuer) => issuer,
                None => return Ok(()),
            };
        }
    }

    fn said_by_lists(
        &self,
        certificate: &CertificateDer<'_>,
        issuer: &SubjectPublicKeyInfoDer<'_>,
        now: UnixTime,
    ) -> Option<Result<(), PkiError>> {
        let certificate = Certificate::parse(certificate)?;
        revocation::judge(&self.plain_lists, &certificate, issuer, now, &self.algorithms)
    }

    /// Of one that signed itself, and is shown itself. Lists have the last word (`check_revocation`).
    fn verdict_of_root(
        &self,
        root: &Certificate<'_>,
        is_known: bool,
        purpose: Purpose,
        now: UnixTime,
    ) -> Verdict {
        let key = SubjectPublicKeyInfoDer::from(root.public_key());
        let is_of_it = |list: &PlainList| list.is_by_issuer_of(root);
        if !is_known && self.plain_lists.iter().chain(&self.read_lists).any(is_of_it) {
            // Who bears the name of a list's issuer does not make us verify the list.
            return Verdict::failed(18);
        }
        match self.said_alone(root, &key, now) {
            Err(error) => Verdict::failed(code_of(&error)),
            Ok(()) if !is_known => Verdict::failed(18),
            Ok(()) if !Claims::of(root).suits(purpose) => Verdict::failed(26),
            Ok(()) => Verdict::Success,
        }
    }

    /// Of one older than version 3, which webpki does not read, below the root with that key.
    fn verdict_of_old(
        &self,
        leaf: &Certificate<'_>,
        chain: &[&Claims],
        key: &SubjectPublicKeyInfoDer<'_>,
        purpose: Purpose,
        now: UnixTime,
    ) -> Verdict {
        let of_time = fault_of_time(chain, now.as_secs() as i64);
        let by_lists = || self.said_alone(leaf, key, now).err().map(|error| code_of(&error));
        let fault = of_time.or_else(by_lists).or_else(|| fault_of_role(chain, purpose));
        fault.map_or(Verdict::Success, Verdict::failed)
    }

    /// The trusted root that has itself signed a certificate older than version 3, and its key.
    fn root_of(
        &self,
        leaf: &Certificate<'_>,
    ) -> Option<(Claims, SubjectPublicKeyInfoDer<'static>)> {
        let parsed = leaf.parsed();
        let (signed, signature) = (parsed.tbs_certificate.as_ref(), &parsed.signature_value.data);
        let roots = self.root_certificates.iter().filter_map(|der| Certificate::parse(der));
        roots
            .filter(|root| root.parsed().subject().as_raw() == parsed.issuer().as_raw())
            .map(|root| {
                (Claims::of(&root), SubjectPublicKeyInfoDer::from(root.public_key().to_vec()))
            })
            .find(|(_, key)| revocation::is_signed(signed, signature, key, &self.algorithms))
    }

    /// What the lists say of a certificate that webpki has not looked at.
    fn said_alone(
        &self,
        certificate: &Certificate<'_>,
        issuer: &SubjectPublicKeyInfoDer<'_>,
        now: UnixTime,
    ) -> Result<(), PkiError> {
        if self.crls.is_empty() && self.plain_lists.is_empty() {
            return Ok(());
        }
        let lists = self.plain_lists.iter().chain(&self.read_lists);
        revocation::judge(lists, certificate, issuer, now, &self.algorithms)
            .unwrap_or(Err(PkiError::UnknownRevocationStatus))
    }

    /// Which of its errors OpenSSL has in the end for a chain without a trusted root (`build_chain`,
    /// `internal_verify`): nginx lets it go on after the first.
    fn missing_issuer(
        &self,
        leaf: &Certificate<'_>,
        between: &[CertificateDer<'_>],
        sent: usize,
    ) -> Verdict {
        let parsed: Vec<_> = between.iter().map(|der| Certificate::parse(der)).collect();
        let mut issuer = leaf.parsed().issuer().as_raw();
        let mut top = None;
        // Each certificate can stand in the chain once.
        for _ in 0..parsed.len() {
            let next = parsed.iter().position(|candidate| {
                candidate.as_ref().is_some_and(|one| one.parsed().subject().as_raw() == issuer)
            });
            let Some((at, certificate)) = next.and_then(|at| Some((at, parsed[at].as_ref()?)))
            else {
                break;
            };
            top = Some(at);
            if is_self_issued(certificate) {
                return Verdict::failed(19);
            }
            issuer = certificate.parsed().issuer().as_raw();
        }
        Verdict::failed(match top {
            None => 21,
            Some(at) if at >= sent => 2,
            Some(_) => 20,
        })
    }
}

fn is_self_issued(certificate: &Certificate<'_>) -> bool {
    let parsed = certificate.parsed();
    parsed.subject().as_raw() == parsed.issuer().as_raw()
}

fn code_of(error: &PkiError) -> u32 {
    match error {
        PkiError::CertExpired { .. } => 10,
        PkiError::CertNotValidYet { .. } => 9,
        PkiError::CertRevoked => 23,
        PkiError::UnknownRevocationStatus => 3,
        PkiError::CrlExpired { .. } => 12,
        PkiError::InvalidCrlSignatureForPublicKey => 8,
        PkiError::MaximumPathDepthExceeded => 22,
        PkiError::PathLenConstraintViolated => 25,
        PkiError::EndEntityUsedAsCa => 26,
        PkiError::RequiredEkuNotFoundContext(_) => 26,
        PkiError::UnsupportedCriticalExtension => 34,
        PkiError::NameConstraintViolation => 47,
        PkiError::InvalidSignatureForPublicKey => 7,
        _ => 1,
    }
}

/// Whether a certificate is for that host (`X509_check_host`, as `ngx_ssl_check_host` calls it): its
/// alternative names, or its common name if it has none.
///
/// DIFFERS(upstream-address-names): an address is held against the alternative names that are addresses
/// (`X509_check_ip`), which nginx does not ask.
pub(crate) fn is_for_host(der: &CertificateDer<'_>, host: &str) -> bool {
    use x509_parser::extensions::GeneralName;
    let Some(certificate) = Certificate::parse(der) else { return false };
    let host = host.strip_suffix('.').unwrap_or(host);
    let names = certificate.parsed().subject_alternative_name().ok().flatten();
    let names = names.map(|extension| &extension.value.general_names[..]).unwrap_or_default();
    if let Ok(address) = host.parse::<IpAddr>() {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let is_it = |name: &GeneralName<'_>| matches!(name, GeneralName::IPAddress(bytes) if *bytes == octets);
        if names.iter().any(is_it) {
            return true;
        }
    }
    let mut dns = names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    let mut has_dns = false;
    if dns.by_ref().inspect(|_| has_dns = true).any(|name| host_matches(name, host)) {
        return true;
    }
    let mut common = certificate.parsed().subject().iter_common_name();
    !has_dns && common.any(|name| name.as_str().is_ok_and(|name| host_matches(name, host)))
}

/// `do_check_string` with `equal_wildcard`: a star stands in the first label only, for a part of one
/// label, and two labels follow it.
fn host_matches(pattern: &str, host: &str) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return !host.is_empty();
    }
    let (Some((first, rest)), Some((label, domain))) =
        (pattern.split_once('.'), host.split_once('.'))
    else {
        return false;
    };
    let Some((before, after)) = first.split_once('*') else { return false };
    let idna = |text: &str| text.len() >= 4 && text.as_bytes()[..4].eq_ignore_ascii_case(b"xn--");
    let partial = !before.is_empty() || !after.is_empty();
    let (label, before, after) =
        (label.to_ascii_lowercase(), before.to_ascii_lowercase(), after.to_ascii_lowercase());
    rest.contains('.')
        && !pattern[first.len()..].contains('*')
        && !after.contains('*')
        && rest.eq_ignore_ascii_case(domain)
        && !(partial && (idna(&label) || idna(&before)))
        && label.len() > before.len() + after.len()
        && label.starts_with(before.as_str())
        && label.ends_with(after.as_str())
}

/// The key of a certificate older than version 3, which webpki does not read: `openssl x509 -req` makes
/// such for whoever names no extensions.
fn old_key(certificate: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let parsed = Certificate::parse(certificate)?;
    let old = parsed.parsed().version() != X509Version::V3;
    old.then(|| SubjectPublicKeyInfoDer::from(parsed.public_key().to_vec()))
}

/// As `verify_tls12_signature`, of a key alone.
fn verify_old(
    message: &[u8],
    key: &SubjectPublicKeyInfoDer<'_>,
    signed: &DigitallySignedStruct,
    known: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let bad = || Error::InvalidCertificate(CertificateError::BadSignature);
    let key = RawPublicKeyEntity::try_from(key)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let found = known.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let algorithms = found.map(|(_, algorithms)| *algorithms).unwrap_or_default();
    let fits = |algorithm: &&dyn SignatureVerificationAlgorithm| {
        key.verify_signature(*algorithm, message, signed.signature()).is_ok()
    };
    algorithms.iter().any(fits).then(HandshakeSignatureValid::assertion).ok_or_else(bad)
}

/// What both sides do alike: whoever shows a certificate proves that the key is theirs, and the
/// scheme of the proof is kept.
macro_rules! proofs_of_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            PROVED.set(Some(signed.scheme));
            match old_key(certificate) {
                Some(key) => verify_old(message, &key, signed, &self.algorithms),
                None => verify_tls12_signature(message, certificate, signed, &self.algorithms),
            }
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            PROVED.set(Some(signed.scheme));
            match old_key(certificate) {
                Some(key) => {
                    verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
                }
                None => verify_tls13_signature(message, certificate, signed, &self.algorithms),
            }
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

/// Takes any client certificate whose key signs; what it is worth is found afterwards.
#[derive(Debug)]
pub(crate) struct AnyClient {
    names: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyClient {
    /// `named`: the certificates whose names the client is told.
    pub(crate) fn new(
        provider: &CryptoProvider,
        named: &[CertificateDer<'_>],
    ) -> Result<AnyClient, String> {
        let name = |der: &CertificateDer<'_>| {
            let parsed = Certificate::parse(der)?;
            Some(DistinguishedName::from(parsed.parsed().subject().as_raw().to_vec()))
        };
        let names = named.iter().map(name).collect::<Option<Vec<_>>>();
        Ok(AnyClient {
            names: names.ok_or("a client certificate is malformed")?,
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.names
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    proofs_of_keys!();
}

/// The same for upstreams' certificates.
#[derive(Debug)]
pub(crate) struct AnyServer {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyServer {
    pub(crate) fn new(provider: &CryptoProvider) -> AnyServer {
        AnyServer { algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    proofs_of_keys!();
}
