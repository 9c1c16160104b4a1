//! The fields that `Connection` nominates: they stay on their connection (RFC 9110 §7.6.1).
//!
//! *Invariant:* to ask for a field takes as long however many are nominated. How many there are of either
//! is a peer's to choose.

use std::{
    collections::HashSet,
    hash::{Hash, Hasher},
};

use super::{
    framing::tokens,
    response::{ResponseField, ResponseHead},
    response_field::ResponseFieldId,
};

/// What is nominated beside `close` and `keep-alive`.
#[derive(Debug, Default)]
pub struct Nominees<'a>(Option<HashSet<Name<'a>>>);

/// The name of a field, in any case.
#[derive(Debug)]
struct Name<'a>(&'a [u8]);

impl PartialEq for Name<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(other.0)
    }
}

impl Eq for Name<'_> {}

impl Hash for Name<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|ch| state.write_u8(ch.to_ascii_lowercase()));
    }
}

impl<'a> Nominees<'a> {
    /// Of the values of all `Connection` lines of a head.
    pub fn of(lines: impl Iterator<Item = &'a [u8]>) -> Nominees<'a> {
        let mut nominees = Nominees::default();
        for token in lines.flat_map(tokens) {
            if !token.eq_ignore_ascii_case(b"close") && !token.eq_ignore_ascii_case(b"keep-alive") {
                nominees.0.get_or_insert_default().insert(Name(token));
            }
        }
        nominees
    }

    /// Those of a response.
    pub fn of_response(head: &ResponseHead, buf: &'a [u8]) -> Nominees<'a> {
        let is_connection = |field: &&ResponseField| field.id == ResponseFieldId::Connection;
        Nominees::of(head.fields.iter().filter(is_connection).map(|field| field.value.of(buf)))
    }

    /// Whether a field of that name is one of them.
    pub fn has(&self, name: &'a [u8]) -> bool {
        self.0.as_ref().is_some_and(|names| names.contains(&Name(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_on_any_line() {
        let nominees = Nominees::of([&b"close, X-Secret"[..], b", Y ,", b"Keep-Alive"].into_iter());
        assert!(nominees.has(b"x-secret") && nominees.has(b"Y"));
        assert!(!nominees.has(b"Z") && !nominees.has(b"") && !nominees.has(b"close"));
        assert!(Nominees::of([&b"close"[..], b"keep-alive"].into_iter()).0.is_none());
    }

    #[test]
    fn many_fields_are_asked_for_among_many_nominees() {
        let line: Vec<u8> = (0..200_000).flat_map(|n| format!("x{n},").into_bytes()).collect();
        let nominees = Nominees::of([&line[..]].into_iter());
        // One after another, that would be forty billion comparisons.
        assert!((0..200_000).all(|_| !nominees.has(b"y12345")));
    }
}
