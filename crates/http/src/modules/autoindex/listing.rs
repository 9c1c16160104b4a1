//! The formats of a listing, byte for byte those of `ngx_http_autoindex_html`, `_json` and `_xml`.
//!
//! Invariant: pure; no clock, no file system.

use std::io::Write as _;

use forebay_wire::{
    date::{civil, write_http_time},
    escape::{Kind, escape, escape_html, escape_json},
};
use rustix::fs::FileType;

/// `autoindex_format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Html,
    /// A list of elements.
    Xml,
    /// A list of objects.
    Json,
    /// The same as the argument of a function.
    Jsonp,
}

impl Format {
    /// The words in the configuration.
    pub const NAMES: &'static [(&'static str, Format)] = &[
        ("html", Format::Html),
        ("json", Format::Json),
        ("jsonp", Format::Jsonp),
        ("xml", Format::Xml),
    ];
}

/// A name in a directory.
#[derive(Debug)]
pub struct Entry {
    /// The name.
    pub name: Box<[u8]>,
    /// What it is, links followed.
    pub file_type: FileType,
    /// Bytes.
    pub size: u64,
    /// Seconds since 1970.
    pub modified: i64,
}

impl Entry {
    fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    fn is_file(&self) -> bool {
        self.file_type == FileType::RegularFile
    }

    fn type_name(&self) -> &'static str {
        match self.file_type {
            FileType::Directory => "directory",
            FileType::RegularFile => "file",
            _ => "other",
        }
    }
}

/// The width of the column of names (`NGX_HTTP_AUTOINDEX_NAME_LEN`).
const NAME_WIDTH: usize = 50;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Writes to memory, which does not fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {
        let _ = write!($out, $($arg)*);
    };
}

/// A page. `offset` is what is added to the times, in seconds; `in_utf8`: names are as wide as they have
/// characters.
pub fn html(
    out: &mut Vec<u8>,
    uri: &[u8],
    entries: &[Entry],
    exact_size: bool,
    offset: i64,
    in_utf8: bool,
) {
    out.extend_from_slice(b"<html>\r\n<head><title>Index of ");
    escape_html(uri, out);
    out.extend_from_slice(b"</title></head>\r\n<body>\r\n<h1>Index of ");
    escape_html(uri, out);
    out.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    for entry in entries {
        link(out, entry, in_utf8);
        let t = civil(entry.modified + offset);
        let month = MONTHS[usize::from(t.month) - 1];
        put!(out, " {:02}-{month}-{} {:02}:{:02} ", t.day, t.year, t.hour, t.minute);
        size(out, entry, exact_size);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
}

fn link(out: &mut Vec<u8>, entry: &Entry, in_utf8: bool) {
    let name = &entry.name;
    out.extend_from_slice(b"<a href=\"");
    escape(Kind::UriComponent, name, out);
    if entry.is_dir() {
        out.push(b'/');
    }
    out.extend_from_slice(b"\">");
    // A name that is no UTF-8 is as wide as it has bytes (`ngx_utf8_length`).
    let text = std::str::from_utf8(name).ok().filter(|_| in_utf8);
    let mut width = text.map_or(name.len(), |text| text.chars().count());
    if width > NAME_WIDTH {
        let shown = NAME_WIDTH - 3;
        let cut = text.and_then(|text| text.char_indices().nth(shown)).map_or(shown, |(at, _)| at);
        escape_html(&name[..cut], out);
        out.extend_from_slice(b"..&gt;</a>");
        return;
    }
    escape_html(name, out);
    if entry.is_dir() && width < NAME_WIDTH {
        out.push(b'/');
        width += 1;
    }
    out.extend_from_slice(b"</a>");
    out.resize(out.len() + NAME_WIDTH - width, b' ');
}

fn size(out: &mut Vec<u8>, entry: &Entry, exact: bool) {
    let size = entry.size;
    let rounded =
        |shift: u32| (size >> shift) + u64::from(size % (1 << shift) > (1 << shift) / 2 - 1);
    match (entry.is_dir(), exact) {
        (true, true) => out.extend_from_slice(b"                  -"),
        (true, false) => out.extend_from_slice(b"      -"),
        (false, true) => {
            put!(out, "{size:19}");
        }
        (false, false) if size >= 1 << 30 => {
            put!(out, "{:6}G", rounded(30));
        }
        (false, false) if size >= 1 << 20 => {
            put!(out, "{:6}M", rounded(20));
        }
        (false, false) if size > 9999 => {
            put!(out, "{:6}K", rounded(10));
        }
        (false, false) => {
            put!(out, " {size:6}");
        }
    }
}

/// An array of objects, within a call of `callback` if there is one.
pub fn json(out: &mut Vec<u8>, entries: &[Entry], callback: Option<&[u8]>) {
    if let Some(callback) = callback {
        // The comment keeps the name from being the first bytes of a file of another type.
        out.extend_from_slice(b"/* callback */\r\n");
        out.extend_from_slice(callback);
        out.push(b'(');
    }
    out.push(b'[');
    for (index, entry) in entries.iter().enumerate() {
        out.extend_from_slice(if index > 0 { b",\r\n{ " } else { b"\r\n{ " });
        out.extend_from_slice(b"\"name\":\"");
        escape_json(&entry.name, out);
        put!(out, "\", \"type\":\"{}\", \"mtime\":\"", entry.type_name());
        let mut time = [0; 29];
        write_http_time(entry.modified, &mut time);
        out.extend_from_slice(&time);
        out.push(b'"');
        if entry.is_file() {
            put!(out, ", \"size\":{}", entry.size);
        }
        out.extend_from_slice(b" }");
    }
    out.extend_from_slice(b"\r\n]");
    if callback.is_some() {
        out.extend_from_slice(b");");
    }
}

/// A list of elements.
pub fn xml(out: &mut Vec<u8>, entries: &[Entry]) {
    out.extend_from_slice(b"<?xml version=\"1.0\"?>\r\n<list>\r\n");
    for entry in entries {
        let (name, t) = (entry.type_name(), civil(entry.modified));
        put!(out, "<{name} mtime=\"{:4}-{:02}-{:02}T", t.year, t.month, t.day);
        put!(out, "{:02}:{:02}:{:02}Z\"", t.hour, t.minute, t.second);
        if entry.is_file() {
            put!(out, " size=\"{}\"", entry.size);
        }
        out.push(b'>');
        escape_html(&entry.name, out);
        put!(out, "</{name}>\r\n");
    }
    out.extend_from_slice(b"</list>\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, size: u64) -> Entry {
        let name = name.as_bytes().into();
        Entry { name, file_type: FileType::RegularFile, size, modified: 1_700_000_000 }
    }

    fn line(entry: Entry, exact: bool) -> String {
        let mut out = Vec::new();
        html(&mut out, b"/", &[entry], exact, 0, false);
        let text = String::from_utf8(out).expect("text");
        text.lines().nth(4).expect("a line").to_owned()
    }

    #[test]
    fn a_long_name_is_cut_to_the_width_of_the_column() {
        let name = "n".repeat(51);
        let shown = format!("<a href=\"{name}\">{}..&gt;</a> 14-Nov-2023 22:13", "n".repeat(47));
        assert_eq!(line(file(&name, 1), false), format!("{shown}       1"));
        let fits = "n".repeat(50);
        let shown = format!("<a href=\"{fits}\">{fits}</a> 14-Nov-2023 22:13       1");
        assert_eq!(line(file(&fits, 1), false), shown);
    }

    #[test]
    fn sizes_round_as_in_nginx() {
        let table = [
            (9999, "   9999"),
            (10_000, "    10K"),
            (10_751, "    10K"),
            (10_752, "    11K"),
            (1 << 20, "     1M"),
            ((1 << 20) + (1 << 19), "     2M"),
            (3 << 30, "     3G"),
        ];
        for (size, shown) in table {
            let line = line(file("a", size), false);
            assert!(line.ends_with(&format!("22:13 {shown}")), "{line}");
        }
        assert!(line(file("a", 7), true).ends_with(&format!("22:13 {:>19}", 7)));
    }

    #[test]
    fn an_empty_listing_is_still_well_formed() {
        let mut out = Vec::new();
        json(&mut out, &[], Some(b"f"));
        xml(&mut out, &[]);
        let expected =
            "/* callback */\r\nf([\r\n]);<?xml version=\"1.0\"?>\r\n<list>\r\n</list>\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
