//! HTTP/2 by raw frames: what requests get, what abuse gets, and what h2spec says.
//!
//! Invariant: each test has a server of its own, and waits for what it can see, never for a time.

mod both_ways;
mod client;
mod differential;
mod floods;
mod proxied;
mod requests;
mod spec;

use std::time::Duration;

use forebay_testkit::{Kind, Server, case::FileSpec};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A configuration with one server that speaks HTTP/2; `inside` are its directives.
fn conf(inside: &str) -> String {
    format!(
        "user root;
        error_log {{prefix}}/error.log info;
        events {{ worker_connections 1024; }}
        http {{
            {{temp_paths}}
            log_format h2 '$request $status $body_bytes_sent $server_protocol $http2 \
                $connection_requests $request_completion';
            access_log {{prefix}}/access.log h2;
            server {{
                listen 127.0.0.1:{{port}};
                http2 on;
                root {{root}};
                location = /text {{ return 200 \"alive\"; }}
                {inside}
            }}
        }}"
    )
}

/// Starts it with a file of so many bytes as `/file`.
fn start_with(inside: &str, file: usize) -> Server {
    let files = [FileSpec::new("file", pattern(file))];
    let builder = Server::builder(Kind::Forebay, &conf(inside)).files(&files);
    // Memory is weighed here: an allocator that takes it in steps of 2 MB would hide what is taken.
    let builder = builder.env("MIMALLOC_ALLOW_THP", "0");
    builder.start().unwrap_or_else(|e| panic!("{e}"))
}

fn start(inside: &str) -> Server {
    start_with(inside, 1000)
}

/// Bytes that differ from place to place, so that what is sent twice or left out is seen.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
