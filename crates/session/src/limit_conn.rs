//! Counting what is open at once under a key: the zones of `limit_conn`, for HTTP requests and stream
//! sessions alike (`ngx_http_limit_conn_module.c`, `ngx_stream_limit_conn_module.c`).
//!
//! Invariant: what is counted is uncounted when its [`Held`] is dropped, however that comes.

use std::sync::Arc;

use crate::{
    keyed::Keyed,
    var::Template,
    zone::{Kind, Zone},
};

/// What `limit_conn_zone` declares. `MODULE` tells HTTP's zones from stream's.
pub struct Connections<const HTTP: bool> {
    /// Whose connections count together.
    pub key: Template,
    /// The key as it was written.
    pub key_text: String,
}

/// How many are open, by key.
pub type Open = Keyed<u32>;

/// A node of nginx's tree without the key, in bytes.
const NODE: u64 = 36;
/// The longest key that is counted, in bytes.
pub const MAX_KEY: usize = 255;

impl<const HTTP: bool> Kind for Connections<HTTP> {
    const MODULE: &'static str =
        if HTTP { "ngx_http_limit_conn_module" } else { "ngx_stream_limit_conn_module" };
    type Memory = Arc<Open>;

    fn memory(&self, size: u64) -> Arc<Open> {
        Arc::new(Keyed::new(size, NODE))
    }

    fn succeeds(&self, name: &str, old: &Self) -> Result<(), String> {
        if self.key_text == old.key_text {
            return Ok(());
        }
        Err(format!(
            "limit_conn_zone \"{name}\" uses the \"{}\" key while previously it used the \"{}\" key",
            self.key_text, old.key_text
        ))
    }
}

/// One that counts, until it is dropped.
#[derive(Default)]
pub struct Held {
    open: Option<Arc<Open>>,
    key: Vec<u8>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(open) = &self.open else { return };
        let (mut shard, hash) = open.lock(&self.key);
        let Some(slot) = shard.find(hash, &self.key) else { return };
        match shard.value(slot) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(shard.remove(slot)),
        }
    }
}

/// Why one more is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// As many as may be are open under this key.
    Limit,
    /// The zone has no room for another key.
    Full,
}

/// Counts one more under `key`, if there are fewer than `limit`.
pub fn hold<const HTTP: bool>(
    zone: &Zone<Connections<HTTP>>,
    key: &[u8],
    limit: u32,
) -> Result<Held, Refused> {
    let open = zone.memory();
    let (mut shard, hash) = open.lock(key);
    match shard.find(hash, key) {
        None => drop(shard.insert(hash, key, 1).ok_or(Refused::Full)?),
        Some(slot) => match shard.value(slot) {
            Some(count) if *count < limit => *count += 1,
            _ => return Err(Refused::Limit),
        },
    }
    Ok(Held { open: Some(open.clone()), key: key.to_vec() })
}

#[cfg(test)]
mod tests {
    use forebay_conf::Span;

    use super::*;
    use crate::zone::Zones;

    fn zone() -> Arc<Zone<Connections<true>>> {
        let mut zones = Zones::default();
        let zone = zones.used("z", Span::default()).unwrap();
        let kind = Connections::<true> { key: Template::default(), key_text: "$k".to_owned() };
        zones.declare("z", 32 << 10, Span::default(), kind, |_| String::new()).unwrap();
        zone
    }

    #[test]
    fn as_many_as_the_limit_are_held_at_once() {
        let zone = zone();
        let first = hold(&zone, b"a", 2).unwrap();
        let second = hold(&zone, b"a", 2).unwrap();
        assert_eq!(hold(&zone, b"a", 2).err(), Some(Refused::Limit));
        assert!(hold(&zone, b"b", 1).is_ok());
        drop(first);
        let third = hold(&zone, b"a", 2).unwrap();
        drop((second, third));
        let (shard, _) = zone.memory().lock(b"a");
        assert!(shard.is_empty());
    }

    #[test]
    fn a_full_zone_takes_no_more_keys() {
        let zone = zone();
        let key = |n: u32| n.to_string().into_bytes();
        let held: Vec<Held> = (0..).map_while(|n| hold(&zone, &key(n), 1).ok()).collect();
        assert_eq!(hold(&zone, &key(held.len() as u32), 1).err(), Some(Refused::Full));
        drop(held);
        assert!(hold(&zone, b"x", 1).is_ok());
    }

    #[test]
    fn another_key_is_refused_in_nginx_words() {
        let [new, old] = ["$a", "$b"].map(|text| Connections::<true> {
            key: Template::default(),
            key_text: text.to_owned(),
        });
        assert_eq!(
            new.succeeds("z", &old).unwrap_err(),
            "limit_conn_zone \"z\" uses the \"$a\" key while previously it used the \"$b\" key"
        );
    }
}
