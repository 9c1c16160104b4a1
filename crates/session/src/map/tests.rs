use super::*;
use crate::testing::{Text, nodes};

/// The values of `$out`, one for each text.
fn mapped(block: &str, texts: &[&str]) -> Vec<String> {
    let mut scope = Text::new();
    let mut diags = Diagnostics::new();
    for node in nodes(&format!("map $text $out {{ {block} }}")) {
        define(&node, &mut scope.registry, &mut diags).unwrap();
    }
    assert!(diags.is_empty(), "{block}: {diags:?}");
    let template = scope.template("$out");
    texts.iter().map(|text| scope.value(&template, text)).collect()
}

fn errors(block: &str) -> Vec<String> {
    let mut scope = Text::new();
    let mut diags = Diagnostics::new();
    let node = nodes(&format!("map $text $out {{ {block} }}")).remove(0);
    define(&node, &mut scope.registry, &mut diags).unwrap();
    diags.iter().map(|error| error.message.clone()).collect()
}

#[test]
fn strings_are_found_in_any_case_and_nothing_else_is() {
    let block = r#"a 1; B 2; "" empty; \~t tilde; \default d; \\\\b back; default none;"#;
    let texts = ["a", "A", "b", "", "~t", "default", "\\b", "ab", "~T"];
    let expected = ["1", "1", "2", "empty", "tilde", "d", "back", "none", "tilde"];
    assert_eq!(mapped(block, &texts), expected);
    assert_eq!(mapped("a 1;", &["a", "b", ""]), ["1", "", ""]);
}

#[test]
fn the_most_specific_host_name_wins() {
    let block = "hostnames; default no; example.com exact; .example.org both; *.x.net suffix; \
                 *.y.x.net longer; www.z.* prefix; www.* shorter; www.z.example.org named;";
    let cases = [
        ("example.com", "exact"),
        ("EXAMPLE.com.", "exact"),
        ("a.example.com", "no"),
        ("example.org", "both"),
        ("a.b.example.org", "both"),
        ("www.z.example.org", "named"),
        ("x.net", "no"),
        ("a.x.net", "suffix"),
        ("a.y.x.net", "longer"),
        ("y.x.net", "suffix"),
        ("www.z.com", "prefix"),
        ("www.a.com", "shorter"),
        ("www.x.net", "suffix"),
        ("", "no"),
        (".", "no"),
        ("..", "no"),
    ];
    let texts: Vec<_> = cases.iter().map(|(text, _)| *text).collect();
    let expected: Vec<_> = cases.iter().map(|(_, expected)| *expected).collect();
    assert_eq!(mapped(block, &texts), expected);
}

#[test]
fn without_hostnames_stars_and_dots_are_text() {
    assert_eq!(mapped("*.a 1; .b 2; default 0;", &["x.a", "*.a", "b", ".b"]), ["0", "1", "0", "2"]);
}

#[test]
fn regular_expressions_come_after_strings_in_their_order() {
    let block = "~^a(.) one$1; ~*^A(?<n>.+) two-$n-$1; ~x$ x; ax string; default $text;";
    assert_eq!(
        mapped(block, &["ax", "ab", "Abc", "zx", "q", ""]),
        ["string", "oneb", "two-bc-bc", "x", "q", ""]
    );
    assert_eq!(mapped("~.* any; default none;", &["", "a"]), ["none", "any"]);
}

#[test]
fn a_value_is_kept_unless_it_is_volatile() {
    for (block, expected) in [("default $text;", "aa"), ("volatile; default $text;", "ab")] {
        let mut scope = Text::new();
        let mut diags = Diagnostics::new();
        let node = nodes(&format!("map $text $out {{ {block} }}")).remove(0);
        define(&node, &mut scope.registry, &mut diags).unwrap();
        let template = scope.template("$out");
        let mut seen = scope.value(&template, "a");
        scope.text = b"b".to_vec();
        seen.push_str(&String::from_utf8(template.value(&scope)).unwrap());
        assert_eq!(seen, expected, "{block}");
    }
}

#[test]
fn all_bad_lines_are_told_in_nginxs_words() {
    assert_eq!(
        errors("a 1; A 2; b; c d e; default 1; default 2; x { }"),
        [
            "conflicting parameter \"a\"",
            "invalid number of the map parameters",
            "invalid number of the map parameters",
            "duplicate default map parameter",
            "unexpected \"{\"",
        ]
    );
    assert_eq!(
        errors("hostnames; .a.b 1; a.b 2; *.a.b 3; *.*.c 1; a..b 1; a*b 1; *.a.b 3;"),
        [
            "conflicting parameter \"a.b\"",
            "conflicting parameter \"*.a.b\"",
            "invalid hostname or wildcard \"*.*.c\"",
            "invalid hostname or wildcard \"a..b\"",
            "invalid hostname or wildcard \"a*b\"",
            "conflicting parameter \"*.a.b\"",
        ]
    );
}

#[test]
fn a_hundred_thousand_lines_are_taken() {
    let mut block = String::new();
    for n in 0..100_000 {
        use std::fmt::Write as _;
        writeln!(block, "key{n} value{n};").unwrap();
    }
    assert_eq!(mapped(&block, &["key0", "KEY99999", "key100000"]), ["value0", "value99999", ""]);
}
