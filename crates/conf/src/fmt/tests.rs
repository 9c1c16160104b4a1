//! What is laid out how, and that the meaning stays.

use std::path::Path;

use super::*;
use crate::error::Diagnostics;
use crate::files::Files;
use crate::parse::{ParseOptions, parse_text};
use crate::source::Sources;
use crate::tree::Node;

fn formatted(text: &str) -> String {
    match format(FileId(0), text.as_bytes()) {
        Ok(out) => String::from_utf8(out).unwrap(),
        Err(e) => format!("!{}", e.message),
    }
}

#[test]
fn texts_are_laid_out() {
    let cases: &[(&str, &str)] = &[
        ("", ""),
        ("\n\n", ""),
        ("a   b ;", "a b;\n"),
        ("a{b;c{d;}}", "a {\n    b;\n    c {\n        d;\n    }\n}\n"),
        ("a{}b;", "a {}\nb;\n"),
        ("a;\n\n\n\nb;\nc;", "a;\n\nb;\nc;\n"),
        ("a {\n\n  b;\n\n}\n", "a {\n    b;\n}\n"),
        ("# one\n\n# two\na; # three\n#four", "# one\n\n# two\na; # three\n#four\n"),
        ("a { # why\n b; }", "a { # why\n    b;\n}\n"),
        ("a { # only\n}", "a { # only\n}\n"),
        ("a { b; } # end", "a {\n    b;\n} # end\n"),
        ("a 'x\n  y'  \"z\";", "a 'x\n  y' \"z\";\n"),
        ("log main 'x'\n\t'y'\n  'z';", "log main 'x'\n    'y'\n    'z';\n"),
        ("a b # c\n d;", "a b # c\n    d;\n"),
        ("a b # c\n ;", "a b # c\n    ;\n"),
        ("a b # c\n {}", "a b # c\n{}\n"),
        ("a\n# c\n{ b; }", "a\n    # c\n{\n    b;\n}\n"),
        ("a;\r\nb; # c\r\n", "a;\nb; # c\n"),
        ("if ($a = \"b\") {}", "if ($a = \"b\") {}\n"),
        ("if ( \"b\" ) {}", "if ( \"b\" ) {}\n"),
        ("x_by_lua_block  { a = {1,\n2} ; 'q }\nb;", "x_by_lua_block { a = {1,\n2} ; 'q }\nb;\n"),
        ("a", "!unexpected end of file, expecting \";\" or \"}\""),
        ("a {", "!unexpected end of file, expecting \"}\""),
        ("a; }", "!unexpected \"}\""),
        ("a { b }", "!unexpected \"}\""),
        (";", "!unexpected \";\""),
        ("{}", "!unexpected \"{\""),
    ];
    for (text, want) in cases {
        assert_eq!(formatted(text), *want, "{text:?}");
    }
}

/// The tree without places.
fn shape(nodes: &[Node]) -> String {
    let mut out = String::new();
    for node in nodes {
        for word in std::iter::once(&node.name).chain(&node.args) {
            out.push_str(&std::format!("{:?}{} ", word.value, word.quoted));
        }
        if let Some(block) = &node.block {
            out.push_str(&std::format!("{{{}}}", shape(block)));
        }
        out.push(';');
    }
    out
}

/// The tree of a text, or the first error, which is where a formatter stops.
fn tree(text: &[u8]) -> Result<String, String> {
    struct NoIncludes;
    impl Files for NoIncludes {
        fn read(&mut self, _: &Path) -> std::io::Result<Vec<u8>> {
            Ok(Vec::new())
        }
        fn glob(&mut self, _: &str) -> std::io::Result<Vec<std::path::PathBuf>> {
            Ok(Vec::new())
        }
    }
    let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
    let opts = ParseOptions { conf_prefix: "/".into() };
    let nodes = parse_text("t", text, &mut NoIncludes, &opts, &mut sources, &mut diags);
    match diags.iter().next() {
        Some(error) => Err(error.message.clone()),
        None => Ok(shape(&nodes)),
    }
}

fn check(text: &[u8]) {
    let once = format(FileId(0), text).unwrap();
    let shown = String::from_utf8_lossy(text);
    assert_eq!(tree(text), tree(&once), "meaning changed: {shown}");
    let twice = format(FileId(0), &once).unwrap();
    assert_eq!(String::from_utf8_lossy(&once), String::from_utf8_lossy(&twice), "{shown:?}");
}

/// Answers numbers below what it is asked with.
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |n| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 8) % n as u64) as usize
    }
}

/// Right configurations from a seed: pieces that are awkward for a formatter in random order.
fn generate(seed: u64) -> Vec<u8> {
    const WORDS: [&str; 14] = [
        "a",
        "$b",
        "${c}d",
        "'x y'",
        "\"q\\\"\"",
        "'a\n b'",
        "\\;",
        "80}",
        "b#c",
        "x\"y",
        "\"\"",
        "~*\\.php$",
        "\"z\")",
        "\u{e9}",
    ];
    const SPACES: [&str; 7] = [" ", "  ", "\n", "\t", "\r\n", " # note \n", "\n\n\n# x\n"];
    let mut random = random(seed);
    let (mut out, mut depth) = (String::new(), 0);
    for _ in 0..random(40) {
        out.push_str(["", "\n", "\n\n\n", " #c\n", "\n# d\n\n"][random(5)]);
        out.push_str(["n", "name", "'quoted name'", "${x}"][random(4)]);
        for _ in 0..random(4) {
            out.push_str(SPACES[random(SPACES.len())]);
            out.push_str(WORDS[random(WORDS.len())]);
        }
        out.push_str(["", " ", "\n", " # e\n"][random(4)]);
        match random(4) {
            // A brace right after "$" would not open a block, so a space stands before.
            0 => {
                out.push_str(" {");
                depth += 1;
            }
            1 if depth > 0 => {
                out.push_str(";}");
                depth -= 1;
            }
            _ => out.push(';'),
        }
    }
    out.push_str(&"}".repeat(depth));
    out.into_bytes()
}

#[test]
fn the_meaning_stays_and_a_second_time_changes_nothing() {
    (0..3_000).for_each(|seed| check(&generate(seed)));
}

#[test]
fn it_refuses_what_the_parser_refuses_with_the_same_message() {
    const PIECES: [&str; 16] =
        ["a", "b", "$", "{", "}", ";", ";", "\"", "'", "\\", "#", " ", "\n", ")", "\0", "\r\n"];
    for seed in 0..20_000 {
        let mut random = random(seed);
        let text: String = (0..random(16)).map(|_| PIECES[random(PIECES.len())]).collect();
        match format(FileId(0), text.as_bytes()) {
            Ok(_) => check(text.as_bytes()),
            Err(error) => assert_eq!(Err(error.message), tree(text.as_bytes()), "{text:?}"),
        }
    }
}

#[test]
fn nginx_own_files_keep_their_meaning() {
    let dir = Path::new("/etc/nginx");
    if !dir.exists() {
        eprintln!("skipped: no nginx configuration in {}", dir.display());
        return;
    }
    let found = crate::glob::glob("/etc/nginx/*").unwrap();
    for path in found.iter().filter(|p| p.is_file()) {
        // Some are tables for other programs, not configurations.
        let text = std::fs::read(path).unwrap();
        if format(FileId(0), &text).is_ok() {
            check(&text);
        }
    }
}
