//! `ngx_http_rewrite_module`: `rewrite`, `return`, `if`, `set`, `break`.
//!
//! The directives of a level run in order; those of an `if` run in its place, as nginx compiles
//! them into the code of the enclosing level (`ngx_http_rewrite_if`). An inner level inherits none.
//!
//! Hot path: `return` of a fixed text allocates nothing.
//!
//! Invariant: nothing here waits.

mod answer;
mod condition;
mod replace;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, sync::Arc};

use forebay_conf::{Arg, Arity, Contexts, Error, Node, value};
use forebay_session::{
    log::{Severity, Shown},
    regex::Regex,
    var::{self, Piece, Registry, Template, VarId},
};
use forebay_wire::uri::{Kind as Escape, escape};

use self::{answer::Return, condition::Condition, replace::Rewrite};
use crate::{
    client::Client,
    handler::{Flow, Handler},
    inherit,
    module::{self, Builder, Cx, Directive, Module, open, set},
    plan::{Kind, LocId},
    request::Request,
};

/// Server, location, and `if` in both.
const CODE: Contexts = Contexts::SERVER.or(Contexts::SIF).or(Contexts::LOCATION).or(Contexts::LIF);

/// What one level says.
#[derive(Default)]
pub struct Conf {
    log: Option<bool>,
    warn_uninitialized: Option<bool>,
    ops: Vec<Arc<Op>>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; log, warn_uninitialized);
    }
}

/// One directive.
enum Op {
    Rewrite(Rewrite),
    Return(Return),
    Break,
    Set { variable: VarId, value: Template },
    If { condition: Condition, level: LocId },
}

/// The module.
pub struct Rewriting;

impl Module for Rewriting {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_rewrite_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "break",
            &[""],
            "",
            CODE,
            Arity::NONE,
            "Ends the rewriting of this level.",
            |c, _, _| {
                c.ops.push(Arc::new(Op::Break));
                Ok(())
            },
        ),
        open(
            "if",
            &["(condition)"],
            "",
            Contexts::SERVER.or(Contexts::LOCATION),
            Arity::SOME.block(),
            "Settings and rewriting for requests that meet a condition.",
            (
                |context| match context {
                    Contexts::SERVER => Contexts::SIF,
                    _ => Contexts::LIF,
                },
                if_block,
            ),
        ),
        set(
            "return",
            &["code [text]", "code URL", "URL"],
            "",
            CODE,
            Arity::ONE_OR_TWO,
            "Answers at once, with a text, a redirect or an error.",
            |c, n, cx| push(c, Op::Return(Return::parse(n, cx)?)),
        ),
        set(
            "rewrite",
            &["regex replacement [flag]"],
            "",
            CODE,
            Arity::between(2, 3),
            "Replaces the path where a regular expression matches it.",
            |c, n, cx| push(c, Op::Rewrite(Rewrite::parse(n, cx)?)),
        ),
        set(
            "rewrite_log",
            &["on | off"],
            "off",
            CODE.or(Contexts::HTTP),
            Arity::FLAG,
            "Whether the error log tells what was rewritten, at the level notice.",
            |c, n, _| value::set_flag(&mut c.log, n),
        ),
        set(
            "set",
            &["$variable value"],
            "",
            CODE,
            Arity::TWO,
            "Gives a variable a value.",
            set_variable,
        ),
        set(
            "uninitialized_variable_warn",
            &["on | off"],
            "on",
            CODE.or(Contexts::HTTP),
            Arity::FLAG,
            "Whether the error log warns of variables that are read before they are set.",
            |c, n, _| value::set_flag(&mut c.warn_uninitialized, n),
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        b.location.warn_uninitialized = conf.warn_uninitialized.unwrap_or(true);
        let in_server = b.location.kind == Kind::Server;
        // What an `if` says runs as part of the level that it stands in.
        if !conf.ops.is_empty() && b.location.kind != Kind::If {
            let steps = compile(&conf.ops, in_server, b);
            b.rewrite(Program { steps, log: conf.log.unwrap_or(false) });
        }
        Ok(())
    }
}

fn push(conf: &mut Conf, op: Op) -> Result<(), Error> {
    conf.ops.push(Arc::new(op));
    Ok(())
}

fn if_block(
    conf: &mut Conf,
    node: &Node,
    cx: &mut Cx<'_, '_>,
    level: LocId,
) -> Result<Conf, Error> {
    let condition = Condition::parse(node, cx)?;
    push(conf, Op::If { condition, level })?;
    Ok(Conf::default())
}

fn set_variable(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (variable, value) = (node.arg(0)?, node.arg(1)?);
    let name = variable.after("$").filter(|name| !name.is_empty());
    let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else {
        let text = format!("invalid variable name \"{}\"", variable.lossy());
        return Err(Error::emerg(variable.span, text));
    };
    let variable = cx.registry.settable(name, variable.span, Some(uninitialized))?;
    let value = template(value, &mut cx.registry)?;
    push(conf, Op::Set { variable, value })
}

/// `ngx_http_rewrite_var`: the variable is empty, which may be a mistake.
fn uninitialized(r: &Request, name: &str) {
    if r.location().warn_uninitialized {
        let doing = r.main.doing.get();
        let text = format_args!("using uninitialized \"{name}\" variable{doing}");
        r.log_error(Severity::Warn, text);
    }
}

fn template(arg: &Arg, registry: &mut Registry<Request>) -> Result<Template, Error> {
    Template::parse(&arg.value, arg.span, registry)
}

/// A directive with what stands in it.
enum Step {
    Op(Arc<Op>),
    If { op: Arc<Op>, level: Option<LocId>, then: Box<[Step]> },
}

fn compile(ops: &[Arc<Op>], in_server: bool, b: &Builder<'_, '_, '_>) -> Box<[Step]> {
    let step = |op: &Arc<Op>| match **op {
        Op::If { level, .. } => {
            let inner = b.level::<Conf>(level).map_or(&[][..], |conf| &conf.ops);
            let then = compile(inner, in_server, b);
            // Outside a location there are no settings to switch to.
            Step::If { op: op.clone(), level: (!in_server).then_some(level), then }
        }
        _ => Step::Op(op.clone()),
    };
    ops.iter().map(step).collect()
}

/// The rewriting of one level.
struct Program {
    steps: Box<[Step]>,
    log: bool,
}

/// What is known while a program runs (`ngx_http_script_engine_t`).
struct State {
    /// `rewrite_log`.
    log: bool,
    /// Whether the path was changed, so that the location is to be chosen anew.
    changed: bool,
    /// Whether captures are escaped: nginx does so up to the first `rewrite` that matches.
    quote: bool,
}

impl Handler for Program {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        let mut state = State { log: self.log, changed: false, quote: true };
        match run(&self.steps, r, &mut state) {
            Some(flow) => flow,
            None if state.changed => Flow::Redirect,
            None => Flow::Decline,
        }
    }
}

/// Runs step by step; `Some`: no further step is to run.
fn run<'a>(steps: &[Step], r: &mut Request, state: &mut State) -> Option<Flow<'a>> {
    for step in steps {
        let ended = match step {
            Step::Op(op) => perform(op, r, state),
            Step::If { op, level, then } => match &**op {
                Op::If { condition, .. } => match condition.holds(r, state) {
                    Ok(true) => {
                        // DIFFERS(if-last-decides): nginx keeps the content handler of an `if` before.
                        r.location = level.unwrap_or(r.location);
                        run(then, r, state)
                    }
                    Ok(false) => None,
                    Err(status) => Some(Flow::Deny(status)),
                },
                _ => None,
            },
        };
        if ended.is_some() {
            return ended;
        }
    }
    None
}

fn perform<'a>(op: &Op, r: &mut Request, state: &mut State) -> Option<Flow<'a>> {
    match op {
        Op::Return(answer) => Some(answer.give(r)),
        Op::Rewrite(rewrite) => rewrite.run(r, state),
        Op::Break => Some(Flow::Decline),
        Op::Set { variable, value } => {
            scratch(|out| {
                write_value(value, r, state.quote, out);
                var::assign(r, *variable, out);
            });
            None
        }
        Op::If { .. } => None,
    }
}

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs with an empty buffer that is kept by the thread.
fn scratch<T>(f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut buf = SCRATCH.take();
    buf.clear();
    let result = f(&mut buf);
    SCRATCH.set(buf);
    result
}

/// Writes a value; `quoted`: captures of a path that came escaped are escaped again
/// (`ngx_http_script_copy_capture_code`).
fn write_value(value: &Template, r: &Request, quoted: bool, out: &mut Vec<u8>) {
    if !(quoted && r.uri_was_escaped && value.uses_captures()) {
        return value.write(r, out);
    }
    for piece in value.pieces() {
        match piece {
            Piece::Text(text) => out.extend_from_slice(text),
            Piece::Var(id) => {
                var::read(r, id, out);
            }
            Piece::Capture(n) => {
                let captures = r.store.captures();
                let group = captures.group(usize::from(n)).unwrap_or_default();
                escape(Escape::Args, group, out);
            }
        }
    }
}

/// A regular expression of `rewrite` or `if`, as it is matched and logged.
struct Pattern {
    regex: Regex,
    named: Vec<(usize, VarId)>,
    text: String,
}

impl Pattern {
    fn parse(arg: &Arg, caseless: bool, cx: &mut Cx<'_, '_>) -> Result<Pattern, Error> {
        let regex = Regex::compile(&arg.value, caseless, arg.span)?;
        let named = regex.bind(&mut cx.registry, arg.span)?;
        Ok(Pattern { regex, named, text: arg.lossy().into_owned() })
    }

    /// Matches; the captures of a text that does not match are empty, whatever was before
    /// (`ngx_http_script_regex_start_code`).
    fn matches(&self, r: &Request, text: &[u8], log: bool) -> Result<bool, u16> {
        let matched = r.matches((&self.regex, self.text.as_bytes()), text, &self.named)?;
        if !matched {
            r.store.captures_mut().clear();
        }
        if log {
            let does = if matched { "matches" } else { "does not match" };
            let text = Shown(text);
            r.log_error(Severity::Notice, format_args!("\"{}\" {does} \"{text}\"", self.text));
        }
        Ok(matched)
    }
}
