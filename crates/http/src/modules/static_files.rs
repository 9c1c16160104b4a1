//! Serves files: `ngx_http_static_module`, which has no directives.
//!
//! Hot path: a file in memory costs no allocation.
//!
//! Invariant: paths come from `files::map_path` only, which keeps them below their root.

use std::{cell::RefCell, rc::Rc};

use bytes::Bytes;
use forebay_conf::Error;
use forebay_session::log::{Severity, Shown};
use forebay_wire::{
    escape::{Kind, escape},
    h1::Method,
};

use crate::{
    body::{Body, FileSlice},
    client::Client,
    files::{self, Failed, Found, OpenFile},
    handler::{Flow, Handler},
    module::{self, Builder, Directive, Module},
    request::Request,
};

/// No settings.
#[derive(Default)]
pub struct Conf;

impl module::Conf for Conf {
    fn inherit(&mut self, _parent: &Self) {}
}

/// The module.
pub struct StaticFiles;

impl Module for StaticFiles {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_static_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[];

    fn build(_conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        b.content(Static);
        Ok(())
    }
}

struct Static;

thread_local! {
    static PATH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Handler for Static {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        if !matches!(r.method, Method::Get | Method::Head | Method::Post) {
            return Flow::Deny(405);
        }
        if r.uri.ends_with(b"/") {
            return Flow::Decline;
        }
        files::run(files::waits(r), || serve(r))
    }
}

async fn serve<'f>(r: &mut Request) -> Flow<'f> {
    // Taken away and put back, for the thread may serve others while it waits.
    let mut path = PATH.take();
    path.clear();
    let flow = match files::map_path(r, &mut path) {
        Ok(()) => {
            let opened = files::open(r, &path).await;
            answer(r, &path, opened)
        }
        Err(files::Outside) => refuse(r, &path),
    };
    PATH.set(path);
    flow
}

/// The answer to a path that leads out of its root.
pub fn refuse<'f>(r: &Request, path: &[u8]) -> Flow<'f> {
    if files::is_alias_lost(r) {
        files::tell_alias_is_lost(r);
        return Flow::Deny(500);
    }
    let path = Shown(path);
    r.log_error(Severity::Error, format_args!("\"{path}\" leads out of its root"));
    Flow::Deny(404)
}

fn answer<'f>(r: &mut Request, path: &[u8], opened: Result<Found, Failed>) -> Flow<'f> {
    match opened {
        Err(failed) => Flow::Deny(status_of(r, path, failed)),
        Ok(Found::Dir) => {
            r.response.location = Some(with_slash(&r.uri, &r.args));
            Flow::Deny(301)
        }
        Ok(Found::File(file)) if !file.is_regular() => {
            let path = Shown(path);
            r.log_error(Severity::Crit, format_args!("\"{path}\" is not a regular file"));
            Flow::Deny(404)
        }
        Ok(Found::File(_)) if r.method == Method::Post => Flow::Deny(405),
        Ok(Found::File(file)) => {
            respond(r, file);
            Flow::Done
        }
    }
}

/// The status for a file that cannot be opened, and the log line.
pub fn status_of(r: &Request, path: &[u8], failed: Failed) -> u16 {
    let (severity, status) = match () {
        () if failed.is_missing() => (Severity::Error, 404),
        () if failed.is_forbidden() => (Severity::Error, 403),
        () => (Severity::Crit, 500),
    };
    if status != 404 || r.location().core.log_not_found {
        files::log_failed(r, severity, failed, path);
    }
    status
}

/// Makes `r.response` the whole of a file, with its validators and its type.
pub fn respond(r: &mut Request, file: Rc<OpenFile>) {
    r.main.doing.set(" while sending response to client");
    let content_type = files::content_type(r);
    let etag = r.location().core.etag;
    let response = &mut r.response;
    response.status = 200;
    response.content_length = Some(file.size);
    response.last_modified = Some(file.modified);
    response.content_type = Some(content_type).filter(|known| !known.is_empty());
    response.allow_ranges = true;
    if etag {
        response.add("ETag", file.etag.clone());
    }
    response.body = match file.size {
        0 => Body::Empty,
        size => Body::File(FileSlice { file, start: 0, end: size }),
    };
}

/// Where a directory is, for somebody who asked without the slash at its end.
fn with_slash(uri: &[u8], args: &[u8]) -> Bytes {
    let mut location = Vec::with_capacity(uri.len() + args.len() + 2);
    escape(Kind::Uri, uri, &mut location);
    location.push(b'/');
    if !args.is_empty() {
        location.push(b'?');
        location.extend_from_slice(args);
    }
    location.into()
}
