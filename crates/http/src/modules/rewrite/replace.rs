//! `rewrite regex replacement [flag]`.

use forebay_conf::{Error, Node};
use forebay_session::{
    log::{Severity, Shown},
    var::Template,
};
use forebay_wire::uri::{Unescape, unescape};

use super::{Pattern, State, answer::URLS, scratch, write_value};
use crate::{handler::Flow, module::Cx, request::Request};

/// A `rewrite`.
pub(super) struct Rewrite {
    pattern: Pattern,
    target: Target,
    /// Whether the arguments of the request go behind those of the replacement: unless it ends
    /// with `?`.
    keep_args: bool,
    flag: Flag,
}

enum Target {
    /// Another path; with arguments, if the replacement has a `?`.
    Path { path: Template, args: Option<Template> },
    /// A redirect with this status.
    Redirect { status: u16, url: Template, has_args: bool },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    /// The directives that follow run too.
    Next,
    Last,
    Break,
}

impl Rewrite {
    /// Reads the directive.
    ///
    /// Errors: nginx's `empty replacement` and `invalid parameter "x"`.
    pub(super) fn parse(node: &Node, cx: &mut Cx<'_, '_>) -> Result<Rewrite, Error> {
        let pattern = Pattern::parse(node.arg(0)?, false, cx)?;
        let replacement = node.arg(1)?;
        let (text, keep_args) = match &*replacement.value {
            [] => return Err(Error::emerg(replacement.span, "empty replacement")),
            [text @ .., b'?'] => (text, false),
            text => (text, true),
        };
        let is_url = URLS.iter().any(|start| text.starts_with(start));
        let (mut status, mut flag) = (is_url.then_some(302), Flag::Next);
        match node.args.get(2).map(|arg| (&*arg.value, arg)) {
            None => {}
            Some((b"last", _)) => flag = Flag::Last,
            Some((b"break", _)) => flag = Flag::Break,
            Some((b"redirect", _)) => status = Some(302),
            Some((b"permanent", _)) => status = Some(301),
            Some((_, arg)) => return Err(forebay_conf::value::invalid_parameter(arg)),
        }
        let mut template = |text| Template::parse(text, replacement.span, &mut cx.registry);
        let question = memchr::memchr(b'?', text);
        let target = match (status, question) {
            (Some(status), _) => {
                Target::Redirect { status, url: template(text)?, has_args: question.is_some() }
            }
            (None, None) => Target::Path { path: template(text)?, args: None },
            (None, Some(at)) => {
                let path = template(&text[..at])?;
                Target::Path { path, args: Some(template(&text[at + 1..])?) }
            }
        };
        Ok(Rewrite { pattern, target, keep_args, flag })
    }

    /// Rewrites where the pattern matches; `Some`: nothing more is to run.
    pub(super) fn run<'a>(&self, r: &mut Request, state: &mut State) -> Option<Flow<'a>> {
        match self.pattern.matches(r, &r.uri, state.log) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(status) => return Some(Flow::Deny(status)),
        }
        r.internal = true;
        r.is_as_sent = false;
        // Until a location is chosen for it.
        r.rewritten_in_place = true;
        state.quote = false;
        match &self.target {
            Target::Redirect { status, url, has_args } => {
                self.redirect(r, url, *has_args, state.log);
                return Some(Flow::Deny(*status));
            }
            Target::Path { path, args } => self.replace(r, path, args.as_ref(), state.log),
        }
        if r.uri.is_empty() {
            r.log_error(Severity::Error, format_args!("the rewritten URI has a zero length"));
            return Some(Flow::Deny(500));
        }
        state.changed = self.flag != Flag::Break;
        match self.flag {
            Flag::Next => None,
            Flag::Last => Some(Flow::Redirect),
            Flag::Break => Some(Flow::Decline),
        }
    }

    /// (`ngx_http_script_regex_end_code`, without `redirect`)
    fn replace(&self, r: &mut Request, path: &Template, args: Option<&Template>, log: bool) {
        scratch(|out| {
            write_value(path, r, false, out);
            let split = out.len();
            match args {
                Some(args) => {
                    write_value(args, r, true, out);
                    if self.keep_args && !r.args.is_empty() {
                        out.push(b'&');
                        out.extend_from_slice(&r.args);
                    }
                    r.args.clear();
                    r.args.extend_from_slice(&out[split..]);
                    r.has_args = true;
                }
                None if !self.keep_args => r.args.clear(),
                None => {}
            }
            let path = &out[..split];
            if log {
                // A subrequest is still called by what it was.
                let (path, args) = (Shown(path), Shown(&r.args));
                let text = format_args!("rewritten data: \"{path}\", args: \"{args}\"");
                r.log_error(Severity::Notice, text);
            }
            r.uri.clear();
            r.uri.extend_from_slice(path);
        });
    }

    /// (`ngx_http_script_regex_end_code`, with `redirect`)
    fn redirect(&self, r: &mut Request, url: &Template, has_args: bool, log: bool) {
        let mut location = Vec::new();
        scratch(|out| {
            write_value(url, r, true, out);
            let read = unescape(out, Unescape::Redirect, &mut location);
            location.extend_from_slice(out.get(read..).unwrap_or_default());
        });
        if self.keep_args && !r.args.is_empty() {
            location.push(if has_args { b'&' } else { b'?' });
            location.extend_from_slice(&r.args);
        }
        if log {
            let shown = Shown(&location);
            r.log_error(Severity::Notice, format_args!("rewritten redirect: \"{shown}\""));
        }
        r.response.location = Some(location.into());
    }
}
