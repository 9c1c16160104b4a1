//! What the documentation shows: every configuration in it is one that Forebay takes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use forebay_testkit::{certs, tempdir::TempDir};

/// The documents with configurations in them.
fn documents() -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(workspace.join("docs")).expect("docs");
    let docs = docs.map(|entry| entry.expect("an entry").path());
    let documents = docs.chain([workspace.join("README.md")]);
    documents.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// The texts between "```nginx" and "```", each with the number of its first line.
fn configurations(document: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open = None;
    for (index, line) in document.lines().enumerate() {
        match &mut open {
            None if line == "```nginx" => open = Some((index + 2, String::new())),
            None => {}
            Some(_) if line == "```" => found.extend(open.take()),
            Some((_, text)) => *text += &format!("{line}\n"),
        }
    }
    found
}

/// The files and addresses of this test in place of those that are shown.
fn moved(text: &str, dir: &Path) -> String {
    let at = |name: &str| dir.join(name).display().to_string();
    let text = text
        .replace("/var/log/nginx", &at("logs"))
        .replace("/etc/ssl/certs/ca-certificates.crt", &at("ca.pem"))
        .replace("example.com.pem", &at("ec.pem"))
        .replace("example.com.key", &at("ec.key"));
    let lines = text.lines().map(|line| match line.trim_start().strip_prefix("listen ") {
        Some(rest) => {
            let end = rest.find([' ', ';']).unwrap_or(rest.len());
            format!("listen unix:{}{}\n", at("socket"), &rest[end..])
        }
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// What `-t` has against a configuration; `None`: nothing.
fn refusal(text: &str, dir: &Path) -> Option<String> {
    fs::write(dir.join("nginx.conf"), text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["-t", "-c", "nginx.conf", "-e", "stderr", "-p"]).arg(dir);
    let output = command.output().expect("forebay runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(said)
}

#[test]
fn every_configuration_that_is_shown_is_one() {
    let dir = TempDir::new().expect("a directory");
    fs::create_dir(dir.path().join("logs")).expect("a directory");
    certs::write(dir.path()).expect("certificates");
    let (mut tried, mut refused) = (0, String::new());
    for path in documents() {
        let document = fs::read_to_string(&path).expect("a document");
        for (line, text) in configurations(&document) {
            let text = moved(&text, dir.path());
            // A document shows what matters, and leaves out the blocks around it.
            let around = [
                text.clone(),
                format!("events {{}} http {{ {text} }}"),
                format!("events {{}} http {{ server {{ {text} }} }}"),
            ];
            let refusals: Vec<_> =
                around.iter().map_while(|text| refusal(text, dir.path())).collect();
            if refusals.len() == around.len() {
                refused += &format!("{}:{line}: {}\n", path.display(), refusals.join("or "));
            }
            tried += 1;
        }
    }
    assert!(refused.is_empty(), "{refused}");
    assert!(tried > 15, "only {tried} configurations were found");
}
