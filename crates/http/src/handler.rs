//! What a module gives to the engine: handlers for the phases, filters for the response, log writers.
//!
//! Each is made once, while the configuration loads, and owns its merged settings; a location holds
//! only those that its configuration switched on.

use std::future::Future;

use forebay_rt::pool::Pooled;

use crate::{client::Client, plan::LocId, request::Request};

/// What a phase handler decided (nginx's `NGX_DECLINED`, `NGX_OK`, `NGX_HTTP_…`, `NGX_DONE`).
pub enum Flow<'a> {
    /// Not mine: go on with the next handler of the phase.
    Decline,
    /// Go on with the next phase. In the access phase: this handler grants access.
    Allow,
    /// Finish the request with this status: an `error_page`, else the built-in page.
    Deny(u16),
    /// `r.response` is complete: send it.
    Done,
    /// `r.uri` and `r.args` were replaced: begin again at the choice of the location.
    Redirect,
    /// Begin again in this named location of the server.
    Named(LocId),
    /// The answer comes later.
    Later(Pooled<dyn Future<Output = Flow<'a>> + 'a>),
}

impl<'a> Flow<'a> {
    /// The answer is what comes of the future that is made.
    pub fn later<F: Future<Output = Flow<'a>> + 'a>(make: impl FnOnce() -> F) -> Flow<'a> {
        Flow::Later(Pooled::new(make).erased())
    }
}

/// A phase handler.
pub trait Handler: Send + Sync {
    /// Handles the request, or a step of it.
    fn handle<'a>(&'a self, r: &'a mut Request, client: &'a mut dyn Client) -> Flow<'a>;
}

/// What a header filter decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filtered {
    /// Go on with the next filter.
    Continue,
    /// Throw this response away and answer with this status, as an error (412, 416).
    Replace(u16),
}

/// Sees each response before it is sent; may change the head and wrap the body.
pub trait Filter: Send + Sync {
    /// Filters `r.response`.
    fn filter(&self, r: &mut Request) -> Filtered;
}

/// Is told of each finished request.
pub trait Logger: Send + Sync {
    /// Writes down what happened.
    fn log(&self, r: &Request);
}
