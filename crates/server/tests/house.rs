//! The rules of the house that a compiler does not hold: which crate may use which, where `unsafe`
//! may stand, who may name a module, how long a file may be, and that every `DIFFERS(id)` is a row of
//! `docs/differences.md` and the other way round.
//! Invariant: reads the sources only; nothing is started.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The arrows of `ARCHITECTURE.md`: a crate and what it may use of the others.
const ARROWS: &[(&str, &[&str])] = &[
    ("conf", &[]),
    ("wire", &[]),
    ("rt", &[]),
    ("tls", &["rt"]),
    ("session", &["conf", "rt", "tls", "wire"]),
    ("http", &["conf", "rt", "session", "tls", "wire"]),
    ("server", &["conf", "http", "rt", "session", "tls", "wire"]),
    ("testkit", &["wire"]),
    ("compare", &["testkit"]),
];

/// Files that may be longer than [`MAX_LINES`]: tables.
const LONG: &[&str] = &["crates/http/src/core/directives.rs"];

const MAX_LINES: usize = 800;

/// The only files of `http` that name modules, outside of `modules/` itself.
const NAMES_MODULES: &[&str] = &["lib.rs", "testing.rs"];

/// Differences in what happens when a disk or the machine is at its end in a way that a test cannot
/// bring about.
const UNTESTABLE: &[&str] = &["autoindex-read-error", "password-threads"];

fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("crates/server is two levels down").to_owned()
}

/// A file of the workspace: its path from the root, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn is_below(&self, dir: &str) -> bool {
        self.path.starts_with(dir)
    }
}

/// Every Rust file of `crates/`, in order.
fn sources() -> Vec<Source> {
    let root = workspace();
    let mut found = Vec::new();
    let mut dirs = vec![root.join("crates")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    dirs.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("UTF-8 source");
                let path = path.strip_prefix(&root).expect("below the root").display().to_string();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The code of a line, without a comment at its end; a `//` inside a string hides no more than that.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// What stands under `[dependencies]` and `[build-dependencies]` of a crate's manifest.
fn dependencies(name: &str) -> BTreeSet<String> {
    let path = workspace().join("crates").join(name).join("Cargo.toml");
    let manifest = fs::read_to_string(path).expect("manifest");
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if matches!(section, "[dependencies]" | "[build-dependencies]")
            && let Some((used, _)) = line.split_once(['.', ' ', '='])
        {
            found.insert(used.to_owned());
        }
    }
    found
}

#[test]
fn crates_use_only_what_is_below_them() {
    let crates = workspace().join("crates");
    let names: BTreeSet<String> = fs::read_dir(&crates)
        .expect("crates")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    let known: BTreeSet<String> = ARROWS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names, known, "a crate without a line in ARROWS and ARCHITECTURE.md");
    for (name, allowed) in ARROWS {
        for used in dependencies(name).iter().filter_map(|used| used.strip_prefix("forebay-")) {
            assert!(allowed.contains(&used), "{name} must not use {used}");
        }
    }
}

#[test]
fn crates_of_others_are_used_where_their_list_says() {
    let list = fs::read_to_string(workspace().join("docs/dependencies.md")).expect("the list");
    let mut listed = BTreeSet::new();
    for row in list.lines().filter_map(|line| line.strip_prefix("| ")).skip(1) {
        let [names, users, _] = row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
        for name in names.split(", ").filter_map(|name| name.split(' ').next()) {
            listed.extend(users.split(", ").map(|user| (name.to_owned(), user.to_owned())));
        }
    }
    let (sources, mut found) = (sources(), BTreeSet::new());
    for (user, _) in ARROWS {
        let is_foreign = |name: &String| !name.starts_with("forebay-");
        for name in dependencies(user).into_iter().filter(is_foreign) {
            let library = match &*name {
                "md-5" => "md5::".to_owned(),
                "rustls-webpki" => "webpki::".to_owned(),
                name => format!("{}::", name.replace('-', "_")),
            };
            let own = sources.iter().filter(|source| source.is_below(&format!("crates/{user}/")));
            let is_used = own.map(|source| &source.text).any(|text| text.contains(&library));
            assert!(is_used, "{user} does not use {name}");
            found.insert((name, (*user).to_owned()));
        }
    }
    assert_eq!(found, listed, "the manifests, and docs/dependencies.md");
}

#[test]
fn the_architecture_has_a_row_for_every_crate() {
    let text = fs::read_to_string(workspace().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    for (name, _) in ARROWS {
        assert!(text.contains(&format!("| `{name}` |")), "no row for {name}");
    }
}

#[test]
fn unsafe_lives_in_rt() {
    let is_unsafe = |line: &str| {
        let code = code(line);
        // In pieces, so that this file does not find itself.
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "allow(unsafe", "#[unsafe("]
            .iter()
            .any(|word| code.contains(word) && !code.contains(&format!("\"{word}")))
    };
    for source in sources() {
        // A counting allocator cannot be had otherwise, and is linked into one test only.
        if source.is_below("crates/rt/src/")
            || source.path == "crates/http/tests/allocations/main.rs"
        {
            continue;
        }
        for (number, line) in source.text.lines().enumerate() {
            assert!(!is_unsafe(line), "{}:{}: {line}", source.path, number + 1);
        }
    }
}

#[test]
fn every_unsafe_block_says_why_it_is_safe() {
    for source in sources().iter().filter(|source| source.is_below("crates/rt/src/")) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if !code(line).contains("unsafe {") && !code(line).contains("unsafe impl") {
                continue;
            }
            let before = &lines[at.saturating_sub(8)..=at];
            let said = before.iter().any(|line| line.contains("SAFETY:"));
            assert!(said, "{}:{}: no SAFETY comment", source.path, at + 1);
        }
    }
}

#[test]
fn the_engine_names_no_module() {
    for source in sources() {
        let Some(file) = source.path.strip_prefix("crates/http/src/") else { continue };
        if file.starts_with("modules/") || NAMES_MODULES.contains(&file) {
            continue;
        }
        let engine = source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for (number, line) in engine.lines().enumerate() {
            assert!(!code(line).contains("modules::"), "{}:{}: {line}", source.path, number + 1);
        }
    }
}

#[test]
fn no_file_is_long_but_the_tables() {
    for source in sources() {
        let lines = source.text.lines().count();
        let allowed = LONG.contains(&source.path.as_str());
        assert!(allowed || lines < MAX_LINES, "{} has {lines} lines", source.path);
    }
    for path in LONG {
        let text = fs::read_to_string(workspace().join(path)).expect("a file of LONG");
        assert!(text.lines().count() >= MAX_LINES, "{path} is not long any more");
    }
}

#[test]
fn every_file_says_what_it_is() {
    // Unit tests in a file of their own are what the module beside them says.
    for source in sources().iter().filter(|source| !source.path.ends_with("/tests.rs")) {
        assert!(source.text.starts_with("//!"), "{} has no module doc", source.path);
    }
}

/// The ids of `DIFFERS(id): ` in the sources, each with its files.
fn ids_in_sources() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources().iter().filter(|source| source.path.contains("/src/")) {
        for (number, line) in source.text.lines().enumerate() {
            let Some((_, rest)) = line.split_once("DIFFERS") else { continue };
            let place = format!("{}:{}", source.path, number + 1);
            let id = rest.strip_prefix('(').and_then(|rest| rest.split_once("): "));
            let Some((id, _)) = id else {
                panic!("{place}: a difference is written DIFFERS(id): text");
            };
            let is_id = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(id.chars().all(is_id), "{place}: id \"{id}\"");
            found.entry(id.to_owned()).or_default().push(place);
        }
    }
    found
}

/// The rows of `docs/differences.md`: id and the words in backticks of the last column.
fn rows() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(workspace().join("docs/differences.md")).expect("differences.md");
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 5, "id, nginx, Forebay, reason, held by: {line}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "an empty cell: {line}");
        let id = cells[0].trim_matches('`').to_owned();
        let held_by = cells[4].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(found.insert(id, held_by).is_none(), "two rows of one id: {line}");
    }
    found
}

#[test]
fn every_difference_has_a_row_and_every_row_a_difference() {
    let (rows, ids) = (rows(), ids_in_sources());
    for (id, places) in &ids {
        assert!(rows.contains_key(id), "docs/differences.md has no row for {id} ({places:?})");
    }
    for id in rows.keys() {
        assert!(ids.contains_key(id), "no DIFFERS({id}) in the sources");
    }
}

#[test]
fn every_difference_is_held_by_a_test_or_case() {
    let sources = sources();
    let is_test = |name: &str| {
        let definition = format!("fn {name}()");
        sources.iter().any(|source| source.text.contains(&definition))
    };
    for (id, held_by) in rows() {
        // Only what no test can bring about is held by none, and the cell says why.
        assert!(
            !held_by.is_empty() || UNTESTABLE.contains(&id.as_str()),
            "{id} is held by nothing"
        );
        for name in held_by {
            let found = match name.ends_with(".case") {
                true => workspace().join("tests/cases").join(&name).is_file(),
                false => is_test(&name),
            };
            assert!(found, "{id}: no test or case {name}");
        }
    }
}

#[test]
fn every_expected_difference_of_a_case_has_a_row() {
    let rows = rows();
    let mut dirs = vec![workspace().join("tests/cases")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            for line in text.lines().filter_map(|line| line.strip_prefix("=== ")) {
                let row = line.split_whitespace().next().unwrap_or_default();
                assert!(rows.contains_key(row), "{}: no row {row}", path.display());
            }
        }
    }
}
