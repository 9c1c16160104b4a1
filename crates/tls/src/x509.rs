//! What a certificate says, in the forms that nginx's variables have.
//!
//! Answers the `ngx_ssl_get_*` functions of certificates, with OpenSSL's `X509_NAME_print_ex`
//! (RFC 2253), `X509_NAME_oneline` and `ASN1_TIME_print` behind them.
//! Invariant: never panics, whatever the bytes: a client's certificate is peer input.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::{
    certificate::X509Certificate,
    der_parser::asn1_rs::{Any, Oid, ToDer},
    prelude::FromDer,
    x509::X509Name,
};

/// A certificate, read.
pub struct Certificate<'a> {
    der: &'a [u8],
    parsed: X509Certificate<'a>,
}

impl<'a> Certificate<'a> {
    /// Of a DER encoding; `None`: it is not a certificate.
    pub fn parse(der: &'a [u8]) -> Option<Certificate<'a>> {
        let (rest, parsed) = X509Certificate::from_der(der).ok()?;
        rest.is_empty().then_some(Certificate { der, parsed })
    }

    pub(crate) fn parsed(&self) -> &X509Certificate<'a> {
        &self.parsed
    }

    /// The public key: a SubjectPublicKeyInfo in DER.
    pub(crate) fn public_key(&self) -> &[u8] {
        self.parsed.public_key().raw
    }

    /// The subject's name as in RFC 2253 (`$ssl_client_s_dn`).
    pub fn subject(&self) -> String {
        rfc2253(self.parsed.subject())
    }

    /// The issuer's name as in RFC 2253 (`$ssl_client_i_dn`).
    pub fn issuer(&self) -> String {
        rfc2253(self.parsed.issuer())
    }

    /// The subject's name with slashes (`$ssl_client_s_dn_legacy`).
    pub fn subject_legacy(&self) -> String {
        oneline(self.parsed.subject())
    }

    /// The issuer's name with slashes (`$ssl_client_i_dn_legacy`).
    pub fn issuer_legacy(&self) -> String {
        oneline(self.parsed.issuer())
    }

    /// The serial number in hexadecimal (`$ssl_client_serial`).
    pub fn serial(&self) -> String {
        let raw = self.parsed.raw_serial();
        let negative = raw.first().is_some_and(|first| first & 0x80 != 0);
        let mut digits = raw.to_vec();
        if negative {
            negate(&mut digits);
        }
        let zeros = digits.iter().take_while(|byte| **byte == 0).count();
        let digits = &digits[zeros.min(digits.len().saturating_sub(1))..];
        let mut out = String::from(if negative { "-" } else { "" });
        push_hex(&mut out, digits, b"0123456789ABCDEF");
        out
    }

    /// SHA-1 of the whole, in hexadecimal (`$ssl_client_fingerprint`).
    pub fn fingerprint(&self) -> String {
        let mut out = String::with_capacity(40);
        let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, self.der);
        push_hex(&mut out, digest.as_ref(), b"0123456789abcdef");
        out
    }

    /// When it begins to be valid: `Nov 21 15:00:00 2026 GMT` (`$ssl_client_v_start`).
    pub fn start(&self) -> String {
        time_text(self.start_s())
    }

    /// When it ends (`$ssl_client_v_end`).
    pub fn end(&self) -> String {
        time_text(self.end_s())
    }

    /// How many whole days it stays valid, 0 if none (`$ssl_client_v_remain`). `now_s`: seconds since
    /// 1970.
    pub fn remain_days(&self, now_s: i64) -> i64 {
        self.end_s().saturating_sub(now_s).max(0) / 86_400
    }

    /// When it begins to be valid, in seconds since 1970.
    pub fn start_s(&self) -> i64 {
        self.parsed.validity().not_before.timestamp()
    }

    /// When it ends, in seconds since 1970.
    pub fn end_s(&self) -> i64 {
        self.parsed.validity().not_after.timestamp()
    }

    /// In PEM, with a line feed at its end (`$ssl_client_raw_cert` without it).
    pub fn pem(&self) -> String {
        pem(self.der)
    }
}

/// A certificate's DER in PEM.
pub fn pem(der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(der.len() / 3 * 4 + der.len() / 48 + 64);
    out.push_str("-----BEGIN CERTIFICATE-----\n");
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let three = [group[0], *group.get(1).unwrap_or(&0), *group.get(2).unwrap_or(&0)];
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            for place in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
                out.push(if place > group.len() { '=' } else { char::from(digit) });
            }
        }
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

fn negate(digits: &mut [u8]) {
    let mut carry = true;
    for byte in digits.iter_mut().rev() {
        (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
    }
}

fn push_hex(out: &mut String, bytes: &[u8], digits: &[u8; 16]) {
    for byte in bytes {
        out.push(char::from(digits[usize::from(byte >> 4)]));
        out.push(char::from(digits[usize::from(byte & 15)]));
    }
}

/// `ASN1_TIME_print`.
fn time_text(seconds: i64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days from the civil calendar, with years that begin in March.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 2, 0) } else { (month - 10, 1) };
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let name = MONTHS[month as usize % 12];
    let year = year + era * 400 + next;
    format!("{name} {day:2} {hour:02}:{minute:02}:{second:02} {year} GMT")
}

/// The names that OpenSSL has for the parts of a name.
fn short_name(oid: &Oid<'_>) -> Option<&'static str> {
    Some(match oid.to_id_string().as_str() {
        "2.5.4.3" => "CN",
        "2.5.4.4" => "SN",
        "2.5.4.5" => "serialNumber",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "street",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "2.5.4.12" => "title",
        "2.5.4.13" => "description",
        "2.5.4.15" => "businessCategory",
        "2.5.4.16" => "postalAddress",
        "2.5.4.17" => "postalCode",
        "2.5.4.18" => "postOfficeBox",
        "2.5.4.20" => "telephoneNumber",
        "2.5.4.41" => "name",
        "2.5.4.42" => "GN",
        "2.5.4.43" => "initials",
        "2.5.4.44" => "generationQualifier",
        "2.5.4.45" => "x500UniqueIdentifier",
        "2.5.4.46" => "dnQualifier",
        "2.5.4.65" => "pseudonym",
        "2.5.4.72" => "role",
        "2.5.4.97" => "organizationIdentifier",
        "1.2.840.113549.1.9.1" => "emailAddress",
        "1.2.840.113549.1.9.2" => "unstructuredName",
        "1.2.840.113549.1.9.8" => "unstructuredAddress",
        "0.9.2342.19200300.100.1.1" => "UID",
        "0.9.2342.19200300.100.1.3" => "mail",
        "0.9.2342.19200300.100.1.25" => "DC",
        "1.3.6.1.4.1.311.60.2.1.1" => "jurisdictionL",
        "1.3.6.1.4.1.311.60.2.1.2" => "jurisdictionST",
        "1.3.6.1.4.1.311.60.2.1.3" => "jurisdictionC",
        _ => return None,
    })
}

/// `X509_NAME_print_ex` with `XN_FLAG_RFC2253`: from the end, separated by commas.
fn rfc2253(name: &X509Name<'_>) -> String {
    let sets: Vec<_> = name.iter().collect();
    let mut out = String::new();
    for set in sets.iter().rev() {
        let attributes: Vec<_> = set.iter().collect();
        for (index, attribute) in attributes.iter().rev().enumerate() {
            match (index, out.is_empty()) {
                (_, true) => {}
                (0, _) => out.push(','),
                _ => out.push('+'),
            }
            let known = short_name(attribute.attr_type());
            match known {
                Some(name) => out.push_str(name),
                None => out.push_str(&attribute.attr_type().to_id_string()),
            }
            out.push('=');
            let text = known.and_then(|_| text_of(attribute.attr_value()));
            match text {
                Some(text) => escape(&mut out, &text),
                None => push_der(&mut out, attribute.attr_value()),
            }
        }
    }
    out
}

/// `ASN1_STRFLGS_DUMP_DER`: what is no text is shown as it is encoded.
fn push_der(out: &mut String, value: &Any<'_>) {
    out.push('#');
    push_hex(out, &value.to_der_vec().unwrap_or_default(), b"0123456789ABCDEF");
}

/// The characters of a string type (`ASN1_STRFLGS_UTF8_CONVERT`).
fn text_of(value: &Any<'_>) -> Option<String> {
    let data = value.data;
    match value.tag().0 {
        12 => String::from_utf8(data.to_vec()).ok(),
        // One byte a character: numeric, printable, T.61 (taken for Latin-1), IA5, visible; times.
        18..=20 | 22..=24 | 26 => Some(data.iter().map(|byte| char::from(*byte)).collect()),
        28 => data.chunks(4).map(|four| wide(four, 4)).collect(),
        30 => data.chunks(2).map(|two| wide(two, 2)).collect(),
        _ => None,
    }
}

fn wide(bytes: &[u8], width: usize) -> Option<char> {
    let whole = bytes.len() == width;
    let code = bytes.iter().fold(0u32, |code, byte| code << 8 | u32::from(*byte));
    char::from_u32(code).filter(|_| whole)
}

/// `do_esc_char` with `ASN1_STRFLGS_ESC_2253`, `ESC_CTRL` and `ESC_MSB`.
fn escape(out: &mut String, text: &str) {
    let last = text.len().wrapping_sub(1);
    for (at, byte) in text.bytes().enumerate() {
        let special = match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => true,
            b'#' => at == 0,
            b' ' => at == 0 || at == last,
            _ => false,
        };
        if special {
            out.push('\\');
        }
        match byte {
            0x20..=0x7e => out.push(char::from(byte)),
            _ => {
                out.push('\\');
                push_hex(out, &[byte], b"0123456789ABCDEF");
            }
        }
    }
}

/// `X509_NAME_oneline`.
fn oneline(name: &X509Name<'_>) -> String {
    let mut out = String::new();
    for set in name.iter() {
        for (index, attribute) in set.iter().enumerate() {
            out.push(if index == 0 { '/' } else { '+' });
            match short_name(attribute.attr_type()) {
                Some(name) => out.push_str(name),
                None => out.push_str(&attribute.attr_type().to_id_string()),
            }
            out.push('=');
            for byte in attribute.attr_value().data {
                match byte {
                    b'/' | b'+' => out.extend(['\\', char::from(*byte)]),
                    b' '..=b'~' => out.push(char::from(*byte)),
                    _ => {
                        out.push_str("\\x");
                        push_hex(&mut out, &[*byte], b"0123456789ABCDEF");
                    }
                }
            }
        }
    }
    out
}

/// How many bytes the certificate has that stands at the beginning; all, if none does.
pub(crate) fn len(der: &[u8]) -> usize {
    X509Certificate::from_der(der).map_or(der.len(), |(rest, _)| der.len() - rest.len())
}

/// Why that is no certificate, if it is none.
pub(crate) fn problem(der: &CertificateDer<'_>) -> Option<&'static str> {
    match Certificate::parse(der) {
        Some(_) => None,
        None => Some("SSL: error:0680009B:asn1 encoding routines::too long"),
    }
}

/// What is doubtful about a chain that a server is to send.
pub(crate) fn chain_warnings(chain: &[CertificateDer<'_>], now_s: i64) -> Vec<String> {
    let read: Vec<_> = chain.iter().filter_map(|der| Certificate::parse(der)).collect();
    let mut found = Vec::new();
    for certificate in &read {
        let name = certificate.subject();
        if certificate.end_s() < now_s {
            found.push(format!("the certificate \"{name}\" expired on {}", certificate.end()));
        } else if certificate.start_s() > now_s {
            let start = certificate.start();
            found.push(format!("the certificate \"{name}\" is not valid before {start}"));
        }
    }
    for pair in read.windows(2).filter(|pair| !issued(&pair[0], &pair[1])) {
        found.push(format!(
            "the certificate \"{}\" in the chain did not issue the one before it, \"{}\"",
            pair[1].subject(),
            pair[0].subject()
        ));
    }
    found
}

/// Says so if a chain is in the wrong order: what would have to follow a certificate is there, but
/// elsewhere.
pub(crate) fn misordered(chain: &[CertificateDer<'_>]) -> Option<String> {
    let read: Vec<_> = chain.iter().filter_map(|der| Certificate::parse(der)).collect();
    for (at, lower) in read.iter().enumerate().filter(|(_, lower)| !issued(lower, lower)) {
        let next = read.get(at + 1);
        if next.is_some_and(|next| issued(lower, next)) {
            continue;
        }
        if let Some(issuer) = read.iter().find(|one| issued(lower, one)) {
            return Some(format!(
                "the chain is in the wrong order: \"{}\" must be followed by \"{}\", which \
                 issued it",
                lower.subject(),
                issuer.subject()
            ));
        }
    }
    None
}

/// By their names.
fn issued(lower: &Certificate<'_>, upper: &Certificate<'_>) -> bool {
    lower.parsed.issuer().as_raw() == upper.parsed.subject().as_raw()
}
