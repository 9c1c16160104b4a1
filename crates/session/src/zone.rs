//! Shared memory zones: what all threads share under a name, and what a reload keeps
//! (`ngx_shared_memory_add`, and the part of `ngx_init_cycle` about zones).
//!
//! Threads of one process share memory anyway, so a zone is an `Arc` that the new configuration takes
//! over from the old one, where nginx would take over its shared memory: same name, same module,
//! same size.
//!
//! Invariant: a zone's memory is bounded by its declared size; that is its [`Kind`]'s duty.

use std::{
    any::Any,
    sync::{Arc, OnceLock},
};

use forebay_conf::{Error, Span};

/// nginx's `8 * ngx_pagesize`: no zone may be smaller, in bytes.
pub const MIN_SIZE: u64 = 8 * 4096;

/// What a module keeps in its zones.
pub trait Kind: Send + Sync + 'static {
    /// nginx's name of the module; a zone belongs to one.
    const MODULE: &'static str;
    /// What lives on over a reload.
    type Memory: Send + Sync + 'static;

    /// Memory for a zone of `size` bytes that is not taken over from another configuration.
    fn memory(&self, size: u64) -> Self::Memory;

    /// Whether this zone may go on with the memory of `old`, its predecessor of that name; else why
    /// the new configuration is refused.
    fn succeeds(&self, _name: &str, _old: &Self) -> Result<(), String> {
        Ok(())
    }
}

/// A zone: first named by whoever uses it or declares it, in any order.
pub struct Zone<K: Kind> {
    name: Box<str>,
    declared: OnceLock<(u64, K)>,
    memory: OnceLock<Arc<K::Memory>>,
}

impl<K: Kind> Zone<K> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What was declared with it, if it was yet.
    pub fn declared(&self) -> Option<&K> {
        self.declared.get().map(|(_, kind)| kind)
    }

    /// What was declared with it.
    ///
    /// Panics in a configuration that did not pass [`Zones::undeclared`].
    pub fn kind(&self) -> &K {
        self.declared().expect("zones are declared in a loaded configuration")
    }

    /// What all threads share.
    pub fn memory(&self) -> &K::Memory {
        self.memory.get_or_init(|| {
            let (size, kind) = self.declared.get().expect("as in kind()");
            Arc::new(kind.memory(*size))
        })
    }
}

/// A [`Zone`] with its kind erased.
trait AnyZone: Send + Sync {
    fn name(&self) -> &str;
    fn module(&self) -> &'static str;
    fn size(&self) -> Option<u64>;
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    fn succeeds(&self, old: &dyn AnyZone) -> Result<(), String>;
    fn take_over(&self, old: &dyn AnyZone);
}

impl<K: Kind> AnyZone for Zone<K> {
    fn name(&self) -> &str {
        &self.name
    }

    fn module(&self) -> &'static str {
        K::MODULE
    }

    fn size(&self) -> Option<u64> {
        self.declared.get().map(|(size, _)| *size)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn succeeds(&self, old: &dyn AnyZone) -> Result<(), String> {
        match (self.declared(), old.as_any().downcast_ref::<Self>().and_then(Self::declared)) {
            (Some(new), Some(old)) => new.succeeds(&self.name, old),
            _ => Ok(()),
        }
    }

    fn take_over(&self, old: &dyn AnyZone) {
        if let Some(memory) = old.as_any().downcast_ref::<Self>().and_then(|old| old.memory.get()) {
            // Whoever asked for memory already keeps it; nobody does before the plan runs.
            let _ = self.memory.set(memory.clone());
        }
    }
}

/// All zones of a configuration.
#[derive(Default)]
pub struct Zones {
    zones: Vec<Arc<dyn AnyZone>>,
}

impl Zones {
    /// The zone of that name, to use; it may be declared later.
    ///
    /// Errors: nginx's `the shared memory zone "x" is already declared for a different use`.
    pub fn used<K: Kind>(&mut self, name: &str, span: Span) -> Result<Arc<Zone<K>>, Error> {
        if let Some(zone) = self.zones.iter().find(|zone| zone.name() == name) {
            return zone.clone().into_any().downcast().map_err(|_| {
                let text = format!(
                    "the shared memory zone \"{name}\" is already declared for a different use"
                );
                Error::emerg(span, text)
            });
        }
        let (declared, memory) = (OnceLock::new(), OnceLock::new());
        let zone = Arc::new(Zone::<K> { name: name.into(), declared, memory });
        self.zones.push(zone.clone());
        Ok(zone)
    }

    /// Declares a zone of `size` bytes.
    ///
    /// Errors: as in [`Zones::used`], and nginx's `the size … of shared memory zone "x" conflicts with
    /// already declared size …`; `again` says what is wrong with declaring it twice.
    pub fn declare<K: Kind>(
        &mut self,
        name: &str,
        size: u64,
        span: Span,
        kind: K,
        again: impl FnOnce(&K) -> String,
    ) -> Result<(), Error> {
        let zone = self.used::<K>(name, span)?;
        let Some((declared, before)) = zone.declared.get() else {
            let _ = zone.declared.set((size, kind));
            return Ok(());
        };
        let text = match *declared == size {
            true => again(before),
            false => format!(
                "the size {size} of shared memory zone \"{name}\" conflicts with already declared size {declared}"
            ),
        };
        Err(Error::emerg(span, text))
    }

    /// Declares a zone that may be declared any number of times, always with the same size, for the
    /// same use.
    ///
    /// Errors: those of [`Zones::declare`].
    pub fn declare_again<K: Kind>(
        &mut self,
        name: &str,
        size: u64,
        span: Span,
        kind: K,
    ) -> Result<(), Error> {
        let zone = self.used::<K>(name, span)?;
        match zone.declared.get() {
            Some((declared, _)) if *declared == size => Ok(()),
            _ => self.declare(name, size, span, kind, |_| String::new()),
        }
    }

    /// The errors of the zones that are used and never declared.
    pub fn undeclared(&self) -> Vec<Error> {
        let missing = self.zones.iter().filter(|zone| zone.size().is_none());
        missing
            .map(|zone| Error::global(format!("zero size shared memory zone \"{}\"", zone.name())))
            .collect()
    }

    /// Goes on with the memory of the zones of the configuration before, where name, module and size
    /// are the same. To be called once, before anything runs under this configuration.
    ///
    /// Errors: why the new configuration is refused; then nothing was taken over.
    pub fn take_over(&self, old: &Zones) -> Result<(), String> {
        let is_same = |new: &dyn AnyZone, old: &dyn AnyZone| {
            (new.name(), new.module(), new.size()) == (old.name(), old.module(), old.size())
        };
        let mut pairs = Vec::new();
        for new in &self.zones {
            if let Some(old) = old.zones.iter().find(|old| is_same(&**new, &***old)) {
                new.succeeds(&**old)?;
                pairs.push((new, old));
            }
        }
        pairs.iter().for_each(|(new, old)| new.take_over(&***old));
        Ok(())
    }
}

/// `name:size`, as it stands after `zone=` and `keys_zone=`.
///
/// Errors: nginx's `invalid zone size "x"` and `zone "x" is too small`, where `x` is `whole`, the
/// parameter with its name.
pub fn parse(whole: &[u8], value: &[u8], span: Span) -> Result<(String, u64), Error> {
    let shown = String::from_utf8_lossy(whole);
    let invalid = || Error::emerg(span, format!("invalid zone size \"{shown}\""));
    let colon = memchr::memchr(b':', value).ok_or_else(invalid)?;
    let name = std::str::from_utf8(&value[..colon]).map_err(|_| invalid())?;
    let size = forebay_conf::value::size(&value[colon + 1..]).ok_or_else(invalid)?;
    if size < MIN_SIZE {
        return Err(Error::emerg(span, format!("zone \"{shown}\" is too small")));
    }
    Ok((name.to_owned(), size))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    struct Counter(&'static str);

    impl Kind for Counter {
        const MODULE: &'static str = "counter";
        type Memory = AtomicU32;

        fn memory(&self, _: u64) -> AtomicU32 {
            AtomicU32::new(0)
        }

        fn succeeds(&self, name: &str, old: &Counter) -> Result<(), String> {
            if self.0 == old.0 { Ok(()) } else { Err(format!("{name}: {} {}", self.0, old.0)) }
        }
    }

    struct Other;

    impl Kind for Other {
        const MODULE: &'static str = "other";
        type Memory = ();

        fn memory(&self, _: u64) {}
    }

    fn declare(zones: &mut Zones, name: &str, size: u64, key: &'static str) -> Result<(), String> {
        let again = |before: &Counter| format!("bound to {}", before.0);
        let declared = zones.declare(name, size, Span::default(), Counter(key), again);
        declared.map_err(|error| error.message)
    }

    fn with(name: &str, size: u64, key: &'static str) -> (Zones, Arc<Zone<Counter>>) {
        let mut zones = Zones::default();
        let zone = zones.used(name, Span::default()).unwrap();
        declare(&mut zones, name, size, key).unwrap();
        (zones, zone)
    }

    #[test]
    fn a_zone_is_used_before_it_is_declared() {
        let mut zones = Zones::default();
        let zone = zones.used::<Counter>("a", Span::default()).unwrap();
        assert_eq!(zones.undeclared()[0].message, "zero size shared memory zone \"a\"");
        declare(&mut zones, "a", MIN_SIZE, "k").unwrap();
        assert!(zones.undeclared().is_empty());
        zone.memory().fetch_add(1, Relaxed);
        assert_eq!((zone.kind().0, zone.memory().load(Relaxed)), ("k", 1));
    }

    #[test]
    fn a_zone_is_declared_once_and_for_one_use() {
        let (mut zones, _) = with("a", 40_000, "k");
        assert_eq!(declare(&mut zones, "a", 40_000, "k").unwrap_err(), "bound to k");
        assert_eq!(
            declare(&mut zones, "a", 50_000, "k").unwrap_err(),
            "the size 50000 of shared memory zone \"a\" conflicts with already declared size 40000"
        );
        assert_eq!(
            zones.used::<Other>("a", Span::default()).err().unwrap().message,
            "the shared memory zone \"a\" is already declared for a different use"
        );
    }

    #[test]
    fn a_reload_keeps_what_has_the_same_name_and_size() {
        let (old, before) = with("a", 40_000, "k");
        before.memory().store(7, Relaxed);
        for (name, size, want) in [("a", 40_000, 7), ("a", 50_000, 0), ("b", 40_000, 0)] {
            let (new, zone) = with(name, size, "k");
            new.take_over(&old).unwrap();
            assert_eq!(zone.memory().load(Relaxed), want, "{name} {size}");
        }
    }

    #[test]
    fn another_key_is_refused() {
        let (old, before) = with("a", 40_000, "k");
        before.memory().store(7, Relaxed);
        let (new, zone) = with("a", 40_000, "l");
        assert_eq!(new.take_over(&old).unwrap_err(), "a: l k");
        assert_eq!(zone.memory().load(Relaxed), 0);
    }

    #[test]
    fn sizes_are_checked() {
        let read = |text: &str| {
            let value = text.strip_prefix("zone=").unwrap();
            parse(text.as_bytes(), value.as_bytes(), Span::default()).map_err(|error| error.message)
        };
        assert_eq!(read("zone=a:32k"), Ok(("a".to_owned(), 32 << 10)));
        assert_eq!(read("zone=a").unwrap_err(), "invalid zone size \"zone=a\"");
        assert_eq!(read("zone=a:x").unwrap_err(), "invalid zone size \"zone=a:x\"");
        assert_eq!(read("zone=a:31k").unwrap_err(), "zone \"zone=a:31k\" is too small");
    }
}
