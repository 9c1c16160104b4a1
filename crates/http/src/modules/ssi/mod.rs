//! `ssi`: server-side includes (`ngx_http_ssi_filter_module.c`).
//!
//! `parse` finds the commands in a page, `page` carries them out while the page is sent, `text` fills
//! in variables and decides conditions.
//!
//! Invariant: how deep includes may be in each other, and how many there may be in all, is the
//! bound of all subrequests; how much a page may keep is [`shared::MAX_KEPT`].

mod page;
pub(super) mod parse;
mod shared;
mod text;

use std::mem;

use forebay_conf::{Arity, Error, value};
use forebay_rt::clock;
use forebay_session::var::Registry;
use forebay_wire::h1::encode::write_decimal;

use self::page::Page;
use super::gzip::no_meaning;
use crate::{
    body::Body,
    handler::{Filter, Filtered},
    mime::Types,
    module::{self, ANY, ANY_IF, Builder, Directive, Module, set},
    request::Request,
};

/// `ngx_http_ssi_filter_module`.
pub struct Ssi;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    on: Option<bool>,
    silent_errors: Option<bool>,
    last_modified: Option<bool>,
    min_file_chunk: Option<u64>,
    value_length: Option<u64>,
    types: Option<Types>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent;
            on, silent_errors, last_modified, min_file_chunk, value_length, types);
    }
}

impl Module for Ssi {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_ssi_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "ssi",
            &["on | off"],
            "off",
            ANY_IF,
            Arity::FLAG,
            "Carries out the SSI commands in responses.",
            |c, n, _| value::set_flag(&mut c.on, n),
        ),
        set(
            "ssi_last_modified",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether Last-Modified of the original response stays.",
            |c, n, _| value::set_flag(&mut c.last_modified, n),
        ),
        set(
            "ssi_min_file_chunk",
            &["size"],
            "1k",
            ANY,
            Arity::ONE,
            "From which size on parts of a page are sent from the file; here they are in memory.",
            |c, n, cx| {
                value::set_size(&mut c.min_file_chunk, n)?;
                no_meaning(n, cx, "pages are in memory while they are read")
            },
        ),
        set(
            "ssi_silent_errors",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether the message of an error is left out of the page.",
            |c, n, _| value::set_flag(&mut c.silent_errors, n),
        ),
        set(
            "ssi_types",
            &["mime-type ..."],
            "text/html",
            ANY,
            Arity::SOME,
            "In which types commands are carried out, beside text/html.",
            |c, n, cx| Types::set(&mut c.types, n, cx),
        ),
        set(
            "ssi_value_length",
            &["length"],
            "256",
            ANY,
            Arity::ONE,
            "How long the values of parameters may be.",
            |c, n, _| value::set_size(&mut c.value_length, n),
        ),
    ];

    fn variables(registry: &mut Registry<Request>) {
        // Within a page, `config timefmt` says how; elsewhere it is the number of seconds.
        let seconds = |_: &Request, out: &mut Vec<u8>| {
            write_decimal(out, clock::wall_ms() / 1000);
            true
        };
        registry.builtin("date_local", seconds);
        registry.builtin("date_gmt", seconds);
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if conf.on == Some(true) {
            b.nests();
            b.filter(SsiFilter {
                silent_errors: conf.silent_errors.unwrap_or(false),
                last_modified: conf.last_modified.unwrap_or(false),
                value_length: conf.value_length.unwrap_or(256) as usize,
                types: conf.types.clone().unwrap_or_else(Types::html),
            });
        }
        Ok(())
    }
}

struct SsiFilter {
    silent_errors: bool,
    last_modified: bool,
    value_length: usize,
    types: Types,
}

impl Filter for SsiFilter {
    fn filter(&self, r: &mut Request) -> Filtered {
        let response = &r.response;
        if response.content_length == Some(0) || !self.types.has(response.content_type.as_ref()) {
            return Filtered::Continue;
        }
        let body = mem::take(&mut r.response.body);
        if !matches!(body, Body::Empty) {
            let page = Page::new(r, body, self.value_length, self.silent_errors);
            r.response.body = Body::Stream(Box::new(page));
        }
        if !r.subrequest {
            let response = &mut r.response;
            response.content_length = None;
            response.allow_ranges = false;
            response.forget_accept_ranges();
            if self.last_modified {
                response.weaken_etag();
            } else {
                response.last_modified = None;
                response.remove("Last-Modified");
                response.remove("ETag");
            }
        }
        Filtered::Continue
    }
}

#[cfg(test)]
mod tests;
