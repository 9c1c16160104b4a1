//! Whether a client takes gzip, and may be given it (`ngx_http_gzip_ok`). What `gzip` compresses and
//! what `gzip_static` has ready is decided by the same rules.
//!
//! Invariant: says nothing about the response's own type, status or size.

use forebay_rt::clock;
use forebay_session::regex::Regex;
use forebay_wire::{
    accept,
    date::parse_http_time,
    h1::{FieldId, Version},
};

use super::Conf;
use crate::{coding, module::Builder, request::Request, special::is_msie6};

/// `gzip_http_version`, `gzip_proxied`, `gzip_disable`, `gzip_vary` of one location.
#[derive(Clone)]
pub struct Accept {
    /// `gzip_vary`: whether `Vary: Accept-Encoding` tells caches that the answer depends on it.
    pub vary: bool,
    version: Version,
    proxied: u32,
    disable: Vec<Regex>,
    not_for_msie6: bool,
}

/// The bits of `gzip_proxied`.
pub(super) mod proxied {
    pub const OFF: u32 = 1;
    pub const EXPIRED: u32 = 1 << 1;
    pub const NO_CACHE: u32 = 1 << 2;
    pub const NO_STORE: u32 = 1 << 3;
    pub const PRIVATE: u32 = 1 << 4;
    pub const NO_LAST_MODIFIED: u32 = 1 << 5;
    pub const NO_ETAG: u32 = 1 << 6;
    pub const AUTH: u32 = 1 << 7;
    pub const ANY: u32 = 1 << 8;
}

impl Accept {
    /// The rules of the location being built.
    pub fn here(b: &Builder<'_, '_, '_>) -> Accept {
        match b.level::<Conf>(b.location.id) {
            Some(conf) => Accept::of(conf),
            None => Accept::of(&Conf::default()),
        }
    }

    pub(super) fn of(conf: &Conf) -> Accept {
        Accept {
            vary: conf.vary.unwrap_or(false),
            version: conf.http_version.unwrap_or(Version::Http11),
            proxied: conf.proxied.unwrap_or(proxied::OFF),
            disable: conf.disable.clone().unwrap_or_default(),
            not_for_msie6: conf.disable_msie6.unwrap_or(false),
        }
    }

    /// How much the client wants it, in thousandths; 0: it may not be compressed.
    pub fn quality(&self, r: &Request) -> u16 {
        if self.allows(r) { coding::quality(r, "gzip").max(1) } else { 0 }
    }

    /// Whether the response to this request may be compressed.
    pub fn allows(&self, r: &Request) -> bool {
        if r.subrequest
            || r.version() < self.version
            || !r.field(FieldId::AcceptEncoding).is_some_and(accept::gzip_ok)
        {
            return false;
        }
        let agent = r.field(FieldId::UserAgent);
        if self.not_for_msie6 && agent.is_some_and(is_msie6) {
            return false;
        }
        (r.field(FieldId::Via).is_none() || self.allows_proxied(r))
            && !agent.is_some_and(|agent| self.disable.iter().any(|regex| regex.is_match(agent)))
    }

    /// Requests with `Via` come from a proxy, which may not know that there are two answers.
    fn allows_proxied(&self, r: &Request) -> bool {
        let has = |bit| self.proxied & bit != 0;
        if has(proxied::OFF) {
            return false;
        }
        if has(proxied::ANY) || (has(proxied::AUTH) && r.field(FieldId::Authorization).is_some()) {
            return true;
        }
        let response = &r.response;
        if let Some(expires) = response.field("Expires") {
            let date = match response.field("Date") {
                Some(date) => parse_http_time(date),
                None => Some((clock::wall_ms() / 1000) as i64),
            };
            let expired = date.zip(parse_http_time(expires));
            return has(proxied::EXPIRED) && expired.is_some_and(|(now, then)| then < now);
        }
        if response.field("Cache-Control").is_some() {
            let says = |token: &[u8]| {
                let fields = response.fields.iter();
                let mut lines =
                    fields.filter(|field| field.name.eq_ignore_ascii_case(b"Cache-Control"));
                lines.any(|field| has_token(&field.value, token))
            };
            return (has(proxied::NO_CACHE) && says(b"no-cache"))
                || (has(proxied::NO_STORE) && says(b"no-store"))
                || (has(proxied::PRIVATE) && says(b"private"));
        }
        // As in nginx, the time of a file does not count, only a field of the list.
        let refused = |bit, field| has(bit) && response.field(field).is_some();
        !refused(proxied::NO_LAST_MODIFIED, "Last-Modified") && !refused(proxied::NO_ETAG, "ETag")
    }
}

/// Whether a list has a member that is just this token (`ngx_http_parse_multi_header_lines`).
fn has_token(list: &[u8], token: &[u8]) -> bool {
    let mut rest = list;
    while !rest.is_empty() {
        if let Some((start, after)) = rest.split_at_checked(token.len())
            && start.eq_ignore_ascii_case(token)
        {
            rest = skip_spaces(after);
            if matches!(rest.first(), None | Some(b',')) {
                return true;
            }
        }
        let end = memchr::memchr2(b';', b',', rest).map_or(rest.len(), |at| at + 1);
        rest = skip_spaces(&rest[end..]);
    }
    false
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|b| **b == b' ').count();
    &text[spaces..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    type Fields = [(&'static str, &'static str)];

    fn allows(conf: &str, fields: &str, response: &Fields) -> bool {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        allows_head(conf, &head, response)
    }

    fn allows_head(conf: &str, head: &str, response: &Fields) -> bool {
        let accept = super::super::tests::conf(conf);
        let mut r = testing::request("", head);
        for (name, value) in response {
            r.response.add(name, *value);
        }
        Accept::of(&accept).allows(&r)
    }

    #[test]
    fn the_client_must_ask_for_it() {
        for (fields, want) in [
            ("Accept-Encoding: gzip\r\n", true),
            ("Accept-Encoding: gzip, deflate, br\r\n", true),
            ("Accept-Encoding: br;q=1, gzip;q=0.1\r\n", true),
            ("Accept-Encoding: gzip;q=0\r\n", false),
            ("Accept-Encoding: gzip;q=99999999999999999999\r\n", false),
            ("Accept-Encoding: ,,,,;;;q=\r\n", false),
            ("Accept-Encoding:\r\n", false),
            ("Accept-Encoding: *\r\n", false),
            ("", false),
        ] {
            assert_eq!(allows("", fields, &[]), want, "{fields}");
        }
    }

    #[test]
    fn the_version_must_be_new_enough() {
        for (conf, version, want) in [
            ("", "HTTP/1.1", true),
            ("", "HTTP/1.0", false),
            ("gzip_http_version 1.0;", "HTTP/1.0", true),
            ("gzip_http_version 1.1;", "HTTP/1.0", false),
        ] {
            let head = format!("GET / {version}\r\nAccept-Encoding: gzip\r\n\r\n");
            assert_eq!(allows_head(conf, &head, &[]), want, "{conf} {version}");
        }
    }

    #[test]
    fn some_browsers_are_left_out() {
        for (conf, agent, want) in [
            ("gzip_disable msie6;", "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)", false),
            ("gzip_disable msie6;", "Mozilla/4.0 (compatible; MSIE 6.0; Windows; SV1)", true),
            ("gzip_disable msie6;", "Mozilla/4.0 (compatible; MSIE 5.5; Windows)", false),
            ("gzip_disable msie6;", "Mozilla/4.0 (compatible; MSIE 7.0; Windows)", true),
            ("gzip_disable msie6;", "MSIE 6.0; Opera 8", true),
            ("gzip_disable msie6;", "MSIE 6.", true),
            ("gzip_disable msie6;", "MSIE ", true),
            ("gzip_disable \"CURL/[67]\" wget;", "curl/7.8", false),
            ("gzip_disable \"curl/[67]\" wget;", "Wget/1", false),
            ("gzip_disable \"curl/[67]\" wget;", "curl/8", true),
        ] {
            let fields = format!("Accept-Encoding: gzip\r\nUser-Agent: {agent}\r\n");
            assert_eq!(allows(conf, &fields, &[]), want, "{conf} {agent}");
        }
    }

    #[test]
    fn proxies_get_what_gzip_proxied_says() {
        const PAST: (&str, &str) = ("Expires", "Sun, 06 Nov 1994 08:49:37 GMT");
        const FUTURE: (&str, &str) = ("Expires", "Thu, 31 Dec 9999 23:55:55 GMT");
        let cases: &[(&str, &str, &Fields, bool)] = &[
            ("", "", &[], false),
            ("gzip_proxied off;", "", &[], false),
            ("gzip_proxied any;", "", &[], true),
            ("gzip_proxied off any;", "", &[], false),
            ("gzip_proxied auth;", "Authorization: x\r\n", &[FUTURE], true),
            ("gzip_proxied expired;", "", &[PAST], true),
            ("gzip_proxied expired;", "", &[FUTURE], false),
            ("gzip_proxied expired;", "", &[("Expires", "0")], false),
            ("gzip_proxied expired;", "", &[("Date", PAST.1), FUTURE], false),
            ("gzip_proxied expired;", "", &[("Date", FUTURE.1), PAST], true),
            ("gzip_proxied expired;", "", &[("Date", "x"), PAST], false),
            ("gzip_proxied no-cache;", "", &[PAST], false),
            ("gzip_proxied no-cache;", "", &[("Cache-Control", "no-cache")], true),
            ("gzip_proxied no-cache;", "", &[("Cache-Control", "no-store")], false),
            ("gzip_proxied no-store;", "", &[("Cache-Control", "max-age=1, NO-STORE")], true),
            (
                "gzip_proxied private;",
                "",
                &[("Cache-Control", "a"), ("Cache-Control", "private")],
                true,
            ),
            ("gzip_proxied private;", "", &[("Cache-Control", "private=x")], false),
            ("gzip_proxied no_last_modified;", "", &[], true),
            ("gzip_proxied no_last_modified;", "", &[("Last-Modified", PAST.1)], false),
            ("gzip_proxied no_etag;", "", &[("ETag", "\"a\"")], false),
            ("gzip_proxied no_etag;", "", &[], true),
        ];
        for (conf, fields, response, want) in cases {
            let fields = format!("Via: 1.1 x\r\nAccept-Encoding: gzip\r\n{fields}");
            assert_eq!(allows(conf, &fields, response), *want, "{conf} {response:?}");
        }
    }

    #[test]
    fn tokens_are_whole_members() {
        for (list, want) in [
            ("no-cache", true),
            ("No-Cache", true),
            ("a,no-cache", true),
            ("a;no-cache ,b", true),
            ("no-cachex", false),
            ("xno-cache", false),
            ("no-cache=\"a\", no-cache", true),
            ("no-cache x", false),
            ("", false),
            (";;,, ;", false),
            ("no-", false),
        ] {
            assert_eq!(has_token(list.as_bytes(), b"no-cache"), want, "{list}");
        }
    }
}
