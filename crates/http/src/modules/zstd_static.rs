//! `zstd_static`: serves `x.zst` for `x`, as `gzip_static` does for gzip.
//!
//! Invariant: the handler is `gzip_static`'s, which comes after it and asks for all of them.

use forebay_conf::{Arity, Error};

use super::static_coding::{Conf, Mode};
use crate::{
    coding::{StaticCoding, quality},
    module::{ANY, Builder, Directive, Module, set},
};

/// `ngx_http_zstd_static_module`.
pub struct ZstdStatic;

impl Module for ZstdStatic {
    type Conf = Conf<ZstdStatic>;
    const NAME: &'static str = "ngx_http_zstd_static_module";
    const DIRECTIVES: &'static [Directive<Conf<ZstdStatic>>] = &[set(
        "zstd_static",
        &["on | off | always"],
        "off",
        ANY,
        Arity::ONE,
        "Whether a file with the extension .zst is sent in place of the one asked for.",
        |c, n, _| c.set(n),
    )];

    fn build(conf: &Conf<ZstdStatic>, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let mode = conf.mode.unwrap_or_default();
        if mode != Mode::Off {
            b.static_codings.push(StaticCoding {
                name: "zstd",
                extension: ".zst",
                always: mode == Mode::Always,
                quality: Box::new(|r| quality(r, "zstd")),
            });
        }
        Ok(())
    }
}
