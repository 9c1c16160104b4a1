//! glibc's `glob(3)` with no flags, as nginx's `ngx_open_glob` calls it: `*`, `?`, `[a-z]`, `[!…]`,
//! `[^…]`, `[[:alpha:]]`, and `\` before a character to take it as it is; a dot at the start of a
//! name is matched by a dot only; the answer is sorted by bytes (nginx stays in the "C" locale).
//!
//! Invariant: matching one name is linear in mask times name; there is no exponential mask.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Names found at the most.
pub const MAX_NAMES: usize = 1_000_000;

/// Whether nginx takes the name of an `include` as a mask (`strpbrk(name, "*?[")`).
pub fn is_mask(name: &[u8]) -> bool {
    name.iter().any(|b| b"*?[".contains(b))
}

/// The existing names that match, sorted; none is fine. A directory that cannot be read has no names.
pub fn glob(pattern: &str) -> io::Result<Vec<PathBuf>> {
    let (mut found, rest) = match pattern.strip_prefix('/') {
        Some(rest) => (vec![b"/".to_vec()], rest),
        None => (vec![Vec::new()], pattern),
    };
    let mut parts = rest.split('/').filter(|p| !p.is_empty()).peekable();
    while let Some(part) = parts.next() {
        let mut next = Vec::new();
        for base in &found {
            match is_mask(part.as_bytes()) {
                true => list(base, part.as_bytes(), &mut next)?,
                false => next.push(join(base, &unescape(part.as_bytes()))),
            }
        }
        next.retain(|path| match parts.peek() {
            Some(_) => Path::new(OsStr::from_bytes(path)).is_dir(),
            None => fs::symlink_metadata(OsStr::from_bytes(path)).is_ok(),
        });
        found = next;
    }
    let into_path = |bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes));
    let mut found: Vec<PathBuf> = found.into_iter().map(into_path).collect();
    found.sort_unstable_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
    Ok(found)
}

fn list(base: &[u8], mask: &[u8], out: &mut Vec<Vec<u8>>) -> io::Result<()> {
    let dir = if base.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(base) };
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name_matches(mask, name.as_bytes()) {
            continue;
        }
        if out.len() == MAX_NAMES {
            return Err(io::Error::other("too many names match"));
        }
        out.push(join(base, name.as_bytes()));
    }
    Ok(())
}

fn join(base: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = base.to_vec();
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn unescape(part: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(part.len());
    let mut bytes = part.iter();
    while let Some(&b) = bytes.next() {
        out.push(match b {
            b'\\' => *bytes.next().unwrap_or(&b'\\'),
            _ => b,
        });
    }
    out
}

/// Whether a whole path matches a mask, part by part, without looking at any file system.
pub fn path_matches(pattern: &str, path: &Path) -> bool {
    let mut names = path.as_os_str().as_bytes().split(|b| *b == b'/');
    let mut masks = pattern.as_bytes().split(|b| *b == b'/');
    loop {
        match (masks.next(), names.next()) {
            (None, None) => return true,
            (Some(mask), Some(name)) if name_matches(mask, name) => {}
            _ => return false,
        }
    }
}

/// Whether one name without slashes matches one mask (`fnmatch` with `FNM_PERIOD`).
pub fn name_matches(mask: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && mask.first() != Some(&b'.') && !mask.starts_with(b"\\.") {
        return false;
    }
    let (mut m, mut n) = (0, 0);
    // Where to go on when a try fails: after the last star, with that star taking one byte more.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if mask.get(m) == Some(&b'*') {
            m += 1;
            retry = Some((m, n));
        } else if n == name.len() && m == mask.len() {
            return true;
        } else if let Some(len) = name.get(n).and_then(|&byte| one(&mask[m..], byte)) {
            (m, n) = (m + len, n + 1);
        } else {
            match retry {
                Some((after_star, taken)) if taken < name.len() => {
                    retry = Some((after_star, taken + 1));
                    (m, n) = (after_star, taken + 1);
                }
                _ => return false,
            }
        }
    }
}

/// How much of the mask one byte uses up, if it matches.
fn one(mask: &[u8], byte: u8) -> Option<usize> {
    match *mask.first()? {
        b'?' => Some(1),
        b'[' => match bracket(mask, byte) {
            Some((len, true)) => Some(len),
            Some((_, false)) => None,
            // A "[" that is never closed stands for itself.
            None => (byte == b'[').then_some(1),
        },
        b'\\' if mask.len() > 1 => (mask[1] == byte).then_some(2),
        literal => (literal == byte).then_some(1),
    }
}

/// The length of a `[…]` and whether `byte` is in it; `None` when it is not closed.
fn bracket(mask: &[u8], byte: u8) -> Option<(usize, bool)> {
    let mut at = 1;
    let negated = matches!(mask.get(at), Some(b'!' | b'^'));
    at += usize::from(negated);
    let first = at;
    let mut found = false;
    loop {
        match *mask.get(at)? {
            b']' if at > first => return Some((at + 1, found != negated)),
            b'[' if mask.get(at + 1) == Some(&b':') => {
                let name = &mask[at + 2..];
                let end = name.windows(2).position(|w| w == b":]")?;
                found |= class(&name[..end], byte);
                at += end + 4;
            }
            _ => {
                let (low, next) = member(mask, at)?;
                let is_range =
                    mask.get(next) == Some(&b'-') && mask.get(next + 1).is_some_and(|b| *b != b']');
                let (high, next) = if is_range { member(mask, next + 1)? } else { (low, next) };
                found |= (low..=high).contains(&byte);
                at = next;
            }
        }
    }
}

fn member(mask: &[u8], at: usize) -> Option<(u8, usize)> {
    match *mask.get(at)? {
        b'\\' => Some((*mask.get(at + 1)?, at + 2)),
        byte => Some((byte, at + 1)),
    }
}

fn class(name: &[u8], byte: u8) -> bool {
    match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => byte == b' ' || byte == b'\t',
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_match_as_glibc_does() {
        let cases: &[(&str, &str, bool)] = &[
            ("*", "a.conf", true),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("?hidden", ".hidden", false),
            ("[.]hidden", ".hidden", false),
            ("*.conf", "a.conf", true),
            ("*.conf", ".conf", false),
            ("*.conf", "a.conf~", false),
            ("a**b", "axxb", true),
            ("*a*b*c", "xaybzc", true),
            ("*a*b*c", "xaybzcd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]a]x", "]x", true),
            ("[a-]x", "-x", true),
            ("[[:digit:]]*", "7up", true),
            ("[[:digit:]]*", "up", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("[\\]]", "]", true),
            ("[", "[", true),
            ("a[b", "a[b", true),
            ("", "", true),
            ("", "a", false),
        ];
        for (mask, name, want) in cases {
            assert_eq!(name_matches(mask.as_bytes(), name.as_bytes()), *want, "{mask} {name}");
        }
    }

    #[test]
    fn a_mask_of_many_stars_is_not_exponential() {
        let mask = "*a".repeat(60) + "b";
        assert!(!name_matches(mask.as_bytes(), "a".repeat(250).as_bytes()));
    }

    #[test]
    fn whole_paths_match_part_by_part() {
        assert!(path_matches("/etc/*/x.conf", Path::new("/etc/a/x.conf")));
        assert!(!path_matches("/etc/*.conf", Path::new("/etc/a/x.conf")));
    }

    #[test]
    fn files_are_found_sorted_and_no_match_is_fine() {
        let dir = std::env::temp_dir().join(format!("forebay-conf-glob-{}", std::process::id()));
        for name in ["s/b/x.conf", "s/a/x.conf", "s/a/y.txt", "s/.h/x.conf", "s/plain"] {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let run = |mask: &str| {
            let found = glob(&format!("{}/{mask}", dir.display())).unwrap();
            let relative = |p: &PathBuf| p.strip_prefix(&dir).unwrap().display().to_string();
            found.iter().map(relative).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(run("s/*/*.conf"), "s/a/x.conf s/b/x.conf");
        assert_eq!(run("s/*/y.txt"), "s/a/y.txt");
        assert_eq!(run("s/*"), "s/a s/b s/plain");
        assert_eq!(run("s/pl[a]in"), "s/plain");
        assert_eq!(run("none/*"), "");
        assert_eq!(run("s/none*"), "");
        fs::remove_dir_all(&dir).unwrap();
    }
}
