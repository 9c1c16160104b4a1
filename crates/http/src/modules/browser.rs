//! Old browsers and new ones by their `User-Agent` (`ngx_http_browser_module`).
//!
//! Invariant: nothing runs for a request that does not use the variables.

use bytes::Bytes;
use forebay_conf::{Arity, Error, Node, value};
use forebay_session::var::Registry;
use forebay_wire::h1::FieldId;
use memchr::memmem;

use crate::{
    inherit,
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    request::Request,
};

/// `ngx_http_browser_module`.
pub struct Browser;

/// What one level sets.
#[derive(Default)]
pub struct Conf {
    modern: Option<Modern>,
    ancient: Option<Ancient>,
    modern_value: Option<Bytes>,
    ancient_value: Option<Bytes>,
}

/// `modern_browser`.
#[derive(Clone, Default)]
struct Modern {
    /// Which of [`KNOWN`], and from which version on.
    browsers: Vec<(usize, u64)>,
    unlisted: bool,
}

/// `ancient_browser`.
#[derive(Clone, Default)]
struct Ancient {
    texts: Vec<Box<[u8]>>,
    netscape4: bool,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; modern, ancient, modern_value, ancient_value);
    }
}

/// A browser that has a name of its own.
struct Known {
    name: &'static str,
    /// How many bytes of the field are not looked at.
    skip: usize,
    /// What stands before the version.
    text: &'static str,
    /// How far behind the start of that text the version begins.
    version_at: usize,
}

/// Opera comes first: it says that it is MSIE as well.
const KNOWN: [Known; 5] = [
    Known { name: "opera", skip: 0, text: "Opera", version_at: "Opera ".len() },
    Known {
        name: "msie",
        skip: "Mozilla/4.0 (compatible; ".len(),
        text: "MSIE ",
        version_at: "MSIE ".len(),
    },
    Known { name: "gecko", skip: "Mozilla/5.0 (".len(), text: "rv:", version_at: "rv:".len() },
    Known {
        name: "safari",
        skip: "Mozilla/5.0 (".len(),
        text: "Safari/",
        version_at: "Safari/".len(),
    },
    Known {
        name: "konqueror",
        skip: "Mozilla/5.0 (compatible; ".len(),
        text: "Konqueror/",
        version_at: "Konqueror/".len(),
    },
];

/// No version is as new as that.
const UNREACHABLE: u64 = 4_001_000_000;

impl Module for Browser {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_browser_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "ancient_browser",
            &["string ..."],
            "",
            ANY,
            Arity::SOME,
            "Texts that old browsers have in their User-Agent.",
            ancient_browser,
        ),
        set(
            "ancient_browser_value",
            &["string"],
            "1",
            ANY,
            Arity::ONE,
            "What $ancient_browser is for an old browser.",
            |c, n, _| text(&mut c.ancient_value, n),
        ),
        set(
            "modern_browser",
            &["browser version", "unlisted"],
            "",
            ANY,
            Arity::ONE_OR_TWO,
            "From which version on a browser is new.",
            modern_browser,
        ),
        set(
            "modern_browser_value",
            &["string"],
            "1",
            ANY,
            Arity::ONE,
            "What $modern_browser is for a new browser.",
            |c, n, _| text(&mut c.modern_value, n),
        ),
    ];

    fn variables(registry: &mut Registry<Request>) {
        registry.kept("modern_browser", |r, out| {
            put(r, out, true);
            true
        });
        registry.kept("ancient_browser", |r, out| {
            put(r, out, false);
            true
        });
        registry.builtin("msie", |r, out| {
            if is_msie(r.field(FieldId::UserAgent).unwrap_or_default()) {
                out.push(b'1');
            }
            true
        });
        registry.replaceable(|name| matches!(name, "modern_browser" | "ancient_browser" | "msie"));
    }

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let Conf { modern, ancient, modern_value, ancient_value } = conf;
        let any = modern.is_some()
            || ancient.is_some()
            || modern_value.is_some()
            || ancient_value.is_some();
        if !any {
            return Ok(());
        }
        let one = || Bytes::from_static(b"1");
        let mut modern = modern.clone().unwrap_or_default();
        if !modern.browsers.is_empty() {
            if !modern.browsers.iter().any(|(slot, _)| *slot == 0) {
                modern.browsers.push((0, UNREACHABLE));
            }
            modern.browsers.sort_by_key(|(slot, _)| *slot);
        }
        b.keep(Rules {
            modern,
            ancient: ancient.clone().unwrap_or_default(),
            modern_value: modern_value.clone().unwrap_or_else(one),
            ancient_value: ancient_value.clone().unwrap_or_else(one),
        });
        Ok(())
    }
}

// The last one counts: ngx_http_modern_browser_value and its sister know no duplicates.
fn text(slot: &mut Option<Bytes>, node: &Node) -> Result<(), Error> {
    *slot = Some(Bytes::copy_from_slice(&node.arg(0)?.value));
    Ok(())
}

fn ancient_browser(conf: &mut Conf, node: &Node, _: &mut Cx<'_, '_>) -> Result<(), Error> {
    let ancient = conf.ancient.get_or_insert_default();
    for arg in &node.args {
        match &*arg.value {
            b"netscape4" => ancient.netscape4 = true,
            text => ancient.texts.push(text.into()),
        }
    }
    Ok(())
}

fn modern_browser(conf: &mut Conf, node: &Node, _: &mut Cx<'_, '_>) -> Result<(), Error> {
    let modern = conf.modern.get_or_insert_default();
    let name = node.arg(0)?;
    let [_, version] = &node.args[..] else {
        return match name.is("unlisted") {
            true => {
                modern.unlisted = true;
                Ok(())
            }
            false => Err(value::invalid_value(name).with_hint("a version is missing")),
        };
    };
    let is_it = |known: &Known| name.value.eq_ignore_ascii_case(known.name.as_bytes());
    let slot = KNOWN.iter().position(is_it).ok_or_else(|| {
        Error::emerg(name.span, format!("unknown browser name \"{}\"", name.lossy()))
    })?;
    let read = |text: &[u8]| {
        let mut reader = Version::default();
        text.iter().all(|byte| reader.take(*byte)).then(|| reader.value())
    };
    let number = read(&version.value).ok_or_else(|| {
        let text = format!("invalid browser version \"{}\"", version.lossy());
        Error::emerg(version.span, text)
    })?;
    modern.browsers.push((slot, number));
    Ok(())
}

/// A version as one number: `1.2.3` is 1,020,003.
struct Version {
    sum: u64,
    part: u64,
    scale: u64,
}

impl Default for Version {
    fn default() -> Version {
        Version { sum: 0, part: 0, scale: 1_000_000 }
    }
}

impl Version {
    /// Takes a digit or a point; `false`: it is neither.
    fn take(&mut self, byte: u8) -> bool {
        match byte {
            b'0'..=b'9' => {
                let digit = u64::from(byte - b'0');
                self.part = self.part.saturating_mul(10).saturating_add(digit);
            }
            b'.' => {
                self.sum = self.value();
                self.part = 0;
                self.scale /= 100;
            }
            _ => return false,
        }
        true
    }

    fn value(&self) -> u64 {
        self.sum.saturating_add(self.part.saturating_mul(self.scale))
    }
}

/// What makes a browser old or new.
struct Rules {
    modern: Modern,
    ancient: Ancient,
    modern_value: Bytes,
    ancient_value: Bytes,
}

fn put(r: &Request, out: &mut Vec<u8>, modern: bool) {
    let agent = r.field(FieldId::UserAgent);
    match r.location().setting::<Rules>() {
        Some(rules) if rules.is_modern(agent) == modern => {
            out.extend_from_slice(if modern { &rules.modern_value } else { &rules.ancient_value });
        }
        Some(_) => {}
        // Where nothing is said, every browser is an old one.
        None if !modern => out.push(b'1'),
        None => {}
    }
}

impl Rules {
    /// `ngx_http_browser`.
    ///
    /// DIFFERS(browser-http-level): what the http level says is not made ready by
    /// ngx_http_browser_merge_conf, and finds no browser new.
    fn is_modern(&self, agent: Option<&[u8]>) -> bool {
        let Some(agent) = agent else { return self.modern.unlisted };
        for (slot, wanted) in &self.modern.browsers {
            let known = &KNOWN[*slot];
            let text = agent.get(known.skip..).unwrap_or_default();
            let Some(at) = memmem::find(text, known.text.as_bytes()) else { continue };
            let Some(rest) = text.get(at + known.version_at..).filter(|rest| !rest.is_empty())
            else {
                continue;
            };
            let mut version = Version::default();
            rest.iter().all(|byte| version.take(*byte));
            return version.value() >= *wanted;
        }
        if !self.modern.browsers.is_empty() && !self.modern.unlisted {
            return false;
        }
        let is_netscape4 = agent.len() > "Mozilla/4.72 ".len()
            && agent.starts_with(b"Mozilla/")
            && (b'1'..=b'4').contains(&agent[8]);
        if self.ancient.netscape4 && is_netscape4 {
            return false;
        }
        if self.ancient.texts.iter().any(|text| memmem::find(agent, text).is_some()) {
            return false;
        }
        self.modern.unlisted
    }
}

/// `ngx_http_process_user_agent`: MSIE that is not Opera.
fn is_msie(agent: &[u8]) -> bool {
    memmem::find(agent, b"MSIE ").is_some_and(|at| at + 7 < agent.len())
        && memmem::find(agent, b"Opera").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn hostile_agents_are_old() {
        let conf = "modern_browser msie 5.5; modern_browser gecko 1.0; ancient_browser Lynx;";
        let digits = format!("Mozilla/4.0 (compatible; MSIE {}", ".".repeat(1 << 20));
        for agent in ["", "M", "Mozilla/5.0 (", "Mozilla/5.0 (rv:", "Mozilla/5.0 (\u{e9}", &digits]
        {
            let r =
                testing::request(conf, &format!("GET / HTTP/1.1\r\nUser-Agent: {agent}\r\n\r\n"));
            let rules: &Rules = r.location().setting().unwrap();
            assert!(!rules.is_modern(r.field(FieldId::UserAgent)), "{agent:.40}");
        }
    }

    #[test]
    fn versions_do_not_overflow() {
        let mut version = Version::default();
        assert!([b'9'; 100].iter().all(|byte| version.take(*byte)));
        assert_eq!(version.value(), u64::MAX);
    }

    #[test]
    fn wrong_directives_have_nginx_texts() {
        let cases = [
            ("modern_browser msie x;", "invalid browser version \"x\""),
            ("modern_browser lynx 1.0;", "unknown browser name \"lynx\""),
            ("modern_browser msie;", "invalid value \"msie\""),
            ("modern_browser lynx x;", "unknown browser name \"lynx\""),
        ];
        for (conf, want) in cases {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }

    #[test]
    fn the_last_value_counts() {
        let conf = "modern_browser_value a; modern_browser_value b; modern_browser msie 1.0;";
        let r = testing::request(conf, "GET / HTTP/1.1\r\n\r\n");
        let rules: &Rules = r.location().setting().unwrap();
        assert_eq!(rules.modern_value, "b");
    }
}
