//! Links that are valid for those who know a secret, or for a time (`ngx_http_secure_link_module`).
//!
//! Invariant: a link is good only when its hash is that of the configured text; how long the comparison
//! takes does not tell how much of a hash is right.

use forebay_conf::{Arity, Error, Node, value};
use forebay_rt::clock;
use forebay_session::var::{Registry, Template};
use forebay_wire::base64::{self, Alphabet};
use md5::{Digest as _, Md5};

use crate::{
    inherit,
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    password::same,
    request::Request,
};

/// `ngx_http_secure_link_module`.
pub struct SecureLink;

/// What one level sets.
#[derive(Default)]
pub struct Conf {
    link: Option<Template>,
    md5: Option<Template>,
    secret: Option<Box<[u8]>>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        if self.secret.is_some() {
            return;
        }
        inherit!(self, parent; link, md5);
        // The way of links that this level chose is the only one it has.
        if self.link.is_none() && self.md5.is_none() {
            inherit!(self, parent; secret);
        }
    }
}

impl Module for SecureLink {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_secure_link_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "secure_link",
            &["expression"],
            "",
            ANY,
            Arity::ONE,
            "Where hash and expiry of a link stand: \"hash,seconds\".",
            |c, n, cx| value::set_once(&mut c.link, n, |n| template(n, cx)),
        ),
        set(
            "secure_link_md5",
            &["expression"],
            "",
            ANY,
            Arity::ONE,
            "The text whose MD5 hash a good link has.",
            |c, n, cx| value::set_once(&mut c.md5, n, |n| template(n, cx)),
        ),
        set(
            "secure_link_secret",
            &["word"],
            "",
            ANY,
            Arity::ONE,
            "The secret of links of the form /prefix/hash/link.",
            |c, n, _| value::set_bytes(&mut c.secret, n),
        ),
    ];

    fn variables(registry: &mut Registry<Request>) {
        registry.kept("secure_link", |r, out| match r.location().setting() {
            Some(Rule::Expression { link, md5 }) => expression(r, link, md5, out),
            Some(Rule::Secret(secret)) => {
                let link = secret_link(r.unparsed_uri(), secret);
                out.extend_from_slice(link.unwrap_or_default());
                link.is_some()
            }
            None => false,
        });
        registry.kept("secure_link_expires", |r, out| {
            r.main.context(|Expires(text)| {
                out.extend_from_slice(text.as_deref().unwrap_or_default());
                text.is_some()
            })
        });
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        match (&conf.secret, &conf.link, &conf.md5) {
            (Some(secret), None, None) => b.keep(Rule::Secret(secret.clone())),
            (Some(_), ..) => {
                let text = "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"";
                return Err(Error::global(text));
            }
            (None, Some(link), Some(md5)) => {
                b.keep(Rule::Expression { link: link.clone(), md5: md5.clone() });
            }
            _ => {}
        }
        Ok(())
    }
}

fn template(node: &Node, cx: &mut Cx<'_, '_>) -> Result<Template, Error> {
    let arg = node.arg(0)?;
    Template::parse(&arg.value, arg.span, &mut cx.registry)
}

/// What makes a link good.
enum Rule {
    Expression { link: Template, md5: Template },
    Secret(Box<[u8]>),
}

/// `$secure_link_expires`: known once `$secure_link` was looked at, as in nginx.
#[derive(Default)]
struct Expires(Option<Vec<u8>>);

/// `1` for a good link, `0` for one whose time is over, nothing for any other.
fn expression(r: &Request, link: &Template, md5: &Template, out: &mut Vec<u8>) -> bool {
    let given = link.value(r);
    let (hash, expires) = match memchr::memchr(b',', &given) {
        Some(at) => (&given[..at], Some(&given[at + 1..])),
        None => (&given[..], None),
    };
    let mut over = false;
    if let Some(text) = expires {
        let Some(end) = value::number(text).filter(|seconds| *seconds > 0) else { return false };
        over = end < clock::wall_ms() / 1000;
        r.main.context(|Expires(kept)| *kept = Some(text.to_vec()));
    }
    let hash = if hash.len() > 24 { None } else { base64::decode(hash, Alphabet::Url) };
    let good = hash.is_some_and(|hash| same(&hash, &Md5::digest(md5.value(r))));
    if good {
        out.push(if over { b'0' } else { b'1' });
    }
    good
}

/// `/prefix/hash/link`: the link, if the hash is that of link and secret.
fn secret_link<'u>(uri: &'u [u8], secret: &[u8]) -> Option<&'u [u8]> {
    let mut parts = uri.get(1..)?.splitn(3, |byte| *byte == b'/');
    let (_prefix, hash, link) = (parts.next()?, parts.next()?, parts.next()?);
    if hash.len() != 32 || link.is_empty() {
        return None;
    }
    let mut md5 = Md5::new();
    md5.update(link);
    md5.update(secret);
    let mut given = [0; 16];
    for (byte, digits) in given.iter_mut().zip(hash.chunks_exact(2)) {
        *byte = hex(digits[0])? << 4 | hex(digits[1])?;
    }
    same(&given, &md5.finalize()).then_some(link)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn hostile_links_are_none() {
        // md5("linksecret").
        let good = Md5::digest(b"linksecret");
        let hash: String = good.iter().map(|byte| format!("{byte:02x}")).collect();
        let uri = format!("/p/{hash}/link");
        assert_eq!(secret_link(uri.as_bytes(), b"secret"), Some(&b"link"[..]));
        assert_eq!(secret_link(uri.to_uppercase().as_bytes(), b"secret"), None);
        let others = [
            String::new(),
            "/".to_owned(),
            "/p".to_owned(),
            format!("/p/{hash}"),
            format!("/p/{hash}/"),
            format!("/p/{hash}x/link"),
            format!("/p/{}/link", &hash[1..]),
            format!("/p/{}/link", "g".repeat(32)),
            format!("/p/{}/link", "+".repeat(32)),
            format!("//{hash}/other"),
        ];
        for uri in others {
            assert_eq!(secret_link(uri.as_bytes(), b"secret"), None, "{uri}");
        }
    }

    #[test]
    fn the_two_ways_are_not_mixed() {
        let conf = "server { listen 127.0.0.1:1;
            location / { secure_link $arg_h; secure_link_secret x; } }";
        let error = testing::conf_error(conf);
        assert!(error.contains("\"secure_link_secret\" cannot be mixed with"), "{error}");
    }

    #[test]
    fn nothing_is_kept_where_only_half_is_set() {
        let r = testing::request("secure_link $arg_h;", "GET / HTTP/1.1\r\n\r\n");
        assert!(r.location().setting::<Rule>().is_none());
    }
}
