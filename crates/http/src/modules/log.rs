//! `access_log` and `log_format` (`ngx_http_log_module`).
//!
//! A line is written when its request is finished, into a buffer of the thread, and from there with
//! all other lines of the batch to the file ([`forebay_session::log`]).
//!
//! Hot path: no allocation and no lock in [`AccessLog::log`] for a file without `buffer=`.
//! Invariant: nothing that goes wrong with a log is seen by the request.

mod format;

use std::{cell::Cell, sync::Arc};

use forebay_conf::{Arg, Arity, Contexts, Error, Node, value};
use forebay_session::{
    log::{self, LogFile},
    var::Template,
};

use self::format::Format;
use crate::{
    handler::Logger,
    module::{self, ANY_IF, Builder, Cx, Directive, Module, set},
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
}

/// One `access_log`.
struct Entry {
    file: Arc<LogFile>,
    format: Arc<Format>,
    condition: Option<Template>,
}

impl module::Conf for Conf {
    /// The logs of a level replace those around it, all of them (`ngx_http_log_merge_loc_conf`).
    fn inherit(&mut self, parent: &Self) {
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
        b.log(AccessLog { entries: entries.into() });
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
    let path = cx.loader.full_path(&cx.default_access_log);
    let entry = Entry { file: cx.logs.file(path), format: combined(cx), condition: None };
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

/// nginx looks the name up whatever its case.
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

fn access_log(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let path = node.arg(0)?;
    if path.is("off") {
        conf.off = true;
        return match node.args.get(1) {
            Some(extra) => Err(value::invalid_parameter(extra)),
            None => Ok(()),
        };
    }
    let full_path = cx.loader.full_path(path.path());
    let format = find_format(node.args.get(1), cx)?;
    let mut condition = None;
    for arg in node.args.iter().skip(2) {
        let Some(text) = arg.after("if=") else { return Err(value::invalid_parameter(arg)) };
        condition = Some(Template::parse(text, arg.span, &mut cx.registry)?);
    }
    conf.logs.push(Arc::new(Entry { file: cx.logs.file(full_path), format, condition }));
    Ok(())
}

/// The logs of a location.
struct AccessLog {
    entries: Box<[Arc<Entry>]>,
}

thread_local! {
    static LINE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Logger for AccessLog {
    fn log(&self, r: &Request) {
        let mut line = LINE.take();
        for entry in &self.entries {
            if entry.applies(r, &mut line) {
                line.clear();
                entry.format.write(r, &mut line);
                line.push(b'\n');
                log::append(&entry.file, &line);
            }
        }
        LINE.set(line);
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
}
