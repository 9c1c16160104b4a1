//! Cipher strings as operators write them, with OpenSSL's meaning, onto the suites that there are.
//!
//! Answers `ssl_ciphers` (`SSL_CTX_set_cipher_list`: `ssl_create_cipher_list`,
//! `ssl_cipher_process_rulestr`, `ssl_cipher_apply_rule`) and the `Ciphersuites` of
//! `ssl_conf_command`. The string is applied to OpenSSL's own list, so that orders and classes come
//! out as there; then what rustls does not have is left out, and a warning says which and why.

mod table;

use rustls::{SupportedCipherSuite, crypto::aws_lc_rs::ALL_CIPHER_SUITES};

use crate::hkdf::with_hkdf;
use table::{Au, Enc, Kx, Mac, Min, SUITES, Suite};

/// The suites of TLS 1.3, in OpenSSL's order.
const TLS13: [(u16, &str); 5] = [
    (0x1302, "TLS_AES_256_GCM_SHA384"),
    (0x1303, "TLS_CHACHA20_POLY1305_SHA256"),
    (0x1301, "TLS_AES_128_GCM_SHA256"),
    (0x1304, "TLS_AES_128_CCM_SHA256"),
    (0x1305, "TLS_AES_128_CCM_8_SHA256"),
];

/// OpenSSL's error when a string selects nothing.
const NO_MATCH: &str = "error:0A0000B9:SSL routines::no cipher match";

/// How many suites a warning names of those that a class brought in.
const NAMED: usize = 3;

/// Which cipher suites are spoken, the preferred first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ciphers {
    tls13: Vec<u16>,
    tls12: Vec<u16>,
}

impl Default for Ciphers {
    /// `HIGH:!aNULL:!MD5`.
    fn default() -> Ciphers {
        let tls12 = SUITES.iter().map(|suite| suite.number).filter(|number| is_spoken(*number));
        let tls13 = TLS13.iter().map(|(number, _)| *number).filter(|number| is_spoken(*number));
        Ciphers { tls13: tls13.collect(), tls12: tls12.collect() }
    }
}

impl Ciphers {
    /// Of `ssl_ciphers`, with warnings for what is left out. The error stands behind
    /// `SSL_CTX_set_cipher_list("LIST") failed`, as in nginx.
    pub fn parse(list: &str) -> Result<(Ciphers, Vec<String>), String> {
        let mut rules = Rules::new();
        rules.run(list)?;
        let chosen: Vec<&Suite> = rules.chosen().collect();
        if chosen.is_empty() {
            return Err(format!("(SSL: {NO_MATCH})"));
        }
        let mut warnings = Vec::new();
        if !rules.unknown.is_empty() {
            warnings.push(format!("unknown in the cipher list: {}", rules.unknown.join(", ")));
        }
        let absent: Vec<&Suite> =
            chosen.iter().copied().filter(|suite| !is_spoken(suite.number)).collect();
        if !absent.is_empty() {
            warnings.push(left_out(&absent, chosen.len(), list));
        }
        let strong = |number: &u16| rules.level.allows(*number);
        let mut found = Ciphers::default();
        let spoken = chosen.iter().map(|suite| suite.number).filter(|number| is_spoken(*number));
        found.tls12 = spoken.filter(strong).collect();
        found.tls13.retain(strong);
        if found.tls12.is_empty() {
            return Err(format!("(SSL: {NO_MATCH}; {})", warnings.join("; ")));
        }
        Ok((found, warnings))
    }

    /// With the suites of TLS 1.3 in that order: `ssl_conf_command Ciphersuites LIST`.
    pub fn with_ciphersuites(mut self, list: &str) -> Result<(Ciphers, Vec<String>), String> {
        let mut warnings = Vec::new();
        self.tls13.clear();
        for name in list.split(':').filter(|name| !name.is_empty()) {
            let Some((number, _)) = TLS13.iter().find(|(_, known)| *known == name) else {
                return Err(format!("unknown cipher suite \"{name}\""));
            };
            match is_spoken(*number) {
                true if self.tls13.contains(number) => {}
                true => self.tls13.push(*number),
                false => warnings.push(format!("{name} is left out: AES-CCM is not supported")),
            }
        }
        match self.tls13.is_empty() {
            true => Err(format!("({NO_MATCH})")),
            false => Ok((self, warnings)),
        }
    }

    /// The names of the suites, in their order.
    pub fn names(&self) -> Vec<&'static str> {
        self.tls13.iter().chain(&self.tls12).filter_map(|number| cipher_name(*number)).collect()
    }

    pub(crate) fn suites(&self) -> Vec<SupportedCipherSuite> {
        let numbers = self.tls13.iter().chain(&self.tls12);
        numbers.filter_map(|number| spoken(*number)).map(with_hkdf).collect()
    }
}

fn spoken(number: u16) -> Option<SupportedCipherSuite> {
    ALL_CIPHER_SUITES.iter().copied().find(|suite| u16::from(suite.suite()) == number)
}

fn is_spoken(number: u16) -> bool {
    spoken(number).is_some()
}

/// `@SECLEVEL`.
struct Level(u8);

impl Level {
    /// 128 bits will do up to level 3, 192 up to 4 (`ssl_security_default_callback`).
    fn allows(&self, number: u16) -> bool {
        self.0 <= 3 || !matches!(number, 0x1301 | 0xc02b | 0xc02f)
    }
}

/// OpenSSL's list, on which the rules of a string work.
struct Rules {
    /// In their order; killed ones are gone.
    list: Vec<(usize, bool)>,
    level: Level,
    unknown: Vec<String>,
}

/// What a rule does with the suites that it names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Add,
    Delete,
    Kill,
    ToEnd,
}

impl Rules {
    fn new() -> Rules {
        let list = (0..SUITES.len()).map(|index| (index, false)).collect();
        Rules { list, level: Level(1), unknown: Vec::new() }
    }

    fn chosen(&self) -> impl Iterator<Item = &'static Suite> {
        self.list.iter().filter(|(_, active)| *active).map(|(index, _)| &SUITES[*index])
    }

    fn run(&mut self, list: &str) -> Result<(), String> {
        // `DEFAULT` counts at the beginning only, and `PROFILE=SYSTEM`, which is that of Red Hat's
        // OpenSSL, where the commented server of its nginx.conf has it: what the whole system allows.
        let default = ["DEFAULT", "PROFILE=SYSTEM"];
        let list = match default.iter().find_map(|word| list.strip_prefix(word)) {
            Some(rest) => {
                self.run_words("ALL:!COMPLEMENTOFDEFAULT:!eNULL")?;
                rest
            }
            None => list,
        };
        let suite_b = match list {
            "SUITEB128" | "SUITEB128C2" => {
                "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"
            }
            "SUITEB128ONLY" => "ECDHE-ECDSA-AES128-GCM-SHA256",
            "SUITEB192" => "ECDHE-ECDSA-AES256-GCM-SHA384",
            list => list,
        };
        self.run_words(suite_b)
    }

    fn run_words(&mut self, list: &str) -> Result<(), String> {
        for word in list.split([':', ',', ' ', ';']).flat_map(words) {
            if let Some(special) = word.strip_prefix('@') {
                self.special(special)?;
                continue;
            }
            let (rule, names) = match word.as_bytes()[0] {
                b'-' => (Rule::Delete, &word[1..]),
                b'!' => (Rule::Kill, &word[1..]),
                b'+' => (Rule::ToEnd, &word[1..]),
                _ => (Rule::Add, word),
            };
            let mut classes = names.split('+').map(|name| class(name).ok_or(name));
            match classes.by_ref().collect::<Result<Vec<_>, _>>() {
                Ok(classes) => {
                    self.apply(rule, |suite| classes.iter().all(|class| class.contains(suite)))
                }
                // As OpenSSL does: a word with an unknown part does nothing.
                Err(name) => self.unknown.push(name.to_owned()),
            }
        }
        Ok(())
    }

    fn special(&mut self, word: &str) -> Result<(), String> {
        match word.strip_prefix("SECLEVEL=") {
            Some(level) => match level.parse::<u8>() {
                Ok(level @ 0..=5) => self.level = Level(level),
                _ => return Err("(SSL: error:0A000118:SSL routines::invalid command)".to_owned()),
            },
            None if word == "STRENGTH" => {
                let mut strengths: Vec<u16> = self.chosen().map(|suite| suite.bits).collect();
                strengths.sort_unstable_by(|a, b| b.cmp(a));
                strengths.dedup();
                for bits in strengths {
                    self.apply(Rule::ToEnd, |suite| suite.bits == bits);
                }
            }
            None => {
                return Err("(SSL: error:0A000118:SSL routines::invalid command)".to_owned());
            }
        }
        Ok(())
    }

    fn apply(&mut self, rule: Rule, is_meant: impl Fn(&Suite) -> bool) {
        let meant = |entry: &(usize, bool)| match rule {
            Rule::Add => !entry.1 && is_meant(&SUITES[entry.0]),
            Rule::Delete | Rule::ToEnd => entry.1 && is_meant(&SUITES[entry.0]),
            Rule::Kill => is_meant(&SUITES[entry.0]),
        };
        let (moved, rest): (Vec<_>, Vec<_>) = self.list.iter().copied().partition(meant);
        let moved = moved.into_iter().map(|(index, _)| (index, rule != Rule::Delete));
        self.list = match rule {
            Rule::Add | Rule::ToEnd => rest.into_iter().chain(moved).collect(),
            // To the head, so that they come first when they are added again.
            Rule::Delete => moved.chain(rest).collect(),
            Rule::Kill => rest,
        };
    }
}

/// The words between two separators: `!` and `@` begin one wherever they stand.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let next = rest.char_indices().skip(1).find(|(_, ch)| matches!(ch, '!' | '@'));
        let (word, after) = rest.split_at(next.map_or(rest.len(), |(at, _)| at));
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// What a word stands for.
enum Class {
    All,
    Suite(&'static str),
    Kx(&'static [Kx]),
    Au(Au),
    /// A key exchange, with the server proved or not.
    Proved(Kx, bool),
    KxAndAu(Kx, Au),
    Enc(&'static [Enc]),
    Bits(&'static [Enc], u16),
    Mac(Mac),
    Min(Min),
    High,
    Medium,
    Low,
    NotDefault,
    /// OpenSSL knows the word, and has no suite for it any more.
    Nothing,
}

const AES: &[Enc] = &[Enc::Aes, Enc::AesGcm, Enc::AesCcm, Enc::AesCcm8];
const PSK: &[Kx] = &[Kx::Psk, Kx::RsaPsk, Kx::DhePsk, Kx::EcdhePsk];

/// `cipher_aliases`, and the names of suites.
fn class(word: &str) -> Option<Class> {
    Some(match word {
        "ALL" => Class::All,
        "COMPLEMENTOFALL" | "eNULL" | "NULL" => Class::Enc(&[Enc::None]),
        "COMPLEMENTOFDEFAULT" => Class::NotDefault,
        "kRSA" => Class::Kx(&[Kx::Rsa]),
        "kEDH" | "kDHE" | "DH" => Class::Kx(&[Kx::Dhe]),
        "kEECDH" | "kECDHE" | "ECDH" => Class::Kx(&[Kx::Ecdhe]),
        "kPSK" => Class::Kx(&[Kx::Psk]),
        "kRSAPSK" => Class::Kx(&[Kx::RsaPsk]),
        "kDHEPSK" => Class::Kx(&[Kx::DhePsk]),
        "kECDHEPSK" => Class::Kx(&[Kx::EcdhePsk]),
        "PSK" => Class::Kx(PSK),
        "kSRP" | "SRP" => Class::Kx(&[Kx::Srp]),
        "aRSA" => Class::Au(Au::Rsa),
        "aDSS" | "DSS" => Class::Au(Au::Dss),
        "aNULL" => Class::Au(Au::None),
        "aECDSA" | "ECDSA" => Class::Au(Au::Ecdsa),
        "aPSK" => Class::Au(Au::Psk),
        "aSRP" => Class::Au(Au::Srp),
        "EDH" | "DHE" => Class::Proved(Kx::Dhe, true),
        "EECDH" | "ECDHE" => Class::Proved(Kx::Ecdhe, true),
        "ADH" => Class::Proved(Kx::Dhe, false),
        "AECDH" => Class::Proved(Kx::Ecdhe, false),
        "RSA" => Class::KxAndAu(Kx::Rsa, Au::Rsa),
        "3DES" => Class::Enc(&[Enc::TripleDes]),
        "RC4" => Class::Enc(&[Enc::Rc4]),
        "IDEA" => Class::Enc(&[Enc::Idea]),
        "SEED" => Class::Enc(&[Enc::Seed]),
        "AES" => Class::Enc(AES),
        "AES128" => Class::Bits(AES, 128),
        "AES256" => Class::Bits(AES, 256),
        "AESGCM" => Class::Enc(&[Enc::AesGcm]),
        "AESCCM" => Class::Enc(&[Enc::AesCcm, Enc::AesCcm8]),
        "AESCCM8" => Class::Enc(&[Enc::AesCcm8]),
        "CAMELLIA" => Class::Enc(&[Enc::Camellia]),
        "CAMELLIA128" => Class::Bits(&[Enc::Camellia], 128),
        "CAMELLIA256" => Class::Bits(&[Enc::Camellia], 256),
        "CHACHA20" => Class::Enc(&[Enc::Chacha]),
        "ARIA" | "ARIAGCM" => Class::Enc(&[Enc::Aria]),
        "ARIA128" => Class::Bits(&[Enc::Aria], 128),
        "ARIA256" => Class::Bits(&[Enc::Aria], 256),
        "CBC" => Class::Enc(&[Enc::Aes, Enc::Camellia, Enc::TripleDes, Enc::Idea, Enc::Seed]),
        "MD5" => Class::Mac(Mac::Md5),
        "SHA1" | "SHA" => Class::Mac(Mac::Sha1),
        "SHA256" => Class::Mac(Mac::Sha256),
        "SHA384" => Class::Mac(Mac::Sha384),
        "SSLv3" => Class::Min(Min::Ssl3),
        "TLSv1" | "TLSv1.0" => Class::Min(Min::Tls10),
        "TLSv1.2" => Class::Min(Min::Tls12),
        "HIGH" => Class::High,
        "MEDIUM" => Class::Medium,
        "LOW" => Class::Low,
        // What left OpenSSL long ago and still stands in lists.
        "EXP" | "EXPORT" | "EXPORT40" | "EXPORT56" | "EXPORT1024" | "DES" | "RC2" | "SSLv2"
        | "GOST" | "kGOST" | "aGOST" | "aGOST01" | "GOST94" | "GOST89MAC" | "kDH" | "kDHr"
        | "kDHd" | "aDH" | "kECDH" | "kECDHr" | "kECDHe" | "aECDH" | "KRB5" | "kKRB5" | "aKRB5"
        | "FZA" | "kFZA" | "aFZA" | "eFZA" => Class::Nothing,
        "FIPS" => Class::High,
        name => Class::Suite(SUITES.iter().find(|suite| suite.name == old_name(name))?.name),
    })
}

/// The names that OpenSSL had before, and those of the RFCs.
fn old_name(name: &str) -> &str {
    match name {
        "EDH-RSA-DES-CBC3-SHA" => "DHE-RSA-DES-CBC3-SHA",
        "EDH-DSS-DES-CBC3-SHA" => "DHE-DSS-DES-CBC3-SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" => "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" => "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" => "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" => "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" => "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" => "ECDHE-RSA-CHACHA20-POLY1305",
        name => name,
    }
}

impl Class {
    fn contains(&self, suite: &Suite) -> bool {
        let medium = matches!(suite.enc, Enc::Rc4 | Enc::Seed | Enc::Idea | Enc::TripleDes);
        match *self {
            Class::All => suite.enc != Enc::None,
            Class::Suite(name) => suite.name == name,
            Class::Kx(list) => list.contains(&suite.kx),
            Class::Au(au) => suite.au == au,
            Class::Proved(kx, proved) => suite.kx == kx && (suite.au != Au::None) == proved,
            Class::KxAndAu(kx, au) => suite.kx == kx && suite.au == au,
            Class::Enc(list) => list.contains(&suite.enc),
            Class::Bits(list, bits) => list.contains(&suite.enc) && suite.bits == bits,
            Class::Mac(mac) => suite.mac == mac,
            Class::Min(min) => suite.min == min,
            Class::High => !medium && suite.enc != Enc::None,
            Class::Medium => medium,
            Class::Low | Class::Nothing => false,
            Class::NotDefault => {
                let rare = [Enc::AesCcm, Enc::AesCcm8, Enc::Aria, Enc::Camellia];
                let rare = medium || rare.contains(&suite.enc);
                rare || suite.au == Au::None || suite.au == Au::Dss
            }
        }
    }
}

/// Why a suite is not spoken.
fn reason(suite: &Suite) -> &'static str {
    match suite {
        Suite { enc: Enc::None, .. } => "no encryption (RFC 9325 section 4.1)",
        Suite { enc: Enc::Rc4, .. } => "RC4 (RFC 7465)",
        Suite { au: Au::None, .. } => "no authentication (RFC 9325 section 4.1)",
        Suite { enc: Enc::TripleDes | Enc::Seed | Enc::Idea, .. } => {
            "64-bit or outdated ciphers (RFC 8429, RFC 5469)"
        }
        Suite { kx: Kx::Srp, .. } => "SRP, not supported",
        Suite { kx: Kx::Psk | Kx::RsaPsk | Kx::DhePsk | Kx::EcdhePsk, .. } => {
            "pre-shared keys, not supported"
        }
        Suite { kx: Kx::Rsa, .. } => "static RSA, no forward secrecy (RFC 9325 section 4.1)",
        Suite { kx: Kx::Dhe, .. } => "finite-field DHE (RFC 9325 section 4.1)",
        Suite { enc: Enc::Aes, .. } => "CBC mode (RFC 7457, RFC 9325 section 4.2)",
        _ => "CCM, Camellia or ARIA, not supported",
    }
}

/// A warning for suites that are not spoken, by reason; those that the string names itself by name.
fn left_out(absent: &[&Suite], chosen: usize, list: &str) -> String {
    let mut reasons: Vec<(&'static str, Vec<&Suite>)> = Vec::new();
    for suite in absent {
        let why = reason(suite);
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, suites)) => suites.push(suite),
            None => reasons.push((why, vec![suite])),
        }
    }
    let words: Vec<&str> = list.split([':', ',', ' ', ';', '+', '!', '-']).collect();
    let group = |(why, suites): &(&str, Vec<&Suite>)| {
        let (named, others): (Vec<&Suite>, Vec<&Suite>) = suites
            .iter()
            .partition(|suite| words.contains(&suite.name) || list.contains(suite.name));
        let shown = named.len().max(NAMED).min(suites.len());
        let names: Vec<_> =
            named.iter().chain(&others).take(shown).map(|suite| suite.name).collect();
        match suites.len() - shown {
            0 => format!("{} ({why})", names.join(", ")),
            more => format!("{} and {more} more ({why})", names.join(", ")),
        }
    };
    let groups: Vec<String> = reasons.iter().map(group).collect();
    format!("{} of {chosen} cipher suites are left out: {}", absent.len(), groups.join("; "))
}

/// A cipher suite in OpenSSL's name (`$ssl_cipher`).
pub fn cipher_name(number: u16) -> Option<&'static str> {
    // Not suites, but what clients say among them (RFC 5746, RFC 7507); OpenSSL has names for these.
    match number {
        0x00ff => return Some("TLS_EMPTY_RENEGOTIATION_INFO_SCSV"),
        0x5600 => return Some("TLS_FALLBACK_SCSV"),
        _ => {}
    }
    let tls13 = TLS13.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
    tls13.or_else(|| SUITES.iter().find(|suite| suite.number == number).map(|suite| suite.name))
}

/// A signature scheme in the name of its RFC (`$ssl_sigalg`); unknown ones are `0x` and a number.
pub(crate) fn signature_scheme_name(number: u16) -> String {
    let name = match number {
        0x0201 => "rsa_pkcs1_sha1",
        0x0202 => "dsa_sha1",
        0x0203 => "ecdsa_sha1",
        0x0301 => "rsa_pkcs1_sha224",
        0x0303 => "ecdsa_sha224",
        0x0401 => "rsa_pkcs1_sha256",
        0x0402 => "dsa_sha256",
        0x0403 => "ecdsa_secp256r1_sha256",
        0x0501 => "rsa_pkcs1_sha384",
        0x0503 => "ecdsa_secp384r1_sha384",
        0x0601 => "rsa_pkcs1_sha512",
        0x0603 => "ecdsa_secp521r1_sha512",
        0x0804 => "rsa_pss_rsae_sha256",
        0x0805 => "rsa_pss_rsae_sha384",
        0x0806 => "rsa_pss_rsae_sha512",
        0x0807 => "ed25519",
        0x0808 => "ed448",
        0x0809 => "rsa_pss_pss_sha256",
        0x080a => "rsa_pss_pss_sha384",
        0x080b => "rsa_pss_pss_sha512",
        0x081a => "ecdsa_brainpoolP256r1tls13_sha256",
        0x081b => "ecdsa_brainpoolP384r1tls13_sha384",
        0x081c => "ecdsa_brainpoolP512r1tls13_sha512",
        0x0904 => "mldsa44",
        0x0905 => "mldsa65",
        0x0906 => "mldsa87",
        _ => return format!("0x{number:04x}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What the `openssl` program makes of a list, as far as we speak it; `None`: it is not there.
    fn openssl(list: &str) -> Option<Vec<String>> {
        let output = Command::new("openssl").args(["ciphers", list]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let names = text.trim().split(':').map(str::to_owned);
        let spoken: Vec<&str> = Ciphers::default().names();
        let names = names.filter(|name| !name.starts_with("TLS_"));
        Some(names.filter(|name| spoken.contains(&name.as_str())).collect())
    }

    #[test]
    fn strings_mean_what_they_mean_to_openssl() {
        if openssl("ALL").is_none_or(|names| names.is_empty()) {
            eprintln!("skipped: no openssl program");
            return;
        }
        for list in [
            "HIGH:!aNULL:!MD5",
            "ALL:!kEDH!ADH:RC4+RSA:+HIGH:+EXP",
            "ALL:!ADH:!EXPORT56:RC4+RSA:+HIGH:+MEDIUM:+LOW:+SSLv2:+EXP",
            "DEFAULT",
            "DEFAULT:!AES256",
            "DEFAULT@SECLEVEL=1",
            "DEFAULT!AES256@STRENGTH",
            "ALL!RSA!aECDSA@STRENGTH:+AES128@SECLEVEL=2",
            "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:\
             ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:\
             ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:\
             DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305",
            "EECDH+CHACHA20:EECDH+AES128:RSA+AES128:EECDH+AES256:RSA+AES256:EECDH+3DES:RSA+3DES:!MD5",
            "ECDHE-RSA-AES128-GCM-SHA256:ECDHE:ECDH:AES:HIGH:!NULL:!aNULL:!MD5:!ADH:!RC4",
            "EECDH+ECDSA+AESGCM:EECDH+aRSA+AESGCM:EECDH+ECDSA+SHA384:EECDH:EDH+aRSA:!aNULL:!eNULL",
            "kECDHE+aRSA:kECDHE+aECDSA",
            "ALL:-aRSA:aRSA",
            "ALL:-AESGCM:@STRENGTH:AESGCM",
            "AES128:AES256:@STRENGTH",
            "CHACHA20:+ECDSA:ALL",
            "ALL:!ECDSA:aECDSA",
            "TLSv1.2:!aRSA",
            "AES256+ECDHE, AES128+ECDHE",
            "NONSENSE:ECDHE+NONSENSE:ECDHE-RSA-AES128-GCM-SHA256",
            "SUITEB192",
            "ALL:COMPLEMENTOFALL:-HIGH:HIGH+aECDSA",
            "AESGCM:ECDHE+SHA256:SHA384:!kRSA",
        ] {
            let ours = Ciphers::parse(list).map(|(found, _)| found.tls12);
            let names: Vec<_> =
                ours.unwrap_or_default().into_iter().filter_map(cipher_name).collect();
            assert_eq!(names, openssl(list).unwrap(), "{list}");
        }
    }

    #[test]
    fn what_is_left_out_is_told_with_its_reason() {
        let cases: [(&str, &[&str]); 5] = [
            ("ECDHE:RC4-SHA", &["RC4-SHA (RC4 (RFC 7465))"]),
            ("ECDHE+AESGCM:AES256-SHA", &["1 of 5", "AES256-SHA (static RSA, no forward secrecy"]),
            ("ECDHE+AESGCM:DHE-RSA-AES128-GCM-SHA256", &["(finite-field DHE"]),
            ("ECDHE+AESGCM:ECDHE-RSA-AES128-SHA", &["CBC mode"]),
            ("HIGH:!aNULL:!MD5:NONSENSE", &["unknown in the cipher list: NONSENSE", " more ("]),
        ];
        for (list, texts) in cases {
            let warnings = Ciphers::parse(list).unwrap().1.join("\n");
            for text in texts {
                assert!(warnings.contains(text), "{list}: {warnings}");
            }
        }
        assert!(Ciphers::parse("ECDHE+AESGCM").unwrap().1.is_empty());
    }

    #[test]
    fn the_profile_of_the_system_is_the_default() {
        for (profile, same) in
            [("PROFILE=SYSTEM", "DEFAULT"), ("PROFILE=SYSTEM:!AES256", "DEFAULT:!AES256")]
        {
            let names = |list: &str| Ciphers::parse(list).unwrap().0.names();
            assert_eq!(names(profile), names(same));
        }
        assert!(Ciphers::parse("PROFILE=OTHER").is_err());
    }

    #[test]
    fn nothing_left_is_an_error() {
        let cases = [
            ("NONSENSE", "(SSL: error:0A0000B9:SSL routines::no cipher match)"),
            ("ALL:!ALL:@SECLEVEL=1", "(SSL: error:0A0000B9:SSL routines::no cipher match)"),
            ("RC4-SHA", "RC4 (RFC 7465)"),
            ("ALL:@SECLEVEL=9", "invalid command"),
            ("ALL:@WHAT", "invalid command"),
        ];
        for (list, want) in cases {
            let error = Ciphers::parse(list).unwrap_err();
            assert!(error.contains(want), "{list}: {error}");
        }
    }

    #[test]
    fn levels_and_ciphersuites_choose_too() {
        let strong = Ciphers::parse("ALL:@SECLEVEL=4").unwrap().0;
        assert!(strong.names().iter().all(|name| name.contains("256_") || !name.contains("128")));
        let chosen = Ciphers::default().with_ciphersuites("TLS_AES_128_GCM_SHA256").unwrap().0;
        assert_eq!(chosen.tls13, [0x1301]);
        assert!(Ciphers::default().with_ciphersuites("AES").is_err());
        assert!(Ciphers::default().with_ciphersuites("TLS_AES_128_CCM_SHA256").is_err());
    }

    #[test]
    fn suites_have_their_names() {
        assert_eq!(cipher_name(0x1301), Some("TLS_AES_128_GCM_SHA256"));
        assert_eq!(cipher_name(0xc02f), Some("ECDHE-RSA-AES128-GCM-SHA256"));
        assert_eq!(cipher_name(0x1a1a), None);
        assert_eq!(signature_scheme_name(0x0403), "ecdsa_secp256r1_sha256");
        assert_eq!(signature_scheme_name(0x1a1a), "0x1a1a");
    }
}
