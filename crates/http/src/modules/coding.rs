//! Chooses the coding of a response among those that `zstd`, `brotli` and `gzip` offer for it: the
//! one that the client wants most (the highest `q` in `Accept-Encoding`, RFC 9110 §12.5.3), and of
//! equals zstd, br, gzip in this order.
//!
//! The compressing modules come before this one; it has no directives of its own.
//!
//! Invariant: a response is compressed at most once, and never one that is encoded already.

use std::mem;

use bytes::Bytes;
use forebay_conf::{Error, value::Bufs};
use forebay_wire::h1::Method;

use super::{gzip::Accept, not_modified::NoConf};
use crate::{
    body::Body,
    coding::{self, Coding},
    handler::{Filter, Filtered},
    inherit,
    mime::Types,
    module::{Builder, Directive, Module},
    request::Request,
    response::Response,
};

/// What the compressing modules have in common.
#[derive(Default)]
pub struct Common {
    pub on: Option<bool>,
    pub buffers: Option<Bufs>,
    pub level: Option<u32>,
    pub min_length: Option<u64>,
    pub types: Option<Types>,
}

impl Common {
    pub fn inherit(&mut self, parent: &Common) {
        inherit!(self, parent; on, buffers, level, min_length, types);
    }

    /// Which responses are compressed; `None`: none.
    pub fn responses(&self) -> Option<Responses> {
        (self.on == Some(true)).then(|| Responses {
            types: self.types.clone().unwrap_or_else(Types::html),
            min_length: self.min_length.unwrap_or(20),
        })
    }
}

/// Which responses a coding is for.
pub struct Responses {
    types: Types,
    min_length: u64,
}

impl Responses {
    pub fn has(&self, response: &Response) -> bool {
        response.content_length.is_none_or(|length| length >= self.min_length)
            && self.types.has(response.content_type.as_ref())
    }
}

/// The directives of a compressing module: those that all of them have, with its prefix, and its own.
/// Its settings have the common ones in a field `common`. What tables are written with is at hand.
macro_rules! directives {
    ($prefix:literal, $doc:literal, $default:literal in $low:literal to $high:literal; $($own:expr,)*) => {{
        use forebay_conf::{Arity, value};
        use $crate::{mime::Types, module::{ANY, ANY_IF, set}, modules::gzip::no_meaning};
        &[
            set($prefix, &["on | off"], "off", ANY_IF, Arity::FLAG, $doc, |c, n, _| {
                value::set_flag(&mut c.common.on, n)
            }),
            set(
                concat!($prefix, "_buffers"),
                &["number size"],
                "32 4k|16 8k",
                ANY,
                Arity::TWO,
                "The buffers of a compressed response; here they are as large as what is compressed.",
                |c, n, cx| {
                    value::set_bufs(&mut c.common.buffers, n)?;
                    no_meaning(n, cx, "compressed bytes are sent as they come")
                },
            ),
            set(
                concat!($prefix, "_comp_level"),
                &["level"],
                stringify!($default),
                ANY,
                Arity::ONE,
                concat!("How hard to compress, ", $low, " to ", $high, "."),
                |c, n, _| {
                    value::set_number(&mut c.common.level, n)?;
                    let level = c.common.level.unwrap_or($default);
                    value::check_bounds(n, level.into(), $low, Some($high))
                },
            ),
            set(
                concat!($prefix, "_min_length"),
                &["length"],
                "20",
                ANY,
                Arity::ONE,
                "Shorter responses are not compressed, where the length is known.",
                |c, n, _| value::set_size(&mut c.common.min_length, n),
            ),
            set(
                concat!($prefix, "_types"),
                &["mime-type ..."],
                "text/html",
                ANY,
                Arity::SOME,
                "Which types are compressed beside text/html.",
                |c, n, cx| Types::set(&mut c.common.types, n, cx),
            ),
            $($own,)*
        ]
    }};
}
pub(super) use directives;

/// The filter of all content codings.
pub struct Codings;

impl Module for Codings {
    type Conf = NoConf;
    const NAME: &'static str = "forebay_http_coding_module";
    const DIRECTIVES: &'static [Directive<NoConf>] = &[];

    fn build(_conf: &NoConf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let codings = mem::take(&mut b.codings);
        if !codings.is_empty() {
            let vary = Accept::here(b).vary;
            b.filter(Choose { codings, vary });
        }
        Ok(())
    }
}

struct Choose {
    codings: Vec<Box<dyn Coding>>,
    /// `gzip_vary`.
    vary: bool,
}

impl Filter for Choose {
    fn filter(&self, r: &mut Request) -> Filtered {
        let response = &r.response;
        if !matches!(response.status, 200 | 403 | 404)
            || response.header_only
            // DIFFERS(added-coding): nginx compresses once more what has this field by `add_header`.
            || response.field("Content-Encoding").is_some_and(|coding| !coding.is_empty())
        {
            return Filtered::Continue;
        }
        let (mut offered, mut best) = (false, None);
        for coding in self.codings.iter().filter(|coding| coding.takes(&r.response)) {
            offered = true;
            let quality = coding.quality(r);
            if quality > best.map_or(0, |(quality, _)| quality) {
                best = Some((quality, coding));
            }
        }
        if offered {
            // The answer depends on what this client takes, whatever that is.
            r.response.vary_accept_encoding = self.vary;
        }
        let Some((_, coding)) = best else { return Filtered::Continue };
        let response = &mut r.response;
        response.set("Content-Encoding", Bytes::from_static(coding.form().name.as_bytes()));
        response.body_will_change();
        let body = mem::take(&mut response.body);
        response.body = match r.method {
            Method::Head => Body::Empty,
            _ => coding::encode(&**coding, body, &r.compressed),
        };
        Filtered::Continue
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use bytes::Bytes;

    use crate::{
        body::{Body, FileSlice},
        files::OpenFile,
        testing,
    };

    fn coding(conf: &str, accept: &str) -> Option<String> {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accept}\r\n\r\n");
        let mut r = testing::request(conf, &head);
        r.respond(200, "text/html".into(), "hello, hello, hello, hello".into());
        testing::filter(&mut r);
        let coding = r.response.field("Content-Encoding");
        coding.map(|name| String::from_utf8(name.to_vec()).unwrap())
    }

    #[test]
    fn what_is_labelled_by_hand_is_not_compressed_again() {
        let conf = "gzip on; add_header Content-Encoding br;";
        assert_eq!(coding(conf, "gzip").as_deref(), Some("br"));
    }

    #[test]
    fn the_client_gets_what_it_wants_most() {
        const ALL: &str = "gzip on; brotli on; zstd on;";
        for (conf, accept, want) in [
            (ALL, "gzip, deflate, br, zstd", Some("zstd")),
            (ALL, "gzip, deflate, br", Some("br")),
            (ALL, "gzip", Some("gzip")),
            (ALL, "gzip;q=1, br;q=0.9, zstd;q=0.8", Some("gzip")),
            (ALL, "gzip;q=0.5, br;q=0.9, zstd;q=0.8", Some("br")),
            (ALL, "br;q=0, zstd;q=0.000, gzip;q=0.001", Some("gzip")),
            (ALL, "br;q=0.5, gzip;q=0.5", Some("br")),
            (ALL, "*", Some("zstd")),
            (ALL, "zstd;q=0, *;q=0.1", Some("br")),
            (ALL, "identity", None),
            (ALL, "", None),
            (ALL, ";;;,,,q=1", None),
            (ALL, "br;q=9", None),
            ("gzip on; brotli on;", "zstd, gzip;q=0.9", Some("gzip")),
            ("gzip on; brotli on; brotli_types *; brotli_min_length 1k;", "br, gzip", Some("gzip")),
            ("brotli on;", "gzip", None),
            ("zstd on; zstd_min_length 100;", "zstd", None),
        ] {
            assert_eq!(coding(conf, accept).as_deref(), want, "{conf} {accept}");
        }
    }

    #[test]
    fn a_file_that_is_asked_for_again_is_not_compressed_again() {
        let text = Bytes::from("hello, ".repeat(1000));
        let file = Rc::new(OpenFile::of_contents(text.clone()));
        let ask = |accept: &str, start: u64| {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accept}\r\n\r\n");
            let mut r = testing::request("gzip on; brotli on; zstd on;", &head);
            r.respond(200, "text/html".into(), "".into());
            let slice = FileSlice { file: file.clone(), start, end: file.size };
            (r.response.content_length, r.response.body) = (Some(slice.len()), Body::File(slice));
            testing::filter(&mut r);
            assert_eq!(r.compressed.get().0, file.size - start);
            match r.response.body {
                Body::Bytes(bytes) => bytes,
                _ => panic!("it is in memory, and small"),
            }
        };
        for accept in ["gzip", "br", "zstd"] {
            let [first, second, third] = [(); 3].map(|()| ask(accept, 0));
            assert!(first == second && second.as_ptr() == third.as_ptr(), "{accept}");
            assert_ne!(ask(accept, 7), first, "a part is another body");
            assert_eq!(ask(accept, 0).as_ptr(), third.as_ptr());
        }
    }
}
