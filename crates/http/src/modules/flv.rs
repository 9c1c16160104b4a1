//! `flv`: Flash videos from the middle, as `?start=` says (`ngx_http_flv_module.c`).
//!
//! Invariant: the file is not looked into; what stands at the start is the player's to know.

use bytes::Bytes;
use forebay_conf::{Arity, Contexts, Error, value};
use forebay_wire::h1::Method;

use super::static_files::{refuse, respond, status_of};
use crate::{
    body::{Body, Chunk, FileSlice},
    client::Client,
    files::{self, Found},
    handler::{Flow, Handler},
    module::{Builder, Directive, Module, set},
    request::Request,
};

/// `ngx_http_flv_module`.
pub struct Flv;

impl Module for Flv {
    type Conf = ();
    const NAME: &'static str = "ngx_http_flv_module";
    const DIRECTIVES: &'static [Directive<()>] = &[set(
        "flv",
        &[""],
        "",
        Contexts::LOCATION,
        Arity::NONE,
        "Serves Flash videos from where ?start= says.",
        |_, _, cx| {
            cx.serves = true;
            Ok(())
        },
    )];

    fn build(_: &(), b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if b.serves() {
            b.sole_content(Video);
        }
        Ok(())
    }
}

/// What stands before a video that begins in the middle.
const HEADER: &[u8] = b"FLV\x01\x05\0\0\0\x09\0\0\0\0";

struct Video;

impl Handler for Video {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        if !matches!(r.method, Method::Get | Method::Head) {
            return Flow::Deny(405);
        }
        if r.uri.ends_with(b"/") {
            return Flow::Decline;
        }
        // The body is thrown away before anybody looks for the file.
        r.asks_for_body.get_or_insert(true);
        files::run(files::waits(r), || serve(r))
    }
}

async fn serve<'f>(r: &mut Request) -> Flow<'f> {
    let mut path = Vec::with_capacity(256);
    if files::map_path(r, &mut path).is_err() {
        return refuse(r, &path);
    }
    let file = match files::open(r, &path).await {
        Ok(Found::File(file)) if file.is_regular() => file,
        Ok(_) => return Flow::Decline,
        Err(failed) => return Flow::Deny(status_of(r, &path, failed)),
    };
    let start = argument(&r.args, b"start").and_then(value::number).unwrap_or(0);
    let size = file.size;
    respond(r, file.clone());
    if start > 0 && start < size {
        set_length(r, file.modified, HEADER.len() as u64 + size - start);
        let rest = Chunk::File(FileSlice { file, start, end: size });
        r.response.body = Body::Chunks([Chunk::Bytes(Bytes::from_static(HEADER)), rest].into());
    }
    Flow::Done
}

/// A part of a file is another thing than the whole: its length shows in the validator, too
/// (`ngx_http_set_etag`).
pub fn set_length(r: &mut Request, modified: i64, length: u64) {
    r.response.content_length = Some(length);
    if r.location().core.etag {
        r.response.set("ETag", format!("\"{modified:x}-{length:x}\""));
    }
}

/// The value of the first argument of that name, in any case (`ngx_http_arg`).
pub fn argument<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    args.split(|b| *b == b'&').find_map(|part| {
        let (start, value) = part.split_at_checked(name.len())?;
        if start.eq_ignore_ascii_case(name) { value.strip_prefix(b"=") } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_found_by_their_whole_name() {
        for (args, want) in [
            ("start=5", Some("5")),
            ("a=1&START=5&start=6", Some("5")),
            ("start=", Some("")),
            ("start", None),
            ("xstart=5", None),
            ("starting=5", None),
            ("a=start=5", None),
            ("&&start=5&", Some("5")),
            ("", None),
        ] {
            assert_eq!(argument(args.as_bytes(), b"start"), want.map(str::as_bytes), "{args}");
        }
    }
}
