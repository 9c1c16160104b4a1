//! Which server answers: `server_name` against the host asked for.
//!
//! Order, as in nginx: the exact name, the longest wildcard that begins with `*`, the longest that
//! ends with `*`, the first regular expression in the file, the default server of the address.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashbrown::HashMap;

use forebay_session::regex::{Groups, Regex};

use forebay_wire::h1;

use crate::{
    core::{ServerName, ServerSettings},
    plan::{Plan, ServerId},
};

/// The names behind one listening address.
pub struct Names {
    /// Which names these are: no others have the same number, nor will any.
    pub(crate) number: u64,
    /// Who answers what nobody else does.
    pub default: ServerId,
    /// Whether its servers judge heads differently, so that it matters which one is meant before the head
    /// is read whole.
    pub heads_differ: bool,
    exact: HashMap<Box<[u8]>, ServerId>,
    /// `*.example.com` by `.example.com`.
    suffixes: HashMap<Box<[u8]>, ServerId>,
    /// `www.example.*` by `www.example.`.
    prefixes: HashMap<Box<[u8]>, ServerId>,
    regexes: Vec<(Regex, Groups, ServerId)>,
    /// The server of the first name, and whether there are others.
    first: Option<ServerId>,
    several: bool,
}

impl Default for Names {
    fn default() -> Names {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Names {
            number: NEXT.fetch_add(1, Relaxed),
            default: ServerId::default(),
            heads_differ: false,
            exact: HashMap::default(),
            suffixes: HashMap::default(),
            prefixes: HashMap::default(),
            regexes: Vec::new(),
            first: None,
            several: false,
        }
    }
}

/// A server, and the regular expression by which it was found.
pub struct Found<'a> {
    /// The server.
    pub server: ServerId,
    /// To be run again for its captures.
    pub regex: Option<(&'a Regex, &'a Groups)>,
}

impl Names {
    /// No names, and that server for everything.
    pub fn new(default: ServerId) -> Names {
        Names { default, ..Names::default() }
    }

    /// Adds a name; `false`: another server has it already, and keeps it.
    pub fn add(&mut self, name: &ServerName, server: ServerId) -> bool {
        self.several |= *self.first.get_or_insert(server) != server;
        let table = match name {
            ServerName::Exact(name) => (&mut self.exact, name),
            ServerName::Suffix(name) => (&mut self.suffixes, name),
            ServerName::Prefix(name) => (&mut self.prefixes, name),
            ServerName::Regex(regex, groups) => {
                self.regexes.push((regex.clone(), groups.clone(), server));
                return true;
            }
            ServerName::Invalid(_) => return true,
        };
        let (table, name) = table;
        if table.contains_key(name) {
            return false;
        }
        table.insert(name.clone(), server);
        true
    }

    /// The server for a host: lower case, without port and trailing dot; empty if none was sent.
    pub fn find(&self, host: &[u8]) -> Found<'_> {
        self.find_named(host).unwrap_or(Found { server: self.default, regex: None })
    }

    /// The settings of the server for a host as it was sent; `None`: it is none, or too odd to be one.
    #[cold]
    pub fn settings_for<'a>(&self, sent: &[u8], plan: &'a Plan) -> Option<&'a ServerSettings> {
        let mut host = Vec::new();
        h1::validate_host(sent, &mut host).ok()?;
        Some(&plan.server(self.find(&host).server).settings)
    }

    /// Whether more than one server is there to choose from.
    pub fn has_several(&self) -> bool {
        self.several
    }

    /// All of them, the default first; a server may come more than once.
    pub fn servers(&self) -> impl Iterator<Item = ServerId> {
        let named = self.exact.values().chain(self.suffixes.values()).chain(self.prefixes.values());
        let matched = self.regexes.iter().map(|(_, _, server)| server);
        std::iter::once(self.default).chain(named.chain(matched).copied())
    }

    /// The server that has the name; `None`: nobody has.
    pub fn find_named(&self, host: &[u8]) -> Option<Found<'_>> {
        let plain = |server| Some(Found { server, regex: None });
        if let Some(server) = self.exact.get(host) {
            return plain(*server);
        }
        if host.is_empty() {
            return None;
        }
        if !self.suffixes.is_empty() {
            let dots = host.iter().enumerate().filter(|(_, b)| **b == b'.');
            if let Some(server) = dots.filter_map(|(at, _)| self.suffixes.get(&host[at..])).next() {
                return plain(*server);
            }
        }
        if !self.prefixes.is_empty() {
            let dots = host.iter().enumerate().rev().filter(|(_, b)| **b == b'.');
            let mut matches = dots.filter_map(|(at, _)| self.prefixes.get(&host[..=at]));
            if let Some(server) = matches.next() {
                return plain(*server);
            }
        }
        let matching = self.regexes.iter().find(|(regex, _, _)| regex.is_match(host));
        let (regex, groups, server) = matching?;
        Some(Found { server: *server, regex: Some((regex, groups)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_conf::Span;

    #[test]
    fn the_more_specific_name_wins() {
        let regex = |p: &str| {
            ServerName::Regex(Regex::compile(p.as_bytes(), true, Span::default()).unwrap(), vec![])
        };
        let mut names = Names { default: ServerId(9), ..Names::default() };
        let all = [
            ServerName::Exact((*b"www.a.com").into()),
            ServerName::Suffix((*b".a.com").into()),
            ServerName::Suffix((*b".b.a.com").into()),
            ServerName::Prefix((*b"www.").into()),
            ServerName::Prefix((*b"www.x.").into()),
            regex(r"^m\d+\."),
            ServerName::Exact((*b"").into()),
        ];
        for (id, name) in all.iter().enumerate() {
            assert!(names.add(name, ServerId(id as u32)));
        }
        let cases: [(&[u8], u32); 10] = [
            (b"www.a.com", 0),
            (b"x.a.com", 1),
            (b".a.com", 1),
            (b"x.b.a.com", 2),
            (b"www.org", 3),
            (b"www.x.org", 4),
            (b"m1.org", 5),
            (b"", 6),
            (b"a.com", 9),
            (b"other", 9),
        ];
        for (host, expected) in cases {
            assert_eq!(names.find(host).server, ServerId(expected), "{host:?}");
        }
        assert!(!names.add(&ServerName::Exact((*b"www.a.com").into()), ServerId(7)));
    }
}
