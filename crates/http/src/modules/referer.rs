//! Whether a request comes from a known page (`ngx_http_referer_module`).
//!
//! Invariant: nothing runs for a request that does not use `$invalid_referer`.

use std::collections::{HashMap, hash_map::Entry};

use forebay_conf::{Arg, Arity, Error, Node, value};
use forebay_session::{regex::Regex, var::Registry};
use forebay_wire::h1::FieldId;

use crate::{
    core::{self, ServerName},
    inherit,
    module::{self, Builder, Cx, Directive, INNER, Module, set},
    request::Request,
};

/// `ngx_http_referer_module`.
pub struct Referer;

/// What one level sets.
#[derive(Default)]
pub struct Conf {
    valid: Option<Valid>,
    hash_max_size: Option<u64>,
    hash_bucket_size: Option<u64>,
}

impl module::Conf for Conf {
    // DIFFERS(referer-levels): nginx adds the regular expressions of the level above to a list without.
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; valid, hash_max_size, hash_bucket_size);
    }
}

/// What a page's path must begin with; `None`: anything will do.
type Path = Option<Box<[u8]>>;

/// `valid_referers`.
#[derive(Clone, Default)]
struct Valid {
    none: bool,
    blocked: bool,
    server_names: bool,
    exact: HashMap<Box<[u8]>, Path>,
    /// `*.example.com` by `.example.com`.
    suffixes: HashMap<Box<[u8]>, Path>,
    /// `www.example.*` by `www.example.`.
    prefixes: HashMap<Box<[u8]>, Path>,
    /// Matched with host and path, as they came.
    regexes: Vec<Regex>,
    /// Of `server_name`: matched with the host.
    host_regexes: Vec<Regex>,
    /// Where it stands.
    span: forebay_conf::Span,
}

impl Module for Referer {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_referer_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "valid_referers",
            &["none | blocked | server_names | string ..."],
            "",
            INNER,
            Arity::SOME,
            "The pages that links may stand on.",
            valid_referers,
        ),
        set(
            "referer_hash_bucket_size",
            &["size"],
            "64",
            INNER,
            Arity::ONE,
            "Accepted; tables here have no size to set.",
            |c, n, _| value::set_number(&mut c.hash_bucket_size, n),
        ),
        set(
            "referer_hash_max_size",
            &["size"],
            "2048",
            INNER,
            Arity::ONE,
            "Accepted; tables here have no size to set.",
            |c, n, _| value::set_number(&mut c.hash_max_size, n),
        ),
    ];

    fn variables(registry: &mut Registry<Request>) {
        registry.kept("invalid_referer", |r, out| {
            let valid = r.location().setting();
            if valid.is_some_and(|valid: &Valid| !valid.accepts(r.field(FieldId::Referer))) {
                out.push(b'1');
            }
            true
        });
        registry.replaceable(|name| name == "invalid_referer");
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let Some(valid) = &conf.valid else { return Ok(()) };
        let mut valid = valid.clone();
        if valid.server_names {
            let names = b.level::<core::Conf>(b.location.id).map(|core| core.own.names.clone());
            valid.add_server_names(&names.unwrap_or_default())?;
        }
        let has_names =
            !(valid.exact.is_empty() && valid.suffixes.is_empty() && valid.prefixes.is_empty());
        if (valid.none || valid.blocked) && !has_names {
            let text = "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive without any valid referer";
            return Err(Error::global(text));
        }
        b.keep(valid);
        Ok(())
    }
}

fn valid_referers(conf: &mut Conf, node: &Node, _: &mut Cx<'_, '_>) -> Result<(), Error> {
    let valid = conf.valid.get_or_insert_default();
    valid.span = node.span;
    for arg in &node.args {
        match &*arg.value {
            b"" => return Err(Error::emerg(arg.span, "invalid referer \"\"")),
            b"none" => valid.none = true,
            b"blocked" => valid.blocked = true,
            b"server_names" => valid.server_names = true,
            [b'~'] => return Err(Error::emerg(arg.span, "empty regex in \"~\"")),
            [b'~', pattern @ ..] => valid.regexes.push(Regex::compile(pattern, true, arg.span)?),
            page => valid.add(arg, page)?,
        }
    }
    Ok(())
}

impl Valid {
    fn add(&mut self, arg: &Arg, page: &[u8]) -> Result<(), Error> {
        let (name, path) = match memchr::memchr(b'/', page) {
            Some(at) => (&page[..at], Some(page[at..].into())),
            None => (page, None),
        };
        let fail = |what: &str| {
            let name = String::from_utf8_lossy(name);
            Error::emerg(arg.span, format!("{what} \"{name}\""))
        };
        let name = name.to_ascii_lowercase();
        let stars = name.iter().filter(|byte| **byte == b'*').count();
        let dots = memchr::memmem::find(&name, b"..").is_some();
        let is_new = match (&name[..], stars) {
            _ if dots => return Err(fail("invalid hostname or wildcard")),
            ([b'.', rest @ ..], 0) if !rest.is_empty() => {
                insert(&mut self.exact, rest, &path) && insert(&mut self.suffixes, &name, &path)
            }
            ([b'*', suffix @ ..], 1) if suffix.first() == Some(&b'.') && suffix.len() > 1 => {
                insert(&mut self.suffixes, suffix, &path)
            }
            ([prefix @ .., b'*'], 1) if prefix.last() == Some(&b'.') && prefix.len() > 1 => {
                insert(&mut self.prefixes, prefix, &path)
            }
            (name, 0) => insert(&mut self.exact, name, &path),
            _ => return Err(fail("invalid hostname or wildcard")),
        };
        if is_new { Ok(()) } else { Err(fail("conflicting parameter")) }
    }

    fn add_server_names(&mut self, names: &[ServerName]) -> Result<(), Error> {
        // A server without names has the empty one.
        let unnamed = [ServerName::Exact(Box::default())];
        for name in if names.is_empty() { &unnamed[..] } else { names } {
            let (table, name) = match name {
                ServerName::Exact(name) => (&mut self.exact, name),
                ServerName::Suffix(name) => (&mut self.suffixes, name),
                ServerName::Prefix(name) => (&mut self.prefixes, name),
                ServerName::Regex(regex, _) => {
                    self.host_regexes.push(regex.clone());
                    continue;
                }
                ServerName::Invalid(_) => continue,
            };
            if !insert(table, name, &None) {
                let name = String::from_utf8_lossy(name);
                let text = format!("conflicting parameter \"{name}\"");
                return Err(Error::emerg(self.span, text));
            }
        }
        Ok(())
    }

    /// Whether a page may link here (`ngx_http_referer_variable`).
    fn accepts(&self, referer: Option<&[u8]>) -> bool {
        let Some(referer) = referer else { return self.none };
        // As in nginx, a page has at least this many bytes: "http://i.ru".
        let is_long = referer.len() >= 11;
        let Some(page) = without_scheme(referer).filter(|_| is_long) else { return self.blocked };
        let end = memchr::memchr2(b'/', b':', page).unwrap_or(page.len());
        if end > 256 {
            return false;
        }
        let host = page[..end].to_ascii_lowercase();
        if let Some(path) = self.find(&host) {
            let rest = &page[end..];
            let rest = memchr::memchr(b'/', rest).map_or(&b""[..], |at| &rest[at..]);
            return path.as_ref().is_none_or(|path| rest.starts_with(path));
        }
        self.host_regexes.iter().any(|regex| regex.is_match(&host))
            || self.regexes.iter().any(|regex| regex.is_match(page))
    }

    /// The exact name, the longest wildcard in front, the longest behind.
    fn find(&self, host: &[u8]) -> Option<&Path> {
        if let Some(path) = self.exact.get(host) {
            return Some(path);
        }
        let mut dots = memchr::memchr_iter(b'.', host);
        if !self.suffixes.is_empty()
            && let Some(path) = dots.find_map(|at| self.suffixes.get(&host[at..]))
        {
            return Some(path);
        }
        if self.prefixes.is_empty() {
            return None;
        }
        let mut dots = memchr::memrchr_iter(b'.', host);
        dots.find_map(|at| self.prefixes.get(&host[..=at]))
    }
}

fn insert(table: &mut HashMap<Box<[u8]>, Path>, name: &[u8], path: &Path) -> bool {
    match table.entry(name.into()) {
        Entry::Occupied(_) => false,
        Entry::Vacant(entry) => {
            entry.insert(path.clone());
            true
        }
    }
}

fn without_scheme(referer: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], b"https://"].iter().find_map(|scheme| {
        let (given, rest) = referer.split_at_checked(scheme.len())?;
        given.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn hostile_referers_are_invalid_and_take_linear_time() {
        let conf = "valid_referers *.example.com www.* ~\\.ok\\.;";
        let dots = format!("http://{}", "a.".repeat(1 << 19));
        let path = format!("http://x/{}", "a/".repeat(1 << 19));
        for referer in
            ["http://", "http:// ", "http://\u{e9}", "https://:::::::", &dots, &path, "x"]
        {
            let r =
                testing::request(conf, &format!("GET / HTTP/1.1\r\nReferer: {referer}\r\n\r\n"));
            let valid: &Valid = r.location().setting().unwrap();
            assert!(!valid.accepts(r.field(FieldId::Referer)));
        }
    }

    #[test]
    fn wrong_directives_have_nginx_texts() {
        let cases = [
            ("valid_referers \"\";", "invalid referer \"\""),
            ("valid_referers a*b;", "invalid hostname or wildcard \"a*b\""),
            ("valid_referers a.com a.com/x;", "conflicting parameter \"a.com\""),
            ("valid_referers ~;", "empty regex in \"~\""),
            ("valid_referers none;", "without any valid referer"),
        ];
        for (conf, want) in cases {
            let error = testing::conf_error(&format!("server {{ listen 127.0.0.1:1; {conf} }}"));
            assert!(error.contains(want), "{conf}: {error}");
        }
    }

    #[test]
    fn nothing_is_kept_where_nothing_is_configured() {
        let r = testing::request("", "GET / HTTP/1.1\r\n\r\n");
        assert!(r.location().setting::<Valid>().is_none());
    }
}
