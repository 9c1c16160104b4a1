//! DNS messages: the bytes of a query, and what the bytes of a response come to.
//!
//! Invariant: pure: no socket, no clock. A response counts only with the number and the question of
//! the query (RFC 5452 §9.1), and of its records only those that follow from the name asked for.

use std::{net::IpAddr, ops::Range, sync::Arc};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::{DNSClass, Name, RData, RecordType},
};

use super::ResolveError;

/// How many addresses, or servers of a service, are taken from one response.
pub(super) const MAX_ADDRESSES: usize = 256;
/// nginx's `NGX_RESOLVER_MAX_RECURSION`: how many times a name may stand for another.
pub(super) const MAX_CNAMES: usize = 50;

/// What is asked of a DNS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    V4,
    V6,
    Srv,
}

impl Kind {
    fn record(self) -> RecordType {
        match self {
            Kind::V4 => RecordType::A,
            Kind::V6 => RecordType::AAAA,
            Kind::Srv => RecordType::SRV,
        }
    }
}

/// A question with its number.
pub(super) struct Question {
    id: u16,
    name: Name,
    kind: Kind,
}

/// A server of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Srv {
    pub priority: u16,
    pub weight: u16,
    pub port: u16,
    pub host: Arc<str>,
}

/// What a response says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// It is not the response to this question.
    Foreign,
    /// It did not fit into a datagram.
    Truncated,
    /// There is none.
    Failed(ResolveError),
    /// Addresses.
    Addresses { ips: Vec<IpAddr>, ttl_s: u32 },
    /// Servers of a service.
    Servers { servers: Vec<Srv>, ttl_s: u32 },
    /// The name stands for another, of which the response says nothing; how many names it took.
    Alias { name: Box<str>, steps: usize, ttl_s: u32 },
}

impl Question {
    /// A question with a random number. `None`: that cannot be a name in the DNS.
    pub fn new(name: &str, kind: Kind) -> Option<Question> {
        // Only plain names: what looks like an escape, or is not ASCII, is no host.
        let plain = |b: u8| b.is_ascii_graphic() && b != b'\\' && b != b'"';
        if name.is_empty() || !name.bytes().all(plain) {
            return None;
        }
        let mut name = Name::from_ascii(name).ok()?;
        name.set_fqdn(true);
        Some(Question { id: rand::random(), name, kind })
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let mut message = Message::new(self.id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.name.clone(), self.kind.record()));
        message.to_vec().ok()
    }

    /// What the bytes of a response come to.
    pub fn judge(&self, bytes: &[u8]) -> Reply {
        // The number first: it is cheap, and in a flood it is what is wrong.
        if bytes.get(..2) != Some(&self.id.to_be_bytes()[..]) {
            return Reply::Foreign;
        }
        let Ok(message) = Message::from_vec(&without_the_rest(bytes)) else {
            return self.judge_broken(bytes);
        };
        let meta = &message.metadata;
        if meta.message_type != MessageType::Response
            || meta.op_code != OpCode::Query
            || !self.is_asked_by(&message.queries)
        {
            return Reply::Foreign;
        }
        if let Some(error) = ResolveError::of_code(meta.response_code.low()) {
            return Reply::Failed(error);
        }
        if meta.truncation {
            return Reply::Truncated;
        }
        self.read(&message)
    }

    /// A response that breaks off inside a record may be one that was cut to fit.
    fn judge_broken(&self, bytes: &[u8]) -> Reply {
        const RESPONSE: u8 = 0x80;
        const TRUNCATED: u8 = 0x02;
        match bytes.get(2) {
            Some(flags) if flags & (RESPONSE | TRUNCATED) == RESPONSE | TRUNCATED => {
                Reply::Truncated
            }
            _ => Reply::Foreign,
        }
    }

    fn is_asked_by(&self, queries: &[Query]) -> bool {
        let [query] = queries else { return false };
        *query.name() == self.name
            && query.query_type() == self.kind.record()
            && query.query_class() == DNSClass::IN
    }

    fn read(&self, message: &Message) -> Reply {
        let answers = || message.answers.iter().filter(|r| r.dns_class == DNSClass::IN);
        let (mut name, mut steps, mut ttl_s) = (&self.name, 0, u32::MAX);
        loop {
            let alias = answers().filter(|r| r.name == *name).find_map(|r| match &r.data {
                RData::CNAME(target) => Some((&target.0, r.ttl)),
                _ => None,
            });
            let Some((target, ttl)) = alias else { break };
            (name, steps, ttl_s) = (target, steps + 1, ttl_s.min(seconds(ttl)));
            if steps > MAX_CNAMES {
                return Reply::Failed(ResolveError::NotFound);
            }
        }
        let (mut ips, mut servers) = (Vec::new(), Vec::new());
        for record in answers().filter(|r| r.name == *name).take(MAX_ADDRESSES) {
            match (&record.data, self.kind) {
                (RData::A(ip), Kind::V4) => ips.push(IpAddr::V4(ip.0)),
                (RData::AAAA(ip), Kind::V6) => ips.push(IpAddr::V6(ip.0)),
                (RData::SRV(srv), Kind::Srv) => servers.push(Srv {
                    priority: srv.priority,
                    weight: srv.weight,
                    port: srv.port,
                    host: host(&srv.target).into(),
                }),
                _ => continue,
            }
            ttl_s = ttl_s.min(seconds(record.ttl));
        }
        if !servers.is_empty() {
            return Reply::Servers { servers, ttl_s };
        }
        if !ips.is_empty() {
            return Reply::Addresses { ips, ttl_s };
        }
        match steps {
            0 => Reply::Failed(ResolveError::NotFound),
            _ => Reply::Alias { name: host(name).into(), steps, ttl_s },
        }
    }
}

/// A message that ends with its answers: as nginx, what is said beside them is not looked at, and may be
/// as broken as it likes.
fn without_the_rest(bytes: &[u8]) -> Vec<u8> {
    /// Where the header has the numbers of authorities and additional records.
    const COUNTS: Range<usize> = 8..12;
    let mut bytes = bytes.to_vec();
    bytes.get_mut(COUNTS).into_iter().for_each(|counts| counts.fill(0));
    bytes
}

/// RFC 2181 §8: what looks negative is 0.
fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl }
}

/// The name without the dot of the root.
fn host(name: &Name) -> String {
    let mut text = name.to_ascii().to_ascii_lowercase();
    if text.ends_with('.') {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A right answer to a question, its records in compressed form.
    fn answer(question: &Question) -> Vec<u8> {
        let mut bytes = question.bytes().unwrap();
        // A response with two answers.
        bytes[2] |= 0x80;
        bytes[7] = 2;
        for last in [1, 2] {
            bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 0, 0, last]);
        }
        bytes
    }

    #[test]
    fn broken_answers_are_refused_and_never_panic() {
        let question = Question::new("host.a.test", Kind::V4).unwrap();
        let good = answer(&question);
        let Reply::Addresses { ips, ttl_s } = question.judge(&good) else { panic!("good") };
        assert_eq!((ips.len(), ttl_s), (2, 60));
        for len in 0..good.len() {
            assert_eq!(question.judge(&good[..len]), Reply::Foreign, "{len} bytes");
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                // Nothing in front of the records may differ but the case of the name.
                let reply = question.judge(&bad);
                let is_case = (12..25).contains(&at) && bit == 5 && bad[at].is_ascii_alphabetic();
                if (at < 2 || (12..29).contains(&at)) && !is_case {
                    assert_eq!(reply, Reply::Foreign, "byte {at}, bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_name_that_points_to_itself_ends() {
        let question = Question::new("a.test", Kind::V4).unwrap();
        let mut bytes = question.bytes().unwrap();
        bytes[2] |= 0x80;
        bytes[7] = 1;
        let own = bytes.len() as u8;
        bytes.extend([0xc0, own, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 0, 0, 1]);
        assert_eq!(question.judge(&bytes), Reply::Foreign);
    }

    #[test]
    fn what_is_said_beside_the_answers_does_not_matter() {
        let question = Question::new("a.test", Kind::V4).unwrap();
        let mut bytes = answer(&question);
        // Two OPT records, of which one is cut off, and authorities that are not there.
        bytes[9] = 7;
        bytes[11] = 2;
        bytes.extend([0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41, 16, 0]);
        assert!(matches!(question.judge(&bytes), Reply::Addresses { .. }));
    }

    #[test]
    fn a_time_that_looks_negative_is_none() {
        let question = Question::new("a.test", Kind::V4).unwrap();
        for (first, want) in [(0x7f, 0x7f00_003c), (0x80, 0), (0xff, 0)] {
            let mut bytes = answer(&question);
            let at = bytes.len() - 2 * 16 + 6;
            for record in [at, at + 16] {
                bytes[record] = first;
            }
            let Reply::Addresses { ttl_s, .. } = question.judge(&bytes) else { panic!("good") };
            assert_eq!(ttl_s, want);
        }
    }

    #[test]
    fn a_thousand_addresses_are_some() {
        let question = Question::new("a.test", Kind::V4).unwrap();
        let mut bytes = question.bytes().unwrap();
        bytes[2] |= 0x80;
        bytes[6..8].copy_from_slice(&1000u16.to_be_bytes());
        for _ in 0..1000 {
            bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 0, 0, 1]);
        }
        let Reply::Addresses { ips, .. } = question.judge(&bytes) else { panic!("good") };
        assert_eq!(ips.len(), MAX_ADDRESSES);
    }
}
