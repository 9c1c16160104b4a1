//! Plays cases against Forebay and nginx and reports what differs: the differential test.
//! Invariant: both servers get the same bytes in the same order, each on its own connection.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::case::{Action, Case, Differs, Step};
use crate::diff::{self, Side};
use crate::normal::Normal;
use crate::raw::{Client, ReadError, Response};
use crate::server::{Kind, Server, binary};

/// What came back on one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// One for each read of the step, up to the first that failed.
    pub replies: Vec<Reply>,
    /// How the connection was left.
    pub after: After,
    /// This side's port.
    pub client_port: u16,
}

/// The result of one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A response that keeps to the rules.
    Response(Response),
    /// All that came until the end of the connection.
    Bytes(Vec<u8>),
    /// No response, and why.
    Failed(String),
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Response(r) => {
                write!(f, "{} {} {}, {} bytes", r.version, r.status, r.reason, r.body.len())
            }
            Reply::Bytes(bytes) => write!(f, "{:?}", bytes.escape_ascii().to_string()),
            Reply::Failed(why) => f.write_str(why),
        }
    }
}

/// The state of the connection after the last response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum After {
    /// The case did not ask, or a read had failed.
    NotLooked,
    /// It ended without another byte.
    Closed,
    /// It answered one more request, with this status.
    Open(u16),
    /// Anything else.
    Broken(String),
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            After::NotLooked => f.write_str("not looked at"),
            After::Closed => f.write_str("connection closed"),
            After::Open(status) => write!(f, "connection open, next request answered {status}"),
            After::Broken(why) => f.write_str(why),
        }
    }
}

// So that what is sent before and after it is read apart; nothing is decided by its length.
const PAUSE: Duration = Duration::from_millis(30);
const PROBE: &[u8] = b"GET /-in-step HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Plays one step against one server.
pub fn play(server: &Server, step: &Step) -> Exchange {
    let mut exchange = Exchange { replies: Vec::new(), after: After::NotLooked, client_port: 0 };
    let mut client = match Client::connect(server.addr_of(step.port)) {
        Ok(client) => client,
        Err(e) => {
            exchange.replies.push(Reply::Failed(format!("connect: {e}")));
            return exchange;
        }
    };
    exchange.client_port = client.local_port();
    for action in &step.actions {
        let reply = match action {
            Action::Send(bytes) => {
                // A server may answer and close before it has read all; its answer is what counts.
                let _ = client.send(bytes);
                continue;
            }
            Action::Pause => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Action::Shutdown => {
                let _ = client.shutdown_write();
                continue;
            }
            Action::Read { head } => client.read_response(*head).map(Reply::Response),
            Action::ReadToEnd => client.read_to_end().map(Reply::Bytes),
        };
        match reply {
            Ok(reply) => exchange.replies.push(reply),
            Err(e) => {
                exchange.replies.push(Reply::Failed(e.to_string()));
                return exchange;
            }
        }
    }
    if step.sync {
        exchange.after = look_after(&mut client, exchange.replies.last());
    }
    exchange
}

// Whether the connection is still in step: a request that follows must be answered, or, when the server
// said that it closes, nothing more may come.
fn look_after(client: &mut Client, last: Option<&Reply>) -> After {
    let Some(Reply::Response(last)) = last else { return After::NotLooked };
    if last.closes() {
        return match client.read_to_end() {
            Ok(rest) if rest.is_empty() => After::Closed,
            Ok(rest) => {
                After::Broken(format!("bytes after the end: {:?}", rest.escape_ascii().to_string()))
            }
            Err(e) => After::Broken(format!("said close, yet: {e}")),
        };
    }
    if client.send(PROBE).is_err() {
        return After::Closed;
    }
    match client.read_response(false) {
        Ok(response) => After::Open(response.status),
        Err(ReadError::Closed) => After::Closed,
        Err(e) => After::Broken(format!("next request: {e}")),
    }
}

/// What one case found.
#[derive(Debug, Default)]
pub struct Report {
    /// Responses read from each server.
    pub requests: usize,
    /// Requests that Forebay answers otherwise on purpose, and did.
    pub intended: usize,
    /// What is wrong, one readable text each.
    pub failures: Vec<String>,
    /// What nginx answered, for a person who writes a case.
    pub answers: String,
}

/// Starts both servers on the case, plays it and compares.
pub fn run_case(case: &Case, forebay: &Path, nginx: &Path, rows: Option<&str>) -> Report {
    let mut report = Report { requests: case.request_count(), ..Report::default() };
    let start = |kind, path: &Path| {
        Server::builder(kind, &case.conf).binary(path).files(&case.files).start()
    };
    let (mut oracle, mut subject) = match (start(Kind::Nginx, nginx), start(Kind::Forebay, forebay))
    {
        (Ok(oracle), Ok(subject)) => (oracle, subject),
        (oracle, subject) => {
            report
                .failures
                .extend([oracle.err(), subject.err()].into_iter().flatten().map(|e| e.to_string()));
            return report;
        }
    };
    let (n, f) = (Normal::of(&oracle), Normal::of(&subject));
    // nginx in Forebay's place checks the corpus itself; it cannot differ from nginx on purpose.
    let self_check = forebay.file_name() == nginx.file_name();
    for step in &case.steps {
        let (expected, got) = (play(&oracle, step), play(&subject, step));
        let title = format!("line {}: {}", step.line, step.text);
        report.answers.push_str(&format!("## {title}\n{}\n", n.exchange(&expected)));
        let intended = case.differs.iter().find(|d| step.label.as_deref() == Some(&d.label));
        let found = match intended {
            Some(differs) if !self_check => {
                report.intended += 1;
                intended_difference(differs, &n.exchange(&expected), &f.exchange(&got), rows)
            }
            _ => diff::compare(
                Side { name: "nginx", exchange: &expected, normal: &n },
                Side { name: "forebay", exchange: &got, normal: &f },
                &case.checks,
            ),
        };
        if !found.is_empty() {
            report.failures.push(format!("{title}\n{}", found.join("\n")));
        }
    }
    for server in [&mut oracle, &mut subject] {
        if !server.stop() {
            report.failures.push(format!("{} did not quit by itself with status 0", server.kind()));
        }
    }
    report.failures.extend(compare_logs(case, &oracle, &n, &subject, &f));
    report
}

fn compare_logs(
    case: &Case,
    oracle: &Server,
    n: &Normal,
    subject: &Server,
    f: &Normal,
) -> Vec<String> {
    let mut found = Vec::new();
    if case.checks.log {
        let (left, right) =
            (n.access_log(&oracle.access_log()), f.access_log(&subject.access_log()));
        found.extend(diff::compare_lines("access log", "nginx", &left, "forebay", &right));
    }
    if let Some(level) = case.checks.error_log {
        let left = n.error_log(&oracle.error_log(), level);
        let right = f.error_log(&subject.error_log(), level);
        found.extend(diff::compare_lines("error log", "nginx", &left, "forebay", &right));
    }
    found
}

fn intended_difference(
    differs: &Differs,
    nginx: &str,
    forebay: &str,
    rows: Option<&str>,
) -> Vec<String> {
    let mut found = Vec::new();
    if !expected_text(&differs.expected, forebay) {
        let wanted = differs.expected.trim_end();
        found.push(format!("{}: expected of forebay\n{wanted}\ngot\n{forebay}", differs.row));
    }
    if expected_text(&differs.expected, nginx) {
        found.push(format!("{}: nginx answers the same, so this is no difference", differs.row));
    }
    if rows.is_some_and(|rows| !rows.contains(&differs.row)) {
        found.push(format!("docs/differences.md has no row {}", differs.row));
    }
    found
}

// `...` as the last line of what is expected lets anything follow.
fn expected_text(expected: &str, got: &str) -> bool {
    let expected = expected.trim_end();
    match expected.strip_suffix("...") {
        Some(start) => got.starts_with(start.trim_end()),
        None => got.trim_end() == expected,
    }
}

/// Runs every case below `dir` whose path contains one of `filters` (all, without filters) and prints
/// a line for each file and all differences. Without nginx it says so and passes, or fails where
/// the environment says `CI=true`.
pub fn run_all(dir: &Path, forebay: &Path, filters: &[String]) -> ExitCode {
    let Some(nginx) = binary(Kind::Nginx) else {
        println!("SKIPPED: nginx is not installed, so nothing was compared with it");
        let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
        return if in_ci { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    };
    let forebay = binary_from_env().unwrap_or_else(|| forebay.to_owned());
    let rows = dir.ancestors().find_map(|d| fs::read_to_string(d.join("docs/differences.md")).ok());
    let mut paths = case_files(dir);
    let chosen = |path: &PathBuf| {
        filters.is_empty() || filters.iter().any(|f| path.to_string_lossy().contains(f.as_str()))
    };
    paths.retain(chosen);
    println!("{} against {}: {} files", forebay.display(), nginx.display(), paths.len());
    let next = AtomicUsize::new(0);
    let totals = Mutex::new(Totals::default());
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get() * 2);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = run_file(path, &forebay, &nginx, rows.as_deref());
                    let name = path.strip_prefix(dir).unwrap_or(path).display().to_string();
                    let mut totals = totals.lock().unwrap_or_else(|e| e.into_inner());
                    totals.add(&name, &report);
                }
            });
        }
    });
    totals.into_inner().unwrap_or_else(|e| e.into_inner()).finish()
}

fn binary_from_env() -> Option<PathBuf> {
    std::env::var_os("FOREBAY_BIN").map(PathBuf::from)
}

fn run_file(path: &Path, forebay: &Path, nginx: &Path, rows: Option<&str>) -> Report {
    let case = match fs::read_to_string(path) {
        Ok(text) => Case::parse(&text).map_err(|e| e.to_string()),
        Err(e) => Err(e.to_string()),
    };
    match case {
        Ok(case) => run_case(&case, forebay, nginx, rows),
        Err(cause) => Report { failures: vec![cause], ..Report::default() },
    }
}

#[derive(Default)]
struct Totals {
    files: usize,
    requests: usize,
    intended: usize,
    failed_files: usize,
    failures: usize,
}

impl Totals {
    fn add(&mut self, name: &str, report: &Report) {
        self.files += 1;
        self.requests += report.requests;
        self.intended += report.intended;
        self.failures += report.failures.len();
        if std::env::var_os("SHOW_ANSWERS").is_some() {
            println!("{}", report.answers);
        }
        if report.failures.is_empty() {
            let note = match report.intended {
                0 => String::new(),
                n => format!(", {n} differ as intended"),
            };
            println!("ok    {name}: {} requests{note}", report.requests);
            return;
        }
        self.failed_files += 1;
        println!("FAIL  {name}: {} requests, {} differ", report.requests, report.failures.len());
        for failure in &report.failures {
            println!("    {}", failure.replace('\n', "\n    "));
        }
    }

    fn finish(&self) -> ExitCode {
        let Totals { files, requests, intended, failed_files, failures } = self;
        println!(
            "differential: {requests} requests in {files} files, {intended} differ as intended, \
             {failures} differ otherwise in {failed_files} files"
        );
        if *failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The `.case` files below a directory, sorted.
pub fn case_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "case") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_let_anything_follow() {
        assert!(expected_text(
            "HTTP/1.1 400 Bad Request\n...\n",
            "HTTP/1.1 400 Bad Request\nServer: x\n"
        ));
        assert!(expected_text("a\nb\n", "a\nb\n\n"));
        assert!(!expected_text("a\n", "a\nb\n"));
    }

    #[test]
    fn stale_and_unlisted_differences_are_failures() {
        let differs = Differs {
            row: "row".to_owned(),
            label: "x".to_owned(),
            expected: "400\n".to_owned(),
            line: 1,
        };
        assert!(intended_difference(&differs, "200", "400", Some("row")).is_empty());
        assert_eq!(intended_difference(&differs, "400", "400", Some("row")).len(), 1);
        assert_eq!(intended_difference(&differs, "200", "200", Some("row")).len(), 1);
        assert_eq!(intended_difference(&differs, "200", "400", Some("other")).len(), 1);
    }

    const CASE: &str = "--- name\nself\n--- config\nlocation /x { return 200 $document_root; }\n\
        --- files\na : \"abc\"\n--- requests\nGET /a\nHEAD /a\nGET /x\nGET /none\npipe\nGET /a\nGET /x\nend\n\
        raw-eof \"GET /a\\r\\n\"\n--- check\nall log error_log\n";

    #[test]
    fn nginx_does_not_differ_from_itself() {
        let Some(nginx) = binary(Kind::Nginx) else { return };
        let case = Case::parse(CASE).expect("case");
        let report = run_case(&case, &nginx, &nginx, None);
        assert_eq!(report.failures, Vec::<String>::new());
        assert_eq!(report.requests, 7);
    }
}
