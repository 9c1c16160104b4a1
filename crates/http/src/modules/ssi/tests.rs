use std::{future::poll_fn, task::Poll};

use forebay_rt::task;

use crate::testing;

fn page(conf: &str, text: &str) -> String {
    testing::filtered_text(&format!("ssi on; {conf}"), text)
}

const ERROR: &str = "[an error occurred while processing the directive]";

#[test]
fn values_are_echoed() {
    for (text, want) in [
        ("a<!--#echo var='http_host' -->b", "aab"),
        ("<!--#echo var='HTTP_HOST' -->", "a"),
        ("<!--#echo var='nothing' -->", "(none)"),
        ("<!--#echo var='nothing' default='x' -->", "x"),
        ("<!--#echo var='nothing' default='' -->", ""),
        ("<!--#echo var='http_host' -->", "a"),
        ("<!--#echo var='arg_x' default='-' -->", "-"),
        ("<!--#set var='x' value='<&>' --><!--#echo var='x' -->", "&lt;&amp;&gt;"),
        ("<!--#set var='x' value='<&>' --><!--#echo var='x' encoding='none' -->", "<&>"),
        ("<!--#set var='x' value='a b%' --><!--#echo var='x' encoding='url' -->", "a%20b%25"),
        (
            "<!--#set var='x' value='<' --><!--#echo var='x' encoding='none' -->\
             <!--#echo var='x' -->",
            "<<",
        ),
        ("<!--#set var='X' value='1$http_host-${http_host}2' --><!--#echo var='x' -->", "1a-a2"),
        (
            "<!--#set var='x' value='\\$host\\n\\\"\\\\' --><!--#echo var='x' -->",
            "$host\\n&quot;\\",
        ),
        ("<!--#config timefmt='%Y' --><!--#set var='y' value='$date_gmt' -->", ""),
        ("<!--#config timefmt='x' --><!--#echo var='date_local' -->", "x"),
    ] {
        assert_eq!(page("", text), want, "{text}");
    }
}

#[test]
fn a_page_of_many_commands_lets_others_have_their_turn() {
    let text = "<!--#set var='x' value='1' --><!--#include virtual='/' -->".repeat(1_000);
    let mut r = testing::filtered("ssi on;", &[text.as_bytes()]);
    let mut pauses = 0;
    task::block_on(poll_fn(|cx| {
        loop {
            match r.response.body.poll_next(cx) {
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Ready(Some(chunk)) => assert!(chunk.is_ok()),
                Poll::Pending => {
                    pauses += 1;
                    return Poll::Pending;
                }
            }
        }
    }));
    assert!((20..100).contains(&pauses), "{pauses}");
}

#[test]
fn conditions_choose_one_branch() {
    for (expr, want) in [
        ("$http_host", true),
        ("$nothing", false),
        ("$http_host = a", true),
        ("$http_host=a", true),
        ("$http_host = A", false),
        ("$http_host != a", false),
        ("$http_host = $http_host", true),
        ("$HTTP_HOST = 'a'", false),
        ("$http_host = /a/", true),
        ("$http_host = /A/", true),
        ("$http_host = /^b/", false),
        ("$http_host != /^b/", true),
        ("$http_host = /^(?<first>.)\\$/", true),
        ("x = /", false),
        ("x = \\/", false),
        ("x = //", true),
        ("x", true),
        ("", false),
    ] {
        let text =
            format!("<!--#if expr='{}' -->1<!--#else -->0<!--#endif -->", expr.replace('\'', "\""));
        let want = if want { "1" } else { "0" };
        assert_eq!(page("", &text), want, "{expr}");
    }
    let text = "<!--#if expr='$nothing' -->1<!--#elif expr='$http_host' -->2<!--#elif expr='$http_host' -->3\
                <!--#else -->4<!--#endif -->5";
    assert_eq!(page("", text), "25");
    let text = "<!--#if expr='$http_host = /^(.)\\$/' --><!--#echo var='1' --><!--#endif -->";
    assert_eq!(page("", text), "a");
    let text = "<!--#if expr='$http_host = /(?<all>.+)/' --><!--#echo var='all' --><!--#endif -->";
    assert_eq!(page("", text), "a");
}

#[test]
fn what_is_wrong_leaves_a_message() {
    for text in [
        "<!--#nothing -->",
        "<!--#else -->",
        "<!--#endif -->",
        "<!--#elif expr='a' -->",
        "<!--#echo -->",
        "<!--#echo var='a' var='b' -->",
        "<!--#echo name='a' -->",
        "<!--#echo var=a -->",
        "<!--#include -->",
        "<!--#include virtual='/a' file='/a' -->",
        "<!--#include file='/a' wait='yes' -->",
        "<!--#include virtual='/a' wait='maybe' -->",
        "<!--#include virtual='/a' set='x' stub='y' -->",
        "<!--#include virtual='/a' stub='y' -->",
        "<!--#include virtual='/../a' -->",
        "<!--#include virtual='/%2e%2e/a' -->",
        "<!--#include virtual='/a%00' -->",
        "<!--#set var='x' value='$' -->",
        "<!--#set var='x' value='${a' -->",
        "<!--#set var='x' value='$-' -->",
        "<!--#if expr='a ~ b' -->",
        "<!--#if expr='a = /b' -->",
        "<!--#if expr='a = /(/' -->",
    ] {
        assert_eq!(page("", text), ERROR, "{text}");
        assert_eq!(page("ssi_silent_errors on;", text), "", "{text}");
    }
    let text = "<!--#config errmsg='oops' --><!--#nothing -->";
    assert_eq!(page("", text), "oops");
    let text = format!("<!--#echo var='{}' -->", "x".repeat(9));
    assert_eq!(page("ssi_value_length 8;", &text), ERROR);
    assert_eq!(page("ssi_value_length 9;", &text), "(none)");
}

const PLACES: &str = "location = /one { return 200 '[$uri$args]'; } location = /dir/x { return 200 x; } \
    location = /none { return 200 ''; } location = /missing { return 404; } \
    location = /nested { ssi on; default_type text/html; \
      return 200 'n<!--#include virtual=\"/one\" --><!--#set var=\"v\" value=\"set\" -->'; } \
    location = /loop { ssi on; default_type text/html; \
      return 200 '.<!--#include virtual=\"/loop\" -->'; }";

#[test]
fn includes_are_put_in_their_place() {
    for (text, want) in [
        ("<<!--#include virtual='/one' -->>", "<[/one]>"),
        ("<!--#include virtual='/one?a=b' -->", "[/onea=b]"),
        ("<!--#include virtual='/%6fne?x' -->", "[/onex]"),
        ("<!--#include virtual='one' -->", "[/one]"),
        ("<!--#include file='one' -->", "[/one]"),
        (
            "<!--#include virtual='/one' wait='yes' --><!--#include virtual='/one' -->",
            "[/one][/one]",
        ),
        ("<!--#include virtual='/one' set='x' -->-<!--#echo var='x' -->", "-[/one]"),
        ("<!--#include virtual='/nested' wait='yes' -->-<!--#echo var='v' -->", "n[/one]-set"),
        (
            "<!--#block name='s' -->stub<!--#endblock --><!--#include virtual='/missing' stub='s' -->",
            "stub",
        ),
        (
            "<!--#block name='s' -->stub<!--#endblock --><!--#include virtual='/none' stub='s' -->",
            "stub",
        ),
        (
            "<!--#block name='s' -->stub<!--#endblock --><!--#include virtual='/one' stub='s' -->",
            "[/one]",
        ),
        (
            "<!--#block name='s' -->a<!--#echo var='http_host' -->b<!--#endblock -->\
             <!--#include virtual='/missing' stub='s' -->",
            "a<!--#echo var=\"http_host\" -->b",
        ),
    ] {
        let conf = format!("{PLACES} location = /missing2 {{ ssi on; }}");
        // The blocks' commands are for the location of the include.
        let mut r = testing::filtered(&format!("{conf} ssi on;"), &[text.as_bytes()]);
        let text_out = testing::text(&mut r);
        let inherits = want.replace("<!--#echo var=\"http_host\" -->", "a");
        assert_eq!(text_out, inherits, "{text}");
    }
}

#[test]
fn a_page_with_includes_becomes_a_variable() {
    let text = b"<!--#include virtual='/nested' set='x' -->-<!--#echo var='x' encoding='none' -->";
    let mut r = testing::filtered(&format!("{PLACES} ssi on;"), &[text]);
    assert_eq!(testing::text(&mut r), "-n[/one]");
}

#[test]
fn a_page_that_includes_itself_ends() {
    let mut r =
        testing::filtered(&format!("{PLACES} ssi on;"), &[b"<!--#include virtual='/loop' -->"]);
    let text = testing::text(&mut r);
    let (dots, rest) = text.split_at(text.find('[').unwrap());
    assert_eq!((dots.len(), rest), (51, ERROR));
}

#[test]
fn variables_do_not_grow_without_bound() {
    let mut text = String::from("<!--#set var='x' value='xxxxxxxxxxxxxxxx' -->");
    for _ in 0..64 {
        text.push_str("<!--#set var='x' value='$x$x' -->");
    }
    let mut r = testing::filtered("ssi on; ssi_silent_errors on;", &[text.as_bytes()]);
    assert_eq!(testing::text(&mut r), "");
    let text: String = (0..200)
        .map(|n| format!("<!--#set var='v{n}' value='$http_a$http_a$http_a$http_a' -->"))
        .collect();
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "a".repeat(16_000));
    let mut r = testing::request("ssi on;", &head);
    r.respond(200, "text/html".into(), text.into());
    testing::filter(&mut r);
    assert!(testing::text(&mut r).starts_with(ERROR));
}

#[test]
fn the_head_says_that_the_body_changed() {
    for (conf, modified, fields) in [
        ("ssi on;", None, ""),
        ("ssi on; ssi_last_modified on;", Some(5), "ETag: W/\"a\"\n"),
        ("ssi on; ssi_types text/plain;", None, ""),
        ("ssi off;", Some(5), "ETag: \"a\"\n"),
    ] {
        let mut r = testing::request(conf, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        r.respond(200, "text/html".into(), "a".into());
        r.response.last_modified = Some(5);
        r.response.add("ETag", "\"a\"");
        testing::filter(&mut r);
        assert_eq!((r.response.last_modified, &*testing::fields(&r)), (modified, fields), "{conf}");
    }
}
