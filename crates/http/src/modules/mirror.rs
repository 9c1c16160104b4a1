//! `mirror`: sends a copy of each request elsewhere, and forgets the answer
//! (`ngx_http_mirror_module.c`).
//!
//! DIFFERS(mirror-nobody-waits): nginx keeps the next request of a connection waiting until the
//! copies of the last one are answered; here nobody waits for them. So that a mirror which stands still
//! costs no memory without end, a thread has no more copies under way than `worker_connections`; more
//! are not sent.
//!
//! Invariant: a copy never changes what its original is answered.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bytes::Bytes;
use forebay_conf::{Arity, Error, Node, value};
use forebay_rt::task::spawn_local;
use forebay_session::log::Severity;

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
        Flow::later(move || async move {
            match body_in::read(r, client).await {
                Ok(()) => self.send(r),
                Err(status) => Flow::Deny(status),
            }
        })
    }
}

impl Copies {
    /// DIFFERS(mirror-of-412): nginx ends a request whose condition fails before its copy has begun.
    fn send<'f>(&self, r: &mut Request) -> Flow<'f> {
        for uri in self.uris.iter() {
            let Some(under_way) = UnderWay::begin(r) else { return Flow::Decline };
            let Some(mut copy) = r.subrequest(uri, &r.args) else { return Flow::Deny(500) };
            copy.method = r.method;
            spawn_local(async move {
                let _under_way = under_way;
                engine::subrequest(&mut copy).await;
                copy.log_subrequest();
            });
        }
        Flow::Decline
    }
}

thread_local! {
    static COPIES: Cell<usize> = const { Cell::new(0) };
}

/// One of the copies that are under way on this thread.
struct UnderWay;

impl UnderWay {
    /// One more; `None`: there are too many, which is in the log.
    fn begin(r: &Request) -> Option<UnderWay> {
        let (now, most) = (COPIES.get(), r.connection.worker.shared.max_connections.load(Relaxed));
        if now >= most {
            let text =
                format_args!("{most} worker_connections are not enough for mirrored requests");
            r.log_error(Severity::Error, text);
            return None;
        }
        COPIES.set(now + 1);
        Some(UnderWay)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        COPIES.set(COPIES.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::COPIES;
    use crate::testing;
    use forebay_rt::task::{block_on, yield_now};

    #[test]
    fn copies_are_bounded_by_worker_connections() {
        let conf = "location / { mirror /m; mirror /m; empty_gif; } location = /m { return 204; }";
        block_on(async {
            for copies in [2, 3] {
                let mut r = testing::request(conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                r.connection.worker.shared.max_connections.store(3, super::Relaxed);
                testing::answer_waiting(&mut r);
                assert_eq!((r.response.status, COPIES.get()), (200, copies));
            }
            yield_now().await;
            yield_now().await;
            assert_eq!(COPIES.get(), 0);
        });
    }

    #[test]
    fn a_request_that_comes_to_412_has_its_copy() {
        let conf = "location / { mirror /m; empty_gif; } location = /m { return 204; }";
        block_on(async {
            let head = "GET / HTTP/1.1\r\nHost: a\r\nIf-Match: \"x\"\r\n\r\n";
            let mut r = testing::request(conf, head);
            r.connection.worker.shared.max_connections.store(3, super::Relaxed);
            testing::answer_waiting(&mut r);
            assert_eq!((r.response.status, COPIES.get()), (412, 1));
            yield_now().await;
            assert_eq!(COPIES.get(), 0);
        });
    }

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
