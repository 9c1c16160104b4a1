//! TLS records after the handshake: sealed and opened where they lie.
//!
//! rustls makes the handshake and hands over the traffic keys, as it does for kernel TLS; with records
//! of our own nothing is copied between its buffers, and an idle connection holds two keys and no
//! buffer. The cryptography itself is AWS-LC's.
//! Invariant: a nonce is used once: the sequence number only grows, and a key is gone (`KeyUpdate`, or
//! the connection closes) before it reaches the limit of its cipher.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::{ConnectionTrafficSecrets, ProtocolVersion};

/// The largest plaintext of a record (RFC 8446 §5.1).
pub(crate) const MAX_PLAIN: usize = 16 << 10;
/// The length of a record's header.
pub(crate) const HEADER: usize = 5;
/// The largest record on the wire (RFC 8446 §5.2; RFC 5246 §6.2.3 allows 2048 on top, which no AEAD
/// needs).
pub(crate) const MAX_RECORD: usize = HEADER + MAX_PLAIN + 256;
const TAG: usize = 16;
const EXPLICIT: usize = 8;

/// RFC 8446 §5.5: 2^24.5 records for AES-GCM; ChaCha20 has no practical limit.
const GCM_RECORDS: u64 = 1 << 24;
const CHACHA_RECORDS: u64 = 1 << 62;

/// The content types that a record may have.
pub(crate) mod kind {
    pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const DATA: u8 = 23;
}

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadRecord {
    /// Not a record of this protocol.
    Version,
    /// One of a kind that has no place.
    Kind,
    /// One too long, or with too much in it.
    Length,
    /// Decryption failed: changed on the way, or the wrong key.
    Authentication,
    /// The key has served long enough.
    Exhausted,
}

/// How nonces and headers are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Tls13,
    /// RFC 5288: eight bytes of the nonce travel with the record.
    Tls12Gcm,
    /// RFC 7905.
    Tls12Chacha,
}

/// A key of one direction.
pub(crate) struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    limit: u64,
    format: Format,
}

impl Key {
    /// From what rustls agreed on; `None`: a cipher that this file does not know.
    pub(crate) fn new(
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
        version: ProtocolVersion,
    ) -> Option<Key> {
        let tls13 = version == ProtocolVersion::TLSv1_3;
        let gcm = if tls13 { Format::Tls13 } else { Format::Tls12Gcm };
        let (algorithm, key, iv, format, limit) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
                (&AES_128_GCM, key, iv, gcm, GCM_RECORDS)
            }
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
                (&AES_256_GCM, key, iv, gcm, GCM_RECORDS)
            }
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                let format = if tls13 { Format::Tls13 } else { Format::Tls12Chacha };
                (&CHACHA20_POLY1305, key, iv, format, CHACHA_RECORDS)
            }
            _ => return None,
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).ok()?);
        let iv = iv.as_ref().try_into().ok()?;
        Some(Key { key, iv, sequence, limit, format })
    }

    /// Where the plaintext stands in a record.
    pub(crate) fn prefix(&self) -> usize {
        match self.format {
            Format::Tls12Gcm => HEADER + EXPLICIT,
            Format::Tls13 | Format::Tls12Chacha => HEADER,
        }
    }

    /// What a record is longer than its plaintext.
    pub(crate) fn overhead(&self) -> usize {
        self.prefix() + TAG + usize::from(self.format == Format::Tls13)
    }

    /// Whether it is one of TLS 1.3.
    pub(crate) fn is_tls13(&self) -> bool {
        self.format == Format::Tls13
    }

    /// How many more records may be sealed before the key must be changed.
    pub(crate) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.sequence)
    }

    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// RFC 5246 §6.2.3.3: what TLS 1.2 authenticates beside the content.
    fn aad12(&self, kind: u8, len: usize) -> [u8; 13] {
        let mut aad = [0; 13];
        aad[..8].copy_from_slice(&self.sequence.to_be_bytes());
        aad[8..11].copy_from_slice(&[kind, 3, 3]);
        aad[11..].copy_from_slice(&(len as u16).to_be_bytes());
        aad
    }

    /// Seals a record: `record` is [`overhead`](Key::overhead) longer than the plaintext, which
    /// stands in it at [`prefix`](Key::prefix).
    pub(crate) fn seal(&mut self, kind: u8, record: &mut [u8]) -> Result<(), BadRecord> {
        // One beyond the limit is kept for the `KeyUpdate` or the alert that ends its use.
        if self.sequence > self.limit {
            return Err(BadRecord::Exhausted);
        }
        let plain = record.len() - self.overhead();
        let nonce = self.nonce();
        let outer = if self.format == Format::Tls13 { kind::DATA } else { kind };
        let body = (record.len() - HEADER) as u16;
        record[..3].copy_from_slice(&[outer, 3, 3]);
        record[3..HEADER].copy_from_slice(&body.to_be_bytes());
        let (header, rest) = record.split_at_mut(HEADER);
        let (text, tag) = rest.split_at_mut(rest.len() - TAG);
        let sealed = match self.format {
            Format::Tls13 => {
                text[plain] = kind;
                let aad = Aad::from(&*header);
                self.key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, text)
            }
            Format::Tls12Gcm | Format::Tls12Chacha => {
                let skip = self.prefix() - HEADER;
                text[..skip].copy_from_slice(&nonce[4..4 + skip]);
                let aad = Aad::from(self.aad12(kind, plain));
                let nonce = Nonce::assume_unique_for_key(nonce);
                self.key.seal_in_place_separate_tag(nonce, aad, &mut text[skip..])
            }
        };
        tag.copy_from_slice(sealed.map_err(|_| BadRecord::Exhausted)?.as_ref());
        self.sequence += 1;
        Ok(())
    }

    /// Opens a whole record where it lies: its kind, and where in it the plaintext is.
    pub(crate) fn open(
        &mut self,
        record: &mut [u8],
    ) -> Result<(u8, std::ops::Range<usize>), BadRecord> {
        if self.sequence >= self.limit.saturating_mul(64) {
            return Err(BadRecord::Exhausted);
        }
        let kind = record[0];
        let start = self.prefix();
        let Some(plain) = record.len().checked_sub(start + TAG) else {
            // Too short for what authenticates it (RFC 8446 §5.2).
            return Err(BadRecord::Authentication);
        };
        let (header, rest) = record.split_at_mut(HEADER);
        let opened = match self.format {
            Format::Tls13 if kind != kind::DATA => return Err(BadRecord::Kind),
            Format::Tls13 => {
                let nonce = Nonce::assume_unique_for_key(self.nonce());
                self.key.open_in_place(nonce, Aad::from(&*header), rest)
            }
            Format::Tls12Gcm | Format::Tls12Chacha => {
                let skip = start - HEADER;
                let mut nonce = self.nonce();
                nonce[4..4 + skip].copy_from_slice(&rest[..skip]);
                let nonce = Nonce::assume_unique_for_key(nonce);
                let aad = Aad::from(self.aad12(kind, plain));
                self.key.open_in_place(nonce, aad, &mut rest[skip..])
            }
        };
        let text = opened.map_err(|_| BadRecord::Authentication)?;
        self.sequence += 1;
        let (kind, len) = match self.format {
            Format::Tls13 => inner(text)?,
            Format::Tls12Gcm | Format::Tls12Chacha => (kind, text.len()),
        };
        if len > MAX_PLAIN {
            return Err(BadRecord::Length);
        }
        Ok((kind, start..start + len))
    }
}

/// RFC 8446 §5.4: the type is the last byte that is not padding.
fn inner(text: &[u8]) -> Result<(u8, usize), BadRecord> {
    let at = text.iter().rposition(|byte| *byte != 0).ok_or(BadRecord::Kind)?;
    Ok((text[at], at))
}

/// How long the record is that begins here, with its header; `None`: its header is not whole.
pub(crate) fn record_len(input: &[u8]) -> Option<Result<usize, BadRecord>> {
    let header: &[u8; HEADER] = input.first_chunk()?;
    let len = HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
    let known = (kind::CHANGE_CIPHER_SPEC..=kind::DATA).contains(&header[0]);
    Some(match (header[1], known) {
        (3, true) if len > MAX_RECORD => Err(BadRecord::Length),
        (3, true) => Ok(len),
        (3, false) => Err(BadRecord::Kind),
        _ => Err(BadRecord::Version),
    })
}

/// A key for tests, the same for both sides.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn test_key(version: ProtocolVersion, chacha: bool, sequence: u64) -> Key {
    use rustls::crypto::cipher::{AeadKey, Iv};
    let (key, iv) = (AeadKey::from([3; 32]), Iv::copy(&[5; 12]));
    let secrets = match chacha {
        true => ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv },
        false => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
    };
    Key::new((sequence, secrets), version).expect("a cipher that is known")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(format: Format, sequence: u64) -> Key {
        let version = match format {
            Format::Tls13 => ProtocolVersion::TLSv1_3,
            _ => ProtocolVersion::TLSv1_2,
        };
        test_key(version, format == Format::Tls12Chacha, sequence)
    }

    const FORMATS: [Format; 3] = [Format::Tls13, Format::Tls12Gcm, Format::Tls12Chacha];

    fn sealed(key: &mut Key, kind: u8, text: &[u8]) -> Vec<u8> {
        let mut record = vec![0; text.len() + key.overhead()];
        let at = key.prefix();
        record[at..at + text.len()].copy_from_slice(text);
        key.seal(kind, &mut record).unwrap();
        record
    }

    #[test]
    fn what_is_sealed_opens_in_its_order_and_only_unchanged() {
        for format in FORMATS {
            let (mut ours, mut theirs) = (key(format, 0), key(format, 0));
            for text in [&b""[..], b"hello", &[9; MAX_PLAIN]] {
                let mut record = sealed(&mut ours, kind::DATA, text);
                assert_eq!(record_len(&record), Some(Ok(record.len())));
                let (kind, at) = theirs.open(&mut record).unwrap();
                assert_eq!((kind, &record[at]), (kind::DATA, text));
            }
            let mut record = sealed(&mut ours, kind::ALERT, &[1, 0]);
            let mut changed = record.clone();
            *changed.last_mut().unwrap() ^= 1;
            assert_eq!(theirs.open(&mut changed), Err(BadRecord::Authentication));
            assert_eq!(theirs.open(&mut record).unwrap().0, kind::ALERT);
            let mut again = sealed(&mut key(format, 0), kind::DATA, b"");
            assert_eq!(theirs.open(&mut again), Err(BadRecord::Authentication));
        }
    }

    #[test]
    fn padding_is_taken_off_and_nothing_but_padding_is_refused() {
        assert_eq!(inner(b"ab\x17\0\0"), Ok((23, 2)));
        assert_eq!(inner(b"\x17"), Ok((23, 0)));
        assert_eq!(inner(b"\0\0"), Err(BadRecord::Kind));
        assert_eq!(inner(b""), Err(BadRecord::Kind));
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        for format in FORMATS {
            for len in HEADER..HEADER + 16 {
                let mut record = vec![23; len];
                let opened = key(format, 0).open(&mut record);
                assert!(matches!(opened, Err(BadRecord::Authentication)), "{len}");
            }
        }
        assert_eq!(record_len(b"\x17\x03\x03\xff\xff"), Some(Err(BadRecord::Length)));
        assert_eq!(record_len(b"\x10\x03\x03\x00\x01"), Some(Err(BadRecord::Kind)));
        assert_eq!(record_len(b"GET /"), Some(Err(BadRecord::Version)));
        assert_eq!(record_len(b"\x17\x03\x03\x00"), None);
    }

    #[test]
    fn a_key_ends_at_its_limit() {
        let mut worn = key(Format::Tls13, GCM_RECORDS);
        assert_eq!(worn.left(), 0);
        sealed(&mut worn, kind::HANDSHAKE, b"update");
        let mut record = vec![0; worn.overhead()];
        assert_eq!(worn.seal(kind::DATA, &mut record), Err(BadRecord::Exhausted));
    }
}
