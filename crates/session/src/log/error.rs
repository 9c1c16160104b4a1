//! `error_log`: severities, destinations, and nginx's line format.

use std::{
    fmt,
    io::Write as _,
    sync::{Arc, Weak},
};

use forebay_conf::{Arg, Error, Loader, Node};
use forebay_rt::clock;

use super::{LogFile, LogSet, Syslog, shown, time};

/// nginx's `NGX_MAX_ERROR_STR`: a line is cut there, its line feed included, in bytes.
const MAX_LINE: usize = 2048;
/// How much of it is kept for an error of the system.
const ERROR_ROOM: usize = 50;

/// How bad something is; nginx's levels, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The server cannot run.
    Emerg,
    /// Something must be done at once.
    Alert,
    /// Something important is broken.
    Crit,
    /// A request failed.
    Error,
    /// Odd, but dealt with.
    Warn,
    /// Normal and significant.
    Notice,
    /// What clients do wrong every day.
    Info,
    /// For developers.
    Debug,
}

impl Severity {
    const NAMES: [(&'static str, Severity); 8] = [
        ("emerg", Severity::Emerg),
        ("alert", Severity::Alert),
        ("crit", Severity::Crit),
        ("error", Severity::Error),
        ("warn", Severity::Warn),
        ("notice", Severity::Notice),
        ("info", Severity::Info),
        ("debug", Severity::Debug),
    ];

    /// The name in the configuration and in the log.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// The severity of that name.
    pub fn parse(name: &str) -> Option<Severity> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, severity)| *severity)
    }
}

#[derive(Clone, Debug)]
enum Output {
    File(Arc<LogFile>),
    Stderr,
    Syslog(Arc<Syslog>),
}

/// An [`ErrorLog`] held by something that its own files may hold.
#[derive(Debug)]
pub(super) struct WeakErrorLog(Vec<(Severity, WeakOutput)>);

#[derive(Debug)]
enum WeakOutput {
    File(Weak<LogFile>),
    Stderr,
    Syslog(Weak<Syslog>),
}

impl WeakErrorLog {
    /// What is left of it.
    pub(super) fn upgrade(&self) -> ErrorLog {
        let outputs = self.0.iter().filter_map(|(mildest, output)| {
            let output = match output {
                WeakOutput::File(file) => Output::File(file.upgrade()?),
                WeakOutput::Stderr => Output::Stderr,
                WeakOutput::Syslog(syslog) => Output::Syslog(syslog.upgrade()?),
            };
            Some((*mildest, output))
        });
        ErrorLog { outputs: outputs.collect() }
    }
}

/// Where errors go, each destination with the mildest severity it takes.
#[derive(Clone, Debug, Default)]
pub struct ErrorLog {
    outputs: Vec<(Severity, Output)>,
}

impl ErrorLog {
    /// A log with one file.
    pub fn to_file(file: Arc<LogFile>, mildest: Severity) -> ErrorLog {
        ErrorLog { outputs: vec![(mildest, Output::File(file))] }
    }

    /// A log to standard error.
    pub fn to_stderr(mildest: Severity) -> ErrorLog {
        ErrorLog { outputs: vec![(mildest, Output::Stderr)] }
    }

    /// Whether anybody wants lines of that severity.
    pub fn wants(&self, severity: Severity) -> bool {
        self.outputs.iter().any(|(mildest, _)| severity <= *mildest)
    }

    /// Writes one line; `connection` is the number after `*`.
    pub fn write(&self, severity: Severity, connection: Option<u64>, message: fmt::Arguments<'_>) {
        self.write_about(severity, connection, message, format_args!(""));
    }

    /// The same; `about` follows the message (nginx's `log->handler`). Where both are too long for a
    /// line, the error at the end of the message stays readable.
    pub fn write_about(
        &self,
        severity: Severity,
        connection: Option<u64>,
        message: fmt::Arguments<'_>,
        about: fmt::Arguments<'_>,
    ) {
        if !self.wants(severity) {
            return;
        }
        let mut line = Vec::with_capacity(256);
        write_prefix(&mut line, severity);
        if let Some(number) = connection {
            let _ = write!(line, "*{number} ");
        }
        let _ = line.write_fmt(message);
        shown::restore(&mut line, 0);
        make_room_for_error(&mut line);
        let behind = line.len();
        let _ = line.write_fmt(about);
        shown::restore(&mut line, behind);
        // DIFFERS(error-log-line-feed): a line feed in a message (of a path, say) becomes a space;
        // nginx writes it, and a client can forge a line of the log.
        line.iter_mut().filter(|b| **b == b'\n' || **b == b'\r').for_each(|b| *b = b' ');
        line.truncate(MAX_LINE - 1);
        line.push(b'\n');
        for (mildest, output) in &self.outputs {
            if severity > *mildest {
                continue;
            }
            // A log that cannot be written has nowhere to say so.
            let _ = match output {
                Output::File(file) => file.write(&line),
                Output::Stderr => std::io::stderr().write_all(&line),
                Output::Syslog(syslog) => syslog.send(severity, &line[..line.len() - 1]),
            };
        }
    }

    pub(super) fn downgrade(&self) -> WeakErrorLog {
        let outputs = self.outputs.iter().map(|(mildest, output)| {
            let output = match output {
                Output::File(file) => WeakOutput::File(Arc::downgrade(file)),
                Output::Stderr => WeakOutput::Stderr,
                Output::Syslog(syslog) => WeakOutput::Syslog(Arc::downgrade(syslog)),
            };
            (*mildest, output)
        });
        WeakErrorLog(outputs.collect())
    }
}

/// Cuts what is before the error, ` (2: No such file or directory)`, of a message that leaves too
/// little room for it (`ngx_log_errno`).
fn make_room_for_error(line: &mut Vec<u8>) {
    if line.len() <= MAX_LINE - ERROR_ROOM || !line.ends_with(b")") {
        return;
    }
    let Some(at) = memchr::memmem::rfind(line, b" (") else { return };
    let digits = line[at + 2..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_error = digits > 0 && line[at + 2 + digits..].starts_with(b": ");
    if is_error && at > MAX_LINE - ERROR_ROOM {
        line.splice(MAX_LINE - ERROR_ROOM..at, *b"...");
    }
}

/// Writes `2026/11/21 09:00:00 [error] 12#12: `, in local time.
pub fn write_prefix(line: &mut Vec<u8>, severity: Severity) {
    time::write_error(clock::wall_ms(), line);
    let (pid, tid) = clock::ids();
    let _ = write!(line, " [{}] {pid}#{tid}: ", severity.name());
}

impl LogSet {
    /// The `error_log` directive, the same on every level: `error_log file [level ...]`
    /// (`ngx_log_set_log`). Several add up.
    ///
    /// Errors: nginx's `invalid log level "x"`, `duplicate log level "x"`, and those of
    /// [`Syslog::parse`].
    pub fn error_log(
        &mut self,
        slot: &mut Option<ErrorLog>,
        node: &Node,
        loader: &mut Loader<'_>,
    ) -> Result<(), Error> {
        let target = node.arg(0)?;
        let output = if target.is("stderr") || target.is("") {
            self.names_stderr = true;
            Output::Stderr
        } else if target.after("memory:").is_some() {
            let text = "nginx was built without debug support".to_owned();
            let hint = "a log in memory is read with a debugger; name a file instead";
            return Err(Error::emerg(target.span, text).with_hint(hint));
        } else if target.after("syslog:").is_some() {
            Output::Syslog(Arc::new(Syslog::parse(target, loader.files)?))
        } else {
            Output::File(self.file(loader.full_path(target.path())))
        };
        let mildest = levels(&node.args[1..])?;
        slot.get_or_insert_default().outputs.push((mildest, output));
        Ok(())
    }
}

/// nginx's debugging levels, which add up there. Here they are all `debug`.
const DEBUG_LEVELS: [&str; 7] = [
    "debug_core",
    "debug_alloc",
    "debug_mutex",
    "debug_event",
    "debug_http",
    "debug_mail",
    "debug_stream",
];

/// The mildest severity that is written (`ngx_log_set_levels`).
fn levels(args: &[Arg]) -> Result<Severity, Error> {
    let mut set = None;
    for arg in args {
        let name = arg.lossy();
        let fail = |what: &str| Err(Error::emerg(arg.span, format!("{what} log level \"{name}\"")));
        let debugging = DEBUG_LEVELS.contains(&&*name);
        match (Severity::parse(&name), set) {
            (None, _) if !debugging => return fail("invalid"),
            (Some(_), Some(_)) => return fail("duplicate"),
            (None, Some((_, false))) => return fail("invalid"),
            (None, _) => set = Some((Severity::Debug, true)),
            (Some(severity), None) => set = Some((severity, false)),
        }
    }
    Ok(set.map_or(Severity::Error, |(severity, _)| severity))
}
