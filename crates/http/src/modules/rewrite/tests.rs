use crate::{
    request::Request,
    testing::{self, conf_error, request},
};

/// Runs a request through the engine.
fn run(server: &str, target: &str) -> Request {
    let mut r = request(server, &format!("GET {target} HTTP/1.1\r\nX-A: 1\r\n\r\n"));
    // What the protocol driver does with the paths of these tests.
    if r.uri.contains(&b'%') {
        r.uri = String::from_utf8_lossy(&r.uri).replace("%20", " ").into_bytes();
        r.uri_was_escaped = true;
    }
    testing::answer(&mut r);
    r
}

/// Status, then location or body of the answer; the status alone for an error's page.
fn answer(server: &str, target: &str) -> String {
    let mut r = run(server, target);
    let status = r.response.status;
    if let Some(location) = &r.response.location {
        return format!("{status} {}", String::from_utf8_lossy(location));
    }
    if status >= 400 && r.error_status != 0 {
        return status.to_string();
    }
    let body = testing::drain(&mut r.response.body).expect("a body in memory");
    format!("{status} {}", String::from_utf8_lossy(&body))
}

fn check(server: &str, cases: &[(&str, &str)]) {
    for (target, expected) in cases {
        assert_eq!(answer(server, target), *expected, "{target} in {server}");
    }
}

#[test]
fn return_answers_with_text_redirect_or_page() {
    let cases = [
        ("return 200 text;", "200 text"),
        ("return 200 \"\";", "200 "),
        ("return 200;", "200 "),
        ("return 200 $uri-$arg_a;", "200 /x-1"),
        ("return 201 $status;", "201 201"),
        ("return 204;", "204 "),
        ("return 404;", "404"),
        ("return 404 \"\";", "404"),
        ("return 404 gone;", "404 gone"),
        ("return 444;", "444"),
        ("return 301 /y;", "301 /y"),
        ("return 302 /y$is_args$args;", "302 /y?a=1"),
        ("return 303 http://h/;", "303 http://h/"),
        ("return 307 /y;", "307 /y"),
        ("return 308 /y;", "308 /y"),
        ("return http://h$request_uri;", "302 http://h/x?a=1"),
        ("return https://h;", "302 https://h"),
        ("return $scheme://h;", "302 http://h"),
    ];
    for (directive, expected) in cases {
        assert_eq!(answer(directive, "/x?a=1"), expected, "{directive}");
        let location = format!("location / {{ {directive} }}");
        assert_eq!(answer(&location, "/x?a=1"), expected, "{location}");
    }
}

#[test]
fn the_type_of_a_text_is_that_of_the_extension() {
    let server = "default_type a/b; location / { return 200 x; }";
    for (target, expected) in [("/x.html", "text/html"), ("/x", "a/b"), ("/x.html/y", "a/b")] {
        assert_eq!(run(server, target).response.content_type.unwrap(), expected, "{target}");
    }
    let server = "default_type \"\"; return 200 x;";
    assert_eq!(run(server, "/").response.content_type, None);
}

#[test]
fn rewrite_leads_to_another_location_or_stays() {
    let tail = "location /b { return 200 b:$uri:$args; } location /c { return 200 c:$uri; }";
    let cases = [
        ("rewrite ^/a /b last; return 200 a;", "200 b:/b:q=1"),
        ("rewrite ^/a /b; return 200 a:$uri;", "200 a:/b"),
        ("rewrite ^/a /b; set $x 1;", "200 b:/b:q=1"),
        ("rewrite ^/a /b; rewrite ^/b /c; set $x 1;", "200 c:/c"),
        ("rewrite ^/a /b; rewrite ^/b /c last; return 200 no;", "200 c:/c"),
        ("rewrite ^/z /b last; return 200 a:$uri;", "200 a:/a/1"),
        ("rewrite ^/a/(.*)$ /b/$1/x last;", "200 b:/b/1/x:q=1"),
        ("rewrite ^/a/(.*)$ /b?n=$1 last;", "200 b:/b:n=1&q=1"),
        ("rewrite ^/a/(.*)$ /b?n=$1? last;", "200 b:/b:n=1"),
        ("rewrite ^/a /b? last;", "200 b:/b:"),
        ("rewrite ^/a /b?x?y=1 last;", "200 b:/b:x?y=1&q=1"),
        ("rewrite ^/a/(?<n>.*)$ /b/$n last;", "200 b:/b/1:q=1"),
        ("rewrite ^/a /b permanent;", "301 /b?q=1"),
        ("rewrite ^/a /b redirect;", "302 /b?q=1"),
        ("rewrite ^/a /b?x=1 redirect;", "302 /b?x=1&q=1"),
        ("rewrite ^/a /b? redirect;", "302 /b"),
        ("rewrite ^/a http://h/$1;", "302 http://h/?q=1"),
        ("rewrite ^/a https://h/? permanent;", "301 https://h/"),
        ("rewrite ^/a $scheme://h/%41%20?;", "302 http://h/A%20"),
        ("rewrite ^/a $arg_none last;", "500"),
    ];
    for (code, expected) in cases {
        let server = format!("location /a {{ {code} }} {tail}");
        assert_eq!(answer(&server, "/a/1?q=1"), expected, "{code}");
    }
}

#[test]
fn break_ends_the_rewriting_of_a_level() {
    let inner = "location / { return 200 $uri; }";
    check(
        &format!("rewrite ^/a /b; break; rewrite ^/b /c; {inner}"),
        &[("/a", "200 /b"), ("/x", "200 /x")],
    );
    let r = run("location / { rewrite ^/a /b break; return 200 no; }", "/a");
    assert_eq!((&r.uri[..], r.response.status), (&b"/b"[..], 404));
    assert!(r.rewritten_in_place && r.internal);
}

#[test]
fn a_server_rewrites_once_before_the_location_is_chosen() {
    let server = "rewrite ^/a(.*)$ /b$1 last; return 200 no; location /b { return 200 $uri; }";
    check(server, &[("/ax", "200 /bx"), ("/c", "200 no")]);
    // Without a location, the server's rewriting is not run again in its place.
    let r = run("set $n 1; rewrite ^(.*)$ /x$1;", "/a");
    assert_eq!(r.uri, b"/x/a");
}

#[test]
fn ten_changes_of_the_path_are_enough() {
    let server = "location / { rewrite ^(.*)$ $1x last; }";
    assert_eq!(answer(server, "/"), "500");
    let server =
        "location / { if ($uri ~ xxxxxxxxxx) { return 200 end; } rewrite ^(.*)$ $1x last; }";
    assert_eq!(answer(server, "/"), "200 end");
}

#[test]
fn conditions_hold_as_in_nginx() {
    let cases = [
        ("$arg_a", true),
        ("$arg_zero", false),
        ("$arg_00", true),
        ("$arg_none", false),
        ("$arg_a = 1", true),
        ("$arg_a = \"1\"", true),
        ("$arg_a = 2", false),
        ("$arg_a != 2", true),
        ("$arg_a != 1", false),
        ("$arg_none = \"\"", true),
        ("$arg_a = $http_x_a", true),
        ("$uri ~ ^/X", false),
        ("$uri ~* ^/X", true),
        ("$uri !~ ^/X", true),
        ("$uri !~* ^/X", false),
        ("-d /", true),
        ("!-d /", false),
        ("-f /", false),
        ("!-f /", true),
        ("-e /", true),
        ("-e /no/such/file", false),
        ("!-e /no/such/file", true),
        ("-x /", true),
        ("-f /proc/self/status", true),
        ("-x /proc/self/status", false),
        ("!-x /proc/self/status", true),
        ("-f /proc/self/$arg_file", true),
    ];
    for (condition, holds) in cases {
        let code = format!("if ({condition}) {{ return 200 yes; }} return 200 no;");
        let expected = if holds { "200 yes" } else { "200 no" };
        let target = "/x?a=1&zero=0&00=00&file=status";
        assert_eq!(answer(&code, target), expected, "{condition}");
        assert_eq!(answer(&format!("location / {{ {code} }}"), target), expected, "{condition}");
    }
}

#[test]
fn an_if_switches_the_settings_of_its_location() {
    let server = "location / { root /1; if ($arg_b) { root /2; } \
                  if ($arg_c) { set $x c; } return 200 $document_root; }";
    check(server, &[("/", "200 /1"), ("/?b=1", "200 /2"), ("/?b=1&c=1", "200 /1")]);
}

#[test]
fn what_an_if_says_runs_in_its_place() {
    let server = "location / { set $x a; if ($arg_b) { set $x ${x}b; break; } set $x ${x}c; \
                  if ($arg_d) { set $x ${x}d; return 200 $x; } return 200 $x; }";
    check(server, &[("/", "200 ac"), ("/?d=1", "200 acd"), ("/?b=1", "404")]);
}

#[test]
fn inner_levels_do_not_inherit_rewriting() {
    let server = "location / { set $x outer; rewrite ^/a/z /no last; \
                  location /a { return 200 [$x]; } }";
    check(server, &[("/a/z", "200 []")]);
}

#[test]
fn captures_are_those_of_the_last_match_and_gone_after_a_miss() {
    check(
        "if ($uri ~ ^/(.)(.)) { set $x $1; } if ($uri ~ z) { } return 200 $x:$1:$2;",
        &[("/ab", "200 a::"), ("/abz", "200 a::")],
    );
    check("if ($uri ~ ^/(.)(.)) { return 200 $2$1; } ", &[("/ab", "200 ba")]);
    check(
        "location ~ ^/(?<first>.)(.) { if ($arg_q) { return 200 $first; } return 200 $2; }",
        &[("/ab", "200 b"), ("/ab?q=1", "200 a")],
    );
}

#[test]
fn captures_of_escaped_paths_are_escaped_where_nginx_does() {
    check(
        "if ($uri ~ ^/(.*)) { set $x $1; } return 200 $x;",
        &[("/a b", "200 a"), ("/a%20b", "200 a%20b")],
    );
    check("if ($uri ~ ^/(.*)) { return 200 $1; }", &[("/a%20b", "200 a b")]);
    check("rewrite ^/a(.*)$ /b?x=$1; return 200 $uri:$args;", &[("/a%20b", "200 /b:x=%20b")]);
    check("rewrite ^/a(.*)$ /b$1; return 200 $uri;", &[("/a%20b", "200 /b b")]);
    check("rewrite ^/a(.*)$ /b$1 redirect;", &[("/a%20b", "302 /b%20b")]);
    check(
        "rewrite ^/a(.*)$ /b; if ($uri ~ b) { } set $x $1; return 200 [$x];",
        &[("/a%20b", "200 []")],
    );
}

#[test]
fn set_changes_what_may_be_changed() {
    check("set $x 1; set $x $x$x; return 200 $x;", &[("/", "200 11")]);
    check("set $args b=2; return 200 $args$arg_b;", &[("/?a=1", "200 b=22")]);
    check("set $X 1; return 200 $x;", &[("/", "200 1")]);
    check("set $http_x_a $http_x_a-2; return 200 $http_x_a;", &[("/", "200 1-2")]);
    assert_eq!(run("set $limit_rate 1k; return 200;", "/").limit_rate, Some(1024));
    assert_eq!(answer("if ($arg_a) { set $x 1; } return 200 [$x];", "/"), "200 []");
}

#[test]
fn hostile_paths_do_not_hold_up_a_rewrite() {
    let target = format!("/{}!", "a".repeat(30_000));
    assert_eq!(answer("rewrite ^/(a+)+$ /x last; return 200 done;", &target), "200 done");
}

#[test]
fn errors_are_nginxs() {
    let cases = [
        ("return 1000;", "invalid return code \"1000\""),
        ("return x;", "invalid return code \"x\""),
        ("return http://h 1;", "invalid return code \"http://h\""),
        ("set x 1;", "invalid variable name \"x\""),
        ("set $ 1;", "invalid variable name \"$\""),
        ("set $uri 1;", "the duplicate \"uri\" variable"),
        ("rewrite a b c;", "invalid parameter \"c\""),
        ("rewrite a \"\";", "empty replacement"),
        ("rewrite a b last x;", "invalid number of arguments in \"rewrite\" directive"),
        ("if $a { }", "invalid condition \"$a\""),
        ("if ($uri { }", "invalid condition \"$uri\""),
        ("if ($uri = a b) { }", "invalid condition \"$uri\""),
        ("if ($uri == a) { }", "unexpected \"==\" in condition"),
        ("if (a) { }", "invalid condition \"a\""),
        ("if (-z a) { }", "invalid condition \"-z\""),
        ("if ($uri) { if ($args) { } }", "\"if\" directive is not allowed here"),
        ("if ($nothing) { }", "unknown \"nothing\" variable"),
        ("rewrite (.) ${1};", "unknown \"1\" variable"),
        ("if ($uri ~ \"(\") { }", "pcre2_compile() failed: "),
    ];
    for (code, expected) in cases {
        let error = conf_error(&format!("server {{ {code} }}"));
        assert!(error.contains(expected), "{code}: {error}");
    }
}
