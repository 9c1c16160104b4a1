//! Which location: exact names, the longest prefix, then regular expressions.
//!
//! Answers nginx's `ngx_http_core_find_location`.

use std::cmp::Ordering;

use hashbrown::HashMap;

use forebay_session::regex::{Groups, Regex};

use crate::{
    plan::{Kind, LocId, Plan},
    request::Request,
};

/// The locations inside a server or inside another location.
#[derive(Default)]
pub struct Tree {
    exact: HashMap<Box<[u8]>, LocId>,
    /// Prefixes in byte order.
    prefixes: Vec<Prefix>,
    /// Whether a path that lacks the last slash of a name may be redirected, see
    /// [`crate::plan::Location::auto_redirect`].
    pub redirects: bool,
    /// Names that end in a slash, without it: the exact and the prefix location of that name, or one of
    /// them twice.
    slashed: HashMap<Box<[u8]>, (LocId, LocId)>,
    /// Regular expressions in the order of the file.
    regexes: Vec<(Regex, Groups, LocId)>,
}

struct Prefix {
    /// See [`beginning`].
    beginning: u64,
    name: Box<[u8]>,
    id: LocId,
    noregex: bool,
    /// The longest other name that this one begins with.
    parent: Option<usize>,
}

impl Tree {
    /// Adds a location; `false`: there is one of that name already.
    pub fn add(&mut self, kind: Kind, name: &[u8], id: LocId) -> bool {
        match kind {
            Kind::Exact => self.exact.insert(name.into(), id).is_none(),
            Kind::Prefix { noregex } => {
                let same = self.prefixes.iter().any(|prefix| *prefix.name == *name);
                let (beginning, name) = (beginning(name), name.into());
                self.prefixes.push(Prefix { beginning, name, id, noregex, parent: None });
                !same
            }
            _ => unreachable!("other kinds are not looked up by name"),
        }
    }

    /// Adds a regular expression, after those there are.
    pub fn add_regex(&mut self, regex: Regex, groups: Groups, id: LocId) {
        self.regexes.push((regex, groups, id));
    }

    /// To be called once, after the last `add`.
    pub fn finish(&mut self) {
        self.prefixes.sort_by(|a, b| a.name.cmp(&b.name));
        for i in 1..self.prefixes.len() {
            let mut candidate = Some(i - 1);
            while let Some(c) = candidate {
                if self.prefixes[i].name.starts_with(&self.prefixes[c].name) {
                    break;
                }
                candidate = self.prefixes[c].parent;
            }
            self.prefixes[i].parent = candidate;
        }
        let slashless = |name: &[u8]| -> Option<Box<[u8]>> {
            Some(name.strip_suffix(b"/").filter(|name| !name.is_empty())?.into())
        };
        for prefix in &self.prefixes {
            if let Some(name) = slashless(&prefix.name) {
                self.slashed.insert(name, (prefix.id, prefix.id));
            }
        }
        for (name, &id) in &self.exact {
            if let Some(name) = slashless(name) {
                self.slashed.entry(name).and_modify(|both| both.0 = id).or_insert((id, id));
            }
        }
    }

    /// The longest prefix of the path. In byte order it stands at or before the path, and whatever
    /// stands between the two begins with it: so it is found among the ancestors of the last one.
    fn longest(&self, path: &[u8]) -> Option<&Prefix> {
        let begins = beginning(path);
        let stands_before = |prefix: &Prefix| match prefix.beginning.cmp(&begins) {
            Ordering::Equal => &*prefix.name <= path,
            order => order.is_lt(),
        };
        let after = self.prefixes.partition_point(stands_before);
        let mut candidate = after.checked_sub(1);
        while let Some(c) = candidate {
            let prefix = &self.prefixes[c];
            if path.starts_with(&prefix.name) {
                return Some(prefix);
            }
            candidate = prefix.parent;
        }
        None
    }
}

/// The first eight bytes as a number that is in the order of the names, as far as it differs.
fn beginning(name: &[u8]) -> u64 {
    match name.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..name.len()].copy_from_slice(name);
            u64::from_be_bytes(first)
        }
    }
}

/// What [`locate`] found.
pub enum Located {
    /// This location.
    At(LocId),
    /// One whose name is the path with a slash behind it, where the client is to be sent.
    Slash(LocId),
    /// A regular expression cannot be asked; this is the best so far.
    Broken(LocId),
}

enum Match {
    /// See [`Located::Slash`].
    Slash(LocId),
    /// Nothing can be better.
    Final(LocId),
    /// A regular expression of an enclosing level may be better.
    Prefix(Option<LocId>),
    /// See [`Located::Broken`].
    Broken(Option<LocId>),
}

/// The location of a path within a server; its level if there is none.
pub fn locate(plan: &Plan, r: &Request) -> Located {
    let server = plan.server(r.server);
    match search(plan, &plan.location(server.location).tree, r) {
        Match::Slash(id) => Located::Slash(id),
        Match::Final(id) => Located::At(id),
        Match::Prefix(found) => Located::At(found.unwrap_or(server.location)),
        Match::Broken(found) => Located::Broken(found.unwrap_or(server.location)),
    }
}

/// The location that lacks nothing but a slash behind the path, if that or another of the name redirects
/// there; one that is named as the path is wins.
fn with_slash(plan: &Plan, tree: &Tree, path: &[u8]) -> Option<LocId> {
    let (found, other) = *tree.slashed.get(path)?;
    let same = tree.prefixes.binary_search_by(|prefix| (*prefix.name).cmp(path)).is_ok();
    let redirects = [found, other].iter().any(|id| plan.location(*id).auto_redirect);
    (redirects && !same).then_some(found)
}

fn search(plan: &Plan, tree: &Tree, r: &Request) -> Match {
    if let Some(id) = tree.exact.get(&r.uri[..]) {
        return Match::Final(*id);
    }
    if tree.redirects
        && let Some(id) = with_slash(plan, tree, &r.uri)
    {
        return Match::Slash(id);
    }
    let mut found = None;
    let mut regexes_count = true;
    if let Some(prefix) = tree.longest(&r.uri) {
        found = Some(prefix.id);
        regexes_count = !prefix.noregex;
        match search(plan, &plan.location(prefix.id).tree, r) {
            done @ (Match::Final(_) | Match::Slash(_)) => return done,
            // `^~` of the inner one spares it the regular expressions beside it, not those out here.
            Match::Prefix(Some(inner)) => found = Some(inner),
            Match::Broken(inner) => return Match::Broken(inner.or(found)),
            Match::Prefix(None) => {}
        }
    }
    if !regexes_count {
        return Match::Prefix(found);
    }
    for (regex, groups, id) in &tree.regexes {
        let pattern = (regex, &plan.location(*id).name[..]);
        let Ok(matched) = r.matches(pattern, &r.uri, groups) else { return Match::Broken(found) };
        if matched {
            // DIFFERS(nested-in-regex): nginx forgets to make the tree of these locations
            // (ngx_http_init_static_location_trees), and finds but the regular expressions among them.
            let inner = match search(plan, &plan.location(*id).tree, r) {
                Match::Slash(id) => return Match::Slash(id),
                Match::Final(inner) => inner,
                Match::Prefix(inner) => inner.unwrap_or(*id),
                Match::Broken(inner) => return Match::Broken(inner.or(Some(*id))),
            };
            return Match::Final(inner);
        }
    }
    Match::Prefix(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_is_found_whatever_stands_between() {
        let names = [
            "",
            "/",
            "/a/",
            "/a/b",
            "/a/b/c/",
            "/a/ba",
            "/b",
            "/img/x",
            "/a/b/c/d",
            "/a/b/c/d/e",
            "/a/b/c/d/f/g",
            "/a/b/c/d\0",
            "/b\0",
        ];
        let mut tree = Tree::default();
        for (i, name) in names.iter().enumerate() {
            assert!(tree.add(Kind::Prefix { noregex: false }, name.as_bytes(), LocId(i as u32)));
        }
        tree.finish();
        let paths = [
            "/",
            "/a",
            "/a/",
            "/a/b",
            "/a/bz",
            "/a/b/c",
            "/a/b/c/e",
            "/a/bab",
            "/img",
            "/img/x/y",
            "/c",
            "/a/b/c/d/",
            "/a/b/c/d/f/g",
            "/a/b/c/d/f/h",
            "/a/b/c/d\0x",
            "/b\0",
            "/b\0/",
            "*",
        ];
        for path in paths {
            let expected = names.iter().filter(|n| path.starts_with(**n)).max_by_key(|n| n.len());
            let found = tree.longest(path.as_bytes()).map(|prefix| &prefix.name[..]);
            assert_eq!(found, expected.map(|n| n.as_bytes()), "{path}");
        }
    }
}
