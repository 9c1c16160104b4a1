//! Who is behind the proxies: addresses in `X-Forwarded-For` and its like
//! (`ngx_http_get_forwarded_addr`).
//!
//! Invariant: only a trusted address is ever replaced, so that nobody can name another for himself.

use std::net::IpAddr;

use forebay_session::addr::{self, Cidr};
use forebay_wire::h1::FieldId;

use crate::request::Request;

/// An address, `None` for a unix socket, and its port if one was told.
pub type Addr = (Option<IpAddr>, Option<u16>);

/// What became of a list of addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing was replaced.
    Declined,
    /// The list is used up, or its last entry was all that was asked for.
    UsedUp,
    /// It led to an address that is not trusted, or to something else.
    Stopped,
}

/// Follows the lists in `values`, the last first, from `addr` on, as long as addresses are trusted
/// (with `recursive`) or one step; `None`: `addr` stays.
pub fn behind<'v>(
    addr: Addr,
    values: impl DoubleEndedIterator<Item = &'v [u8]>,
    trusted: &[Cidr],
    recursive: bool,
) -> Option<Addr> {
    let mut addr = addr;
    let mut found = false;
    for value in values.rev() {
        let end = follow(&mut addr, value, trusted, recursive);
        found |= end != End::Declined;
        if !recursive || end != End::UsedUp {
            break;
        }
    }
    found.then_some(addr)
}

/// The same through all `X-Forwarded-For` fields of a request.
pub fn x_forwarded_for(r: &Request, addr: Addr, trusted: &[Cidr], recursive: bool) -> Option<Addr> {
    let headers = r.input.head.headers.iter();
    let lists = headers.filter(|field| field.id == FieldId::XForwardedFor);
    behind(addr, lists.map(|field| r.input.text(field.value)), trusted, recursive)
}

/// `ngx_http_get_forwarded_addr_internal`.
fn follow(addr: &mut Addr, list: &[u8], trusted: &[Cidr], recursive: bool) -> End {
    let mut rest = list;
    let mut end = End::Declined;
    loop {
        let trust = trusted.iter().any(|cidr| cidr.contains(addr.0));
        let next = if trust { last(rest) } else { None };
        let Some((before, text)) = next else { return end };
        let Some((ip, port)) = addr::parse_ip_port(text) else { return end };
        *addr = (Some(ip), port);
        end = End::Stopped;
        if !recursive || before.is_none() {
            return End::UsedUp;
        }
        rest = before.unwrap_or_default();
    }
}

/// The last entry of a list, and what stands before it; `None` before the first.
fn last(list: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let is_separator = |byte: &u8| matches!(byte, b' ' | b',');
    let end = list.iter().rposition(|byte| !is_separator(byte))? + 1;
    let list = &list[..end];
    match list.iter().rposition(is_separator) {
        Some(at) => Some((Some(&list[..at]), &list[at + 1..])),
        None => Some((None, list)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(start: &str, values: &[&str], recursive: bool, want: Option<(&str, Option<u16>)>) {
        let trusted: Vec<Cidr> = ["127.0.0.0/8", "10.0.0.0/8", "2001:db8::/32"]
            .iter()
            .map(|text| Cidr::parse(text.as_bytes()).unwrap().0)
            .collect();
        let start = (start.parse().ok(), Some(1));
        let got = behind(start, values.iter().map(|text| text.as_bytes()), &trusted, recursive);
        let want = want.map(|(ip, port)| (Some(ip.parse().unwrap()), port));
        assert_eq!(got, want, "{values:?} {recursive}");
    }

    #[test]
    fn one_step_takes_the_last_address() {
        let cases: &[(&[&str], Option<&str>)] = &[
            (&["1.1.1.1"], Some("1.1.1.1")),
            (&["1.1.1.1, 2.2.2.2"], Some("2.2.2.2")),
            (&["1.1.1.1 2.2.2.2 ,, "], Some("2.2.2.2")),
            (&["1.1.1.1", "2.2.2.2"], Some("2.2.2.2")),
            (&["1.1.1.1", "x"], None),
            (&["1.1.1.1, x"], None),
            (&[""], None),
            (&[","], None),
            (&["   "], None),
            (&[], None),
            (&["::1"], Some("::1")),
            (&["1.1.1.1\u{e9}"], None),
            (&["1.1.1.1\t"], None),
        ];
        for (values, want) in cases {
            check("127.0.0.1", values, false, want.map(|ip| (ip, None)));
        }
    }

    #[test]
    fn recursion_stops_at_the_first_address_that_is_not_trusted() {
        let cases: &[(&[&str], Option<&str>)] = &[
            (&["1.1.1.1, 2.2.2.2, 10.0.0.1"], Some("2.2.2.2")),
            (&["10.0.0.2, 10.0.0.1"], Some("10.0.0.2")),
            (&["1.1.1.1, x, 10.0.0.1"], Some("10.0.0.1")),
            (&["1.1.1.1, , 10.0.0.1"], Some("1.1.1.1")),
            (&["1.1.1.1", "10.0.0.1", "2001:db8::1"], Some("1.1.1.1")),
            (&["1.1.1.1", "2.2.2.2", "10.0.0.1"], Some("2.2.2.2")),
            (&["1.1.1.1", "x", "10.0.0.1"], Some("10.0.0.1")),
            (&["1.1.1.1", "", "10.0.0.1"], Some("10.0.0.1")),
            (&[", 10.0.0.1"], Some("10.0.0.1")),
            (&["x"], None),
        ];
        for (values, want) in cases {
            check("127.0.0.1", values, true, want.map(|ip| (ip, None)));
        }
    }

    #[test]
    fn nobody_else_is_believed() {
        check("1.2.3.4", &["9.9.9.9"], true, None);
        check("unix:", &["9.9.9.9"], true, None);
    }

    #[test]
    fn a_port_comes_with_its_address() {
        check("127.0.0.1", &["1.1.1.1:80"], false, Some(("1.1.1.1", Some(80))));
        check("127.0.0.1", &["[::1]:80"], false, Some(("::1", Some(80))));
        check("127.0.0.1", &["1.1.1.1:70000"], false, None);
    }

    #[test]
    fn a_long_list_takes_linear_time() {
        let list = "10.0.0.1, ".repeat(100_000);
        check("127.0.0.1", &[&list], true, Some(("10.0.0.1", None)));
        check("127.0.0.1", &[&" ,".repeat(1 << 20)], true, None);
    }
}
