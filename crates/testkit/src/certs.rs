//! Certificates for tests, made while they run: authorities, chains, servers, clients, what has
//! expired and what was revoked.
//!
//! Invariant: nothing here is valid anywhere but in a test; keys are new in every process.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, RsaKeySize, SerialNumber, date_time_ymd,
};

/// The password of the encrypted keys of [`write()`].
pub const PASSWORD: &str = "correct horse";

/// What kind of key a certificate has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// RSA with 2048 bits.
    Rsa2048,
    /// ECDSA on P-256.
    P256,
    /// ECDSA on P-384.
    P384,
    /// EdDSA.
    Ed25519,
}

impl Key {
    fn generate(self) -> KeyPair {
        let pair = match self {
            Key::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
            Key::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            Key::P384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            Key::Ed25519 => KeyPair::generate_for(&rcgen::PKCS_ED25519),
        };
        pair.expect("a key can be made")
    }
}

/// What a certificate says.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    /// The common name.
    pub name: &'a str,
    /// DNS names and addresses that it is for.
    pub hosts: &'a [&'a str],
    /// Its key.
    pub key: Key,
    /// Its serial number.
    pub serial: u64,
    /// Whether it ran out in 2021.
    pub expired: bool,
    /// Whether it is a client's, not a server's.
    pub client: bool,
}

impl Default for Leaf<'_> {
    fn default() -> Self {
        let hosts = &["localhost", "127.0.0.1"];
        Leaf { name: "localhost", hosts, key: Key::P256, serial: 1, expired: false, client: false }
    }
}

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The key (PKCS #8).
    pub key: String,
}

/// Signs certificates.
pub struct Authority {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
}

impl Authority {
    /// One that signed itself.
    pub fn root(name: &str) -> Authority {
        let (params, key) = (authority(name), Key::P256.generate());
        let pem = params.self_signed(&key).expect("a root signs itself").pem();
        Authority { params, key, pem }
    }

    /// One below this one.
    pub fn intermediate(&self, name: &str) -> Authority {
        let (params, key) = (authority(name), Key::P256.generate());
        let pem = params.signed_by(&key, &self.issuer()).expect("an authority signs").pem();
        Authority { params, key, pem }
    }

    /// Its certificate, as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its key, as PEM, for programs that sign by themselves (`openssl ocsp`).
    pub fn key(&self) -> String {
        self.key.serialize_pem()
    }

    /// Signs a certificate for a new key.
    pub fn issue(&self, leaf: Leaf<'_>) -> Issued {
        let hosts: Vec<String> = leaf.hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("hosts are names or addresses");
        params.distinguished_name = distinguished(leaf.name);
        params.serial_number = Some(SerialNumber::from(leaf.serial));
        params.not_before = date_time_ymd(2020, 1, 2);
        params.not_after = date_time_ymd(if leaf.expired { 2021 } else { 2049 }, 1, 2);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![match leaf.client {
            true => ExtendedKeyUsagePurpose::ClientAuth,
            false => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        let key = leaf.key.generate();
        let certificate = params.signed_by(&key, &self.issuer()).expect("an authority signs");
        Issued { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A revocation list with these serial numbers, as PEM.
    pub fn crl(&self, revoked: &[u64]) -> String {
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2022, 1, 2),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2022, 1, 3),
            next_update: date_time_ymd(2049, 1, 2),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer()).and_then(|list| list.pem()).expect("an authority signs")
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2049, 12, 31);
    params
}

fn distinguished(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CountryName, "DE");
    distinguished.push(DnType::OrganizationName, "Forebay, Tests");
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Writes a set of certificates into a directory, the same in all directories of a process:
///
/// | file | what |
/// |---|---|
/// | `ca.pem` (`.key`), `ca.crl` | signs the servers; an empty revocation list of it |
/// | `ec.pem`, `rsa.pem` (`.key`) | `localhost`, `127.0.0.1`, `*.example.com`; with P-256 and RSA-2048 |
/// | `other.pem` (`.key`) | `other.example`, P-256 |
/// | `ed25519.pem`, `p384.pem` (`.key`) | `localhost`, other keys |
/// | `chain.pem` (`.key`) | `localhost`, signed by an authority below, which follows it |
/// | `wrong-order.pem` | the same, the authority first |
/// | `expired.pem` (`.key`) | `localhost`, ran out in 2021 |
/// | `ec-encrypted.key`, `rsa-encrypted.key`, `password` | keys under [`PASSWORD`]: PKCS #8, and old PEM |
/// | `client-ca.pem` (`.key`), `client-ca.crl` | signs the clients; says that number 66 was revoked |
/// | `client.pem` (`.key`) | a client, number 11 |
/// | `deep.pem` (`.key`) | a client below an authority, which follows |
/// | `revoked.pem`, `expired-client.pem` (`.key`) | clients that are to be refused |
/// | `stranger-ca.pem`, `stranger.pem` (`.key`) | a client of an authority that nobody knows |
///
/// Keys are readable for everybody only where the server's own user could not read them otherwise:
/// never, as whoever starts it makes them. The encrypted keys need the `openssl` program; without it
/// they are left out.
pub fn write(dir: &Path) -> io::Result<()> {
    static FILES: OnceLock<Vec<(String, String)>> = OnceLock::new();
    for (name, text) in FILES.get_or_init(make) {
        let path = dir.join(name);
        fs::write(&path, text)?;
        let mode = if name.ends_with(".key") || name == "password" { 0o600 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

const HOSTS: &[&str] = &["localhost", "127.0.0.1", "*.example.com"];

fn make() -> Vec<(String, String)> {
    let mut files = Files::default();
    let ca = Authority::root("Forebay Test CA");
    files.add("ca.pem", ca.pem());
    files.add("ca.key", ca.key());
    files.add("ca.crl", ca.crl(&[]));
    let server = Leaf { hosts: HOSTS, ..Leaf::default() };
    let ec = files.issue("ec", &ca, server);
    let rsa = files.issue("rsa", &ca, Leaf { key: Key::Rsa2048, serial: 2, ..server });
    let other = Leaf { name: "other.example", hosts: &["other.example"], serial: 3, ..server };
    files.issue("other", &ca, other);
    files.issue("ed25519", &ca, Leaf { key: Key::Ed25519, serial: 4, ..server });
    files.issue("p384", &ca, Leaf { key: Key::P384, serial: 5, ..server });
    files.issue("expired", &ca, Leaf { expired: true, serial: 6, ..server });
    let below = ca.intermediate("Forebay Test CA below");
    let chained = below.issue(Leaf { serial: 7, ..server });
    files.add("chain.pem", format!("{}{}", chained.certificate, below.pem()));
    files.add("wrong-order.pem", format!("{}{}", below.pem(), chained.certificate));
    files.add("chain.key", chained.key);
    files.add("password", format!("wrong\n{PASSWORD}\n"));
    let pkcs8 = ["pkcs8", "-topk8", "-v2", "aes-256-cbc", "-passout"];
    files.encrypted("ec-encrypted.key", &pkcs8, &ec.key);
    let old = ["rsa", "-traditional", "-aes256", "-passout"];
    files.encrypted("rsa-encrypted.key", &old, &rsa.key);
    clients(&mut files);
    files.0
}

fn clients(files: &mut Files) {
    let ca = Authority::root("Forebay Test Client CA");
    files.add("client-ca.pem", ca.pem());
    files.add("client-ca.key", ca.key());
    files.add("client-ca.crl", ca.crl(&[66]));
    let client = Leaf { name: "client", hosts: &[], client: true, serial: 11, ..Leaf::default() };
    files.issue("client", &ca, client);
    files.issue("revoked", &ca, Leaf { name: "revoked", serial: 66, ..client });
    files.issue("expired-client", &ca, Leaf { expired: true, serial: 12, ..client });
    let below = ca.intermediate("Forebay Test Client CA below");
    let deep = below.issue(Leaf { name: "deep", serial: 13, ..client });
    files.add("deep.pem", format!("{}{}", deep.certificate, below.pem()));
    files.add("deep.key", deep.key);
    let stranger = Authority::root("Forebay Test Stranger CA");
    files.add("stranger-ca.pem", stranger.pem());
    files.issue("stranger", &stranger, Leaf { name: "stranger", serial: 14, ..client });
}

#[derive(Default)]
struct Files(Vec<(String, String)>);

impl Files {
    fn add(&mut self, name: &str, text: impl Into<String>) {
        self.0.push((name.to_owned(), text.into()));
    }

    fn issue(&mut self, name: &str, ca: &Authority, leaf: Leaf<'_>) -> Issued {
        let issued = ca.issue(leaf);
        self.add(&format!("{name}.pem"), &*issued.certificate);
        self.add(&format!("{name}.key"), &*issued.key);
        issued
    }

    fn encrypted(&mut self, name: &str, args: &[&str], key: &str) {
        if let Ok(text) = encrypt(args, key) {
            self.add(name, text);
        }
    }
}

/// Has `openssl` encrypt a key.
fn encrypt(args: &[&str], key: &str) -> io::Result<String> {
    let mut child = Command::new("openssl")
        .args(args)
        .arg(format!("pass:{PASSWORD}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(key.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other("openssl failed"));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tempdir::TempDir;

    fn openssl(dir: &Path, args: &[&str]) -> Option<String> {
        let output = Command::new("openssl").args(args).current_dir(dir).output().ok()?;
        Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    #[test]
    fn openssl_finds_them_as_they_are_meant() {
        let dir = TempDir::new().expect("a directory");
        write(dir.path()).expect("certificates");
        let cases: &[(&[&str], &str)] = &[
            (&["verify", "-CAfile", "ca.pem", "ec.pem"], "ec.pem: OK"),
            (&["verify", "-CAfile", "ca.pem", "rsa.pem"], "rsa.pem: OK"),
            (&["verify", "-CAfile", "ca.pem", "-untrusted", "chain.pem", "chain.pem"], "OK"),
            (&["verify", "-CAfile", "ca.pem", "chain.pem"], "unable to get local issuer"),
            (&["verify", "-CAfile", "ca.pem", "expired.pem"], "certificate has expired"),
            (&["verify", "-CAfile", "client-ca.pem", "-purpose", "sslclient", "client.pem"], "OK"),
            (
                &[
                    "verify",
                    "-crl_check",
                    "-CAfile",
                    "client-ca.pem",
                    "-CRLfile",
                    "client-ca.crl",
                    "revoked.pem",
                ],
                "certificate revoked",
            ),
            (&["verify", "-CAfile", "client-ca.pem", "stranger.pem"], "unable to get local issuer"),
            (&["pkey", "-in", "ec-encrypted.key", "-passin", "pass:correct horse"], "BEGIN"),
            (&["pkey", "-in", "rsa-encrypted.key", "-passin", "pass:correct horse"], "BEGIN"),
        ];
        for (args, want) in cases {
            let Some(said) = openssl(dir.path(), args) else {
                eprintln!("skipped: openssl is not installed");
                return;
            };
            assert!(said.contains(want), "{args:?}: {said}");
        }
    }
}
