//! `types`: from file name extension to MIME type.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use hashbrown::HashMap;

use forebay_conf::{Loader, Node};

/// A `types` block, ready to look up.
#[derive(Debug, Default)]
pub struct Types {
    by_extension: HashMap<Box<[u8]>, Bytes>,
}

impl Types {
    /// What holds where no `types` block stands: html, gif and jpeg, as in nginx.
    pub fn built_in() -> Arc<Types> {
        static BUILT_IN: OnceLock<Arc<Types>> = OnceLock::new();
        let defaults = [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")];
        let build = || {
            let pair = |(ext, mime): (&str, &'static str)| {
                (ext.as_bytes().into(), Bytes::from_static(mime.as_bytes()))
            };
            Arc::new(Types { by_extension: defaults.map(pair).into() })
        };
        BUILT_IN.get_or_init(build).clone()
    }

    /// Reads the lines of a block: `mime/type extension …;`. Several blocks on one level add up.
    pub fn read(&mut self, lines: &[Node], loader: &mut Loader<'_>) {
        for line in lines {
            let mime = Bytes::copy_from_slice(&line.name.value);
            for extension in &line.args {
                let key = extension.value.to_ascii_lowercase().into_boxed_slice();
                let shown = String::from_utf8_lossy(&key).into_owned();
                if let Some(before) = self.by_extension.insert(key, mime.clone()) {
                    // ngx_http_core_type.
                    let (new, old) = (line.name.lossy(), String::from_utf8_lossy(&before));
                    let text = format!(
                        "duplicate extension \"{shown}\", content type: \"{new}\", \
                         previous content type: \"{old}\""
                    );
                    loader.warn(extension.span, text);
                }
            }
        }
    }

    /// The type for an extension, whatever its case.
    pub fn find(&self, extension: &[u8]) -> Option<&Bytes> {
        if let Some(found) = self.by_extension.get(extension) {
            return Some(found);
        }
        if !extension.iter().any(u8::is_ascii_uppercase) {
            return None;
        }
        self.by_extension.get(extension.to_ascii_lowercase().as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_case_of_an_extension_does_not_count() {
        let types = Types::built_in();
        assert_eq!(types.find(b"HTML").unwrap(), "text/html");
        assert_eq!(types.find(b"jpg").unwrap(), "image/jpeg");
        assert!(types.find(b"txt").is_none());
    }
}
