//! `try_files`: the first of several files that is there. `ngx_http_try_files_module`.
//!
//! Not inherited, as in nginx: in a server it holds for what no location takes.
//!
//! Invariant: it looks and replaces the URI; serving is up to the content phase.

use std::sync::Arc;

use forebay_conf::{Arity, Error, Node, value};
use forebay_session::{
    log::{Severity, Shown},
    var::Template,
};

use crate::{
    client::Client,
    core::Alias,
    engine,
    files::{self, Kind},
    handler::{Flow, Handler},
    module::{self, Builder, Cx, Directive, INNER, Module, set},
    request::Request,
};

/// `try_files` of one level.
#[derive(Default)]
pub struct Conf {
    tries: Option<Arc<Tries>>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, _parent: &Self) {}
}

/// The module.
pub struct TryFiles;

impl Module for TryFiles {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_try_files_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[set(
        "try_files",
        &["file ... uri", "file ... =code"],
        "",
        INNER,
        Arity::at_least(2),
        "The files that are looked for, and where to go when there is none.",
        try_files,
    )];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if let Some(tries) = &conf.tries {
            b.precontent(Try(tries.clone()));
        }
        Ok(())
    }
}

struct Tries {
    names: Vec<Name>,
    last: Last,
}

struct Name {
    template: Template,
    /// It ended with a slash: a directory is meant.
    dir: bool,
}

enum Last {
    /// `=404`.
    Code(u16),
    /// A URI or `@name`.
    Target(Template),
}

fn try_files(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    if c.tries.is_some() {
        return Err(value::duplicate(n));
    }
    let Some((last, names)) = n.args.split_last() else { return Err(n.wrong_count()) };
    let mut parsed = Vec::with_capacity(names.len());
    for arg in names {
        let (text, dir) = match arg.value.strip_suffix(b"/") {
            Some(text) => (text, true),
            None => (&arg.value[..], false),
        };
        let template = Template::parse(text, arg.span, &mut cx.registry)?;
        parsed.push(Name { template, dir });
    }
    let last = match last.value.strip_prefix(b"=") {
        Some(code) => match value::number(code) {
            Some(code @ 0..=999) => Last::Code(code as u16),
            _ => {
                let text = format!("invalid code \"{}\"", last.lossy());
                return Err(Error::emerg(last.span, text));
            }
        },
        None => Last::Target(Template::parse(&last.value, last.span, &mut cx.registry)?),
    };
    c.tries = Some(Arc::new(Tries { names: parsed, last }));
    Ok(())
}

struct Try(Arc<Tries>);

impl Handler for Try {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        files::run(files::waits(r), || self.0.find(r))
    }
}

impl Tries {
    async fn find<'f>(&self, r: &mut Request) -> Flow<'f> {
        let alias = r.location().core.root.alias;
        let (mut name, mut path) = (Vec::with_capacity(128), Vec::with_capacity(256));
        for candidate in &self.names {
            name.clear();
            path.clear();
            write(r, &candidate.template, alias, &mut name);
            // Somewhere else than in the root there is nothing to try.
            if files::map_name(r, &name, &mut path).is_err() {
                continue;
            }
            match files::test(r, &path).await {
                Ok(kind) if (kind == Kind::Dir) == candidate.dir => {
                    take(r, &name, alias, candidate.dir);
                    return Flow::Decline;
                }
                Ok(_) => {}
                Err(failed) if failed.is_missing() => {}
                Err(files::Failed::POOL) => return Flow::Deny(500),
                Err(failed) => files::log_failed(r, Severity::Crit, failed, &path),
            }
        }
        match &self.last {
            // To nginx, this is the name of a file that there never is.
            Last::Code(0) => Flow::Deny(404),
            // DIFFERS(try-files-code): of a code that is no error, nginx leaves the client without an
            // answer.
            Last::Code(code) => Flow::Deny(*code),
            Last::Target(template) => {
                name.clear();
                write(r, template, alias, &mut name);
                go(r, &name)
            }
        }
    }
}

/// Writes a name as it is looked for: below an `alias`, without the name of the location.
fn write(r: &Request, template: &Template, alias: Option<Alias>, out: &mut Vec<u8>) {
    template.write(r, out);
    // Only what was computed loses it: nginx looks up fixed names as they are.
    if let (Some(Alias::Prefix(len)), None) = (alias, template.as_text())
        && out.len() >= len
        && r.uri.get(..len) == Some(&out[..len])
    {
        out.drain(..len);
    }
}

/// The request is for this file from now on.
fn take(r: &mut Request, name: &[u8], alias: Option<Alias>, dir: bool) {
    match alias {
        None => {
            r.uri.clear();
            r.uri.extend_from_slice(name);
        }
        Some(Alias::Prefix(len)) => {
            r.uri.truncate(len);
            r.uri.extend_from_slice(name);
        }
        Some(Alias::Whole) if dir => {}
        Some(Alias::Whole) => {
            r.uri.clear();
            r.uri.extend_from_slice(name);
            r.add_uri_to_alias = true;
        }
    }
}

/// The last parameter: another URI or a named location.
fn go<'f>(r: &mut Request, target: &[u8]) -> Flow<'f> {
    if target.first() == Some(&b'@') {
        if let Some(&id) = r.server().named.get(target) {
            return Flow::Named(id);
        }
        let name = Shown(target);
        r.log_error(Severity::Error, format_args!("could not find named location \"{name}\""));
        return Flow::Deny(500);
    }
    let (uri, args) = match memchr::memchr(b'?', target) {
        Some(at) => (&target[..at], &target[at + 1..]),
        None => (target, &[][..]),
    };
    if !engine::may_redirect(r, uri, "") {
        return Flow::Deny(500);
    }
    r.set_target(uri, Some(args));
    Flow::Redirect
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn a_code_that_is_no_error_is_answered() {
        for (code, status) in [("200", 200), ("206", 206), ("204", 204), ("0", 404), ("404", 404)] {
            let conf = format!("try_files /none ={code};");
            let mut r = testing::request(&conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            testing::answer(&mut r);
            assert_eq!(r.response.status, status, "{code}");
        }
    }
}
