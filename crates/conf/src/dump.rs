//! What `-T` prints after the test's result: each file once, in the order first read, as nginx's
//! `main()` does.

use std::os::unix::ffi::OsStrExt;

use crate::source::{Origin, Sources};

/// `# configuration file PATH:`, the file as it is, an empty line; for each file.
pub fn dump(sources: &Sources) -> Vec<u8> {
    let mut out = Vec::new();
    for source in sources.iter().filter(|s| s.origin != Origin::CommandLine) {
        out.extend_from_slice(b"# configuration file ");
        out.extend_from_slice(source.path.as_os_str().as_bytes());
        out.extend_from_slice(b":\n");
        out.extend_from_slice(&source.text);
        out.push(b'\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_file_is_printed_with_its_name() {
        let mut sources = Sources::new();
        sources.add(Origin::CommandLine, Path::new("-g"), b"daemon off;".to_vec(), None);
        sources.add(Origin::File, Path::new("/a"), b"a;\n".to_vec(), None);
        sources.add(Origin::File, Path::new("/b"), b"b;".to_vec(), None);
        let want = b"# configuration file /a:\na;\n\n# configuration file /b:\nb;\n";
        assert_eq!(dump(&sources), want);
    }
}
