//! Holds `docs/directives.md` to the tables that it is made from.

use std::{fs, path::Path};

use forebay_conf::{Spec, reference};

fn generated() -> String {
    let core: Vec<Spec> = forebay_server::core::specs().copied().collect();
    let mut modules = vec![("ngx_core_module".to_owned(), core)];
    for module in forebay_http::modules::all() {
        let specs = module.specs().into_iter().copied().collect();
        modules.push((module.name().to_owned(), specs));
    }
    modules.retain(|(_, specs): &(String, Vec<Spec>)| !specs.is_empty());
    let docs: Vec<String> = modules.iter().map(|(name, _)| describe(name)).collect();
    let entries = modules.iter().zip(&docs);
    reference::markdown(entries.map(|((name, specs), doc)| (&name[..], &doc[..], &specs[..])))
}

fn describe(module: &str) -> String {
    format!(
        "Behaves as nginx's documentation of {module} says, but for [the differences](differences.md)."
    )
}

#[test]
fn the_directive_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/directives.md");
    let generated = generated();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == generated,
        "docs/directives.md is not what the tables say; write it anew with\n\
         UPDATE_DOCS=1 cargo test -p forebay-server --test reference"
    );
}
