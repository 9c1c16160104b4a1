//! Cookies that tell clients apart (`ngx_http_userid_filter_module`).
//!
//! Invariant: what a client sends is a number to count it by, and is believed no further.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use bytes::Bytes;
use forebay_conf::{Arity, Error, Node, value};
use forebay_rt::clock;
use forebay_session::{
    log::{Severity, Shown},
    var::{self, Registry},
};
use forebay_wire::{
    base64::{self, Alphabet},
    date::write_cookie_time,
    h1::FieldId,
};

use crate::{
    handler::{Filter, Filtered},
    inherit,
    module::{self, ANY, Builder, Directive, Module, set},
    request::Request,
    variables::cookie_value,
};

/// `ngx_http_userid_filter_module`.
pub struct UserId;

/// `userid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Off,
    /// Cookies are read, not sent.
    Log,
    V1,
    On,
}

/// `userid_expires`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expires {
    /// With the browser's session.
    Off,
    Max,
    /// In that many seconds.
    In(i64),
}

/// What one level sets.
#[derive(Default)]
pub struct Conf {
    mode: Option<Mode>,
    service: Option<u32>,
    name: Option<Box<[u8]>>,
    domain: Option<Box<[u8]>>,
    path: Option<Box<[u8]>>,
    expires: Option<Expires>,
    flags: Option<u32>,
    p3p: Option<Box<[u8]>>,
    mark: Option<Option<u8>>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; mode, service, name, domain, path, expires, flags, p3p, mark);
    }
}

const FLAGS_OFF: u32 = 1;
/// The flags, in the order in which a cookie has them.
const FLAGS: [(&str, u32, &str); 5] = [
    ("secure", 2, "; secure"),
    ("httponly", 4, "; httponly"),
    ("samesite=strict", 8, "; samesite=strict"),
    ("samesite=lax", 16, "; samesite=lax"),
    ("samesite=none", 32, "; samesite=none"),
];

impl Module for UserId {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_userid_filter_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "userid",
            &["on | v1 | log | off"],
            "off",
            ANY,
            Arity::ONE,
            "Whether clients get a cookie that tells them apart.",
            |c, n, _| {
                let modes =
                    [("off", Mode::Off), ("log", Mode::Log), ("v1", Mode::V1), ("on", Mode::On)];
                value::set_enum(&mut c.mode, n, &modes)
            },
        ),
        set(
            "userid_domain",
            &["name | none"],
            "none",
            ANY,
            Arity::ONE,
            "The domain of the cookie.",
            |c, n, _| set_unless_none(&mut c.domain, n, "; domain="),
        ),
        set(
            "userid_expires",
            &["time | max | off"],
            "off",
            ANY,
            Arity::ONE,
            "How long the cookie is kept.",
            |c, n, _| value::set_once(&mut c.expires, n, expires),
        ),
        set(
            "userid_flags",
            &["off | flag ..."],
            "off",
            ANY,
            Arity::between(1, 3),
            "Attributes of the cookie.",
            |c, n, cx| {
                let mut table = vec![("off", FLAGS_OFF)];
                table.extend(FLAGS.map(|(name, bit, _)| (name, bit)));
                value::set_bits(&mut c.flags, n, &table, cx.loader.diags)
            },
        ),
        set(
            "userid_mark",
            &["letter | digit | = | off"],
            "off",
            ANY,
            Arity::ONE,
            "A character in place of the cookie's padding; cookies without it are sent again.",
            |c, n, _| value::set_once(&mut c.mark, n, mark),
        ),
        set(
            "userid_name",
            &["name"],
            "uid",
            ANY,
            Arity::ONE,
            "The name of the cookie.",
            |c, n, _| value::set_bytes(&mut c.name, n),
        ),
        set(
            "userid_p3p",
            &["string | none"],
            "none",
            ANY,
            Arity::ONE,
            "The P3P field that goes with the cookie.",
            |c, n, _| set_unless_none(&mut c.p3p, n, ""),
        ),
        set(
            "userid_path",
            &["path"],
            "/",
            ANY,
            Arity::ONE,
            "The path of the cookie.",
            |c, n, _| {
                value::set_once(&mut c.path, n, |n| {
                    Ok([b"; path=", n.arg(0)?.bytes()].concat().into())
                })
            },
        ),
        set(
            "userid_service",
            &["number"],
            "IP address of the server",
            ANY,
            Arity::ONE,
            "The number of the server that sends the cookie.",
            |c, n, _| value::set_number(&mut c.service, n),
        ),
    ];

    fn variables(registry: &mut Registry<Request>) {
        registry.builtin("uid_got", |r, out| {
            let Some(settings) = r.location().setting::<Arc<Settings>>() else { return false };
            let state = State::of(r, settings);
            let got = state.got;
            state.keep(r);
            put(out, settings, got)
        });
        registry.builtin("uid_set", |r, out| {
            let Some(settings) = r.location().setting::<Arc<Settings>>() else { return false };
            if !settings.sends() {
                return false;
            }
            let mut state = State::of(r, settings);
            state.create(r, settings);
            let set = state.set;
            state.keep(r);
            put(out, settings, set)
        });
        registry.assignable(
            "uid_reset",
            |r, out| {
                r.main.context(|Reset(value)| out.extend_from_slice(value));
                true
            },
            |r, value| r.main.context(|Reset(kept)| *kept = value.to_vec()),
        );
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let mode = conf.mode.unwrap_or(Mode::Off);
        if mode == Mode::Off {
            return Ok(());
        }
        let text =
            |text: &Option<Box<[u8]>>, default: &[u8]| text.as_deref().unwrap_or(default).to_vec();
        let settings = Arc::new(Settings {
            mode,
            service: conf.service,
            name: text(&conf.name, b"uid"),
            domain: text(&conf.domain, b""),
            path: text(&conf.path, b"; path=/"),
            expires: conf.expires.unwrap_or(Expires::Off),
            flags: conf.flags.unwrap_or(FLAGS_OFF),
            p3p: text(&conf.p3p, b"").into(),
            mark: conf.mark.unwrap_or(None),
        });
        b.keep(settings.clone());
        if settings.sends() {
            b.filter(Sender(settings));
        }
        Ok(())
    }
}

fn set_unless_none(slot: &mut Option<Box<[u8]>>, node: &Node, prefix: &str) -> Result<(), Error> {
    value::set_once(slot, node, |node| {
        let arg = node.arg(0)?;
        Ok(match arg.is("none") {
            true => Box::default(),
            false => [prefix.as_bytes(), &arg.value].concat().into(),
        })
    })
}

fn expires(node: &Node) -> Result<Expires, Error> {
    let arg = node.arg(0)?;
    Ok(match &*arg.value {
        b"max" => Expires::Max,
        b"off" => Expires::Off,
        text => {
            let seconds = value::sec(text).and_then(|seconds| i64::try_from(seconds).ok());
            Expires::In(seconds.ok_or_else(|| node.error("invalid value"))?)
        }
    })
}

fn mark(node: &Node) -> Result<Option<u8>, Error> {
    let arg = node.arg(0)?;
    match &*arg.value {
        b"off" => Ok(None),
        [mark] if mark.is_ascii_alphanumeric() || *mark == b'=' => Ok(Some(*mark)),
        _ => Err(node.error("value must be \"off\" or a single letter, digit or \"=\"")),
    }
}

/// What holds at one level.
struct Settings {
    mode: Mode,
    service: Option<u32>,
    name: Vec<u8>,
    domain: Vec<u8>,
    path: Vec<u8>,
    expires: Expires,
    flags: u32,
    p3p: Bytes,
    mark: Option<u8>,
}

impl Settings {
    fn sends(&self) -> bool {
        matches!(self.mode, Mode::V1 | Mode::On)
    }
}

/// Four numbers of the machine's byte order; the last one is never 0.
type Id = [u32; 4];

/// `$uid_reset`, as `set` has it.
#[derive(Default)]
struct Reset(Vec<u8>);

/// What is known of the client, for the request.
#[derive(Default)]
struct State {
    read: bool,
    got: Option<Id>,
    set: Option<Id>,
    cookie: Vec<u8>,
    reset: bool,
}

impl State {
    /// Taken out of the request, as variables that are read meanwhile look into it too.
    fn of(r: &Request, settings: &Settings) -> State {
        let mut state = r.main.context(std::mem::take::<State>);
        if !state.read {
            state.read = true;
            state.read(r, settings);
        }
        state
    }

    fn keep(self, r: &Request) {
        r.main.context(|state| *state = self);
    }

    /// `ngx_http_userid_get_uid`.
    fn read(&mut self, r: &Request, settings: &Settings) {
        let mut fields = r.input.head.headers.iter().filter(|field| field.id == FieldId::Cookie);
        let found = fields.find_map(|field| {
            let field = r.input.text(field.value);
            Some((field, cookie_value(field, &settings.name)?))
        });
        let Some((field, cookie)) = found else { return };
        let log = |what: &str| {
            let (field, doing) = (Shown(field), r.doing_with_head());
            r.log_error(
                Severity::Error,
                format_args!("client sent {what} userid cookie \"{field}\"{doing}"),
            );
        };
        self.cookie = cookie.to_vec();
        // What follows 22 characters is the padding, the mark, or garbage of old times.
        let Some(text) = cookie.get(..22) else { return log("too short") };
        let Some(bytes) = base64::decode(text, Alphabet::Standard) else { return log("invalid") };
        let mut id = [0; 4];
        for (word, bytes) in id.iter_mut().zip(bytes.chunks(4)) {
            let mut whole = [0; 4];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u32::from_ne_bytes(whole);
        }
        self.got = Some(id).filter(|id| id[3] != 0);
    }

    /// `ngx_http_userid_create_uid`: the number to send, if one is to be sent.
    fn create(&mut self, r: &Request, settings: &Settings) {
        if self.set.is_some() {
            return;
        }
        if let Some(got) = self.got {
            let mut reset = Vec::new();
            if let Some(id) = r.plan.registry.find("uid_reset") {
                var::read(r, id, &mut reset);
            }
            if matches!(&reset[..], b"" | b"0") {
                let is_marked = |mark| self.cookie.get(22..24) == Some(&[mark, b'=']);
                if settings.mark.is_some_and(|mark| !is_marked(mark)) {
                    self.set = Some(got);
                }
                return;
            }
            self.reset = true;
            if reset == b"log" {
                let name = Shown(&settings.name);
                let [a, b, c, d] = got;
                r.log_error(
                    Severity::Notice,
                    format_args!("userid cookie \"{name}={a:08X}{b:08X}{c:08X}{d:08X}\" was reset"),
                );
            }
        }
        self.set = Some(new_id(r, settings));
    }
}

/// `userid_init_worker`: what tells this process from others that send cookies.
fn start_value() -> u32 {
    static START: OnceLock<u32> = OnceLock::new();
    *START.get_or_init(|| {
        let microseconds = clock::wall_ms() % 1000 * 1000;
        ((microseconds / 20) as u32) << 16 | (std::process::id() & 0xffff)
    })
}

fn new_id(r: &Request, settings: &Settings) -> Id {
    static SEQUENCE_V1: AtomicU32 = AtomicU32::new(1);
    static SEQUENCE_V2: AtomicU32 = AtomicU32::new(FIRST_V2);
    const FIRST_V2: u32 = 0x0303_0302;
    let now = (clock::wall_ms() / 1000) as u32;
    if settings.mode == Mode::V1 {
        let sequence = SEQUENCE_V1.fetch_add(0x100, Relaxed);
        return [settings.service.unwrap_or(0), now, start_value(), sequence];
    }
    let service = match (settings.service, r.connection.local.ip()) {
        (Some(service), _) => service.to_be(),
        (None, Some(std::net::IpAddr::V4(ip))) => u32::from_ne_bytes(ip.octets()),
        (None, Some(std::net::IpAddr::V6(ip))) => {
            let [.., a, b, c, d] = ip.octets();
            u32::from_ne_bytes([a, b, c, d])
        }
        (None, None) => 0,
    };
    let next = |sequence: u32| Some(sequence.wrapping_add(0x100).max(FIRST_V2));
    let sequence = SEQUENCE_V2.fetch_update(Relaxed, Relaxed, next).unwrap_or(FIRST_V2);
    [service, now.to_be(), start_value().to_be(), sequence.to_be()]
}

/// `NAME=` and the number in hexadecimal.
fn put(out: &mut Vec<u8>, settings: &Settings, id: Option<Id>) -> bool {
    let Some([a, b, c, d]) = id else { return false };
    out.extend_from_slice(&settings.name);
    out.extend_from_slice(format!("={a:08X}{b:08X}{c:08X}{d:08X}").as_bytes());
    true
}

struct Sender(Arc<Settings>);

impl Filter for Sender {
    fn filter(&self, r: &mut Request) -> Filtered {
        if r.subrequest {
            return Filtered::Continue;
        }
        let settings = &self.0;
        let mut state = State::of(r, settings);
        state.create(r, settings);
        if let Some(id) = state.set {
            let cookie = set_cookie(settings, &state, id);
            r.response.add("Set-Cookie", cookie);
            if !settings.p3p.is_empty() {
                r.response.add("P3P", settings.p3p.clone());
            }
        }
        state.keep(r);
        Filtered::Continue
    }
}

/// `ngx_http_userid_set_uid`.
fn set_cookie(settings: &Settings, state: &State, id: Id) -> Vec<u8> {
    let mut out = settings.name.clone();
    out.push(b'=');
    match settings.mark {
        // The client's own number, marked.
        Some(mark) if state.got.is_some() && !state.reset => {
            out.extend_from_slice(state.cookie.get(..22).unwrap_or_default());
            out.extend_from_slice(&[mark, b'=']);
        }
        mark => {
            let bytes: Vec<u8> = id.iter().flat_map(|word| word.to_ne_bytes()).collect();
            base64::encode(&bytes, &mut out);
            let padding = out.len() - 2;
            out[padding] = mark.unwrap_or(b'=');
        }
    }
    match settings.expires {
        Expires::Off | Expires::In(0) => {}
        Expires::Max => out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT"),
        Expires::In(seconds) => {
            out.extend_from_slice(b"; expires=");
            let now = (clock::wall_ms() / 1000) as i64;
            write_cookie_time(now.saturating_add(seconds), &mut out);
        }
    }
    out.extend_from_slice(&settings.domain);
    out.extend_from_slice(&settings.path);
    for (_, bit, text) in FLAGS {
        if settings.flags & bit != 0 {
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn sent(conf: &str, fields: &str) -> String {
        let mut r = testing::request(conf, &format!("GET / HTTP/1.1\r\n{fields}\r\n"));
        let settings = r.location().setting::<Arc<Settings>>().unwrap().clone();
        assert_eq!(Sender(settings).filter(&mut r), Filtered::Continue);
        testing::fields(&r)
    }

    /// The 16 bytes 1 to 16.
    const KNOWN: &str = "AQIDBAUGBwgJCgsMDQ4PEA==";

    #[test]
    fn a_new_client_gets_a_cookie_with_its_attributes() {
        let conf = "userid on; userid_name n; userid_domain d; userid_path /p; userid_expires max;
            userid_p3p 'x'; userid_flags httponly secure samesite=lax; userid_service 1;
            userid_mark Z;";
        let fields = sent(conf, "");
        let value =
            fields.strip_prefix("Set-Cookie: n=AAAAA").expect("the number is its service's");
        assert_eq!(
            &value[17..],
            "Z=; expires=Thu, 31-Dec-37 23:55:55 GMT; domain=d; path=/p; secure; httponly; \
             samesite=lax\nP3P: x\n"
        );
    }

    #[test]
    fn a_known_client_gets_none_but_for_the_mark() {
        let cookie = format!("Cookie: a=b; uid={KNOWN}\r\n");
        assert_eq!(sent("userid on;", &cookie), "");
        assert_eq!(
            sent("userid on; userid_mark A;", &cookie),
            "Set-Cookie: uid=AQIDBAUGBwgJCgsMDQ4PEA==; path=/\n".replace("==;", "A=;")
        );
        assert_eq!(sent("userid on; userid_mark =;", &cookie), "");
    }

    #[test]
    fn hostile_cookies_are_as_none() {
        let zero = "A".repeat(22);
        for value in ["", "x", &"!".repeat(22), &zero, "AQIDBAUGBwgJCgsMDQ4P", "\u{e9}\u{e9}"] {
            let fields = sent("userid on;", &format!("Cookie: uid={value}\r\n"));
            assert!(fields.starts_with("Set-Cookie: uid="), "{value}: {fields}");
        }
    }

    #[test]
    fn numbers_differ() {
        let r = testing::request("userid on;", "GET / HTTP/1.1\r\n\r\n");
        let settings = r.location().setting::<Arc<Settings>>().unwrap();
        assert_ne!(new_id(&r, settings), new_id(&r, settings));
    }

    #[test]
    fn nothing_runs_where_it_is_off() {
        let r = testing::request("userid off; userid_name x;", "GET / HTTP/1.1\r\n\r\n");
        assert!(r.location().setting::<Arc<Settings>>().is_none());
    }

    #[test]
    fn wrong_directives_have_nginx_texts() {
        let cases = [
            ("userid yes;", "invalid value \"yes\""),
            (
                "userid_mark ab;",
                "\"userid_mark\" directive value must be \"off\" or a single letter, digit or \"=\"",
            ),
            ("userid_mark -;", "value must be \"off\" or a single letter, digit or \"=\""),
            ("userid_expires x;", "\"userid_expires\" directive invalid value"),
            ("userid_flags off off off off;", "invalid number of arguments"),
            ("userid_flags x;", "invalid value \"x\""),
            ("userid_service x;", "\"userid_service\" directive invalid number"),
            ("userid_path /; userid_path /;", "\"userid_path\" directive is duplicate"),
        ];
        for (conf, want) in cases {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }
}
