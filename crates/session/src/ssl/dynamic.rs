//! Certificates whose names hold variables (`ssl_certificate $ssl_server_name.pem`): loaded when a
//! client comes, by the worker and with its rights, and kept if `ssl_certificate_cache` says so
//! (`ngx_ssl_connection_certificate`, `ngx_event_openssl_cache.c`).
//!
//! Invariant: the cache holds no more entries than it is told to.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use forebay_conf::Error;
use forebay_rt::clock;
use forebay_tls::{Chain, KeyPair, PrivateKey};

use super::{
    load::Source,
    server::Context,
    settings::{CertificateCache, Passwords, Settings},
};
use crate::var::{Scope, Template};

/// The certificates of a server, by names with variables.
pub struct Dynamic {
    pairs: Vec<(Template, Template)>,
    loader: PairLoader,
}

impl Dynamic {
    /// Those of a server, if any name of them holds a variable.
    pub(super) fn find<S: Scope>(
        settings: &Settings,
        cx: &mut Context<'_, '_, S>,
    ) -> Result<Option<Dynamic>, Error> {
        let certificates = settings.certificates.as_deref().unwrap_or_default();
        let keys = settings.certificate_keys.as_deref().unwrap_or_default();
        let mut pairs = Vec::new();
        for (certificate, key) in certificates.iter().zip(keys) {
            let certificate = Template::parse(&certificate.value, certificate.span, cx.registry)?;
            let key = Template::parse(&key.value, key.span, cx.registry)?;
            pairs.push((certificate, key));
        }
        let fixed = |template: &Template| template.as_text().is_some();
        if pairs.iter().all(|(certificate, key)| fixed(certificate) && fixed(key)) {
            return Ok(None);
        }
        let loader = PairLoader {
            prefix: cx.loader.conf_prefix.clone(),
            passwords: settings.passwords.clone(),
            cache: settings.certificate_cache.clone().flatten(),
        };
        Ok(Some(Dynamic { pairs, loader }))
    }

    /// The certificates for a client. The error is nginx's line for the log.
    pub fn load<S: Scope>(&self, scope: &S) -> Result<Vec<KeyPair>, String> {
        let load = |(certificate, key): &(Template, Template)| {
            self.loader.load(certificate.value(scope), key.value(scope))
        };
        self.pairs.iter().map(load).collect()
    }
}

/// Loads certificates with their keys while the server runs.
#[derive(Clone)]
pub struct PairLoader {
    /// What relative names belong to.
    pub prefix: PathBuf,
    /// For encrypted keys.
    pub passwords: Option<Passwords>,
    /// What was loaded before.
    pub cache: Option<std::sync::Arc<KeyPairCache>>,
}

impl PairLoader {
    /// Loads a certificate and its key. The error is nginx's line for the log.
    pub fn load(&self, certificate: Vec<u8>, key: Vec<u8>) -> Result<KeyPair, String> {
        let Some(cache) = &self.cache else { return self.read(&certificate, &key) };
        let now_ms = clock::now_ms();
        let names = (certificate, key);
        let stamp = || self.stamp(&names);
        if let Some(pair) = cache.find(&names, now_ms, stamp) {
            return Ok(pair);
        }
        let stamp = self.stamp(&names);
        let pair = self.read(&names.0, &names.1)?;
        cache.keep(names, &pair, stamp, now_ms);
        Ok(pair)
    }

    fn read(&self, certificate: &[u8], key: &[u8]) -> Result<KeyPair, String> {
        let source = Source::of(certificate, &self.prefix);
        let said = |why| format!("cannot load certificate \"{source}\": {why}");
        let text = source.read(|path| fs::read(path)).map_err(said)?;
        let chain = Chain::from_pem(&text).map_err(said)?;
        let source = Source::of(key, &self.prefix);
        let said = |why| format!("cannot load certificate key \"{source}\": {why}");
        let text = source.read(|path| fs::read(path)).map_err(said)?;
        let passwords = self.passwords.as_deref().map_or(&[][..], |passwords| passwords);
        let key = PrivateKey::from_pem(&text, passwords).map_err(said)?;
        KeyPair::new(&chain, &key).map_err(|why| format!("SSL_use_PrivateKey() failed {why}"))
    }

    fn stamp(&self, (certificate, key): &Names) -> Stamp {
        let time = |word: &[u8]| match Source::of(word, &self.prefix) {
            Source::File(path) => modified(&path),
            Source::Data(_) => None,
        };
        (time(certificate), time(key))
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Certificate and key, as the configuration names them.
type Names = (Vec<u8>, Vec<u8>);
/// When the two files were changed last.
type Stamp = (Option<SystemTime>, Option<SystemTime>);

/// `ssl_certificate_cache`: what was loaded, for all threads.
pub struct KeyPairCache {
    limits: CertificateCache,
    kept: Mutex<HashMap<Names, Kept>>,
}

struct Kept {
    pair: KeyPair,
    stamp: Stamp,
    checked_ms: u64,
    used_ms: u64,
}

/// Each is one of its own.
impl PartialEq for KeyPairCache {
    fn eq(&self, other: &KeyPairCache) -> bool {
        std::ptr::eq(self, other)
    }
}

impl std::fmt::Debug for KeyPairCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys are secrets.
        self.limits.fmt(f)
    }
}

impl KeyPairCache {
    /// An empty one.
    pub fn new(limits: CertificateCache) -> KeyPairCache {
        KeyPairCache { limits, kept: Mutex::default() }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, HashMap<Names, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, names: &Names, now_ms: u64, stamp: impl FnOnce() -> Stamp) -> Option<KeyPair> {
        let mut kept = self.kept();
        let found = kept.get_mut(names)?;
        if now_ms.saturating_sub(found.used_ms) > self.limits.inactive_ms {
            kept.remove(names);
            return None;
        }
        if now_ms.saturating_sub(found.checked_ms) > self.limits.valid_ms {
            if stamp() != found.stamp {
                kept.remove(names);
                return None;
            }
            found.checked_ms = now_ms;
        }
        found.used_ms = now_ms;
        Some(found.pair.clone())
    }

    fn keep(&self, names: Names, pair: &KeyPair, stamp: Stamp, now_ms: u64) {
        let mut kept = self.kept();
        let inactive_ms = self.limits.inactive_ms;
        kept.retain(|_, kept| now_ms.saturating_sub(kept.used_ms) <= inactive_ms);
        // nginx counts certificates and keys one by one.
        while !kept.is_empty() && 2 * (kept.len() + 1) > self.limits.max {
            let oldest = kept.iter().min_by_key(|(_, kept)| kept.used_ms);
            let Some(oldest) = oldest.map(|(names, _)| names.clone()) else { break };
            kept.remove(&oldest);
        }
        let pair = pair.clone();
        kept.insert(names, Kept { pair, stamp, checked_ms: now_ms, used_ms: now_ms });
    }
}
