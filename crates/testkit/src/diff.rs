//! Says in words where two exchanges differ.
//! Invariant: decides nothing about what may differ; that is [`crate::normal`] and the case's checks.

use crate::case::{Checks, Headers};
use crate::normal::{Field, Normal, View};
use crate::run::{Exchange, Reply};

const SHOWN: usize = 400;

/// One server's side of a comparison.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The server's name in the report.
    pub name: &'a str,
    /// What it answered.
    pub exchange: &'a Exchange,
    /// How to normalise it.
    pub normal: &'a Normal,
}

/// The differences between two sides, one text each; empty when they agree.
pub fn compare(a: Side, b: Side, checks: &Checks) -> Vec<String> {
    let mut found = Vec::new();
    let (left, right) = (&a.exchange.replies, &b.exchange.replies);
    for (i, (x, y)) in left.iter().zip(right).enumerate() {
        let mut of_reply = compare_reply(a, x, b, y, checks);
        if left.len() > 1 {
            of_reply.iter_mut().for_each(|text| *text = format!("response {}: {text}", i + 1));
        }
        found.extend(of_reply);
    }
    if left.len() != right.len() {
        let (m, n) = (left.len(), right.len());
        found.push(format!("{} sent {m} responses, {} sent {n}", a.name, b.name));
    }
    if checks.sync && a.exchange.after != b.exchange.after {
        let (x, y) = (&a.exchange.after, &b.exchange.after);
        found.push(two("afterwards", a.name, &x.to_string(), b.name, &y.to_string()));
    }
    found
}

fn compare_reply(a: Side, x: &Reply, b: Side, y: &Reply, checks: &Checks) -> Vec<String> {
    match (x, y) {
        (Reply::Response(x), Reply::Response(y)) => {
            let v = a.normal.view(x, a.exchange.client_port);
            let w = b.normal.view(y, b.exchange.client_port);
            let mut found = Vec::new();
            if checks.status && v.status_line != w.status_line {
                found.push(two("status", a.name, &v.status_line, b.name, &w.status_line));
            }
            found.extend(compare_headers(a.name, &v, b.name, &w, checks));
            if checks.body && x.body != y.body && v.body != w.body {
                found.push(compare_text("body", a.name, &v.body, b.name, &w.body));
            }
            found
        }
        (Reply::Bytes(x), Reply::Bytes(y)) => {
            let v = a.normal.bytes(x, a.exchange.client_port);
            let w = b.normal.bytes(y, b.exchange.client_port);
            if v == w { Vec::new() } else { vec![compare_text("bytes", a.name, &v, b.name, &w)] }
        }
        (x, y) if x == y => Vec::new(),
        (x, y) => vec![two("reply", a.name, &x.to_string(), b.name, &y.to_string())],
    }
}

fn compare_headers(a: &str, v: &View, b: &str, w: &View, checks: &Checks) -> Vec<String> {
    if checks.headers == Headers::Ignored {
        return Vec::new();
    }
    let kept = |view: &View| -> Vec<Field> {
        let ignored = |f: &&Field| checks.ignore.contains(&f.name.to_ascii_lowercase());
        view.headers.iter().filter(|f| !ignored(f)).cloned().collect()
    };
    let (left, right) = (kept(v), kept(w));
    let (mut only_left, mut only_right) = (left.clone(), right.clone());
    for field in &left {
        if let Some(at) = only_right.iter().position(|other| other.agrees(field)) {
            only_right.remove(at);
            let at = only_left.iter().position(|own| own == field);
            at.map(|at| only_left.remove(at));
        }
    }
    let show = |field: &Field| format!("{}: {}", field.name, field.value);
    let mut found: Vec<String> =
        only_left.iter().map(|field| format!("only {a} sends  {}", show(field))).collect();
    found.extend(only_right.iter().map(|field| format!("only {b} sends  {}", show(field))));
    let in_order = left.len() == right.len() && left.iter().zip(&right).all(|(x, y)| x.agrees(y));
    if found.is_empty() && checks.headers == Headers::InOrder && !in_order {
        let names = |fields: &[Field]| {
            fields.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        found.push(two("order of headers", a, &names(&left), b, &names(&right)));
    }
    found
}

/// The differences between two lists of log lines.
pub fn compare_lines(
    what: &str,
    a: &str,
    left: &[String],
    b: &str,
    right: &[String],
) -> Vec<String> {
    let only = |lines: &[String], others: &[String]| {
        let mut rest = others.to_vec();
        let mut found = Vec::new();
        for line in lines {
            match rest.iter().position(|other| other == line) {
                Some(at) => {
                    rest.remove(at);
                }
                None => found.push(line.clone()),
            }
        }
        found
    };
    let mut found: Vec<String> =
        only(left, right).iter().map(|line| format!("{what}: only {a} writes  {line}")).collect();
    found.extend(only(right, left).iter().map(|line| format!("{what}: only {b} writes  {line}")));
    found
}

fn two(what: &str, a: &str, x: &str, b: &str, y: &str) -> String {
    format!("{what}\n  {a:>8}: {x}\n  {b:>8}: {y}")
}

fn compare_text(what: &str, a: &str, x: &str, b: &str, y: &str) -> String {
    let at = x.bytes().zip(y.bytes()).take_while(|(p, q)| p == q).count();
    let what = format!("{what} ({} and {} bytes, first difference at {at})", x.len(), y.len());
    two(&what, a, &excerpt(x, at), b, &excerpt(y, at))
}

// The neighbourhood of the first difference.
fn excerpt(text: &str, at: usize) -> String {
    let mut start = at.saturating_sub(SHOWN / 4).min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let part: String = text[start..].chars().take(SHOWN).collect();
    let more = if start + part.len() < text.len() { "…" } else { "" };
    format!("{}{:?}{more}", if start > 0 { "…" } else { "" }, part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(headers: &[(&str, &str)]) -> View {
        let field = |(name, value): &(&str, &str)| Field {
            name: (*name).to_owned(),
            raw: (*value).to_owned(),
            value: (*value).to_owned(),
        };
        let headers = headers.iter().map(field).collect();
        View { status_line: String::new(), headers, body: String::new() }
    }

    #[test]
    fn header_differences_are_told_apart() {
        let checks = Checks::default();
        let a = view(&[("A", "1"), ("B", "2")]);
        let swapped = compare_headers("x", &a, "y", &view(&[("B", "2"), ("A", "1")]), &checks);
        assert!(swapped[0].starts_with("order of headers"));
        let missing = compare_headers("x", &a, "y", &view(&[("A", "1")]), &checks);
        assert_eq!(missing, ["only x sends  B: 2"]);
        let twice = view(&[("A", "1"), ("B", "2"), ("B", "2")]);
        assert_eq!(compare_headers("x", &a, "y", &twice, &checks), ["only y sends  B: 2"]);
        assert_eq!(compare_headers("x", &a, "y", &a, &checks), Vec::<String>::new());
    }

    #[test]
    fn first_difference_of_a_body_is_shown() {
        let text = compare_text("body", "x", "same then a", "y", "same then b");
        assert!(text.contains("first difference at 10"), "{text}");
    }

    #[test]
    fn log_lines_are_compared_with_their_count() {
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let found = compare_lines("log", "x", &lines("a a b"), "y", &lines("a b c"));
        assert_eq!(found, ["log: only x writes  a", "log: only y writes  c"]);
    }
}
