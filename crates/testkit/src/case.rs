//! Reads `.case` files: a configuration, files and requests to play against both servers. The format
//! is described in `tests/README.md`.
//! Invariant: reading a case touches no socket; every mistake names its line.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

pub use crate::case_request::{Action, Step};
use crate::case_request::{parse_requests, unescape, words};

/// Modification time of files that name none: Tue, 14 Nov 2023 22:13:20 GMT.
pub const DEFAULT_MTIME: u64 = 1_700_000_000;

/// A mistake in a case file.
#[derive(Debug, PartialEq, Eq)]
pub struct CaseError {
    /// 1-based.
    pub line: usize,
    /// What is wrong.
    pub cause: String,
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.cause)
    }
}

pub(crate) fn error<T>(line: usize, cause: impl Into<String>) -> Result<T, CaseError> {
    Err(CaseError { line, cause: cause.into() })
}

/// One case file.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is about.
    pub name: String,
    /// The whole configuration, with placeholders.
    pub conf: String,
    /// Files below `{root}`.
    pub files: Vec<FileSpec>,
    /// Connections, one after another.
    pub steps: Vec<Step>,
    /// What is compared.
    pub checks: Checks,
    /// Requests that Forebay answers otherwise on purpose.
    pub differs: Vec<Differs>,
}

/// What of the two servers' behaviour must agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Status line.
    pub status: bool,
    /// Headers: which, and in which order.
    pub headers: Headers,
    /// Body after removal of codings.
    pub body: bool,
    /// That the connection is open, in step, or closed after the last response.
    pub sync: bool,
    /// Lines of `{prefix}/access.log`.
    pub log: bool,
    /// Lines of the error log of this level and worse.
    pub error_log: Option<Level>,
    /// Headers that are left out of the comparison, in lower case.
    pub ignore: BTreeSet<String>,
}

/// How headers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// Not at all.
    Ignored,
    /// As a set.
    AnyOrder,
    /// Names, values and their order.
    InOrder,
}

/// Levels of the error log, worst first, as in ngx_log.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Level {
    Emerg,
    Alert,
    Crit,
    Error,
    Warn,
    Notice,
    Info,
    Debug,
}

impl Level {
    /// Reads nginx's word for a level.
    pub fn parse(word: &str) -> Option<Level> {
        Some(match word {
            "emerg" => Level::Emerg,
            "alert" => Level::Alert,
            "crit" => Level::Crit,
            "error" => Level::Error,
            "warn" => Level::Warn,
            "notice" => Level::Notice,
            "info" => Level::Info,
            "debug" => Level::Debug,
            _ => return None,
        })
    }
}

/// A request that Forebay answers otherwise than nginx, on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differs {
    /// The row of `docs/differences.md` that says why.
    pub row: String,
    /// The label of the request.
    pub label: String,
    /// Forebay's replies in the notation of [`crate::normal::Normal::exchange`].
    pub expected: String,
    /// Where it stands, 1-based.
    pub line: usize,
}

/// A file to make below `{root}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// Relative to `{root}`; a directory ends with a slash.
    pub path: String,
    /// What it is.
    pub content: Content,
    /// Seconds since the epoch.
    pub mtime: u64,
    /// Permission bits.
    pub mode: Option<u32>,
}

/// What a path holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file with these bytes.
    Bytes(Vec<u8>),
    /// A file with these bytes, compressed.
    Gzip(Vec<u8>),
    /// A symbolic link; placeholders are replaced.
    Link(String),
    /// A directory.
    Dir,
}

impl FileSpec {
    /// A plain file.
    pub fn new(path: &str, content: impl Into<Vec<u8>>) -> FileSpec {
        let content = Content::Bytes(content.into());
        FileSpec { path: path.to_owned(), content, mtime: DEFAULT_MTIME, mode: None }
    }

    /// Makes the file and its parents below `root`; `expand` replaces placeholders in link targets.
    pub fn create(&self, root: &Path, expand: &dyn Fn(&str) -> String) -> io::Result<()> {
        let path = root.join(self.path.trim_end_matches('/'));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match &self.content {
            Content::Bytes(bytes) => fs::write(&path, bytes),
            Content::Gzip(bytes) => fs::write(&path, gzip(bytes)?),
            Content::Link(target) => std::os::unix::fs::symlink(expand(target), &path),
            Content::Dir => fs::create_dir_all(&path),
        }
    }

    /// Sets times and permissions of all that was created, deepest first, since making an entry
    /// changes its directory's time.
    pub fn settle(files: &[FileSpec], root: &Path) -> io::Result<()> {
        set_dir_times(root)?;
        for file in files {
            let path = root.join(file.path.trim_end_matches('/'));
            if matches!(file.content, Content::Link(_)) {
                continue;
            }
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(file.mtime);
            File::open(&path)?.set_modified(time)?;
            if let Some(mode) = file.mode {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            }
        }
        Ok(())
    }
}

fn set_dir_times(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            set_dir_times(&entry.path())?;
        }
    }
    File::open(dir)?.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(DEFAULT_MTIME))
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// A section: its name, what follows the name on its line, its line number, its lines.
struct Section<'a> {
    name: &'a str,
    argument: &'a str,
    line: usize,
    lines: Vec<&'a str>,
}

impl Case {
    /// Reads the text of a case file.
    pub fn parse(text: &str) -> Result<Case, CaseError> {
        let mut case = Case {
            name: String::new(),
            conf: String::new(),
            files: Vec::new(),
            steps: Vec::new(),
            checks: Checks::default(),
            differs: Vec::new(),
        };
        for section in sections(text)? {
            if section.name != "config" && !section.argument.is_empty() {
                let words = section.argument;
                return error(section.line, format!("{words:?} belongs on a line of its own"));
            }
            match section.name {
                "name" => case.name = section.lines.join(" ").trim().to_owned(),
                "config" => case.conf = config(&section)?,
                "files" => case.files = files(&section)?,
                "requests" => case.steps = parse_requests(&section.lines, section.line)?,
                "check" => case.checks = checks(&section)?,
                "expect-differs" => case.differs = differs(&section)?,
                other => return error(section.line, format!("unknown section {other:?}")),
            }
        }
        if case.conf.is_empty() || case.steps.is_empty() || case.name.is_empty() {
            return error(1, "a case needs the sections name, config and requests");
        }
        for entry in &case.differs {
            if !case.steps.iter().any(|step| step.label.as_deref() == Some(&entry.label)) {
                return error(entry.line, format!("no request is labelled @{}", entry.label));
            }
        }
        Ok(case)
    }

    /// How many responses the case reads from each server.
    pub fn request_count(&self) -> usize {
        let reads = |step: &Step| step.actions.iter().filter(|a| a.is_read()).count();
        self.steps.iter().map(reads).sum()
    }
}

impl Default for Checks {
    fn default() -> Checks {
        Checks {
            status: true,
            headers: Headers::InOrder,
            body: true,
            sync: true,
            log: false,
            error_log: None,
            ignore: BTreeSet::new(),
        }
    }
}

fn sections(text: &str) -> Result<Vec<Section<'_>>, CaseError> {
    let mut found: Vec<Section> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("--- ") {
            let (name, argument) = title.trim().split_once(' ').unwrap_or((title.trim(), ""));
            found.push(Section { name, argument: argument.trim(), line: i + 1, lines: Vec::new() });
        } else if let Some(section) = found.last_mut() {
            section.lines.push(line);
        } else if !line.is_empty() && !line.starts_with('#') {
            return error(i + 1, "text before the first section");
        }
    }
    Ok(found)
}

const MAIN: &str = "worker_processes 1;\nerror_log {prefix}/error.log info;\n\
    events { worker_connections 256; }\n";

fn config(section: &Section) -> Result<String, CaseError> {
    let body = section.lines.join("\n");
    let http = |inner: &str| {
        format!("{MAIN}http {{\n{{temp_paths}}\naccess_log {{prefix}}/access.log;\n{inner}\n}}\n")
    };
    match section.argument {
        "whole" => Ok(body),
        "http" => Ok(http(&body)),
        "" | "server" => Ok(http(&format!(
            "server {{\nlisten 127.0.0.1:{{port}};\nserver_name localhost;\nroot {{root}};\n{body}\n}}"
        ))),
        other => error(section.line, format!("config is whole, http or server, not {other:?}")),
    }
}

fn files(section: &Section) -> Result<Vec<FileSpec>, CaseError> {
    let mut files = Vec::new();
    for (i, text) in section.lines.iter().enumerate() {
        let line = section.line + 1 + i;
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        let (head, content) = match text.split_once(" : ") {
            Some((head, content)) => (head, Some(content)),
            None => (*text, None),
        };
        files.push(file(head, content, line)?);
    }
    Ok(files)
}

fn file(head: &str, content: Option<&str>, line: usize) -> Result<FileSpec, CaseError> {
    let mut parts = head.split_whitespace();
    let path = parts.next().unwrap_or_default();
    let path = String::from_utf8_lossy(&unescape(path, line)?).into_owned();
    let bytes = match content {
        Some(text) => words(text, line)?.concat(),
        None => Vec::new(),
    };
    let content = if path.ends_with('/') { Content::Dir } else { Content::Bytes(bytes.clone()) };
    let mut spec = FileSpec { path, content, mtime: DEFAULT_MTIME, mode: None };
    for part in parts {
        match part.split_once('=') {
            None if part == "gzip" => spec.content = Content::Gzip(bytes.clone()),
            Some(("link", target)) => spec.content = Content::Link(target.to_owned()),
            Some(("mtime", text)) => match text.parse() {
                Ok(mtime) => spec.mtime = mtime,
                Err(_) => return error(line, "mtime is seconds since the epoch"),
            },
            Some(("mode", text)) => match u32::from_str_radix(text, 8) {
                Ok(mode) => spec.mode = Some(mode),
                Err(_) => return error(line, "mode is octal"),
            },
            _ => return error(line, format!("unknown attribute {part:?}")),
        }
    }
    Ok(spec)
}

fn checks(section: &Section) -> Result<Checks, CaseError> {
    let mut checks = Checks {
        status: false,
        headers: Headers::Ignored,
        body: false,
        sync: false,
        ..Checks::default()
    };
    for (i, text) in section.lines.iter().enumerate() {
        let line = section.line + 1 + i;
        for word in text.split_whitespace().take_while(|word| !word.starts_with('#')) {
            match word.split_once('=').unwrap_or((word, "")) {
                ("all", "") => checks = Checks { log: checks.log, ..Checks::default() },
                ("status", "") => checks.status = true,
                ("headers", "") => checks.headers = Headers::InOrder,
                ("headers", "any-order") => checks.headers = Headers::AnyOrder,
                ("body", "") => checks.body = true,
                ("sync", "") => checks.sync = true,
                ("log", "") => checks.log = true,
                ("error_log", "") => checks.error_log = Some(Level::Error),
                ("error_log", level) if Level::parse(level).is_some() => {
                    checks.error_log = Level::parse(level);
                }
                ("ignore", header) if !header.is_empty() => {
                    checks.ignore.insert(header.to_ascii_lowercase());
                }
                _ => return error(line, format!("unknown check {word:?}")),
            }
        }
    }
    Ok(checks)
}

fn differs(section: &Section) -> Result<Vec<Differs>, CaseError> {
    let mut found: Vec<Differs> = Vec::new();
    for (i, text) in section.lines.iter().enumerate() {
        let line = section.line + 1 + i;
        if let Some(title) = text.strip_prefix("=== ") {
            let Some((row, label)) = title.trim().split_once(" @") else {
                return error(line, "expected: === ROW @label");
            };
            let (row, label) = (row.to_owned(), label.to_owned());
            found.push(Differs { row, label, expected: String::new(), line });
        } else if let Some(entry) = found.last_mut() {
            entry.expected.push_str(text);
            entry.expected.push('\n');
        } else if !text.trim().is_empty() && !text.starts_with('#') {
            return error(line, "text before the first === ROW @label");
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "--- name\nan example\n--- config\nlocation / { }\n--- files\n\
        a.txt mtime=5 mode=0600 : \"x\"*3 \"\\n\"\nd/\nl link={root}/a.txt\n--- requests\nGET /a.txt\n\
        @odd\nGET /b\n--- check\nstatus body log error_log=warn ignore=ETag\n\
        --- expect-differs\n=== some-row @odd\n404 Not Found\n";

    #[test]
    fn sections_become_a_case() {
        let case = Case::parse(TEXT).expect("case");
        assert_eq!(case.name, "an example");
        assert!(case.conf.contains("listen 127.0.0.1:{port};"));
        assert_eq!(case.files[0].content, Content::Bytes(b"xxx\n".to_vec()));
        assert_eq!((case.files[0].mtime, case.files[0].mode), (5, Some(0o600)));
        assert_eq!(case.files[1].content, Content::Dir);
        assert_eq!(case.files[2].content, Content::Link("{root}/a.txt".to_owned()));
        assert_eq!(case.request_count(), 2);
        assert_eq!(case.checks.headers, Headers::Ignored);
        assert_eq!(case.checks.error_log, Some(Level::Warn));
        assert_eq!(case.differs[0].expected, "404 Not Found\n");
    }

    #[test]
    fn mistakes_name_their_line() {
        let table = [
            ("x\n", 1, "text before the first section"),
            ("--- nmae\n", 1, "unknown section"),
            ("--- config all\n", 1, "config is whole, http or server"),
            ("--- check all log\n", 1, "\"all log\" belongs on a line of its own"),
            ("--- files\na b=c\n", 2, "unknown attribute"),
            ("--- check\nstatus\nspeed\n", 3, "unknown check"),
            ("--- name\na\n", 1, "a case needs"),
        ];
        for (text, line, cause) in table {
            let error = Case::parse(text).expect_err(text);
            assert!(error.line == line && error.cause.contains(cause), "{text}: {error}");
        }
        let text = TEXT.replace("@odd\n404", "@even\n404");
        assert!(Case::parse(&text).expect_err("label").cause.contains("@even"));
    }
}
