//! Puts what subrequests answer into the bodies that they belong to
//! (`ngx_http_postpone_filter_module.c`).
//!
//! Filters before this one pass subrequests on without a look inside: their answers went through the
//! filters of their own locations. Filters behind it (`gzip`) see one body.
//!
//! Invariant: bytes leave in the order in which they stand in the body, whoever is ready first.

use std::{
    collections::VecDeque,
    mem,
    task::{Context, Poll, ready},
};

use super::not_modified::NoConf;
use crate::{
    body::{Body, Chunk, Fault, Source},
    handler::{Filter, Filtered},
    module::{Builder, Directive, Module},
    request::Request,
};

/// `ngx_http_postpone_filter_module`.
pub struct Postpone;

impl Module for Postpone {
    type Conf = NoConf;
    const NAME: &'static str = "ngx_http_postpone_filter_module";
    const DIRECTIVES: &'static [Directive<NoConf>] = &[];

    fn build(_conf: &NoConf, b: &mut Builder<'_, '_, '_>) -> Result<(), forebay_conf::Error> {
        if b.nests {
            b.filter(Flatten);
        }
        Ok(())
    }
}

struct Flatten;

impl Filter for Flatten {
    fn filter(&self, r: &mut Request) -> Filtered {
        if let Body::Stream(_) = r.response.body {
            let body = mem::take(&mut r.response.body);
            r.response.body = Body::Stream(Box::new(Flat {
                body,
                ahead: VecDeque::new(),
                bytes_ahead: 0,
                end: None,
            }));
        }
        Filtered::Continue
    }
}

/// How many bytes are read ahead while a subrequest is being waited for.
const BYTES_AHEAD: u64 = 64 << 10;
/// How many pieces, subrequests among them.
const CHUNKS_AHEAD: usize = 64;

struct Flat {
    body: Body,
    /// What stands behind a subrequest that is being waited for.
    ahead: VecDeque<Chunk>,
    bytes_ahead: u64,
    end: Option<Result<(), Fault>>,
}

impl Flat {
    /// While the first subrequest waits, those behind it begin, so that they all wait at once.
    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        for chunk in self.ahead.iter_mut().skip(1) {
            if let Chunk::Nested(child) = chunk {
                drop(child.poll_answer(cx));
            }
        }
        while self.end.is_none()
            && self.ahead.len() < CHUNKS_AHEAD
            && self.bytes_ahead < BYTES_AHEAD
        {
            let Poll::Ready(next) = self.body.poll_next(cx) else { return };
            match next {
                Some(Ok(mut chunk)) => {
                    if let Chunk::Nested(child) = &mut chunk {
                        drop(child.poll_answer(cx));
                    }
                    // Files are not read yet, and cost nothing.
                    if let Chunk::Bytes(bytes) = &chunk {
                        self.bytes_ahead += bytes.len() as u64;
                    }
                    self.ahead.push_back(chunk);
                }
                Some(Err(fault)) => self.end = Some(Err(fault)),
                None => self.end = Some(Ok(())),
            }
        }
    }
}

impl Source for Flat {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Fault>>> {
        loop {
            if let Some(Chunk::Nested(child)) = self.ahead.front_mut() {
                match child.poll_next(cx) {
                    Poll::Ready(Some(chunk)) => return Poll::Ready(Some(chunk)),
                    Poll::Ready(None) => drop(self.ahead.pop_front()),
                    Poll::Pending => {
                        self.read_ahead(cx);
                        return Poll::Pending;
                    }
                }
                continue;
            }
            if let Some(chunk) = self.ahead.pop_front() {
                if let Chunk::Bytes(bytes) = &chunk {
                    self.bytes_ahead = self.bytes_ahead.saturating_sub(bytes.len() as u64);
                }
                return Poll::Ready(Some(Ok(chunk)));
            }
            match self.end {
                Some(Ok(())) => return Poll::Ready(None),
                Some(Err(fault)) => {
                    self.end = Some(Ok(()));
                    return Poll::Ready(Some(Err(fault)));
                }
                None => {}
            }
            match ready!(self.body.poll_next(cx)) {
                Some(Ok(child @ Chunk::Nested(_))) => self.ahead.push_back(child),
                other => return Poll::Ready(other),
            }
        }
    }
}
