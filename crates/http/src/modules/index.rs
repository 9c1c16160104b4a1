//! `index`: which file stands for a directory. `ngx_http_index_module`.
//!
//! Invariant: it only looks; serving the file is up to the location that the file's own URI leads to.

use std::sync::Arc;

use forebay_conf::{Arity, Error, Node};
use forebay_session::{
    log::{Severity, Shown},
    var::Template,
};
use forebay_wire::h1::Method;

use super::static_files::refuse;
use crate::{
    client::Client,
    engine,
    files::{self, Failed, Kind},
    handler::{Flow, Handler},
    inherit,
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    request::Request,
};

/// `index` of one level.
#[derive(Default)]
pub struct Conf {
    indices: Option<Vec<Template>>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; indices);
    }
}

/// The module.
pub struct Index;

impl Module for Index {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_index_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[set(
        "index",
        &["file ..."],
        "index.html",
        ANY,
        Arity::SOME,
        "The files that stand for a directory, in the order in which they are tried.",
        index,
    )];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let names = conf.indices.clone();
        let names = names.unwrap_or_else(|| vec![Template::text(b"index.html")]);
        b.content(IndexFiles { names: names.into() });
        Ok(())
    }
}

fn index(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let indices = c.indices.get_or_insert_default();
    for (position, arg) in n.args.iter().enumerate() {
        if arg.value.is_empty() {
            return Err(Error::emerg(
                arg.span,
                format!("index \"{}\" in \"index\" directive is invalid", arg.lossy()),
            ));
        }
        if arg.value.starts_with(b"/") && position + 1 < n.args.len() {
            let text = "only the last index in \"index\" directive should be absolute";
            cx.loader.warn(arg.span, text);
        }
        indices.push(Template::parse(&arg.value, arg.span, &mut cx.registry)?);
    }
    Ok(())
}

struct IndexFiles {
    names: Arc<[Template]>,
}

impl Handler for IndexFiles {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        if !r.uri.ends_with(b"/") {
            return Flow::Decline;
        }
        if !matches!(r.method, Method::Get | Method::Head | Method::Post) {
            return Flow::Decline;
        }
        files::run(files::waits(r), || self.find(r))
    }
}

impl IndexFiles {
    async fn find<'f>(&self, r: &mut Request) -> Flow<'f> {
        let mut path = Vec::with_capacity(256);
        if files::map_path(r, &mut path).is_err() {
            return refuse(r, &path);
        }
        let dir = path.len();
        let mut dir_tested = false;
        for template in self.names.iter() {
            path.truncate(dir);
            template.write(r, &mut path);
            if path.get(dir) == Some(&b'/') {
                let uri = path.split_off(dir);
                return redirect(r, uri);
            }
            let failed = match files::test(r, &path).await {
                Ok(_) => {
                    let uri = [&r.uri[..], &path[dir..]].concat();
                    return redirect(r, uri);
                }
                Err(failed) => failed,
            };
            if failed.is_link() {
                return Flow::Deny(403);
            }
            let is_missing = failed.code == rustix::io::Errno::NOENT;
            if failed.is_forbidden() || (failed.is_missing() && !is_missing) {
                return Flow::Deny(error(r, &path, failed));
            }
            if !dir_tested {
                if let Err(status) = test_dir(r, &path, dir).await {
                    return Flow::Deny(status);
                }
                dir_tested = true;
            }
            if !is_missing {
                files::log_failed(r, Severity::Crit, failed, &path);
                return Flow::Deny(500);
            }
        }
        Flow::Decline
    }
}

/// Goes on with the index file; the query stays (`ngx_http_internal_redirect`).
fn redirect<'f>(r: &mut Request, uri: Vec<u8>) -> Flow<'f> {
    if !engine::may_redirect(r, &uri, "") {
        return Flow::Deny(500);
    }
    r.set_path(uri);
    Flow::Redirect
}

/// Whether the directory itself is there (`ngx_http_index_test_dir`).
async fn test_dir(r: &Request, path: &[u8], dir: usize) -> Result<(), u16> {
    // The slash goes, unless it is all there is, or an `alias` without one was meant.
    let name = match path[..dir].strip_suffix(b"/") {
        Some(name) if !name.is_empty() => name,
        _ => &path[..dir],
    };
    match files::test(r, name).await {
        Ok(Kind::Dir) => Ok(()),
        Ok(_) => {
            let name = Shown(name);
            r.log_error(Severity::Alert, format_args!("\"{name}\" is not a directory"));
            Err(500)
        }
        Err(failed) if failed.is_link() => Err(403),
        Err(failed) if failed.code == rustix::io::Errno::NOENT => Err(error(r, path, failed)),
        // The file was looked for without this error, so the directory may be searched.
        Err(failed) if failed.code == rustix::io::Errno::ACCESS => Ok(()),
        Err(failed) => {
            files::log_failed(r, Severity::Crit, failed, name);
            Err(500)
        }
    }
}

/// `ngx_http_index_error`.
fn error(r: &Request, path: &[u8], failed: Failed) -> u16 {
    let (path, doing) = (Shown(path), r.main.doing.get());
    if failed.is_forbidden() {
        r.log_error(Severity::Error, format_args!("\"{path}\" is forbidden ({failed}){doing}"));
        return 403;
    }
    if r.location().core.log_not_found {
        r.log_error(Severity::Error, format_args!("\"{path}\" is not found ({failed}){doing}"));
    }
    404
}
