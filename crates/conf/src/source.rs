//! The files of a configuration and places in them.
//!
//! Invariant: one entry per *inclusion*, so that a place says by which way it was reached; the text of
//! a file that is included twice is kept, and was read, once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names an entry of [`Sources`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// Where a token stands. `line` and `column` are 1-based; `column` and `len` count bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// The inclusion that the token was read in.
    pub file: FileId,
    /// 1-based line.
    pub line: u32,
    /// 1-based column, in bytes.
    pub column: u32,
    /// Length of the token as written, with its quotes, in bytes.
    pub len: u32,
}

/// What kind of text an entry is: it decides how messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file on disk.
    File,
    /// A configuration that is built into the program.
    Embedded,
    /// The argument of `-g`: nginx says "in command line" and gives no line.
    CommandLine,
}

/// One text that was read, at one place of inclusion.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file's name, as nginx would print it.
    pub path: PathBuf,
    /// Its bytes.
    pub text: Arc<[u8]>,
    /// What kind of text it is.
    pub origin: Origin,
    /// The `include` that brought it in; `None` for the first file.
    pub included_at: Option<Span>,
    line_starts: Arc<[usize]>,
}

/// All texts of a configuration, in the order first read.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    entries: Vec<Source>,
    by_path: HashMap<PathBuf, usize>,
}

impl Sources {
    /// Nothing read yet.
    pub fn new() -> Sources {
        Sources::default()
    }

    /// Adds a text and answers its name for spans.
    pub fn add(
        &mut self,
        origin: Origin,
        path: &Path,
        text: Vec<u8>,
        included_at: Option<Span>,
    ) -> FileId {
        let line_starts = line_starts(&text);
        let entry =
            Source { path: path.into(), text: text.into(), origin, included_at, line_starts };
        self.push(entry)
    }

    /// Adds another inclusion of a file that was read before, if it was.
    pub(crate) fn add_again(&mut self, path: &Path, included_at: Option<Span>) -> Option<FileId> {
        let first = &self.entries[*self.by_path.get(path)?];
        let entry = Source { included_at, ..first.clone() };
        Some(self.push(entry))
    }

    fn push(&mut self, entry: Source) -> FileId {
        let index = self.entries.len();
        if entry.origin == Origin::File {
            self.by_path.entry(entry.path.clone()).or_insert(index);
        }
        self.entries.push(entry);
        FileId(u32::try_from(index).expect("inclusions are bounded by parse::MAX_INCLUSIONS"))
    }

    /// The entry of `file`, if it is one of these sources.
    pub fn entry(&self, file: FileId) -> Option<&Source> {
        self.entries.get(file.0 as usize)
    }

    /// The name of `file`; empty when it is not one of these sources.
    pub fn path(&self, file: FileId) -> &Path {
        self.entry(file).map_or(Path::new(""), |e| &e.path)
    }

    /// The bytes of `file`; empty when it is not one of these sources.
    pub fn text(&self, file: FileId) -> &[u8] {
        self.entry(file).map_or(&[], |e| &e.text)
    }

    /// The line that `span` starts in, without its end of line.
    pub fn line_text(&self, span: Span) -> &[u8] {
        let Some(entry) = self.entry(span.file) else { return &[] };
        let index = span.line.saturating_sub(1) as usize;
        let Some(&start) = entry.line_starts.get(index) else { return &[] };
        let end = entry.line_starts.get(index + 1).map_or(entry.text.len(), |&next| next - 1);
        let line = &entry.text[start..end];
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    /// Each file once, in the order first read: what `-T` prints.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        let first = |(i, e): &(usize, &Source)| {
            e.origin != Origin::File || self.by_path.get(&e.path) == Some(i)
        };
        self.entries.iter().enumerate().filter(first).map(|(_, e)| e)
    }

    /// How many texts were read, counting each inclusion.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was read yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A key that sorts places in the order in which nginx would reach them: an included file's
    /// places come where its `include` stands.
    pub fn reading_order(&self, span: Span) -> Vec<(u32, u32)> {
        let mut key = vec![(span.line, span.column), (span.file.0, 0)];
        let mut at = self.entry(span.file).and_then(|e| e.included_at);
        while let Some(outer) = at {
            key.push((outer.line, outer.column));
            key.push((outer.file.0, 0));
            at = self.entry(outer.file).and_then(|e| e.included_at);
        }
        key.reverse();
        key
    }
}

fn line_starts(text: &[u8]) -> Arc<[usize]> {
    let after_newlines = text.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1);
    std::iter::once(0).chain(after_newlines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(file: FileId, line: u32, column: u32) -> Span {
        Span { file, line, column, len: 1 }
    }

    #[test]
    fn line_text_has_no_line_end() {
        let mut sources = Sources::new();
        let f = sources.add(Origin::File, Path::new("/a"), b"one\r\ntwo\n\nlast".to_vec(), None);
        let lines: Vec<&[u8]> = (0..6).map(|n| sources.line_text(span(f, n, 1))).collect();
        assert_eq!(lines, [&b"one"[..], b"one", b"two", b"", b"last", b""]);
    }

    #[test]
    fn a_file_included_twice_is_listed_once() {
        let mut sources = Sources::new();
        let main = sources.add(Origin::File, Path::new("/m"), b"x".to_vec(), None);
        sources.add(Origin::File, Path::new("/a"), b"a".to_vec(), Some(span(main, 1, 1)));
        assert!(sources.add_again(Path::new("/a"), Some(span(main, 2, 1))).is_some());
        assert!(sources.add_again(Path::new("/never"), None).is_none());
        let paths: Vec<_> = sources.iter().map(|e| e.path.to_str().unwrap()).collect();
        assert_eq!((paths, sources.len()), (vec!["/m", "/a"], 3));
    }

    #[test]
    fn included_places_sort_where_their_include_stands() {
        let mut sources = Sources::new();
        let main = sources.add(Origin::File, Path::new("/m"), vec![], None);
        let late = sources.add(Origin::File, Path::new("/l"), vec![], Some(span(main, 9, 1)));
        let early = sources.add(Origin::File, Path::new("/e"), vec![], Some(span(main, 3, 1)));
        let mut places = [span(late, 1, 1), span(main, 5, 1), span(early, 99, 1), span(main, 2, 1)];
        places.sort_by_cached_key(|s| sources.reading_order(*s));
        let want = [span(main, 2, 1), span(early, 99, 1), span(main, 5, 1), span(late, 1, 1)];
        assert_eq!(places, want);
    }
}
