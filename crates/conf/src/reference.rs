//! The directive reference as Markdown, made from the tables, so that it cannot be out of date.

use std::fmt::Write as _;

use crate::directive::Spec;

/// A module's part of the reference: its name, what it is for, its directives.
pub type Module<'a> = (&'a str, &'a str, &'a [Spec]);

/// A list of all directives by name, then each module with its directives in the order of its table.
pub fn markdown<'a>(modules: impl IntoIterator<Item = Module<'a>>) -> String {
    let modules: Vec<Module<'a>> = modules.into_iter().collect();
    let mut out = String::from("# Directives\n\n");
    let mut names: Vec<(&str, &str)> = Vec::new();
    for (module, _, specs) in &modules {
        names.extend(specs.iter().map(|s| (s.name, *module)));
    }
    names.sort_unstable();
    for (name, module) in names {
        let _ = writeln!(out, "- [`{name}`](#{}) ({module})", anchor(module, name));
    }
    for (module, doc, specs) in modules {
        let _ = write!(out, "\n## {module}\n\n{}\n", doc.trim());
        specs.iter().for_each(|spec| entry(&mut out, module, spec));
    }
    out
}

fn entry(out: &mut String, module: &str, spec: &Spec) {
    let _ = write!(out, "\n### <a id=\"{}\"></a>`{}`\n\n", anchor(module, spec.name), spec.name);
    let _ = write!(out, "| | |\n|---|---|\n| Syntax | ");
    let forms: Vec<_> = spec.usage().iter().map(|u| code(u)).collect();
    let _ = writeln!(out, "{} |", forms.join("<br>"));
    let default = match spec.default {
        "" => "—".to_owned(),
        text => code(&format!("{} {text};", spec.name)),
    };
    let _ = writeln!(out, "| Default | {default} |\n| Context | {} |", spec.contexts);
    let _ = writeln!(out, "\n{}", spec.doc.trim());
}

/// Code within a table's cell, where a bar would end the cell.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

fn anchor(module: &str, name: &str) -> String {
    format!("{module}-{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directive::{Arity, Contexts};

    #[test]
    fn a_module_is_written_with_its_directives() {
        let specs = [Spec {
            name: "sendfile",
            syntax: &["on | off"],
            default: "off",
            contexts: Contexts::HTTP_SERVER_LOCATION,
            arity: Arity::FLAG,
            doc: "Sends files without copying.",
        }];
        let want = "# Directives\n\n- [`sendfile`](#core-sendfile) (core)\n\n## core\n\nThe core.\n\n\
                    ### <a id=\"core-sendfile\"></a>`sendfile`\n\n| | |\n|---|---|\n\
                    | Syntax | `sendfile on \\| off;` |\n| Default | `sendfile off;` |\n\
                    | Context | http, server, location |\n\nSends files without copying.\n";
        assert_eq!(markdown([("core", "The core.", &specs[..])]), want);
    }
}
