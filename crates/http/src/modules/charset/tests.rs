use super::*;
use crate::testing;

/// A response under the inside of a `http` block.
fn answer(http: &str, server: &str, body: &[u8], change: impl Fn(&mut Request)) -> Request {
    let conf = format!("{http} server {{ listen 127.0.0.1:1; {server} }}");
    let plan = testing::plan(&conf).unwrap();
    let mut r = testing::request_of(Arc::new(plan), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    r.respond(200, "text/html".into(), Bytes::copy_from_slice(body));
    change(&mut r);
    testing::filter(&mut r);
    r
}

fn charset(server: &str, change: impl Fn(&mut Request)) -> Option<String> {
    let r = answer("", server, b"x", change);
    r.response.charset.map(|name| String::from_utf8(name.to_vec()).unwrap())
}

#[test]
fn responses_say_their_charset() {
    let typed = |name: &'static str| {
        move |r: &mut Request| r.response.content_type = Some(Bytes::from(name))
    };
    for (conf, content_type, want) in [
        ("", "text/html", None),
        ("charset off;", "text/html", None),
        ("charset utf-8;", "text/html", Some("utf-8")),
        ("charset utf-8;", "Text/Plain", Some("utf-8")),
        ("charset utf-8;", "text/css", None),
        ("charset utf-8; charset_types text/css;", "text/css", Some("utf-8")),
        ("charset utf-8; charset_types text/css;", "text/html", Some("utf-8")),
        ("charset utf-8; charset_types text/css;", "text/xml", None),
        ("charset utf-8; charset_types *;", "image/png", Some("utf-8")),
        ("set $c koi8-r; charset $host;", "text/html", None),
        ("charset utf-8; source_charset UTF-8;", "text/html", Some("utf-8")),
    ] {
        assert_eq!(charset(conf, typed(content_type)).as_deref(), want, "{conf} {content_type}");
    }
}

#[test]
fn some_responses_have_none() {
    let changes: [fn(&mut Request); 4] = [
        |r| r.response.content_type = None,
        |r| r.response.status = 301,
        |r| r.response.status = 302,
        |r| r.subrequest = true,
    ];
    for change in changes {
        assert_eq!(charset("charset utf-8;", change), None);
    }
}

#[test]
fn a_variable_that_is_not_set_names_no_charset() {
    assert_eq!(charset("charset $arg_nothing;", |_| ()), None);
}

#[test]
fn a_charset_of_the_response_itself_stays_unless_overridden() {
    let own = |r: &mut Request| r.response.charset = Some("utf-8".into());
    assert_eq!(charset("charset koi8-r;", own).as_deref(), Some("utf-8"));
    let same = |r: &mut Request| r.response.charset = Some("koi8-r".into());
    let conf = "charset KOI8-R; override_charset on;";
    assert_eq!(charset(conf, same).as_deref(), Some("KOI8-R"));
}

const MAPS: &str = "charset_map koi8-r utf-8 { C1 D0B0; E1 D090; 80 E29480; } \
                    charset_map koi8-r windows-1251 { C1 E0; E1 C0; }";

#[test]
fn bodies_are_recoded() {
    for (server, body, want, length) in [
        (
            "charset utf-8; source_charset koi8-r;",
            &b"a\xc1\x80\xff"[..],
            &b"a\xd0\xb0\xe2\x94\x80?"[..],
            None,
        ),
        ("charset koi8-r; source_charset utf-8;", b"a\xd0\xb0\xd0\xb1", b"a\xc1&#1073;", None),
        ("charset windows-1251; source_charset koi8-r;", b"a\xc1\xff", b"a\xe0?", Some(3)),
        ("charset koi8-r; source_charset windows-1251;", b"\xe0\xc0\xff", b"\xc1\xe1?", Some(3)),
        ("charset KOI8-R; source_charset Koi8-r;", b"\xe0", b"\xe0", Some(1)),
    ] {
        let mut r = answer(MAPS, server, body, |_| {});
        assert_eq!(r.response.content_length, length, "{server}");
        assert_eq!(testing::drain(&mut r.response.body).unwrap(), want, "{server}");
    }
}

#[test]
fn overriding_recodes_from_what_the_response_says() {
    let own = |r: &mut Request| r.response.charset = Some("utf-8".into());
    let conf = "charset koi8-r; override_charset on;";
    let mut r = answer(MAPS, conf, b"\xd0\xb0", own);
    assert_eq!(testing::drain(&mut r.response.body).unwrap(), b"\xc1");
    assert_eq!(r.response.charset.unwrap(), "koi8-r");
    let unknown = |r: &mut Request| r.response.charset = Some("x".into());
    let mut r = answer(MAPS, conf, b"\xd0\xb0", unknown);
    assert_eq!(testing::drain(&mut r.response.body).unwrap(), b"\xd0\xb0");
    assert_eq!(r.response.charset.unwrap(), "x");
}

#[test]
fn mistakes_are_told_in_nginx_words() {
    for (conf, want) in [
        ("charset_map a A { }", "\"charset_map\" between the same charsets \"a\" and \"A\""),
        (
            "charset_map a b { } charset_map B a { }",
            "duplicate \"charset_map\" between \"B\" and \"a\"",
        ),
        ("charset_map a b { 1; }", "invalid parameters number"),
        ("charset_map a b { 100 1; }", "invalid value \"100\""),
        ("charset_map a b { 1 xx; }", "invalid value \"xx\""),
        ("charset_map a utf-8 { 1 F09F9880; }", "invalid value \"F09F9880\""),
        ("charset_map a utf-8 { 1 D0; }", "invalid value \"D0\""),
        ("charset_map a utf-8 { 1 D0BZ; }", "invalid value \"D0BZ\""),
        ("charset a; source_charset b;", "no \"charset_map\" between the charsets \"b\" and \"a\""),
        ("charset a; charset b;", "\"charset\" directive is duplicate"),
        ("charset $nothing;", "unknown \"nothing\" variable"),
    ] {
        let error = testing::conf_error(conf);
        assert!(error.contains(want), "{conf}: {error}");
    }
}
