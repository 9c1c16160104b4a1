//! Finds the [`Spec`] of a node over all tables, as nginx's `ngx_conf_handler` looks through all
//! modules, and words the errors for what is not found or stands in a wrong place.

use std::collections::HashMap;

use crate::directive::{Contexts, Spec, check, not_allowed};
use crate::error::Error;
use crate::parse::is_foreign;
use crate::suggest;
use crate::tree::Node;

/// All directives that are known, by name. One name may have several, in different contexts.
#[derive(Clone, Debug, Default)]
pub struct Index {
    by_name: HashMap<&'static str, Vec<Spec>>,
}

impl Index {
    /// An index of all tables' directives.
    pub fn new<'a>(specs: impl IntoIterator<Item = &'a Spec>) -> Index {
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for spec in specs {
            by_name.entry(spec.name).or_default().push(*spec);
        }
        Index { by_name }
    }

    /// What a node is in `context`, if it is known there and rightly formed.
    pub fn resolve(&self, node: &Node, context: Contexts) -> Result<&Spec, Error> {
        let Some(specs) = self.by_name.get(node.name()) else {
            return Err(self.unknown(node, context));
        };
        let Some(spec) = specs.iter().find(|s| s.contexts.has(context)) else {
            let all = specs.iter().fold(Contexts::NONE, |all, s| all.or(s.contexts));
            return Err(not_allowed(node, all));
        };
        check(spec, node, context)?;
        Ok(spec)
    }

    /// What a node that [`Index::resolve`] refuses was meant as, if it has a block and may be known by
    /// its name: what is in the block can be read then.
    pub fn refused_block(&self, node: &Node, context: Contexts) -> Option<&Spec> {
        let specs = self.by_name.get(node.name()).filter(|_| node.block.is_some())?;
        let mut blocks = specs.iter().filter(|spec| spec.arity.is_block());
        let here = blocks.clone().find(|spec| spec.contexts.has(context));
        here.or_else(|| blocks.next())
    }

    /// nginx's error for a name that is not known, with the best suggestion there is.
    pub fn unknown(&self, node: &Node, context: Contexts) -> Error {
        let name = node.name.lossy();
        let error = Error::emerg(node.span, format!("unknown directive \"{name}\""));
        match self.hint(node, context) {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    fn hint(&self, node: &Node, context: Contexts) -> Option<String> {
        let name = node.name();
        if node.name.after("\u{feff}").is_some() {
            return Some("the file starts with a byte order mark; save it without".into());
        }
        if is_foreign(node) || name.ends_with("_by_lua_file") || name.ends_with("_by_lua") {
            return Some("Lua is not part of nginx but of OpenResty; Forebay has none".into());
        }
        if let Some(hint) = suggest::known_to_nginx(name) {
            return Some(hint);
        }
        let here = self.names(|s| s.contexts.has(context));
        let near =
            suggest::nearest(name, here).or_else(|| suggest::nearest(name, self.names(|_| true)));
        if let Some(near) = near {
            return Some(format!("did you mean \"{near}\"?"));
        }
        let near = suggest::nearest_of_nginx(name)?;
        Some(format!("nginx has \"{near}\", which Forebay does not support yet"))
    }

    fn names(&self, wanted: impl Fn(&Spec) -> bool) -> impl Iterator<Item = &'static str> {
        self.by_name.iter().filter(move |(_, specs)| specs.iter().any(&wanted)).map(|(n, _)| *n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directive::Arity;
    use crate::error::Diagnostics;
    use crate::files::Memory;
    use crate::parse::{ParseOptions, parse_text};
    use crate::source::Sources;

    const fn spec(name: &'static str, contexts: Contexts, arity: Arity) -> Spec {
        Spec { name, syntax: &["x"], default: "", contexts, arity, doc: "" }
    }

    const SPECS: [Spec; 4] = [
        spec("server", Contexts::HTTP, Arity::BLOCK),
        spec("server", Contexts::UPSTREAM, Arity::at_least(1)),
        spec("root", Contexts::HTTP_SERVER_LOCATION, Arity::ONE),
        spec("worker_processes", Contexts::MAIN, Arity::ONE),
    ];

    fn resolve(text: &str, context: Contexts) -> (String, String) {
        let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
        let (mut files, opts) = (Memory::default(), ParseOptions::default());
        let nodes = parse_text("t", text.as_bytes(), &mut files, &opts, &mut sources, &mut diags);
        let index = Index::new(&SPECS);
        match index.resolve(&nodes[0], context) {
            Ok(spec) => ("ok".into(), spec.contexts.to_string()),
            Err(e) => (e.message, e.hint.unwrap_or_default()),
        }
    }

    #[test]
    fn a_name_is_found_by_its_context() {
        let ok = |contexts: &str| ("ok".to_owned(), contexts.to_owned());
        assert_eq!(resolve("server {}", Contexts::HTTP), ok("http"));
        assert_eq!(resolve("server a;", Contexts::UPSTREAM), ok("upstream"));
    }

    #[test]
    fn what_is_not_found_is_explained() {
        let no_lua = "Lua is not part of nginx but of OpenResty; Forebay has none";
        let grpc =
            "nginx has \"grpc_pass\" (ngx_http_grpc_module); Forebay does not support it yet";
        let cases: &[(&str, &str, &str)] = &[
            ("server a;", "\"server\" directive is not allowed here", "allowed in: http, upstream"),
            ("rooot a;", "unknown directive \"rooot\"", "did you mean \"root\"?"),
            (
                "worker_proceses 1;",
                "unknown directive \"worker_proceses\"",
                "did you mean \"worker_processes\"?",
            ),
            ("grpc_pass a;", "unknown directive \"grpc_pass\"", grpc),
            (
                "grpc_pas a;",
                "unknown directive \"grpc_pas\"",
                "nginx has \"grpc_pass\", which Forebay does not support yet",
            ),
            ("access_by_lua_block { x }", "unknown directive \"access_by_lua_block\"", no_lua),
            ("qqqqqqqqqq;", "unknown directive \"qqqqqqqqqq\"", ""),
            (
                "\u{feff}root a;",
                "unknown directive \"\u{feff}root\"",
                "the file starts with a byte order mark; save it without",
            ),
        ];
        for (text, message, hint) in cases {
            let got = resolve(text, Contexts::LOCATION);
            assert_eq!((got.0.as_str(), got.1.as_str()), (*message, *hint), "{text}");
        }
    }
}
