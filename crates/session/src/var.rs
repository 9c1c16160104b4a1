//! Variables and templates (`$remote_addr`, `"$host:$server_port"`), the same for HTTP and stream.
//!
//! A variable is looked up by name once, while the configuration loads, and by number ever after.
//! Values that cost something, or that must not change during a request (`map`, `geo`, `set`), live
//! in the scope's [`Store`]; all others are written straight into the caller's buffer.
//! Answers nginx's `ngx_http_variables.c` and `ngx_http_script.c`.
//!
//! Invariant: no variable is defined here, only the means; each module brings its own.

use std::{
    cell::{Cell, Ref, RefCell},
    collections::HashMap,
    rc::Rc,
    sync::Arc,
};

use forebay_conf::{Error, Span};

/// What a variable is read from: an HTTP request, a stream session.
pub trait Scope: Sized + 'static {
    /// The registry of the configuration that this scope runs under.
    fn registry(&self) -> &Registry<Self>;
    /// The values that this scope keeps.
    fn store(&self) -> &Store;
    /// Is told the name of a variable that depends on itself.
    fn cycle(&self, _name: &str) {}
}

/// The number of a variable within one configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VarId(u32);

/// Writes a variable's value at the end of the buffer; `false` (nothing written): not found.
pub type Read<S> = fn(&S, &mut Vec<u8>) -> bool;
/// The same for a family such as `$http_NAME`; the second argument is the part after the prefix.
pub type ReadPrefixed<S> = fn(&S, &[u8], &mut Vec<u8>) -> bool;
/// Changes what a built-in variable stands for (`set $args …`).
pub type Assign<S> = fn(&mut S, &[u8]);
/// A value computed by configuration: `map`, `geo`, `split_clients`.
pub type Compute<S> = Arc<dyn Fn(&S, &mut Vec<u8>) -> bool + Send + Sync>;
/// Is told the name of a variable that is read before anything was kept under it.
pub type Uninitialized<S> = fn(&S, &str);

enum Source<S> {
    /// Mentioned, not defined yet: `map` may stand below its first use.
    Unknown,
    Read {
        read: Read<S>,
        assign: Option<Assign<S>>,
    },
    /// A built-in whose value, once read, holds for the rest of the request: one that nginx does not mark
    /// with `NGX_HTTP_VAR_NOCACHEABLE`, though it may change.
    Kept(Read<S>),
    /// The same of its absence alone.
    KeptIfAbsent(Read<S>),
    /// A built-in to which `set` may have given another value, which wins.
    Overlaid(Read<S>),
    Prefixed {
        read: ReadPrefixed<S>,
        suffix: Box<[u8]>,
        /// As [`Source::Kept`].
        kept: bool,
        /// Whether `set` may have given it a value, which wins.
        settable: bool,
    },
    Computed {
        compute: Compute<S>,
        volatile: bool,
    },
    /// `set` and named captures: whatever the store holds.
    Stored {
        /// `set`: reading it before it is set is worth a word.
        warn: Option<Uninitialized<S>>,
    },
}

struct Def<S> {
    name: Box<str>,
    source: Source<S>,
    first_use: Option<Span>,
    /// A built-in that the configuration may define anew (`NGX_HTTP_VAR_CHANGEABLE`).
    replaceable: bool,
}

/// All variables of one configuration.
pub struct Registry<S: 'static> {
    defs: Vec<Def<S>>,
    by_name: HashMap<Box<str>, VarId>,
    prefixes: Vec<Family<S>>,
}

struct Family<S> {
    prefix: &'static str,
    read: ReadPrefixed<S>,
    kept: bool,
}

impl<S> Default for Registry<S> {
    fn default() -> Self {
        Registry { defs: Vec::new(), by_name: HashMap::new(), prefixes: Vec::new() }
    }
}

impl<S: Scope> Registry<S> {
    /// Declares a built-in variable, without the `$`.
    pub fn builtin(&mut self, name: &'static str, read: Read<S>) {
        let id = self.intern(name);
        self.def(id).source = Source::Read { read, assign: None };
    }

    /// Declares a built-in variable that is read once a request and then kept (`$request_id`).
    pub fn kept(&mut self, name: &'static str, read: Read<S>) {
        let id = self.intern(name);
        self.def(id).source = Source::Kept(read);
    }

    /// Declares a built-in variable that is never there once it was not (`$request_body`).
    pub fn kept_if_absent(&mut self, name: &'static str, read: Read<S>) {
        let id = self.intern(name);
        self.def(id).source = Source::KeptIfAbsent(read);
    }

    /// Declares a built-in variable that `set` may change (`$args`, `$limit_rate`).
    pub fn assignable(&mut self, name: &'static str, read: Read<S>, assign: Assign<S>) {
        let id = self.intern(name);
        self.def(id).source = Source::Read { read, assign: Some(assign) };
    }

    /// Lets the configuration define built-ins anew, of those declared so far (`$msie`, `$proxy_host`).
    pub fn replaceable(&mut self, which: impl Fn(&str) -> bool) {
        self.defs.iter_mut().filter(|def| which(&def.name)).for_each(|def| def.replaceable = true);
    }

    /// Declares a family: every name that begins with `prefix` (`http_`, `arg_`).
    pub fn prefixed(&mut self, prefix: &'static str, read: ReadPrefixed<S>) {
        self.prefixes.push(Family { prefix, read, kept: false });
    }

    /// Declares a family whose variables are read once a request and then kept (`sent_http_`).
    pub fn kept_prefixed(&mut self, prefix: &'static str, read: ReadPrefixed<S>) {
        self.prefixes.push(Family { prefix, read, kept: true });
    }

    /// The family that a name belongs to, and what is behind the prefix.
    fn family<'n>(&self, name: &'n str) -> Option<(&Family<S>, &'n [u8])> {
        let matching = self.prefixes.iter().filter(|family| name.starts_with(family.prefix));
        let family = matching.max_by_key(|family| family.prefix.len())?;
        Some((family, &name.as_bytes()[family.prefix.len()..]))
    }

    /// Defines a computed variable; a volatile one is computed anew at each use.
    ///
    /// Errors: nginx's `the duplicate "x" variable` when the name is a built-in's.
    pub fn computed(
        &mut self,
        name: &str,
        span: Span,
        volatile: bool,
        compute: Compute<S>,
    ) -> Result<VarId, Error> {
        let id = self.changeable(name, span)?;
        self.def(id).source = Source::Computed { compute, volatile };
        Ok(id)
    }

    /// Defines a variable that the store alone holds (`(?<x>…)`), or finds the one there is.
    ///
    /// Errors: nginx's `the duplicate "x" variable` when the name is a built-in's that cannot be set.
    pub fn stored(&mut self, name: &str, span: Span) -> Result<VarId, Error> {
        let id = self.settable(name, span, None)?;
        // A group that did not match is empty, not forgotten: nginx replaces the handler too.
        if let Source::Stored { warn } = &mut self.def(id).source {
            *warn = None;
        }
        Ok(id)
    }

    /// Defines a variable that `set` fills, or finds the one there is; `warn` is told when it is
    /// read before.
    ///
    /// Errors: nginx's `the duplicate "x" variable` when the name is a built-in's that cannot be set.
    pub fn settable(
        &mut self,
        name: &str,
        span: Span,
        warn: Option<Uninitialized<S>>,
    ) -> Result<VarId, Error> {
        let id = self.changeable(name, span)?;
        match &mut self.def(id).source {
            source @ Source::Unknown => *source = Source::Stored { warn },
            Source::Prefixed { settable, .. } => *settable = true,
            Source::Read { read, assign: None } => {
                let read = *read;
                self.def(id).source = Source::Overlaid(read);
            }
            _ => {}
        }
        Ok(id)
    }

    fn changeable(&mut self, name: &str, span: Span) -> Result<VarId, Error> {
        let id = self.lookup(name);
        let def = &self.defs[id.0 as usize];
        match def.source {
            Source::Read { assign: None, .. } | Source::Kept(_) | Source::KeptIfAbsent(_)
                if !def.replaceable =>
            {
                Err(Error::emerg(span, format!("the duplicate \"{name}\" variable")))
            }
            _ => Ok(id),
        }
    }

    /// Whether the configuration names a variable anywhere.
    pub fn is_used(&self, name: &str) -> bool {
        let id = self.by_name.get(name);
        id.is_some_and(|id| self.defs[id.0 as usize].first_use.is_some())
    }

    /// The number of a variable that is used at `span`, which need not be defined yet.
    pub fn used(&mut self, name: &str, span: Span) -> VarId {
        let id = self.lookup(name);
        self.def(id).first_use.get_or_insert(span);
        id
    }

    fn lookup(&mut self, name: &str) -> VarId {
        // Names of variables are the same in any case (`ngx_http_get_variable_index`).
        let name = &*name.to_ascii_lowercase();
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let source = self.family(name).map(|(&Family { read, kept, .. }, suffix)| {
            Source::Prefixed { read, suffix: suffix.into(), kept, settable: false }
        });
        let id = self.intern(name);
        if let Some(source) = source {
            self.def(id).source = source;
        }
        id
    }

    fn intern(&mut self, name: &str) -> VarId {
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let id = VarId(u32::try_from(self.defs.len()).expect("fewer than 2^32 variables"));
        self.defs.push(Def {
            name: name.into(),
            source: Source::Unknown,
            first_use: None,
            replaceable: false,
        });
        self.by_name.insert(name.into(), id);
        id
    }

    fn def(&mut self, id: VarId) -> &mut Def<S> {
        &mut self.defs[id.0 as usize]
    }

    /// The errors of the variables that were used and never defined: `unknown "x" variable`.
    pub fn undefined(&self) -> Vec<Error> {
        let unknown = self.defs.iter().filter(|def| matches!(def.source, Source::Unknown));
        unknown
            .filter_map(|def| {
                let span = def.first_use?;
                Some(Error::emerg(span, format!("unknown \"{}\" variable", def.name)))
            })
            .collect()
    }

    /// A variable's name, without the `$`.
    pub fn name(&self, id: VarId) -> &str {
        &self.defs[id.0 as usize].name
    }

    /// The variable of that name, if the configuration mentions or defines it.
    pub fn find(&self, name: &str) -> Option<VarId> {
        self.by_name.get(&*name.to_ascii_lowercase()).copied()
    }

    /// How many variables there are.
    pub fn len(&self) -> usize {
        self.defs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.defs.is_empty()
    }
}

/// Writes the value of a variable at the end of `out`; `false`: not found, nothing written.
pub fn read<S: Scope>(scope: &S, id: VarId, out: &mut Vec<u8>) -> bool {
    let def = &scope.registry().defs[id.0 as usize];
    match &def.source {
        Source::Read { read, .. } => read(scope, out),
        Source::Prefixed { read, suffix, kept: true, .. } => {
            keep_first(scope, id, out, |out| read(scope, suffix, out))
        }
        Source::Prefixed { read, suffix, settable, .. } => match settable {
            true if matches!(scope.store().copy(id, out), Kept::Found) => true,
            _ => read(scope, suffix, out),
        },
        Source::Overlaid(read) => {
            matches!(scope.store().copy(id, out), Kept::Found) || read(scope, out)
        }
        Source::Unknown => false,
        Source::Stored { warn } => match (scope.store().copy(id, out), warn) {
            (Kept::Found, _) => true,
            (Kept::Unset, Some(warn)) => {
                warn(scope, &def.name);
                // Empty from now on, and said once.
                scope.store().keep(id, Some(b""));
                true
            }
            _ => false,
        },
        Source::Computed { compute, volatile: true } => {
            compute_deeper(scope, &def.name, out, compute)
        }
        Source::Computed { compute, volatile: false } => {
            keep_first(scope, id, out, |out| compute_deeper(scope, &def.name, out, compute))
        }
        Source::Kept(read) => keep_first(scope, id, out, |out| read(scope, out)),
        Source::KeptIfAbsent(read) => {
            if scope.store().is_absent(id) {
                return false;
            }
            let found = read(scope, out);
            if !found {
                scope.store().keep(id, None);
            }
            found
        }
    }
}

/// Computes a value that may need other computed values, and those further ones; a variable that
/// depends on itself is not found (`ngx_http_get_indexed_variable`).
fn compute_deeper<S: Scope>(
    scope: &S,
    name: &str,
    out: &mut Vec<u8>,
    compute: &Compute<S>,
) -> bool {
    let depth = &scope.store().depth;
    if depth.get() == MAX_DEPTH {
        scope.cycle(name);
        return false;
    }
    depth.set(depth.get() + 1);
    let found = compute(scope, out);
    depth.set(depth.get() - 1);
    found
}

/// The same by a name that nobody knew before (SSI): variables that the configuration mentions, the
/// built-in ones, and the families.
pub fn read_named<S: Scope>(scope: &S, name: &str, out: &mut Vec<u8>) -> bool {
    let registry = scope.registry();
    if let Some(id) = registry.find(name) {
        return read(scope, id, out);
    }
    let name = &*name.to_ascii_lowercase();
    registry.family(name).is_some_and(|(family, suffix)| (family.read)(scope, suffix, out))
}

/// Reads what is kept, or computes and keeps it.
fn keep_first<S: Scope>(
    scope: &S,
    id: VarId,
    out: &mut Vec<u8>,
    compute: impl FnOnce(&mut Vec<u8>) -> bool,
) -> bool {
    match scope.store().copy(id, out) {
        Kept::Found => true,
        Kept::Absent => false,
        Kept::Unset => {
            let start = out.len();
            let found = compute(out);
            scope.store().keep(id, found.then(|| &out[start..]));
            found
        }
    }
}

/// Gives a variable a value, as `set` and named captures do.
pub fn assign<S: Scope>(scope: &mut S, id: VarId, value: &[u8]) {
    let assign = match scope.registry().defs[id.0 as usize].source {
        Source::Read { assign, .. } => assign,
        _ => None,
    };
    match assign {
        Some(assign) => assign(scope, value),
        None => scope.store().keep(id, Some(value)),
    }
}

/// How deep computed variables may depend on each other (nginx's `ngx_http_variable_depth`).
const MAX_DEPTH: u8 = 100;

#[derive(Clone, Copy, Default, PartialEq)]
enum Slot {
    #[default]
    Unset,
    Absent,
    At(u32, u32),
}

enum Kept {
    Unset,
    Absent,
    Found,
}

/// The values that one scope keeps, and the captures of its last regular expression.
/// Its memory is kept when it is cleared, so a warm scope allocates nothing.
#[derive(Default)]
pub struct Store {
    /// Shared with subrequests.
    inner: Rc<RefCell<Values>>,
    captures: RefCell<Captures>,
    /// How many computed variables are being read, each for the next.
    depth: Cell<u8>,
}

#[derive(Default)]
struct Values {
    slots: Vec<Slot>,
    bytes: Vec<u8>,
}

/// `$1` to `$9` and the text that they were found in.
#[derive(Default, Clone)]
pub struct Captures {
    subject: Vec<u8>,
    spans: Vec<Option<(u32, u32)>>,
}

impl Captures {
    /// Replaces what was captured; group 0 is the whole match.
    pub fn set(&mut self, subject: &[u8], groups: impl Iterator<Item = Option<(usize, usize)>>) {
        self.subject.clear();
        self.subject.extend_from_slice(subject);
        self.spans.clear();
        self.spans.extend(groups.map(|group| group.map(|(a, b)| (a as u32, b as u32))));
    }

    /// The text of group `n`, if it took part in the match.
    pub fn group(&self, n: usize) -> Option<&[u8]> {
        let (start, end) = self.spans.get(n).copied().flatten()?;
        self.subject.get(start as usize..end as usize)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.subject.clear();
        self.spans.clear();
    }
}

impl Store {
    /// Makes it ready for a new scope. Room for values is made when there are some.
    pub fn reset(&mut self) {
        match Rc::get_mut(&mut self.inner) {
            Some(values) => {
                let values = values.get_mut();
                values.bytes.clear();
                values.slots.clear();
            }
            // A subrequest still holds it.
            None => self.inner = Rc::default(),
        }
        self.captures.get_mut().clear();
        // A handler that panicked may have left it.
        self.depth.set(0);
    }

    /// A store for a subrequest: it has all values in common with this one, now and later, and captures
    /// of its own (`ngx_http_subrequest`).
    pub fn share(&self) -> Store {
        Store { inner: self.inner.clone(), ..Store::default() }
    }

    fn copy(&self, id: VarId, out: &mut Vec<u8>) -> Kept {
        let values = self.inner.borrow();
        match values.slots.get(id.0 as usize).copied().unwrap_or_default() {
            Slot::Unset => Kept::Unset,
            Slot::Absent => Kept::Absent,
            Slot::At(start, end) => {
                out.extend_from_slice(&values.bytes[start as usize..end as usize]);
                Kept::Found
            }
        }
    }

    fn is_absent(&self, id: VarId) -> bool {
        self.inner.borrow().slots.get(id.0 as usize) == Some(&Slot::Absent)
    }

    /// Keeps a value, or the knowledge that there is none.
    pub fn keep(&self, id: VarId, value: Option<&[u8]>) {
        let mut values = self.inner.borrow_mut();
        let index = id.0 as usize;
        if values.slots.len() <= index {
            values.slots.resize(index + 1, Slot::Unset);
        }
        values.slots[index] = match value {
            None => Slot::Absent,
            Some(value) => {
                let start = values.bytes.len();
                values.bytes.extend_from_slice(value);
                Slot::At(start as u32, values.bytes.len() as u32)
            }
        };
    }

    /// The captures of the last match, to read.
    pub fn captures(&self) -> Ref<'_, Captures> {
        self.captures.borrow()
    }

    /// The captures, to replace.
    pub fn captures_mut(&self) -> std::cell::RefMut<'_, Captures> {
        self.captures.borrow_mut()
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(Box<[u8]>),
    Var(VarId),
    Capture(u8),
}

/// A parameter with variables in it, compiled (nginx's "complex value").
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    parts: Box<[Part]>,
}

impl Template {
    /// A template that is just this text.
    pub fn text(text: &[u8]) -> Template {
        Template { parts: Box::new([Part::Text(text.into())]) }
    }

    /// Compiles `$name`, `${name}` and `$1`…`$9`.
    ///
    /// Errors: nginx's `invalid variable name` and
    /// `the closing bracket in "x" variable is missing`.
    pub fn parse<S: Scope>(
        source: &[u8],
        span: Span,
        registry: &mut Registry<S>,
    ) -> Result<Template, Error> {
        let mut parts = Vec::new();
        let mut rest = source;
        while let Some(at) = memchr::memchr(b'$', rest) {
            if at > 0 {
                parts.push(Part::Text(rest[..at].into()));
            }
            let (part, after) = Self::variable(&rest[at + 1..], span, registry)?;
            parts.push(part);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Template { parts: parts.into() })
    }

    fn variable<'a, S: Scope>(
        rest: &'a [u8],
        span: Span,
        registry: &mut Registry<S>,
    ) -> Result<(Part, &'a [u8]), Error> {
        if let Some(digit @ b'1'..=b'9') = rest.first() {
            return Ok((Part::Capture(digit - b'0'), &rest[1..]));
        }
        let braced = rest.first() == Some(&b'{');
        let body = if braced { &rest[1..] } else { rest };
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
        let len = body.iter().take_while(|b| is_name(b)).count();
        let name = std::str::from_utf8(&body[..len]).unwrap_or_default();
        let mut after = &body[len..];
        if braced && rest.len() > 1 {
            if after.first() != Some(&b'}') {
                let text = format!("the closing bracket in \"{name}\" variable is missing");
                return Err(Error::emerg(span, text));
            }
            after = &after[1..];
        }
        if len == 0 {
            return Err(Error::emerg(span, "invalid variable name".to_owned()));
        }
        Ok((Part::Var(registry.used(name, span)), after))
    }

    /// Writes the value at the end of `out`; what is not found is empty.
    pub fn write<S: Scope>(&self, scope: &S, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Var(id) => {
                    read(scope, *id, out);
                }
                // DIFFERS(captures-in-turn): nginx copies all captures once it knows how long each part is, by
                // when a map may have replaced them.
                Part::Capture(n) => {
                    let captures = scope.store().captures();
                    out.extend_from_slice(captures.group(usize::from(*n)).unwrap_or_default());
                }
            }
        }
    }

    /// The value as a new vector.
    pub fn value<S: Scope>(&self, scope: &S) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(scope, &mut out);
        out
    }

    /// The text, if it holds no variable.
    pub fn as_text(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(b""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether positional captures (`$1`) are used.
    pub fn uses_captures(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Capture(_)))
    }

    /// The variable, if the template is just one (`if=$loggable`, `access_log $path`).
    pub fn as_variable(&self) -> Option<VarId> {
        match &*self.parts {
            [Part::Var(id)] => Some(*id),
            _ => None,
        }
    }

    /// The parts one by one: what a log format escapes and what it does not.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.parts.iter().map(|part| match part {
            Part::Text(text) => Piece::Text(text),
            Part::Var(id) => Piece::Var(*id),
            Part::Capture(n) => Piece::Capture(*n),
        })
    }
}

/// A part of a [`Template`], to look at.
pub enum Piece<'a> {
    /// Plain text.
    Text(&'a [u8]),
    /// A variable.
    Var(VarId),
    /// `$1` to `$9`.
    Capture(u8),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Text;

    fn compute(value: &'static str) -> Compute<Text> {
        Arc::new(move |scope, out| {
            if let Some(id) = scope.registry.find(value) {
                return read(scope, id, out);
            }
            out.extend_from_slice(value.as_bytes());
            true
        })
    }

    #[test]
    fn names_are_the_same_in_any_case() {
        let mut scope = Text::new();
        let template = scope.template("$TEXT ${Text} $PRE_A");
        assert_eq!(scope.value(&template, "a"), "a a a");
        assert!(scope.registry.find("tExT").is_some());
    }

    #[test]
    fn what_nobody_defines_is_told_in_lower_case() {
        let mut scope = Text::new();
        scope.template("$No $no $text");
        let messages: Vec<_> = scope.registry.undefined().into_iter().map(|e| e.message).collect();
        assert_eq!(messages, ["unknown \"no\" variable"]);
    }

    #[test]
    fn a_variable_not_set_yet_is_empty_and_told_once() {
        let mut scope = Text::new();
        let warn: Uninitialized<Text> = |s, name| s.said.borrow_mut().push(name.to_owned());
        let id = scope.registry.settable("x", Span::default(), Some(warn)).unwrap();
        let template = scope.template("[$x$x]");
        assert_eq!(scope.value(&template, ""), "[]");
        assert_eq!(*scope.said.borrow(), ["x"]);
        scope.set(id, "1");
        assert_eq!(String::from_utf8(template.value(&scope)).unwrap(), "[11]");
    }

    #[test]
    fn a_capture_that_is_not_there_is_no_reason_to_warn() {
        let mut scope = Text::new();
        let warn: Uninitialized<Text> = |s, name| s.said.borrow_mut().push(name.to_owned());
        scope.registry.settable("x", Span::default(), Some(warn)).unwrap();
        scope.registry.stored("x", Span::default()).unwrap();
        let template = scope.template("[$x]");
        assert_eq!(scope.value(&template, ""), "[]");
        assert!(scope.said.borrow().is_empty());
    }

    #[test]
    fn a_member_of_a_family_may_be_set() {
        let mut scope = Text::new();
        let id = scope.registry.settable("pre_a", Span::default(), None).unwrap();
        let template = scope.template("$pre_a $pre_b");
        assert_eq!(scope.value(&template, ""), "a b");
        scope.set(id, "set");
        assert_eq!(String::from_utf8(template.value(&scope)).unwrap(), "set b");
    }

    #[test]
    fn built_in_variables_cannot_be_defined_again() {
        let mut scope = Text::new();
        scope.registry.kept("id", |_, _| true);
        for name in ["text", "TEXT", "id"] {
            let error = scope.registry.settable(name, Span::default(), None).unwrap_err();
            assert!(error.message.starts_with("the duplicate \""), "{}", error.message);
            assert!(scope.registry.computed(name, Span::default(), false, compute("")).is_err());
        }
    }

    #[test]
    fn some_built_in_variables_may_be_set_or_defined_again() {
        let mut scope = Text::new();
        scope.registry.builtin("free", |_, out| {
            out.extend_from_slice(b"built in");
            true
        });
        scope.registry.replaceable(|name| name == "free");
        let id = scope.registry.settable("free", Span::default(), None).unwrap();
        let template = scope.template("$free");
        assert_eq!(scope.value(&template, ""), "built in");
        scope.set(id, "set");
        assert_eq!(String::from_utf8(template.value(&scope)).unwrap(), "set");
        scope.registry.computed("free", Span::default(), true, compute("anew")).unwrap();
        assert_eq!(scope.value(&template, ""), "anew");
    }

    #[test]
    fn a_kept_variable_is_read_once() {
        let mut scope = Text::new();
        scope.registry.kept("id", |scope, out| {
            out.extend_from_slice(&scope.text);
            true
        });
        let template = scope.template("$id");
        assert_eq!(scope.value(&template, "a"), "a");
        scope.text = b"b".to_vec();
        assert_eq!(String::from_utf8(template.value(&scope)).unwrap(), "a");
    }

    #[test]
    fn a_variable_that_depends_on_itself_is_not_found() {
        for volatile in [false, true] {
            let mut scope = Text::new();
            let registry = &mut scope.registry;
            registry.computed("a", Span::default(), volatile, compute("b")).unwrap();
            registry.computed("b", Span::default(), volatile, compute("a")).unwrap();
            let template = scope.template("[$a]");
            assert_eq!(scope.value(&template, ""), "[]");
            assert_eq!(scope.said.borrow().len(), 1);
            assert_eq!(scope.value(&template, ""), "[]");
        }
    }
}
