//! `brotli`: compresses responses with Brotli (RFC 7932); the directives of Google's `ngx_brotli`.
//!
//! Invariant: which coding a client gets is `coding`'s to say.

use brotli::enc::{
    StandardAlloc,
    encode::{
        BrotliEncoderDestroyInstance, BrotliEncoderOperation as Operation, BrotliEncoderParameter,
        BrotliEncoderStateStruct,
    },
};
use forebay_conf::Error;
use forebay_session::var::Registry;

use super::{
    coding::{Common, Responses, directives},
    gzip::set_power,
};
use crate::{
    body::Fault,
    coding::{Coder, Coding, Finish, Form, Progress, quality, write_ratio},
    module::{self, Builder, Directive, Module},
    request::Request,
    response::Response,
};

/// `ngx_http_brotli_filter_module`.
pub struct Brotli;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    common: Common,
    window_bits: Option<u8>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        self.common.inherit(&parent.common);
        crate::inherit!(self, parent; window_bits);
    }
}

const WINDOWS: &str = "1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k, 256k, 512k, 1m, 2m, 4m, 8m, or 16m";

impl Module for Brotli {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_brotli_filter_module";
    const DIRECTIVES: &'static [Directive<Conf>] = directives!(
        "brotli", "Compresses responses with Brotli.", 6 in 0 to 11;
        set(
            "brotli_window",
            &["size"],
            "512k",
            ANY,
            Arity::ONE,
            "How far back the compressor looks for repetitions.",
            |c, n, _| set_power(&mut c.window_bits, n, 10, WINDOWS),
        ),
    );

    fn variables(registry: &mut Registry<Request>) {
        registry.builtin("brotli_ratio", |r, out| write_ratio(r, NAME, out));
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if let Some(responses) = conf.common.responses() {
            b.coding(Br {
                responses,
                level: conf.common.level.unwrap_or(6),
                window_bits: conf.window_bits.unwrap_or(19).into(),
            });
        }
        Ok(())
    }
}

const NAME: &str = "br";

struct Br {
    responses: Responses,
    level: u32,
    window_bits: u32,
}

impl Coding for Br {
    fn form(&self) -> Form {
        Form { name: NAME, level: self.level, window_bits: self.window_bits as u8 }
    }

    fn takes(&self, response: &Response) -> bool {
        self.responses.has(response)
    }

    fn quality(&self, r: &Request) -> u16 {
        quality(r, NAME)
    }

    fn coder(&self, length: Option<u64>) -> Box<dyn Coder> {
        // A window larger than the body finds nothing more, and costs its memory.
        let needed = length.map_or(24, |length| u64::BITS - length.leading_zeros());
        // For the least windows, though, the compressor takes its largest tables (of 32 MB) from level 5 on.
        let least = if self.level < 5 { 10 } else { 17 };
        let window_bits = self.window_bits.min(needed.max(least));
        let mut state = BrotliEncoderStateStruct::new(StandardAlloc::default());
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, self.level);
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, window_bits);
        Box::new(Encoder(state))
    }
}

/// The library's own writer is not used: when it is dropped, it compresses what it still has, which
/// takes long, and nobody waits for it.
struct Encoder(BrotliEncoderStateStruct<StandardAlloc>);

impl Drop for Encoder {
    fn drop(&mut self) {
        BrotliEncoderDestroyInstance(&mut self.0);
    }
}

impl Coder for Encoder {
    fn run(&mut self, input: &[u8], finish: Finish, out: &mut Vec<u8>) -> Result<Progress, Fault> {
        let operation = match finish {
            Finish::No => Operation::BROTLI_OPERATION_PROCESS,
            Finish::Flush => Operation::BROTLI_OPERATION_FLUSH,
            Finish::End => Operation::BROTLI_OPERATION_FINISH,
        };
        let (mut left, mut used, mut buf) = (input.len(), 0, [0; 4096]);
        loop {
            let (mut room, mut made) = (buf.len(), 0);
            let went = self.0.compress_stream(
                operation,
                &mut left,
                input,
                &mut used,
                &mut room,
                &mut buf,
                &mut made,
                &mut None,
                &mut |_, _, _, _| (),
            );
            out.extend_from_slice(&buf[..made]);
            if !went {
                return Err(Fault::Filter);
            }
            let done = match finish {
                Finish::No => left == 0,
                Finish::Flush => left == 0 && !self.0.has_more_output(),
                Finish::End => self.0.is_finished(),
            };
            if done {
                return Ok(Progress { used, done });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use crate::{body::Chunk, testing};

    fn decode(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).unwrap();
        out
    }

    fn compress(conf: &str, chunks: Vec<Chunk>) -> Vec<u8> {
        let mut r = testing::request(conf, "GET / HTTP/1.1\r\nAccept-Encoding: br\r\n\r\n");
        r.respond(200, "text/html".into(), "".into());
        r.response.content_length = None;
        r.response.body = crate::body::Body::Chunks(chunks.into());
        testing::filter(&mut r);
        let out = testing::drain(&mut r.response.body).unwrap();
        assert_eq!(r.response.field("Content-Encoding").unwrap(), "br");
        out
    }

    #[test]
    fn what_is_compressed_comes_back() {
        for conf in ["", "brotli_comp_level 0;", "brotli_comp_level 11; brotli_window 1k;"] {
            for text in [Vec::new(), b"x".to_vec(), b"hello ".repeat(40_000)] {
                let chunks = text.chunks(50_000).map(|c| Chunk::Bytes(c.to_vec().into()));
                let out = compress(&format!("brotli on; {conf}"), chunks.collect());
                assert_eq!(decode(&out), text, "{conf}");
            }
        }
    }

    #[test]
    fn small_bodies_take_no_large_tables() {
        // The window is in the first bits (RFC 7932 §9.1).
        for (conf, bits, want) in [("5", 0x7f, 1), ("9", 0x7f, 1), ("4", 0x7f, 0x21)] {
            let mut r = testing::request(
                &format!("brotli on; brotli_comp_level {conf};"),
                "GET / HTTP/1.1\r\nAccept-Encoding: br\r\n\r\n",
            );
            r.respond(200, "text/html".into(), "hello ".repeat(100).into());
            testing::filter(&mut r);
            let out = testing::drain(&mut r.response.body).unwrap();
            assert_eq!(out[0] & bits, want, "{conf}");
        }
    }

    #[test]
    fn a_flush_lets_all_through() {
        let chunks = vec![Chunk::Bytes("hello".into()), Chunk::Flush, Chunk::Bytes("x".into())];
        assert_eq!(decode(&compress("brotli on;", chunks)), b"hellox");
    }

    #[test]
    fn mistakes_are_told() {
        for (conf, want) in [
            ("brotli_comp_level 12;", "value must be between 0 and 11"),
            ("brotli_window 3k;", "\"brotli_window\" directive must be 1k, 2k"),
            ("brotli maybe;", "invalid value \"maybe\" in \"brotli\" directive"),
            ("brotli_static maybe;", "invalid value \"maybe\""),
        ] {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }
}
