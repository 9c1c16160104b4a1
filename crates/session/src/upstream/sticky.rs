//! Requests that belong to a server (`sticky`): by a cookie that we set, by a route that the
//! application writes, or by a session that we learn.
//!
//! Invariant: a request that is bound to a server which cannot be asked goes where the method says,
//! and is bound to that one from then on.

use std::{fmt::Write as _, sync::Arc};

use md5::{Digest, Md5};

use super::{Peer, Selection, select::Text};
use crate::{
    keyed::Keyed,
    var::{Scope, Template},
    zone::{self, Zone},
};

/// `sticky`.
#[derive(Clone)]
pub enum Sticky {
    /// `sticky cookie`.
    Cookie(Arc<Cookie>),
    /// `sticky route`: the first of these that is not empty is a server's `route=`.
    Route(Vec<Template>),
    /// `sticky learn`.
    Learn(Arc<Learn>),
}

impl std::fmt::Debug for Sticky {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Sticky::Cookie(_) => "Cookie",
            Sticky::Route(_) => "Route",
            Sticky::Learn(_) => "Learn",
        })
    }
}

/// `sticky cookie name …`.
pub struct Cookie {
    /// Its name.
    pub name: Box<[u8]>,
    /// What the client sent: `$cookie_NAME`.
    pub sent: Template,
    /// `expires=`, in seconds; `u64::MAX`: for ever.
    pub expires_s: Option<u64>,
    /// `domain=`.
    pub domain: Option<Template>,
    /// `path=`.
    pub path: Option<Template>,
    /// `samesite=`; a variable must come to `strict`, `lax` or `none`.
    pub samesite: Option<Template>,
    /// `httponly`.
    pub httponly: bool,
    /// `secure`.
    pub secure: bool,
}

/// `sticky learn …`.
pub struct Learn {
    /// `create=`: the name of a session that a response begins.
    pub create: Vec<Template>,
    /// `lookup=`: the name of the session that a request belongs to.
    pub lookup: Vec<Template>,
    /// `zone=`.
    pub zone: Arc<Zone<Sessions>>,
    /// `timeout=`, in milliseconds.
    pub timeout_ms: u64,
    /// `header`: the session begins with the response's head, not with its end.
    pub header: bool,
}

/// What a `sticky learn` zone holds.
pub struct Sessions;

/// A session: whose it is, and when it was used last.
pub struct Session {
    owner: Box<str>,
    used_ms: u64,
}

impl zone::Kind for Sessions {
    const MODULE: &'static str = "ngx_http_upstream_sticky_module";
    type Memory = Keyed<Session>;

    fn memory(&self, size: u64) -> Keyed<Session> {
        // The node with the owner's name, which is 32 digits or a route.
        Keyed::new(size, 128)
    }
}

/// How far a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its head is there.
    Header,
    /// It is complete.
    End,
}

impl Sticky {
    /// Writes the name of the server that a request is bound to; nothing: to none.
    pub(crate) fn find<S: Scope>(&self, scope: &S, out: &mut Vec<u8>) {
        match self {
            Sticky::Cookie(cookie) => cookie.sent.write(scope, out),
            Sticky::Route(variables) => first(variables, scope, out),
            Sticky::Learn(learn) => {
                let name = Text::written(|out| first(&learn.lookup, scope, out));
                learn.owner(name.bytes(), forebay_rt::clock::now_ms(), out);
            }
        }
    }

    /// Writes the value of the `Set-Cookie` field that a response from this peer should have; `false`:
    /// none, and nothing is written. `wall_s`: seconds since 1970.
    pub(crate) fn set_cookie<S: Scope>(
        &self,
        scope: &S,
        selection: &Selection,
        peer: &Peer,
        wall_s: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let Sticky::Cookie(cookie) = self else { return false };
        if selection.bound.bytes() == peer.sticky_id.as_bytes() {
            return false;
        }
        cookie.write(scope, &peer.sticky_id, wall_s, out);
        true
    }

    /// Remembers the session that a response begins (`sticky learn`).
    pub(crate) fn learn<S: Scope>(&self, scope: &S, peer: &Peer, stage: Stage, now_ms: u64) {
        let Sticky::Learn(learn) = self else { return };
        if learn.header == (stage == Stage::Header) {
            let name = Text::written(|out| first(&learn.create, scope, out));
            learn.remember(name.bytes(), &peer.sticky_id, now_ms);
        }
    }
}

/// The first of several values that is not empty.
fn first<S: Scope>(variables: &[Template], scope: &S, out: &mut Vec<u8>) {
    for variable in variables {
        variable.write(scope, out);
        if !out.is_empty() {
            return;
        }
    }
}

impl Cookie {
    fn write<S: Scope>(&self, scope: &S, id: &str, wall_s: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.name);
        out.push(b'=');
        out.extend_from_slice(id.as_bytes());
        if let Some(seconds) = self.expires_s {
            expires(seconds, wall_s, out);
        }
        let texts = [("; domain=", &self.domain), ("; path=", &self.path)];
        for (name, template) in texts {
            if let Some(template) = template {
                part(name, &template.value(scope), out);
            }
        }
        if self.secure {
            out.extend_from_slice(b"; secure");
        }
        if self.httponly {
            out.extend_from_slice(b"; httponly");
        }
        let samesite = self.samesite.as_ref().map(|template| template.value(scope));
        let known = ["strict", "lax", "none"];
        if let Some(value) = samesite
            .filter(|value| known.iter().any(|known| value.eq_ignore_ascii_case(known.as_bytes())))
        {
            part("; samesite=", &value, out);
        }
    }
}

/// Adds a part of a cookie, unless it is empty or would end the cookie or the line.
fn part(name: &str, value: &[u8], out: &mut Vec<u8>) {
    if !value.is_empty() && !value.iter().any(|b| *b < b' ' || *b == b';' || *b == 0x7f) {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(value);
    }
}

fn expires(seconds: u64, wall_s: u64, out: &mut Vec<u8>) {
    if seconds == u64::MAX {
        out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT");
        return;
    }
    let at = wall_s.saturating_add(seconds).min(i64::MAX as u64) as i64;
    out.extend_from_slice(b"; expires=");
    forebay_rt::clock::format_time(b"%a, %d-%b-%y %H:%M:%S GMT", at, true, out);
    out.extend_from_slice(format!("; max-age={seconds}").as_bytes());
}

/// Names of sessions are no longer than that, in bytes; longer ones are nobody's.
const MAX_SESSION: usize = 1024;

impl Learn {
    /// Writes whose session that is, if it is known and not too old.
    fn owner(&self, name: &[u8], now_ms: u64, out: &mut Vec<u8>) {
        if name.is_empty() || name.len() > MAX_SESSION {
            return;
        }
        let (mut shard, hash) = self.zone.memory().lock(name);
        let Some(slot) = shard.find(hash, name) else { return };
        let Some(session) = shard.value(slot) else { return };
        if now_ms.saturating_sub(session.used_ms) > self.timeout_ms {
            shard.remove(slot);
            return;
        }
        session.used_ms = now_ms;
        out.extend_from_slice(session.owner.as_bytes());
        shard.touch(slot);
    }

    fn remember(&self, name: &[u8], owner: &str, now_ms: u64) {
        if name.is_empty() || name.len() > MAX_SESSION {
            return;
        }
        let (mut shard, hash) = self.zone.memory().lock(name);
        if let Some(slot) = shard.find(hash, name) {
            if let Some(session) = shard.value(slot) {
                session.used_ms = now_ms;
                if *session.owner != *owner {
                    session.owner = owner.into();
                }
            }
            return shard.touch(slot);
        }
        // The oldest goes first: those that are over, then those that were not used for longest.
        while shard.insert(hash, name, Session { owner: owner.into(), used_ms: now_ms }).is_none() {
            match shard.oldest() {
                Some(oldest) => drop(shard.remove(oldest)),
                None => return,
            }
        }
    }
}

/// What a cookie says for a server without `route=`: the MD5 of its address.
pub(crate) fn id_of(address: &str) -> Box<str> {
    let mut out = String::with_capacity(32);
    for byte in Md5::digest(address.as_bytes()) {
        let _ = write!(out, "{byte:02x}");
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use forebay_conf::Span;

    use super::*;
    use crate::{
        testing::{Text as Request, loading, nodes},
        upstream::{Group, Lease, Pick, Settings, directives},
        var::Registry,
        zone::Zones,
    };

    /// A scope whose cookie is `$text`; `$pre_x` is `x`.
    fn scope() -> Request {
        let mut scope = Request::new();
        scope.registry.builtin("cookie_id", |scope, out| {
            out.extend_from_slice(&scope.text);
            true
        });
        scope
    }

    fn group(block: &str, registry: &mut Registry<Request>) -> Group {
        let (mut settings, mut zones) = (Settings::default(), Zones::default());
        for node in nodes(block) {
            match node.name() {
                "sticky" => directives::sticky(&mut settings, &node, registry, &mut zones),
                _ => loading(|loader| directives::server(&mut settings, &node, loader)),
            }
            .unwrap();
        }
        Group::new("u", settings)
    }

    const SERVERS: &str =
        "server 10.0.0.1:81; server 10.0.0.2:81 drain route=b; server 10.0.0.3:81 route=c backup;";

    fn ask(group: &Group, scope: &mut Request, text: &str, now_ms: u64) -> (Selection, Lease) {
        scope.text = text.as_bytes().to_vec();
        let mut selection = group.begin(scope, None);
        let Pick::Peer(lease) = group.pick(&mut selection, now_ms) else { panic!("nobody") };
        (selection, lease)
    }

    fn who(group: &Group, scope: &mut Request, text: &str) -> String {
        ask(group, scope, text, 1000).1.peer().name.to_string()
    }

    #[test]
    fn a_cookie_binds_and_is_set_when_it_must_be() {
        let mut scope = scope();
        let sticky = "sticky cookie id expires=1h domain=.$pre_x path=/ httponly secure \
                      samesite=lax;";
        let group = group(&format!("{SERVERS} {sticky}"), &mut scope.registry);
        // md5("10.0.0.1:81")
        let id = "a7defdb08ca132b9a8439fc061bd4bd3";
        for (sent, name, cookie) in [
            ("", "10.0.0.1:81", Some(id)),
            (id, "10.0.0.1:81", None),
            ("unknown", "10.0.0.1:81", Some(id)),
            ("b", "10.0.0.2:81", None),
            ("c", "10.0.0.3:81", None),
        ] {
            let (selection, lease) = ask(&group, &mut scope, sent, 1000);
            assert_eq!(&*lease.peer().name, name, "{sent}");
            let mut out = Vec::new();
            let set = group.set_cookie(&scope, &selection, lease.peer(), 1_700_000_000, &mut out);
            let want = cookie.map(|id| {
                format!(
                    "id={id}; expires=Tue, 14-Nov-23 23:13:20 GMT; max-age=3600; domain=.x; path=/; \
                     secure; httponly; samesite=lax"
                )
            });
            assert_eq!((set, out), (want.is_some(), want.unwrap_or_default().into_bytes()));
        }
    }

    #[test]
    fn a_cookie_cannot_be_extended_by_a_variable() {
        let mut scope = scope();
        let sticky = "sticky cookie id path=$text samesite=$text expires=max;";
        let group = group(&format!("{SERVERS} {sticky}"), &mut scope.registry);
        let (selection, lease) = ask(&group, &mut scope, "x; domain=y\r\nz", 1000);
        let mut out = Vec::new();
        assert!(group.set_cookie(&scope, &selection, lease.peer(), 0, &mut out));
        let want = format!("id={}; expires=Thu, 31-Dec-37 23:55:55 GMT", lease.peer().sticky_id);
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn the_first_route_that_is_not_empty_binds() {
        let mut scope = scope();
        let group =
            group(&format!("{SERVERS} sticky route $cookie_id $pre_c;"), &mut scope.registry);
        assert_eq!(who(&group, &mut scope, "b"), "10.0.0.2:81");
        assert_eq!(who(&group, &mut scope, ""), "10.0.0.3:81");
        assert_eq!(who(&group, &mut scope, "z"), "10.0.0.1:81");
    }

    #[test]
    fn a_request_goes_elsewhere_when_its_server_cannot_be_asked() {
        let mut scope = scope();
        let block = "server 10.0.0.1:81 route=a; server 10.0.0.2:81 route=b max_conns=1; \
                     sticky route $cookie_id;";
        let group = group(block, &mut scope.registry);
        let (mut selection, held) = ask(&group, &mut scope, "b", 1000);
        assert_eq!(who(&group, &mut scope, "b"), "10.0.0.1:81");
        // The next try of a request is not bound.
        let Pick::Peer(next) = group.pick(&mut selection, 1000) else { panic!() };
        assert_eq!((&*held.peer().name, &*next.peer().name), ("10.0.0.2:81", "10.0.0.1:81"));
    }

    #[test]
    fn sessions_are_learned_and_end() {
        let mut scope = scope();
        let sticky =
            "sticky learn create=$cookie_id lookup=$cookie_id zone=z:32k timeout=1m header;";
        let block = format!("server 10.0.0.1:81; server 10.0.0.2:81; {sticky}");
        let group = group(&block, &mut scope.registry);
        let now_ms = forebay_rt::clock::now_ms();
        let (_, lease) = ask(&group, &mut scope, "s1", now_ms);
        let first = lease.peer().name.to_string();
        group.learn(&scope, lease.peer(), Stage::End, now_ms);
        assert_ne!(who(&group, &mut scope, "s1"), first, "it begins with the head");
        group.learn(&scope, lease.peer(), Stage::Header, now_ms);
        assert!((0..9).all(|_| who(&group, &mut scope, "s1") == first));
        let Some(Sticky::Learn(learn)) = &group.settings.sticky else { panic!() };
        let owner = |now_ms| {
            let mut out = Vec::new();
            learn.owner(b"s1", now_ms, &mut out);
            !out.is_empty()
        };
        assert!(owner(now_ms + 60_000) && owner(now_ms + 120_000), "each use prolongs it");
        assert!(!owner(now_ms + 180_001));
    }

    #[test]
    fn a_zone_of_sessions_has_its_size() {
        let mut zones = Zones::default();
        let zone = zones.used::<Sessions>("z", Span::default()).unwrap();
        zones.declare_again("z", 64 << 10, Span::default(), Sessions).unwrap();
        let (create, lookup) = (Vec::new(), Vec::new());
        let learn = Learn { create, lookup, zone, timeout_ms: 1000, header: false };
        for n in 0..10_000u64 {
            learn.remember(n.to_string().as_bytes(), "owner", n);
        }
        let held = learn.zone.memory().lock(b"").0.len();
        assert!((100..=512).contains(&held), "{held}");
        let mut out = Vec::new();
        learn.owner(b"9999", 9999, &mut out);
        assert_eq!(out, b"owner");
        learn.remember(&[b'x'; MAX_SESSION + 1], "owner", 1);
        learn.remember(b"", "owner", 1);
        assert_eq!(learn.zone.memory().lock(b"").0.len(), held);
    }
}
