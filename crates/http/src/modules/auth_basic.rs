//! User names and passwords (`ngx_http_auth_basic_module`, RFC 7617).
//!
//! DIFFERS(password-threads): passwords of the slow schemes are checked by threads of their own,
//! one a processor, with at most 1,024 requests waiting for one; beyond that requests are answered
//! with 503. nginx's event loop stands still meanwhile.
//!
//! Invariant: whatever goes wrong, nobody is let in.

use std::{
    io::{self, ErrorKind, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use forebay_conf::{Arity, Contexts, Error, Node, error::errno_text, value};
use forebay_rt::threads::{self, Pool};
use forebay_session::{
    log::{Severity, Shown},
    var::Template,
};
use forebay_wire::h1::FieldId;

use crate::{
    client::Client,
    credentials::{self, Credentials},
    handler::{Flow, Handler},
    inherit,
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    password,
    request::Request,
};

/// `ngx_http_auth_basic_module`.
pub struct AuthBasic;

/// What one level sets.
#[derive(Default)]
pub struct Conf {
    realm: Option<Template>,
    file: Option<File>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; realm, file);
    }
}

/// `auth_basic_user_file`.
#[derive(Clone)]
struct File {
    name: Template,
    /// What a relative name is relative to.
    prefix: PathBuf,
}

const CONTEXTS: Contexts = ANY.or(Contexts::LMT);

impl Module for AuthBasic {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_auth_basic_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "auth_basic",
            &["string | off"],
            "off",
            CONTEXTS,
            Arity::ONE,
            "Asks for a user name and a password; the text is the realm.",
            |c, n, cx| value::set_once(&mut c.realm, n, |n| template(n, cx)),
        ),
        set(
            "auth_basic_user_file",
            &["file"],
            "",
            CONTEXTS,
            Arity::ONE,
            "The file with names and hashed passwords.",
            |c, n, cx| {
                let prefix = cx.loader.conf_prefix.clone();
                value::set_once(&mut c.file, n, |n| Ok(File { name: template(n, cx)?, prefix }))
            },
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if let (Some(realm), Some(file)) = (&conf.realm, &conf.file)
            && realm.as_text() != Some(b"off")
        {
            b.access(Guard { realm: realm.clone(), file: file.clone() });
        }
        Ok(())
    }
}

fn template(node: &Node, cx: &mut Cx<'_, '_>) -> Result<Template, Error> {
    let arg = node.arg(0)?;
    Template::parse(&arg.value, arg.span, &mut cx.registry)
}

/// How many requests may wait for their password to be checked.
const MAX_WAITING: usize = 1024;

fn pool() -> &'static Arc<Pool> {
    static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
    POOL.get_or_init(|| {
        const NAME: &str = "auth_basic";
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        threads::configure(NAME, threads, MAX_WAITING);
        threads::pool(NAME)
    })
}

struct Guard {
    realm: Template,
    file: File,
}

impl Handler for Guard {
    fn handle<'a>(&'a self, r: &'a mut Request, _: &'a mut dyn Client) -> Flow<'a> {
        let realm = self.realm.value(r);
        if realm == b"off" {
            return Flow::Decline;
        }
        let Some(given) = credentials::basic(r.field(FieldId::Authorization)) else {
            let text = "no user/password was provided for basic authentication";
            r.log_error(Severity::Info, format_args!("{text}"));
            return ask(r, &realm);
        };
        let name = self.file.name.value(r);
        let path = self.file.prefix.join(Path::new(&*os(&name)));
        let content = match read(&path) {
            Ok(content) => content,
            Err((call, error)) => {
                let (severity, status) = match error.kind() {
                    ErrorKind::NotFound => (Severity::Error, 403),
                    _ => (Severity::Crit, 500),
                };
                let (path, why) = (Shown::path(&path), errno_text(&error));
                r.log_error(severity, format_args!("{call} \"{path}\" failed ({why})"));
                return Flow::Deny(status);
            }
        };
        let Some(hash) = find(&content, given.user()) else {
            let (user, path) = (shown(&given), Shown::path(&path));
            let text = format_args!("user \"{user}\" was not found in \"{path}\"");
            r.log_error(Severity::Error, text);
            return ask(r, &realm);
        };
        if !password::is_slow(hash) {
            let matches = password::matches(given.password(), hash);
            return verdict(r, &given, &realm, matches);
        }
        let (hash, password) = (hash.to_vec(), given.password().to_vec());
        match pool().run(move || password::matches(&password, &hash)) {
            Ok(task) => Flow::later(move || async move {
                match task.await {
                    Some(matches) => verdict(r, &given, &realm, matches),
                    None => Flow::Deny(500),
                }
            }),
            Err(refused) => {
                r.log_error(Severity::Error, format_args!("{refused}"));
                Flow::Deny(503)
            }
        }
    }
}

/// The file, or which call failed; the names are those that nginx's log has.
fn read(path: &Path) -> Result<Vec<u8>, (&'static str, io::Error)> {
    let mut file = std::fs::File::open(path).map_err(|error| ("open()", error))?;
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(|error| ("pread()", error))?;
    Ok(content)
}

fn os(name: &[u8]) -> std::borrow::Cow<'_, std::ffi::OsStr> {
    use std::os::unix::ffi::OsStrExt as _;
    std::ffi::OsStr::from_bytes(name).into()
}

fn shown(given: &Credentials) -> String {
    Shown(given.user()).to_string()
}

fn verdict<'a>(r: &mut Request, given: &Credentials, realm: &[u8], matches: bool) -> Flow<'a> {
    if matches {
        return Flow::Allow;
    }
    let user = shown(given);
    r.log_error(Severity::Error, format_args!("user \"{user}\": password mismatch"));
    ask(r, realm)
}

/// Answers with 401 and the realm (`ngx_http_auth_basic_set_realm`).
fn ask<'a>(r: &mut Request, realm: &[u8]) -> Flow<'a> {
    let value = [b"Basic realm=\"", realm, b"\""].concat();
    r.response.add("WWW-Authenticate", Bytes::from(value));
    Flow::Deny(401)
}

/// The hash of a user: of a line `user:hash` what follows the name, up to the next colon. Lines that
/// begin with `#` are comments.
///
/// As nginx's loop reads it: a line that ends within the name is no line of its own, and the next one
/// is passed over with it.
fn find<'f>(file: &'f [u8], user: &[u8]) -> Option<&'f [u8]> {
    let mut rest = file;
    while !rest.is_empty() {
        if rest[0] == b'\n' {
            rest = &rest[1..];
            continue;
        }
        let skip_from = match (rest[0], agreeing(rest, user)) {
            (b'#' | b'\r', _) => 0,
            (_, Agreeing::Whole(at)) => {
                let hash = &rest[at..];
                let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r' | b':');
                let end = hash.iter().position(is_end).unwrap_or(hash.len());
                return Some(&hash[..end]);
            }
            (_, Agreeing::Until(at)) => at + 1,
        };
        let line_end = memchr::memchr(b'\n', rest.get(skip_from..)?)?;
        rest = &rest[skip_from + line_end + 1..];
    }
    None
}

enum Agreeing {
    /// The name and its colon, so many bytes.
    Whole(usize),
    /// Up to this byte.
    Until(usize),
}

fn agreeing(line: &[u8], user: &[u8]) -> Agreeing {
    let wanted = user.iter().chain(b":");
    match line.iter().zip(wanted).position(|(a, b)| a != b) {
        Some(at) => Agreeing::Until(at),
        None if line.len() > user.len() => Agreeing::Whole(user.len() + 1),
        None => Agreeing::Until(line.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_in_files_as_nginx_finds_them() {
        let file = b"# comment\nann:x1\r\n\nbob:x2:a comment\n\rcr:x\nbobby:x3\nzoe:x4";
        let cases: [(&str, Option<&str>); 9] = [
            ("ann", Some("x1")),
            ("bob", Some("x2")),
            ("bobby", Some("x3")),
            ("zoe", Some("x4")),
            ("an", None),
            ("anna", None),
            ("# comment", None),
            ("cr", None),
            ("x", None),
        ];
        for (user, want) in cases {
            let found = find(file, user.as_bytes()).map(|hash| std::str::from_utf8(hash).unwrap());
            assert_eq!(found, want, "{user}");
        }
        for odd in ["", "\n", "#", "a", "ann", "ann\n", "\r"] {
            assert_eq!(find(odd.as_bytes(), b"ann"), None, "{odd:?}");
        }
        assert_eq!(find(b"ann:", b"ann"), Some(&b""[..]));
        assert_eq!(find(b"an\nann:x\n", b"ann"), None);
        assert_eq!(find(b"an\nann:x\nann:y", b"ann"), Some(&b"y"[..]));
    }
}
