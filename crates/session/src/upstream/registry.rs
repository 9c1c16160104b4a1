//! All groups of a configuration, by name (`ngx_http_upstream_add`).
//!
//! Invariant: a group may be used before its block is read.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use forebay_conf::{Error, Loader, Span};
use forebay_rt::listen::Addr;

use super::{
    Group, Server, Settings,
    address::Target,
    health::{self, Check, Checks, Require},
    resolve,
};
use crate::{log::ErrorLog, resolver::Watch};

/// A group while the configuration loads, and after it.
pub struct Upstream {
    /// Its name.
    pub name: Box<str>,
    /// Where it was first named.
    pub span: Span,
    /// What it was named as, where no block says what is in it.
    target: Option<Target>,
    /// What its block says so far.
    draft: Mutex<Option<Settings>>,
    /// Health checks that locations ask for.
    checks: Mutex<Vec<Arc<Check>>>,
    group: OnceLock<Group>,
    /// Ends when this configuration does.
    watches: Mutex<Vec<Watch>>,
}

impl Upstream {
    fn new(name: &str, target: Option<Target>, span: Span) -> Upstream {
        Upstream {
            name: name.into(),
            span,
            target,
            draft: Mutex::new(None),
            checks: Mutex::default(),
            group: OnceLock::new(),
            watches: Mutex::default(),
        }
    }

    /// The group.
    ///
    /// Panics while the configuration is loading.
    pub fn group(&self) -> &Group {
        self.group.get().expect("groups are complete in a loaded configuration")
    }

    /// What its block says so far; `None`: there is no block.
    pub fn draft(&self) -> MutexGuard<'_, Option<Settings>> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A location that passes requests here wants the servers checked.
    pub fn add_check(&self, check: Check) {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(check));
    }

    /// The checks of the block and of locations.
    fn all_checks(&self, settings: &Settings) -> Vec<Arc<Check>> {
        let of_block = settings.check.finish().map(Arc::new);
        let of_locations = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        of_block.into_iter().chain(of_locations.iter().cloned()).collect()
    }

    fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// The port that it is named with; 0: none, as for all blocks.
    fn port(&self) -> u16 {
        match (&*self.draft(), &self.target) {
            (None, Some(target)) => target.port,
            _ => 0,
        }
    }
}

/// The groups of a configuration.
#[derive(Default)]
pub struct Upstreams {
    list: Vec<Arc<Upstream>>,
    block: Option<Arc<Upstream>>,
    started: AtomicBool,
}

impl Upstreams {
    /// What `proxy_pass` names: a block of that name, which may come later, or else the addresses of
    /// the host.
    ///
    /// Errors: nginx's `upstream "x" may not have port 80`.
    pub fn used(&mut self, target: &Target, span: Span) -> Result<Arc<Upstream>, Error> {
        for known in self.list.iter().filter(|known| known.is_named(&target.host)) {
            let is_block = known.draft().is_some();
            if is_block && target.has_port {
                let (name, port) = (&target.host, target.port);
                let text = format!("upstream \"{name}\" may not have port {port}");
                return Err(Error::emerg(span, text));
            }
            let (port, other) = (target.port, known.port());
            if port == other || port == 0 || other == 0 {
                return Ok(known.clone());
            }
        }
        Ok(self.add(&target.host, Some(target.clone()), span))
    }

    /// What a name stands for that is known only with a request: the block of that name, or the group
    /// of an address that `proxy_pass` names elsewhere (`ngx_http_upstream_init_request`).
    pub fn find(&self, target: &Target) -> Option<&Arc<Upstream>> {
        self.list.iter().find(|known| {
            let any_port = known.port() == 0 && !target.has_port;
            known.is_named(&target.host) && (any_port || known.port() == target.port)
        })
    }

    /// A block of that name begins.
    ///
    /// Errors: nginx's `duplicate upstream "x"` and `upstream "x" may not have port 80`.
    pub fn define(&mut self, name: &str, span: Span) -> Result<Arc<Upstream>, Error> {
        let Some(found) = self.list.iter().find(|known| known.is_named(name)).cloned() else {
            let upstream = self.add(name, None, span);
            *upstream.draft() = Some(Settings::default());
            self.block = Some(upstream.clone());
            return Ok(upstream);
        };
        if found.draft().is_some() {
            return Err(Error::emerg(span, format!("duplicate upstream \"{name}\"")));
        }
        if let Some(target) = found.target.as_ref().filter(|target| target.has_port) {
            // nginx names the place of the port, not that of the block.
            let text = format!("upstream \"{name}\" may not have port {}", target.port);
            return Err(Error::emerg(found.span, text));
        }
        *found.draft() = Some(Settings::default());
        self.block = Some(found.clone());
        Ok(found)
    }

    /// The block that is being read, or was read last.
    pub fn block(&self) -> Option<&Arc<Upstream>> {
        self.block.as_ref()
    }

    /// A block that was refused begins: what stands in it is read, and belongs to no group.
    pub fn aside(&mut self, span: Span) -> Arc<Upstream> {
        let upstream = Arc::new(Upstream::new("", None, span));
        self.block = Some(upstream.clone());
        upstream
    }

    fn add(&mut self, name: &str, target: Option<Target>, span: Span) -> Arc<Upstream> {
        let upstream = Arc::new(Upstream::new(name, target, span));
        self.list.push(upstream.clone());
        upstream
    }

    /// Makes the groups, when all is read; what is wrong goes to the loader. With errors there are no
    /// groups.
    pub fn finish(&self, loader: &mut Loader<'_>) {
        if loader.diags.has_errors() {
            // A server that was wrong is missing, a block that was wrong is no block.
            return;
        }
        for upstream in &self.list {
            let settings = match (&*upstream.draft(), &upstream.target) {
                (Some(settings), _) => Ok(settings.clone()),
                (None, Some(target)) => implicit(target, upstream.span, loader),
                (None, None) => continue,
            };
            let checked = settings.and_then(|mut settings| {
                check(&settings, upstream)?;
                settings.checks = upstream.all_checks(&settings);
                Ok(settings)
            });
            if let Some(settings) = loader.diags.take(checked) {
                let _ = upstream.group.set(Group::new(&upstream.name, settings));
            }
        }
    }

    /// Begins to look for servers whose addresses are looked up, and to check on servers, on this
    /// event-loop thread. `None`: another thread does that already.
    /// `require`: looks at the variables of checks.
    pub fn start(&self, log: &ErrorLog, require: &Require) -> Option<Checks> {
        if self.started.swap(true, Relaxed) {
            return None;
        }
        for upstream in &self.list {
            let watches = resolve::watch(upstream, log);
            *upstream.watches.lock().unwrap_or_else(PoisonError::into_inner) = watches;
        }
        Some(health::start(self.iter(), log, require))
    }

    /// Ends looking for servers: another configuration goes on.
    pub fn stop(&self) {
        for upstream in &self.list {
            upstream.watches.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// All groups, in the order in which they are named first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.list.iter()
    }

    /// Goes on with what the groups of the same names remember. To be called once, before anything
    /// runs under this configuration.
    pub fn take_over(&self, old: &Upstreams) {
        for upstream in &self.list {
            let is_same = |old: &&Arc<Upstream>| {
                old.is_named(&upstream.name) && old.port() == upstream.port()
            };
            if let Some(old) = old.list.iter().find(is_same) {
                upstream.group().take_over(old.group());
            }
        }
    }
}

/// `ngx_http_upstream_init_round_robin`.
fn check(settings: &Settings, upstream: &Upstream) -> Result<(), Error> {
    let has_primary = settings.servers.iter().any(|server| !server.backup);
    if has_primary || settings.may_be_empty {
        return Ok(());
    }
    Err(Error::emerg(upstream.span, format!("no servers in upstream \"{}\"", upstream.name)))
}

/// A group that no block defines: the addresses of its host.
fn implicit(target: &Target, span: Span, loader: &mut Loader<'_>) -> Result<Settings, Error> {
    let mut server = Server::new(target.clone(), span);
    let fail = |why: &str| Error::emerg(span, format!("{why} in upstream \"{}\"", target.host));
    if server.addrs.is_empty() {
        if target.port == 0 {
            return Err(fail("no port"));
        }
        server.addrs = addresses(target, loader).ok_or_else(|| fail("host not found"))?;
    }
    Ok(Settings { servers: vec![server], ..Settings::default() })
}

/// The addresses of a name, as the system knows them (`ngx_inet_resolve_host`); the master's answer
/// holds for the worker too.
pub(crate) fn addresses(target: &Target, loader: &mut Loader<'_>) -> Option<Vec<Addr>> {
    let found = loader.files.resolve(&target.host).ok().filter(|found| !found.is_empty())?;
    Some(found.into_iter().map(|ip| Addr::Tcp((ip, target.port).into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::loading;

    fn target(text: &str) -> Target {
        Target::parse(text, 80, false).unwrap().0
    }

    fn used(all: &mut Upstreams, text: &str) -> Result<Arc<Upstream>, String> {
        all.used(&target(text), Span::default()).map_err(|error| error.message)
    }

    fn block(all: &mut Upstreams, name: &str, server: &str) -> Result<(), String> {
        let upstream = all.define(name, Span::default()).map_err(|error| error.message)?;
        let server = Server::new(target(server), Span::default());
        upstream.draft().as_mut().unwrap().servers.push(server);
        Ok(())
    }

    fn first(upstream: &Upstream) -> String {
        upstream.group().peers()[0].name.to_string()
    }

    #[test]
    fn a_name_stands_for_its_block_wherever_that_is() {
        let mut all = Upstreams::default();
        let before = used(&mut all, "u").unwrap();
        block(&mut all, "U", "10.0.0.1:81").unwrap();
        let after = used(&mut all, "u").unwrap();
        assert!(Arc::ptr_eq(&before, &after));
        loading(|loader| all.finish(loader));
        assert_eq!(first(&before), "10.0.0.1:81");
        // As a request's variables name it: the block has no port.
        assert!(all.find(&target("u")).is_some() && all.find(&target("u:80")).is_none());
    }

    #[test]
    fn an_address_is_a_group_for_each_port() {
        let mut all = Upstreams::default();
        let a = used(&mut all, "10.0.0.1").unwrap();
        let b = used(&mut all, "10.0.0.1:81").unwrap();
        let c = used(&mut all, "10.0.0.1:80").unwrap();
        let unix = used(&mut all, "unix:/x").unwrap();
        let name = used(&mut all, "localhost:82").unwrap();
        assert!(Arc::ptr_eq(&a, &c) && !Arc::ptr_eq(&a, &b));
        loading(|loader| all.finish(loader));
        let names = [&a, &b, &unix, &name].map(|upstream| first(upstream));
        assert_eq!(names, ["10.0.0.1:80", "10.0.0.1:81", "unix:/x", "127.0.0.1:82"]);
        assert!(all.find(&target("10.0.0.1:81")).is_some());
        assert!(all.find(&target("10.0.0.1:82")).is_none());
    }

    #[test]
    fn names_that_clash_have_nginx_texts() {
        let mut all = Upstreams::default();
        block(&mut all, "u", "10.0.0.1:81").unwrap();
        assert_eq!(block(&mut all, "u", "10.0.0.1:81").unwrap_err(), "duplicate upstream \"u\"");
        let text = "upstream \"u\" may not have port 81";
        assert_eq!(used(&mut all, "u:81").err().unwrap(), text);
        let mut all = Upstreams::default();
        used(&mut all, "u:81").unwrap();
        assert_eq!(block(&mut all, "u", "10.0.0.1:81").unwrap_err(), text);
    }

    #[test]
    fn a_reload_goes_on_by_name_and_port() {
        let made = |names: &[&str]| {
            let mut all = Upstreams::default();
            names.iter().for_each(|name| drop(used(&mut all, name).unwrap()));
            loading(|loader| all.finish(loader));
            all
        };
        let old = made(&["10.0.0.1:81", "10.0.0.1:82"]);
        old.list[1].group().peers()[0].begin(1);
        let new = made(&["10.0.0.1:82", "10.0.0.1:83", "10.0.0.1:81"]);
        new.take_over(&old);
        let connections: Vec<_> =
            new.iter().map(|upstream| upstream.group().peers()[0].connections()).collect();
        assert_eq!(connections, [1, 0, 0]);
    }
}
