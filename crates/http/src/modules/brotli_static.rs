//! `brotli_static`: serves `x.br` for `x`, as `gzip_static` does for gzip.
//!
//! Invariant: the handler is `gzip_static`'s, which comes after it and asks for all of them.

use forebay_conf::{Arity, Error};

use super::static_coding::{Conf, Mode};
use crate::{
    coding::{StaticCoding, quality},
    module::{ANY, Builder, Directive, Module, set},
};

/// `ngx_http_brotli_static_module`.
pub struct BrotliStatic;

impl Module for BrotliStatic {
    type Conf = Conf<BrotliStatic>;
    const NAME: &'static str = "ngx_http_brotli_static_module";
    const DIRECTIVES: &'static [Directive<Conf<BrotliStatic>>] = &[set(
        "brotli_static",
        &["on | off | always"],
        "off",
        ANY,
        Arity::ONE,
        "Whether a file with the extension .br is sent in place of the one asked for.",
        |c, n, _| c.set(n),
    )];

    fn build(conf: &Conf<BrotliStatic>, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let mode = conf.mode.unwrap_or_default();
        if mode != Mode::Off {
            b.static_codings.push(StaticCoding {
                name: "br",
                extension: ".br",
                always: mode == Mode::Always,
                quality: Box::new(|r| quality(r, "br")),
            });
        }
        Ok(())
    }
}
