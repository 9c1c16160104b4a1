//! `error_log`: severities, destinations, and nginx's line format.

use std::{
    fmt,
    io::Write as _,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use forebay_conf::{Error, Loader, Node};

use super::{LogFile, LogSet};

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
        if !self.wants(severity) {
            return;
        }
        let mut line = Vec::with_capacity(256);
        write_prefix(&mut line, severity);
        if let Some(number) = connection {
            let _ = write!(line, "*{number} ");
        }
        let _ = line.write_fmt(message);
        // A message never spans lines, whatever a peer managed to put into it.
        line.iter_mut().filter(|b| **b == b'\n' || **b == b'\r').for_each(|b| *b = b' ');
        line.push(b'\n');
        for (mildest, output) in &self.outputs {
            if severity > *mildest {
                continue;
            }
            // A log that cannot be written has nowhere to say so.
            let _ = match output {
                Output::File(file) => file.write(&line),
                Output::Stderr => std::io::stderr().write_all(&line),
            };
        }
    }
}

/// Writes `2026/11/21 09:00:00 [error] 12#12: `, in local time.
pub fn write_prefix(line: &mut Vec<u8>, severity: Severity) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let t = forebay_rt::clock::local_time(now.as_secs() as i64);
    let (pid, tid) = forebay_rt::clock::ids();
    let _ = write!(
        line,
        "{:04}/{:02}/{:02} {:02}:{:02}:{:02} [{}] {pid}#{tid}: ",
        t.year,
        t.month,
        t.day,
        t.hour,
        t.minute,
        t.second,
        severity.name()
    );
}

impl LogSet {
    /// The `error_log` directive, the same on every level: `error_log file [level]`.
    ///
    /// Errors: nginx's `invalid log level "x"`.
    pub fn error_log(
        &mut self,
        slot: &mut Option<ErrorLog>,
        node: &Node,
        loader: &mut Loader<'_>,
    ) -> Result<(), Error> {
        let target = node.arg(0)?;
        let mut mildest = Severity::Error;
        if let Some(level) = node.args.get(1) {
            mildest = Severity::parse(&level.lossy()).ok_or_else(|| {
                Error::emerg(level.span, format!("invalid log level \"{}\"", level.lossy()))
            })?;
        }
        let output = match target.lossy().as_ref() {
            "stderr" => Output::Stderr,
            path => Output::File(self.file(loader.full_path(path))),
        };
        slot.get_or_insert_default().outputs.push((mildest, output));
        Ok(())
    }
}
