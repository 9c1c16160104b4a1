//! HTTP/2 to upstreams (`proxy_http_version 2`): back ends that speak in frames, well or badly, and real
//! ones. nginx 1.22 does not have it, so claims are made of Forebay alone.

mod backends;
mod bodies;
mod connections;
mod mixed;
mod requests;
mod responses;

use std::io;
use std::net::SocketAddr;

use forebay_testkit::origin::Origin;
use forebay_testkit::origin_h2::{Asked, H2};
use forebay_testkit::{Kind, Server};

use crate::start;

/// Forebay with one location that passes everything on in HTTP/2.
fn proxy(origin: SocketAddr, more: &str) -> Server {
    with(&format!("upstream o {{ server {origin}; }}"), more)
}

/// The same, for an `upstream o`.
fn with(http: &str, more: &str) -> Server {
    let inside = format!("location / {{ proxy_pass http://o; proxy_http_version 2; {more} }}");
    start(Kind::Forebay, http, &inside)
}

/// An origin that runs a script for each request.
fn serving(
    script: impl Fn(&mut H2<'_>, &Asked) -> io::Result<()> + Send + Sync + 'static,
) -> Origin {
    Origin::start(move |conn| {
        let Some(mut h2) = H2::serve(conn, &[])? else { return Ok(()) };
        while let Some(asked) = h2.request()? {
            script(&mut h2, &asked)?;
        }
        Ok(())
    })
}

/// An origin that says which of its connections it was asked on, and on which stream.
fn counting() -> Origin {
    serving(|h2, asked| {
        let text = format!("{}/{}", h2.conn.number(), asked.stream);
        h2.ok(asked.stream, text.as_bytes())
    })
}
