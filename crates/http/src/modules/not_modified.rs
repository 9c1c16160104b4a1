//! Conditional requests: 304 and 412 (`ngx_http_not_modified_filter_module.c`, RFC 9110 §13).
//!
//! As in nginx, a request with both `If-None-Match` and `If-Modified-Since` gets a 304 only when
//! both hold.
//!
//! Invariant: only a main request's 200 is ever replaced.

use forebay_wire::{
    date::parse_http_time,
    h1::{Field, FieldId},
};

use crate::{
    body::Body,
    core::IfModifiedSince,
    handler::{Filter, Filtered},
    module::{Builder, Conf, Directive, Module},
    request::Request,
};

/// `ngx_http_not_modified_filter_module`.
pub struct NotModified;

/// It has no directives; `if_modified_since` is the core module's.
#[derive(Default)]
pub struct NoConf;

impl Conf for NoConf {
    fn inherit(&mut self, _parent: &Self) {}
}

impl Module for NotModified {
    type Conf = NoConf;
    const NAME: &'static str = "ngx_http_not_modified_filter_module";
    const DIRECTIVES: &'static [Directive<NoConf>] = &[];

    fn build(_conf: &NoConf, b: &mut Builder<'_, '_, '_>) -> Result<(), forebay_conf::Error> {
        b.filter(Conditions);
        Ok(())
    }
}

struct Conditions;

/// What of a condition's fields the request has.
#[derive(Default)]
struct Asked<'a> {
    unmodified_since: Option<&'a [u8]>,
    matches: Option<&'a [u8]>,
    modified_since: Option<&'a [u8]>,
    none_match: Option<&'a [u8]>,
}

impl<'a> Asked<'a> {
    fn of(headers: &'a [Field], buf: &'a [u8]) -> Option<Asked<'a>> {
        let mut asked = Asked::default();
        let mut any = false;
        for field in headers {
            let slot = match field.id {
                FieldId::IfUnmodifiedSince => &mut asked.unmodified_since,
                FieldId::IfMatch => &mut asked.matches,
                FieldId::IfModifiedSince => &mut asked.modified_since,
                FieldId::IfNoneMatch => &mut asked.none_match,
                _ => continue,
            };
            slot.get_or_insert(field.value.of(buf));
            any = true;
        }
        any.then_some(asked)
    }
}

impl Filter for Conditions {
    fn filter(&self, r: &mut Request) -> Filtered {
        if r.response.status != 200 || r.subrequest || r.response.not_modified_off {
            return Filtered::Continue;
        }
        let Some(asked) = Asked::of(&r.input.head.headers, &r.input.buf) else {
            return Filtered::Continue;
        };
        let modified = r.response.last_modified;
        let etag = r.response.field("ETag").map(|value| &value[..]);
        let precondition_failed =
            asked.unmodified_since.is_some_and(|since| !unmodified(since, modified))
                || asked.matches.is_some_and(|list| !matches(list, etag, Comparison::Strong));
        if precondition_failed {
            // As after `ngx_http_filter_finalize_request`: nothing of the response stays but `gzip_vary`.
            let vary = r.response.vary_accept_encoding;
            r.response.clear();
            r.response.vary_accept_encoding = vary;
            // DIFFERS(keep-alive-after-412): nginx, having had a response replaced by a filter,
            // closes the connection.
            return Filtered::Replace(412);
        }
        let rule = r.location().core.if_modified_since;
        let fresh = match (asked.modified_since, asked.none_match) {
            (None, None) => false,
            (since, list) => {
                since.is_none_or(|since| !modified_after(since, modified, rule))
                    && list.is_none_or(|list| matches(list, etag, Comparison::Weak))
            }
        };
        if fresh {
            not_modified(r);
        }
        Filtered::Continue
    }
}

fn not_modified(r: &mut Request) {
    let response = &mut r.response;
    response.status = 304;
    response.content_type = None;
    response.charset = None;
    response.content_length = None;
    response.allow_ranges = false;
    response.forget_accept_ranges();
    response.remove("Content-Encoding");
    response.body = Body::Empty;
}

/// `If-Unmodified-Since` (`ngx_http_test_if_unmodified`): a date that is none is long ago.
fn unmodified(since: &[u8], modified: Option<i64>) -> bool {
    modified.is_some_and(|modified| parse_http_time(since).unwrap_or(-1) >= modified)
}

/// `If-Modified-Since` (`ngx_http_test_if_modified`).
fn modified_after(since: &[u8], modified: Option<i64>, rule: IfModifiedSince) -> bool {
    let Some(modified) = modified else { return true };
    let since = parse_http_time(since).unwrap_or(-1);
    match rule {
        IfModifiedSince::Off => true,
        IfModifiedSince::Exact => since != modified,
        IfModifiedSince::Before => since < modified,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Comparison {
    Strong,
    Weak,
}

/// Whether the entity tag is in the list (`ngx_http_test_if_match`).
fn matches(list: &[u8], etag: Option<&[u8]>, comparison: Comparison) -> bool {
    if list == b"*" {
        return true;
    }
    let Some(etag) = etag else { return false };
    let strip = |tag: &mut &[u8]| match tag.strip_prefix(b"W/") {
        Some(rest) if comparison == Comparison::Weak && !rest.is_empty() => *tag = rest,
        _ => {}
    };
    let mut etag = etag;
    strip(&mut etag);
    let mut rest = list;
    while !rest.is_empty() {
        strip(&mut rest);
        if let Some(after) = rest.strip_prefix(etag) {
            rest = skip(after, b" \t");
            if matches!(rest.first(), None | Some(b',')) {
                return true;
            }
        }
        let comma = memchr::memchr(b',', rest).unwrap_or(rest.len());
        rest = skip(&rest[comma..], b" \t,");
    }
    false
}

fn skip<'a>(text: &'a [u8], what: &[u8]) -> &'a [u8] {
    let count = text.iter().take_while(|b| what.contains(b)).count();
    &text[count..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const TIME: i64 = 784_111_777;
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    #[test]
    fn entity_tags_are_found_in_lists() {
        use Comparison::{Strong, Weak};
        for (list, etag, how, want) in [
            ("*", None, Strong, true),
            ("*", Some("\"a\""), Weak, true),
            ("\"a\"", None, Weak, false),
            ("\"a\"", Some("\"a\""), Strong, true),
            ("\"b\"", Some("\"a\""), Strong, false),
            ("\"b\", \"a\"", Some("\"a\""), Strong, true),
            ("\"b\",\t,, \"a\" ,\"c\"", Some("\"a\""), Strong, true),
            ("\"ab\", \"a\"x", Some("\"a\""), Strong, false),
            ("W/\"a\"", Some("\"a\""), Weak, true),
            ("W/\"a\"", Some("\"a\""), Strong, false),
            ("\"a\"", Some("W/\"a\""), Weak, true),
            ("\"a\"", Some("W/\"a\""), Strong, false),
            ("W/\"a\"", Some("W/\"a\""), Strong, true),
            ("\"x\", W/\"a\" , \"y\"", Some("W/\"a\""), Weak, true),
            ("a", Some("\"a\""), Weak, false),
            ("", Some("\"a\""), Weak, false),
            ("W/", Some("\"a\""), Weak, false),
            (",,,,", Some("\"a\""), Weak, false),
            ("*, \"b\"", Some("\"a\""), Weak, false),
        ] {
            let etag = etag.map(str::as_bytes);
            assert_eq!(matches(list.as_bytes(), etag, how), want, "{list} {etag:?}");
        }
    }

    #[test]
    fn modification_times_are_compared_as_configured() {
        use IfModifiedSince::{Before, Exact, Off};
        for (since, modified, rule, want) in [
            (DATE, Some(TIME), Exact, false),
            (LATER, Some(TIME), Exact, true),
            (EARLIER, Some(TIME), Exact, true),
            (DATE, Some(TIME), Before, false),
            (LATER, Some(TIME), Before, false),
            (EARLIER, Some(TIME), Before, true),
            (DATE, Some(TIME), Off, true),
            (DATE, None, Before, true),
            ("yesterday", Some(TIME), Before, true),
            ("", Some(TIME), Exact, true),
        ] {
            assert_eq!(modified_after(since.as_bytes(), modified, rule), want, "{since} {rule:?}");
        }
        for (since, modified, want) in [
            (DATE, Some(TIME), true),
            (LATER, Some(TIME), true),
            (EARLIER, Some(TIME), false),
            (DATE, None, false),
            ("tomorrow", Some(TIME), false),
        ] {
            assert_eq!(unmodified(since.as_bytes(), modified), want, "{since}");
        }
    }

    fn answer(fields: &str) -> Request {
        let mut r = testing::request("", &format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        r.respond(200, "text/plain".into(), "hello".into());
        r.response.last_modified = Some(TIME);
        r.response.add("ETag", "\"a\"");
        r.response.add("Content-Encoding", "br");
        r.response.add("X-Kept", "1");
        let filtered = Conditions.filter(&mut r);
        let replaced = matches!(filtered, Filtered::Replace(412));
        assert_eq!(replaced, r.response.status == 0);
        r
    }

    #[test]
    fn all_conditions_must_hold() {
        for (fields, want) in [
            (String::new(), 200),
            (format!("If-Modified-Since: {DATE}\r\n"), 304),
            (format!("If-Modified-Since: {LATER}\r\n"), 200),
            ("If-None-Match: \"b\", W/\"a\"\r\n".into(), 304),
            ("If-None-Match: \"b\"\r\n".into(), 200),
            (format!("If-Modified-Since: {LATER}\r\nIf-None-Match: \"a\"\r\n"), 200),
            (format!("If-Modified-Since: {DATE}\r\nIf-None-Match: \"a\"\r\n"), 304),
            ("If-Match: \"b\"\r\n".into(), 0),
            ("If-Match: \"a\"\r\n".into(), 200),
            ("If-Match: \"a\"\r\nIf-None-Match: \"a\"\r\n".into(), 304),
            (format!("If-Unmodified-Since: {EARLIER}\r\n"), 0),
            (format!("If-Unmodified-Since: {DATE}\r\n"), 200),
        ] {
            assert_eq!(answer(&fields).response.status, want, "{fields}");
        }
    }

    #[test]
    fn a_304_loses_what_describes_the_body_and_keeps_the_rest() {
        let r = answer("If-None-Match: *\r\n");
        let response = &r.response;
        assert_eq!((response.content_type.is_none(), response.content_length), (true, None));
        assert!(matches!(response.body, Body::Empty));
        let names: Vec<_> = response.fields.iter().map(|field| &field.name[..]).collect();
        assert_eq!(names, [&b"ETag"[..], b"X-Kept"]);
        assert_eq!(response.last_modified, Some(TIME));
    }

    #[test]
    fn other_statuses_and_subrequests_are_left_alone() {
        for (status, subrequest) in [(206, false), (404, false), (200, true)] {
            let head = "GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: *\r\n\r\n";
            let mut r = testing::request("", head);
            r.respond(status, "text/plain".into(), "hello".into());
            r.subrequest = subrequest;
            assert_eq!(Conditions.filter(&mut r), Filtered::Continue);
            assert_eq!(r.response.status, status);
        }
    }
}
