//! `access_log`, `log_format`, `open_log_file_cache` (`ngx_http_log_module`).
//!
//! A line is formatted when its request is finished, into a buffer of the thread, and goes from there
//! with all other lines of the batch to the file ([`forebay_session::log`]), or to syslog.
//!
//! DIFFERS(log-failure-without-request): a write that fails is told without the request that was
//! being logged, since the lines of several are written together; and a syslog server that takes no
//! lines is told of once a minute, where nginx tells of each line.
//!
//! Hot path: no allocation and no lock for a file without `buffer=`.
//! Invariant: nothing that goes wrong with a log is seen by the request.

mod format;
mod path;
#[cfg(test)]
mod tests;

use std::{cell::Cell, io::Write, sync::Arc};

use forebay_conf::{Arg, Arity, Contexts, Error, Node, value};
use forebay_rt::errno::Errno;
use forebay_session::{
    log::{self, Buffering, LogFile, Severity, Syslog, Trouble},
    var::Template,
};

use self::{
    format::Format,
    path::{CacheConf, LogPath},
};
use crate::{
    handler::Logger,
    inherit,
    module::{self, ANY, ANY_IF, Builder, Cx, Directive, Module, set},
    plan::Kind,
    request::Request,
};

/// The module.
pub struct Log;

/// Its settings at one level.
#[derive(Default)]
pub struct Conf {
    logs: Vec<Arc<Entry>>,
    off: bool,
    cache: Option<Option<Arc<CacheConf>>>,
}

/// One `access_log`.
struct Entry {
    target: Target,
    format: Arc<Format>,
    condition: Option<Template>,
}

enum Target {
    File(Arc<LogFile>),
    Path(LogPath),
    Syslog(Syslog),
    /// A file without a name.
    Stderr,
}

impl module::Conf for Conf {
    /// The logs of a level replace those around it, all of them (`ngx_http_log_merge_loc_conf`).
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; cache);
        if self.logs.is_empty() && !self.off {
            self.logs.clone_from(&parent.logs);
            self.off = parent.off;
        }
    }
}

impl Module for Log {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_log_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "access_log",
            &["path [format [buffer=size] [gzip[=level]] [flush=time] [if=condition]]", "off"],
            "logs/access.log combined",
            ANY_IF.or(Contexts::LMT),
            Arity::SOME,
            "Where finished requests are written down, in which format, and which of them.",
            access_log,
        ),
        set(
            "log_format",
            &["name [escape=default|json|none] string ..."],
            "combined \"...\"",
            Contexts::HTTP,
            Arity::at_least(2),
            "A format of log lines.",
            log_format,
        ),
        set(
            "open_log_file_cache",
            &["max=N [inactive=time] [min_uses=N] [valid=time]", "off"],
            "off",
            ANY,
            Arity::between(1, 4),
            "How many logs whose names hold variables stay open, and how long.",
            |c, n, _| match c.cache {
                Some(_) => Err(value::duplicate(n)),
                None => {
                    c.cache = Some(CacheConf::parse(n)?.map(Arc::new));
                    Ok(())
                }
            },
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        // `http` itself answers no request; nginx merges the default into servers only, so it is not
        // opened where each of them has its own.
        if conf.off || b.location.kind == Kind::Main {
            return Ok(());
        }
        let mut entries = conf.logs.clone();
        if entries.is_empty() {
            entries.push(default_log(b.cx));
        }
        for entry in &entries {
            if let Target::File(file) = &entry.target {
                file.complain_to(&b.location.error_log);
            }
        }
        b.log(AccessLog { entries: entries.into(), cache: conf.cache.clone().flatten() });
        Ok(())
    }
}

/// The formats of a configuration, while it loads.
#[derive(Default)]
struct Formats {
    combined: Option<Arc<Format>>,
    named: Vec<(Box<[u8]>, Arc<Format>)>,
}

fn combined(cx: &mut Cx<'_, '_>) -> Arc<Format> {
    if let Some(known) = &cx.shared::<Formats>().combined {
        return known.clone();
    }
    let format = Arc::new(Format::combined(&mut cx.registry));
    cx.shared::<Formats>().combined = Some(format.clone());
    format
}

/// What holds where no `access_log` stands at all.
fn default_log(cx: &mut Cx<'_, '_>) -> Arc<Entry> {
    #[derive(Default)]
    struct Default(Option<Arc<Entry>>);
    if let Default(Some(known)) = cx.shared() {
        return known.clone();
    }
    let path = cx.loader.full_path(&cx.defaults.access_log);
    let target = Target::File(cx.logs.file(path));
    let entry = Entry { target, format: combined(cx), condition: None };
    cx.shared::<Default>().0.insert(Arc::new(entry)).clone()
}

fn log_format(_: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let name = node.arg(0)?;
    let formats = cx.shared::<Formats>();
    if name.is("combined") || formats.named.iter().any(|(known, _)| **known == *name.bytes()) {
        let text = format!("duplicate \"log_format\" name \"{}\"", name.lossy());
        return Err(Error::emerg(name.span, text));
    }
    let format = Arc::new(Format::parse(&node.args[1..], &mut cx.registry)?);
    cx.shared::<Formats>().named.push((name.bytes().into(), format));
    Ok(())
}

/// As in nginx, whatever the case of the name.
fn find_format(name: Option<&Arg>, cx: &mut Cx<'_, '_>) -> Result<Arc<Format>, Error> {
    let Some(name) = name else { return Ok(combined(cx)) };
    if name.bytes().eq_ignore_ascii_case(b"combined") {
        return Ok(combined(cx));
    }
    let named = &cx.shared::<Formats>().named;
    let found = named.iter().find(|(known, _)| known.eq_ignore_ascii_case(name.bytes()));
    found
        .map(|(_, format)| format.clone())
        .ok_or_else(|| Error::emerg(name.span, format!("unknown log format \"{}\"", name.lossy())))
}

/// `ngx_http_log_set_log`.
fn access_log(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let place = node.arg(0)?;
    if place.is("off") {
        conf.off = true;
        return match node.args.get(1) {
            Some(extra) => Err(value::invalid_parameter(extra)),
            None => Ok(()),
        };
    }
    let target = if place.after("syslog:").is_some() {
        Target::Syslog(Syslog::parse(place, cx.loader.files)?)
    } else if place.is("") {
        Target::Stderr
    } else if place.bytes().contains(&b'$') {
        let full = cx.loader.full_path(place.path()).into_os_string().into_encoded_bytes();
        let name = Template::parse(&full, place.span, &mut cx.registry)?;
        Target::Path(LogPath { name, trouble: Trouble::default() })
    } else {
        Target::File(cx.logs.file(cx.loader.full_path(place.path())))
    };
    let format = find_format(node.args.get(1), cx)?;
    let options = Options::parse(node, cx)?;
    if let Some(buffering) = options.buffering {
        let fail = |text: String| Err(Error::emerg(node.span, text));
        match &target {
            Target::Path(_) => return fail("buffered logs cannot have variables in name".into()),
            Target::Syslog(_) => return fail("logs to syslog cannot be buffered".into()),
            Target::File(file) if file.buffer(buffering).is_err() => {
                let place = place.lossy();
                return fail(format!(
                    "access_log \"{place}\" already defined with conflicting parameters"
                ));
            }
            Target::File(_) | Target::Stderr => {}
        }
    }
    conf.logs.push(Arc::new(Entry { target, format, condition: options.condition }));
    Ok(())
}

/// What follows the format.
struct Options {
    buffering: Option<Buffering>,
    condition: Option<Template>,
}

/// nginx's buffer for `gzip` without `buffer=`, in bytes.
const GZIP_BUFFER: usize = 64 << 10;

impl Options {
    fn parse(node: &Node, cx: &mut Cx<'_, '_>) -> Result<Options, Error> {
        let (mut size, mut flush_ms, mut gzip, mut condition) = (None, None, None, None);
        for arg in node.args.iter().skip(2) {
            let invalid = |what: &str, text: &[u8]| {
                let text = String::from_utf8_lossy(text);
                Error::emerg(arg.span, format!("invalid {what} \"{text}\""))
            };
            if let Some(text) = arg.after("buffer=") {
                let parsed = value::size(text).and_then(|size| usize::try_from(size).ok());
                let parsed = parsed.filter(|size| *size > 0);
                size = Some(parsed.ok_or_else(|| invalid("buffer size", text))?);
            } else if let Some(text) = arg.after("flush=") {
                let parsed = value::msec(text).filter(|ms| *ms > 0);
                flush_ms = Some(parsed.ok_or_else(|| invalid("flush time", text))?);
            } else if arg.is("gzip") {
                gzip = Some(1);
            } else if let Some(text) = arg.after("gzip=") {
                let parsed = value::number(text).filter(|level| (1..=9).contains(level));
                gzip = Some(parsed.ok_or_else(|| invalid("compression level", text))? as u32);
            } else if let Some(text) = arg.after("if=") {
                condition = Some(Template::parse(text, arg.span, &mut cx.registry)?);
            } else {
                return Err(value::invalid_parameter(arg));
            }
        }
        let size = size.or(gzip.map(|_| GZIP_BUFFER));
        if flush_ms.is_some() && size.is_none() {
            let place = node.arg(0)?.lossy();
            let text = format!("no buffer is defined for access_log \"{place}\"");
            return Err(Error::emerg(node.span, text));
        }
        let buffering = size.map(|size| Buffering { size, flush_ms, gzip });
        Ok(Options { buffering, condition })
    }
}

/// The logs of a location.
struct AccessLog {
    entries: Box<[Arc<Entry>]>,
    cache: Option<Arc<CacheConf>>,
}

/// How much memory for lines a thread keeps, in bytes; a longer line (`$request_body`) gives its back.
const LINE_BYTES: usize = 64 << 10;

thread_local! {
    static LINE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Logger for AccessLog {
    fn log(&self, r: &Request) {
        let mut line = LINE.take();
        for entry in &self.entries {
            if entry.applies(r, &mut line) {
                line.clear();
                entry.write(r, self.cache.as_ref(), &mut line);
            }
        }
        if line.capacity() <= LINE_BYTES {
            LINE.set(line);
        }
    }
}

impl Entry {
    /// `if=`: neither empty nor `0`.
    fn applies(&self, r: &Request, scratch: &mut Vec<u8>) -> bool {
        let Some(condition) = &self.condition else { return true };
        scratch.clear();
        condition.write(r, scratch);
        !matches!(&scratch[..], b"" | b"0")
    }

    fn write(&self, r: &Request, cache: Option<&Arc<CacheConf>>, line: &mut Vec<u8>) {
        match &self.target {
            Target::File(file) => {
                self.format.write(r, line);
                line.push(b'\n');
                log::append(file, line);
            }
            Target::Path(path) if path.trouble.is_full() => {}
            Target::Path(path) => {
                self.format.write(r, line);
                line.push(b'\n');
                path.write(r, cache, line);
            }
            Target::Stderr => {
                self.format.write(r, line);
                line.push(b'\n');
                // Nobody is left to be told of a failure.
                let _ = std::io::stderr().write_all(line);
            }
            Target::Syslog(syslog) => {
                syslog.write_header(syslog.severity(), line);
                self.format.write(r, line);
                if let Err(error) = syslog.send_datagram(line)
                    && syslog.trouble().is_news()
                {
                    let error = Errno(&error);
                    r.log_error(
                        Severity::Warn,
                        format_args!("send() to syslog failed ({error}) while logging request"),
                    );
                }
            }
        }
    }
}
