//! `log_format`: compiled once to a list of steps, run for each line.
//!
//! Answers `ngx_http_log_compile_format` and the `ngx_http_log_*` writers. The variables that most
//! formats hold are written straight from the request; all others come through the registry.
//!
//! Hot path: no allocation once the thread's line buffer has grown; no lock; one call of the clock a
//! line and variable.
//! Invariant: a step only appends to the line.

use std::{io::Write as _, net::IpAddr};

use forebay_conf::{Arg, Error, Span};
use forebay_rt::clock;
use forebay_session::{
    log::time,
    var::{self, Registry, VarId},
};
use forebay_wire::{
    h1::{FieldId, Version, encode::write_decimal},
    uri::{escape_json, escape_log},
};

use crate::request::{Peer, Request};

/// `escape=`: what happens to the bytes of a variable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Escape {
    /// `"`, `\`, controls and what is not ASCII become `\xXX`; what is not found, `-`.
    #[default]
    Default,
    /// As the inside of a JSON string; what is not found, nothing.
    Json,
    /// As they are.
    None,
}

/// A compiled format.
#[derive(Debug)]
pub struct Format {
    escape: Escape,
    steps: Box<[Step]>,
}

#[derive(Debug)]
enum Step {
    Text(Box<[u8]>),
    /// Digits, times and addresses: nothing in them is ever escaped.
    Plain(fn(&Request, &mut Vec<u8>)),
    /// The request line. Where it was never complete, what the variable says of it.
    RequestLine(Option<VarId>),
    /// A request field that has an id.
    Field(FieldId),
    /// A variable that is not found without that field.
    With(FieldId, Option<VarId>),
    Var(VarId),
}

/// nginx's `ngx_http_combined_fmt`.
const COMBINED: &[u8] = b"$remote_addr - $remote_user [$time_local] \
    \"$request\" $status $body_bytes_sent \
    \"$http_referer\" \"$http_user_agent\"";

impl Format {
    /// The format that there always is.
    pub fn combined(registry: &mut Registry<Request>) -> Format {
        let mut steps = Vec::new();
        compile(COMBINED, Span::default(), registry, &mut steps).expect("it is well-formed");
        Format { escape: Escape::Default, steps: steps.into() }
    }

    /// Compiles the strings of a `log_format`, which follow each other without a space.
    ///
    /// Errors: nginx's `unknown log format escaping "x"`, `invalid parameter "x"`,
    /// `the closing bracket in "x" variable is missing`.
    pub fn parse(args: &[Arg], registry: &mut Registry<Request>) -> Result<Format, Error> {
        let mut escape = Escape::Default;
        let mut strings = args;
        if let Some((first, rest)) = args.split_first()
            && let Some(name) = first.after("escape=")
        {
            escape = match name {
                b"default" => Escape::Default,
                b"json" => Escape::Json,
                b"none" => Escape::None,
                other => {
                    let name = String::from_utf8_lossy(other);
                    let text = format!("unknown log format escaping \"{name}\"");
                    return Err(Error::emerg(first.span, text));
                }
            };
            strings = rest;
        }
        let mut steps = Vec::new();
        for string in strings {
            compile(string.bytes(), string.span, registry, &mut steps)?;
        }
        Ok(Format { escape, steps: steps.into() })
    }

    /// Appends a line, without the line feed.
    pub fn write(&self, r: &Request, line: &mut Vec<u8>) {
        for step in &self.steps {
            match step {
                Step::Text(text) => line.extend_from_slice(text),
                Step::Plain(write) => write(r, line),
                Step::RequestLine(id) => match r.input.text(r.input.head.request_line) {
                    [] => self.variable(r, *id, line),
                    text => self.value(text, line),
                },
                Step::Field(field) => self.fields(r, *field, line),
                Step::With(field, id) => match r.field(*field) {
                    Some(_) => self.variable(r, *id, line),
                    None => self.not_found(line),
                },
                Step::Var(id) => self.variable(r, Some(*id), line),
            }
        }
    }

    /// Several fields of one name are one value (`ngx_http_variable_headers`).
    fn fields(&self, r: &Request, field: FieldId, line: &mut Vec<u8>) {
        let separator = if field == FieldId::Cookie { b"; " } else { b", " };
        let mut found = false;
        for same in r.input.head.headers.iter().filter(|f| f.id == field) {
            if found {
                line.extend_from_slice(separator);
            }
            self.value(r.input.text(same.value), line);
            found = true;
        }
        if !found {
            self.not_found(line);
        }
    }

    fn not_found(&self, line: &mut Vec<u8>) {
        if self.escape == Escape::Default {
            line.push(b'-');
        }
    }

    fn value(&self, value: &[u8], line: &mut Vec<u8>) {
        match self.escape {
            Escape::Default if !is_plain(value) => escape_log(value, line),
            Escape::Json if !is_plain(value) => escape_json(value, line),
            _ => line.extend_from_slice(value),
        }
    }

    fn variable(&self, r: &Request, id: Option<VarId>, line: &mut Vec<u8>) {
        let start = line.len();
        if !id.is_some_and(|id| var::read(r, id, line)) {
            return self.not_found(line);
        }
        if self.escape != Escape::None && !is_plain(&line[start..]) {
            let raw = line.split_off(start);
            self.value(&raw, line);
        }
    }
}

/// Whether no escaping changes anything. Without a branch a byte, so that it runs on vectors.
fn is_plain(value: &[u8]) -> bool {
    let plain = |b: u8| (b.wrapping_sub(0x20) < 0x5f) & (b != b'"') & (b != b'\\');
    value.iter().fold(true, |all, &b| all & plain(b))
}

fn compile(
    source: &[u8],
    span: Span,
    registry: &mut Registry<Request>,
    steps: &mut Vec<Step>,
) -> Result<(), Error> {
    let mut rest = source;
    while !rest.is_empty() {
        let text = memchr::memchr(b'$', rest).unwrap_or(rest.len());
        if text > 0 {
            steps.push(Step::Text(rest[..text].into()));
            rest = &rest[text..];
            continue;
        }
        let (name, after) = variable_name(rest, span)?;
        steps.push(step(name, span, registry));
        rest = after;
    }
    Ok(())
}

/// Splits `$name…` or `${name}…`. Unlike elsewhere, `$1` is no capture here, but a name.
fn variable_name(source: &[u8], span: Span) -> Result<(&str, &[u8]), Error> {
    let body = &source[1..];
    let (braced, body) = match body.strip_prefix(b"{") {
        Some(inner) => (true, inner),
        None => (false, body),
    };
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let len = body.iter().take_while(|b| is_name(b)).count();
    let name = std::str::from_utf8(&body[..len]).unwrap_or_default();
    let after = &body[len..];
    let after = match (braced, after.strip_prefix(b"}")) {
        (false, _) => after,
        (true, Some(after)) => after,
        (true, None) if body.is_empty() => after,
        (true, None) => {
            let text = format!("the closing bracket in \"{name}\" variable is missing");
            return Err(Error::emerg(span, text));
        }
    };
    if name.is_empty() {
        let text = format!("invalid parameter \"{}\"", String::from_utf8_lossy(source));
        return Err(Error::emerg(span, text));
    }
    Ok((name, after))
}

fn step(name: &str, span: Span, registry: &mut Registry<Request>) -> Step {
    match name {
        "time_local" => Step::Plain(|_, line| time::write_local(clock::wall_ms(), line)),
        "time_iso8601" => Step::Plain(|_, line| time::write_iso8601(clock::wall_ms(), line)),
        "msec" => Step::Plain(|_, line| write_seconds(clock::wall_ms(), line)),
        "request_time" => Step::Plain(|r, line| {
            write_seconds(clock::now_ms().saturating_sub(r.input.start_ms), line);
        }),
        "status" => Step::Plain(write_status),
        "bytes_sent" => Step::Plain(|r, line| write_decimal(line, r.bytes_sent)),
        "body_bytes_sent" => {
            Step::Plain(|r, line| write_decimal(line, r.bytes_sent.saturating_sub(r.head_sent)))
        }
        "request_length" => Step::Plain(|r, line| write_decimal(line, r.bytes_read)),
        "remote_addr" => Step::Plain(|r, line| write_addr(r.remote(), line)),
        "remote_user" => Step::With(FieldId::Authorization, registry.find(name)),
        "request" => Step::RequestLine(registry.find(name)),
        _ => match name.strip_prefix("http_").map(field) {
            None | Some(FieldId::Other) => Step::Var(registry.used(name, span)),
            Some(field) => Step::Field(field),
        },
    }
}

/// The id of the field that `$http_NAME` stands for.
fn field(name: &str) -> FieldId {
    FieldId::of(name.replace('_', "-").as_bytes())
}

/// `ngx_http_log_status`: at least three digits; 009 is an HTTP/0.9 response without a status.
fn write_status(r: &Request, line: &mut Vec<u8>) {
    let status = match (r.error_status, r.response.status, r.version()) {
        (0, 0, Version::Http09) => 9,
        (0, status, _) => status,
        (status, _, _) => status,
    };
    if status < 100 {
        line.extend_from_slice(if status < 10 { b"00" } else { b"0" });
    }
    write_decimal(line, u64::from(status));
}

/// Milliseconds as seconds with three decimals.
fn write_seconds(ms: u64, line: &mut Vec<u8>) {
    write_decimal(line, ms / 1000);
    let ms = (ms % 1000) as u32;
    let digit = |n: u32| b'0' + (n % 10) as u8;
    line.extend_from_slice(&[b'.', digit(ms / 100), digit(ms / 10), digit(ms)]);
}

fn write_addr(peer: &Peer, line: &mut Vec<u8>) {
    match peer {
        Peer::Unix => line.extend_from_slice(b"unix:"),
        Peer::Inet(addr) => match addr.ip() {
            IpAddr::V4(ip) => {
                for (i, octet) in ip.octets().into_iter().enumerate() {
                    if i > 0 {
                        line.push(b'.');
                    }
                    write_decimal(line, u64::from(octet));
                }
            }
            IpAddr::V6(ip) => {
                // Writing to a vector cannot fail.
                let _ = write!(line, "{ip}");
            }
        },
    }
}
