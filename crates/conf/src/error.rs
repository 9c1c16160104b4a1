//! What is wrong with a configuration, in nginx's words and in a form for people.
//!
//! Two renderings: nginx's one line (`[emerg] unknown directive "foo" in /etc/nginx/nginx.conf:3`, so
//! that searches find it; the caller adds `nginx: ` or the log's time), and after it the place with
//! line and column, the source line, a caret line and a suggestion.
//! DIFFERS(conf-error-line): the line is that of the offending word; nginx names the line on which
//! the lexer stands, which for a directive of several lines is that of its `;` or `{`.

use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;

use crate::source::{Origin, Sources, Span};

/// How bad it is: nginx's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The configuration cannot be used.
    Emerg,
    /// Nor can it; so does nginx say that a file cannot be read.
    Crit,
    /// It can be used, but likely not as meant.
    Warn,
    /// Worth knowing.
    Info,
}

impl Level {
    /// Whether the configuration cannot be used.
    pub fn is_error(self) -> bool {
        matches!(self, Level::Emerg | Level::Crit)
    }

    /// nginx's name for it, as in `[emerg]`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Emerg => "emerg",
            Level::Crit => "crit",
            Level::Warn => "warn",
            Level::Info => "info",
        }
    }
}

/// What an error says about the braces of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Braces {
    /// Nothing.
    #[default]
    Fine,
    /// One, or a semicolon, stands where it cannot.
    Misplaced,
    /// There are more of one kind than of the other.
    Unbalanced,
}

/// One thing wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// How bad it is.
    pub level: Level,
    /// nginx's text, without place.
    pub message: String,
    /// Where, if it is in a file.
    pub span: Option<Span>,
    /// How far nginx has read when it finds it, if that is further.
    pub found: Option<Span>,
    /// What to do about it.
    pub hint: Option<String>,
    /// What follows it may be wrong for no other reason.
    pub braces: Braces,
}

impl Error {
    /// An error at a place.
    pub fn emerg(span: Span, message: impl Into<String>) -> Error {
        Error { span: Some(span), ..Error::global(message) }
    }

    /// An error that is at no place, such as a missing section.
    pub fn global(message: impl Into<String>) -> Error {
        let (level, message) = (Level::Emerg, message.into());
        Error { level, message, span: None, found: None, hint: None, braces: Braces::Fine }
    }

    /// A warning at a place.
    pub fn warn(span: Span, message: impl Into<String>) -> Error {
        Error { level: Level::Warn, ..Error::emerg(span, message) }
    }

    /// A remark at a place.
    pub fn info(span: Span, message: impl Into<String>) -> Error {
        Error { level: Level::Info, ..Error::emerg(span, message) }
    }

    /// A failed system call on a file, as nginx says it:
    /// `open() "/x" failed (2: No such file or directory)`.
    pub fn io(span: Option<Span>, call: &str, path: &Path, error: &io::Error) -> Error {
        let message = format!("{call} \"{}\" failed ({})", path.display(), errno_text(error));
        Error { span, ..Error::global(message) }
    }

    /// The same as one of a brace or semicolon.
    pub fn of_braces(mut self, braces: Braces) -> Error {
        self.braces = braces;
        self
    }

    /// The same with a suggestion.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// nginx's line, without the `nginx: ` in front.
    pub fn nginx_line(&self, sources: &Sources) -> String {
        format!("[{}] {}", self.level.name(), self.with_place(sources))
    }

    /// nginx's text with the place, without the level: what a log line has after its level.
    ///
    /// DIFFERS(conf-place): nginx knows no place of what it finds when all is read.
    pub fn with_place(&self, sources: &Sources) -> String {
        let mut out = self.message.clone();
        let Some((span, entry)) = self.span.and_then(|s| Some((s, sources.entry(s.file)?))) else {
            return out;
        };
        match entry.origin {
            Origin::CommandLine => out.push_str(" in command line"),
            Origin::File | Origin::Embedded => {
                let _ = write!(out, " in {}:{}", entry.path.display(), span.line);
            }
        }
        out
    }

    /// The form for people: place, source line, caret line, the way of inclusion, and help.
    /// Each line ends with a line feed; empty when there is neither place nor hint.
    pub fn excerpt(&self, sources: &Sources) -> String {
        let mut out = String::new();
        if let Some((span, entry)) = self.span.and_then(|s| Some((s, sources.entry(s.file)?))) {
            let line = sources.line_text(span);
            let at = (span.column.saturating_sub(1) as usize).min(line.len());
            let column = String::from_utf8_lossy(&line[..at]).chars().count() + 1;
            let _ = writeln!(out, "  {}:{}:{column}", entry.path.display(), span.line);
            caret(&mut out, line, span, at);
            if let Some(outer) = entry.included_at {
                let path = sources.path(outer.file).display();
                let _ = writeln!(out, "  included from {path}:{}:{}", outer.line, outer.column);
            }
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(out, "  help: {hint}");
        }
        out
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// `2: No such file or directory`, as nginx's `ngx_log_errno` prints it.
pub fn errno_text(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => {
            let suffix = format!(" (os error {code})");
            format!("{code}: {}", text.strip_suffix(&suffix).unwrap_or(&text))
        }
        None => text,
    }
}

/// Columns of a source line that an excerpt shows at the most; the rest is cut, as a map's line may
/// be megabytes long.
const EXCERPT_WIDTH: usize = 120;

fn caret(out: &mut String, line: &[u8], span: Span, at: usize) {
    let skip = at.saturating_sub(EXCERPT_WIDTH / 2);
    let shown = &line[skip..line.len().min(skip + EXCERPT_WIDTH)];
    let (before, rest) = shown.split_at(at - skip);
    let marked = rest.len().min(span.len as usize);
    let carets = String::from_utf8_lossy(&rest[..marked]).chars().count().max(1);
    let pad: String = printable(before).chars().map(|c| if c == '\t' { c } else { ' ' }).collect();
    let number = span.line.to_string();
    let margin = " ".repeat(number.len());
    // Cut at two places, the shown text has the same characters as its two halves.
    let _ = writeln!(out, "  {number} | {}{}", printable(before), printable(rest));
    let _ = writeln!(out, "  {margin} | {pad}{}", "^".repeat(carets));
}

/// The text for a terminal: no control characters, so that a file cannot steer it.
fn printable(bytes: &[u8]) -> String {
    let keep = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
    String::from_utf8_lossy(bytes).chars().map(keep).collect()
}

/// Errors kept at the most, and as many warnings and remarks; what is beyond is counted, not kept.
pub const MAX_ERRORS: usize = 1_000;

/// All that is wrong with a configuration.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    errors: Vec<Error>,
    /// How many were pushed that make the configuration unusable.
    emergs: usize,
    /// How many of any level are not kept.
    dropped: usize,
    /// Braces in the midst of words, which were likely not meant to open a block.
    doubtful: Vec<Span>,
}

impl Diagnostics {
    /// Nothing wrong so far.
    pub fn new() -> Diagnostics {
        Diagnostics::default()
    }

    /// Adds one. Beyond [`MAX_ERRORS`] it is only counted.
    pub fn push(&mut self, error: Error) {
        let is_emerg = error.level.is_error();
        let kept_emergs = self.emergs.min(MAX_ERRORS);
        let kept = if is_emerg { kept_emergs } else { self.errors.len() - kept_emergs };
        self.emergs += usize::from(is_emerg);
        if kept < MAX_ERRORS {
            self.errors.push(error);
        } else {
            self.dropped += 1;
        }
    }

    /// Notes a brace that opened a block, and was likely to be part of a word.
    pub fn doubt(&mut self, brace: Span) {
        if self.doubtful.len() < MAX_ERRORS {
            self.doubtful.push(brace);
        }
    }

    /// Adds the error of a result, and answers its value.
    pub fn take<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|e| self.push(e)).ok()
    }

    /// Whether anything makes the configuration unusable.
    pub fn has_errors(&self) -> bool {
        self.emergs > 0
    }

    /// How many were not kept.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.errors.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// What is wrong, in the order pushed or sorted.
    pub fn iter(&self) -> impl Iterator<Item = &Error> {
        self.errors.iter()
    }

    /// Says of all but the first so many that nginx finds them when it has read as far as that.
    pub fn found_at(&mut self, end: Option<Span>, first: usize) {
        for error in self.errors.iter_mut().skip(first) {
            error.found = end;
        }
    }

    /// Sorts by place, in the order in which nginx reads: the first error then is the one that nginx
    /// would report. What has no place comes last, and what several levels found alike is said once.
    pub fn sort(&mut self, sources: &Sources) {
        self.errors.sort_by_cached_key(|e| match e.span {
            Some(span) => {
                let found = sources.reading_order(e.found.unwrap_or(span));
                (false, found, sources.reading_order(span))
            }
            None => (true, Vec::new(), Vec::new()),
        });
        self.errors.dedup_by(|a, b| (a.level, a.span, &a.message) == (b.level, b.span, &b.message));
        self.drop_consequences();
    }

    /// Where the braces of a file do not match, keeps what is wrong up to the first one that is misplaced
    /// or doubtful: what stands behind it is not read as it was meant.
    fn drop_consequences(&mut self) {
        let unbalanced = self.errors.iter().filter(|e| e.braces == Braces::Unbalanced);
        let files: Vec<_> = unbalanced.filter_map(|e| Some(e.span?.file)).collect();
        for file in files {
            let is_here = |e: &Error| e.span.is_some_and(|span| span.file == file);
            let doubt = self.doubtful.iter().find(|span| span.file == file).copied();
            let is_behind = |e: &Error, at: Span| e.span.is_some_and(|span| span.line >= at.line);
            let is_cause = |e: &Error| {
                let is_behind_doubt = doubt.is_some_and(|at| is_behind(e, at));
                is_here(e)
                    && e.level == Level::Emerg
                    && (is_behind_doubt || e.braces != Braces::Fine)
            };
            let Some(cause) = self.errors.iter().position(is_cause) else { continue };
            let error = &mut self.errors[cause];
            if let Some(at) = doubt
                && error.hint.is_none()
                && is_behind(error, at)
            {
                let (line, column) = (at.line, at.column);
                let text = "opens a block; a word with braces has to be quoted";
                error.hint = Some(format!("the \"{{\" of line {line}, column {column} {text}"));
            }
            let mut index = 0;
            self.errors.retain(|e| {
                index += 1;
                index - 1 <= cause || !is_here(e) || e.level != Level::Emerg
            });
        }
    }

    /// All lines for standard error: nginx's line with `nginx: ` in front, each followed by its
    /// excerpt if `excerpts` is set.
    pub fn render(&self, sources: &Sources, excerpts: bool) -> String {
        let mut out = String::new();
        for error in &self.errors {
            let _ = writeln!(out, "nginx: {}", error.nginx_line(sources));
            if excerpts {
                out.push_str(&error.excerpt(sources));
            }
        }
        if self.dropped > 0 {
            let _ = writeln!(out, "nginx: [warn] too many messages, {} not shown", self.dropped);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &[u8]) -> (Sources, Span) {
        let mut sources = Sources::new();
        let file =
            sources.add(Origin::File, Path::new("/etc/nginx/nginx.conf"), text.to_vec(), None);
        (sources, Span { file, line: 1, column: 1, len: 1 })
    }

    #[test]
    fn an_error_shows_nginx_line_place_source_caret_and_help() {
        let (sources, span) = source("http {\n\t\u{e9} rooot /srv;\n}\n".as_bytes());
        let span = Span { line: 2, column: 5, len: 5, ..span };
        let mut diags = Diagnostics::new();
        diags.push(
            Error::emerg(span, "unknown directive \"rooot\"").with_hint("did you mean \"root\"?"),
        );
        let want = "nginx: [emerg] unknown directive \"rooot\" in /etc/nginx/nginx.conf:2\n\
                    \x20 /etc/nginx/nginx.conf:2:4\n\
                    \x20 2 | \t\u{e9} rooot /srv;\n\
                    \x20   | \t  ^^^^^\n\
                    \x20 help: did you mean \"root\"?\n";
        assert_eq!(diags.render(&sources, true), want);
        assert!(diags.render(&sources, false).lines().count() == 1);
    }

    #[test]
    fn the_command_line_has_no_line_number() {
        let mut sources = Sources::new();
        let file = sources.add(Origin::CommandLine, Path::new("-g"), b"foo;".to_vec(), None);
        let error =
            Error::emerg(Span { file, line: 1, column: 1, len: 3 }, "unknown directive \"foo\"");
        assert_eq!(error.nginx_line(&sources), "[emerg] unknown directive \"foo\" in command line");
    }

    #[test]
    fn system_errors_have_their_number() {
        let error = io::Error::from_raw_os_error(2);
        let error = Error::io(None, "open()", Path::new("/x"), &error);
        assert_eq!(error.message, "open() \"/x\" failed (2: No such file or directory)");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let (sources, span) = source(b"a\x1b[31mb\x00;");
        let shown = Error::emerg(Span { column: 3, ..span }, "x").excerpt(&sources);
        assert!(!shown.contains('\x1b') && !shown.contains('\0'), "{shown:?}");
    }

    #[test]
    fn long_lines_are_cut_around_the_caret() {
        let mut line = vec![b'x'; 1_000_000];
        line[500_000] = b'!';
        let (sources, span) = source(&line);
        let shown = Error::emerg(Span { column: 500_001, ..span }, "x").excerpt(&sources);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[1].len() < EXCERPT_WIDTH + 10);
        assert_eq!(lines[1].find('!'), lines[2].find('^'));
    }

    #[test]
    fn errors_beyond_the_bound_are_counted() {
        let (sources, span) = source(b"x");
        let mut diags = Diagnostics::new();
        (0..MAX_ERRORS + 3).for_each(|_| diags.push(Error::warn(span, "w")));
        assert!(!diags.has_errors());
        (0..MAX_ERRORS + 2).for_each(|_| diags.push(Error::emerg(span, "e")));
        assert_eq!((diags.len(), diags.dropped()), (2 * MAX_ERRORS, 5));
        assert_eq!(diags.iter().filter(|e| e.message == "e").count(), MAX_ERRORS);
        assert!(diags.render(&sources, false).ends_with("too many messages, 5 not shown\n"));
    }

    #[test]
    fn behind_a_misplaced_brace_nothing_counts_unless_they_match() {
        let (sources, span) = source(b"a\nb\nc\nd\n");
        let at = |line| Span { line, ..span };
        let told = |braces: Braces, doubt: Option<u32>| {
            let mut diags = Diagnostics::new();
            diags.push(Error::emerg(at(1), "typo"));
            diags.push(Error::emerg(at(2), "misplaced").of_braces(braces));
            diags.push(Error::emerg(at(3), "follows"));
            diags.push(Error::warn(at(3), "warning"));
            diags.push(Error::emerg(at(4), "end").of_braces(Braces::Unbalanced));
            doubt.into_iter().for_each(|line| diags.doubt(at(line)));
            diags.sort(&sources);
            diags.iter().map(|e| e.message.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(Braces::Misplaced, None), "typo misplaced warning");
        assert_eq!(told(Braces::Fine, None), "typo misplaced follows warning end");
        assert_eq!(told(Braces::Fine, Some(3)), "typo misplaced follows warning");
        assert_eq!(told(Braces::Misplaced, Some(1)), "typo warning");
        let mut diags = Diagnostics::new();
        diags.push(Error::emerg(at(1), "unexpected").of_braces(Braces::Misplaced));
        diags.push(Error::emerg(at(2), "another"));
        diags.sort(&sources);
        assert_eq!(diags.len(), 2);
    }

    #[test]
    fn warnings_are_not_errors_and_sorting_follows_the_place() {
        let (sources, span) = source(b"a\nb\n");
        let mut diags = Diagnostics::new();
        diags.push(Error::warn(Span { line: 2, ..span }, "second"));
        diags.push(Error::info(span, "first"));
        diags.push(Error::info(span, "first"));
        assert!(!diags.has_errors());
        assert_eq!(diags.take(Err::<(), _>(Error::global("last"))), None);
        diags.sort(&sources);
        let order: Vec<_> = diags.iter().map(|e| e.message.as_str()).collect();
        assert_eq!((order, diags.has_errors()), (vec!["first", "second", "last"], true));
    }

    #[test]
    fn what_is_found_when_a_block_is_read_stands_behind_what_is_in_it() {
        let (sources, span) = source(b"a\nb\nc\n");
        let at = |line| Span { line, ..span };
        let mut diags = Diagnostics::new();
        diags.push(Error::emerg(at(3), "behind"));
        diags.push(Error::emerg(at(2), "in it"));
        diags.push(Error::emerg(at(1), "one of the whole"));
        diags.push(Error::emerg(span, "another"));
        diags.found_at(Some(Span { column: 2, ..at(2) }), 2);
        diags.sort(&sources);
        let order: Vec<_> = diags.iter().map(|e| e.message.as_str()).collect();
        assert_eq!(order, ["in it", "one of the whole", "another", "behind"]);
    }
}
