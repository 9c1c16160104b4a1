//! `add_before_body`, `add_after_body`: the answers of subrequests around a response
//! (`ngx_http_addition_filter_module.c`).
//!
//! Invariant: what is added went through the filters of its own location only.

use std::{
    mem,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_conf::{Arity, Error, Node, value};

use crate::{
    body::{Body, Chunk, Fault, Source},
    handler::{Filter, Filtered},
    mime::Types,
    module::{self, ANY, Builder, Directive, Module, set},
    request::Request,
    subrequest::Subrequest,
};

/// `ngx_http_addition_filter_module`.
pub struct Addition;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    before: Option<Bytes>,
    after: Option<Bytes>,
    types: Option<Types>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; before, after, types);
    }
}

fn set_uri(slot: &mut Option<Bytes>, node: &Node) -> Result<(), Error> {
    value::set_once(slot, node, |node| Ok(Bytes::copy_from_slice(&node.arg(0)?.value)))
}

impl Module for Addition {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_addition_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "add_before_body",
            &["uri"],
            "",
            ANY,
            Arity::ONE,
            "The subrequest whose answer stands before a response; empty: none.",
            |c, n, _| set_uri(&mut c.before, n),
        ),
        set(
            "add_after_body",
            &["uri"],
            "",
            ANY,
            Arity::ONE,
            "The subrequest whose answer stands behind a response; empty: none.",
            |c, n, _| set_uri(&mut c.after, n),
        ),
        set(
            "addition_types",
            &["mime-type ..."],
            "text/html",
            ANY,
            Arity::SOME,
            "Which types are added to, beside text/html.",
            |c, n, cx| Types::set(&mut c.types, n, cx),
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let uri = |uri: &Option<Bytes>| uri.clone().filter(|uri| !uri.is_empty());
        let (before, after) = (uri(&conf.before), uri(&conf.after));
        if before.is_some() || after.is_some() {
            let types = conf.types.clone().unwrap_or_else(Types::html);
            b.filter(Added { before, after, types });
            b.nests();
        }
        Ok(())
    }
}

struct Added {
    before: Option<Bytes>,
    after: Option<Bytes>,
    types: Types,
}

impl Filter for Added {
    fn filter(&self, r: &mut Request) -> Filtered {
        let response = &mut r.response;
        if response.status != 200 || r.subrequest || !self.types.has(response.content_type.as_ref())
        {
            return Filtered::Continue;
        }
        response.body_will_change();
        if response.header_only {
            return Filtered::Continue;
        }
        let body = mem::take(&mut response.body);
        let part = |uri: &Option<Bytes>| match uri {
            None => Part::Over,
            Some(uri) => match r.subrequest(uri, b"") {
                Some(child) => Part::Next(Box::new(Subrequest::new(child))),
                None => Part::Refused,
            },
        };
        let (before, after) = (part(&self.before), part(&self.after));
        r.response.body = Body::Stream(Box::new(Around { before, body: Some(body), after }));
        Filtered::Continue
    }
}

enum Part {
    Next(Box<Subrequest>),
    /// There are too many subrequests in each other.
    Refused,
    Over,
}

impl Part {
    fn take(&mut self) -> Option<Result<Chunk, Fault>> {
        match mem::replace(self, Part::Over) {
            Part::Next(child) => Some(Ok(Chunk::Nested(child))),
            Part::Refused => Some(Err(Fault::Filter)),
            Part::Over => None,
        }
    }
}

struct Around {
    before: Part,
    body: Option<Body>,
    after: Part,
}

impl Source for Around {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        if let Some(chunk) = self.before.take() {
            return Poll::Ready(Some(chunk));
        }
        if let Some(body) = &mut self.body {
            match ready!(body.poll_next(cx)) {
                None => self.body = None,
                other => return Poll::Ready(other),
            }
        }
        Poll::Ready(self.after.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const CONF: &str = "location = /b { internal; return 200 '<'; } \
                        location = /a { internal; return 200 '>'; } ";

    fn body(conf: &str, head: &str, change: impl Fn(&mut Request)) -> Request {
        let mut r = testing::request(&format!("{CONF}{conf}"), head);
        r.respond(200, "text/html".into(), "body".into());
        r.response.add("ETag", "\"a\"");
        change(&mut r);
        testing::filter(&mut r);
        r
    }

    #[test]
    fn answers_stand_around_a_body() {
        for (conf, want) in [
            ("add_before_body /b;", "<body"),
            ("add_after_body /a;", "body>"),
            ("add_before_body /b; add_after_body /a;", "<body>"),
            ("add_before_body ''; add_after_body /a;", "body>"),
        ] {
            let mut r = body(conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", |_| {});
            assert_eq!(testing::text(&mut r), want, "{conf}");
            assert_eq!(r.response.content_length, None);
            assert_eq!(testing::fields(&r), "ETag: W/\"a\"\n");
        }
    }

    #[test]
    fn a_part_that_closes_the_connection_breaks_the_body_off() {
        let closes = "location = /c { return 444; } add_after_body /c;";
        let mut r = body(closes, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", |_| {});
        assert_eq!(testing::drain(&mut r.response.body), Err(Fault::Filter));
        let refuses = "location = /c { return 403 no; } add_after_body /c;";
        let mut r = body(refuses, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", |_| {});
        assert_eq!(testing::text(&mut r), "bodyno");
    }

    #[test]
    fn only_some_responses_are_added_to() {
        const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let conf = "add_before_body /b;";
        let changes: [fn(&mut Request); 3] = [
            |r| r.response.status = 404,
            |r| r.response.content_type = Some("text/plain".into()),
            |r| r.subrequest = true,
        ];
        for change in changes {
            let mut r = body(conf, GET, change);
            assert_eq!(testing::text(&mut r), "body");
            assert_eq!(r.response.content_length, Some(4));
        }
        let plain = |r: &mut Request| r.response.content_type = Some("text/plain".into());
        let mut r = body("add_before_body /b; addition_types text/plain;", GET, plain);
        assert_eq!(testing::text(&mut r), "<body");
    }

    #[test]
    fn an_inner_level_replaces_and_removes() {
        let conf = "add_before_body /b; location /x { add_before_body ''; }";
        let r = testing::request(&format!("{CONF}{conf}"), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let filters = |id| r.plan.location(id).filters.len();
        let outer = filters(r.location);
        let inner = r.plan.locations.iter().find(|l| l.name == "/x").unwrap();
        assert_eq!(outer, inner.filters.len() + 2, "itself and postpone");
    }
}
