//! Suggestions for names that are not known: the nearest known one, or what nginx knows of it.
//!
//! `data/directives.tsv` lists nginx's directives with their modules, from its documentation.
//! Invariant: this only words hints; what is accepted is said by the tables of the crates above.

use std::collections::HashMap;
use std::sync::OnceLock;

/// One directive of nginx's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The module that has it, as `ngx_http_proxy_module`.
    pub module: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Where it may stand, as the documentation says it.
    pub contexts: &'static str,
    /// Whether only nginx's commercial edition has it.
    pub commercial: bool,
}

static DIRECTIVES: &str = include_str!("../data/directives.tsv");

/// All directives of nginx, in the order of the table; a name that several modules have comes several
/// times.
pub fn nginx_directives() -> impl Iterator<Item = Known> {
    let row = |line: &'static str| {
        let mut columns = line.split('\t');
        let (module, name) = (columns.next()?, columns.next()?);
        let contexts = columns.nth(2)?;
        let (edition, in_open_source) = (columns.nth(1)?, columns.next()?);
        let commercial = edition == "commercial" && in_open_source == "no";
        Some(Known { module, name, contexts, commercial })
    };
    DIRECTIVES.lines().skip(1).filter_map(row)
}

fn nginx_by_name() -> &'static HashMap<&'static str, Vec<Known>> {
    static TABLE: OnceLock<HashMap<&'static str, Vec<Known>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table: HashMap<_, Vec<_>> = HashMap::new();
        for known in nginx_directives() {
            table.entry(known.name).or_default().push(known);
        }
        table
    })
}

/// What nginx knows of a name that Forebay does not know: `nginx has "x" (module); …`.
pub fn known_to_nginx(name: &str) -> Option<String> {
    let rows = nginx_by_name().get(name)?;
    let mut modules: Vec<&str> = rows.iter().map(|k| k.module).collect();
    modules.dedup();
    let modules = modules.join(", ");
    Some(match rows.iter().all(|k| k.commercial) {
        true => format!(
            "nginx has \"{name}\" ({modules}) in its commercial edition only; \
             Forebay does not support it yet"
        ),
        false => format!("nginx has \"{name}\" ({modules}); Forebay does not support it yet"),
    })
}

/// A name of nginx's that is near one that neither knows.
pub fn nearest_of_nginx(name: &str) -> Option<&'static str> {
    nearest(name, nginx_by_name().keys().copied())
}

/// The known name that is nearest to a misspelt one, if it is near enough to be meant. Of several
/// that are as near it is the first by alphabet.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const MAX_NAME: usize = 64;
    if name.len() > MAX_NAME {
        return None;
    }
    // A third of the letters may be wrong, but no more than three, and of a short name one.
    let mut best: Option<(usize, &str)> = None;
    let limit = (name.len() / 3).clamp(1, 3);
    let letters_of_name = letters(name);
    for candidate in known {
        // Cheap doubts first, as a file may have thousands of unknown names: one change makes one
        // letter go and another come at the most.
        let other_letters = (letters(candidate) ^ letters_of_name).count_ones() as usize;
        let too_far = candidate.len().abs_diff(name.len()) > limit || other_letters > 2 * limit;
        if too_far || candidate == name {
            continue;
        }
        let far = distance(name.as_bytes(), candidate.as_bytes());
        if far <= limit && best.is_none_or(|b| (far, candidate) < b) {
            best = Some((far, candidate));
        }
    }
    best.map(|(_, name)| name)
}

/// Which letters, without case, are in a name: a bit for each.
fn letters(name: &str) -> u32 {
    name.bytes().fold(0, |set, b| set | 1 << (b & 0x1f))
}

/// The edit distance with swaps of neighbours (optimal string alignment), in any case.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = |x: u8, y: u8| x.eq_ignore_ascii_case(&y);
            let change = last[j - 1] + usize::from(!same(a[i - 1], b[j - 1]));
            let mut least = change.min(last[j] + 1).min(row[j - 1] + 1);
            let is_swap = i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]);
            if is_swap {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_changes_and_swaps() {
        let cases = [
            ("", "", 0),
            ("a", "", 1),
            ("root", "rooot", 1),
            ("listen", "lisetn", 1),
            ("A", "a", 0),
            ("abc", "xyz", 3),
        ];
        for (a, b, want) in cases {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), want, "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), want, "{b} {a}");
        }
    }

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["root", "return", "sendfile", "server_name", "gzip", "if"];
        let cases = [
            ("rooot", Some("root")),
            ("retrun", Some("return")),
            ("Sendfile", Some("sendfile")),
            ("servername", Some("server_name")),
            ("gz", None),
            ("foobar", None),
            ("", None),
        ];
        for (name, want) in cases {
            assert_eq!(nearest(name, known), want, "{name}");
        }
        assert_eq!(nearest(&"x".repeat(10_000), known), None);
    }

    #[test]
    fn nginx_directives_are_known_by_module() {
        let hint = known_to_nginx("grpc_pass").unwrap();
        assert_eq!(
            hint,
            "nginx has \"grpc_pass\" (ngx_http_grpc_module); Forebay does not support it yet"
        );
        assert!(known_to_nginx("status_zone").unwrap().contains("commercial edition only"));
        assert!(!known_to_nginx("proxy_pass").unwrap().contains("commercial"));
        assert_eq!(known_to_nginx("no_such_directive"), None);
        assert_eq!(nearest_of_nginx("prxy_pass"), Some("proxy_pass"));
    }

    #[test]
    fn the_table_is_whole() {
        let rows = nginx_directives().count();
        assert_eq!(rows, DIRECTIVES.lines().count() - 1);
        assert!(rows > 900);
    }
}
