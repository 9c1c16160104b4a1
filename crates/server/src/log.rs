//! The log of a process before and beside requests (nginx: ngx_log.c): the error log, and until
//! the start is over also the terminal, as `nginx: [emerg] …`.
//!
//! Invariant: no line is decided here; callers use nginx's wording.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use forebay_conf::{Diagnostics, Level, Sources};
use forebay_rt::errno::Errno;
use forebay_session::log::{ErrorLog, LogFile, Severity};

/// Where a process reports.
#[derive(Clone, Debug)]
pub struct Log {
    sink: ErrorLog,
    /// The sink is standard error already.
    sink_is_stderr: bool,
    /// Warnings and worse go to standard error too (`ngx_use_stderr`).
    terminal: bool,
    /// No remarks on configurations are wanted (`-q`).
    quiet: bool,
}

impl Log {
    /// The log that a start begins with (ngx_log_init); `None` is standard error. Its level is
    /// `notice`, whatever the configuration will say.
    pub fn startup(path: Option<&Path>) -> Log {
        let opened = path.map(|path| (path, open_file(path)));
        let Some((path, result)) = opened else { return Log::stderr() };
        match result {
            Ok(file) => {
                let log = LogFile::new(path.to_path_buf());
                log.install(file);
                let sink = ErrorLog::to_file(Arc::new(log), Severity::Notice);
                Log { sink, sink_is_stderr: false, terminal: true, quiet: false }
            }
            Err(err) => {
                eprintln!(
                    "nginx: [alert] could not open error log file: open() \"{}\" failed ({})",
                    path.display(),
                    Errno(&err)
                );
                Log::stderr()
            }
        }
    }

    /// The configured log; `terminal` as long as the start is not over.
    pub fn configured(sink: ErrorLog, sink_is_stderr: bool, terminal: bool) -> Log {
        Log { sink, sink_is_stderr, terminal, quiet: false }
    }

    fn stderr() -> Log {
        let sink = ErrorLog::to_stderr(Severity::Notice);
        Log { sink, sink_is_stderr: true, terminal: true, quiet: false }
    }

    /// The same log, silent on the terminal: the start is over.
    pub fn off_terminal(mut self) -> Log {
        self.terminal = false;
        self
    }

    /// The same log, without remarks on configurations if that is asked for.
    pub fn quiet(mut self, quiet: bool) -> Log {
        self.quiet = quiet;
        self
    }

    /// The log itself, for what logs beside requests in threads.
    pub fn sink(&self) -> &ErrorLog {
        &self.sink
    }

    /// Whether a line of that severity goes anywhere.
    pub fn wants(&self, severity: Severity) -> bool {
        self.sink.wants(severity)
    }

    /// Writes a line.
    pub fn write(&self, severity: Severity, message: impl Display) {
        self.sink.write(severity, None, format_args!("{message}"));
        if self.terminal && severity <= Severity::Warn && !self.sink_is_stderr {
            eprintln!("nginx: [{}] {message}", severity.name());
        }
    }

    /// The server cannot run.
    pub fn emerg(&self, message: impl Display) {
        self.write(Severity::Emerg, message);
    }

    /// Something must be done at once.
    pub fn alert(&self, message: impl Display) {
        self.write(Severity::Alert, message);
    }

    /// Odd, but dealt with.
    pub fn warn(&self, message: impl Display) {
        self.write(Severity::Warn, message);
    }

    /// Normal and significant.
    pub fn notice(&self, message: impl Display) {
        self.write(Severity::Notice, message);
    }

    /// What nginx logs of each configuration that it takes (ngx_event_module_init).
    pub fn tell_event_method(&self) {
        self.notice("using the \"epoll\" event method");
    }

    /// Reports what is wrong with a configuration, all of it: nginx's line in the log and on the
    /// terminal, there with the place shown. `infos` says whether remarks are wanted.
    pub fn report(&self, diags: &Diagnostics, sources: &Sources, infos: bool) {
        let infos = infos && !self.quiet;
        for error in diags.iter().filter(|error| infos || error.level != Level::Info) {
            let severity = match error.level {
                Level::Emerg => Severity::Emerg,
                Level::Crit => Severity::Crit,
                Level::Warn => Severity::Warn,
                Level::Info => Severity::Info,
            };
            self.sink.write(severity, None, format_args!("{}", error.with_place(sources)));
            if self.terminal && !self.sink_is_stderr {
                eprintln!("nginx: {}", error.nginx_line(sources));
            }
            if self.terminal && error.level.is_error() {
                eprint!("{}", error.excerpt(sources));
            }
        }
        if diags.dropped() > 0 {
            self.emerg(format_args!("too many errors, {} not shown", diags.dropped()));
        }
    }
}

/// Opens a log as nginx does: appended to, readable by all.
pub fn open_file(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o644).open(path)
}
