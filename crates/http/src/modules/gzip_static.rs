//! `gzip_static`: serves `x.gz` for `x`. `ngx_http_gzip_static_module`.
//!
//! Whether a client takes gzip is decided by the rules of the gzip module.
//!
//! Invariant: comes after the other static codings, and adds the handler of all of them.

use forebay_conf::{Arity, Error};

use super::{
    gzip::Accept,
    static_coding::{Compressed, Conf, Mode},
};
use crate::{
    coding::StaticCoding,
    module::{ANY, Builder, Directive, Module, set},
};

/// The module.
pub struct GzipStatic;

impl Module for GzipStatic {
    type Conf = Conf<GzipStatic>;
    const NAME: &'static str = "ngx_http_gzip_static_module";
    const DIRECTIVES: &'static [Directive<Conf<GzipStatic>>] = &[set(
        "gzip_static",
        &["on | off | always"],
        "off",
        ANY,
        Arity::ONE,
        "Whether a file with the extension .gz is sent in place of the one asked for.",
        |c, n, _| c.set(n),
    )];

    fn build(conf: &Conf<GzipStatic>, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let mode = conf.mode.unwrap_or_default();
        let mut codings = std::mem::take(&mut b.static_codings);
        if mode != Mode::Off {
            let accept = Accept::here(b);
            codings.push(StaticCoding {
                name: "gzip",
                extension: ".gz",
                always: mode == Mode::Always,
                quality: Box::new(move |r| accept.quality(r)),
            });
        }
        if !codings.is_empty() {
            let vary = Accept::here(b).vary;
            b.content(Compressed { codings, vary });
        }
        Ok(())
    }
}
