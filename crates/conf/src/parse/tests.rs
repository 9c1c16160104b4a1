//! What the parser makes of texts, and what it says about wrong ones.

use super::*;
use crate::files::Memory;
use crate::record::{Record, Recording, Replay};

struct Parsed {
    nodes: Vec<Node>,
    sources: Sources,
    diags: Diagnostics,
}

fn run(files: &mut dyn Files) -> Parsed {
    let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
    let opts = ParseOptions { conf_prefix: "/c".into() };
    let nodes = parse(Path::new("/c/nginx.conf"), files, &opts, &mut sources, &mut diags);
    diags.sort(&sources);
    Parsed { nodes, sources, diags }
}

fn run_text(text: impl AsRef<[u8]>) -> Parsed {
    run(&mut Memory::default().with("/c/nginx.conf", text))
}

/// The tree on one line: `name(arg,arg)[children]`.
fn tree(nodes: &[Node]) -> String {
    let one = |n: &Node| {
        let args: Vec<_> = n.args.iter().map(|a| a.lossy().into_owned()).collect();
        let block = n.block.as_ref().map(|b| format!("[{}]", tree(b))).unwrap_or_default();
        format!("{}({}){block}", n.name(), args.join(","))
    };
    nodes.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn messages(parsed: &Parsed) -> Vec<String> {
    parsed.diags.iter().map(|e| e.nginx_line(&parsed.sources)).collect()
}

#[test]
fn directives_and_blocks_make_a_tree() {
    let p = run_text("user www;\nhttp {\n  server { listen 80; } # x\n server { }\n}\nevents{}");
    assert_eq!(messages(&p), [""; 0]);
    assert_eq!(tree(&p.nodes), "user(www) http()[server()[listen(80)] server()[]] events()[]");
    let http = &p.nodes[1];
    assert_eq!((http.span.line, http.block_end.unwrap().line), (2, 5));
}

#[test]
fn one_error_has_nginx_text_and_line() {
    let cases: &[(&str, &str)] = &[
        (";\n", "unexpected \";\" in /c/nginx.conf:1"),
        ("\n{}\n", "unexpected \"{\" in /c/nginx.conf:2"),
        ("a;\n}\n", "unexpected \"}\" in /c/nginx.conf:2"),
        ("a {\n b\n}\n", "unexpected \"}\" in /c/nginx.conf:3"),
        ("a {\n b;\n", "unexpected end of file, expecting \"}\" in /c/nginx.conf:3"),
        ("a\nb", "unexpected end of file, expecting \";\" or \"}\" in /c/nginx.conf:2"),
        ("a { b", "unexpected end of file, expecting \";\" or \"}\" in /c/nginx.conf:1"),
        ("a 'b;\n\n", "unexpected end of file, expecting \";\" or \"}\" in /c/nginx.conf:3"),
        ("a \"b\"c;", "unexpected \"c\" in /c/nginx.conf:1"),
        ("include;", "invalid number of arguments in \"include\" directive in /c/nginx.conf:1"),
        ("include a b;", "invalid number of arguments in \"include\" directive in /c/nginx.conf:1"),
        ("include a { b; }", "directive \"include\" is not terminated by \";\" in /c/nginx.conf:1"),
        (
            "\ninclude x;",
            "open() \"/c/x\" failed (2: No such file or directory) in /c/nginx.conf:2",
        ),
    ];
    for (text, want) in cases {
        assert_eq!(messages(&run_text(text)), [format!("[emerg] {want}")], "{text:?}");
    }
}

#[test]
fn a_missing_main_file_is_an_error_without_place() {
    let p = run(&mut Memory::default());
    let want = "[emerg] open() \"/c/nginx.conf\" failed (2: No such file or directory)";
    assert_eq!(messages(&p), [want]);
}

#[test]
fn all_errors_of_all_files_are_found_and_the_rest_is_parsed() {
    let mut files = Memory::default()
        .with("/c/nginx.conf", "a;\n;\nb { include sub; c }\n\"d\"e; f;\ng;\n")
        .with("/c/sub", "h\n{ i;; } j");
    let p = run(&mut files);
    let want = [
        "[emerg] unexpected \";\" in /c/nginx.conf:2",
        "[emerg] unexpected \";\" in /c/sub:2",
        "[emerg] unexpected end of file, expecting \";\" or \"}\" in /c/sub:2",
        "[emerg] unexpected \"}\" in /c/nginx.conf:3",
        "[emerg] unexpected \"e\" in /c/nginx.conf:4",
    ];
    assert_eq!(messages(&p), want);
    assert_eq!(tree(&p.nodes), "a() b()[h()[i()]] f() g()");
}

#[test]
fn of_braces_that_do_not_match_the_first_is_told() {
    let cases: &[(&str, &[&str])] = &[
        ("a;\n} b; }", &["unexpected \"}\" in /c/nginx.conf:2"]),
        ("a { b 1 }x; }\n;;", &["unexpected \"}\" in /c/nginx.conf:1"]),
        ("a { b };\nc; }\n\"d\"e;", &["unexpected \"}\" in /c/nginx.conf:1"]),
        (
            "a { b };\nc;",
            &["unexpected \"}\" in /c/nginx.conf:1", "unexpected \";\" in /c/nginx.conf:1"],
        ),
        ("a {\n{ b;\n}\n;", &["unexpected \"{\" in /c/nginx.conf:2"]),
    ];
    for (text, want) in cases {
        let want: Vec<_> = want.iter().map(|line| format!("[emerg] {line}")).collect();
        assert_eq!(messages(&run_text(text)), want, "{text:?}");
    }
}

#[test]
fn hints_say_what_is_missing() {
    let cases: &[(&str, &str)] = &[
        ("a {\n listen 80\n}", "a \";\" is missing after \"80\" in line 2"),
        ("a {\n b {\n }\n", "the \"{\" of line 1, column 3 is never closed"),
        ("a 'b;\nc;", "the ' of line 1, column 3 is never closed"),
        ("a \"b\"c;", "a quoted word must be followed by a space, \";\", \"{\" or \")\""),
        ("include a\nb c;", "a \";\" may be missing at the end of line 1"),
    ];
    for (text, want) in cases {
        let p = run_text(text);
        assert_eq!(p.diags.iter().next().unwrap().hint.as_deref(), Some(*want), "{text:?}");
    }
}

#[test]
fn includes_are_expanded_where_they_stand_in_any_block() {
    let mut files = Memory::default()
        .with("/c/nginx.conf", "a; types { include mime; x y; } include /c/d/*.conf; z;")
        .with("/c/mime", "text/html html htm;")
        .with("/c/d/2.conf", "two;")
        .with("/c/d/1.conf", "one { include mime; }")
        .with("/c/d/.3.conf", "hidden;");
    let p = run(&mut files);
    assert_eq!(messages(&p), [""; 0]);
    let want = "a() types()[text/html(html,htm) x(y)] one()[text/html(html,htm)] two() z()";
    assert_eq!(tree(&p.nodes), want);
    let names: Vec<_> = p.sources.iter().map(|s| s.path.display().to_string()).collect();
    assert_eq!(names, ["/c/nginx.conf", "/c/mime", "/c/d/1.conf", "/c/d/2.conf"]);
}

#[test]
fn a_mask_without_match_is_fine() {
    let p = run_text("include none/*; include [ab]c; a;");
    assert_eq!((messages(&p), tree(&p.nodes)), (vec![], "a()".into()));
}

#[test]
fn a_block_does_not_end_in_another_file() {
    let p =
        run(&mut Memory::default().with("/c/nginx.conf", "a { include b;").with("/c/b", "c; }"));
    let want = [
        "[emerg] unexpected \"}\" in /c/b:1",
        "[emerg] unexpected end of file, expecting \"}\" in /c/nginx.conf:1",
    ];
    assert_eq!(messages(&p), want);
}

#[test]
fn a_file_that_includes_itself_is_named() {
    let mut files = Memory::default()
        .with("/c/nginx.conf", "a;\ninclude b;")
        .with("/c/b", "\ninclude nginx.conf;");
    let p = run(&mut files);
    assert_eq!(messages(&p), ["[emerg] \"/c/nginx.conf\" includes itself in /c/b:2"]);
    let excerpt = p.diags.iter().next().unwrap().excerpt(&p.sources);
    assert!(excerpt.contains("included from /c/nginx.conf:2:9"), "{excerpt}");
}

#[test]
fn a_chain_of_includes_has_a_bound() {
    struct Endless;
    impl Files for Endless {
        fn read(&mut self, path: &Path) -> std::io::Result<Vec<u8>> {
            Ok(format!("include {}x;", path.display()).into_bytes())
        }
        fn glob(&mut self, _: &str) -> std::io::Result<Vec<PathBuf>> {
            Ok(Vec::new())
        }
    }
    let p = run(&mut Endless);
    let got = messages(&p);
    assert_eq!((got.len(), got[0].contains("too many includes at")), (1, true), "{got:?}");
}

#[test]
fn nested_blocks_have_a_bound_and_are_reported_once() {
    let p = run_text("a{".repeat(100_000) + &"}".repeat(100_000) + "b;");
    assert_eq!(messages(&p), ["[emerg] too many nested blocks, more than 64 in /c/nginx.conf:1"]);
    assert_eq!(p.nodes.len(), 2);
    let deepest = "a{".repeat(MAX_DEPTH) + &"}".repeat(MAX_DEPTH);
    assert!(!run_text(deepest).diags.has_errors());
}

#[test]
fn parameters_have_a_bound() {
    let words = |n| format!("a{};b;", " x".repeat(n));
    assert_eq!(run_text(words(MAX_ARGS)).nodes[0].args.len(), MAX_ARGS);
    let p = run_text(words(MAX_ARGS + 1));
    assert_eq!(messages(&p), ["[emerg] too many parameters in /c/nginx.conf:1"]);
    assert_eq!(tree(&p.nodes), "b()");
}

#[test]
fn lua_blocks_do_not_make_more_errors() {
    let p = run_text("location / { content_by_lua_block { if x then y(';\"') end {} } a; }");
    assert_eq!(messages(&p), [""; 0]);
    assert_eq!(tree(&p.nodes), "location(/)[content_by_lua_block()[] a()]");
}

#[test]
fn the_command_line_takes_plain_directives_only() {
    let run = |text: &str| {
        let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
        let opts = ParseOptions::default();
        let mut files = Memory::default();
        let nodes =
            parse_command_line(text.as_bytes(), &mut files, &opts, &mut sources, &mut diags);
        messages(&Parsed { nodes: nodes.clone(), sources, diags }).pop().unwrap_or(tree(&nodes))
    };
    assert_eq!(run("daemon off; pid x;"), "daemon(off) pid(x)");
    let end = "[emerg] unexpected end of parameter, expecting \";\" in command line";
    assert_eq!(run("daemon off"), end);
    assert_eq!(run("daemon 'off"), end);
    let block = "[emerg] block directives are not supported in -g option in command line";
    assert_eq!(run("events {}"), block);
    assert_eq!(run("{}"), "[emerg] unexpected \"{\" in command line");
    assert_eq!(run("a b} c"), end);
    assert_eq!(run(&format!("a {};", "x".repeat(5000))).len(), 5003);
}

#[test]
fn embedded_text_is_named_in_messages() {
    let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
    let (mut files, opts) = (Memory::default(), ParseOptions::default());
    parse_text("(default)", b"\n;", &mut files, &opts, &mut sources, &mut diags);
    let error = diags.iter().next().unwrap();
    assert_eq!(error.nginx_line(&sources), "[emerg] unexpected \";\" in (default):2");
}

#[test]
fn a_record_parses_to_the_same_tree() {
    let files =
        Memory::default().with("/c/nginx.conf", "include *.x; include no;").with("/c/a.x", "a;");
    let mut recording = Recording::new(files);
    let direct = run(&mut recording);
    let record = Record::from_bytes(&recording.into_record().to_bytes()).unwrap();
    let replayed = run(&mut Replay(record));
    assert_eq!(direct.nodes, replayed.nodes);
    assert_eq!(messages(&direct), messages(&replayed));
}

#[test]
fn text_cut_at_any_byte_never_panics() {
    let text: &[u8] = b"a 'b\\' c' \"d\";\r\nb ${c} {\n\tif ($x = \"y\") { # z\n } \xff\\; }\nd;";
    for cut in 0..text.len() {
        run_text(&text[..cut]);
        run_text(&text[cut..]);
    }
}

#[test]
fn a_comment_has_any_length() {
    let p = run_text(format!("a; # {}\nb; #{}", "x".repeat(10_000), "y".repeat(5000)));
    assert_eq!((messages(&p), tree(&p.nodes)), (vec![], "a() b()".into()));
}

#[test]
fn a_message_names_the_line_of_the_wrong_word() {
    let p = run_text("include\na\n\nb\n;");
    let want = "[emerg] invalid number of arguments in \"include\" directive in /c/nginx.conf:1";
    assert_eq!(messages(&p), [want]);
}

#[test]
fn an_included_directory_is_an_error_with_its_place() {
    struct Dirs(Memory);
    impl Files for Dirs {
        fn read(&mut self, path: &Path) -> std::io::Result<Vec<u8>> {
            const EISDIR: i32 = 21;
            match path.ends_with("dir") {
                true => Err(std::io::Error::from_raw_os_error(EISDIR)),
                false => self.0.read(path),
            }
        }
        fn glob(&mut self, pattern: &str) -> std::io::Result<Vec<PathBuf>> {
            self.0.glob(pattern)
        }
    }
    let p = run(&mut Dirs(Memory::default().with("/c/nginx.conf", "a;\ninclude dir;")));
    let want = "[emerg] pread() \"/c/dir\" failed (21: Is a directory) in /c/nginx.conf:2";
    assert_eq!(messages(&p), [want]);
}
