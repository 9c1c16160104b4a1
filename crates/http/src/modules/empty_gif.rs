//! A transparent picture of one pixel, from memory (`ngx_http_empty_gif_module`).
//!
//! Invariant: the answer never changes, so neither does its date.

use bytes::Bytes;
use forebay_conf::{Arity, Contexts, Error};
use forebay_wire::h1::Method;

use crate::{
    client::Client,
    handler::{Flow, Handler},
    module::{Builder, Directive, Module, set},
    request::Request,
};

/// `ngx_http_empty_gif_module`.
pub struct EmptyGif;

impl Module for EmptyGif {
    type Conf = ();
    const NAME: &'static str = "ngx_http_empty_gif_module";
    const DIRECTIVES: &'static [Directive<()>] = &[set(
        "empty_gif",
        &[""],
        "",
        Contexts::LOCATION,
        Arity::NONE,
        "Answers with a transparent picture of one pixel.",
        |_, _, cx| {
            cx.serves = true;
            Ok(())
        },
    )];

    fn build(_: &(), b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if b.serves() {
            b.sole_content(Picture);
        }
        Ok(())
    }
}

/// GIF89a, 1 by 1, two colours of which the first is transparent: nginx's bytes.
const GIF: &[u8; 43] = b"GIF89a\x01\x00\x01\x00\x80\x01\x00\x00\x00\x00\xff\xff\xff\
\x21\xf9\x04\x01\x00\x00\x01\x00\x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x4c\x01\x00\x3b";

/// Mon, 28 Sep 1970 06:00:00 GMT.
const MODIFIED: i64 = 23_349_600;

struct Picture;

impl Handler for Picture {
    fn handle<'a>(&'a self, r: &'a mut Request, _: &'a mut dyn Client) -> Flow<'a> {
        if !matches!(r.method, Method::Get | Method::Head) {
            return Flow::Deny(405);
        }
        r.respond(200, Bytes::from_static(b"image/gif"), Bytes::from_static(GIF));
        r.response.last_modified = Some(MODIFIED);
        Flow::Done
    }
}
