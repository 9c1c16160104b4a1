//! `gzip_static`: serves `x.gz` for `x`. `ngx_http_gzip_static_module`.
//!
//! Whether a client takes gzip is decided by the rules of the gzip module.

use forebay_conf::{Arity, Error, value::set_enum};
use forebay_session::log::Severity;
use forebay_wire::h1::Method;

use super::{
    gzip::Accept,
    static_files::{refuse, respond},
};
use crate::{
    client::Client,
    files::{self, Failed, Found},
    handler::{Flow, Handler},
    inherit,
    module::{self, ANY, Builder, Directive, Module, set},
    request::Request,
};

/// `gzip_static`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Off,
    /// For clients that take gzip.
    On,
    /// For all clients.
    Always,
}

/// The setting of one level.
#[derive(Default)]
pub struct Conf {
    mode: Option<Mode>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; mode);
    }
}

/// The module.
pub struct GzipStatic;

impl Module for GzipStatic {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_gzip_static_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[set(
        "gzip_static",
        &["on | off | always"],
        "off",
        ANY,
        Arity::ONE,
        "Whether a file with the extension .gz is sent in place of the one asked for.",
        |c, n, _| {
            set_enum(
                &mut c.mode,
                n,
                &[("off", Mode::Off), ("on", Mode::On), ("always", Mode::Always)],
            )
        },
    )];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let mode = conf.mode.unwrap_or_default();
        if mode != Mode::Off {
            let accept = Accept::here(b);
            b.content(Compressed { always: mode == Mode::Always, accept });
        }
        Ok(())
    }
}

struct Compressed {
    always: bool,
    accept: Accept,
}

impl Handler for Compressed {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        if r.uri.ends_with(b"/") || !matches!(r.method, Method::Get | Method::Head) {
            return Flow::Decline;
        }
        let accepted = self.always || self.accept.allows(r);
        // A client that does not take it is still told that there is something to vary.
        if !accepted && !self.accept.vary {
            return Flow::Decline;
        }
        files::run(files::waits(r), self.serve(r, accepted))
    }
}

impl Compressed {
    async fn serve<'f>(&self, r: &mut Request, accepted: bool) -> Flow<'f> {
        let mut path = Vec::with_capacity(256);
        if files::map_path(r, &mut path).is_err() {
            return refuse(r, &path);
        }
        path.extend_from_slice(b".gz");
        let found = match files::open(r, &path).await {
            Ok(found) => found,
            Err(failed) => {
                log(r, failed, &path);
                return Flow::Decline;
            }
        };
        if !self.always {
            r.response.vary_accept_encoding = self.accept.vary;
            if !accepted {
                return Flow::Decline;
            }
        }
        let Found::File(file) = found else { return Flow::Decline };
        if !file.is_regular() {
            let path = String::from_utf8_lossy(&path);
            r.log_error(Severity::Crit, format_args!("\"{path}\" is not a regular file"));
            return Flow::Deny(404);
        }
        respond(r, file);
        r.response.allow_ranges = false;
        r.response.add("Content-Encoding", bytes::Bytes::from_static(b"gzip"));
        Flow::Done
    }
}

fn log(r: &Request, failed: Failed, path: &[u8]) {
    if !failed.is_missing() {
        let severity = if failed.is_forbidden() { Severity::Error } else { Severity::Crit };
        files::log_failed(r, severity, failed, path);
    }
}
