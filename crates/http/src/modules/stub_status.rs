//! `stub_status`: the numbers of all connections (`ngx_http_stub_status_module.c`).
//!
//! Invariant: reads the counters of all threads, writes none.

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use forebay_conf::{Arity, Error};
use forebay_session::var::Registry;
use forebay_wire::h1::{Method, encode::write_decimal};

use crate::{
    client::Client,
    handler::{Flow, Handler},
    module::{Builder, Directive, INNER, Module, set},
    request::Request,
    worker::Counters,
};

/// `ngx_http_stub_status_module`.
pub struct StubStatus;

impl Module for StubStatus {
    type Conf = ();
    const NAME: &'static str = "ngx_http_stub_status_module";
    const DIRECTIVES: &'static [Directive<()>] = &[set(
        "stub_status",
        &[""],
        "",
        INNER,
        Arity::between(0, 1),
        "Answers with the numbers of connections and requests.",
        |_, _, cx| {
            cx.serves = true;
            Ok(())
        },
    )];

    fn variables(registry: &mut Registry<Request>) {
        registry.builtin("connections_active", |r, out| number(out, Numbers::of(r).active));
        registry.builtin("connections_reading", |r, out| number(out, Numbers::of(r).reading));
        registry.builtin("connections_writing", |r, out| number(out, Numbers::of(r).writing));
        registry.builtin("connections_waiting", |r, out| number(out, Numbers::of(r).waiting));
    }

    fn build(_: &(), b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if b.serves() {
            b.sole_content(Status);
        }
        Ok(())
    }
}

fn number(out: &mut Vec<u8>, number: u64) -> bool {
    write_decimal(out, number);
    true
}

struct Numbers {
    accepted: u64,
    handled: u64,
    requests: u64,
    active: u64,
    reading: u64,
    writing: u64,
    waiting: u64,
}

impl Numbers {
    fn of(r: &Request) -> Numbers {
        let shared = &r.connection.worker.shared;
        let total = |counter: fn(&Counters) -> &AtomicU64| shared.total(counter);
        let (active, reading, writing) =
            (total(|c| &c.active), total(|c| &c.reading), total(|c| &c.writing));
        Numbers {
            accepted: total(|c| &c.accepted),
            handled: total(|c| &c.handled),
            requests: total(|c| &c.requests),
            active,
            reading,
            writing,
            // Other threads go on counting meanwhile, so the parts may be more than the whole.
            waiting: active.saturating_sub(reading).saturating_sub(writing),
        }
    }
}

struct Status;

impl Handler for Status {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        if !matches!(r.method, Method::Get | Method::Head) {
            return Flow::Deny(405);
        }
        let numbers = Numbers::of(r);
        let mut out = Vec::with_capacity(256);
        line(&mut out, "Active connections: ", &[(numbers.active, " \n")]);
        let counts = [(numbers.accepted, " "), (numbers.handled, " "), (numbers.requests, " \n")];
        line(&mut out, "server accepts handled requests\n ", &counts);
        line(&mut out, "Reading: ", &[(numbers.reading, " Writing: ")]);
        line(&mut out, "", &[(numbers.writing, " Waiting: "), (numbers.waiting, " \n")]);
        r.respond(200, Bytes::from_static(b"text/plain"), out.into());
        Flow::Done
    }
}

fn line(out: &mut Vec<u8>, text: &str, numbers: &[(u64, &str)]) {
    out.extend_from_slice(text.as_bytes());
    for (number, after) in numbers {
        write_decimal(out, *number);
        out.extend_from_slice(after.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::{client::Nobody, testing};

    fn answer(method: &str) -> Result<Request, u16> {
        let head = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut r = testing::request("stub_status;", &head);
        let counters = r.connection.worker.counters();
        for (counter, value) in [
            (&counters.active, 291),
            (&counters.accepted, 16_630_948),
            (&counters.handled, 16_630_947),
            (&counters.requests, 31_070_465),
            (&counters.reading, 6),
            (&counters.writing, 179),
        ] {
            counter.store(value, Relaxed);
        }
        let plan = r.plan.clone();
        let handler = plan.location(r.location).sole_content.as_ref().unwrap();
        let refused = match handler.handle(&mut r, &mut Nobody) {
            Flow::Done => None,
            Flow::Deny(status) => Some(status),
            _ => panic!("neither an answer nor a refusal"),
        };
        refused.map_or(Ok(r), Err)
    }

    #[test]
    fn the_text_is_nginx_s() {
        let mut r = answer("GET").unwrap();
        let body = testing::drain(&mut r.response.body).unwrap();
        let want = "Active connections: 291 \nserver accepts handled requests\n \
                    16630948 16630947 31070465 \nReading: 6 Writing: 179 Waiting: 106 \n";
        assert_eq!(String::from_utf8(body).unwrap(), want);
        assert_eq!(r.response.content_length, Some(want.len() as u64));
        assert_eq!(r.response.content_type.as_deref(), Some(&b"text/plain"[..]));
    }

    #[test]
    fn only_get_and_head_are_allowed() {
        assert!(answer("HEAD").is_ok());
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(answer(method).err(), Some(405), "{method}");
        }
    }

    #[test]
    fn the_numbers_are_variables() {
        let conf = "add_header V '$connections_active $connections_reading \
                    $connections_writing $connections_waiting';";
        let r = testing::request(conf, "GET / HTTP/1.1\r\n\r\n");
        let counters = r.connection.worker.counters();
        counters.active.store(9, Relaxed);
        counters.reading.store(2, Relaxed);
        counters.writing.store(3, Relaxed);
        for (name, want) in [
            ("connections_active", "9"),
            ("connections_reading", "2"),
            ("connections_writing", "3"),
            ("connections_waiting", "4"),
        ] {
            let id = r.plan.registry.find(name).unwrap();
            let mut out = Vec::new();
            assert!(forebay_session::var::read(&r, id, &mut out));
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }

    #[test]
    fn it_is_not_inherited() {
        let plan = testing::plan("server { stub_status; location / { } }").unwrap();
        let with = |location: &&crate::plan::Location| location.sole_content.is_some();
        assert_eq!(plan.locations.iter().filter(with).count(), 1);
    }
}
