//! Every case of `tests/cases` against Forebay and against nginx. `tests/README.md` describes the
//! format; arguments are parts of paths that choose cases:
//! `cargo test -p forebay-server --test differential -- h1/`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Programs that list tests before they run them ask for it this way.
    if arguments.iter().any(|argument| argument == "--list") {
        println!("differential: test");
        return ExitCode::SUCCESS;
    }
    let filters: Vec<String> =
        arguments.into_iter().filter(|argument| !argument.starts_with('-')).collect();
    forebay_testkit::run::run_all(&cases, Path::new(env!("CARGO_BIN_EXE_forebay")), &filters)
}
