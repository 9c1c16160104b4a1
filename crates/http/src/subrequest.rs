//! Subrequests whose answer becomes part of another body (`ngx_http_subrequest`,
//! `ngx_http_postpone_filter_module.c`).
//!
//! Invariant: a subrequest begins when it is first polled, and ends with the body that it is in.

use std::{
    cell::Cell,
    future::Future,
    mem,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_session::log::{Severity, Shown};

use crate::{
    body::{Chunk, Fault, Source},
    engine,
    request::Request,
};

/// A subrequest on its way, and then its body.
pub struct Subrequest {
    state: State,
    /// What stands for an answer that is empty or an error.
    stub: Option<Stub>,
    /// Whether a byte of the answer has been handed out.
    sent: bool,
    /// Told when all has been handed out.
    done: Rc<Cell<bool>>,
}

/// What is sent in the place of an answer that is empty or an error (`ngx_http_ssi_stub_output`).
pub struct Stub {
    /// The text, which goes through the filters of the subrequest's location.
    pub text: Bytes,
    /// Its type, where it stands for an error.
    pub content_type: Option<Bytes>,
}

enum State {
    Answering(Pin<Box<dyn Future<Output = Box<Request>>>>),
    Sending(Box<Request>),
    Over,
}

impl Subrequest {
    /// One that will begin when it is polled.
    pub fn new(child: Request) -> Subrequest {
        let mut child = Box::new(child);
        let answering = Box::pin(async move {
            engine::subrequest(&mut child).await;
            child
        });
        let state = State::Answering(answering);
        Subrequest { state, stub: None, sent: false, done: Rc::default() }
    }

    /// The same with a stub.
    pub fn with_stub(child: Request, stub: Stub) -> Subrequest {
        Subrequest { stub: Some(stub), ..Subrequest::new(child) }
    }

    /// Becomes true when all of the answer has been handed out.
    pub fn done(&self) -> Rc<Cell<bool>> {
        self.done.clone()
    }

    /// Works out the answer, not the body; the request that was answered, unless its body was pulled
    /// to the end.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Option<&mut Request>> {
        if let State::Answering(answering) = &mut self.state {
            let mut child = ready!(answering.as_mut().poll(cx));
            let failed = child.error_status != 0 || child.response.status >= 300;
            if failed && let Some(Stub { text, content_type }) = self.stub.take() {
                put_stub(&mut child, text, content_type, None);
            }
            self.state = State::Sending(child);
        }
        Poll::Ready(match &mut self.state {
            State::Sending(child) => Some(child),
            _ => None,
        })
    }
}

impl Subrequest {
    /// All of the answer has been handed out, or as much as there is.
    pub fn end(&mut self) {
        if let State::Sending(mut child) = mem::replace(&mut self.state, State::Over) {
            child.end_upstream();
            child.log_subrequest();
        }
        self.done.set(true);
    }
}

impl Source for Subrequest {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        loop {
            ready!(self.poll_answer(cx));
            let State::Sending(child) = &mut self.state else { return Poll::Ready(None) };
            if closes(child) {
                self.end();
                return Poll::Ready(Some(Err(Fault::Filter)));
            }
            let next = match child.response.header_only {
                true => None,
                // What a server breaks off ends this part, and not the page that it is a part of
                // (`ngx_http_upstream_finalize_request`).
                false => ready!(child.response.body.poll_next(cx))
                    .filter(|next| !matches!(next, Err(Fault::Upstream))),
            };
            if next.is_none()
                && !self.sent
                && let Some(stub) = self.stub.take()
            {
                // Its head has been sent, as far as filters know.
                let content_type = child.response.content_type.take();
                let length = child.response.content_length.filter(|length| *length == 0);
                put_stub(child, stub.text, content_type, length);
                continue;
            }
            match &next {
                Some(Ok(chunk)) => {
                    self.sent |= !chunk.is_empty();
                    child.bytes_sent += chunk.len();
                }
                _ => self.end(),
            }
            return Poll::Ready(next);
        }
    }
}

/// Whether the connection closes, whoever's answer this one is part of: `return 444`
/// (`ngx_http_finalize_request`).
pub fn closes(child: &Request) -> bool {
    child.ends_without_answer() && child.response.status != 0
}

/// Replaces the answer; `length` is what filters are told of it, as some pass over an empty one.
fn put_stub(child: &mut Request, text: Bytes, content_type: Option<Bytes>, length: Option<u64>) {
    child.response.clear();
    child.error_status = 0;
    child.silent = false;
    child.respond(200, content_type.unwrap_or_default(), text);
    child.response.content_length = length;
    engine::filter_again(child);
}

/// How many subrequests one request may have in all: nginx counts those that are under way
/// (`r->main->count`), which a page that includes itself twice would never reach here.
const MAX_IN_ALL: u32 = 65_535 - 1000;
/// How many refusals of one request are told.
const MAX_TOLD: u32 = 100;

/// What a request counts of its subrequests.
#[derive(Default)]
struct Count {
    made: u32,
    refused: u32,
}

impl Request {
    /// A subrequest of this one: the same client, head and variables, another target. `None`: there
    /// are too many, which is in the log.
    pub fn subrequest(&self, uri: &[u8], args: &[u8]) -> Option<Request> {
        if self.subrequests_left == 0 {
            self.refuse(uri, Severity::Error, "subrequests cycle");
            return None;
        }
        let made = self.main.context(|count: &mut Count| {
            count.made += 1;
            count.made
        });
        if made > MAX_IN_ALL {
            self.refuse(uri, Severity::Crit, "request reference counter overflow");
            return None;
        }
        let mut child = self.child(uri, args);
        child.subrequests_left = self.subrequests_left - 1;
        Some(child)
    }

    /// Tells that there is no subrequest.
    #[cold]
    fn refuse(&self, uri: &[u8], severity: Severity, why: &str) {
        if self.tells_refusal() {
            let (shown, doing) = (Shown(uri), self.main.doing.get());
            self.log_error(severity, format_args!("{why} while processing \"{shown}\"{doing}"));
        }
    }

    /// DIFFERS(subrequests-refused): nginx tells each.
    fn tells_refusal(&self) -> bool {
        self.main.context(|count: &mut Count| {
            count.refused = count.refused.saturating_add(1);
            count.refused <= MAX_TOLD
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn a_hundred_refused_subrequests_of_a_request_are_told() {
        let r = testing::request("", "GET / HTTP/1.1\r\n\r\n");
        let told = (0..1_000).filter(|_| r.tells_refusal()).count();
        assert_eq!(told, 100);
        let next = testing::request("", "GET / HTTP/1.1\r\n\r\n");
        assert!(next.tells_refusal());
    }
}
