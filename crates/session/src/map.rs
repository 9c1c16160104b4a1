//! `map`: a variable whose value depends on that of others.
//!
//! Answers nginx's `ngx_http_map_module.c` and `ngx_stream_map_module.c`; the hashes are
//! `ngx_hash_keys_arrays_t`'s (`ngx_hash_add_key`).
//!
//! Invariant: a lookup takes time that does not depend on the number of strings.

use std::{collections::HashMap, sync::Arc};

use forebay_conf::{Arg, Diagnostics, Error, Node};

use crate::{
    regex::Regex,
    var::{Registry, Scope, Template, VarId},
};

/// A `map` block.
struct Map {
    source: Template,
    table: Table,
    patterns: Vec<Pattern>,
    default: Value,
    hostnames: bool,
}

/// A regular expression, the variables of its named groups, and what it maps to.
struct Pattern {
    regex: Regex,
    named: Vec<(usize, VarId)>,
    value: Value,
}

/// What a line maps to.
enum Value {
    Text(Box<[u8]>),
    Computed(Template),
}

/// The strings, in lower case.
#[derive(Default)]
struct Table {
    values: Vec<Value>,
    exact: HashMap<Box<[u8]>, u32>,
    /// `*.example.com` and `.example.com`, as `example.com`.
    suffixes: HashMap<Box<[u8]>, u32>,
    /// `www.example.*`, as `www.example`.
    prefixes: HashMap<Box<[u8]>, u32>,
}

/// Why a string is not taken.
enum Refused {
    Invalid,
    Conflict,
}

/// Reads `map source $variable { … }` and defines the variable. All bad lines go to `diags`.
///
/// Errors: nginx's `invalid variable name "x"` and those of templates and variables.
pub fn define<S: Scope>(
    node: &Node,
    registry: &mut Registry<S>,
    diags: &mut Diagnostics,
) -> Result<(), Error> {
    let mut reader = Reader {
        table: Table::default(),
        patterns: Vec::new(),
        default: None,
        hostnames: false,
        volatile: false,
    };
    for line in node.children() {
        if let Err(error) = reader.line(line, registry) {
            diags.push(error);
        }
    }
    // What is wrong with its own arguments does not hide what is wrong with its lines.
    let (source, variable) = (node.arg(0)?, node.arg(1)?);
    let source = diags.take(Template::parse(&source.value, source.span, registry));
    let name = variable.after("$").filter(|name| !name.is_empty());
    let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else {
        let text = format!("invalid variable name \"{}\"", variable.lossy());
        return Err(Error::emerg(variable.span, text));
    };
    // It is defined, too, if its source is wrong: those who use it are not to blame.
    let source = source.unwrap_or_default();
    let Reader { table, patterns, default, hostnames, volatile } = reader;
    let default = default.unwrap_or(Value::Text(Box::default()));
    let map = Map { source, table, patterns, default, hostnames };
    let compute = Arc::new(move |scope: &S, out: &mut Vec<u8>| map.compute(scope, out));
    registry.computed(name, variable.span, volatile, compute)?;
    Ok(())
}

/// A block while it is read.
struct Reader {
    table: Table,
    patterns: Vec<Pattern>,
    default: Option<Value>,
    hostnames: bool,
    volatile: bool,
}

impl Reader {
    fn line<S: Scope>(&mut self, line: &Node, registry: &mut Registry<S>) -> Result<(), Error> {
        forebay_conf::directive::check_entry(line)?;
        let key = &line.name;
        let value = match &line.args[..] {
            [] if key.is("hostnames") => {
                self.hostnames = true;
                return Ok(());
            }
            [] if key.is("volatile") => {
                self.volatile = true;
                return Ok(());
            }
            [value] => Value::parse(value, registry)?,
            _ => return Err(Error::emerg(line.span, "invalid number of the map parameters")),
        };
        if key.is("default") {
            if self.default.is_some() {
                return Err(Error::emerg(line.span, "duplicate default map parameter"));
            }
            self.default = Some(value);
            return Ok(());
        }
        match &*key.value {
            [b'~', b'*', pattern @ ..] => self.regex(pattern, true, value, key, registry),
            [b'~', pattern @ ..] => self.regex(pattern, false, value, key, registry),
            [b'\\', text @ ..] | text => self.string(text, value, key),
        }
    }

    fn regex<S: Scope>(
        &mut self,
        pattern: &[u8],
        caseless: bool,
        value: Value,
        key: &Arg,
        registry: &mut Registry<S>,
    ) -> Result<(), Error> {
        let regex = Regex::compile(pattern, caseless, key.span)?;
        let named = regex.bind(registry, key.span)?;
        self.patterns.push(Pattern { regex, named, value });
        Ok(())
    }

    fn string(&mut self, text: &[u8], value: Value, key: &Arg) -> Result<(), Error> {
        let text = text.to_ascii_lowercase();
        let shown = String::from_utf8_lossy(&text);
        self.table.add(&text, value, self.hostnames).map_err(|refused| {
            let cause = match refused {
                Refused::Invalid => "invalid hostname or wildcard",
                Refused::Conflict => "conflicting parameter",
            };
            Error::emerg(key.span, format!("{cause} \"{shown}\""))
        })
    }
}

impl Value {
    fn parse<S: Scope>(arg: &Arg, registry: &mut Registry<S>) -> Result<Value, Error> {
        let template = Template::parse(&arg.value, arg.span, registry)?;
        Ok(match template.as_text() {
            Some(text) => Value::Text(text.into()),
            None => Value::Computed(template),
        })
    }

    fn write<S: Scope>(&self, scope: &S, out: &mut Vec<u8>) {
        match self {
            Value::Text(text) => out.extend_from_slice(text),
            Value::Computed(template) => template.write(scope, out),
        }
    }
}

impl Table {
    fn add(&mut self, text: &[u8], value: Value, hostnames: bool) -> Result<(), Refused> {
        let n = u32::try_from(self.values.len()).map_err(|_| Refused::Invalid)?;
        match if hostnames { wildcard(text)? } else { Name::Exact } {
            Name::Exact => insert(&mut self.exact, text, n)?,
            Name::Both => {
                insert(&mut self.exact, &text[1..], n)?;
                insert(&mut self.suffixes, &text[1..], n)?;
            }
            Name::Suffix => insert(&mut self.suffixes, &text[2..], n)?,
            Name::Prefix => insert(&mut self.prefixes, &text[..text.len() - 2], n)?,
        }
        self.values.push(value);
        Ok(())
    }

    /// The value of a text in lower case: the exact one, then the longest wildcard.
    fn find(&self, text: &[u8]) -> Option<&Value> {
        let n = self.exact.get(text).or_else(|| {
            let mut dots = memchr::memchr_iter(b'.', text);
            dots.find_map(|at| self.suffixes.get(&text[at + 1..]))
        });
        let n = n.or_else(|| {
            let mut dots = memchr::memrchr_iter(b'.', text);
            dots.find_map(|at| self.prefixes.get(&text[..at]))
        });
        self.values.get(*n? as usize)
    }
}

fn insert(table: &mut HashMap<Box<[u8]>, u32>, key: &[u8], n: u32) -> Result<(), Refused> {
    match table.insert(key.into(), n) {
        None => Ok(()),
        Some(_) => Err(Refused::Conflict),
    }
}

/// What kind of name a string is where `hostnames` holds.
enum Name {
    Exact,
    /// `.example.com`: this and what ends with it.
    Both,
    /// `*.example.com`.
    Suffix,
    /// `www.example.*`.
    Prefix,
}

fn wildcard(text: &[u8]) -> Result<Name, Refused> {
    let stars = memchr::memchr_iter(b'*', text).count();
    if stars > 1 || text.windows(2).any(|pair| pair == b"..") || text.contains(&0) {
        return Err(Refused::Invalid);
    }
    match text {
        [b'.', _, ..] => Ok(Name::Both),
        [b'*', b'.', _, ..] => Ok(Name::Suffix),
        [_, .., b'.', b'*'] => Ok(Name::Prefix),
        _ if stars > 0 => Err(Refused::Invalid),
        _ => Ok(Name::Exact),
    }
}

impl Map {
    /// Writes the value for the scope; there always is one (`ngx_http_map_variable`).
    fn compute<S: Scope>(&self, scope: &S, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        self.source.write(scope, out);
        if self.hostnames && out[start..].last() == Some(&b'.') {
            out.pop();
        }
        let end = out.len();
        // The same text in lower case, behind it: no memory of its own is needed.
        out.extend_from_within(start..end);
        out[end..].make_ascii_lowercase();
        let value = self.table.find(&out[end..]).or_else(|| self.matching(scope, &out[start..end]));
        out.truncate(start);
        value.unwrap_or(&self.default).write(scope, out);
        true
    }

    fn matching<S: Scope>(&self, scope: &S, text: &[u8]) -> Option<&Value> {
        // nginx does not ask regular expressions about the empty string.
        let patterns = self.patterns.iter().filter(|_| !text.is_empty());
        // One that cannot read the text ends the search: the value is the default (`ngx_http_regex_exec`).
        let mut readable = patterns.take_while(|pattern| pattern.regex.reads(text));
        let found = readable.find(|pattern| pattern.regex.run(scope, text, &pattern.named));
        found.map(|pattern| &pattern.value)
    }
}

#[cfg(test)]
mod tests;
