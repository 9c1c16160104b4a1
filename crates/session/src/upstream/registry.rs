//! All groups of a configuration, by name (`ngx_http_upstream_add`).
//!
//! Invariant: a group may be used before its block is read.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use forebay_conf::{Error, Loader, Span};
use forebay_rt::listen::Addr;

use super::{Group, Server, Settings, Weights, address::Target};

/// A group while the configuration loads, and after it.
pub struct Upstream {
    /// Its name.
    pub name: Box<str>,
    /// Where it was first named.
    pub span: Span,
    target: Option<Target>,
    /// Whether a block says what is in it.
    draft: Mutex<Option<Settings>>,
    group: OnceLock<Group>,
}

impl Upstream {
    /// The group.
    ///
    /// Panics while the configuration is loading.
    pub fn group(&self) -> &Group {
        self.group.get().expect("groups are complete in a loaded configuration")
    }

    /// What its block says so far.
    pub fn draft(&self) -> MutexGuard<'_, Option<Settings>> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The groups of a configuration.
#[derive(Default)]
pub struct Upstreams {
    list: Vec<Arc<Upstream>>,
}

impl Upstreams {
    /// What `proxy_pass` names: a block of that name, which may come later, or else the addresses of
    /// the host.
    pub fn used(&mut self, target: &Target, span: Span) -> Result<Arc<Upstream>, Error> {
        if let Some(found) = self.find(&target.host, target.port) {
            return Ok(found.clone());
        }
        Ok(self.add(&target.host, Some(target.clone()), None, span))
    }

    /// What a name stands for that is known only with a request: the block of that name, or the group
    /// of an address that `proxy_pass` names elsewhere.
    pub fn find(&self, host: &str, port: u16) -> Option<&Arc<Upstream>> {
        self.list.iter().find(|known| {
            let same_port = match &known.target {
                Some(target) => target.port == port || port == 0 || target.port == 0,
                None => true,
            };
            known.name.eq_ignore_ascii_case(host) && same_port
        })
    }

    /// A block of that name begins.
    ///
    /// Errors: nginx's `duplicate upstream "x"`.
    pub fn define(&mut self, name: &str, span: Span) -> Result<Arc<Upstream>, Error> {
        match self.find(name, 0) {
            Some(found) if found.draft().is_some() => {
                Err(Error::emerg(span, format!("duplicate upstream \"{name}\"")))
            }
            Some(found) => {
                *found.draft() = Some(Settings::default());
                Ok(found.clone())
            }
            None => Ok(self.add(name, None, Some(Settings::default()), span)),
        }
    }

    fn add(
        &mut self,
        name: &str,
        target: Option<Target>,
        draft: Option<Settings>,
        span: Span,
    ) -> Arc<Upstream> {
        let upstream = Arc::new(Upstream {
            name: name.into(),
            span,
            target,
            draft: Mutex::new(draft),
            group: OnceLock::new(),
        });
        self.list.push(upstream.clone());
        upstream
    }

    /// Makes the groups, when all is read; what is wrong goes to the loader.
    pub fn finish(&self, loader: &mut Loader<'_>) {
        for upstream in &self.list {
            let drafted = upstream.draft().take();
            let settings = match (drafted, &upstream.target) {
                (Some(settings), _) => settings,
                (None, Some(target)) => implicit(target),
                (None, None) => continue,
            };
            if settings.servers.is_empty() {
                let text = format!("no servers are inside upstream \"{}\"", upstream.name);
                loader.diags.push(Error::emerg(upstream.span, text));
            }
            let _ = upstream.group.set(Group::new(&upstream.name, settings));
        }
    }

    /// Goes on with what the groups of the same names remember. To be called once, before anything
    /// runs under this configuration.
    pub fn take_over(&self, _old: &Upstreams) {}
}

fn implicit(target: &Target) -> Settings {
    let addrs: Vec<Addr> = target.addr.clone().into_iter().collect();
    let server =
        Server { name: target.host.clone(), addrs, weights: Weights::default(), backup: false };
    Settings { servers: vec![server], ..Settings::default() }
}
