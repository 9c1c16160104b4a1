//! HTTP/2: its directives and `$http2` (`ngx_http_v2_module`). The protocol itself is `crate::h2`.
//!
//! Leaves out: server push, which browsers no longer take and nginx gave up in 1.25.1.

use forebay_conf::{Arity, Contexts, Error, Node, value};
use forebay_session::var::Registry;
use forebay_wire::h1::Version;

use crate::{
    h2::Settings,
    inherit,
    module::{self, ANY, Builder, Cx, Directive, Module, SERVERS, set},
    request::Request,
};

/// `ngx_http_v2_module`.
pub struct Http2;

/// What one level sets.
#[derive(Default)]
pub struct Conf {
    on: Option<bool>,
    max_concurrent_streams: Option<u32>,
    body_preread_size: Option<u64>,
    chunk_size: Option<u64>,
    recv_buffer_size: Option<u64>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; on, max_concurrent_streams, body_preread_size, chunk_size,
            recv_buffer_size);
    }
}

impl Module for Http2 {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_v2_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "http2",
            &["on | off"],
            "off",
            SERVERS,
            Arity::FLAG,
            "Whether clients may speak HTTP/2: over TLS when they say so, without it when they begin with it.",
            |c, n, _| value::set_flag(&mut c.on, n),
        ),
        set(
            "http2_max_concurrent_streams",
            &["number"],
            "128",
            SERVERS,
            Arity::ONE,
            "How many requests of a connection may be under way at once.",
            |c, n, _| value::set_number(&mut c.max_concurrent_streams, n),
        ),
        set(
            "http2_body_preread_size",
            &["size"],
            "64k",
            SERVERS,
            Arity::ONE,
            "How much of a request body may come before somebody reads it.",
            body_preread_size,
        ),
        set(
            "http2_chunk_size",
            &["size"],
            "8k",
            ANY,
            Arity::ONE,
            "How large the slices of response bodies are.",
            chunk_size,
        ),
        set(
            "http2_recv_buffer_size",
            &["size"],
            "256k",
            Contexts::HTTP,
            Arity::ONE,
            "The input buffer of a worker; here buffers are taken as frames come.",
            |c, n, cx| {
                value::set_size(&mut c.recv_buffer_size, n)?;
                // ngx_http_v2_recv_buffer_size: twice NGX_HTTP_V2_STATE_BUFFER_SIZE.
                if c.recv_buffer_size < Some(32) {
                    return Err(n.error("value is too small"));
                }
                let text = "the \"http2_recv_buffer_size\" directive changes nothing here: buffers \
                            are taken as frames come";
                cx.loader.info(n.span, text);
                Ok(())
            },
        ),
        set(
            "http2_idle_timeout",
            &["time"],
            "3m",
            SERVERS,
            Arity::ONE,
            "Obsolete: `keepalive_timeout`.",
            |_, n, cx| obsolete(n, cx, Some("keepalive_timeout")),
        ),
        set(
            "http2_recv_timeout",
            &["time"],
            "30s",
            SERVERS,
            Arity::ONE,
            "Obsolete: `client_header_timeout`.",
            |_, n, cx| obsolete(n, cx, Some("client_header_timeout")),
        ),
        set(
            "http2_max_field_size",
            &["size"],
            "4k",
            SERVERS,
            Arity::ONE,
            "Obsolete: `large_client_header_buffers`.",
            |_, n, cx| obsolete(n, cx, Some("large_client_header_buffers")),
        ),
        set(
            "http2_max_header_size",
            &["size"],
            "16k",
            SERVERS,
            Arity::ONE,
            "Obsolete: `large_client_header_buffers`.",
            |_, n, cx| obsolete(n, cx, Some("large_client_header_buffers")),
        ),
        set(
            "http2_max_requests",
            &["number"],
            "1000",
            SERVERS,
            Arity::ONE,
            "Obsolete: `keepalive_requests`.",
            |_, n, cx| obsolete(n, cx, Some("keepalive_requests")),
        ),
        set(
            "http2_max_concurrent_pushes",
            &["number"],
            "10",
            SERVERS,
            Arity::ONE,
            "Obsolete: nothing is pushed.",
            |_, n, cx| obsolete(n, cx, None),
        ),
        set(
            "http2_push",
            &["uri | off"],
            "off",
            ANY,
            Arity::ONE,
            "Obsolete: nothing is pushed.",
            |_, n, cx| obsolete(n, cx, None),
        ),
        set(
            "http2_push_preload",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Obsolete: nothing is pushed.",
            |_, n, cx| obsolete(n, cx, None),
        ),
    ];

    fn variables(registry: &mut Registry<Request>) {
        registry.builtin("http2", |r, out| {
            let name: &[u8] = match (r.version(), r.connection.is_tls()) {
                (Version::Http2, true) => b"h2",
                (Version::Http2, false) => b"h2c",
                _ => b"",
            };
            out.extend_from_slice(name);
            // nginx: found, and empty where the protocol is another.
            true
        });
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let default = Settings::default();
        let settings = Settings {
            on: conf.on.unwrap_or(default.on),
            max_concurrent_streams: conf
                .max_concurrent_streams
                .unwrap_or(default.max_concurrent_streams),
            body_preread_size: narrow(conf.body_preread_size).unwrap_or(default.body_preread_size),
            chunk_size: narrow(conf.chunk_size).unwrap_or(default.chunk_size),
        };
        if settings != default {
            b.keep(settings);
        }
        Ok(())
    }
}

fn narrow(size: Option<u64>) -> Option<u32> {
    size.map(|size| u32::try_from(size).unwrap_or(u32::MAX))
}

/// `ngx_http_v2_preread_size`.
fn body_preread_size(c: &mut Conf, n: &Node, _: &mut Cx<'_, '_>) -> Result<(), Error> {
    let max = forebay_wire::h2::MAX_WINDOW;
    value::set_size(&mut c.body_preread_size, n)?;
    if c.body_preread_size > Some(u64::from(max)) {
        let text = format!("the maximum body preread buffer size is {max}");
        return Err(Error::emerg(n.span, text));
    }
    Ok(())
}

/// `ngx_http_v2_chunk_size`.
fn chunk_size(c: &mut Conf, n: &Node, _: &mut Cx<'_, '_>) -> Result<(), Error> {
    value::set_size(&mut c.chunk_size, n)?;
    if c.chunk_size == Some(0) {
        let text = "the http2 chunk size cannot be zero".to_owned();
        return Err(Error::emerg(n.span, text));
    }
    Ok(())
}

/// `ngx_http_v2_obsolete`.
fn obsolete(node: &Node, cx: &mut Cx<'_, '_>, instead: Option<&str>) -> Result<(), Error> {
    let name = node.name.lossy().into_owned();
    let text = match instead {
        Some(instead) => {
            format!("the \"{name}\" directive is obsolete, use the \"{instead}\" directive instead")
        }
        None => format!("the \"{name}\" directive is obsolete, ignored"),
    };
    cx.loader.warn(node.span, text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{h2, testing};

    #[test]
    fn settings_are_inherited_and_off_by_default() {
        let of = |conf: &str| {
            let plan = testing::plan(&format!("{conf} listen 127.0.0.1:1; location / {{ }} }}"));
            let plan = plan.expect("it must load");
            let listener = &plan.listeners[0];
            let on = h2::is_on(&plan, listener, listener.names.default);
            (on, h2::settings(plan.locations.last().expect("a location")))
        };
        assert_eq!(of("server {"), (false, h2::Settings::default()));
        let conf = "http2 on; http2_chunk_size 4k; http2_max_concurrent_streams 7;
            http2_body_preread_size 1k; server { http2_chunk_size 1k;";
        let settings = h2::Settings {
            on: true,
            max_concurrent_streams: 7,
            body_preread_size: 1024,
            chunk_size: 1024,
        };
        assert_eq!(of(conf), (true, settings));
    }

    #[test]
    fn values_out_of_bounds_are_errors() {
        for (line, error) in [
            ("http2_chunk_size 0;", "the http2 chunk size cannot be zero"),
            (
                "http2_body_preread_size 3000m;",
                "the maximum body preread buffer size is 2147483647",
            ),
            (
                "http2_recv_buffer_size 31;",
                "\"http2_recv_buffer_size\" directive value is too small",
            ),
            ("http2 yes;", "invalid value \"yes\""),
        ] {
            let text = testing::conf_error(&format!("{line} server {{ listen 127.0.0.1:1; }}"));
            assert!(text.contains(error), "{text}");
        }
    }
}
