//! gRPC, as far as it is bytes: statuses, one message with what stands before it, and the messages of
//! the health protocol (`grpc/doc/PROTOCOL-HTTP2.md`, `grpc/doc/health-checking.md`, `health.proto`).
//!
//! *Invariant:* a message is read as a whole or not at all; what is cut off, compressed or followed by
//! more is none.

/// Where the health of a server is asked for.
pub const HEALTH_PATH: &[u8] = b"/grpc.health.v1.Health/Check";
/// The status that says that a service gets along, of `HealthCheckResponse.ServingStatus`.
pub const SERVING: u64 = 1;

/// The names of the statuses, by their number.
const STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The number of a status that somebody wrote as a number or a name.
pub fn status_of(text: &str) -> Option<u32> {
    let named = STATUSES.iter().position(|name| *name == text);
    match named {
        Some(number) => Some(number as u32),
        None => status(text.as_bytes()).filter(|number| (*number as usize) < STATUSES.len()),
    }
}

/// The number in a field `grpc-status`, which may be one that nobody knows.
pub fn status(value: &[u8]) -> Option<u32> {
    let is_number = (1..=9).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    let digits = || value.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
    is_number.then(digits)
}

/// Whether a `Content-Type` is gRPC's: `application/grpc`, be it with a format or parameters.
pub fn is_content_type(value: &[u8]) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let Some((begin, rest)) = value.split_at_checked(TYPE.len()) else { return false };
    begin.eq_ignore_ascii_case(TYPE) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// A `HealthCheckRequest` for a service, or for the server as a whole where that is empty, ready to be
/// sent.
pub fn health_request(service: &str) -> Vec<u8> {
    let mut message = Vec::with_capacity(service.len() + 16);
    // Field 1, a string; an empty one is left out.
    if !service.is_empty() {
        message.push(1 << 3 | wire_type::LENGTH);
        write_varint(&mut message, service.len() as u64);
        message.extend_from_slice(service.as_bytes());
    }
    let mut out = vec![0];
    out.extend_from_slice(&(message.len() as u32).to_be_bytes());
    out.append(&mut message);
    out
}

/// The status in a `HealthCheckResponse`, which must be the only message of a response and not be
/// compressed. `None`: there is no such message.
pub fn health_status(body: &[u8]) -> Option<u64> {
    let (prefix, mut message) = body.split_first_chunk::<5>()?;
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 || u32::from_be_bytes(length) as usize != message.len() {
        return None;
    }
    // What is not there is 0: UNKNOWN. What is there twice is what it is the last time.
    let mut status = 0;
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let (field, kind) = (tag >> 3, (tag & 7) as u8);
        match (field, kind) {
            (0, _) => return None,
            (1, wire_type::VARINT) => status = varint(&mut message)?,
            _ => skip(&mut message, kind)?,
        }
    }
    Some(status)
}

mod wire_type {
    pub const VARINT: u8 = 0;
    pub const EIGHT_BYTES: u8 = 1;
    pub const LENGTH: u8 = 2;
    pub const FOUR_BYTES: u8 = 5;
}

/// Passes over a field that is not known; groups, which proto3 does not have, are refused.
fn skip(message: &mut &[u8], kind: u8) -> Option<()> {
    let len = match kind {
        wire_type::VARINT => return varint(message).map(drop),
        wire_type::EIGHT_BYTES => 8,
        wire_type::LENGTH => usize::try_from(varint(message)?).ok()?,
        wire_type::FOUR_BYTES => 4,
        _ => return None,
    };
    *message = message.get(len..)?;
    Some(())
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for index in 0..10 {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn write_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbers_and_names() {
        let cases = [
            ("0", Some(0)),
            ("12", Some(12)),
            ("16", Some(16)),
            ("17", None),
            ("-1", None),
            ("+1", None),
            ("", None),
            ("99999999999999999999", None),
            ("OK", Some(0)),
            ("UNIMPLEMENTED", Some(12)),
            ("UNAUTHENTICATED", Some(16)),
            ("unimplemented", None),
        ];
        for (text, want) in cases {
            assert_eq!(status_of(text), want, "{text}");
        }
        assert_eq!((status(b"99"), status(b"OK"), status(b"1 ")), (Some(99), None, None));
    }

    #[test]
    fn content_types_are_those_of_grpc() {
        let good: [&[u8]; 4] = [
            b"application/grpc",
            b"application/grpc+proto",
            b"application/grpc;a=b",
            b"Application/GRPC",
        ];
        let bad: [&[u8]; 4] = [b"application/grp", b"application/grpc-web", b"text/html", b""];
        assert!(good.into_iter().all(is_content_type) && !bad.into_iter().any(is_content_type));
    }

    #[test]
    fn requests_name_a_service_or_none() {
        assert_eq!(health_request(""), [0; 5]);
        assert_eq!(health_request("a.B"), b"\0\0\0\0\x05\x0a\x03a.B");
        let long = health_request(&"x".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 10, 0xac, 2]);
    }

    #[test]
    fn responses_are_one_whole_message() {
        let cases: [(&[u8], Option<u64>); 19] = [
            (b"\x08\x01", Some(SERVING)),
            (b"\x08\x02", Some(2)),
            (b"", Some(0)),
            (b"\x08\x01\x08\x03", Some(3)),
            // Fields of later versions: a number, eight bytes, a text, four bytes.
            (b"\x10\x96\x01\x08\x01", Some(1)),
            (b"\x1912345678\x08\x01", Some(1)),
            (b"\x12\x02ab\x08\x01", Some(1)),
            (b"\x1d1234\x08\x01", Some(1)),
            // The same number as something else is another field.
            (b"\x0a\x01\x01", Some(0)),
            (b"\x08\x81\x00", Some(1)),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Some(u64::MAX)),
            (b"\x08", None),
            (b"\x08\x81", None),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", None),
            (b"\x00\x01", None),
            (b"\x13\x14", None),
            (b"\x12\x03ab", None),
            (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", None),
            (b"\x1d123", None),
        ];
        for (message, want) in cases {
            let body = [&[0, 0, 0, 0, message.len() as u8], message].concat();
            assert_eq!(health_status(&body), want, "{}", message.escape_ascii());
        }
        let framed: [&[u8]; 6] = [
            b"",
            b"\0\0\0\0",
            b"\x01\0\0\0\x02\x08\x01",
            b"\0\0\0\0\x03\x08\x01",
            b"\0\0\0\0\x01\x08\x01",
            b"\0\0\0\0\x02\x08\x01\0\0\0\0\x02\x08\x01",
        ];
        for body in framed {
            assert_eq!(health_status(body), None, "{}", body.escape_ascii());
        }
    }
}
