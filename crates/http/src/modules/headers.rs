//! `add_header`, `add_trailer`, `expires` (`ngx_http_headers_filter_module.c`).
//!
//! DIFFERS(trailer-value-early): the value of a trailer is worked out with the head, not after the
//! last byte of the body; variables that only the end of the body knows are those of its beginning, and
//! `$sent_http_content_type` has no charset yet.
//!
//! Invariant: fields are only added or replaced here; nothing looks at the body.

use std::{cell::RefCell, sync::Arc};

use bytes::Bytes;
use forebay_conf::{Arity, Error, Node, value};
use forebay_rt::clock::{self, LocalTime};
use forebay_session::var::Template;
use forebay_wire::{
    date::{days_from_civil, parse_http_time, write_http_time},
    h1::encode::write_decimal,
};

use crate::{
    handler::{Filter, Filtered},
    module::{self, ANY_IF, Builder, Cx, Directive, Module, set},
    request::Request,
    response::{Field, Response},
};

/// `ngx_http_headers_module`.
pub struct Headers;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    expires: Option<Expires>,
    headers: List,
    trailers: List,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; expires);
        self.headers.inherit(&parent.headers);
        self.trailers.inherit(&parent.trailers);
    }
}

/// `add_header`s or `add_trailer`s, and how they come down from the level above.
#[derive(Default)]
struct List {
    own: Vec<Arc<Added>>,
    rule: Option<Inherit>,
}

/// `add_header_inherit`, `add_trailer_inherit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inherit {
    /// Those of the level above hold where none stand here.
    On,
    /// They do not.
    Off,
    /// They hold beside those that stand here, after them.
    Merge,
}

impl List {
    fn inherit(&mut self, parent: &List) {
        self.rule = self.rule.or(parent.rule);
        match self.rule.unwrap_or(Inherit::On) {
            Inherit::Off => {}
            Inherit::On if !self.own.is_empty() => {}
            Inherit::On | Inherit::Merge => self.own.extend(parent.own.iter().cloned()),
        }
    }
}

/// One `add_header` or `add_trailer`.
struct Added {
    name: Bytes,
    value: Value,
    /// Whatever the status.
    always: bool,
    how: How,
}

enum Value {
    Fixed(Bytes),
    Computed(Template),
}

impl Value {
    fn parse(arg: &forebay_conf::Arg, cx: &mut Cx<'_, '_>) -> Result<Value, Error> {
        let template = Template::parse(&arg.value, arg.span, &mut cx.registry)?;
        Ok(match template.as_text() {
            Some(text) => Value::Fixed(Bytes::copy_from_slice(text)),
            None => Value::Computed(template),
        })
    }

    fn of(&self, r: &Request) -> Bytes {
        match self {
            Value::Fixed(value) => value.clone(),
            Value::Computed(template) => template.value(r).into(),
        }
    }
}

/// Which fields a new one displaces (`ngx_http_set_headers`).
#[derive(Clone, Copy)]
enum How {
    /// None: it is one more line.
    Add,
    /// None; other modules do not look at it.
    Coding,
    /// The `ETag` there is; an empty value removes it.
    Etag,
    /// The `Last-Modified` there is; an empty value removes it.
    LastModified,
}

/// `expires`.
#[derive(Clone)]
enum Expires {
    Off,
    Fixed(Moment),
    /// From variables, at each response; nonsense adds nothing.
    Computed {
        value: Arc<Template>,
        modified: bool,
    },
}

/// When a response gets stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Off,
    /// Always was.
    Epoch,
    /// In 2037.
    Max,
    /// That many seconds after it was sent.
    Access(i64),
    /// That many seconds after `Last-Modified`.
    Modified(i64),
    /// When the local time of day is next that many seconds after midnight.
    Daily(i64),
}

impl Moment {
    /// `ngx_http_parse_expires`. Errors: nginx's words for what is wrong.
    fn parse(text: &[u8], modified: bool) -> Result<Moment, &'static str> {
        match text {
            b"epoch" if !modified => return Ok(Moment::Epoch),
            b"max" if !modified => return Ok(Moment::Max),
            b"off" if !modified => return Ok(Moment::Off),
            _ => {}
        }
        let (sign, digits) = match text {
            [sign @ (b'@' | b'+' | b'-'), digits @ ..] => (*sign, digits),
            digits => (b'+', digits),
        };
        if sign == b'@' && modified {
            return Err("daily time cannot be used with \"modified\" parameter");
        }
        let seconds = value::sec(digits).and_then(|seconds| i64::try_from(seconds).ok());
        let seconds = seconds.ok_or("invalid value")?;
        match sign {
            b'@' if seconds > 24 * 60 * 60 => Err("daily time value must be less than 24 hours"),
            b'@' => Ok(Moment::Daily(seconds)),
            sign => {
                let seconds = if sign == b'-' { -seconds } else { seconds };
                Ok(if modified { Moment::Modified(seconds) } else { Moment::Access(seconds) })
            }
        }
    }
}

impl Module for Headers {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_headers_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "add_header",
            &["name value [always]"],
            "",
            ANY_IF,
            Arity::between(2, 3),
            "Adds a field to responses.",
            |c, n, cx| add(&mut c.headers, n, cx, how(&n.args[0].value)),
        ),
        set(
            "add_header_inherit",
            &["on | off | merge"],
            "on",
            ANY_IF,
            Arity::ONE,
            "How the add_header directives of the level above hold.",
            |c, n, _| set_inherit(&mut c.headers, n),
        ),
        set(
            "add_trailer",
            &["name value [always]"],
            "",
            ANY_IF,
            Arity::between(2, 3),
            "Adds a field to the end of responses.",
            |c, n, cx| add(&mut c.trailers, n, cx, How::Add),
        ),
        set(
            "add_trailer_inherit",
            &["on | off | merge"],
            "on",
            ANY_IF,
            Arity::ONE,
            "How the add_trailer directives of the level above hold.",
            |c, n, _| set_inherit(&mut c.trailers, n),
        ),
        set(
            "expires",
            &["[modified] time", "epoch | max | off"],
            "off",
            ANY_IF,
            Arity::ONE_OR_TWO,
            "Adds Expires and Cache-Control to responses.",
            expires,
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let expires = match conf.expires.clone() {
            None | Some(Expires::Off) => None,
            some => some,
        };
        let (headers, trailers) = (conf.headers.own.clone(), conf.trailers.own.clone());
        if expires.is_some() || !headers.is_empty() || !trailers.is_empty() {
            b.filter(HeadersFilter { expires, headers, trailers: trailers.clone() });
        }
        if !trailers.is_empty() {
            b.last_filter(TrailersFilter(trailers));
        }
        Ok(())
    }
}

fn how(name: &[u8]) -> How {
    if name.eq_ignore_ascii_case(b"Last-Modified") {
        How::LastModified
    } else if name.eq_ignore_ascii_case(b"ETag") {
        How::Etag
    } else if name.eq_ignore_ascii_case(b"Content-Encoding") {
        How::Coding
    } else {
        How::Add
    }
}

fn add(list: &mut List, node: &Node, cx: &mut Cx<'_, '_>, how: How) -> Result<(), Error> {
    let value = Value::parse(&node.args[1], cx)?;
    let always = match node.args.get(2) {
        None => false,
        Some(arg) if arg.is("always") => true,
        Some(arg) => return Err(value::invalid_parameter(arg)),
    };
    let name = Bytes::copy_from_slice(&node.args[0].value);
    list.own.push(Arc::new(Added { name, value, always, how }));
    Ok(())
}

fn set_inherit(list: &mut List, node: &Node) -> Result<(), Error> {
    let table = [("on", Inherit::On), ("off", Inherit::Off), ("merge", Inherit::Merge)];
    value::set_enum(&mut list.rule, node, &table)
}

fn expires(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    value::set_once(&mut conf.expires, node, |node| {
        let (arg, modified) = match &node.args[..] {
            [first, time] if first.is("modified") => (time, true),
            [first, _] => return Err(value::unreadable(node, first)),
            [time, ..] => (time, false),
            [] => return Err(node.error("invalid value")),
        };
        let template = Template::parse(&arg.value, arg.span, &mut cx.registry)?;
        if template.as_text().is_none() {
            return Ok(Expires::Computed { value: Arc::new(template), modified });
        }
        match Moment::parse(&arg.value, modified) {
            Ok(Moment::Off) => Ok(Expires::Off),
            Ok(moment) => Ok(Expires::Fixed(moment)),
            Err(text) => Err(node.error(text)),
        }
    })
}

struct HeadersFilter {
    expires: Option<Expires>,
    headers: Vec<Arc<Added>>,
    trailers: Vec<Arc<Added>>,
}

impl Filter for HeadersFilter {
    fn filter(&self, r: &mut Request) -> Filtered {
        if r.subrequest {
            return Filtered::Continue;
        }
        let safe = is_safe(r.response.status);
        if safe && let Some(expires) = &self.expires {
            set_expires(r, expires);
        }
        for added in self.headers.iter().filter(|added| safe || added.always) {
            let value = added.value.of(r);
            added.apply(&mut r.response, value);
        }
        // Whatever they will say, the body is to be one that may have some.
        if self.trailers.iter().any(|added| safe || added.always) {
            r.response.trailers.push(Field { name: Bytes::new(), value: Bytes::new() });
        }
        Filtered::Continue
    }
}

fn is_safe(status: u16) -> bool {
    matches!(status, 200 | 201 | 204 | 206 | 301..=304 | 307 | 308)
}

struct TrailersFilter(Vec<Arc<Added>>);

impl Filter for TrailersFilter {
    fn filter(&self, r: &mut Request) -> Filtered {
        if r.subrequest {
            return Filtered::Continue;
        }
        // DIFFERS(trailers-once): ngx_http_chunked_body_filter writes them behind each last buffer, of which
        // `add_after_body` makes two.
        let safe = is_safe(r.response.status);
        for added in self.0.iter().filter(|added| safe || added.always) {
            let value = added.value.of(r);
            r.response.trailers.push(Field { name: added.name.clone(), value });
        }
        Filtered::Continue
    }
}

impl Added {
    fn apply(&self, response: &mut Response, value: Bytes) {
        if let How::LastModified = self.how {
            response.last_modified = parse_http_time(&value);
        }
        let old = match self.how {
            How::Add | How::Coding => None,
            How::Etag | How::LastModified => {
                let is_it = |field: &Field| field.name.eq_ignore_ascii_case(&self.name);
                response.fields.iter().position(is_it)
            }
        };
        match (old, value.is_empty()) {
            (Some(at), true) => drop(response.fields.remove(at)),
            (None, true) => {}
            (Some(at), false) => {
                response.fields[at] = Field { name: self.name.clone(), value };
            }
            (None, false) => {
                if let How::Coding = self.how
                    && response.field("Content-Encoding").is_none()
                {
                    response.coding_is_added = true;
                }
                response.fields.push(Field { name: self.name.clone(), value });
            }
        }
    }
}

/// `ngx_http_set_expires`.
fn set_expires(r: &mut Request, expires: &Expires) {
    let (moment, negative) = match expires {
        Expires::Off => return,
        // nginx: a negative time in the file is never fresh, though it may count from a
        // modification in the future.
        Expires::Fixed(moment @ (Moment::Access(time) | Moment::Modified(time))) => {
            (*moment, *time < 0)
        }
        Expires::Fixed(moment) => (*moment, false),
        Expires::Computed { value, modified } => match Moment::parse(&value.value(r), *modified) {
            Ok(moment) => (moment, false),
            Err(_) => return,
        },
    };
    let now = (clock::wall_ms() / 1000) as i64;
    let (at, age) = match moment {
        Moment::Off => return,
        Moment::Epoch => return put(r, 1, Bytes::from_static(b"no-cache")),
        Moment::Max => return put(r, MAX, Bytes::from_static(b"max-age=315360000")),
        Moment::Access(time) => (now.saturating_add(time), time),
        Moment::Modified(0) => (now, 0),
        Moment::Modified(time) => match r.response.last_modified {
            None => (now.saturating_add(time), time),
            Some(modified) => {
                let at = modified.saturating_add(time);
                (at, at.saturating_sub(now))
            }
        },
        Moment::Daily(time) => {
            let at = next_time(time, now, clock::local_time);
            (at, at - now)
        }
    };
    if negative || age < 0 {
        return put(r, at, Bytes::from_static(b"no-cache"));
    }
    let mut value = b"max-age=".to_vec();
    write_decimal(&mut value, age as u64);
    put(r, at, value.into());
}

/// Thu, 31 Dec 2037 23:55:55 GMT.
const MAX: i64 = 2_145_916_555;

fn put(r: &mut Request, at: i64, cache_control: Bytes) {
    replace(&mut r.response, "Expires", http_time(at));
    replace(&mut r.response, "Cache-Control", cache_control);
}

/// Puts a value in the place of the first field of that name; the others go.
fn replace(response: &mut Response, name: &'static str, value: Bytes) {
    let is_it = |field: &Field| field.name.eq_ignore_ascii_case(name.as_bytes());
    let Some(at) = response.fields.iter().position(is_it) else { return response.add(name, value) };
    response.fields[at].value = value;
    let mut index = 0;
    response.fields.retain(|field| {
        index += 1;
        index - 1 <= at || !is_it(field)
    });
}

/// The text of a moment; the last one is kept, as within a second the answer is often the same.
fn http_time(at: i64) -> Bytes {
    thread_local! {
        static LAST: RefCell<(i64, Bytes)> = const { RefCell::new((i64::MIN, Bytes::new())) };
    }
    LAST.with_borrow_mut(|(last, text)| {
        if *last != at {
            let mut new = [0; 29];
            write_http_time(at, &mut new);
            *text = Bytes::copy_from_slice(&new);
            *last = at;
        }
        text.clone()
    })
}

/// When it is next `of_day` seconds after midnight (`ngx_next_time`).
fn next_time(of_day: i64, now: i64, local: impl Fn(i64) -> LocalTime) -> i64 {
    let today = local(now);
    let first = days_from_civil(today.year.into(), today.month as u8, today.day as u8);
    let at = |day: i64| {
        let wall = (first + day) * 86_400 + of_day;
        let guess = wall - i64::from(today.offset_minutes) * 60;
        // Summer time may begin or end in between.
        wall - i64::from(local(guess).offset_minutes) * 60
    };
    match at(0) {
        next if next > now => next,
        _ => at(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn fields(conf: &str, status: u16) -> String {
        let mut r = testing::request(conf, "GET /?v=x HTTP/1.1\r\nHost: a\r\n\r\n");
        respond(&mut r, status);
        testing::fields(&r)
    }

    fn respond(r: &mut Request, status: u16) {
        r.respond(status, "text/plain".into(), "hello".into());
        r.response.last_modified = Some(784_111_777);
        r.response.add("ETag", "\"a\"");
        let plan = r.plan.clone();
        for filter in &plan.location(r.location).filters {
            assert_eq!(filter.filter(r), Filtered::Continue);
        }
    }

    #[test]
    fn fields_are_added_to_good_answers_and_always() {
        let conf = "add_header A 1; add_header A 2; add_header B 3 always; add_header C \"\";";
        let good = "ETag: \"a\"\nA: 1\nA: 2\nB: 3\n";
        for status in [200, 201, 204, 206, 301, 302, 303, 304, 307, 308] {
            assert_eq!(fields(conf, status), good, "{status}");
        }
        for status in [202, 205, 300, 305, 400, 403, 404, 416, 500, 503] {
            assert_eq!(fields(conf, status), "ETag: \"a\"\nB: 3\n", "{status}");
        }
    }

    #[test]
    fn some_fields_replace_what_is_there() {
        for (conf, want) in [
            ("add_header etag '\"b\"';", "etag: \"b\"\n"),
            ("add_header ETag '';", ""),
            ("add_header ETag 1; add_header ETag 2;", "ETag: 2\n"),
            (
                "add_header Cache-Control a; add_header cache-control b;",
                "ETag: \"a\"\nCache-Control: a\ncache-control: b\n",
            ),
            ("add_header Last-Modified x;", "ETag: \"a\"\nLast-Modified: x\n"),
        ] {
            assert_eq!(fields(conf, 200), want, "{conf}");
        }
    }

    #[test]
    fn last_modified_is_the_one_that_conditions_are_checked_with() {
        for (value, want) in
            [("Sun, 06 Nov 1994 08:49:38 GMT", Some(784_111_778)), ("", None), ("nonsense", None)]
        {
            let conf = format!("add_header Last-Modified '{value}';");
            let mut r = testing::request(&conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            respond(&mut r, 200);
            assert_eq!(r.response.last_modified, want, "{value}");
        }
    }

    #[test]
    fn trailers_are_kept_for_the_end() {
        let conf = "add_trailer A 1; add_trailer B 2 always;";
        for (status, want) in [(200, 2), (404, 1)] {
            let mut r = testing::request(conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            respond(&mut r, status);
            let told = r.response.trailers.iter().filter(|field| !field.value.is_empty());
            assert_eq!(told.count(), want);
        }
    }

    #[test]
    fn subrequests_get_nothing() {
        let mut r = testing::request("add_header A 1; expires max;", "GET / HTTP/1.1\r\n\r\n");
        r.subrequest = true;
        respond(&mut r, 200);
        assert_eq!(testing::fields(&r), "ETag: \"a\"\n");
    }

    #[test]
    fn levels_inherit_as_the_rule_says() {
        let names = |rule: &str, own: &str| {
            let mut parent = List { own: vec![added("P")], rule: None };
            parent.inherit(&List::default());
            let rule = match rule {
                "off" => Some(Inherit::Off),
                "merge" => Some(Inherit::Merge),
                "on" => Some(Inherit::On),
                _ => None,
            };
            let own = own.chars().map(|name| added(&name.to_string())).collect();
            let mut child = List { own, rule };
            child.inherit(&parent);
            let mut grandchild = List { own: vec![added("G")], rule: None };
            grandchild.inherit(&child);
            let text = |list: &List| {
                let names = list.own.iter().map(|added| added.name.to_vec());
                String::from_utf8(names.collect::<Vec<_>>().concat()).unwrap()
            };
            (text(&child), text(&grandchild))
        };
        for (rule, own, child, grandchild) in [
            ("", "", "P", "G"),
            ("", "C", "C", "G"),
            ("on", "C", "C", "G"),
            ("off", "", "", "G"),
            ("off", "C", "C", "G"),
            ("merge", "", "P", "GP"),
            ("merge", "CD", "CDP", "GCDP"),
        ] {
            assert_eq!(names(rule, own), (child.to_owned(), grandchild.to_owned()), "{rule} {own}");
        }
    }

    fn added(name: &str) -> Arc<Added> {
        let name = Bytes::copy_from_slice(name.as_bytes());
        Arc::new(Added { name, value: Value::Fixed("1".into()), always: false, how: How::Add })
    }

    #[test]
    fn expires_is_read_as_nginx_reads_it() {
        for (text, modified, want) in [
            ("epoch", false, Ok(Moment::Epoch)),
            ("max", false, Ok(Moment::Max)),
            ("off", false, Ok(Moment::Off)),
            ("1h", false, Ok(Moment::Access(3600))),
            ("+1h", false, Ok(Moment::Access(3600))),
            ("-1", false, Ok(Moment::Access(-1))),
            ("0", false, Ok(Moment::Access(0))),
            ("1M", false, Ok(Moment::Access(2_592_000))),
            ("@15h30m", false, Ok(Moment::Daily(55_800))),
            ("@24h", false, Ok(Moment::Daily(86_400))),
            ("24h", true, Ok(Moment::Modified(86_400))),
            ("-5", true, Ok(Moment::Modified(-5))),
            ("epoch", true, Err("invalid value")),
            ("@25h", false, Err("daily time value must be less than 24 hours")),
            ("@1h", true, Err("daily time cannot be used with \"modified\" parameter")),
            ("", false, Err("invalid value")),
            ("--1", false, Err("invalid value")),
            ("soon", false, Err("invalid value")),
            ("99999999999999999999", false, Err("invalid value")),
        ] {
            assert_eq!(Moment::parse(text.as_bytes(), modified), want, "{text}");
        }
    }

    #[test]
    fn expires_gives_two_fields() {
        let tag = "ETag: \"a\"\n";
        for (conf, want) in [
            ("expires epoch;", "Expires: Thu, 01 Jan 1970 00:00:01 GMT\nCache-Control: no-cache\n"),
            (
                "expires max;",
                "Expires: Thu, 31 Dec 2037 23:55:55 GMT\nCache-Control: max-age=315360000\n",
            ),
            (
                "expires modified 1s;",
                "Expires: Sun, 06 Nov 1994 08:49:38 GMT\nCache-Control: no-cache\n",
            ),
            ("expires off;", ""),
        ] {
            assert_eq!(fields(conf, 200), format!("{tag}{want}"), "{conf}");
        }
        for (conf, want) in [
            ("expires 1h;", "Cache-Control: max-age=3600\n"),
            ("expires 0;", "Cache-Control: max-age=0\n"),
            ("expires modified 0;", "Cache-Control: max-age=0\n"),
            ("expires -1;", "Cache-Control: no-cache\n"),
        ] {
            let got = fields(conf, 200);
            assert!(got.ends_with(want) && got.contains("\nExpires: "), "{conf}: {got}");
        }
        assert_eq!(fields("expires max;", 404), tag);
    }

    #[test]
    fn expires_replaces_the_fields_there_are() {
        let mut response = Response::default();
        for (name, value) in [("Cache-Control", "a"), ("X", "b"), ("cache-control", "c")] {
            response.add(name, value);
        }
        replace(&mut response, "Cache-Control", "d".into());
        let lines: Vec<_> = response.fields.iter().map(|f| (&f.name[..], &f.value[..])).collect();
        assert_eq!(lines, [(&b"Cache-Control"[..], &b"d"[..]), (b"X", b"b")]);
    }

    #[test]
    fn a_time_of_day_comes_next_today_or_tomorrow() {
        let zone = |offset: fn(i64) -> i32| {
            move |at: i64| {
                let offset_minutes = offset(at);
                let date = forebay_wire::date::civil(at + i64::from(offset_minutes) * 60);
                LocalTime {
                    year: date.year as i32,
                    month: date.month.into(),
                    day: date.day.into(),
                    hour: date.hour.into(),
                    minute: date.minute.into(),
                    second: date.second.into(),
                    weekday: date.weekday.into(),
                    offset_minutes,
                }
            }
        };
        const NOON: i64 = 1_700_000_000 / 86_400 * 86_400 + 43_200;
        let utc = zone(|_| 0);
        assert_eq!(next_time(43_201, NOON, utc), NOON + 1);
        assert_eq!(next_time(43_200, NOON, utc), NOON + 86_400);
        assert_eq!(next_time(0, NOON, utc), NOON + 43_200);
        let east = zone(|_| 330);
        assert_eq!(next_time(0, NOON, east), NOON + 43_200 - 330 * 60);
        // Two hours before noon of the next day the clocks go back by one.
        let changing = zone(|at| if at < NOON + 79_200 { 60 } else { 0 });
        assert_eq!(next_time(43_200, NOON, changing), NOON + 86_400);
    }

    #[test]
    fn mistakes_are_told_in_nginx_words() {
        for (conf, want) in [
            ("add_header A 1 sometimes;", "invalid parameter \"sometimes\""),
            ("expires modify 1h;", "\"expires\" directive invalid value"),
            ("expires soon;", "\"expires\" directive invalid value"),
            ("expires 1h; expires 2h;", "\"expires\" directive is duplicate"),
            ("add_header_inherit maybe;", "invalid value \"maybe\""),
            ("add_header A;", "invalid number of arguments in \"add_header\" directive"),
        ] {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }
}
