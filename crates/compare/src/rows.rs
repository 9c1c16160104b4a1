//! What is measured: one entry a row, in the order of the report.
//! Invariant: a row is a request to `benches/conf/nginx.conf`, `proxy.conf` or `tls.conf` and a target, never code.

use forebay_testkit::case::FileSpec;

/// What a row has to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// nginx's processor time per request over Forebay's, at least.
    CpuRatio(f64),
    /// The same, and HAProxy's over Forebay's, at least.
    CpuRatios {
        /// Over nginx.
        nginx: f64,
        /// Over HAProxy.
        haproxy: f64,
    },
    /// The 99th percentile of nginx's response time over Forebay's, at least.
    P99Ratio(f64),
    /// Bytes per connection, at most.
    BytesAtMost(f64),
    /// Microseconds of the slowest request, at most.
    SlowestAtMost(f64),
    /// Microseconds of the 99th percentile, at most.
    P99AtMost(f64),
    /// Shown, not judged.
    None,
}

/// How a row is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Requests as fast as they are answered.
    Requests,
    /// HTTP/2 requests, 32 connections with 16 at once, as fast as they are answered.
    Http2,
    /// The response times of HTTP/2 clients with one request at a time.
    Http2OneStream,
    /// As many requests a second as 70 % of what nginx answers at most.
    Steady,
    /// Connections that have made one request and now wait.
    Idle,
    /// Connections that ask and do not read.
    Stalled,
    /// Uploads of [`UPLOADS`], one after the other.
    Uploads,
    /// Connections one after the other, each with a full handshake and a request.
    Handshakes,
    /// The same, with sessions resumed.
    Resumed,
}

/// Sizes of uploads around that of the buffer (8 kB) they go through, in bytes.
pub const UPLOADS: [usize; 7] = [4_000, 8_000, 8_200, 10_000, 12_000, 16_000, 64_000];

/// What the servers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `benches/conf/nginx.conf`: files and short answers.
    Files,
    /// `benches/conf/proxy.conf`, in front of `backend.conf`.
    Proxy,
    /// `benches/conf/tls.conf`, with a key on P-256.
    Tls,
    /// The same with an RSA key of 2048 bits.
    TlsRsa,
    /// `benches/conf/http2.conf`.
    Http2,
    /// The same over TLS.
    Http2Tls,
}

impl Setting {
    /// The kind of key, where there is one.
    pub fn key(self) -> Option<&'static str> {
        match self {
            Setting::Files | Setting::Proxy | Setting::Http2 => None,
            Setting::Tls | Setting::Http2Tls => Some("ec"),
            Setting::TlsRsa => Some("rsa"),
        }
    }
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What `--rows` selects by.
    pub name: &'static str,
    /// For the reader of the report.
    pub what: &'static str,
    /// Target of the request.
    pub path: &'static str,
    /// Header fields beside `Host`.
    pub headers: &'static [&'static str],
    /// Bytes of a request body; 0: a GET.
    pub body: usize,
    /// What the servers run.
    pub setting: Setting,
    /// How it is measured.
    pub load: Load,
    /// What it has to reach.
    pub target: Target,
}

impl Row {
    /// Whether HAProxy is given the same work.
    pub fn suits_haproxy(&self) -> bool {
        self.setting == Setting::Proxy
            && self.load == Load::Requests
            && !self.headers.contains(&TAKES_GZIP)
    }

    /// Whether a request is a fixed number of the plainest system calls, and the answer leaves in one.
    pub fn has_floor(&self) -> bool {
        ["return", "612-cached", "10k-cached", "close", "proxy-small", "proxy-close"]
            .contains(&self.name)
    }
}

const fn requests(
    name: &'static str,
    what: &'static str,
    path: &'static str,
    headers: &'static [&'static str],
    target: Target,
) -> Row {
    let (load, setting) = (Load::Requests, Setting::Files);
    Row { name, what, path, headers, body: 0, setting, load, target }
}

const fn proxied(
    name: &'static str,
    what: &'static str,
    path: &'static str,
    load: Load,
    target: Target,
) -> Row {
    Row { name, what, path, headers: &[], body: 0, setting: Setting::Proxy, load, target }
}

const fn over_tls(
    name: &'static str,
    what: &'static str,
    path: &'static str,
    load: Load,
    target: Target,
) -> Row {
    Row { name, what, path, headers: &[], body: 0, setting: Setting::Tls, load, target }
}

const fn http2(
    name: &'static str,
    what: &'static str,
    setting: Setting,
    load: Load,
    target: Target,
) -> Row {
    Row { name, what, path: "/612.html", headers: &[], body: 0, setting, load, target }
}

const TAKES_GZIP: &str = "Accept-Encoding: gzip";

/// Every row.
pub const ROWS: &[Row] = &[
    requests("return", "return 200", "/return", &[], Target::CpuRatio(1.05)),
    requests(
        "612-cached",
        "612 bytes, open_file_cache",
        "/cached/612.html",
        &[],
        Target::CpuRatio(1.4),
    ),
    requests(
        "10k-cached",
        "10 kB, open_file_cache",
        "/cached/10k.html",
        &[],
        Target::CpuRatio(1.4),
    ),
    requests("1m-cached", "1 MB, open_file_cache", "/cached/1m.html", &[], Target::CpuRatio(1.0)),
    requests("612-plain", "612 bytes", "/plain/612.html", &[], Target::CpuRatio(1.2)),
    requests("10k-plain", "10 kB", "/plain/10k.html", &[], Target::CpuRatio(1.2)),
    requests("1m-plain", "1 MB", "/plain/1m.html", &[], Target::CpuRatio(1.0)),
    requests(
        "close",
        "a connection per request",
        "/return",
        &["Connection: close"],
        Target::CpuRatio(1.05),
    ),
    requests(
        "gzip",
        "gzip of a file of 16 kB",
        "/gzip/16k.html",
        &[TAKES_GZIP],
        Target::CpuRatio(1.3),
    ),
    requests("log", "612 bytes, access log", "/log/612.html", &[], Target::CpuRatio(1.3)),
    requests(
        "log-buffered",
        "612 bytes, buffered access log",
        "/log-buffered/612.html",
        &[],
        Target::None,
    ),
    requests(
        "modules",
        "limit_req, realip, map, add_header, JSON log",
        "/modules/612.html",
        &[
            "X-Forwarded-For: 203.0.113.7, 127.0.0.1",
            "Accept-Language: fr",
            "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
            "Referer: http://localhost/",
        ],
        Target::CpuRatio(1.3),
    ),
    requests("sub", "sub_filter on 64 kB", "/sub/64k.html", &[], Target::CpuRatio(1.0)),
    requests("ssi", "SSI page of 64 kB", "/ssi/ssi.html", &[], Target::CpuRatio(1.0)),
    Row {
        load: Load::Idle,
        ..requests(
            "idle",
            "memory per idle connection",
            "/return",
            &[],
            Target::BytesAtMost(1024.0),
        )
    },
    proxied(
        "proxy-small",
        "proxy of a small response, kept-alive upstream",
        "/small",
        Load::Requests,
        Target::CpuRatios { nginx: 1.3, haproxy: 1.5 },
    ),
    Row {
        headers: &[TAKES_GZIP],
        ..proxied(
            "proxy-gzip",
            "proxy of 16 kB, compressed each time",
            "/gzip/16k.html",
            Load::Requests,
            Target::None,
        )
    },
    proxied(
        "proxy-64k",
        "proxy of 64 kB",
        "/64k.html",
        Load::Requests,
        Target::CpuRatios { nginx: 1.1, haproxy: 1.1 },
    ),
    Row {
        body: 64_000,
        ..proxied(
            "upload-64k",
            "upload of 64 kB, unbuffered",
            "/upload",
            Load::Requests,
            Target::CpuRatios { nginx: 1.2, haproxy: 1.2 },
        )
    },
    Row {
        headers: &["Connection: close"],
        ..proxied(
            "proxy-close",
            "proxy, a connection per request of the client",
            "/small",
            Load::Requests,
            Target::CpuRatios { nginx: 1.1, haproxy: 1.1 },
        )
    },
    proxied(
        "proxy-p99",
        "proxy: 99th percentile at 70 % of nginx's load",
        "/small",
        Load::Steady,
        Target::P99Ratio(1.0),
    ),
    proxied(
        "proxy-stalled",
        "proxy: memory per stalled download of 10 MB",
        "/stalled/10m.html",
        Load::Stalled,
        // proxy_buffers and proxy_buffer_size, and what two connections and a request take beside.
        Target::BytesAtMost((9 * 4096 + 8192) as f64),
    ),
    proxied(
        "upload-sizes",
        "slowest upload of 4 to 64 kB through 8 kB",
        "/upload",
        Load::Uploads,
        // A delayed acknowledgement is 40 ms.
        Target::SlowestAtMost(35_000.0),
    ),
    over_tls(
        "tls-612",
        "612 bytes over kept-alive TLS",
        "/cached/612.html",
        Load::Requests,
        Target::CpuRatio(1.25),
    ),
    over_tls("tls-1m", "1 MB over TLS", "/cached/1m.html", Load::Requests, Target::CpuRatio(1.05)),
    over_tls(
        "handshake-p256",
        "full handshake and request, P-256",
        "/return",
        Load::Handshakes,
        Target::CpuRatio(1.2),
    ),
    Row {
        setting: Setting::TlsRsa,
        ..over_tls(
            "handshake-rsa",
            "full handshake and request, RSA-2048",
            "/return",
            Load::Handshakes,
            Target::CpuRatio(1.0),
        )
    },
    over_tls(
        "tls-resumed",
        "resumed handshake and request",
        "/return",
        Load::Resumed,
        Target::CpuRatio(1.3),
    ),
    over_tls(
        "tls-idle",
        "memory per idle TLS connection",
        "/return",
        Load::Idle,
        Target::BytesAtMost(8192.0),
    ),
    http2(
        "h2c-612",
        "612 bytes, HTTP/2, 32 clients, 16 streams",
        Setting::Http2,
        Load::Http2,
        Target::CpuRatio(1.3),
    ),
    http2("h2-tls-612", "the same over TLS", Setting::Http2Tls, Load::Http2, Target::CpuRatio(1.2)),
    http2(
        "h2-one-stream",
        "612 bytes, HTTP/2, one stream a client",
        Setting::Http2,
        Load::Http2OneStream,
        // nginx with tcp_nopush waits 40 ms for a delayed ACK in each request.
        Target::P99AtMost(20_000.0),
    ),
    http2(
        "idle-h2",
        "memory per idle HTTP/2 connection",
        Setting::Http2,
        Load::Idle,
        Target::BytesAtMost(4096.0),
    ),
];

/// The files that the rows ask for.
pub fn files() -> Vec<FileSpec> {
    let texts = [
        ("612.html", 612),
        ("10k.html", 10_000),
        ("16k.html", 16_384),
        ("64k.html", 65_536),
        ("1m.html", 1_000_000),
        ("10m.html", 10_000_000),
    ];
    let mut files: Vec<FileSpec> =
        texts.into_iter().map(|(name, size)| FileSpec::new(name, text(size))).collect();
    files.push(FileSpec::new("ssi.html", page(65_536)));
    files.extend(crate::tls::files());
    files
}

/// A page with server-side includes: a head that asks for another file, and a command every 4 kB.
fn page(size: usize) -> Vec<u8> {
    let mut out = b"<!--# set var=\"title\" value=\"A page\" --><!--# include file=\"612.html\" -->\n\
        <!--# if expr=\"$http_accept_language = /^fr/\" -->Bonjour<!--# else -->Hello<!--# endif -->\n"
        .to_vec();
    for piece in text(size - out.len()).chunks(4096) {
        out.extend_from_slice(b"<!--# echo var=\"title\" -->\n");
        out.extend_from_slice(piece);
    }
    out
}

/// Markup with made-up words: about as compressible as a page, and the same each time.
fn text(size: usize) -> Vec<u8> {
    const SYLLABLES: [&str; 16] = [
        "for", "ba", "ne", "li", "ter", "so", "qua", "mi", "ren", "do", "ka", "vel", "tu", "pos",
        "ir", "ga",
    ];
    let mut out = Vec::with_capacity(size + 32);
    let mut state: u32 = 12_345;
    while out.len() < size {
        // Numerical Recipes' linear congruential generator; its high bits are good enough here.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        out.extend_from_slice(SYLLABLES[(state >> 28) as usize].as_bytes());
        match (state >> 20) & 31 {
            0 => out.extend_from_slice(b"</p>\n<p>"),
            1..=12 => out.push(b' '),
            _ => {}
        }
    }
    out.truncate(size);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_files_have_their_size() {
        for (i, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..i].iter().all(|other| other.name != row.name), "{}", row.name);
        }
        assert_eq!(text(612).len(), 612);
        assert_eq!(text(16_384), text(16_384));
    }
}
