//! `autoindex`: lists directories. `ngx_http_autoindex_module`, to the byte.
//!
//! The formats are in `listing`.

mod listing;

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use bytes::Bytes;
use forebay_conf::{
    Arity, Error,
    value::{set_enum, set_flag},
};
use forebay_session::log::{Severity, Shown};
use forebay_wire::h1::Method;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, lstat, openat, stat},
    io::Errno as Code,
};

use self::listing::{Entry, Format};
use super::{charset::pages_are_utf8, static_files::refuse};
use crate::{
    body::Body,
    client::Client,
    files::{self, Call, Failed},
    handler::{Flow, Handler},
    inherit,
    module::{self, ANY, Builder, Directive, Module, set},
    request::Request,
};

/// The longest name of a callback, bytes.
const MAX_CALLBACK: usize = 128;

/// The settings of one level.
#[derive(Clone, Default)]
pub struct Conf {
    enabled: Option<bool>,
    localtime: Option<bool>,
    exact_size: Option<bool>,
    format: Option<Format>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; enabled, localtime, exact_size, format);
    }
}

/// The module.
pub struct Autoindex;

impl Module for Autoindex {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_autoindex_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "autoindex",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether a directory without an index file is listed.",
            |c, n, _| set_flag(&mut c.enabled, n),
        ),
        set(
            "autoindex_exact_size",
            &["on | off"],
            "on",
            ANY,
            Arity::FLAG,
            "Whether HTML listings show exact sizes, not kilobytes and so on.",
            |c, n, _| set_flag(&mut c.exact_size, n),
        ),
        set(
            "autoindex_format",
            &["html | xml | json | jsonp"],
            "html",
            ANY,
            Arity::ONE,
            "The format of the listing.",
            |c, n, _| set_enum(&mut c.format, n, Format::NAMES),
        ),
        set(
            "autoindex_localtime",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether HTML listings show local times, not UTC.",
            |c, n, _| set_flag(&mut c.localtime, n),
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if conf.enabled == Some(true) {
            b.content(Lister {
                localtime: conf.localtime.unwrap_or(false),
                exact_size: conf.exact_size.unwrap_or(true),
                format: conf.format.unwrap_or_default(),
            });
        }
        Ok(())
    }
}

struct Lister {
    localtime: bool,
    exact_size: bool,
    format: Format,
}

impl Handler for Lister {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        if !r.uri.ends_with(b"/") || !matches!(r.method, Method::Get | Method::Head) {
            return Flow::Decline;
        }
        files::run(files::waits(r), || self.list(r))
    }
}

impl Lister {
    async fn list<'f>(&self, r: &mut Request) -> Flow<'f> {
        let mut path = Vec::with_capacity(256);
        if files::map_path(r, &mut path).is_err() {
            return refuse(r, &path);
        }
        if path.len() > 1 {
            // Without the slash, in messages too.
            path.pop();
        }
        let callback = match self.format {
            Format::Jsonp => match callback(r) {
                Ok(callback) => callback,
                Err(status) => return Flow::Deny(status),
            },
            _ => None,
        };
        let dir = path.clone();
        let entries = match files::inline_or_pool(r, move || read(&dir)).await {
            Ok(Ok(entries)) => entries,
            Ok(Err(problem)) => return Flow::Deny(problem.report(r, &path)),
            Err(_) => return Flow::Deny(500),
        };
        for (name, failed) in &entries.skipped {
            files::log_failed(r, Severity::Crit, *failed, name);
        }
        self.respond(r, &entries.listed, callback.as_deref());
        Flow::Done
    }

    fn respond(&self, r: &mut Request, entries: &[Entry], callback: Option<&[u8]>) {
        let mut out = Vec::with_capacity(1024 + 160 * entries.len());
        let content_type = match self.format {
            Format::Html => {
                let in_utf8 = pages_are_utf8(r);
                let (exact, offset) = (self.exact_size, self.offset());
                listing::html(&mut out, &r.uri, entries, exact, offset, in_utf8);
                "text/html"
            }
            Format::Xml => {
                r.response.charset = Some(Bytes::from_static(b"utf-8"));
                listing::xml(&mut out, entries);
                "text/xml"
            }
            Format::Json | Format::Jsonp => {
                listing::json(&mut out, entries, callback);
                if callback.is_some() { "application/javascript" } else { "application/json" }
            }
        };
        let response = &mut r.response;
        response.status = 200;
        response.content_type = Some(Bytes::from_static(content_type.as_bytes()));
        // nginx sends the head before it knows the length; clients see the same framing here.
        response.content_length = None;
        response.body = Body::Bytes(out.into());
    }

    /// Seconds to add to the times shown: today's difference from UTC, as in nginx.
    fn offset(&self) -> i64 {
        if !self.localtime {
            return 0;
        }
        let now = (forebay_rt::clock::wall_ms() / 1000) as i64;
        i64::from(forebay_rt::clock::local_time(now).offset_minutes) * 60
    }
}

/// The function that JSONP calls; `None`: plain JSON is meant
/// (`ngx_http_autoindex_jsonp_callback`).
fn callback(r: &Request) -> Result<Option<Box<[u8]>>, u16> {
    let Some(name) = crate::variables::argument(&r.args, b"callback") else { return Ok(None) };
    let shown = Shown(name);
    if name.len() > MAX_CALLBACK {
        r.log_error(
            Severity::Info,
            format_args!("client sent too long callback name: \"{shown}\""),
        );
        return Err(400);
    }
    if !name.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')) {
        r.log_error(Severity::Info, format_args!("client sent invalid callback name: \"{shown}\""));
        return Err(400);
    }
    Ok((!name.is_empty()).then(|| name.into()))
}

struct Entries {
    listed: Vec<Entry>,
    /// What may not be looked at: left out, and logged.
    skipped: Vec<(Vec<u8>, Failed)>,
}

/// Why there is no listing.
enum Problem {
    /// The directory cannot be opened.
    Open(Failed),
    /// It, or what stands in it, cannot be read.
    Read(Vec<u8>, Failed),
}

impl Problem {
    fn report(&self, r: &Request, path: &[u8]) -> u16 {
        let (severity, status, failed, path) = match self {
            Problem::Open(failed) if failed.is_missing() => (Severity::Error, 404, failed, path),
            Problem::Open(failed) if failed.code == Code::ACCESS => {
                (Severity::Error, 403, failed, path)
            }
            Problem::Open(failed) => (Severity::Crit, 500, failed, path),
            // DIFFERS(autoindex-read-error): nginx has sent the head by now and breaks the
            // connection; here it is a 500.
            Problem::Read(name, failed) => (Severity::Crit, 500, failed, &name[..]),
        };
        files::log_failed(r, severity, *failed, path);
        status
    }
}

/// Reads a directory: directories first, then by name; names that begin with a dot are left out.
fn read(path: &[u8]) -> Result<Entries, Problem> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = openat(CWD, path, flags, Mode::empty()).and_then(rustix::fs::Dir::new);
    let dir = open.map_err(|code| Problem::Open(Failed { call: Call::OpenDir, code }))?;
    let mut entries = Entries { listed: Vec::new(), skipped: Vec::new() };
    for item in dir {
        let item = item
            .map_err(|code| Problem::Read(path.to_vec(), Failed { call: Call::ReadDir, code }))?;
        let name = item.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        let full = [path, b"/", name].concat();
        match describe(&full) {
            Ok((file_type, size, modified)) => {
                let name = name.into();
                entries.listed.push(Entry { name, file_type, size, modified });
            }
            Err(failed) if failed.code == Code::ACCESS && failed.call == Call::Stat => {
                entries.skipped.push((full, failed));
            }
            Err(failed) => return Err(Problem::Read(full, failed)),
        }
    }
    entries.listed.sort_by(|a, b| {
        let is_dir = |entry: &Entry| entry.file_type == FileType::Directory;
        is_dir(b).cmp(&is_dir(a)).then_with(|| a.name.cmp(&b.name))
    });
    Ok(entries)
}

/// What a name stands for; a link that leads nowhere stands for itself.
fn describe(path: &[u8]) -> Result<(FileType, u64, i64), Failed> {
    let path = OsStr::from_bytes(path);
    let found = match stat(path) {
        Err(Code::NOENT | Code::LOOP) => {
            lstat(path).map_err(|code| Failed { call: Call::Lstat, code })?
        }
        found => found.map_err(|code| Failed { call: Call::Stat, code })?,
    };
    let size = u64::try_from(found.st_size).unwrap_or(0);
    Ok((FileType::from_raw_mode(found.st_mode), size, found.st_mtime))
}
