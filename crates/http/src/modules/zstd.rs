//! `zstd`: compresses responses with Zstandard (RFC 8878); the directives of the `zstd` module for
//! nginx.
//!
//! Leaves out: `zstd_dict_file`, which no browser understands.
//!
//! Invariant: which coding a client gets is `coding`'s to say.

use std::io::{self, Write as _};

use forebay_conf::Error;
use forebay_session::var::Registry;
use zstd::stream::write::Encoder as Writer;

use super::coding::{Common, Responses, directives};
use crate::{
    body::Fault,
    coding::{Coder, Coding, Finish, Form, Progress, quality, write_ratio},
    module::{self, Builder, Directive, Module},
    request::Request,
    response::Response,
};

/// `ngx_http_zstd_filter_module`.
pub struct Zstd;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    common: Common,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        self.common.inherit(&parent.common);
    }
}

impl Module for Zstd {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_zstd_filter_module";
    const DIRECTIVES: &'static [Directive<Conf>] =
        directives!("zstd", "Compresses responses with Zstandard.", 1 in 1 to 22;);

    fn variables(registry: &mut Registry<Request>) {
        registry.builtin("zstd_ratio", |r, out| write_ratio(r, NAME, out));
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if let Some(responses) = conf.common.responses() {
            b.coding(Zst { responses, level: conf.common.level.unwrap_or(1) as i32 });
        }
        Ok(())
    }
}

const NAME: &str = "zstd";
/// Clients need not have a larger window than 8 MB (RFC 9659 §3).
///
/// DIFFERS(zstd-window): the module that there is for nginx lets the level choose.
const MAX_WINDOW_BITS: u32 = 23;

struct Zst {
    responses: Responses,
    level: i32,
}

impl Coding for Zst {
    fn form(&self) -> Form {
        Form { name: NAME, level: self.level as u32, window_bits: 0 }
    }

    fn takes(&self, response: &Response) -> bool {
        self.responses.has(response)
    }

    fn quality(&self, r: &Request) -> u16 {
        quality(r, NAME)
    }

    fn coder(&self, length: Option<u64>) -> Box<dyn Coder> {
        Box::new(Encoder(self.writer(length).ok()))
    }
}

impl Zst {
    fn writer(&self, length: Option<u64>) -> io::Result<Writer<'static, Vec<u8>>> {
        let mut writer = Writer::new(Vec::new(), self.level)?;
        // Tables that are larger than the body needs take longer to clear than the body to compress.
        writer.set_pledged_src_size(length)?;
        // What the level itself would take is never more than this from level 19 down.
        if self.level > 19 {
            writer.window_log(MAX_WINDOW_BITS)?;
        }
        Ok(writer)
    }
}

/// `None` once it has ended, or could not begin.
struct Encoder(Option<Writer<'static, Vec<u8>>>);

impl Coder for Encoder {
    fn run(&mut self, input: &[u8], finish: Finish, out: &mut Vec<u8>) -> Result<Progress, Fault> {
        let fault = |_: io::Error| Fault::Filter;
        let mut writer = self.0.take().ok_or(Fault::Filter)?;
        writer.write_all(input).map_err(fault)?;
        match finish {
            Finish::No => {}
            Finish::Flush => writer.flush().map_err(fault)?,
            Finish::End => {
                out.append(&mut writer.finish().map_err(fault)?);
                return Ok(Progress { used: input.len(), done: true });
            }
        }
        out.append(writer.get_mut());
        self.0 = Some(writer);
        Ok(Progress { used: input.len(), done: true })
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        body::{Body, Chunk},
        testing,
    };

    fn compress(conf: &str, body: Body) -> Vec<u8> {
        let mut r = testing::request(conf, "GET / HTTP/1.1\r\nAccept-Encoding: zstd\r\n\r\n");
        r.respond(200, "text/html".into(), "".into());
        r.response.content_length = None;
        r.response.body = body;
        testing::filter(&mut r);
        let out = testing::drain(&mut r.response.body).unwrap();
        assert_eq!(r.response.field("Content-Encoding").unwrap(), "zstd");
        out
    }

    #[test]
    fn what_is_compressed_comes_back() {
        for conf in ["", "zstd_comp_level 19;", "zstd_comp_level 22;"] {
            let conf = format!("zstd on; {conf}");
            for text in [Vec::new(), b"x".to_vec(), b"hello ".repeat(40_000)] {
                let chunks = text.chunks(50_000).map(|c| Chunk::Bytes(c.to_vec().into()));
                let out = compress(&conf, Body::Chunks(chunks.collect()));
                assert_eq!(zstd::decode_all(&out[..]).unwrap(), text, "{conf}");
            }
            let out = compress(&conf, Body::Bytes("hello".into()));
            assert_eq!(zstd::decode_all(&out[..]).unwrap(), b"hello", "{conf}");
        }
    }

    #[test]
    fn the_compressor_knows_how_much_will_come() {
        let out = compress("zstd on; zstd_comp_level 19;", Body::Bytes("hello".into()));
        assert!(matches!(zstd::zstd_safe::get_frame_content_size(&out), Ok(Some(5))));
    }

    #[test]
    fn no_window_is_larger_than_browsers_take() {
        for level in [1, 19, 22] {
            // Nobody knows how much will come.
            let chunks = [Chunk::Bytes("hello ".into()), Chunk::Flush, Chunk::Bytes("x".into())];
            let conf = format!("zstd on; zstd_comp_level {level};");
            let out = compress(&conf, Body::Chunks(chunks.into()));
            let mut decoder = zstd::Decoder::new(&out[..]).unwrap();
            decoder.window_log_max(23).unwrap();
            assert_eq!(std::io::read_to_string(decoder).unwrap(), "hello x", "{level}");
        }
    }

    #[test]
    fn a_flush_lets_all_through() {
        let chunks = [Chunk::Bytes("hello".into()), Chunk::Flush, Chunk::Bytes("x".into())];
        let out = compress("zstd on;", Body::Chunks(chunks.into()));
        assert_eq!(zstd::decode_all(&out[..]).unwrap(), b"hellox");
    }

    #[test]
    fn mistakes_are_told() {
        for (conf, want) in [
            ("zstd_comp_level 0;", "value must be between 1 and 22"),
            ("zstd_comp_level 23;", "value must be between 1 and 22"),
            ("zstd on; zstd off;", "\"zstd\" directive is duplicate"),
        ] {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }
}
