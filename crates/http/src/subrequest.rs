//! Subrequests whose answer becomes part of another body (`ngx_http_subrequest`,
//! `ngx_http_postpone_filter_module.c`).
//!
//! Invariant: a subrequest begins when it is first polled, and ends with the body that it is in.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use forebay_session::log::Severity;

use crate::{
    body::{Chunk, Fault, Source},
    engine,
    request::Request,
};

/// A subrequest on its way, and then its body.
pub struct Subrequest {
    state: State,
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
        Subrequest { state: State::Answering(answering) }
    }

    /// Works out the answer, not the body; the request that was answered, unless its body was pulled
    /// to the end.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Option<&mut Request>> {
        if let State::Answering(answering) = &mut self.state {
            self.state = State::Sending(ready!(answering.as_mut().poll(cx)));
        }
        Poll::Ready(match &mut self.state {
            State::Sending(child) => Some(child),
            _ => None,
        })
    }
}

impl Source for Subrequest {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        let Some(child) = ready!(self.poll_answer(cx)) else { return Poll::Ready(None) };
        if child.response.header_only {
            self.state = State::Over;
            return Poll::Ready(None);
        }
        let next = ready!(child.response.body.poll_next(cx));
        if !matches!(next, Some(Ok(_))) {
            self.state = State::Over;
        }
        Poll::Ready(next)
    }
}

/// How many subrequests one request may have in all: nginx counts those that are under way
/// (`r->main->count`), which a page that includes itself twice would never reach here.
const MAX_IN_ALL: u32 = 65_535 - 1000;

/// What a request counts of its subrequests.
#[derive(Default)]
struct Count(u32);

impl Request {
    /// A subrequest of this one: the same client, head and variables, another target. `None`: there
    /// are too many, which is in the log.
    pub fn subrequest(&self, uri: &[u8], args: &[u8]) -> Option<Request> {
        let shown = String::from_utf8_lossy(uri);
        if self.subrequests_left == 0 {
            let text = format_args!("subrequests cycle while processing \"{shown}\"");
            self.log_error(Severity::Error, text);
            return None;
        }
        let count = self.main.context(|count: &mut Count| {
            count.0 += 1;
            count.0
        });
        if count > MAX_IN_ALL {
            self.log_error(
                Severity::Crit,
                format_args!("request reference counter overflow while processing \"{shown}\""),
            );
            return None;
        }
        let mut child = self.child(uri, args);
        child.subrequests_left = self.subrequests_left - 1;
        Some(child)
    }
}
