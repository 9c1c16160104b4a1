//! Tables of values and what nginx takes them for.

use super::*;
use crate::files::Memory;
use crate::parse::{ParseOptions, parse_text};
use crate::source::Sources;

fn node(text: &str) -> Node {
    let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
    let (mut files, opts) = (Memory::default(), ParseOptions::default());
    let nodes = parse_text("t", text.as_bytes(), &mut files, &opts, &mut sources, &mut diags);
    nodes.into_iter().next().unwrap()
}

fn table(parse: fn(&[u8]) -> Option<u64>, cases: &[(&str, Option<u64>)]) {
    for (text, want) in cases {
        assert_eq!(parse(text.as_bytes()), *want, "{text:?}");
    }
}

#[test]
fn numbers_are_digits_up_to_63_bits() {
    table(
        number,
        &[
            ("0", Some(0)),
            ("007", Some(7)),
            ("9223372036854775807", Some(i64::MAX as u64)),
            ("9223372036854775808", None),
            ("99999999999999999999999", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1 ", None),
            ("0x1", None),
        ],
    );
}

#[test]
fn sizes_have_k_and_m_and_file_sizes_g_too() {
    let both = [
        ("0", Some(0)),
        ("8k", Some(8192)),
        ("8K", Some(8192)),
        ("1m", Some(1 << 20)),
        ("1M", Some(1 << 20)),
        ("k", None),
        ("", None),
        ("1kk", None),
        ("1.5m", None),
        ("-1k", None),
        ("9007199254740991k", Some(9_007_199_254_740_991 << 10)),
        ("9007199254740992k", None),
    ];
    table(size, &both);
    table(offset, &both);
    table(size, &[("1g", None)]);
    table(offset, &[("1g", Some(1 << 30)), ("2G", Some(2 << 30)), ("8589934592g", None)]);
}

#[test]
fn times_are_read_as_nginx_reads_them() {
    for text in ["", "s", " ", "5q", "-1", "5ss"] {
        assert_eq!((msec(text.as_bytes()), sec(text.as_bytes())), (None, None), "{text:?}");
    }
    table(
        msec,
        &[
            ("0", Some(0)),
            ("5", Some(5_000)),
            ("500ms", Some(500)),
            ("5s", Some(5_000)),
            ("1m", Some(60_000)),
            ("1h", Some(3_600_000)),
            ("1d 12h", Some(129_600_000)),
            ("1d12h30m5s500ms", Some(131_405_500)),
            ("1d  12h", Some(129_600_000)),
            ("1w", Some(604_800_000)),
            ("1s 500ms", Some(1_500)),
            ("1m 30", Some(90_000)),
            ("10 5", Some(15_000)),
            ("5 ", Some(5_000)),
            ("s5", Some(5_000)),
            ("1M", None),
            ("1y", None),
            ("1h 1d", None),
            ("1m 1m", None),
            ("5s 5", Some(10_000)),
            ("1ms 1", Some(1_001)),
            ("1ms 1ms", None),
            ("9223372036854775807ms", Some(i64::MAX as u64)),
            ("9223372036854775808ms", None),
            ("9223372036854775s", Some(9_223_372_036_854_775_000)),
            ("9223372036854776s", None),
            ("9223372036854776", None),
            ("1\t", None),
        ],
    );
    table(
        sec,
        &[
            ("5", Some(5)),
            ("1M", Some(2_592_000)),
            ("1y", Some(31_536_000)),
            ("1y 1M 1w 1d 1h 1m 1s", Some(31_536_000 + 2_592_000 + 604_800 + 86_400 + 3_661)),
            ("1y1y", None),
            ("500ms", None),
        ],
    );
}

#[test]
fn rates_fixed_points_and_modes_are_read() {
    table(
        rate,
        &[
            ("10r/s", Some(10_000)),
            ("30r/m", Some(500)),
            ("1r/m", Some(16)),
            ("0r/s", None),
            ("10", None),
            ("r/s", None),
            ("10r/h", None),
        ],
    );
    let fixed = |t: &[u8]| fixed_point(t, 2);
    table(
        fixed,
        &[
            ("2.5", Some(250)),
            ("2", Some(200)),
            ("0.25", Some(25)),
            (".5", Some(50)),
            ("2.", Some(200)),
            ("0.125", None),
            (".", None),
            ("1.2.3", None),
            ("", None),
        ],
    );
    let modes = [("0644", Some(0o644)), ("+7", None), ("9", None), ("", None)];
    for (text, want) in modes {
        assert_eq!(octal(text.as_bytes()), want, "{text:?}");
    }
}

fn message(result: Result<(), Error>) -> String {
    result.err().map(|e| e.message).unwrap_or_default()
}

#[test]
fn wrong_values_have_nginx_texts() {
    let number = |n: &Node| set_number(&mut None::<u32>, n);
    let colour = |n: &Node| set_enum(&mut None, n, &[("red", 1), ("blue", 2)]);
    type Set<'a> = &'a dyn Fn(&Node) -> Result<(), Error>;
    let cases: &[(Set, &str, &str)] = &[
        (&|n| set_size(&mut None, n), "a 8k;", ""),
        (&|n| set_size(&mut None, n), "a 1g;", "\"a\" directive invalid value"),
        (&|n| set_offset(&mut None, n), "a 1g;", ""),
        (&|n| set_offset(&mut None, n), "a x;", "\"a\" directive invalid value"),
        (&|n| set_msec(&mut None, n), "a '1h 30m';", ""),
        (&|n| set_msec(&mut None, n), "a 5q;", "\"a\" directive invalid value"),
        (&|n| set_sec(&mut None, n), "a 5ms;", "\"a\" directive invalid value"),
        (&number, "a 9223372036854775807;", ""),
        (&number, "a 9223372036854775808;", "\"a\" directive invalid number"),
        (&number, "a x;", "\"a\" directive invalid number"),
        (&colour, "a BLUE;", ""),
        (&colour, "a green;", "invalid value \"green\""),
        (&|n| set_bufs(&mut None, n), "a 4 8k;", ""),
        (&|n| set_bufs(&mut None, n), "a 0 8k;", "\"a\" directive invalid value"),
        (&|n| set_bufs(&mut None, n), "a 4 0;", "\"a\" directive invalid value"),
        (&|n| set_str(&mut None, n), "a;", "invalid number of arguments in \"a\" directive"),
        (&|n| set_flag(&mut None, n), "a On;", ""),
        (
            &|n| set_flag(&mut None, n),
            "a 1;",
            "invalid value \"1\" in \"a\" directive, it must be \"on\" or \"off\"",
        ),
    ];
    for (set, text, want) in cases {
        assert_eq!(message(set(&node(text))), *want, "{text}");
    }
}

#[test]
fn a_second_directive_is_a_duplicate_and_changes_nothing() {
    let twice = "\"a\" directive is duplicate";
    let (mut flag, mut text) = (Some(true), Some("x".to_owned()));
    assert_eq!(message(set_flag(&mut flag, &node("a off;"))), twice);
    assert_eq!(message(set_str(&mut text, &node("a y;"))), twice);
    assert_eq!(message(set_bytes(&mut Some(b"x"[..].into()), &node("a y;"))), twice);
    assert_eq!(message(set_msec(&mut Some(1), &node("a bad;"))), twice);
    assert_eq!((flag, text.as_deref()), (Some(true), Some("x")));
}

#[test]
fn bits_collect_and_warn_of_repetition() {
    let table = [("get", 1), ("post", 2), ("any", 4)];
    let (mut slot, mut diags) = (None, Diagnostics::new());
    set_bits(&mut slot, &node("a GET;"), &table, &mut diags).unwrap();
    set_bits(&mut slot, &node("a get any;"), &table, &mut diags).unwrap();
    assert_eq!(slot, Some(5));
    let warnings: Vec<_> = diags.iter().map(|e| e.message.as_str()).collect();
    assert_eq!(warnings, ["duplicate value \"get\""]);
    let wrong = set_bits(&mut slot, &node("a put;"), &table, &mut diags);
    assert_eq!(message(wrong), "invalid value \"put\"");
}

#[test]
fn bounds_have_nginx_texts() {
    let n = node("a 5;");
    assert_eq!(message(check_bounds(&n, 5, 1, Some(9))), "");
    assert_eq!(message(check_bounds(&n, 5, 6, Some(9))), "value must be between 6 and 9");
    assert_eq!(message(check_bounds(&n, 5, 6, None)), "value must be equal to or greater than 6");
}
