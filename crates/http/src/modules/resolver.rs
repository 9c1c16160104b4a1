//! `resolver`, `resolver_timeout`: which DNS servers are asked for names that are looked up while the
//! server runs (`ngx_http_core_resolver`, `ngx_http_upstream_resolver`).
//!
//! The work is done by [`forebay_session::resolver`]; who needs it asks [`Conf`] for it.
//!
//! Invariant: without a lookup there is no thread and no socket.

use std::sync::Arc;

use forebay_conf::{Arity, Contexts, Error, Node, value};
use forebay_session::resolver::{DEFAULT_TIMEOUT_MS, Resolver, Settings};

use crate::module::{self, Builder, Cx, Directive, Module, set};

/// The part of `ngx_http_core_module` and `ngx_http_upstream_module` that is about names.
pub struct Resolving;

/// Who is asked, and for how long.
#[derive(Clone, Default)]
pub struct Conf {
    resolver: Option<Arc<Resolver>>,
    timeout_ms: Option<u64>,
}

impl Conf {
    /// What holds where this stands: the resolver, and `resolver_timeout` in milliseconds.
    pub fn merged(&self) -> (Arc<Resolver>, u64) {
        let resolver = self.resolver.clone().unwrap_or_else(Resolver::system);
        (resolver, self.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS))
    }
}

/// What holds at the level that is built.
pub fn of(b: &Builder<'_, '_, '_>) -> (Arc<Resolver>, u64) {
    b.level::<Conf>(b.location.id).map_or_else(|| Conf::default().merged(), Conf::merged)
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; resolver, timeout_ms);
    }
}

const CONTEXTS: Contexts = module::ANY.or(Contexts::UPSTREAM);

impl Module for Resolving {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_resolver";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "resolver",
            &["address ... [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]"],
            "",
            CONTEXTS,
            Arity::SOME,
            "Which DNS servers are asked for names; by default, those of /etc/resolv.conf.",
            resolver,
        ),
        set(
            "resolver_timeout",
            &["time"],
            "30s",
            CONTEXTS,
            Arity::ONE,
            "How long a name may take to be looked up.",
            |c, node, _| value::set_msec(&mut c.timeout_ms, node),
        ),
    ];
}

fn resolver(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    value::set_once(&mut conf.resolver, node, |node| {
        Settings::parse(node, cx.loader.files).map(Resolver::of)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_innermost_resolver_holds() {
        let conf = |text| testing::level_conf::<Resolving>(text);
        let outer = conf("resolver 127.0.0.1 valid=5s; resolver_timeout 3s;");
        for (text, servers, timeout_ms) in [
            ("", 1, 3_000),
            ("resolver 127.0.0.1 127.0.0.2;", 2, 3_000),
            ("resolver_timeout 100ms;", 1, 100),
        ] {
            let mut inner = conf(text);
            module::Conf::inherit(&mut inner, &outer);
            let (resolver, found_ms) = inner.merged();
            assert_eq!((resolver.settings().servers.len(), found_ms), (servers, timeout_ms));
        }
        let (resolver, timeout_ms) = Conf::default().merged();
        assert_eq!((resolver.settings().servers.len(), timeout_ms), (0, 30_000));
    }

    #[test]
    fn the_same_words_mean_the_same_resolver() {
        let conf = |text| testing::level_conf::<Resolving>(text).merged().0;
        let first = conf("resolver 127.0.0.9 valid=5s;");
        assert!(Arc::ptr_eq(&first, &conf("resolver 127.0.0.9 valid=5s;")));
        assert!(!Arc::ptr_eq(&first, &conf("resolver 127.0.0.9 valid=6s;")));
    }

    #[test]
    fn errors_are_nginx_s() {
        for (conf, want) in [
            ("resolver 127.0.0.1; resolver 127.0.0.1;", "\"resolver\" directive is duplicate"),
            ("resolver valid=1s;", "no name servers defined"),
            ("resolver_timeout x;", "\"resolver_timeout\" directive invalid value"),
            ("resolver;", "invalid number of arguments in \"resolver\" directive"),
        ] {
            assert!(testing::conf_error(conf).contains(want), "{conf}");
        }
    }
}
