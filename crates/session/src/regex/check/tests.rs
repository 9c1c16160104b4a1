//! What PCRE2 10.42 says of these patterns.

use super::*;

#[test]
fn what_pcre2_refuses_is_refused_in_its_words_and_at_its_place() {
    for (pattern, at, cause) in [
        (r"a**", 2, r"quantifier does not follow a repeatable item"),
        (r"a**+", 2, r"quantifier does not follow a repeatable item"),
        (r"a+++", 3, r"quantifier does not follow a repeatable item"),
        (r"x{2}{3}*", 6, r"quantifier does not follow a repeatable item"),
        (r"a{1}{2}", 6, r"quantifier does not follow a repeatable item"),
        (r"a{1}?+", 5, r"quantifier does not follow a repeatable item"),
        (r"*", 0, r"quantifier does not follow a repeatable item"),
        (r"a|*", 2, r"quantifier does not follow a repeatable item"),
        (r"^*", 1, r"quantifier does not follow a repeatable item"),
        (r"$*", 1, r"quantifier does not follow a repeatable item"),
        (r"\b*", 2, r"quantifier does not follow a repeatable item"),
        (r"(?i)*", 4, r"quantifier does not follow a repeatable item"),
        (r"(?#c)*", 5, r"quantifier does not follow a repeatable item"),
        (r"*\Q", 0, r"quantifier does not follow a repeatable item"),
        (r"\E*", 2, r"quantifier does not follow a repeatable item"),
        (r"a{99999}", 7, r"number too big in {} quantifier"),
        (r"a{3,2}", 5, r"numbers out of order in {} quantifier"),
        (r"[[:foo:]]", 3, r"unknown POSIX class name"),
        (r"[[.a.]]", 1, r"POSIX collating elements are not supported"),
        (r"[:alpha:]", 0, r"POSIX named classes are supported only within a class"),
        (r"[=a=]", 0, r"POSIX collating elements are not supported"),
        (r"[z-a]", 3, r"range out of order in character class"),
        (r"[a", 2, r"missing terminating ] for character class"),
        (r"[]", 2, r"missing terminating ] for character class"),
        (r"[^]", 3, r"missing terminating ] for character class"),
        (r"[a-\d]", 5, r"invalid range in character class"),
        (r"[\d-z]", 3, r"invalid range in character class"),
        (r"[[:alpha:]-z]", 10, r"invalid range in character class"),
        (r"[a-[:digit:]]", 4, r"invalid range in character class"),
        (r"[\N]", 3, r"\N is not supported in a class"),
        (r"[\B]", 2, r"escape sequence is invalid in character class"),
        (r"[\R]", 2, r"escape sequence is invalid in character class"),
        (r"[\A]", 2, r"escape sequence is invalid in character class"),
        (r"[\E", 3, r"\ at end of pattern"),
        (r"(", 1, r"missing closing parenthesis"),
        (r"a)b", 1, r"unmatched closing parenthesis"),
        (r"(?P<1>a)", 4, r"subpattern name must start with a non-digit"),
        (r"(?<>a)", 3, r"subpattern name expected"),
        (r"(?<a-b>x)", 4, r"syntax error in subpattern name (missing terminator?)"),
        (r"(?<n", 4, r"syntax error in subpattern name (missing terminator?)"),
        (
            r"(?<nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn>x)",
            36,
            r"subpattern name is too long (maximum 32 code units)",
        ),
        (
            r"(?<a>x)(?<a>y)",
            12,
            r"two named subpatterns have the same name (PCRE2_DUPNAMES not set)",
        ),
        (r"(?", 2, r"missing closing parenthesis"),
        (r"(?P", 3, r"missing closing parenthesis"),
        (r"(?Pz)", 3, r"unrecognized character after (?P"),
        (r"(?z)", 2, r"unrecognized character after (? or (?-"),
        (r"(?i", 3, r"missing closing parenthesis"),
        (r"(?i--s)", 4, r"invalid hyphen in option setting"),
        (r"(?^-i)", 3, r"invalid hyphen in option setting"),
        (r"(?#", 3, r"missing ) after (?# comment"),
        (r"(?R", 3, r"(?R (recursive pattern call) must be followed by a closing parenthesis"),
        (r"(?+a)", 2, r"digit expected after (?+ or (?-"),
        (r"(?+0)", 4, r"a relative value of zero is not allowed"),
        (r"\8", 1, r"reference to non-existent subpattern"),
        (r"(a)\2", 4, r"reference to non-existent subpattern"),
        (r"(a)\g{2}", 7, r"reference to non-existent subpattern"),
        (r"\g{-1}", 2, r"reference to non-existent subpattern"),
        (r"\g{0}", 5, r"reference to non-existent subpattern"),
        (
            r"\g",
            2,
            r"\g is not followed by a braced, angle-bracketed, or quoted name/number or by a plain number",
        ),
        (
            r"\g{1",
            2,
            r"\g is not followed by a braced, angle-bracketed, or quoted name/number or by a plain number",
        ),
        (r"\k", 2, r"\k is not followed by a braced, angle-bracketed, or quoted name"),
        (r"\kx", 2, r"\k is not followed by a braced, angle-bracketed, or quoted name"),
        (r"\k{n}", 3, r"reference to non-existent subpattern"),
        (r"\k<n>", 3, r"reference to non-existent subpattern"),
        (r"(?P=n)", 4, r"reference to non-existent subpattern"),
        (r"(?1)", 3, r"reference to non-existent subpattern"),
        (r"(?&n)", 3, r"reference to non-existent subpattern"),
        (r"\g{99999}", 2, r"subpattern number is too big"),
        (r"\", 1, r"\ at end of pattern"),
        (r"a\i", 2, r"unrecognized character follows \"),
        (r"a\u0041", 3, r"PCRE2 does not support \F, \L, \l, \N{name}, \U, or \u"),
        (r"\N{x}", 2, r"PCRE2 does not support \F, \L, \l, \N{name}, \U, or \u"),
        (r"\N{U+41}", 2, r"\N{U+dddd} is supported only in Unicode (UTF) mode"),
        (r"\x{zz}", 3, r"non-hex character in \x{} (closing brace missing?)"),
        (r"\x{100}", 6, r"character code point value in \x{} or \o{} is too large"),
        (r"\x{", 3, r"digits missing in \x{} or \o{} or \N{U+}"),
        (r"\x{4", 3, r"non-hex character in \x{} (closing brace missing?)"),
        (r"\400", 4, r"octal value is greater than \377 in 8-bit non-UTF-8 mode"),
        (r"\o{9}", 3, r"non-octal character in \o{} (closing brace missing?)"),
        (r"\o1", 2, r"missing opening brace after \o"),
        (r"\c", 2, r"\c at end of pattern"),
        (r"\cé", 2, r"\c must be followed by a printable ASCII character"),
        (r"\p", 2, r"malformed \P or \p sequence"),
        (r"\p{L", 4, r"malformed \P or \p sequence"),
        (r"\p{L}\p1", 8, r"malformed \P or \p sequence"),
        (
            r"(?=a\K)b",
            8,
            r"\K is not allowed in lookarounds (but see PCRE2_EXTRA_ALLOW_LOOKAROUND_BSK)",
        ),
        (r"(*UTF)[é-a]", 10, r"range out of order in character class"),
        (r"(*UTF)a**", 8, r"quantifier does not follow a repeatable item"),
        (r"(*UTF)\x{d800}", 13, r"disallowed Unicode code point (>= 0xd800 && <= 0xdfff)"),
        (r"(*UTF)\x{110000}", 15, r"character code point value in \x{} or \o{} is too large"),
    ] {
        assert_eq!(check(pattern.as_bytes()), Err(Wrong { cause, at }), "{pattern}");
    }
}

#[test]
fn what_pcre2_takes_passes() {
    for pattern in [
        r"a(?#c)*",
        r"\Q*",
        r"a\E*",
        r"a{,3}",
        r"a{x}",
        r"a{2}+",
        r"a{2,}?",
        r"(?x)a{2} ?",
        r"(?=a)*",
        r"(?>a)*",
        r"[]a]",
        r"[^]a]",
        r"[a-]",
        r"[-a]",
        r"[+--]",
        r"[[:^alpha:]]",
        r"[[:alpha:]-]",
        r"[[:a]",
        r"[\d-]",
        r"[\g\b\x41-\x5a]",
        r"[[:<:]]a",
        r"(?<n>a)\k{n}\k<n>\g{n}(?P=n)",
        r"\1(a)",
        r"\10",
        r"(a)\g1\g{-1}\g{1}",
        r"\cA\x\x4\x{4}\o{101}\0\012\_\é",
        r"(?i-s)(?^i:a)(?J)(?<a>x)(?<a>y)",
        r"(?n)(a)(?<n>b)",
        r"(*CR)a",
        r"(?<=a)(?<!b)(?!c)",
        r"\p{L}\pL\P{^Lu}",
        r"(?|a|b)",
        r"(?-i)",
        r"(*UTF)[a-é]",
        r"(?<nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn>x)",
        r"(*UTF)\N{U+41}",
    ] {
        assert_eq!(check(pattern.as_bytes()), Ok(()), "{pattern}");
    }
}

#[test]
fn parentheses_have_a_depth() {
    let nested = |n| ["(".repeat(n), "a".into(), ")".repeat(n)].concat();
    assert_eq!(check(nested(250).as_bytes()), Ok(()));
    let cause = "parentheses are too deeply nested";
    assert_eq!(check(nested(251).as_bytes()), Err(Wrong { cause, at: 251 }));
}

#[test]
fn what_no_engine_runs_is_left_to_them() {
    for pattern in ["(a)?(?(1)b**|c)", "a(*SKIP)b**"] {
        assert_eq!(check(pattern.as_bytes()), Ok(()), "{pattern}");
    }
}
