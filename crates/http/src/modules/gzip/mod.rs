//! `gzip`: compresses responses (`ngx_http_gzip_filter_module.c`, and the directives that nginx's
//! core keeps for it and for `gzip_static`).
//!
//! Compressed bodies are of unknown length, as in nginx, though small ones are compressed at once.
//!
//! Invariant: which responses are encoded at all is `coding`'s to say.

mod accept;
mod encode;

use forebay_conf::{Error, Node, value};
use forebay_session::{regex::Regex, var::Registry};
use forebay_wire::h1::Version;

pub use accept::Accept;

use self::accept::proxied;
use super::coding::{Common, Responses, directives};
use crate::{
    coding::{Coder, Coding, Form, write_ratio},
    module::{self, Builder, Cx, Directive, Module},
    request::Request,
    response::Response,
};

/// `ngx_http_gzip_filter_module`.
pub struct Gzip;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    common: Common,
    window_bits: Option<u8>,
    hash: Option<u8>,
    postpone: Option<u64>,
    no_buffer: Option<bool>,
    vary: Option<bool>,
    http_version: Option<Version>,
    proxied: Option<u32>,
    disable: Option<Vec<Regex>>,
    disable_msie6: Option<bool>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        self.common.inherit(&parent.common);
        crate::inherit!(self, parent;
            window_bits, hash, postpone, no_buffer, vary, http_version, proxied, disable, disable_msie6);
    }
}

impl Module for Gzip {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_gzip_filter_module";
    const DIRECTIVES: &'static [Directive<Conf>] = directives!(
        "gzip", "Compresses responses.", 1 in 1 to 9;
        set(
            "gzip_disable",
            &["regex ..."],
            "",
            ANY,
            Arity::SOME,
            "The browsers that get no compressed responses.",
            disable,
        ),
        set(
            "gzip_hash",
            &["size"],
            "64k",
            ANY,
            Arity::ONE,
            "The size of the compressor's hash table, which is always the same here.",
            |c, n, cx| {
                set_power(&mut c.hash, n, 9, "512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k")?;
                no_meaning(n, cx, "the compressor's state is kept for the next response")
            },
        ),
        set(
            "gzip_http_version",
            &["1.0 | 1.1"],
            "1.1",
            ANY,
            Arity::ONE,
            "The oldest protocol version whose requests get compressed responses.",
            |c, n, _| {
                let table = [("1.0", Version::Http10), ("1.1", Version::Http11)];
                value::set_enum(&mut c.http_version, n, &table)
            },
        ),
        set(
            "gzip_no_buffer",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether compressed bytes are sent as they come; here they always are.",
            |c, n, cx| {
                value::set_flag(&mut c.no_buffer, n)?;
                no_meaning(n, cx, "compressed bytes are sent as they come")
            },
        ),
        set(
            "gzip_proxied",
            &["off | expired | no-cache | no-store | private | no_last_modified | no_etag | \
               auth | any ..."],
            "off",
            ANY,
            Arity::SOME,
            "Which responses are compressed for clients behind a proxy.",
            |c, n, cx| {
                let table = [
                    ("off", proxied::OFF),
                    ("expired", proxied::EXPIRED),
                    ("no-cache", proxied::NO_CACHE),
                    ("no-store", proxied::NO_STORE),
                    ("private", proxied::PRIVATE),
                    ("no_last_modified", proxied::NO_LAST_MODIFIED),
                    ("no_etag", proxied::NO_ETAG),
                    ("auth", proxied::AUTH),
                    ("any", proxied::ANY),
                ];
                value::set_bits(&mut c.proxied, n, &table, cx.loader.diags)
            },
        ),
        set(
            "gzip_vary",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether Vary: Accept-Encoding is added where compression is possible.",
            |c, n, _| value::set_flag(&mut c.vary, n),
        ),
        set(
            "gzip_window",
            &["size"],
            "32k",
            ANY,
            Arity::ONE,
            "How far back the compressor looks for repetitions.",
            |c, n, _| set_power(&mut c.window_bits, n, 9, "512, 1k, 2k, 4k, 8k, 16k, or 32k"),
        ),
        set(
            "postpone_gzipping",
            &["size"],
            "0",
            ANY,
            Arity::ONE,
            "How much is gathered before compressing; here nothing waits.",
            |c, n, cx| {
                value::set_size(&mut c.postpone, n)?;
                no_meaning(n, cx, "nothing waits for more")
            },
        ),
    );

    fn variables(registry: &mut Registry<Request>) {
        registry.kept("gzip_ratio", |r, out| write_ratio(r, CODING, out));
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if let Some(responses) = conf.common.responses() {
            b.coding(GzipCoding {
                accept: Accept::of(conf),
                responses,
                settings: encode::Settings {
                    level: conf.common.level.unwrap_or(1),
                    window_bits: conf.window_bits.unwrap_or(15),
                },
            });
        }
        Ok(())
    }
}

/// Says that a directive changes nothing.
pub fn no_meaning(node: &Node, cx: &mut Cx<'_, '_>, why: &str) -> Result<(), Error> {
    let name = node.name.lossy();
    cx.loader.info(node.span, format!("the \"{name}\" directive changes nothing here: {why}"));
    Ok(())
}

/// A size that is one of some powers of two, as its logarithm; `all` of them as messages list them.
pub fn set_power(slot: &mut Option<u8>, node: &Node, low: u8, all: &str) -> Result<(), Error> {
    let count = all.split(", ").count() as u8;
    let mut size = None;
    if slot.is_some() {
        return Err(value::duplicate(node));
    }
    value::set_size(&mut size, node)?;
    let bits = (low..low + count).find(|bits| size == Some(1 << bits));
    *slot = Some(bits.ok_or_else(|| node.error(format!("must be {all}")))?);
    Ok(())
}

fn disable(conf: &mut Conf, node: &Node, _cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    for arg in &node.args {
        if arg.is("msie6") {
            conf.disable_msie6 = Some(true);
            continue;
        }
        let regex = Regex::compile(&arg.value, true, arg.span)?;
        conf.disable.get_or_insert_default().push(regex);
    }
    Ok(())
}

struct GzipCoding {
    accept: Accept,
    responses: Responses,
    settings: encode::Settings,
}

const CODING: &str = "gzip";

impl Coding for GzipCoding {
    fn form(&self) -> Form {
        let encode::Settings { level, window_bits } = self.settings;
        Form { name: CODING, level, window_bits }
    }

    fn takes(&self, response: &Response) -> bool {
        self.responses.has(response)
    }

    fn quality(&self, r: &Request) -> u16 {
        self.accept.quality(r)
    }

    fn coder(&self, _length: Option<u64>) -> Box<dyn Coder> {
        Box::new(encode::Encoder::new(self.settings))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use bytes::Bytes;

    use super::*;
    use crate::{body::Body, handler::Filtered, testing};

    /// The settings of one level.
    pub(super) fn conf(text: &str) -> Conf {
        testing::level_conf::<Gzip>(text)
    }

    const TEXT: &str = "hello, hello, hello, hello, hello";

    fn answer(conf: &str, head: &str, change: impl Fn(&mut Request)) -> Request {
        let mut r = testing::request(conf, head);
        r.respond(200, "text/html".into(), TEXT.into());
        r.response.add("ETag", "\"a\"");
        r.response.allow_ranges = true;
        change(&mut r);
        let plan = r.plan.clone();
        for filter in &plan.location(r.location).filters {
            assert_eq!(filter.filter(&mut r), Filtered::Continue);
        }
        r
    }

    const HEAD: &str = "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";

    fn compressed(conf: &str, change: impl Fn(&mut Request)) -> bool {
        answer(conf, HEAD, change).response.field("Content-Encoding").is_some_and(|v| v == "gzip")
    }

    #[test]
    fn a_response_is_compressed() {
        let mut r = answer("gzip on;", HEAD, |_| {});
        assert_eq!(testing::fields(&r), "ETag: W/\"a\"\nContent-Encoding: gzip\n");
        assert_eq!(r.response.content_length, None);
        let body = testing::drain(&mut r.response.body).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, TEXT);
        assert_eq!(r.compressed.get(), (TEXT.len() as u64, body.len() as u64));
    }

    #[test]
    fn the_answer_to_head_has_the_fields_and_no_body() {
        let head = HEAD.replace("GET", "HEAD");
        let r = answer("gzip on;", &head, |_| {});
        assert_eq!(testing::fields(&r), "ETag: W/\"a\"\nContent-Encoding: gzip\n");
        assert!(matches!(r.response.body, Body::Empty));
    }

    #[test]
    fn only_some_responses_are_compressed() {
        for status in [200, 403, 404] {
            assert!(compressed("gzip on;", |r| r.response.status = status), "{status}");
        }
        for status in [201, 204, 206, 301, 304, 400, 500] {
            assert!(!compressed("gzip on;", |r| r.response.status = status), "{status}");
        }
        let length = |length| move |r: &mut Request| r.response.content_length = length;
        assert!(!compressed("gzip on;", length(Some(19))));
        assert!(compressed("gzip on;", length(Some(20))));
        assert!(compressed("gzip on; gzip_min_length 1m;", length(None)));
        assert!(!compressed("gzip on; gzip_min_length 34;", |_| {}));
        assert!(!compressed("gzip on;", |r| r.response.add("content-encoding", "br")));
        assert!(!compressed("gzip off;", |_| {}));
        assert!(!compressed("", |_| {}));
    }

    #[test]
    fn types_are_compared_without_case() {
        for (conf, content_type, want) in [
            ("", Some("text/html"), true),
            ("", Some("Text/HTML"), true),
            ("", Some("text/plain"), false),
            ("", None, false),
            ("gzip_types TEXT/plain;", Some("text/plain"), true),
            ("gzip_types text/plain;", Some("text/html"), true),
            ("gzip_types a/b; gzip_types text/plain;", Some("a/b"), true),
            ("gzip_types *;", Some("image/png"), true),
            ("gzip_types a/b *;", None, true),
        ] {
            let conf = format!("gzip on; {conf}");
            let set = |r: &mut Request| r.response.content_type = content_type.map(Bytes::from);
            assert_eq!(compressed(&conf, set), want, "{conf} {content_type:?}");
        }
    }

    #[test]
    fn vary_is_for_clients_that_take_no_gzip_too() {
        let plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for (conf, head, want) in [
            ("gzip on; gzip_vary on;", HEAD, true),
            ("gzip on; gzip_vary on;", plain, true),
            ("gzip on;", HEAD, false),
            ("gzip_vary on;", HEAD, false),
            ("gzip on; gzip_vary on; gzip_min_length 99;", HEAD, false),
        ] {
            let r = answer(conf, head, |_| {});
            assert_eq!(r.response.vary_accept_encoding, want, "{conf}");
        }
    }

    #[test]
    fn the_ratio_is_rounded_to_two_digits() {
        for (sizes, want) in [
            ((2125, 1000), Some("2.13")),
            ((2124, 1000), Some("2.12")),
            ((2996, 1000), Some("3.00")),
            ((1, 3), Some("0.33")),
            ((0, 20), Some("0.00")),
            ((1_000_000, 1), Some("1000000.00")),
            ((0, 0), None),
        ] {
            let mut out = Vec::new();
            let mut r = testing::request("", HEAD);
            r.response.add("Content-Encoding", "gzip");
            r.compressed.set(sizes);
            let found = write_ratio(&r, CODING, &mut out);
            assert_eq!(found.then(|| String::from_utf8(out).unwrap()).as_deref(), want);
        }
    }

    #[test]
    fn mistakes_are_told_in_nginx_words() {
        for (conf, want) in [
            ("gzip_comp_level 0;", "value must be between 1 and 9"),
            ("gzip_comp_level 10;", "value must be between 1 and 9"),
            ("gzip_http_version 2;", "invalid value \"2\""),
            ("gzip_proxied maybe;", "invalid value \"maybe\""),
            ("gzip_window 3k;", "\"gzip_window\" directive must be 512, 1k, 2k"),
            ("gzip_hash 256;", "\"gzip_hash\" directive must be 512, 1k, 2k"),
            ("gzip_window 1k; gzip_window 1k;", "\"gzip_window\" directive is duplicate"),
            ("gzip_disable (;", "pcre2_compile() failed"),
            ("gzip maybe;", "invalid value \"maybe\" in \"gzip\" directive"),
        ] {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(conf("gzip_window 512;").window_bits, Some(9));
        assert_eq!(conf("gzip_window 32k;").window_bits, Some(15));
        assert_eq!(conf("gzip_hash 128k;").hash, Some(17));
    }
}
