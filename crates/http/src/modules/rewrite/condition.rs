//! The conditions of `if` (`ngx_http_rewrite_if_condition`).

use forebay_conf::{Arg, Error, Node};
use forebay_session::{
    log::{Severity, Shown},
    var::{self, Template, VarId},
};

use super::{Pattern, State, scratch, template, write_value};
use crate::{
    files::{self, Failed, Kind},
    module::Cx,
    request::Request,
};

/// What an `if` asks.
pub(super) enum Condition {
    /// `($x)`: neither empty nor `0`.
    True(VarId),
    /// `($x = value)`.
    Equal(VarId, Template),
    /// `($x != value)`.
    Differs(VarId, Template),
    /// `($x ~ regex)`; `negative` for `!~`.
    Matches { variable: VarId, pattern: Pattern, negative: bool },
    /// `(-f path)`; `negative` for `!-f`.
    File { test: FileTest, path: Template, negative: bool },
}

/// What is asked of a file.
#[derive(Clone, Copy)]
pub(super) enum FileTest {
    /// `-f`: a regular file.
    Plain,
    /// `-d`: a directory.
    Dir,
    /// `-e`: a file, directory or link.
    Exists,
    /// `-x`: its owner may execute it.
    Executable,
}

impl Condition {
    /// Reads the parameters of an `if`.
    ///
    /// Errors: nginx's `invalid condition "x"` and `unexpected "x" in condition`.
    pub(super) fn parse(node: &Node, cx: &mut Cx<'_, '_>) -> Result<Condition, Error> {
        let words = words(node)?;
        match &words[..] {
            [variable] if is_variable(variable) => Ok(Condition::True(used(variable, cx)?)),
            [variable, operator, operand] if is_variable(variable) => {
                compare(variable, operator, operand, cx)
            }
            [operator, operand] => file(operator, operand, cx),
            [first, ..] => Err(invalid(first)),
            [] => Err(node.wrong_count()),
        }
    }

    /// Whether it holds; a status: that cannot be told.
    pub(super) fn holds(&self, r: &Request, state: &State) -> Result<bool, u16> {
        scratch(|out| {
            Ok(match self {
                Condition::True(variable) => {
                    var::read(r, *variable, out);
                    !matches!(&out[..], b"" | b"0")
                }
                Condition::Equal(variable, value) => equal(r, *variable, value, state, out),
                Condition::Differs(variable, value) => !equal(r, *variable, value, state, out),
                Condition::Matches { variable, pattern, negative } => {
                    var::read(r, *variable, out);
                    pattern.matches(r, out, state.log)? != *negative
                }
                Condition::File { test, path, negative } => {
                    write_value(path, r, state.quote, out);
                    test.holds(r, out) != *negative
                }
            })
        })
    }
}

/// The parameters without the brackets around them.
fn words(node: &Node) -> Result<Vec<Arg>, Error> {
    let mut words = node.args.clone();
    let Some(first) = words.first_mut() else { return Err(node.wrong_count()) };
    let Some(inner) = first.value.strip_prefix(b"(") else { return Err(invalid(first)) };
    first.value = inner.into();
    if first.value.is_empty() && node.args.len() > 1 {
        words.remove(0);
    }
    let Some(last) = words.last_mut() else { return Err(node.wrong_count()) };
    let Some(inner) = last.value.strip_suffix(b")") else { return Err(invalid(last)) };
    last.value = inner.into();
    if last.value.is_empty() && words.len() > 1 {
        words.pop();
    }
    Ok(words)
}

fn invalid(arg: &Arg) -> Error {
    Error::emerg(arg.span, format!("invalid condition \"{}\"", arg.lossy()))
}

fn is_variable(arg: &Arg) -> bool {
    arg.value.len() > 1 && arg.value[0] == b'$'
}

fn used(arg: &Arg, cx: &mut Cx<'_, '_>) -> Result<VarId, Error> {
    Ok(cx.registry.used(&arg.text()?[1..], arg.span))
}

fn compare(
    variable: &Arg,
    operator: &Arg,
    operand: &Arg,
    cx: &mut Cx<'_, '_>,
) -> Result<Condition, Error> {
    let variable = used(variable, cx)?;
    let (caseless, negative) = match &*operator.value {
        b"=" => return Ok(Condition::Equal(variable, template(operand, &mut cx.registry)?)),
        b"!=" => return Ok(Condition::Differs(variable, template(operand, &mut cx.registry)?)),
        b"~" => (false, false),
        b"~*" => (true, false),
        b"!~" => (false, true),
        b"!~*" => (true, true),
        _ => {
            let text = format!("unexpected \"{}\" in condition", operator.lossy());
            return Err(Error::emerg(operator.span, text));
        }
    };
    let pattern = Pattern::parse(operand, caseless, cx)?;
    Ok(Condition::Matches { variable, pattern, negative })
}

fn file(operator: &Arg, operand: &Arg, cx: &mut Cx<'_, '_>) -> Result<Condition, Error> {
    let (letter, negative) = match &*operator.value {
        [b'-', letter] => (letter, false),
        [b'!', b'-', letter] => (letter, true),
        _ => return Err(invalid(operator)),
    };
    let test = match letter {
        b'f' => FileTest::Plain,
        b'd' => FileTest::Dir,
        b'e' => FileTest::Exists,
        b'x' => FileTest::Executable,
        _ => return Err(invalid(operator)),
    };
    let path = template(operand, &mut cx.registry)?;
    Ok(Condition::File { test, path, negative })
}

fn equal(r: &Request, variable: VarId, value: &Template, state: &State, out: &mut Vec<u8>) -> bool {
    var::read(r, variable, out);
    let split = out.len();
    write_value(value, r, state.quote, out);
    out[..split] == out[split..]
}

impl FileTest {
    /// (`ngx_http_script_file_code`)
    fn holds(self, r: &Request, path: &[u8]) -> bool {
        let (kind, executable) = match files::look(r, path) {
            Ok(found) => found,
            Err(failed) => {
                complain(r, path, failed);
                return false;
            }
        };
        match self {
            FileTest::Plain => kind == Kind::File,
            FileTest::Dir => kind == Kind::Dir,
            FileTest::Exists => kind != Kind::Other,
            FileTest::Executable => executable,
        }
    }
}

/// That a file is not there is an answer; everything else is worth a line.
fn complain(r: &Request, path: &[u8], failed: Failed) {
    if !failed.is_missing() {
        let path = Shown(path);
        let call = failed.call;
        r.log_error(Severity::Crit, format_args!("{call} \"{path}\" failed ({failed})"));
    }
}
