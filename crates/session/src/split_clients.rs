//! `split_clients`: a value by the hash of a text, for HTTP and stream alike
//! (`ngx_http_split_clients_module.c`).
//!
//! Invariant: the same text falls into the same part as in nginx.

use forebay_conf::{Diagnostics, Error, Node, directive::check_entry, value};

use crate::var::{Registry, Scope, Template};

/// A `split_clients` block.
pub struct SplitClients {
    /// What is hashed.
    pub text: Template,
    /// Up to which hash, exclusive (0: all that are left), and the value.
    parts: Vec<(u32, Box<[u8]>)>,
}

impl SplitClients {
    /// Reads a block: the variable's name, and what it stands for. All bad lines go to `diags`.
    pub fn parse<S: Scope>(
        node: &Node,
        registry: &mut Registry<S>,
        diags: &mut Diagnostics,
    ) -> Result<(String, SplitClients), Error> {
        let (mut parts, mut sum, mut last) = (Vec::new(), 0, 0u32);
        for line in node.children() {
            let Some((percent, value)) = diags.take(part(line)) else { continue };
            sum = if percent == 0 { 10_000 } else { sum + percent };
            let mut limit = 0;
            if percent > 0 {
                last = last.saturating_add((percent * u64::from(u32::MAX) / 10_000) as u32);
                limit = last;
            }
            parts.push((limit, value));
        }
        if sum > 10_000 {
            diags.push(Error::emerg(node.span, "percent total is greater than 100%"));
        }
        // What is wrong with its own arguments does not hide what is wrong with its lines.
        let source = node.arg(0)?;
        let text = diags.take(Template::parse(&source.value, source.span, registry));
        let name = variable_name(node, 1)?;
        Ok((name, SplitClients { text: text.unwrap_or_default(), parts }))
    }

    /// The value for a text; empty where no part takes it.
    pub fn value(&self, text: &[u8]) -> &[u8] {
        let hash = murmur_hash2(text);
        let found = self.parts.iter().find(|(limit, _)| hash < *limit || *limit == 0);
        found.map_or(b"", |(_, value)| value)
    }
}

/// A line: its share, see [`percent`], and its value.
fn part(line: &Node) -> Result<(u64, Box<[u8]>), Error> {
    check_entry(line)?;
    let percent = percent(&line.name.value).ok_or_else(|| {
        let text = format!("invalid percent value \"{}\"", line.name.lossy());
        Error::emerg(line.span, text)
    })?;
    // nginx never looks at what follows the value.
    let value = line.args.first().ok_or_else(|| line.wrong_count())?;
    Ok((percent, value.value.clone()))
}

/// Hundredths of a per cent; 0 stands for `*`.
fn percent(text: &[u8]) -> Option<u64> {
    if text == b"*" {
        return Some(0);
    }
    value::fixed_point(text.strip_suffix(b"%")?, 2).filter(|n| *n > 0)
}

/// The name of the variable that a parameter with its `$` defines.
///
/// Errors: nginx's `invalid variable name "x"`.
pub fn variable_name(node: &Node, index: usize) -> Result<String, Error> {
    let arg = node.arg(index)?;
    let name = arg.after("$").and_then(|name| std::str::from_utf8(name).ok());
    name.filter(|name| !name.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| Error::emerg(arg.span, format!("invalid variable name \"{}\"", arg.lossy())))
}

/// `ngx_murmur_hash2`.
pub fn murmur_hash2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_murmur_hash_2() {
        // From nginx's own function.
        let cases: [(&str, u32); 5] = [
            ("", 0),
            ("a", 0x9268_5f5e),
            ("abc", 0x1357_7c9b),
            ("abcd", 0x2687_3021),
            ("10.0.0.1AAA", 0x1371_c05f),
        ];
        for (text, want) in cases {
            assert_eq!(murmur_hash2(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn percents_are_read() {
        let cases: [(&str, Option<u64>); 9] = [
            ("*", Some(0)),
            ("50%", Some(5000)),
            ("0.5%", Some(50)),
            ("0.01%", Some(1)),
            ("0.001%", None),
            ("0%", None),
            ("50", None),
            ("%", None),
            ("", None),
        ];
        for (text, want) in cases {
            assert_eq!(percent(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn parts_follow_each_other() {
        let half = u32::MAX / 2;
        let parts = vec![(half, b"a"[..].into()), (0, b"b"[..].into())];
        let split = SplitClients { text: Template::default(), parts };
        for n in 0..100u32 {
            let text = n.to_string();
            let want: &[u8] = if murmur_hash2(text.as_bytes()) < half { b"a" } else { b"b" };
            assert_eq!(split.value(text.as_bytes()), want);
        }
        let none = SplitClients { text: Template::default(), parts: Vec::new() };
        assert_eq!(none.value(b"x"), b"");
    }
}
