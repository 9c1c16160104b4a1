//! The directives of both forms of health checks.
//!
//! Invariant: what a check does not know how to do is an error here, not a check that always passes.

use std::sync::Arc;

use forebay_conf::{
    Arg, Diagnostics, Error, Node,
    directive::check_entry,
    value::{self, invalid_parameter},
};
use forebay_wire::grpc;

use super::{Check, Expect, HeaderTest, Kind, Match, Pattern, Statuses, Style, Tls};
use crate::{
    regex::Regex,
    upstream::Settings,
    var::{Registry, Scope, VarId},
};

type Done = Result<(), Error>;

/// What Tengine's directives in a block say so far.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    check: Option<Parameters>,
    send: Option<Box<[u8]>>,
    alive: Option<[bool; 10]>,
    keepalive_requests: Option<u32>,
}

#[derive(Clone, Debug)]
struct Parameters {
    interval_ms: u64,
    fall: u32,
    rise: u32,
    timeout_ms: u64,
    default_down: bool,
    kind: Type,
    port: Option<u16>,
}

#[derive(Clone, Copy, Debug)]
enum Type {
    Tcp,
    Http,
    SslHello,
    Mysql,
    Ajp,
}

/// `check interval=ms [fall=n] [rise=n] [timeout=ms] [default_down=true|false]
/// [type=tcp|http|ssl_hello|mysql|ajp] [port=n]`.
pub fn check(settings: &mut Settings, node: &Node) -> Done {
    value::set_once(&mut settings.check.check, node, |node| {
        let mut parameters = Parameters {
            interval_ms: 30_000,
            fall: 5,
            rise: 2,
            timeout_ms: 1000,
            default_down: true,
            kind: Type::Tcp,
            port: None,
        };
        node.args.iter().try_for_each(|arg| parameters.set(arg))?;
        Ok(parameters)
    })
}

impl Parameters {
    fn set(&mut self, arg: &Arg) -> Done {
        let text = arg.text()?;
        let (name, value) = text.split_once('=').ok_or_else(|| invalid_parameter(arg))?;
        let number = || positive(arg, value.as_bytes());
        let count = || narrow(arg, number()?);
        match name {
            "interval" => self.interval_ms = number()?,
            "timeout" => self.timeout_ms = number()?,
            "fall" => self.fall = count()?,
            "rise" => self.rise = count()?,
            "port" => self.port = Some(narrow(arg, number()?)?),
            "default_down" => {
                self.default_down = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(invalid_parameter(arg)),
                }
            }
            "type" => {
                self.kind = match value {
                    "tcp" => Type::Tcp,
                    "http" => Type::Http,
                    "ssl_hello" => Type::SslHello,
                    "mysql" => Type::Mysql,
                    "ajp" => Type::Ajp,
                    _ => {
                        let hint = "it must be one of: tcp, http, ssl_hello, mysql, ajp";
                        return Err(invalid_parameter(arg).with_hint(hint));
                    }
                }
            }
            _ => return Err(invalid_parameter(arg)),
        }
        Ok(())
    }
}

fn positive(arg: &Arg, value: &[u8]) -> Result<u64, Error> {
    value::number(value).filter(|n| *n > 0).ok_or_else(|| invalid_parameter(arg))
}

fn narrow<T: TryFrom<u64>>(arg: &Arg, number: u64) -> Result<T, Error> {
    T::try_from(number).map_err(|_| invalid_parameter(arg))
}

/// `check_http_send request`.
pub fn check_http_send(settings: &mut Settings, node: &Node) -> Done {
    value::set_once(&mut settings.check.send, node, |node| Ok(node.arg(0)?.value.clone()))
}

/// `check_http_expect_alive [http_2xx | http_3xx | http_4xx | http_5xx] …`.
pub fn check_http_expect_alive(settings: &mut Settings, node: &Node) -> Done {
    value::set_once(&mut settings.check.alive, node, |node| {
        let mut classes = [false; 10];
        for arg in &node.args {
            let table = [
                ("http_1xx", 1),
                ("http_2xx", 2),
                ("http_3xx", 3),
                ("http_4xx", 4),
                ("http_5xx", 5),
            ];
            classes[value::choice::<usize>(arg, &table)?] = true;
        }
        Ok(classes)
    })
}

/// `check_keepalive_requests number`.
pub fn check_keepalive_requests(settings: &mut Settings, node: &Node) -> Done {
    value::set_number(&mut settings.check.keepalive_requests, node)
}

impl Draft {
    /// The check that they come to, if there is one.
    pub(crate) fn finish(&self) -> Option<Check> {
        let p = self.check.as_ref()?;
        let kind = match p.kind {
            Type::Tcp => Kind::Tcp,
            Type::SslHello => Kind::SslHello,
            Type::Mysql => Kind::Mysql,
            Type::Ajp => Kind::Ajp,
            Type::Http => {
                let mut classes = [false; 10];
                (classes[2], classes[3]) = (true, true);
                let request =
                    self.send.clone().unwrap_or_else(|| b"GET / HTTP/1.0\r\n\r\n"[..].into());
                Kind::Http { request, expect: Expect::Alive(self.alive.unwrap_or(classes)) }
            }
        };
        Some(Check {
            style: Style::Tengine,
            kind,
            interval_ms: p.interval_ms,
            jitter_ms: 0,
            fails: p.fall,
            passes: p.rise,
            timeout_ms: p.timeout_ms,
            tls: None,
            port: p.port,
            starts_down: p.default_down,
            persistent: true,
            keepalive_requests: self.keepalive_requests.unwrap_or(1),
            keepalive_time_ms: u64::MAX,
        })
    }
}

/// What `health_check` says.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    interval_ms: u64,
    jitter_ms: u64,
    fails: u32,
    passes: u32,
    uri: Option<Box<[u8]>>,
    mandatory: bool,
    persistent: bool,
    /// `match=`: the name, to be looked up when all is read.
    pub tests: Option<Arg>,
    port: Option<u16>,
    keepalive_time_ms: u64,
    /// `type=grpc`.
    pub grpc: Option<Grpc>,
}

/// What is asked of gRPC servers, and what they must answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grpc {
    /// `grpc_service=`; empty: the server as a whole.
    pub service: Box<str>,
    /// `grpc_status=`.
    pub status: u32,
}

/// `health_check [interval=time] [jitter=time] [fails=n] [passes=n] [uri=uri]
/// [mandatory [persistent]] [match=name] [port=n] [keepalive_time=time]
/// [type=grpc [grpc_service=name] [grpc_status=code]]`.
pub fn health_check(node: &Node) -> Result<HealthCheck, Error> {
    let mut check = HealthCheck {
        interval_ms: 5000,
        jitter_ms: 0,
        fails: 1,
        passes: 1,
        uri: None,
        mandatory: false,
        persistent: false,
        tests: None,
        port: None,
        keepalive_time_ms: 0,
        grpc: None,
    };
    node.args.iter().try_for_each(|arg| check.set(arg))?;
    if check.persistent && !check.mandatory {
        let text = "\"persistent\" requires \"mandatory\" in \"health_check\" directive";
        return Err(Error::emerg(node.span, text));
    }
    Ok(check)
}

/// The parameters that say more of `type=grpc`.
const OF_GRPC: [&str; 2] = ["grpc_service", "grpc_status"];

impl HealthCheck {
    fn set(&mut self, arg: &Arg) -> Done {
        let text = arg.text()?;
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let wrong = |why: &str| {
            Err(Error::emerg(arg.span, format!("\"{text}\" {why} in \"health_check\" directive")))
        };
        match (&mut self.grpc, name) {
            // A match looks at a response of HTTP/1.
            (Some(_), "uri" | "match") => wrong("is not compatible with \"type=grpc\""),
            (Some(grpc), name) if OF_GRPC.contains(&name) => grpc.set(arg, name, value),
            (Some(_), _) => wrong("must be before \"type=grpc\""),
            (None, name) if OF_GRPC.contains(&name) => wrong("must be after \"type=grpc\""),
            (None, "type") if value != Some("grpc") => {
                Err(invalid_parameter(arg).with_hint("it must be grpc"))
            }
            (None, "type") if self.uri.is_some() => wrong("is not compatible with \"uri\""),
            (None, "type") if self.tests.is_some() => wrong("is not compatible with \"match\""),
            (None, "type") => {
                self.grpc = Some(Grpc::default());
                Ok(())
            }
            (None, name) => self.set_general(arg, name, value.map(str::as_bytes)),
        }
    }

    fn set_general(&mut self, arg: &Arg, name: &str, value: Option<&[u8]>) -> Done {
        let invalid = || invalid_parameter(arg);
        let time = |value| value::msec(value).ok_or_else(invalid);
        match (name, value) {
            ("interval", Some(v)) => self.interval_ms = time(v)?.max(1),
            ("jitter", Some(v)) => self.jitter_ms = time(v)?,
            ("fails", Some(v)) => self.fails = narrow(arg, positive(arg, v)?)?,
            ("passes", Some(v)) => self.passes = narrow(arg, positive(arg, v)?)?,
            ("port", Some(v)) => self.port = Some(narrow(arg, positive(arg, v)?)?),
            ("keepalive_time", Some(v)) => self.keepalive_time_ms = time(v)?,
            ("uri", Some(v)) if v.starts_with(b"/") && is_target(v) => self.uri = Some(v.into()),
            ("match", Some(_)) => {
                let rest = arg.after("match=").unwrap_or_default();
                self.tests = Some(Arg { value: rest.into(), ..arg.clone() });
            }
            ("mandatory", None) => self.mandatory = true,
            ("persistent", None) => self.persistent = true,
            _ => return Err(invalid()),
        }
        Ok(())
    }

    /// What is asked in HTTP/1, of a group of that name.
    pub fn http(&self, host: &str, tests: Option<Arc<Match>>) -> Kind {
        let uri = self.uri.as_deref().map_or("/".into(), String::from_utf8_lossy);
        let connection = if self.keepalive_time_ms > 0 { "keep-alive" } else { "close" };
        let request =
            format!("GET {uri} HTTP/1.0\r\nHost: {host}\r\nConnection: {connection}\r\n\r\n");
        let expect = Expect::Match(tests.unwrap_or_default());
        Kind::Http { request: request.into_bytes().into(), expect }
    }

    /// The check that asks this. `timeout_ms`: how long it may take.
    pub fn finish(&self, kind: Kind, tls: Option<Tls>, timeout_ms: u64) -> Check {
        let keeps = self.keepalive_time_ms > 0;
        Check {
            style: Style::Plus,
            kind,
            interval_ms: self.interval_ms,
            jitter_ms: self.jitter_ms,
            fails: self.fails,
            passes: self.passes,
            timeout_ms,
            tls,
            port: self.port,
            starts_down: self.mandatory,
            persistent: self.persistent,
            keepalive_requests: if keeps { u32::MAX } else { 1 },
            keepalive_time_ms: self.keepalive_time_ms,
        }
    }
}

impl Grpc {
    fn set(&mut self, arg: &Arg, name: &str, value: Option<&str>) -> Done {
        let value =
            value.filter(|value| !value.is_empty()).ok_or_else(|| invalid_parameter(arg))?;
        match name {
            "grpc_service" => self.service = value.into(),
            _ => {
                let hint = "it must be a number from 0 to 16, or its name, such as UNIMPLEMENTED";
                let wrong = || invalid_parameter(arg).with_hint(hint);
                self.status = grpc::status_of(value).ok_or_else(wrong)?;
            }
        }
        Ok(())
    }
}

/// Whether a text can stand in a request line.
fn is_target(text: &[u8]) -> bool {
    text.iter().all(|b| (b'!'..=b'~').contains(b))
}

/// `match name { … }`. All bad lines go to `diags`.
pub fn match_block<S: Scope>(
    node: &Node,
    registry: &mut Registry<S>,
    diags: &mut Diagnostics,
) -> Result<Match, Error> {
    let mut tests = Match::default();
    for line in node.children() {
        diags.take(match_line(&mut tests, line, registry));
    }
    tests.name = node.text(0)?.into();
    Ok(tests)
}

fn match_line<S: Scope>(
    tests: &mut Match,
    line: &Node,
    registry: &mut Registry<S>,
) -> Result<(), Error> {
    check_entry(line)?;
    match line.name() {
        "status" => value::set_once(&mut tests.status, line, statuses)?,
        "header" => tests.headers.push(header(line)?),
        "body" => tests.bodies.push(body(line)?),
        "require" if line.args.is_empty() => return Err(line.wrong_count()),
        "require" => {
            for arg in &line.args {
                tests.required.push(variable(arg, registry)?);
            }
        }
        name => {
            let text = format!("unknown directive \"{name}\"");
            let hint = "in match there are: status, header, body, require";
            return Err(Error::emerg(line.span, text).with_hint(hint));
        }
    }
    Ok(())
}

fn variable<S: Scope>(arg: &Arg, registry: &mut Registry<S>) -> Result<VarId, Error> {
    let text = arg.text()?;
    let name = text.strip_prefix('$').filter(|name| !name.is_empty());
    let wrong = || Error::emerg(arg.span, format!("invalid variable name \"{text}\""));
    Ok(registry.used(name.ok_or_else(wrong)?, arg.span))
}

fn statuses(line: &Node) -> Result<Statuses, Error> {
    let not = line.args.first().is_some_and(|arg| arg.is("!"));
    let args = &line.args[usize::from(not)..];
    if args.is_empty() {
        return Err(line.wrong_count());
    }
    let ranges = args.iter().map(|arg| {
        let invalid = || Error::emerg(arg.span, format!("invalid status \"{}\"", arg.lossy()));
        let (first, last) = match memchr::memchr(b'-', &arg.value) {
            Some(at) => (&arg.value[..at], &arg.value[at + 1..]),
            None => (&*arg.value, &*arg.value),
        };
        let status = |text| value::number(text).filter(|n| (100..1000).contains(n));
        let (first, last) = (status(first).ok_or_else(invalid)?, status(last).ok_or_else(invalid)?);
        if first > last { Err(invalid()) } else { Ok((first as u16, last as u16)) }
    });
    Ok(Statuses { not, ranges: ranges.collect::<Result<_, _>>()? })
}

fn header(line: &Node) -> Result<HeaderTest, Error> {
    let args: Vec<&Arg> = line.args.iter().collect();
    let name = |arg: &Arg| arg.value.clone();
    Ok(match args[..] {
        [field] => HeaderTest::There { name: name(field), not: false },
        [not, field] if not.is("!") => HeaderTest::There { name: name(field), not: true },
        [field, op, value] => match &*op.value {
            b"=" => HeaderTest::Is { name: name(field), value: name(value), not: false },
            b"!=" => HeaderTest::Is { name: name(field), value: name(value), not: true },
            b"~" | b"!~" => HeaderTest::Like { name: name(field), pattern: pattern(op, value)? },
            _ => return Err(invalid_parameter(op)),
        },
        _ => return Err(line.wrong_count()),
    })
}

fn body(line: &Node) -> Result<Pattern, Error> {
    match &line.args[..] {
        [op, text] if op.is("~") || op.is("!~") => pattern(op, text),
        [op, _] => Err(invalid_parameter(op)),
        _ => Err(line.wrong_count()),
    }
}

fn pattern(op: &Arg, text: &Arg) -> Result<Pattern, Error> {
    let regex = Regex::compile(&text.value, false, text.span)?;
    Ok(Pattern { not: op.is("!~"), regex })
}
