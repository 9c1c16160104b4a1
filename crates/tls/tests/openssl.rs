//! Keys and certificates made by the `openssl` program, and what it says of them. Skipped where it is
//! not installed, but never in CI.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use forebay_tls::*;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("forebay-tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.0.join(file)).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What it prints; `None`: it is not installed.
fn openssl(dir: &Path, args: &[&str]) -> Option<String> {
    let output = match Command::new("openssl").args(args).current_dir(dir).output() {
        Ok(output) => output,
        Err(_) => {
            assert!(std::env::var_os("CI").is_none(), "openssl is not installed");
            eprintln!("skipped: openssl is not installed");
            return None;
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {args:?}: {errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn keys_are_read_however_they_are_encrypted() {
    let dir = Dir::new("keys");
    let secret = "pass:sesame";
    let rsa =
        ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "rsa.key"];
    if openssl(&dir.0, &rsa).is_none() {
        return;
    }
    openssl(&dir.0, &["ecparam", "-name", "prime256v1", "-genkey", "-out", "ec.key"]);
    openssl(&dir.0, &["genpkey", "-algorithm", "ED25519", "-out", "ed.key"]);
    let mut files = vec!["rsa.key".to_owned(), "ec.key".to_owned(), "ed.key".to_owned()];
    for (kind, source) in [("rsa", "rsa.key"), ("ec", "ec.key")] {
        for cipher in ["-aes128", "-aes192", "-aes256", "-des3"] {
            let old = format!("{kind}{cipher}-old.key");
            let mut args = vec![kind, "-in", source, cipher, "-passout", secret, "-out", &old];
            if kind == "rsa" {
                args.push("-traditional");
            }
            openssl(&dir.0, &args);
            assert!(String::from_utf8(dir.read(&old)).unwrap().contains("4,ENCRYPTED"));
            files.push(old);
        }
    }
    for (name, options) in [
        ("aes256", &["-v2", "aes-256-cbc"][..]),
        ("des3", &["-v2", "des3"]),
        ("sha512", &["-v2", "aes-128-cbc", "-v2prf", "hmacWithSHA512"]),
        ("aes-sha1", &["-v2", "aes-256-cbc", "-v2prf", "hmacWithSHA1"]),
        ("des3-sha1", &["-v2", "des3", "-v2prf", "hmacWithSHA1"]),
        ("scrypt", &["-scrypt", "-scrypt_N", "1024"]),
    ] {
        let file = format!("pkcs8-{name}.key");
        let mut args = vec!["pkcs8", "-topk8", "-in", "ec.key", "-passout", secret, "-out", &file];
        args.extend(options);
        openssl(&dir.0, &args);
        files.push(file);
    }
    let passwords = [b"wrong".to_vec(), b"sesame".to_vec()];
    for file in &files {
        let text = dir.read(file);
        let read = PrivateKey::from_pem(&text, &passwords);
        assert!(read.is_ok(), "{file}: {read:?}");
        if String::from_utf8_lossy(&text).contains("ENCRYPTED") {
            let error = PrivateKey::from_pem(&text, &passwords[..1]).unwrap_err();
            assert!(error.contains("bad decrypt"), "{file}: {error}");
            let error = PrivateKey::from_pem(&text, &[]).unwrap_err();
            assert!(error.contains("interrupted or cancelled"), "{file}: {error}");
        }
    }
}

#[test]
fn keys_of_old_kinds_are_refused_with_a_hint() {
    let dir = Dir::new("old-keys");
    let source = ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "k"];
    if openssl(&dir.0, &source).is_none() {
        return;
    }
    let old = ["-v1", "PBE-SHA1-3DES", "-passout", "pass:sesame", "-out", "old"];
    openssl(&dir.0, &[&["pkcs8", "-topk8", "-in", "k"][..], &old].concat());
    let curve = ["ecparam", "-name", "secp256k1", "-genkey", "-noout", "-out", "curve"];
    openssl(&dir.0, &curve);
    openssl(&dir.0, &["genpkey", "-algorithm", "X448", "-out", "other"]);
    for (file, want) in [("old", "use PBES2"), ("curve", "use RSA"), ("other", "use RSA")] {
        let error = PrivateKey::from_pem(&dir.read(file), &[b"sesame".to_vec()]).unwrap_err();
        assert!(error.contains(want), "{file}: {error}");
    }
}

#[test]
fn what_a_certificate_says_reads_as_openssl_prints_it() {
    let dir = Dir::new("names");
    let subjects = [
        "/C=DE/ST=Some-State/O=Internet Widgits Pty Ltd/OU=a, b + c/CN=www.example.com",
        "/C=US/O=#leading hash/CN= spaces /emailAddress=me@example.com",
        "/CN=\u{fc}n\u{ef}c\u{f6}d\u{e9} \u{20ac}/O=back\\\\slash \"quoted\" <a;b>",
        "/DC=org/DC=example/UID=jdoe/SN=Doe/GN=Jane/title=Dr/serialNumber=12",
        "/CN=multi+OU=valued/O=x",
        "/1.2.3.4.5=odd/CN=x",
        "/O=tab\tand\u{7f}del and \\/slash and \\+plus/CN=y",
        "/jurisdictionC=DE/businessCategory=Private Organization/organizationIdentifier=V-1/CN=ev",
    ];
    for (index, subject) in subjects.iter().enumerate() {
        let serial = ["0x1234567890abcdef00", "0", "255", "-5", "127", "128", "1", "2"][index];
        let args = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            "k.key",
            "-out",
            "c.pem",
            "-days",
            "30",
            "-utf8",
            "-multivalue-rdn",
            "-set_serial",
            serial,
            "-subj",
            subject,
        ];
        if openssl(&dir.0, &args).is_none() {
            return;
        }
        let ask = |options: &[&str]| {
            let args = [&["x509", "-noout", "-in", "c.pem"], options].concat();
            let text = openssl(&dir.0, &args).unwrap();
            text.trim_end_matches('\n').split_once('=').unwrap().1.to_owned()
        };
        let der = certificates_from_pem(&dir.read("c.pem")).unwrap();
        let certificate = Certificate::parse(&der[0]).unwrap();
        let rfc2253 = ask(&["-subject", "-nameopt", "RFC2253"]);
        assert_eq!(certificate.subject(), rfc2253);
        assert_eq!(certificate.issuer(), ask(&["-issuer", "-nameopt", "RFC2253"]));
        assert_eq!(certificate.subject_legacy(), ask(&["-subject", "-nameopt", "compat"]));
        assert_eq!(certificate.serial(), ask(&["-serial"]));
        assert_eq!(certificate.start(), ask(&["-startdate"]));
        assert_eq!(certificate.end(), ask(&["-enddate"]));
        let fingerprint = ask(&["-fingerprint", "-sha1"]).replace(':', "").to_lowercase();
        assert_eq!(certificate.fingerprint(), fingerprint);
        let pem = String::from_utf8(dir.read("c.pem")).unwrap();
        assert_eq!(certificate.pem(), pem);
        let end = certificate.end_s();
        assert_eq!(certificate.remain_days(end - 86_400 * 3 - 5), 3);
        assert_eq!(certificate.remain_days(end + 1), 0);
    }
}

#[test]
fn a_certificate_with_trust_settings_is_read_without_them() {
    let dir = Dir::new("trusted");
    let made =
        ["req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=x", "-keyout", "x.key"];
    if openssl(&dir.0, &[&made[..], &["-out", "x.pem"]].concat()).is_none() {
        return;
    }
    openssl(&dir.0, &["x509", "-in", "x.pem", "-trustout", "-setalias", "me", "-out", "t.pem"]);
    let trusted = dir.read("t.pem");
    assert!(trusted.starts_with(b"-----BEGIN TRUSTED"));
    let plain = certificates_from_pem(&dir.read("x.pem")).unwrap();
    assert_eq!(certificates_from_pem(&trusted).unwrap(), plain);
}

#[test]
fn keys_and_certificates_that_do_not_fit_are_refused() {
    let dir = Dir::new("mismatch");
    let make = |name: &str| {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        openssl(
            &dir.0,
            &[
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-keyout",
                &key,
                "-out",
                &certificate,
                "-subj",
                "/CN=x",
            ],
        )
    };
    if make("a").is_none() {
        return;
    }
    make("b");
    let chain = Chain::from_pem(&dir.read("a.pem")).unwrap();
    let ours = PrivateKey::from_pem(&dir.read("a.key"), &[]).unwrap();
    let other = PrivateKey::from_pem(&dir.read("b.key"), &[]).unwrap();
    assert!(KeyPair::new(&chain, &ours).is_ok());
    let error = KeyPair::new(&chain, &other).unwrap_err();
    assert_eq!(error, "(SSL: error:05800074:x509 certificate routines::key values mismatch)");
    let error = Chain::from_pem(&dir.read("a.key")).unwrap_err();
    assert_eq!(
        error,
        "PEM_read_bio_X509_AUX() failed (SSL: error:0480006C:PEM routines::no start \
         line:Expecting: TRUSTED CERTIFICATE)"
    );
    let error = PrivateKey::from_pem(&dir.read("a.pem"), &[]).unwrap_err();
    assert_eq!(
        error,
        "PEM_read_bio_PrivateKey() failed (SSL: error:0480006C:PEM routines::no start \
         line:Expecting: ANY PRIVATE KEY)"
    );
}

/// An authority with a leaf, and a responder that it authorised.
fn authority(dir: &Dir) -> Option<()> {
    let config = "[leaf]\nauthorityInfoAccess=OCSP;URI:http://ocsp.example:8080/x\n\
                  [responder]\nextendedKeyUsage=OCSPSigning\n[ca]\nbasicConstraints=CA:TRUE\n\
                  [req]\ndistinguished_name=dn\n[dn]\n";
    fs::write(dir.0.join("x.cnf"), config).unwrap();
    let p256 = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let root = [
        "req",
        "-config",
        "x.cnf",
        "-x509",
        "-extensions",
        "ca",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=CA",
    ];
    openssl(&dir.0, &[&root[..], &p256].concat())?;
    for (name, serial) in
        [("leaf", "10"), ("revoked", "11"), ("responder", "12"), ("stranger", "13")]
    {
        let (key, csr, pem) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        let subject = format!("/CN={name}");
        let ask = ["req", "-config", "x.cnf", "-keyout", &key, "-out", &csr, "-subj", &subject];
        openssl(&dir.0, &[&ask[..], &p256].concat());
        // The stranger is one that nobody authorised to answer.
        let section = if name == "responder" { "responder" } else { "leaf" };
        openssl(
            &dir.0,
            &[
                "x509",
                "-req",
                "-in",
                &csr,
                "-CA",
                "ca.pem",
                "-CAkey",
                "ca.key",
                "-set_serial",
                serial,
                "-days",
                "30",
                "-extfile",
                "x.cnf",
                "-extensions",
                section,
                "-out",
                &pem,
            ],
        );
    }
    let index = "V\t491231235959Z\t\t0A\tunknown\t/CN=leaf\n\
                 R\t491231235959Z\t220101000000Z\t0B\tunknown\t/CN=revoked\n";
    fs::write(dir.0.join("index.txt"), index).unwrap();
    Some(())
}

#[test]
fn ocsp_is_spoken_with_openssls_responder() {
    let dir = Dir::new("ocsp");
    if authority(&dir).is_none() {
        return;
    }
    let read = |file: &str| certificates_from_pem(&dir.read(file)).unwrap().remove(0);
    let (issuer, leaf) = (read("ca.pem"), read("leaf.pem"));
    let now_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
    assert_eq!(ocsp_responder(&leaf).as_deref(), Some("http://ocsp.example:8080/x"));
    assert_eq!(ocsp_responder(&issuer), None);
    let answer = |about: &CertificateDer<'_>, signer: &str| {
        fs::write(dir.0.join("request"), ocsp_request(about, &issuer).unwrap()).unwrap();
        let (pem, key) = (format!("{signer}.pem"), format!("{signer}.key"));
        openssl(
            &dir.0,
            &[
                "ocsp",
                "-index",
                "index.txt",
                "-rsigner",
                &pem,
                "-rkey",
                &key,
                "-CA",
                "ca.pem",
                "-reqin",
                "request",
                "-respout",
                "response",
                "-ndays",
                "2",
            ],
        );
        dir.read("response")
    };
    for (file, signer, want) in [
        ("leaf.pem", "ca", Ok(OcspStatus::Good)),
        ("leaf.pem", "responder", Ok(OcspStatus::Good)),
        ("revoked.pem", "ca", Ok(OcspStatus::Revoked)),
        ("responder.pem", "ca", Ok(OcspStatus::Unknown)),
        ("leaf.pem", "stranger", Err("OCSP_basic_verify() failed")),
    ] {
        let der = read(file);
        let response = answer(&der, signer);
        let found = ocsp_check(&response, &der, &issuer, now_s, true);
        assert_eq!(found.map(|found| found.status), want.map_err(str::to_owned), "{file} {signer}");
        assert!(ocsp_check(&response, &der, &issuer, now_s, false).is_ok());
    }
    let response = answer(&leaf, "ca");
    let until_s = ocsp_check(&response, &leaf, &issuer, now_s, true).unwrap().valid_until_s;
    assert!((now_s + 172_000..now_s + 173_000).contains(&until_s.unwrap()));
    let other = ocsp_check(&response, &read("revoked.pem"), &issuer, now_s, true);
    assert_eq!(other.unwrap_err(), "certificate status not found in the OCSP response");
    for (when_s, why) in [(now_s - 1000, "not yet valid)"), (now_s + 200_000, "expired)")] {
        let error = ocsp_check(&response, &leaf, &issuer, when_s, true).unwrap_err();
        assert!(error.starts_with("OCSP_check_validity() failed (SSL: ") && error.ends_with(why));
    }
    // What is cut or changed is never good.
    for cut in 0..response.len() {
        assert!(ocsp_check(&response[..cut], &leaf, &issuer, now_s, true).is_err());
        let mut changed = response.clone();
        changed[cut] ^= 0x41;
        if let Ok(found) = ocsp_check(&changed, &leaf, &issuer, now_s, true) {
            // Certificates that go with it may be anything.
            assert_eq!(found.status, OcspStatus::Good);
        }
    }
    let refused = [0x30, 3, 0x0a, 1, 6];
    let error = ocsp_check(&refused, &leaf, &issuer, now_s, true).unwrap_err();
    assert_eq!(error, "OCSP response not successful (6: unauthorized)");
}
