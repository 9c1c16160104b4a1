//! `dav_methods`: PUT, DELETE, MKCOL, COPY and MOVE of files (`ngx_http_dav_module.c`, RFC 4918).
//!
//! Leaves out: PROPFIND and locks, as nginx does.
//!
//! Invariant: every path, that of a `Destination` too, comes from `files::map_path`, which keeps it
//! below its root.

mod tree;

use std::{fs, os::unix::fs::DirBuilderExt, path::Path};

use forebay_conf::{Arity, Error, Node, value};
use forebay_rt::errno::Errno;
use forebay_session::log::{Severity, Shown};
use forebay_wire::{
    date::parse_http_time,
    escape::{Kind, escape},
    h1::{BodyLength, FieldId, Method},
    uri::parse_unsafe,
};

use crate::{
    body_in::{self, RequestBody},
    client::Client,
    core::{Alias, BodyInFile},
    files,
    handler::{Flow, Handler},
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    request::Request,
};

/// `ngx_http_dav_module`.
pub struct Dav;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    methods: Option<u32>,
    create_full_put_path: Option<bool>,
    min_delete_depth: Option<usize>,
    access: Option<u32>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; methods, create_full_put_path, min_delete_depth, access);
    }
}

const OFF: u32 = 1;
const PUT: u32 = 1 << 1;
const DELETE: u32 = 1 << 2;
const MKCOL: u32 = 1 << 3;
const COPY: u32 = 1 << 4;
const MOVE: u32 = 1 << 5;

impl Module for Dav {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_dav_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "create_full_put_path",
            &["on | off"],
            "off",
            ANY,
            Arity::FLAG,
            "Whether PUT makes the directories that are missing.",
            |c, n, _| value::set_flag(&mut c.create_full_put_path, n),
        ),
        set(
            "dav_access",
            &["users:permissions ..."],
            "user:rw",
            ANY,
            Arity::between(1, 3),
            "The permissions of new files and directories.",
            access,
        ),
        set(
            "dav_methods",
            &["off | method ..."],
            "off",
            ANY,
            Arity::SOME,
            "Which of PUT, DELETE, MKCOL, COPY and MOVE are carried out.",
            |c, n, cx| {
                let table = [
                    ("off", OFF),
                    ("put", PUT),
                    ("delete", DELETE),
                    ("mkcol", MKCOL),
                    ("copy", COPY),
                    ("move", MOVE),
                ];
                value::set_bits(&mut c.methods, n, &table, cx.loader.diags)
            },
        ),
        set(
            "min_delete_depth",
            &["number"],
            "0",
            ANY,
            Arity::ONE,
            "How many elements a path must have for DELETE.",
            |c, n, _| value::set_number(&mut c.min_delete_depth, n),
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let methods = conf.methods.unwrap_or(OFF) & !OFF;
        if methods != 0 {
            b.content(Files {
                methods,
                create_full_put_path: conf.create_full_put_path.unwrap_or(false),
                min_delete_depth: conf.min_delete_depth.unwrap_or(0),
                access: conf.access.unwrap_or(0o600),
            });
        }
        Ok(())
    }
}

/// `ngx_conf_set_access_slot`.
fn access(conf: &mut Conf, node: &Node, _cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    value::set_once(&mut conf.access, node, |node| {
        let (mut access, mut user) = (0, 0o600);
        for arg in &node.args {
            let (shift, right) = match arg.lossy().split_once(':') {
                Some(("user", right)) => {
                    user = 0;
                    (6, right.to_owned())
                }
                Some(("group", right)) => (3, right.to_owned()),
                Some(("all", right)) => (0, right.to_owned()),
                _ => return Err(value::invalid_value(arg)),
            };
            access |= match &*right {
                "rw" => 6,
                "r" => 4,
                _ => return Err(value::invalid_value(arg)),
            } << shift;
        }
        Ok(access | user)
    })
}

struct Files {
    methods: u32,
    create_full_put_path: bool,
    min_delete_depth: usize,
    access: u32,
}

/// What a request ends with: a status, or `Done`.
type Ended<'f> = Result<Flow<'f>, u16>;

impl Handler for Files {
    fn handle<'a>(&'a self, r: &'a mut Request, client: &'a mut dyn Client) -> Flow<'a> {
        let method = match r.method {
            Method::Put => PUT,
            Method::Delete => DELETE,
            Method::Mkcol => MKCOL,
            Method::Copy => COPY,
            Method::Move => MOVE,
            _ => return Flow::Decline,
        };
        if self.methods & method == 0 || memchr::memchr(0, &r.uri).is_some() {
            return Flow::Decline;
        }
        Flow::later(move || async move {
            let ended = match method {
                PUT => self.put(r, client).await,
                DELETE => self.delete(r),
                MKCOL => self.make_collection(r),
                _ => self.copy_or_move(r).await,
            };
            ended.unwrap_or_else(Flow::Deny)
        })
    }
}

fn complain(r: &Request, text: std::fmt::Arguments<'_>, status: u16) -> u16 {
    r.log_error(Severity::Error, text);
    status
}

/// The status for a system call that failed, and its line in the log (`ngx_http_dav_error`).
pub fn failed(r: &Request, call: &str, path: &Path, error: &std::io::Error, not_found: u16) -> u16 {
    use rustix::io::Errno as Code;
    let (severity, status) = match Code::from_io_error(error) {
        Some(Code::NOENT | Code::NOTDIR | Code::NAMETOOLONG) => (Severity::Error, not_found),
        Some(Code::ACCESS | Code::PERM) => (Severity::Error, 403),
        Some(Code::EXIST) => (Severity::Error, 405),
        Some(Code::NOSPC) => (Severity::Crit, 507),
        _ => (Severity::Crit, 500),
    };
    let (path, error) = (Shown::path(path), Errno(error));
    r.log_error(severity, format_args!("{call} \"{path}\" failed ({error})"));
    status
}

/// The path of the request's file; directories end without a slash.
fn path_of(r: &Request) -> Result<Vec<u8>, u16> {
    let mut path = Vec::with_capacity(256);
    files::map_path(r, &mut path).map_err(|files::Outside| 500u16)?;
    Ok(path)
}

fn as_path(path: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(path))
}

/// A path without the slash at its end.
fn trimmed(path: &[u8]) -> &[u8] {
    match path {
        [path @ .., b'/'] if !path.is_empty() => path,
        path => path,
    }
}

/// What a directory is allowed whose files have this access (`ngx_dir_access`).
fn dir_access(access: u32) -> u32 {
    access | (access & 0o444) >> 2
}

/// Makes the directories above a path (`ngx_create_full_path`).
fn make_parents(path: &Path, access: u32) -> std::io::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    fs::DirBuilder::new().recursive(true).mode(dir_access(access)).create(parent)
}

fn has_body(r: &Request) -> bool {
    match r.input.framing.body {
        BodyLength::None => false,
        BodyLength::Length(length) => length > 0,
        BodyLength::Chunked => true,
    }
}

/// `Depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Zero,
    One,
    Infinity,
}

/// `ngx_http_dav_depth`; `None`: nonsense, which is in the log.
fn depth(r: &Request) -> Option<Depth> {
    match r.field(FieldId::Depth) {
        None | Some(b"infinity") => Some(Depth::Infinity),
        Some(b"0") => Some(Depth::Zero),
        Some(b"1") => Some(Depth::One),
        Some(other) => {
            let other = Shown(other);
            complain(r, format_args!("client sent invalid \"Depth\" header: \"{other}\""), 400);
            None
        }
    }
}

/// 201, with `Location`.
fn created<'f>(r: &mut Request) -> Ended<'f> {
    let mut location = Vec::with_capacity(r.uri.len());
    escape(Kind::Uri, &r.uri, &mut location);
    r.response.location = Some(location.into());
    Err(201)
}

impl Files {
    async fn put<'f>(&self, r: &mut Request, client: &mut dyn Client) -> Ended<'f> {
        if r.uri.ends_with(b"/") {
            return Err(complain(r, format_args!("cannot PUT to a collection"), 409));
        }
        if r.field(FieldId::ContentRange).is_some() {
            return Err(complain(r, format_args!("PUT with range is unsupported"), 501));
        }
        body_in::read_as(r, client, BodyInFile::Clean, None).await?;
        let RequestBody::File(temp) = &r.body else {
            return Err(complain(r, format_args!("PUT request body must be in a file"), 500));
        };
        let temp = temp.clone();
        let path = path_of(r)?;
        let path = as_path(&path);
        let status = match fs::metadata(path) {
            Err(_) => 201,
            Ok(stat) if !stat.is_dir() => 204,
            Ok(_) => {
                let text = format_args!(
                    "\"{}\" could not be created (21: Is a directory)",
                    Shown::path(path)
                );
                return Err(complain(r, text, 409));
            }
        };
        let date = r.field(FieldId::Date).and_then(parse_http_time);
        if let Some(date) = date.and_then(|date| u64::try_from(date).ok()) {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(date);
            // As in nginx, a time that cannot be set is told, and no more.
            if let Err(error) = temp.file.set_modified(time) {
                failed(r, "utimes()", &temp.path, &error, 500);
            }
        }
        let rename = tree::Rename {
            access: Some(self.access),
            path_access: self.access,
            create_path: self.create_full_put_path,
        };
        rename.run(r, &temp.path, path).await?;
        if status == 201 { created(r) } else { Err(status) }
    }

    fn delete<'f>(&self, r: &mut Request) -> Ended<'f> {
        if has_body(r) {
            return Err(complain(r, format_args!("DELETE with body is unsupported"), 415));
        }
        self.check_delete_depth(r)?;
        let path = path_of(r)?;
        let target = as_path(&path);
        let stat = fs::symlink_metadata(target).map_err(|error| {
            let not_dir = error.kind() == std::io::ErrorKind::NotADirectory;
            failed(r, "lstat()", target, &error, if not_dir { 409 } else { 404 })
        })?;
        if stat.is_dir() {
            if !r.uri.ends_with(b"/") {
                let text =
                    format_args!("DELETE \"{}\" failed (21: Is a directory)", Shown::path(target));
                return Err(complain(r, text, 409));
            }
            if depth(r) != Some(Depth::Infinity) {
                return Err(complain(r, format_args!("\"Depth\" header must be infinity"), 400));
            }
        } else if matches!(depth(r), None | Some(Depth::One)) {
            return Err(complain(r, format_args!("\"Depth\" header must be 0 or infinity"), 400));
        }
        tree::delete(r, as_path(trimmed(&path)), stat.is_dir())?;
        Err(204)
    }

    /// `min_delete_depth`.
    fn check_delete_depth(&self, r: &Request) -> Result<(), u16> {
        let last = r.uri.len().saturating_sub(1);
        let slashes = r.uri.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let deep = |(at, depth): (usize, usize)| depth >= self.min_delete_depth && at < last;
        let mut depths = slashes.zip(1..).map(|((at, _), depth)| (at, depth));
        if self.min_delete_depth == 0 || depths.any(deep) {
            return Ok(());
        }
        let depth = r.uri.iter().filter(|byte| **byte == b'/').count();
        Err(complain(r, format_args!("insufficient URI depth:{depth} to DELETE"), 409))
    }

    fn make_collection<'f>(&self, r: &mut Request) -> Ended<'f> {
        if has_body(r) {
            return Err(complain(r, format_args!("MKCOL with body is unsupported"), 415));
        }
        if !r.uri.ends_with(b"/") {
            return Err(complain(r, format_args!("MKCOL can create a collection only"), 409));
        }
        let path = path_of(r)?;
        let path = as_path(trimmed(&path));
        match fs::DirBuilder::new().mode(dir_access(self.access)).create(path) {
            Ok(()) => created(r),
            Err(error) => Err(failed(r, "mkdir()", path, &error, 409)),
        }
    }

    async fn copy_or_move<'f>(&self, r: &mut Request) -> Ended<'f> {
        if has_body(r) {
            return Err(complain(r, format_args!("COPY and MOVE with body are unsupported"), 415));
        }
        let destination = destination(r)?;
        let moves = r.method == Method::Move;
        match (depth(r), moves) {
            (Some(Depth::Infinity), _) | (Some(Depth::Zero), false) => {}
            (_, true) => {
                return Err(complain(r, format_args!("\"Depth\" header must be infinity"), 400));
            }
            (_, false) => {
                let text = format_args!("\"Depth\" header must be 0 or infinity");
                return Err(complain(r, text, 400));
            }
        }
        let overwrite = overwrite(r)?;
        let from = path_of(r)?;
        let own_uri = std::mem::replace(&mut r.uri, destination);
        let to = path_of(r);
        r.uri = own_uri;
        let job = Job { from, to: to?, moves, access: self.access };
        job.run(r, overwrite).await?;
        Err(if r.uri.ends_with(b"/") { 201 } else { 204 })
    }
}

/// `Overwrite`: whether what is at the destination may be replaced.
fn overwrite(r: &Request) -> Result<bool, u16> {
    match r.field(FieldId::Overwrite) {
        None | Some(b"T" | b"t") => Ok(true),
        Some(b"F" | b"f") => Ok(false),
        Some(other) => {
            let other = Shown(other);
            let text = format_args!("client sent invalid \"Overwrite\" header: \"{other}\"");
            Err(complain(r, text, 400))
        }
    }
}

/// The path of `Destination`, decoded: of this server, and of the same kind as that of the request.
fn destination(r: &Request) -> Result<Vec<u8>, u16> {
    let Some(field) = r.field(FieldId::Destination) else {
        return Err(complain(r, format_args!("client sent no \"Destination\" header"), 400));
    };
    let shown = Shown(field);
    let invalid = || {
        complain(r, format_args!("client sent invalid \"Destination\" header: \"{shown}\""), 400)
    };
    let uri = match field {
        [b'/', ..] => field,
        _ => {
            let host = &r.input.host;
            let rest = field.strip_prefix(b"http://").filter(|_| !host.is_empty());
            let rest = rest.ok_or_else(invalid)?;
            let Some(rest) = rest.strip_prefix(&host[..]) else {
                let text = format_args!(
                    "\"Destination\" URI \"{shown}\" is handled by different repository than the \
                     source URI"
                );
                return Err(complain(r, text, 400));
            };
            let slash = memchr::memchr(b'/', rest).ok_or_else(invalid)?;
            &rest[slash..]
        }
    };
    let mut path = Vec::with_capacity(uri.len());
    let safe = parse_unsafe(uri, &mut path).is_some();
    if !safe {
        let uri = Shown(if path.is_empty() { uri } else { &path });
        r.log_error(Severity::Error, format_args!("unsafe URI \"{uri}\" was detected"));
    }
    // An alias stands for the name of the location, which a path elsewhere does not begin with.
    // DIFFERS(dav-destination-in-alias): nginx cuts off as many bytes, whatever they are.
    let in_location = match r.location().core.root.alias {
        Some(Alias::Prefix(len)) => path.get(..len) == r.uri.get(..len),
        _ => true,
    };
    if !safe || !in_location || !path.starts_with(b"/") {
        return Err(invalid());
    }
    if r.uri.ends_with(b"/") != field.ends_with(b"/")
        || r.uri.ends_with(b"/") != path.ends_with(b"/")
    {
        let own = Shown(&r.uri);
        let text = format_args!(
            "both URI \"{own}\" and \"Destination\" URI \"{shown}\" should be either collections \
             or non-collections"
        );
        return Err(complain(r, text, 409));
    }
    Ok(path)
}

/// A COPY or MOVE.
struct Job {
    from: Vec<u8>,
    to: Vec<u8>,
    moves: bool,
    access: u32,
}

impl Job {
    async fn run(&self, r: &Request, overwrite: bool) -> Result<(), u16> {
        let (from, to) = (as_path(&self.from), as_path(trimmed(&self.to)));
        let there = match fs::symlink_metadata(to) {
            Ok(stat) if stat.is_dir() && !r.uri.ends_with(b"/") => {
                let (uri, method) = (Shown(&r.uri), Shown(r.method_name()));
                let to = Shown(r.field(FieldId::Destination).unwrap_or_default());
                let text = format_args!("\"{uri}\" could not be {method}ed to collection \"{to}\"");
                return Err(complain(r, text, 409));
            }
            Ok(stat) if overwrite => Some(stat),
            Ok(_) => {
                let text =
                    format_args!("\"{}\" could not be created (17: File exists)", Shown::path(to));
                return Err(complain(r, text, 412));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(r, "lstat()", to, &error, 404)),
        };
        let stat =
            fs::symlink_metadata(from).map_err(|error| failed(r, "lstat()", from, &error, 404))?;
        if stat.is_dir() && !r.uri.ends_with(b"/") {
            let uri = Shown(&r.uri);
            return Err(complain(r, format_args!("\"{uri}\" is collection"), 400));
        }
        self.refuse_self(r)?;
        if !stat.is_dir() {
            return self.file(r, from, to).await;
        }
        let from = as_path(trimmed(&self.from));
        if let Some(there) = there {
            tree::delete(r, to, there.is_dir())?;
        }
        if self.moves && fs::rename(from, to).is_ok() {
            return Ok(());
        }
        tree::copy(r, from, to).await?;
        if self.moves { tree::delete(r, from, true) } else { Ok(()) }
    }

    /// DIFFERS(dav-not-onto-itself): nginx empties a file that is copied onto itself, deletes a
    /// collection that is moved onto itself or one above it, and copies one into itself without end.
    /// RFC 4918 §9.8.5 and §9.9.4 have 403 for it.
    fn refuse_self(&self, r: &Request) -> Result<(), u16> {
        use std::os::unix::fs::MetadataExt;
        let (Ok(from), to) = (fs::canonicalize(as_path(&self.from)), self.real_destination())
        else {
            return Ok(());
        };
        let inode = |path: &Path| fs::metadata(path).ok().map(|stat| (stat.dev(), stat.ino()));
        let same = inode(&from).is_some() && inode(&from) == inode(&to);
        if same || to.starts_with(&from) || from.starts_with(&to) {
            let (from, to) = (Shown::path(&from), Shown::path(&to));
            let text = format_args!("\"{to}\" and \"{from}\" are the same or within each other");
            return Err(complain(r, text, 403));
        }
        Ok(())
    }

    /// The destination without symbolic links: of what is there already, all; of what is not, the
    /// part that is.
    fn real_destination(&self) -> std::path::PathBuf {
        let path = as_path(trimmed(&self.to));
        for above in path.ancestors() {
            if let (Ok(real), Ok(rest)) = (fs::canonicalize(above), path.strip_prefix(above)) {
                return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
            }
        }
        path.to_owned()
    }

    async fn file(&self, r: &Request, from: &Path, to: &Path) -> Result<(), u16> {
        if self.moves {
            let rename = tree::Rename { access: None, path_access: self.access, create_path: true };
            return rename.run(r, from, to).await;
        }
        tree::copy_file(r, from, to, Some(self.access)).await
    }
}

#[cfg(test)]
mod tests;
