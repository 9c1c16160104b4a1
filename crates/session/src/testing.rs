//! A scope for unit tests: variables of fixed text.
//!
//! Invariant: compiled for tests only.

use std::cell::RefCell;

use forebay_conf::{
    Diagnostics, Loader, Node, Sources,
    files::Memory,
    parse::{ParseOptions, parse_text},
};

use crate::var::{self, Registry, Scope, Store, Template};

/// A scope with `$text`, and what was said about it.
#[derive(Default)]
pub struct Text {
    pub registry: Registry<Text>,
    pub store: Store,
    pub text: Vec<u8>,
    pub said: RefCell<Vec<String>>,
}

impl Scope for Text {
    fn registry(&self) -> &Registry<Self> {
        &self.registry
    }

    fn store(&self) -> &Store {
        &self.store
    }

    fn cycle(&self, name: &str) {
        self.said.borrow_mut().push(format!("cycle {name}"));
    }
}

impl Text {
    /// A scope whose registry has the built-in `$text`.
    pub fn new() -> Text {
        let mut scope = Text::default();
        scope.registry.builtin("text", |scope, out| {
            out.extend_from_slice(&scope.text);
            true
        });
        scope.registry.prefixed("pre_", |_, name, out| {
            out.extend_from_slice(name);
            true
        });
        scope
    }

    /// The value of a template for a new text; what was kept for the last one is forgotten.
    pub fn value(&mut self, template: &Template, text: &str) -> String {
        self.store.reset();
        self.text = text.as_bytes().to_vec();
        String::from_utf8(template.value(self)).unwrap()
    }

    /// Compiles a template.
    pub fn template(&mut self, text: &str) -> Template {
        Template::parse(text.as_bytes(), Default::default(), &mut self.registry).unwrap()
    }

    /// Gives a variable a value, as `set` does.
    pub fn set(&mut self, id: var::VarId, value: &str) {
        var::assign(self, id, value.as_bytes());
    }
}

/// The directives of a configuration.
pub fn nodes(text: &str) -> Vec<Node> {
    let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
    let (mut files, options) = (Memory::default(), ParseOptions::default());
    let nodes = parse_text("t", text.as_bytes(), &mut files, &options, &mut sources, &mut diags);
    assert!(diags.is_empty(), "{text}: {diags:?}");
    nodes
}

/// What a loader of no files does; nothing may be wrong.
pub fn loading<T>(f: impl FnOnce(&mut Loader<'_>) -> T) -> T {
    let (mut files, mut sources, mut diags) =
        (Memory::default(), Sources::new(), Diagnostics::new());
    let mut loader = Loader {
        files: &mut files,
        sources: &mut sources,
        diags: &mut diags,
        prefix: "/".into(),
        conf_prefix: "/".into(),
    };
    let result = f(&mut loader);
    assert!(diags.is_empty(), "{diags:?}");
    result
}
