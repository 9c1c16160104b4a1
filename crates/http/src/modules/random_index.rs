//! A random file of a directory as its index (`ngx_http_random_index_module`).
//!
//! Invariant: files whose names begin with a dot are never chosen.

use std::{
    ffi::OsStr,
    hash::{BuildHasher, RandomState},
    os::unix::ffi::OsStrExt as _,
};

use forebay_conf::{Arity, Contexts, Error, value};
use forebay_session::log::Severity;
use forebay_wire::h1::Method;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, openat, stat},
    io::Errno,
};

use super::static_files::refuse;
use crate::{
    client::Client,
    engine,
    files::{self, Call, Failed},
    handler::{Flow, Handler},
    inherit,
    module::{self, Builder, Directive, Module, set},
    request::Request,
};

/// `ngx_http_random_index_module`.
pub struct RandomIndex;

/// What one level sets.
#[derive(Default)]
pub struct Conf {
    enabled: Option<bool>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; enabled);
    }
}

impl Module for RandomIndex {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_random_index_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[set(
        "random_index",
        &["on | off"],
        "off",
        Contexts::LOCATION,
        Arity::FLAG,
        "Whether a random file is the index of a directory.",
        |c, n, _| value::set_flag(&mut c.enabled, n),
    )];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if conf.enabled == Some(true) {
            b.content(Chooser);
        }
        Ok(())
    }
}

struct Chooser;

impl Handler for Chooser {
    fn handle<'a>(&'a self, r: &'a mut Request, _: &'a mut dyn Client) -> Flow<'a> {
        if !r.uri.ends_with(b"/") || !matches!(r.method, Method::Get | Method::Head | Method::Post)
        {
            return Flow::Decline;
        }
        files::run(files::waits(r), || choose(r))
    }
}

async fn choose<'f>(r: &mut Request) -> Flow<'f> {
    let mut path = Vec::with_capacity(256);
    if files::map_path(r, &mut path).is_err() {
        return refuse(r, &path);
    }
    if path.len() > 1 {
        // Without the slash, in messages too.
        path.pop();
    }
    let dir = path.clone();
    let names = match files::inline_or_pool(r, move || read(&dir)).await {
        Ok(Ok(names)) => names,
        Ok(Err(failed)) => return report(r, &path, failed),
        Err(_) => return Flow::Deny(500),
    };
    // Each state has keys of its own, which is all the chance that is needed.
    let chance = RandomState::new().hash_one(names.len());
    let Some(name) = names.get((chance % names.len().max(1) as u64) as usize) else {
        return Flow::Decline;
    };
    let uri = [&r.uri[..], name].concat();
    if !engine::may_redirect(r, &uri, "") {
        return Flow::Deny(500);
    }
    r.set_path(uri);
    Flow::Redirect
}

fn report<'f>(r: &Request, path: &[u8], failed: Failed) -> Flow<'f> {
    let (severity, status) = match failed.code {
        _ if failed.call != Call::OpenDir => (Severity::Crit, 500),
        _ if failed.is_missing() => (Severity::Error, 404),
        Errno::ACCESS => (Severity::Error, 403),
        _ => (Severity::Crit, 500),
    };
    files::log_failed(r, severity, failed, path);
    Flow::Deny(status)
}

/// The names of the regular files of a directory.
fn read(path: &[u8]) -> Result<Vec<Box<[u8]>>, Failed> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = openat(CWD, path, flags, Mode::empty()).and_then(rustix::fs::Dir::new);
    let dir = open.map_err(|code| Failed { call: Call::OpenDir, code })?;
    let mut names = Vec::new();
    for item in dir {
        let item = item.map_err(|code| Failed { call: Call::ReadDir, code })?;
        let name = item.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        let is_file = match item.file_type() {
            FileType::RegularFile => true,
            FileType::Symlink | FileType::Unknown => {
                let full = [path, b"/", name].concat();
                stat(OsStr::from_bytes(&full)).is_ok_and(|found| {
                    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
                })
            }
            _ => false,
        };
        if is_file {
            names.push(name.into());
        }
    }
    Ok(names)
}
