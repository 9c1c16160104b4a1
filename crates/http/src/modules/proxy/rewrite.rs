//! `proxy_redirect` and the cookie directives: what `Location`, `Refresh` and `Set-Cookie` of an
//! upstream are changed to (`ngx_http_proxy_rewrite_redirect`, `ngx_http_proxy_rewrite_cookie`).
//!
//! Invariant: the first rule that matches is the only one.

use std::sync::Arc;

use forebay_conf::{Arg, Error, Node};
use forebay_session::{
    regex::{Groups, Regex},
    var::Template,
};

use super::Conf;
use crate::{module::Cx, request::Request};

/// What a rule looks for.
#[derive(Clone)]
pub enum Pattern {
    /// The text begins with this.
    Prefix(Template),
    /// The text is this domain, with or without a dot in front (cookies).
    Domain(Template),
    /// It matches.
    Regex(Regex, Groups),
}

/// A rule: what it looks for, and what goes in its place.
#[derive(Clone)]
pub struct Rule {
    pattern: Pattern,
    replacement: Template,
}

/// `proxy_redirect`.
#[derive(Clone)]
pub enum Redirect {
    /// `default`: to be worked out from `proxy_pass` and the location.
    Default,
    /// A rule.
    Rule(Rule),
}

/// Flags of a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    secure: Option<bool>,
    httponly: Option<bool>,
    samesite: Option<SameSite>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SameSite {
    Off,
    Bare,
    Strict,
    Lax,
    None,
}

/// `proxy_cookie_flags`: which cookie, and its flags.
#[derive(Clone)]
pub struct FlagRule {
    name: CookieName,
    flags: Vec<FlagWord>,
}

#[derive(Clone)]
enum CookieName {
    Text(Template),
    Regex(Regex),
}

/// A flag as written: fixed, or a variable that says it.
#[derive(Clone)]
enum FlagWord {
    Fixed(Flags),
    Computed(Template),
}

impl Rule {
    /// A fixed prefix and what replaces it.
    pub fn fixed(prefix: &[u8], replacement: &[u8]) -> Rule {
        Rule {
            pattern: Pattern::Prefix(Template::text(prefix)),
            replacement: Template::text(replacement),
        }
    }

    /// The text with what matches replaced.
    fn apply(&self, r: &Request, text: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(text.len() + 32);
        match &self.pattern {
            Pattern::Prefix(prefix) => {
                let prefix = prefix.value(r);
                let rest = text.strip_prefix(&prefix[..])?;
                self.replacement.write(r, &mut out);
                out.extend_from_slice(rest);
            }
            Pattern::Domain(domain) => {
                // A dot in front counts for nothing, and that of the cookie stays.
                let (domain, new) = (domain.value(r), self.replacement.value(r));
                let bare = text.strip_prefix(b".").unwrap_or(text);
                if !bare.eq_ignore_ascii_case(domain.strip_prefix(b".").unwrap_or(&domain)) {
                    return None;
                }
                out.extend_from_slice(&text[..text.len() - bare.len()]);
                out.extend_from_slice(new.strip_prefix(b".").unwrap_or(&new));
            }
            Pattern::Regex(regex, groups) => {
                if !regex.run(r, text, groups) {
                    return None;
                }
                self.replacement.write(r, &mut out);
            }
        }
        Some(out)
    }
}

fn pattern(arg: &Arg, cx: &mut Cx<'_, '_>, domain: bool) -> Result<Pattern, Error> {
    if let Some(text) = arg.value.strip_prefix(b"~") {
        let (caseless, text) = match text.strip_prefix(b"*") {
            Some(text) => (true, text),
            // Domains are the same in any case.
            None => (domain, text),
        };
        let regex = Regex::compile(text, caseless, arg.span)?;
        let groups = regex.bind(&mut cx.registry, arg.span)?;
        return Ok(Pattern::Regex(regex, groups));
    }
    let template = Template::parse(&arg.value, arg.span, &mut cx.registry)?;
    Ok(if domain { Pattern::Domain(template) } else { Pattern::Prefix(template) })
}

fn rule(node: &Node, cx: &mut Cx<'_, '_>, domain: bool) -> Result<Rule, Error> {
    let (from, to) = (node.arg(0)?, node.arg(1)?);
    let pattern = pattern(from, cx, domain)?;
    let replacement = Template::parse(&to.value, to.span, &mut cx.registry)?;
    Ok(Rule { pattern, replacement })
}

/// Whether `off` stands alone, and not beside others.
fn is_off<T>(list: &mut Option<Arc<Vec<T>>>, node: &Node) -> Result<bool, Error> {
    let off = node.args.len() == 1 && node.arg(0)?.is("off");
    let empty = list.as_ref().map(|list| list.is_empty());
    // After `off` nothing more may come, and `off` may come after nothing.
    match (off, empty) {
        (_, Some(true)) | (true, Some(false)) => Err(forebay_conf::value::duplicate(node)),
        (true, None) => {
            *list = Some(Arc::default());
            Ok(true)
        }
        (false, _) => Ok(false),
    }
}

fn push<T: Clone>(list: &mut Option<Arc<Vec<T>>>, item: T) {
    Arc::make_mut(list.get_or_insert_default()).push(item);
}

/// `proxy_redirect default | off | redirect replacement`.
pub fn set_redirect(c: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    if is_off(&mut c.redirects, node)? {
        return Ok(());
    }
    if node.args.len() == 1 {
        let arg = node.arg(0)?;
        if !arg.is("default") {
            return Err(forebay_conf::value::invalid_parameter(arg));
        }
        match &c.pass {
            None => {
                let text = "\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive";
                return Err(Error::emerg(node.span, text));
            }
            Some(pass) if matches!(**pass, super::pass::Pass::Computed(_)) => {
                let text = "\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive \
                            with variables";
                return Err(Error::emerg(node.span, text));
            }
            Some(_) => {}
        }
        push(&mut c.redirects, Redirect::Default);
        return Ok(());
    }
    push(&mut c.redirects, Redirect::Rule(rule(node, cx, false)?));
    Ok(())
}

/// `proxy_cookie_domain off | domain replacement`.
pub fn set_cookie_domain(c: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    set_cookie(&mut c.cookie_domains, node, cx, true)
}

/// `proxy_cookie_path off | path replacement`.
pub fn set_cookie_path(c: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    set_cookie(&mut c.cookie_paths, node, cx, false)
}

fn set_cookie(
    list: &mut Option<Arc<Vec<Rule>>>,
    node: &Node,
    cx: &mut Cx<'_, '_>,
    domain: bool,
) -> Result<(), Error> {
    if is_off(list, node)? {
        return Ok(());
    }
    if node.args.len() == 1 {
        return Err(forebay_conf::value::invalid_parameter(node.arg(0)?));
    }
    push(list, rule(node, cx, domain)?);
    Ok(())
}

/// `proxy_cookie_flags off | cookie [flag ...]`.
pub fn set_cookie_flags(c: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    if is_off(&mut c.cookie_flags, node)? {
        return Ok(());
    }
    let arg = node.arg(0)?;
    if node.args.len() == 1 {
        return Err(forebay_conf::value::invalid_parameter(arg));
    }
    let name = match arg.value.strip_prefix(b"~") {
        Some(text) => CookieName::Regex(Regex::compile(text, true, arg.span)?),
        None => CookieName::Text(Template::parse(&arg.value, arg.span, &mut cx.registry)?),
    };
    let mut flags = Vec::new();
    for arg in &node.args[1..] {
        let template = Template::parse(&arg.value, arg.span, &mut cx.registry)?;
        flags.push(match template.as_text() {
            Some(text) => {
                // DIFFERS(cookie-flags-known): a misspelt flag protects nothing, and nobody would notice.
                let invalid = || forebay_conf::value::invalid_parameter(arg);
                FlagWord::Fixed(flag(text).ok_or_else(invalid)?)
            }
            None => FlagWord::Computed(template),
        });
    }
    push(&mut c.cookie_flags, FlagRule { name, flags });
    Ok(())
}

fn flag(word: &[u8]) -> Option<Flags> {
    let mut flags = Flags::default();
    match &word.to_ascii_lowercase()[..] {
        b"secure" => flags.secure = Some(true),
        b"nosecure" => flags.secure = Some(false),
        b"httponly" => flags.httponly = Some(true),
        b"nohttponly" => flags.httponly = Some(false),
        b"samesite" => flags.samesite = Some(SameSite::Bare),
        b"samesite=strict" => flags.samesite = Some(SameSite::Strict),
        b"samesite=lax" => flags.samesite = Some(SameSite::Lax),
        b"samesite=none" => flags.samesite = Some(SameSite::None),
        b"nosamesite" => flags.samesite = Some(SameSite::Off),
        _ => return None,
    }
    Some(flags)
}

impl Flags {
    fn add(&mut self, other: Flags) {
        self.secure = other.secure.or(self.secure);
        self.httponly = other.httponly.or(self.httponly);
        self.samesite = other.samesite.or(self.samesite);
    }
}

/// What fields of responses are changed to at one level.
#[derive(Default)]
pub struct Rewrites {
    /// `proxy_redirect`.
    pub redirects: Vec<Rule>,
    /// `proxy_cookie_domain`.
    pub domains: Arc<Vec<Rule>>,
    /// `proxy_cookie_path`.
    pub paths: Arc<Vec<Rule>>,
    /// `proxy_cookie_flags`.
    pub flags: Arc<Vec<FlagRule>>,
}

impl Rewrites {
    /// A `Location`.
    pub fn location(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>> {
        self.redirects.iter().find_map(|rule| rule.apply(r, value))
    }

    /// A `Refresh`: what follows its `url=`.
    pub fn refresh(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>> {
        let at = value.windows(4).position(|window| window.eq_ignore_ascii_case(b"url="))? + 4;
        let changed = self.location(r, &value[at..])?;
        Some([&value[..at], &changed].concat())
    }

    /// A `Set-Cookie`.
    pub fn cookie(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>> {
        if self.domains.is_empty() && self.paths.is_empty() && self.flags.is_empty() {
            return None;
        }
        let mut attributes = Attribute::split(value);
        // No cookie is without a value.
        attributes.first()?.value.as_ref()?;
        let mut changed = false;
        for attribute in &mut attributes[1..] {
            let rules = match () {
                () if attribute.is(b"domain") => &self.domains,
                () if attribute.is(b"path") => &self.paths,
                () => continue,
            };
            let Some(text) = &mut attribute.value else { continue };
            if let Some(new) = rules.iter().find_map(|rule| rule.apply(r, text)) {
                *text = new;
                changed = true;
            }
        }
        changed |= self.set_flags(r, &mut attributes);
        changed.then(|| attributes.iter().map(Attribute::text).collect::<Vec<_>>().join(&b"; "[..]))
    }

    fn set_flags(&self, r: &Request, attributes: &mut Vec<Attribute>) -> bool {
        let name = attributes.first().map(|pair| pair.name.clone()).unwrap_or_default();
        let rule = self.flags.iter().find(|rule| match &rule.name {
            CookieName::Text(text) => text.value(r).eq_ignore_ascii_case(&name),
            CookieName::Regex(regex) => regex.is_match(&name),
        });
        let Some(rule) = rule else { return false };
        let mut flags = Flags::default();
        for word in &rule.flags {
            match word {
                FlagWord::Fixed(fixed) => flags.add(*fixed),
                FlagWord::Computed(template) => {
                    if let Some(computed) = flag(&template.value(r)) {
                        flags.add(computed);
                    }
                }
            }
        }
        apply_flag(attributes, b"Secure", flags.secure, None);
        apply_flag(attributes, b"HttpOnly", flags.httponly, None);
        let samesite = flags.samesite.map(|samesite| samesite != SameSite::Off);
        let value: Option<&[u8]> = match flags.samesite {
            Some(SameSite::Strict) => Some(b"Strict"),
            Some(SameSite::Lax) => Some(b"Lax"),
            Some(SameSite::None) => Some(b"None"),
            // DIFFERS(cookie-samesite-bare): nginx leaves the cookie alone.
            _ => None,
        };
        apply_flag(attributes, b"SameSite", samesite, value);
        true
    }
}

/// Sets a flag or takes it away (`ngx_http_proxy_edit_cookie_flags`). One that says the same already
/// stays as it is written.
fn apply_flag(
    attributes: &mut Vec<Attribute>,
    name: &[u8],
    on: Option<bool>,
    value: Option<&[u8]>,
) {
    let wanted = || Attribute { name: name.to_vec(), value: value.map(<[u8]>::to_vec) };
    let at = attributes.iter().skip(1).position(|a| a.is(name)).map(|at| at + 1);
    match (on, at) {
        (Some(true), Some(at)) if name == b"SameSite" => {
            let is_it = match (&attributes[at].value, value) {
                (Some(is), Some(wanted)) => is.eq_ignore_ascii_case(wanted),
                (is, wanted) => is.is_none() && wanted.is_none(),
            };
            if !is_it {
                attributes[at] = wanted();
            }
        }
        (Some(true), None) => attributes.push(wanted()),
        (Some(false), Some(_)) => {
            let mut first = true;
            attributes.retain(|attribute| std::mem::take(&mut first) || !attribute.is(name));
        }
        _ => {}
    }
}

/// A part of a `Set-Cookie`, without the spaces around it and around its `=`
/// (`ngx_http_proxy_parse_cookie`).
struct Attribute {
    name: Vec<u8>,
    value: Option<Vec<u8>>,
}

impl Attribute {
    fn split(cookie: &[u8]) -> Vec<Attribute> {
        let parts = cookie.split(|ch| *ch == b';');
        let attribute = |part: &[u8]| {
            let (name, value) = match memchr::memchr(b'=', part) {
                Some(at) => (&part[..at], Some(trim(&part[at + 1..]).to_vec())),
                None => (part, None),
            };
            Attribute { name: trim(name).to_vec(), value }
        };
        parts.map(attribute).collect()
    }

    fn is(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    fn text(&self) -> Vec<u8> {
        match &self.value {
            Some(value) => [&self.name, &b"="[..], value].concat(),
            None => self.name.clone(),
        }
    }
}

fn trim(mut text: &[u8]) -> &[u8] {
    while let Some(rest) = text.strip_prefix(b" ") {
        text = rest;
    }
    while let Some(rest) = text.strip_suffix(b" ") {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn unknown_cookie_flags_are_refused() {
        for flags in ["10s", "secure samesite=no", "\"\""] {
            let error = testing::conf_error(&format!("proxy_cookie_flags a {flags};"));
            assert!(error.contains("invalid parameter \""), "{flags}: {error}");
        }
    }
}
