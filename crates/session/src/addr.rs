//! Addresses and networks, read as nginx reads them (`core/ngx_inet.c`).
//!
//! Invariant: reads any bytes; never resolves a name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Four decimal octets (`ngx_inet_addr`). As in nginx, zeros may lead, an octet without digits is 0,
/// and 255.255.255.255 is none, for it stands for "no address".
pub fn parse_v4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut addr: u32 = 0;
    let (mut octet, mut dots) = (0u32, 0);
    for byte in text {
        match byte {
            b'0'..=b'9' => {
                octet = octet * 10 + u32::from(byte - b'0');
                if octet > 255 {
                    return None;
                }
            }
            b'.' if dots < 3 => {
                addr = addr << 8 | octet;
                (octet, dots) = (0, dots + 1);
            }
            _ => return None,
        }
    }
    let addr = addr << 8 | octet;
    (dots == 3 && addr != u32::MAX).then(|| Ipv4Addr::from(addr))
}

/// An IPv6 address without brackets (`ngx_inet6_addr`).
pub fn parse_v6(text: &[u8]) -> Option<Ipv6Addr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// An address of either family, without port (`ngx_parse_addr`).
pub fn parse_ip(text: &[u8]) -> Option<IpAddr> {
    parse_v4(text).map(IpAddr::V4).or_else(|| parse_v6(text).map(IpAddr::V6))
}

/// An address with or without a port, IPv6 in brackets when there is one (`ngx_parse_addr_port`).
pub fn parse_ip_port(text: &[u8]) -> Option<(IpAddr, Option<u16>)> {
    if let Some(ip) = parse_ip(text) {
        return Some((ip, None));
    }
    let (host, port) = match text.strip_prefix(b"[") {
        Some(rest) => {
            let end = memchr::memchr(b']', rest)?;
            (&rest[..end], rest[end + 1..].strip_prefix(b":")?)
        }
        None => {
            let colon = memchr::memchr(b':', text)?;
            (&text[..colon], &text[colon + 1..])
        }
    };
    let port = forebay_conf::value::number(port).and_then(|port| u16::try_from(port).ok())?;
    Some((parse_ip(host)?, Some(port).filter(|port| *port > 0)?.into()))
}

/// A set of addresses: those that agree in the first bits, or all unix sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cidr {
    /// IPv4, and IPv6 addresses that stand for IPv4 ones.
    V4 {
        /// The network; other bits are 0.
        network: u32,
        /// How many bits count, 0 to 32.
        bits: u8,
    },
    /// IPv6.
    V6 {
        /// The network; other bits are 0.
        network: u128,
        /// How many bits count, 0 to 128.
        bits: u8,
    },
    /// `unix:`.
    Unix,
}

impl Cidr {
    /// Reads `address` or `address/bits` (`ngx_ptocidr`); also whether bits beyond the mask were set,
    /// which is worth a warning: `low address bits of X are meaningless`.
    pub fn parse(text: &[u8]) -> Option<(Cidr, bool)> {
        let (address, bits) = match memchr::memchr(b'/', text) {
            None => (text, None),
            Some(at) => {
                let bits = forebay_conf::value::number(&text[at + 1..])?;
                (&text[..at], Some(u8::try_from(bits).ok()?))
            }
        };
        match parse_ip(address)? {
            IpAddr::V4(ip) => {
                let (addr, bits) = (u32::from(ip), bits.unwrap_or(32));
                let network = addr & mask_v4(bits)?;
                Some((Cidr::V4 { network, bits }, network != addr))
            }
            IpAddr::V6(ip) => {
                let (addr, bits) = (u128::from(ip), bits.unwrap_or(128));
                let network = addr & mask_v6(bits)?;
                Some((Cidr::V6 { network, bits }, network != addr))
            }
        }
    }

    /// Whether an address (`None`: a unix socket) belongs to it (`ngx_cidr_match`).
    pub fn contains(&self, ip: Option<IpAddr>) -> bool {
        match (self, ip.map(|ip| ip.to_canonical())) {
            (Cidr::Unix, None) => true,
            (Cidr::V4 { network, bits }, Some(IpAddr::V4(ip))) => {
                mask_v4(*bits).is_some_and(|mask| u32::from(ip) & mask == *network)
            }
            (Cidr::V6 { network, bits }, Some(IpAddr::V6(ip))) => {
                mask_v6(*bits).is_some_and(|mask| u128::from(ip) & mask == *network)
            }
            _ => false,
        }
    }
}

/// The mask with that many bits set; `None` for more than 32.
pub fn mask_v4(bits: u8) -> Option<u32> {
    match bits {
        0 => Some(0),
        1..=32 => Some(u32::MAX << (32 - bits)),
        _ => None,
    }
}

/// The mask with that many bits set; `None` for more than 128.
pub fn mask_v6(bits: u8) -> Option<u128> {
    match bits {
        0 => Some(0),
        1..=128 => Some(u128::MAX << (128 - bits)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_nginx_reads_them() {
        let cases: &[(&str, Option<&str>)] = &[
            ("127.0.0.1", Some("127.0.0.1")),
            ("010.001.02.3", Some("10.1.2.3")),
            ("1..2.3", Some("1.0.2.3")),
            ("::1", Some("::1")),
            ("::ffff:1.2.3.4", Some("::ffff:1.2.3.4")),
            ("255.255.255.255", None),
            ("256.0.0.1", None),
            ("99999999999999999999.0.0.1", None),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("1.2.3.4 ", None),
            ("-1.2.3.4", None),
            ("[::1]", None),
            ("fe80::1%eth0", None),
            ("unix:", None),
            ("", None),
            ("\u{e9}", None),
        ];
        for (text, want) in cases {
            let want = want.map(|want| want.parse::<IpAddr>().unwrap());
            assert_eq!(parse_ip(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn ports_stand_behind_addresses() {
        type Want = Option<(&'static str, Option<u16>)>;
        let cases: &[(&str, Want)] = &[
            ("1.2.3.4", Some(("1.2.3.4", None))),
            ("1.2.3.4:80", Some(("1.2.3.4", Some(80)))),
            ("[::1]:65535", Some(("::1", Some(65535)))),
            ("::1", Some(("::1", None))),
            ("[::1]", None),
            ("[::1]80", None),
            ("[::1", None),
            ("[]:80", None),
            ("1.2.3.4:0", None),
            ("1.2.3.4:65536", None),
            ("1.2.3.4:+80", None),
            ("1.2.3.4:", None),
            (":80", None),
            ("1.2.3.4:99999999999999999999", None),
        ];
        for (text, want) in cases {
            let want = want.map(|(ip, port)| (ip.parse::<IpAddr>().unwrap(), port));
            assert_eq!(parse_ip_port(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn networks_contain_their_addresses() {
        let cases: &[(&str, &str, bool)] = &[
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("::/0", "1.2.3.4", false),
            ("192.0.2.1", "192.0.2.1", true),
        ];
        for (network, ip, want) in cases {
            let (cidr, _) = Cidr::parse(network.as_bytes()).unwrap();
            assert_eq!(cidr.contains(Some(ip.parse().unwrap())), *want, "{network} {ip}");
            assert!(!cidr.contains(None));
        }
        assert!(Cidr::Unix.contains(None));
        assert!(!Cidr::Unix.contains(Some(Ipv4Addr::LOCALHOST.into())));
    }

    #[test]
    fn bits_beyond_the_mask_are_told_and_wrong_masks_refused() {
        assert!(Cidr::parse(b"10.1.0.0/8").unwrap().1);
        assert!(!Cidr::parse(b"10.0.0.0/8").unwrap().1);
        for wrong in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "::/129", "::/300", "x/8", "/8"] {
            assert_eq!(Cidr::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
