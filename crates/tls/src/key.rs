//! Private keys in PEM, encrypted or not: PKCS#8 (`PRIVATE KEY`, `ENCRYPTED PRIVATE KEY` with PBES2)
//! and the traditional forms (`RSA PRIVATE KEY`, `EC PRIVATE KEY`, with `Proc-Type: 4,ENCRYPTED`).
//!
//! Answers `PEM_read_bio_PrivateKey` with `ngx_ssl_password_callback`.

// DIFFERS(ssl-old-keys): PBES1 (MD5 or SHA-1 with RC2 or DES), DSA and other curves are left out.

use std::num::NonZeroU32;

use aes::cipher::{BlockDecryptMut, KeyIvInit, block_padding::Pkcs7};
use aws_lc_rs::pbkdf2;
use md5::{Digest, Md5};
use pkcs8::pkcs5::{
    self,
    pbes2::{EncryptionScheme as Cipher, Kdf, Pbkdf2Prf},
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};

/// OpenSSL's error for a file without a key.
const NO_START_LINE: &str = "error:0480006C:PEM routines::no start line:Expecting: ANY PRIVATE KEY";
const BAD_DECRYPT: &str = "error:1C800064:Provider routines::bad decrypt";
const BAD_BASE64: &str = "error:04800064:PEM routines::bad base64 decode";
const BAD_END_LINE: &str = "error:04800066:PEM routines::bad end line";
/// nginx has no terminal to ask on.
const NO_PASSWORD: &str = "error:07880109:common libcrypto routines::interrupted or cancelled";

/// A section of a PEM file.
struct Section<'a> {
    label: &'a str,
    /// `AES-256-CBC,0123…` of a `DEK-Info` line.
    dek: Option<&'a str>,
    body: Vec<u8>,
}

/// The first private key of a PEM file, in DER. The error is in OpenSSL's words.
pub(crate) fn read(text: &[u8], passwords: &[Vec<u8>]) -> Result<PrivateKeyDer<'static>, String> {
    // What stands around the key may be of any charset.
    let text = String::from_utf8_lossy(text);
    let mut rest = &*text;
    while let Some(section) = next_section(&mut rest)? {
        match (section.label, section.dek) {
            ("PRIVATE KEY", _) => return Ok(PrivateKeyDer::Pkcs8(section.body.into())),
            ("ENCRYPTED PRIVATE KEY", _) => return pkcs8(&section.body, passwords),
            ("RSA PRIVATE KEY" | "EC PRIVATE KEY", dek) => {
                let body = match dek {
                    None => section.body,
                    Some(dek) => traditional(dek, &section.body, passwords)?,
                };
                return Ok(match section.label {
                    "RSA PRIVATE KEY" => PrivateKeyDer::Pkcs1(body.into()),
                    _ => PrivateKeyDer::Sec1(body.into()),
                });
            }
            (label, _) if label.ends_with("PRIVATE KEY") => {
                return Err(format!("{label} is not supported"));
            }
            _ => {}
        }
    }
    Err(NO_START_LINE.to_owned())
}

fn next_section<'a>(rest: &mut &'a str) -> Result<Option<Section<'a>>, String> {
    let Some((_, after)) = rest.split_once("-----BEGIN ") else { return Ok(None) };
    let (label, after) = after.split_once("-----").ok_or(BAD_END_LINE)?;
    let (content, after) = after.split_once("-----END ").ok_or(BAD_END_LINE)?;
    *rest = after;
    let mut dek = None;
    let mut digits = Vec::new();
    for line in content.lines().map(str::trim) {
        match line.split_once(':') {
            Some(("DEK-Info", value)) => dek = Some(value.trim()),
            Some(_) => {}
            None => digits.extend_from_slice(line.as_bytes()),
        }
    }
    let body = decoded(&digits).ok_or(BAD_BASE64)?;
    Ok(Some(Section { label, dek, body }))
}

/// What a section holds. Left to a library that takes the same time for all keys, and reads sections
/// without header lines only.
fn decoded(digits: &[u8]) -> Option<Vec<u8>> {
    let (begin, end) = ("-----BEGIN PRIVATE KEY-----\n", "\n-----END PRIVATE KEY-----\n");
    let section = [begin.as_bytes(), digits, end.as_bytes()].concat();
    let key = PrivatePkcs8KeyDer::from_pem_slice(&section).ok()?;
    Some(key.secret_pkcs8_der().to_vec())
}

/// RFC 5958 §3 with RFC 8018 PBES2.
fn pkcs8(der: &[u8], passwords: &[Vec<u8>]) -> Result<PrivateKeyDer<'static>, String> {
    let info = pkcs8::EncryptedPrivateKeyInfo::try_from(der).map_err(
        |_| "the key is encrypted in a way that is not supported: use PBES2 (openssl pkcs8 -topk8)",
    )?;
    if passwords.is_empty() {
        return Err(NO_PASSWORD.to_owned());
    }
    let decrypted = passwords.iter().find_map(|password| pbes2(&info, password));
    Ok(PrivateKeyDer::Pkcs8(decrypted.ok_or(BAD_DECRYPT)?.into()))
}

/// RFC 8018 §6.2.
fn pbes2(info: &pkcs8::EncryptedPrivateKeyInfo<'_>, password: &[u8]) -> Option<Vec<u8>> {
    // The library leaves out what OpenSSL took before 1.1.0, and what holds where nothing is said.
    if let pkcs5::EncryptionScheme::Pbes2(how) = &info.encryption_algorithm
        && let Kdf::Pbkdf2(kdf) = &how.kdf
        && kdf.prf == Pbkdf2Prf::HmacWithSha1
    {
        let mut key = vec![0; how.encryption.key_size()];
        let rounds = NonZeroU32::new(kdf.iteration_count)?;
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA1, rounds, kdf.salt, password, &mut key);
        let plain = match how.encryption {
            Cipher::Aes128Cbc { iv } => cbc::<aes::Aes128>(&key, iv, info.encrypted_data),
            Cipher::Aes192Cbc { iv } => cbc::<aes::Aes192>(&key, iv, info.encrypted_data),
            Cipher::Aes256Cbc { iv } => cbc::<aes::Aes256>(&key, iv, info.encrypted_data),
            Cipher::DesEde3Cbc { iv } => cbc::<des::TdesEde3>(&key, iv, info.encrypted_data),
            _ => None,
        };
        return plain.filter(|plain| pkcs8::PrivateKeyInfo::try_from(&plain[..]).is_ok());
    }
    info.decrypt(password).ok().map(|key| key.as_bytes().to_vec())
}

/// RFC 1421 headers with the key derivation of OpenSSL's `EVP_BytesToKey`.
fn traditional(dek: &str, body: &[u8], passwords: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let (cipher, iv) = dek.split_once(',').ok_or("error:0480006F:PEM routines::not dek info")?;
    let iv = hex(iv.trim()).ok_or("error:04800065:PEM routines::bad iv chars")?;
    if passwords.is_empty() {
        return Err(NO_PASSWORD.to_owned());
    }
    for password in passwords {
        let plain = match cipher.trim() {
            "AES-128-CBC" => cbc::<aes::Aes128>(&derive::<16>(password, &iv), &iv, body),
            "AES-192-CBC" => cbc::<aes::Aes192>(&derive::<24>(password, &iv), &iv, body),
            "AES-256-CBC" => cbc::<aes::Aes256>(&derive::<32>(password, &iv), &iv, body),
            "DES-EDE3-CBC" => cbc::<des::TdesEde3>(&derive::<24>(password, &iv), &iv, body),
            other => return Err(format!("the cipher {other} of the key is not supported")),
        };
        // A wrong password mostly shows in the padding; else the key is no DER sequence.
        if let Some(plain) = plain.filter(|plain| plain.first() == Some(&0x30)) {
            return Ok(plain);
        }
    }
    Err(BAD_DECRYPT.to_owned())
}

/// OpenSSL's `EVP_BytesToKey` with MD5 and one round.
fn derive<const N: usize>(password: &[u8], iv: &[u8]) -> [u8; N] {
    let mut key = Vec::with_capacity(N + 16);
    let mut last = Vec::new();
    while key.len() < N {
        let mut digest = Md5::new();
        digest.update(&last);
        digest.update(password);
        digest.update(&iv[..iv.len().min(8)]);
        last = digest.finalize().to_vec();
        key.extend_from_slice(&last);
    }
    std::array::from_fn(|at| key[at])
}

fn cbc<C>(key: &[u8], iv: &[u8], body: &[u8]) -> Option<Vec<u8>>
where
    C: aes::cipher::BlockCipher + aes::cipher::BlockDecrypt + aes::cipher::KeyInit,
{
    let decryptor = cbc::Decryptor::<C>::new_from_slices(key, iv).ok()?;
    decryptor.decrypt_padded_vec_mut::<Pkcs7>(body).ok()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}
