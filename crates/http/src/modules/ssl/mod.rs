//! HTTPS (`ngx_http_ssl_module`).
//!
//! The settings and what becomes of them are [`forebay_session::ssl`]'s, which `stream` has in common
//! with this; handshakes are made by `crate::accept`, and what they came to is `crate::tls`'s.
//!
//! Leaves out: `ssl_key_log`, which open nginx does not have; encrypted ClientHello.
//!
//! DIFFERS(ssl-old-versions): OpenSSL may be built with SSL 3, TLS 1.0 and 1.1; here they are left out
//! of `ssl_protocols` with a warning, and with nothing left the configuration is refused.
//! DIFFERS(ssl-ciphers): of `ssl_ciphers` only AEAD ciphers with ECDHE are there; what is left out is
//! said in a warning, and a list of nothing else is refused.
//! DIFFERS(ssl-dhparam): `ssl_dhparam` must name such a file, and changes nothing: there is no DHE.
//! DIFFERS(ssl-tickets-shared): without `ssl_session_ticket_key` nginx makes keys for each server, and
//! forgets them with a reload; here servers of one timeout share keys that change by themselves, and a
//! ticket says for which certificates and which demands on clients it was made.
//!
//! Invariant: a server without certificates costs nothing.

mod directives;

use std::sync::Arc;

use forebay_conf::Error;
use forebay_session::{
    ssl::{self, server::Context},
    var::Registry,
};

use crate::{
    module::{self, Builder, Directive, Module},
    plan::Kind,
    request::Request,
};

/// `ngx_http_ssl_module`.
pub struct Ssl;

/// What one level sets.
#[derive(Default)]
pub struct Conf(ssl::Settings);

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        self.0.inherit(&parent.0);
    }
}

impl Module for Ssl {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_ssl_module";
    const DIRECTIVES: &'static [Directive<Conf>] = directives::DIRECTIVES;

    fn variables(registry: &mut Registry<Request>) {
        ssl::variables::register(registry);
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if b.location.kind != Kind::Server {
            return Ok(());
        }
        let span = b.location.span;
        let resolving = super::resolver::of(b);
        let mut context = Context {
            loader: &mut *b.cx.loader,
            registry: &mut b.cx.registry,
            zones: &mut b.cx.zones,
            span,
        };
        b.location.tls = ssl::Server::build(&conf.0, &resolving, &mut context)?.map(Arc::new);
        Ok(())
    }
}
