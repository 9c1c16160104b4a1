//! `mirror`: sends a copy of each request elsewhere, and forgets the answer
//! (`ngx_http_mirror_module.c`).
//!
//! DIFFERS(mirror-nobody-waits): nginx keeps the next request of a connection waiting until the
//! copies of the last one are answered; here nobody waits for them.
//!
//! Invariant: a copy never changes what its original is answered.

use std::sync::Arc;

use bytes::Bytes;
use forebay_conf::{Arity, Error, Node, value};
use forebay_rt::task::spawn_local;

use crate::{
    body_in,
    client::Client,
    engine,
    handler::{Flow, Handler},
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    request::Request,
};

/// `ngx_http_mirror_module`.
pub struct Mirror;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    uris: Option<Arc<Vec<Bytes>>>,
    request_body: Option<bool>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; uris, request_body);
    }
}

impl Module for Mirror {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_mirror_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "mirror",
            &["uri | off"],
            "off",
            ANY,
            Arity::ONE,
            "Where a copy of each request goes.",
            mirror,
        ),
        set(
            "mirror_request_body",
            &["on | off"],
            "on",
            ANY,
            Arity::FLAG,
            "Whether copies have the body of the request, which is read before.",
            |c, n, _| value::set_flag(&mut c.request_body, n),
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if let Some(uris) = conf.uris.clone().filter(|uris| !uris.is_empty()) {
            let request_body = conf.request_body.unwrap_or(true);
            b.precontent(Copies { uris, request_body });
        }
        Ok(())
    }
}

fn mirror(conf: &mut Conf, node: &Node, _cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let arg = node.arg(0)?;
    let off = arg.is("off");
    // `off` stands alone.
    if conf.uris.as_ref().is_some_and(|uris| off || uris.is_empty()) {
        return Err(value::duplicate(node));
    }
    let uris = conf.uris.get_or_insert_default();
    if !off {
        // Only this level holds it while its directives are being read.
        let uris = Arc::get_mut(uris).expect("not shared before inheritance");
        uris.push(Bytes::copy_from_slice(&arg.value));
    }
    Ok(())
}

struct Copies {
    /// At least one.
    uris: Arc<Vec<Bytes>>,
    request_body: bool,
}

impl Handler for Copies {
    fn handle<'a>(&'a self, r: &'a mut Request, client: &'a mut dyn Client) -> Flow<'a> {
        if r.subrequest {
            return Flow::Decline;
        }
        if !self.request_body {
            return self.send(r);
        }
        Flow::later(async move {
            match body_in::read(r, client).await {
                Ok(()) => self.send(r),
                Err(status) => Flow::Deny(status),
            }
        })
    }
}

impl Copies {
    fn send<'f>(&self, r: &mut Request) -> Flow<'f> {
        for uri in self.uris.iter() {
            let Some(mut copy) = r.subrequest(uri, &r.args) else { return Flow::Deny(500) };
            copy.method = r.method;
            if self.request_body {
                copy.body = r.body.clone();
            }
            spawn_local(async move {
                engine::subrequest(&mut copy).await;
                copy.log_subrequest();
            });
        }
        Flow::Decline
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn off_stands_alone() {
        for conf in ["mirror off; mirror /a;", "mirror /a; mirror off;", "mirror off; mirror off;"]
        {
            let error = testing::conf_error(conf);
            assert!(error.contains("\"mirror\" directive is duplicate"), "{conf}: {error}");
        }
        for (conf, want) in [
            ("", 0),
            ("mirror off;", 0),
            ("mirror_request_body off;", 0),
            ("mirror /a; mirror /b;", 1),
        ] {
            let r = testing::request(conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(r.location().precontent.len(), want, "{conf}");
        }
    }
}
