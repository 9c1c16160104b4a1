//! `forebay fmt`: formats configuration files in place, or says which are not formatted.

use std::fs;
use std::io::Write;
use std::path::Path;

use forebay_conf::source::Origin;
use forebay_conf::{Error, Sources};

/// Formats files; answers the exit code: 1 if any could not be formatted, or with `check` would
/// change.
pub fn run(files: &[std::path::PathBuf], check: bool) -> i32 {
    let mut code = 0;
    for path in files {
        match formatted(path) {
            Ok(Formatted::Same) => {}
            Ok(Formatted::Changed(_)) if check => {
                println!("{}", path.display());
                code = 1;
            }
            Ok(Formatted::Changed(text)) => {
                if let Err(err) = replace(path, &text) {
                    let cause = forebay_conf::error::errno_text(&err);
                    eprintln!("nginx: [emerg] \"{}\" not written ({cause})", path.display());
                    code = 1;
                }
            }
            Err(shown) => {
                eprint!("{shown}");
                code = 1;
            }
        }
    }
    code
}

enum Formatted {
    Same,
    Changed(Vec<u8>),
}

/// The new text, or the error as it is to be shown.
fn formatted(path: &Path) -> Result<Formatted, String> {
    let mut sources = Sources::new();
    let shown = |error: Error, sources: &Sources| {
        format!("nginx: {}\n{}", error.nginx_line(sources), error.excerpt(sources))
    };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(err) => return Err(shown(Error::io(None, "open()", path, &err), &sources)),
    };
    let file = sources.add(Origin::File, path, text, None);
    let old = sources.text(file);
    match forebay_conf::fmt::format(file, old) {
        Ok(new) if new == old => Ok(Formatted::Same),
        Ok(new) => Ok(Formatted::Changed(new)),
        Err(error) => Err(shown(error, &sources)),
    }
}

/// Replaces the text whole or not at all: a full disk must not cost the configuration.
fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mut name = path.clone().into_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let result = fs::File::create_new(&name).and_then(|mut file| {
        file.set_permissions(fs::metadata(&path)?.permissions())?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&name, &path)
    });
    result.inspect_err(|_| drop(fs::remove_file(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_formatted_once_and_a_bad_one_is_left() {
        let path = std::env::temp_dir().join(format!("forebay-fmt-{}", std::process::id()));
        fs::write(&path, "events   {}\nhttp{server{listen 80;}}").unwrap();
        let files = [path.clone()];
        assert_eq!(run(&files, true), 1);
        assert_eq!(run(&files, false), 0);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\n    server {\n        listen 80;\n"), "{text}");
        assert_eq!(run(&files, true), 0);
        fs::write(&path, "events {").unwrap();
        assert_eq!(run(&files, false), 1);
        assert_eq!(fs::read(&path).unwrap(), b"events {");
        fs::remove_file(&path).unwrap();
        assert_eq!(run(&files, true), 1);
    }
}
