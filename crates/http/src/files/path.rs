//! From a URI to a path, and the proof that the path stays where the configuration put it.
//!
//! Answers nginx's `ngx_http_map_uri_to_path`, `ngx_http_variable_document_root` and `_realpath_root`.
//!
//! Invariant: no system call but for `$realpath_root`.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use forebay_rt::errno::Errno;
use forebay_session::{
    log::{Severity, Shown},
    var::{Piece, Template},
};

use crate::{core::Alias, request::Request};

/// The path would lead out of its root, or holds a NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside;

/// Writes the path of the file that a request's URI stands for at the end of `out`.
///
/// DIFFERS(alias-stays-inside): nginx joins the alias and the rest of the URI and opens whatever
/// comes out, so that `location /img { alias /data/img/; }` gives away `/data/x` as `/img../x`.
/// Here a URI never leads above its root or alias, and never stands for less than its whole (NUL):
/// the answer is 404.
///
/// An `alias` has no path for a URI that was rewritten since the location was chosen.
pub fn map_path(r: &Request, out: &mut Vec<u8>) -> Result<(), Outside> {
    if is_alias_lost(r) {
        return Err(Outside);
    }
    map_name(r, rest_of_uri(r), out)
}

/// Whether nobody can tell what of the URI the `alias` stands for. The log is told
/// (`ngx_http_map_uri_to_path`) by [`tell_alias_is_lost`].
pub fn is_alias_lost(r: &Request) -> bool {
    r.rewritten_in_place && r.location().core.root.alias.is_some()
}

/// Says so.
#[cold]
pub fn tell_alias_is_lost(r: &Request) {
    let name = Shown(&r.location().name);
    let doing = r.main.doing.get();
    r.log_error(
        Severity::Alert,
        format_args!(
            "\"alias\" cannot be used in location \"{name}\" where URI was rewritten{doing}"
        ),
    );
}

/// The path of a name in the root or alias.
pub fn map_name(r: &Request, name: &[u8], out: &mut Vec<u8>) -> Result<(), Outside> {
    let start = out.len();
    let root = &r.location().core.root;
    document_root(r, out);
    let split = out.len() - start;
    out.extend_from_slice(name);
    check(&out[start..], split, literal_len(&root.path))
}

/// What of the URI is looked for below the root.
fn rest_of_uri(r: &Request) -> &[u8] {
    match r.location().core.root.alias {
        None => &r.uri,
        Some(Alias::Prefix(len)) => r.uri.get(len..).unwrap_or_default(),
        Some(Alias::Whole) if r.add_uri_to_alias => &r.uri,
        Some(Alias::Whole) => &[],
    }
}

/// `$document_root`: the `root` or `alias` with its variables filled in.
pub fn document_root(r: &Request, out: &mut Vec<u8>) {
    let start = out.len();
    let path = &r.location().core.root.path;
    path.write(r, out);
    if out.get(start) != Some(&b'/') && path.as_text().is_none() {
        // `ngx_get_full_name`: relative to the prefix. Without variables it is full, or that of `/`.
        let prefix = &r.plan.prefix;
        out.splice(start..start, prefix.iter().copied().chain([b'/']));
    }
}

/// `$request_filename`: the path as it would be opened, whether or not it may be.
pub fn request_filename(r: &Request, out: &mut Vec<u8>) {
    document_root(r, out);
    out.extend_from_slice(rest_of_uri(r));
}

/// `$realpath_root`: the root with its symbolic links resolved; `false`: there is no such directory.
pub fn realpath_root(r: &Request, out: &mut Vec<u8>) -> bool {
    let mut root = Vec::new();
    document_root(r, &mut root);
    if root.is_empty() {
        root.push(b'/');
    }
    match std::fs::canonicalize(OsStr::from_bytes(&root)) {
        Ok(path) => {
            out.extend_from_slice(path.as_os_str().as_bytes());
            true
        }
        Err(error) => {
            let root = Shown(&root);
            let error = Errno(&error);
            r.log_error(Severity::Crit, format_args!("realpath() \"{root}\" failed ({error})"));
            false
        }
    }
}

/// The path for messages.
pub fn shown_path(r: &Request) -> String {
    let mut path = Vec::new();
    request_filename(r, &mut path);
    Shown(&path).to_string()
}

/// Whether a path that a template has written stays below what the template fixes at its beginning.
pub fn check_written(template: &Template, path: &[u8]) -> Result<(), Outside> {
    check(path, literal_len(template).unwrap_or(0), None)
}

/// How much of a path is fixed by the configuration; `None`: all of it.
fn literal_len(path: &Template) -> Option<usize> {
    if path.as_text().is_some() {
        return None;
    }
    match path.pieces().next() {
        Some(Piece::Text(text)) => Some(text.len()),
        _ => Some(0),
    }
}

/// Whether the path leaves neither the part that the configuration fixed nor the root that came out. Nearly
/// all are seen at once to have no `..` and no NUL.
fn check(path: &[u8], root: usize, literal: Option<usize>) -> Result<(), Outside> {
    let suspect = |at: usize| path[at] == 0 || path.get(at + 1) == Some(&b'.');
    if !memchr::memchr2_iter(0, b'.', path).any(suspect) {
        return Ok(());
    }
    if memchr::memchr(0, path).is_some() {
        return Err(Outside);
    }
    let root_holds = stays_below(path, root);
    let literal_holds = literal.is_none_or(|literal| stays_below(path, literal));
    if root_holds && literal_holds { Ok(()) } else { Err(Outside) }
}

/// Whether what follows `base` bytes of the path never climbs above them. A name that `base` cuts in
/// two (`/data/img` and `..x`) belongs to what follows.
fn stays_below(path: &[u8], base: usize) -> bool {
    let base = base.min(path.len());
    let whole = path[..base].ends_with(b"/") || matches!(path.get(base), None | Some(b'/'));
    let start = if whole {
        base
    } else {
        memchr::memrchr(b'/', &path[..base]).map_or(0, |slash| slash + 1)
    };
    let rest = &path[start..];
    let mut depth = 0_i32;
    for name in rest.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < 0 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(root: &str, rest: &str, literal: Option<usize>) -> bool {
        check(format!("{root}{rest}").as_bytes(), root.len(), literal).is_ok()
    }

    #[test]
    fn a_path_never_climbs_above_its_root() {
        let table = [
            ("/data", "/a/b", true),
            ("/data", "/../b", false),
            ("/data", "/a/../b", true),
            ("/data", "/a/../../b", false),
            ("/data", "/..", false),
            ("/data", "/...", true),
            ("/data", "/..a/b..", true),
            ("/data/img/", "../x", false),
            ("/data/img/", "..", false),
            ("/data/img/", "./../x", false),
            ("/data/img/", "..x", true),
            ("/data/img/", "a/../b", true),
            ("/data/img", "../x", true),
            ("/data/img", "/../x", false),
            ("/data/img", "/../../x", false),
            ("/data/img", "/a\0b", false),
            ("/", "../etc", false),
        ];
        for (root, rest, good) in table {
            assert_eq!(verdict(root, rest, None), good, "{root} {rest}");
        }
    }

    #[test]
    fn captures_never_climb_above_the_literal_part_of_an_alias() {
        let table = [
            ("/data/img/../x", "/data/img/".len(), false),
            ("/data/img../x", "/data/img".len(), true),
            ("/data/img/a/../x", "/data/img/".len(), true),
            ("/any/../../x", 0, false),
            ("/any/../x", 0, true),
        ];
        for (root, literal, good) in table {
            assert_eq!(verdict(root, "", Some(literal)), good, "{root}");
        }
    }
}
