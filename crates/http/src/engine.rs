//! The way of a request through its plan: post-read, server rewrite, location, rewrite, preaccess, access,
//! precontent, content, filters; and what happens instead when one of them says no.
//!
//! Answers nginx's `ngx_http_core_module.c` (the phase checkers) and `ngx_http_request.c`
//! (`ngx_http_finalize_request`).
//!
//! Invariant: no module is named here.

use std::{future::Future, pin::Pin};

use bytes::Bytes;
use forebay_session::log::{self, Severity};
use forebay_wire::{
    h1::{BodyLength, Method, Version},
    uri,
};

use crate::{
    body_in::RequestBody,
    client::{Client, Nobody, hold_up},
    core::{ErrorPage, Satisfy, Status},
    handler::{Filtered, Flow, Handler},
    plan::{LocId, Plan},
    request::Request,
    response::Field,
    special, tls,
    tree::{self, Located},
};

/// Where a walk through the phases begins.
enum Entry {
    /// The server rewrite phase.
    Server,
    /// The rewrite phase of this location.
    Location(LocId),
}

/// What a walk ended with.
enum End {
    Done,
    Deny(u16),
    Again(Entry),
}

/// Statuses after which the connection is not used again: what follows on it may not be a request.
const CLOSING: [u16; 8] = [400, 413, 414, 495, 496, 497, 500, 501];

/// Works out the response: afterwards `r.response` is complete and filtered.
pub async fn answer(r: &mut Request, client: &mut dyn Client) {
    let plan = r.plan.clone();
    let begun = if r.internal { None } else { post_read(&plan, r, client).await };
    answer_from(&plan, r, client, Entry::Server, begun).await;
}

/// Goes on at an entry, or from what has ended already.
async fn answer_from(
    plan: &Plan,
    r: &mut Request,
    client: &mut dyn Client,
    mut entry: Entry,
    mut begun: Option<End>,
) {
    loop {
        let end = match begun.take() {
            Some(end) => end,
            None => walk(plan, r, client, entry).await,
        };
        let end = match end {
            End::Done => match filter(plan, r) {
                End::Deny(status) => {
                    // Whoever answered has asked for the body, to throw it away (412, 416).
                    r.asks_for_body.get_or_insert(true);
                    End::Deny(status)
                }
                other => other,
            },
            other => other,
        };
        entry = match end {
            End::Done => return,
            End::Again(next) => next,
            End::Deny(status) => match deny(plan, r, status) {
                Some(next) => {
                    if r.asks_for_body == Some(false) {
                        client.forgo_continue();
                    }
                    next
                }
                None => return,
            },
        };
    }
}

/// Runs the `post_action` of a request that has been answered; its own answer goes nowhere. The
/// location whose logs are written is that of the action from now on, as in nginx, and so is the
/// status, unless the answer was an error.
///
/// DIFFERS(post-action-logged): in nginx, fields of which a response has one (`Content-Length`) are those
/// of the action in the log; here, all that was sent.
///
/// DIFFERS(one-post-action): nginx runs the `post_action` of the action's own location, too, up to
/// ten in all; here there is one.
pub async fn post_action(r: &mut Request) {
    let plan = r.plan.clone();
    let target = plan.location(r.location).core.post_action.clone();
    let entry = match target.first() {
        None => return,
        Some(b'@') => match plan.server(r.server).named.get(&target[..]) {
            Some(&id) => Entry::Location(id),
            None => {
                let name = log::Shown(&target);
                let text = format_args!("could not find named location \"{name}\"");
                r.log_error(Severity::Error, text);
                return;
            }
        },
        Some(_) => {
            r.set_target(&target, None);
            Entry::Server
        }
    };
    r.internal = true;
    // The action may tell what was sent (`$status`).
    let head = Box::new(r.response.head());
    let sent = std::mem::replace(&mut r.response, head);
    answer_from(&plan, r, &mut Nobody, entry, None).await;
    let status = r.response.status;
    r.response = sent;
    r.response.status = status;
}

/// Answers a request that never reached its location (a head that does not parse): the error pages
/// are those of the server.
pub async fn reject(r: &mut Request, client: &mut dyn Client, status: u16) {
    r.location = r.plan.server(r.server).location;
    refuse(r, client, status).await;
}

/// Answers a request that is refused where it is, once its handlers are done.
pub async fn refuse(r: &mut Request, client: &mut dyn Client, status: u16) {
    let plan = r.plan.clone();
    answer_from(&plan, r, client, Entry::Server, Some(End::Deny(status))).await;
}

/// Runs a subrequest ([`Request::subrequest`]) to its response. Its body is to be pulled by whoever
/// asked, and it is to be logged then ([`Request::log_subrequest`]).
pub fn subrequest<'a>(r: &'a mut Request) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
    r.main.doing.take();
    Box::pin(async move { answer(r, &mut Nobody).await })
}

/// The post-read phase, once a request: what it ends with, if a handler ends it.
async fn post_read(plan: &Plan, r: &mut Request, client: &mut dyn Client) -> Option<End> {
    r.location = plan.server(r.server).location;
    if r.connection.tls.get().is_some()
        && let Err(status) = tls::admit(r)
    {
        return Some(End::Deny(status));
    }
    for handler in &plan.location(r.location).post_read {
        match run(&**handler, r, client).await {
            Flow::Decline | Flow::Allow => {}
            other => return Some(settle(other, r)),
        }
    }
    None
}

async fn walk(plan: &Plan, r: &mut Request, client: &mut dyn Client, entry: Entry) -> End {
    let mut entry = entry;
    loop {
        if let Entry::Server = entry {
            r.location = plan.server(r.server).location;
            for handler in &plan.location(r.location).rewrite {
                match run(&**handler, r, client).await {
                    Flow::Decline | Flow::Allow => {}
                    // It is what the location is chosen by next.
                    Flow::Redirect => r.rewritten_in_place = false,
                    other => return settle(other, r),
                }
            }
            if let Err(status) = find_location(plan, r) {
                return End::Deny(status);
            }
        } else if let Entry::Location(id) = entry {
            enter(plan, r, id);
        }
        match rewrite(plan, r, client).await {
            Ok(true) => {
                r.rewritten_in_place = false;
                if let Err(status) = find_location(plan, r) {
                    return End::Deny(status);
                }
                entry = Entry::Location(r.location);
                continue;
            }
            Ok(false) => {}
            Err(end) => return end,
        }
        return content(plan, r, client).await;
    }
}

/// The rewrite phase; whether the URI changed, so that the location is to be chosen anew.
async fn rewrite(plan: &Plan, r: &mut Request, client: &mut dyn Client) -> Result<bool, End> {
    if r.location == plan.server(r.server).location {
        // No location was found, and what the server rewrites was rewritten already.
        return Ok(false);
    }
    let handlers = &plan.location(r.location).rewrite;
    for handler in handlers {
        match run(&**handler, r, client).await {
            Flow::Decline | Flow::Allow => {}
            Flow::Redirect => {
                if !spend_cycle(r) {
                    tell_cycle(r, "processing", &r.uri, "");
                    return Err(End::Deny(500));
                }
                return Ok(true);
            }
            other => return Err(settle(other, r)),
        }
    }
    Ok(false)
}

async fn content(plan: &Plan, r: &mut Request, client: &mut dyn Client) -> End {
    if r.method == Method::Connect && !plan.location(r.location).takes_connect {
        return End::Deny(405);
    }
    for handler in &plan.location(r.location).preaccess {
        match run(&**handler, r, client).await {
            Flow::Decline | Flow::Allow => {}
            other => return settle(other, r),
        }
    }
    if !r.subrequest
        && let Err(end) = access(plan, r, client).await
    {
        return end;
    }
    for handler in &plan.location(r.location).precontent {
        match run(&**handler, r, client).await {
            Flow::Decline => {}
            other => return settle(other, r),
        }
    }
    let location = plan.location(r.location);
    for handler in location.sole_content.iter().chain(&location.content) {
        match run(&**handler, r, client).await {
            Flow::Decline => {}
            other => return settle(other, r),
        }
    }
    no_content(r)
}

fn no_content(r: &mut Request) -> End {
    let doing = r.main.doing.get();
    if r.uri.last() == Some(&b'/') {
        let path = crate::files::shown_path(r);
        let text = format_args!("directory index of \"{path}\" is forbidden{doing}");
        r.log_error(Severity::Error, text);
        return End::Deny(403);
    }
    r.log_error(Severity::Error, format_args!("no handler found{doing}"));
    End::Deny(404)
}

async fn access(plan: &Plan, r: &mut Request, client: &mut dyn Client) -> Result<(), End> {
    let location = plan.location(r.location);
    let any = location.core.satisfy == Satisfy::Any;
    let mut refused = None;
    for handler in &location.access {
        match run(&**handler, r, client).await {
            Flow::Decline => {}
            Flow::Allow if any => {
                r.response.remove("WWW-Authenticate");
                return Ok(());
            }
            Flow::Allow => {}
            Flow::Deny(status @ (401 | 403)) if any => {
                // nginx keeps the last refusal, but a request for credentials wins over "forbidden".
                if status != 403 || refused.is_none() {
                    refused = Some(status);
                }
            }
            Flow::Deny(401) => return Err(unauthorized(plan, r, client).await),
            other => return Err(settle(other, r)),
        }
    }
    match refused {
        None => Ok(()),
        Some(401) => Err(unauthorized(plan, r, client).await),
        Some(status) => {
            if status == 403 {
                r.log_error(Severity::Error, format_args!("access forbidden by rule"));
            }
            Err(End::Deny(status))
        }
    }
}

/// 401, after `auth_delay` (`ngx_http_core_auth_delay`), which makes guessing slow.
async fn unauthorized(plan: &Plan, r: &mut Request, client: &mut dyn Client) -> End {
    let delay_ms = plan.location(r.location).core.auth_delay_ms;
    if delay_ms > 0 {
        r.log_error(Severity::Info, format_args!("delaying unauthorized request"));
        if let Err(status) = hold_up(r, client, delay_ms).await {
            return End::Deny(status);
        }
    }
    End::Deny(401)
}

async fn run<'a>(
    handler: &'a dyn Handler,
    r: &'a mut Request,
    client: &'a mut dyn Client,
) -> Flow<'static> {
    let mut flow = handler.handle(r, client);
    loop {
        flow = match flow {
            Flow::Later(future) => future.await,
            Flow::Decline => return Flow::Decline,
            Flow::Allow => return Flow::Allow,
            Flow::Deny(status) => return Flow::Deny(status),
            Flow::Done => return Flow::Done,
            Flow::Redirect => return Flow::Redirect,
            Flow::Named(id) => return Flow::Named(id),
        };
    }
}

/// What a phase that only goes on or ends makes of a handler's word.
fn settle(flow: Flow<'_>, r: &mut Request) -> End {
    match flow {
        Flow::Done => End::Done,
        Flow::Deny(status) => End::Deny(status),
        Flow::Redirect => {
            if !spend_cycle(r) {
                tell_cycle(r, REDIRECTING, &r.uri, "");
                return End::Deny(500);
            }
            End::Again(Entry::Server)
        }
        Flow::Named(id) => {
            if !spend_cycle(r) {
                tell_cycle(r, REDIRECTING_TO_NAMED, &r.plan.location(id).name, "");
                return End::Deny(500);
            }
            r.internal = true;
            r.upstream.leave();
            r.add_uri_to_alias = false;
            End::Again(Entry::Location(id))
        }
        _ => End::Deny(500),
    }
}

const REDIRECTING: &str = "internally redirecting to";
const REDIRECTING_TO_NAMED: &str = "redirect to named location";

/// nginx allows ten changes of the URI in one request: whether there was one left.
fn spend_cycle(r: &mut Request) -> bool {
    r.cycles_left = r.cycles_left.saturating_sub(1);
    r.cycles_left > 0
}

/// Tells that there was none, and where it was to go.
///
/// DIFFERS(cycle-forgets-fields): what the upstreams of a cycle sent is no part of the 500.
#[cold]
fn tell_cycle(r: &Request, doing: &str, target: &[u8], meanwhile: &str) {
    let target = log::Shown(target);
    let cycle = "rewrite or internal redirection cycle";
    r.log_error(Severity::Error, format_args!("{cycle} while {doing} \"{target}\"{meanwhile}"));
}

/// Whether a handler may send the request to a path or a named location. If it may not, that is in the log,
/// and the request ends with 500 where it is (`ngx_http_internal_redirect`, `ngx_http_named_location`).
pub fn may_redirect(r: &mut Request, target: &[u8], meanwhile: &str) -> bool {
    if r.cycles_left > 1 {
        return true;
    }
    r.cycles_left = 0;
    let doing = if target.starts_with(b"@") { REDIRECTING_TO_NAMED } else { REDIRECTING };
    tell_cycle(r, doing, target, meanwhile);
    false
}

/// Goes to a location, or to what its `limit_except` has for this method
/// (`ngx_http_update_location_config`).
fn enter(plan: &Plan, r: &mut Request, id: LocId) {
    r.location = id;
    if let Some((methods, other)) = &plan.location(id).limit_except
        && !methods.iter().any(|allowed| **allowed == *r.method_name())
    {
        r.location = *other;
    }
    let core = &plan.location(r.location).core;
    if core.keepalive_timeout_ms == 0 || r.connection.requests.get() >= core.keepalive_requests {
        // Wherever it leads from here.
        end_connection(r);
    }
}

#[cold]
fn end_connection(r: &mut Request) {
    r.keep_alive &= r.version() == Version::Http2;
}

fn find_location(plan: &Plan, r: &mut Request) -> Result<(), u16> {
    let (id, slash) = match tree::locate(plan, r) {
        Located::At(id) => (id, false),
        Located::Slash(id) => (id, true),
        Located::Broken(id) => {
            r.location = id;
            return Err(500);
        }
    };
    r.location = id;
    if plan.location(id).core.internal && !r.internal {
        return Err(404);
    }
    enter(plan, r, id);
    let limit = plan.location(r.location).core.client_max_body_size;
    // What was read, or thrown away, counts here as well: of a page for an error, or a subrequest.
    let length = match (&r.body, r.input.framing.body) {
        (RequestBody::Memory(bytes), _) => bytes.len() as u64,
        (RequestBody::File(file), _) => file.len,
        (RequestBody::Discarded, _) => 0,
        (_, BodyLength::Length(length)) => length,
        (_, BodyLength::None | BodyLength::Chunked) => 0,
    };
    if limit > 0 && length > limit {
        r.log_error(
            Severity::Error,
            format_args!("client intended to send too large body: {length} bytes"),
        );
        r.asks_for_body.get_or_insert(false);
        r.discard_body();
        return Err(413);
    }
    if slash {
        let mut target = Vec::with_capacity(r.uri.len() + r.args.len() + 2);
        uri::escape(uri::Kind::Uri, &r.uri, &mut target);
        target.push(b'/');
        if !r.args.is_empty() {
            target.push(b'?');
            target.extend_from_slice(&r.args);
        }
        r.response.location = Some(target.into());
        return Err(301);
    }
    Ok(())
}

/// Runs the filters over a response that replaces another; they may not refuse it.
pub fn filter_again(r: &mut Request) {
    let plan = r.plan.clone();
    let _ = filter(&plan, r);
}

fn filter(plan: &Plan, r: &mut Request) -> End {
    if r.error_status != 0 {
        r.response.status = r.error_status;
        // `ngx_http_send_header`: nobody's own words stand beside it.
        r.response.reason = None;
    }
    for filter in &plan.location(r.location).filters {
        match filter.filter(r) {
            Filtered::Continue => {}
            Filtered::Replace(status) => return End::Deny(status),
        }
    }
    End::Done
}

/// Finishes the request with a status: by an error page, which is where to go on; or, with `None`, by
/// the built-in page, filtered already.
fn deny(plan: &Plan, r: &mut Request, status: u16) -> Option<Entry> {
    if CLOSING.contains(&status) {
        r.keep_alive = false;
    }
    if matches!(status, 408 | 444 | 499) {
        // ngx_http_finalize_request: the connection closes without a word, and no page is looked for.
        // An error whose page this was going to be keeps its status (`$status`).
        if r.error_status == 0 {
            r.error_status = status;
        }
        r.response.status = status;
        r.silent = true;
        return None;
    }
    r.error_status = status;
    r.response.forget_body();
    let core = &plan.location(r.location).core;
    if !r.last_error_page && !core.error_pages.is_empty() && r.cycles_left > 0 {
        r.last_error_page = !core.recursive_error_pages;
        let matching = core.error_pages.iter().find_map(|page| {
            let shown_as = page.status_for(status)?;
            Some((page.clone(), shown_as))
        });
        if let Some((error_page, shown_as)) = matching {
            return match show(plan, r, &error_page, shown_as) {
                Shown::Elsewhere(entry) => Some(entry),
                // For which there may be a page in turn.
                Shown::Nowhere => deny(plan, r, 500),
                Shown::Complete => None,
            };
        }
    }
    page(plan, r, r.error_status);
    None
}

fn page(plan: &Plan, r: &mut Request, status: u16) {
    r.asks_for_body.get_or_insert(false);
    if let (true, Some(location)) = (special::wants_refresh(r, status), r.response.location.clone())
    {
        special::refresh(r, &location);
    } else {
        special::respond(r, status);
    }
    // Filters may not turn one error into another: a page is not asked for by range or validator.
    let _ = filter(plan, r);
}

enum Shown {
    /// The page is served from there.
    Elsewhere(Entry),
    /// The response is a redirect, complete.
    Complete,
    /// There is no such location, or too many pages led to each other.
    Nowhere,
}

/// Goes to an error page (`ngx_http_send_error_page`).
fn show(plan: &Plan, r: &mut Request, page: &ErrorPage, status: Status) -> Shown {
    if !matches!(status, Status::OfPage | Status::Is(200)) {
        r.asks_for_body.get_or_insert(false);
    }
    match status {
        Status::Keep => {}
        Status::Is(status) => r.error_status = status,
        Status::OfPage => r.error_status = 0,
    }
    let target = page.uri.value(r);
    match target.first() {
        Some(b'/') => {
            if r.method != Method::Head {
                r.method = Method::Get;
            }
            let (path, args) = match memchr::memchr(b'?', &target) {
                _ if page.uri.as_text().is_some() => (&target[..], page.args.as_deref()),
                Some(at) => (&target[..at], Some(&target[at + 1..])),
                None => (&target[..], Some(&[][..])),
            };
            if !spend_cycle(r) {
                tell_cycle(r, REDIRECTING, path, "");
                return Shown::Nowhere;
            }
            r.set_target(path, args);
            r.showing_error_page = true;
            Shown::Elsewhere(Entry::Server)
        }
        Some(b'@') => {
            if !spend_cycle(r) {
                tell_cycle(r, REDIRECTING_TO_NAMED, &target, "");
                return Shown::Nowhere;
            }
            if r.uri.is_empty() {
                // That of the request was none.
                let name = log::Shown(&target);
                let doing = match r.version() {
                    Version::Http2 => "processing HTTP/2 connection",
                    _ => "reading client request line",
                };
                let text = format_args!(
                    "empty URI in redirect to named location \"{name}\" while {doing}"
                );
                r.log_error(Severity::Error, text);
                return Shown::Nowhere;
            }
            let Some(&id) = plan.server(r.server).named.get(&target[..]) else {
                let name = log::Shown(&target);
                let text = format_args!("could not find named location \"{name}\"");
                r.log_error(Severity::Error, text);
                return Shown::Nowhere;
            };
            r.internal = true;
            r.upstream.leave();
            r.showing_error_page = true;
            Shown::Elsewhere(Entry::Location(id))
        }
        _ => {
            let status = match status {
                Status::Is(status @ (301 | 302 | 303 | 307 | 308)) => status,
                _ => 302,
            };
            r.error_status = status;
            let before = r.response.fields.len();
            r.response.location = Some(target.into());
            self::page(plan, r, status);
            if before > 0
                && let Some(value) =
                    r.response.location.take_if(|location| location.first() != Some(&b'/'))
            {
                // It stands behind what was there already: `WWW-Authenticate` of a subrequest.
                let before = before.min(r.response.fields.len());
                let name = Bytes::from_static(b"Location");
                r.response.fields.insert(before, Field { name, value });
            }
            Shown::Complete
        }
    }
}
