//! Checking a password against its hash in any of nginx's schemes (`core/ngx_crypt.c`, `crypt(3)`).
//!
//! DIFFERS(password-schemes): hashes of schemes that only some C libraries know (yescrypt, gost)
//! match no password.
//!
//! DIFFERS(password-length): nginx hashes a password of any length by `$apr1$`.
//!
//! Invariant: what is not understood does not match.

use forebay_wire::base64::{self, Alphabet};
use md5::{Digest as _, Md5};
use sha1::Sha1;

/// No password of a scheme that is slow has that many bytes (`CRYPT_MAX_PASSPHRASE_SIZE` of libxcrypt): to
/// hash it takes longer by as much as it is longer.
const MAX_BYTES: usize = 512;

/// Whether checking takes so long that an event loop should not do it.
pub fn is_slow(hash: &[u8]) -> bool {
    !hash.starts_with(b"{")
}

/// Whether `password` is the one that `hash` was made of.
pub fn matches(password: &[u8], hash: &[u8]) -> bool {
    // To nginx it is a C string.
    let end = memchr::memchr(0, password).unwrap_or(password.len());
    let password = &password[..end];
    if let Some(plain) = hash.strip_prefix(b"{PLAIN}") {
        return same(plain, password);
    }
    if let Some(encoded) = hash.strip_prefix(b"{SSHA}") {
        return ssha(password, encoded);
    }
    if let Some(encoded) = hash.strip_prefix(b"{SHA}") {
        let mut made = Vec::with_capacity(28);
        base64::encode(&Sha1::digest(password), &mut made);
        return same(&made, encoded);
    }
    if password.len() >= MAX_BYTES {
        return false;
    }
    if hash.starts_with(b"$apr1$") {
        return apr1(password, hash).is_some_and(|made| same(&made, hash));
    }
    std::str::from_utf8(hash).is_ok_and(|hash| pwhash::unix::verify(password, hash))
}

/// Compares in a time that does not tell where the difference is.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
}

/// `ngx_crypt_ssha`: the digest of password and salt, then the salt.
fn ssha(password: &[u8], encoded: &[u8]) -> bool {
    let Some(decoded) = base64::decode(encoded, Alphabet::Standard) else { return false };
    let Some((digest, salt)) = decoded.split_at_checked(20) else { return false };
    let mut sha = Sha1::new();
    sha.update(password);
    sha.update(salt);
    same(&sha.finalize(), digest)
}

/// `ngx_crypt_apr1`: the hash of a password with the salt of another; `None`: that has no salt.
fn apr1(password: &[u8], hash: &[u8]) -> Option<Vec<u8>> {
    const MAGIC: &[u8] = b"$apr1$";
    let rest = hash.strip_prefix(MAGIC)?;
    let salt = &rest[..memchr::memchr(b'$', rest).unwrap_or(rest.len()).min(8)];
    let mut inner = Md5::new();
    [password, salt, password].iter().for_each(|part| inner.update(part));
    let inner = inner.finalize();
    let mut md5 = Md5::new();
    [password, MAGIC, salt].iter().for_each(|part| md5.update(part));
    for left in (1..=password.len()).rev().step_by(16) {
        md5.update(&inner[..left.min(16)]);
    }
    let mut bits = password.len();
    while bits > 0 {
        md5.update(if bits & 1 == 1 { &[0][..] } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest = md5.finalize();
    for round in 0..1000 {
        let mut md5 = Md5::new();
        md5.update(if round & 1 == 1 { password } else { &digest[..] });
        if round % 3 != 0 {
            md5.update(salt);
        }
        if round % 7 != 0 {
            md5.update(password);
        }
        md5.update(if round & 1 == 1 { &digest[..] } else { password });
        digest = md5.finalize();
    }
    let mut out = [MAGIC, salt, b"$"].concat();
    let byte = |index: usize| u32::from(digest[index]);
    for (a, b, c) in [(0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5)] {
        put_symbols(byte(a) << 16 | byte(b) << 8 | byte(c), 4, &mut out);
    }
    put_symbols(byte(11), 2, &mut out);
    Some(out)
}

/// crypt(3)'s own base 64, the lowest bits first.
fn put_symbols(bits: u32, count: u32, out: &mut Vec<u8>) {
    const SYMBOLS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    out.extend((0..count).map(|index| SYMBOLS[(bits >> (6 * index)) as usize & 63]));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by openssl passwd, htpasswd, python's crypt and slappasswd.
    const KNOWN: &[(&str, &str)] = &[
        ("a", "$1$abc$uAXS.Zj1ZDNcW9iX1TVH2/"),
        ("a", "$5$saltsalt$Mtm6KOxb.PwaKES1sp80SDYOu1T0RdwsBVakhLiqA64"),
        (
            "a",
            "$6$saltsalt$8gzUrz5S2/0AfMGfui2LllQQ2fwu.jYnAVGef2XY7gAo0jNFrzHsTq9lMr2ze7QvIJxr4BYOKdgDpx4Va9Atb1",
        ),
        ("a", "$apr1$abcdefgh$G8IsPsylW5ROvIKsQMRG61"),
        ("correct horse battery staple", "$1$abc$muTq3MW/9xkrrAIHYPD8I1"),
        ("correct horse battery staple", "$5$saltsalt$3hGFMknrJ4ZpFPe7XZe397oIMEp7sbvqrcsX/ONJ3i."),
        (
            "correct horse battery staple",
            "$6$saltsalt$CPgxBHZBXfhC6lX1yxpdEsbQfXmg3WXVj8AoVwyNFLfb5AtbfM8k6A8yehv1z6sgzoH/DUIs7YK9hVnGhTjhW/",
        ),
        ("correct horse battery staple", "$apr1$abcdefgh$5MT.bUwCwhCf2blpqTwiG/"),
        ("secret", "$1$abc$iCQ2D3nhptRYi27fDYv2s1"),
        ("secret", "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW"),
        ("secret", "$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA"),
        (
            "secret",
            "$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1",
        ),
        ("secret", "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/"),
        ("secret", "abNANd1rDfiNc"),
        ("secret", "{PLAIN}secret"),
        ("secret", "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="),
        ("secret", "{SSHA}gVK8WC9YyFT1gMsQHTGCgT3sSv5zYWx0"),
    ];

    #[test]
    fn known_hashes_match_their_passwords_only() {
        for (password, hash) in KNOWN {
            assert!(matches(password.as_bytes(), hash.as_bytes()), "{hash}");
            let other = format!("{password}x");
            assert!(!matches(other.as_bytes(), hash.as_bytes()), "{hash}");
            assert!(!matches(b"", hash.as_bytes()), "{hash}");
        }
    }

    #[test]
    fn what_is_not_understood_matches_nothing() {
        let hashes = [
            "",
            "x",
            "$",
            "$apr1$",
            "$apr1$$",
            "$9$a$b",
            "$y$j9T$a$b",
            "*",
            "!",
            "{SHA}",
            "{SSHA}",
            "{SSHA}AAAA",
            "{MD5}x",
            "$2y$",
            "$2y$99$x",
            "$6$rounds=x$a$b",
            "$1$",
            "\u{e9}\u{e9}",
        ];
        for hash in hashes {
            for password in ["", "x", "password", "\u{e9}"] {
                assert!(!matches(password.as_bytes(), hash.as_bytes()), "{hash} {password}");
            }
        }
        assert!(!matches(b"x", b"\xff\xfe$"));
    }

    #[test]
    fn a_password_ends_at_nul_as_in_c() {
        assert!(matches(b"secret\0more", b"{PLAIN}secret"));
    }

    #[test]
    fn slow_schemes_take_no_endless_passwords() {
        let fits = vec![b'x'; MAX_BYTES - 1];
        for hash in ["$1$abc$", "$6$saltsalt$"] {
            let made = pwhash::unix::crypt(&fits[..], hash).unwrap();
            assert!(matches(&fits, made.as_bytes()), "{hash}");
        }
        let made = apr1(&fits, b"$apr1$salt$").unwrap();
        assert!(matches(&fits, &made));
        let too_long = vec![b'x'; MAX_BYTES];
        let made = apr1(&too_long, b"$apr1$salt$").unwrap();
        assert!(!matches(&too_long, &made));
        let made = pwhash::unix::crypt(&too_long[..], "$6$saltsalt$").unwrap();
        assert!(!matches(&too_long, made.as_bytes()));
        assert!(matches(&too_long, &[b"{PLAIN}", &too_long[..]].concat()));
    }
}
