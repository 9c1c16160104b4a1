//! `charset`: names the charset of responses, and recodes them (`ngx_http_charset_filter_module.c`).
//!
//! Invariant: a body is recoded only by a table that the configuration has.

mod map;

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_conf::{Arg, Arity, Contexts, Error, Node, value};
use forebay_session::{
    log::{Severity, Shown},
    var::{self, VarId},
};

use self::map::{Charsets, Recode, Recoder};
use crate::{
    body::{Body, Chunk, Fault, Piece, Reader, Source},
    handler::{Filter, Filtered},
    mime::Types,
    module::{self, ANY, ANY_IF, Builder, Cx, Directive, Module, set},
    request::Request,
    response::Response,
};

/// `ngx_http_charset_filter_module`.
pub struct Charset;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    charset: Option<Name>,
    source: Option<Name>,
    overrides: Option<bool>,
    types: Option<Types>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; charset, source, overrides, types);
    }
}

/// The parameter of `charset` or `source_charset`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Off,
    Fixed(Bytes),
    Var(VarId),
}

const DEFAULT_TYPES: [&str; 6] = [
    "text/html",
    "text/xml",
    "text/plain",
    "text/vnd.wap.wml",
    "application/javascript",
    "application/rss+xml",
];

impl Module for Charset {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_charset_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "charset",
            &["charset | off"],
            "off",
            ANY_IF,
            Arity::ONE,
            "The charset that responses are said to be in.",
            |c, n, cx| set_name(&mut c.charset, n, cx, true),
        ),
        set(
            "source_charset",
            &["charset"],
            "",
            ANY_IF,
            Arity::ONE,
            "The charset that responses are in, to be recoded from.",
            |c, n, cx| set_name(&mut c.source, n, cx, false),
        ),
        set(
            "override_charset",
            &["on | off"],
            "off",
            ANY_IF,
            Arity::FLAG,
            "Whether responses that name their charset are recoded too.",
            |c, n, _| value::set_flag(&mut c.overrides, n),
        ),
        set(
            "charset_types",
            &["mime-type ..."],
            "text/html text/xml text/plain text/vnd.wap.wml application/javascript \
             application/rss+xml",
            ANY,
            Arity::SOME,
            "Which types have a charset, beside text/html.",
            |c, n, cx| Types::set(&mut c.types, n, cx),
        ),
        set(
            "charset_map",
            &["charset1 charset2 { ... }"],
            "",
            Contexts::HTTP,
            Arity::TWO.block(),
            "How to recode from one charset to another, and back.",
            |_, n, cx| map::read(n, cx),
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let charset = conf.charset.clone().unwrap_or(Name::Off);
        let source = conf.source.clone().unwrap_or(Name::Off);
        let shared = b.cx.shared::<Charsets>();
        if let (Name::Fixed(from), Name::Fixed(to)) = (&source, &charset) {
            shared.require(from, to)?;
        }
        let maps = shared.maps();
        // A subrequest in a location without `charset` is recoded to that of its main request.
        // Another server may name one of those that are known (`X-Accel-Charset`), also for what it sends
        // the request to (`X-Accel-Redirect`).
        let named = maps.knows_any();
        if charset == Name::Off && (maps.is_empty() || source == Name::Off) && !named {
            return Ok(());
        }
        if charset != Name::Off {
            b.keep(OfPages(charset.clone()));
        }
        b.filter(CharsetFilter {
            charset,
            source,
            overrides: conf.overrides.unwrap_or(false),
            types: conf.types.clone().unwrap_or_else(|| Types::of(&DEFAULT_TYPES)),
            maps,
        });
        Ok(())
    }
}

/// What `charset` says here.
struct OfPages(Name);

/// Whether an HTML page that is made here will be in UTF-8.
pub fn pages_are_utf8(r: &Request) -> bool {
    let named = r.location().setting::<OfPages>().and_then(|OfPages(name)| value_of(name, r));
    named.is_some_and(|name| name.eq_ignore_ascii_case(b"utf-8"))
}

/// `ngx_http_set_charset_slot`.
fn set_name(
    slot: &mut Option<Name>,
    node: &Node,
    cx: &mut Cx<'_, '_>,
    may_be_off: bool,
) -> Result<(), Error> {
    value::set_once(slot, node, |node| {
        let arg: &Arg = node.arg(0)?;
        if may_be_off && arg.is("off") {
            return Ok(Name::Off);
        }
        match arg.value.strip_prefix(b"$") {
            Some(name) => {
                let name = String::from_utf8_lossy(name);
                if name.is_empty() {
                    return Err(Error::emerg(arg.span, "invalid variable name \"$\""));
                }
                Ok(Name::Var(cx.registry.used(&name, arg.span)))
            }
            None => Ok(Name::Fixed(map::know(&arg.value, cx))),
        }
    })
}

struct CharsetFilter {
    charset: Name,
    source: Name,
    overrides: bool,
    types: Types,
    maps: Arc<map::Maps>,
}

/// What a request keeps for its subrequests: the charset that its response is sent in.
#[derive(Default)]
struct MainCharset(Option<Bytes>);

/// The charset of the main request's response, for its subrequests.
fn main_charset(r: &Request) -> Option<Bytes> {
    r.main.context(|main: &mut MainCharset| main.0.clone())
}

impl Filter for CharsetFilter {
    fn filter(&self, r: &mut Request) -> Filtered {
        let to = if r.subrequest { main_charset(r) } else { self.destination(r) };
        let Some(to) = to.filter(|name| !name.is_empty()) else {
            if !r.subrequest {
                keep(r);
            }
            return Filtered::Continue;
        };
        let from = self.source(r);
        match from {
            Some(from) if !from.is_empty() && !from.eq_ignore_ascii_case(&to) => {
                match self.maps.find(&from, &to) {
                    Some(_) if is_coded(r) => {}
                    Some(recode) => {
                        name(r, to);
                        recode_body(r, recode.clone());
                    }
                    None => {
                        let (from, to) =
                            (String::from_utf8_lossy(&from), String::from_utf8_lossy(&to));
                        r.log_error(
                            Severity::Error,
                            format_args!(
                                "no \"charset_map\" between the charsets \"{from}\" and \"{to}\"{}",
                                r.doing_with_head()
                            ),
                        );
                    }
                }
            }
            _ => name(r, to),
        }
        if !r.subrequest {
            keep(r);
        }
        Filtered::Continue
    }
}

/// Keeps the charset that the response has now.
fn keep(r: &Request) {
    if let Some(charset) = &r.response.charset {
        r.main.context(|main: &mut MainCharset| main.0 = Some(charset.clone()));
    }
}

/// `ngx_http_set_charset`.
fn name(r: &mut Request, charset: Bytes) {
    if r.subrequest {
        return;
    }
    // What is named here is written anew, even if it stays what it was.
    // DIFFERS(charset-of-nothing): nginx keeps a `charset=` without a value, unless the text is recoded.
    r.response.content_type_text = None;
    // Old browsers took the charset of a redirect for that of the page that it led to.
    r.response.charset = (!matches!(r.response.status, 301 | 302)).then_some(charset);
}

fn value_of(name: &Name, r: &Request) -> Option<Bytes> {
    match name {
        Name::Off => None,
        Name::Fixed(name) => Some(name.clone()),
        // DIFFERS(charset-variable-unset): nginx closes the connection where the variable is not
        // set.
        Name::Var(id) => {
            let mut out = Vec::new();
            var::read(r, *id, &mut out).then(|| out.into())
        }
    }
}

impl CharsetFilter {
    /// What the response is to be in (`ngx_http_destination_charset`).
    fn destination(&self, r: &Request) -> Option<Bytes> {
        let response = &r.response;
        response.content_type.as_ref().filter(|name| !name.is_empty())?;
        // `X-Accel-Charset` wins.
        if let Some(wanted) = response.override_charset.clone().filter(|name| !name.is_empty()) {
            if self.maps.knows(&wanted) {
                return Some(wanted);
            }
            let name = Shown(&wanted);
            let text =
                format_args!("unknown charset \"{name}\" to override{}", r.doing_with_head());
            r.log_error(Severity::Error, text);
            return None;
        }
        if self.charset == Name::Off {
            return None;
        }
        let wanted = match own(response) {
            Some(_) => self.overrides,
            None => self.types.has(response.content_type.as_ref()),
        };
        if wanted { value_of(&self.charset, r) } else { None }
    }

    /// What the response is in (`ngx_http_source_charset`); `None`: nobody says.
    fn source(&self, r: &Request) -> Option<Bytes> {
        own(&r.response).cloned().or_else(|| value_of(&self.source, r))
    }
}

/// The charset that the response has. `charset=` without one says nothing.
fn own(response: &Response) -> Option<&Bytes> {
    response.charset.as_ref().filter(|charset| !charset.is_empty())
}

/// What is compressed cannot be recoded.
fn is_coded(r: &Request) -> bool {
    r.response.field("Content-Encoding").is_some_and(|coding| !coding.is_empty())
}

fn recode_body(r: &mut Request, recode: Arc<Recode>) {
    if recode.changes_length() && !r.subrequest {
        r.response.content_length = None;
    }
    if !matches!(r.response.body, Body::Empty) {
        let body = mem::take(&mut r.response.body);
        let body = Reader::new(body, r.location().core.output_buffers.1);
        r.response.body = Body::Stream(Box::new(Recoded { body, recoder: Recoder::new(recode) }));
    }
}

struct Recoded {
    body: Reader,
    recoder: Recoder,
}

impl Source for Recoded {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        loop {
            return Poll::Ready(match ready!(self.body.poll_next(cx)) {
                Some(Ok(Piece::Bytes(bytes))) => {
                    let bytes = self.recoder.feed(bytes);
                    if bytes.is_empty() {
                        continue;
                    }
                    Some(Ok(Chunk::Bytes(bytes)))
                }
                Some(Ok(Piece::Flush)) => Some(Ok(Chunk::Flush)),
                Some(Ok(Piece::Nested(child))) => Some(Ok(Chunk::Nested(child))),
                Some(Err(fault)) => Some(Err(fault)),
                None => None,
            });
        }
    }
}

#[cfg(test)]
mod tests;
