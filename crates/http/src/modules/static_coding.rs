//! Serves `x.gz`, `x.br` or `x.zst` for `x`: the handler behind `gzip_static`
//! (`ngx_http_gzip_static_module.c`), `brotli_static` and `zstd_static`.
//!
//! Of several, the client gets the one that it wants most and that is there; of equals zst, br, gz.
//!
//! Invariant: whether a client takes a coding is the coding's own rule.

use forebay_conf::{Error, Node, value::set_enum};
use forebay_session::log::{Severity, Shown};
use forebay_wire::h1::Method;

use super::static_files::{refuse, respond};
use crate::{
    client::Client,
    coding::StaticCoding,
    files::{self, Failed, Found},
    handler::{Flow, Handler},
    inherit, module,
    request::Request,
};

/// `gzip_static` and its like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    #[default]
    Off,
    /// For clients that take it.
    On,
    /// For all clients.
    Always,
}

/// The setting of one level; `M` tells the modules apart.
pub struct Conf<M> {
    /// The setting.
    pub mode: Option<Mode>,
    marker: std::marker::PhantomData<M>,
}

impl<M> Default for Conf<M> {
    fn default() -> Self {
        Conf { mode: None, marker: std::marker::PhantomData }
    }
}

impl<M: Send + Sync + 'static> module::Conf for Conf<M> {
    fn inherit(&mut self, parent: &Self) {
        inherit!(self, parent; mode);
    }
}

impl<M> Conf<M> {
    /// The setter.
    pub fn set(&mut self, node: &Node) -> Result<(), Error> {
        let table = [("off", Mode::Off), ("on", Mode::On), ("always", Mode::Always)];
        set_enum(&mut self.mode, node, &table)
    }
}

/// The handler of all static codings of a location.
pub struct Compressed {
    /// In the order of preference.
    pub codings: Vec<StaticCoding>,
    /// `gzip_vary`.
    pub vary: bool,
}

/// How many static codings there are.
const MOST: usize = 3;

impl Handler for Compressed {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        if r.uri.ends_with(b"/") || !matches!(r.method, Method::Get | Method::Head) {
            return Flow::Decline;
        }
        let mut qualities = [0; MOST];
        for (quality, coding) in qualities.iter_mut().zip(&self.codings) {
            *quality = if coding.always { 1000 } else { (coding.quality)(r) };
        }
        // A client that does not take it is still told that there is something to vary.
        if !self.vary && qualities == [0; MOST] {
            return Flow::Decline;
        }
        files::run(files::waits(r), || self.serve(r, qualities))
    }
}

impl Compressed {
    async fn serve<'f>(&self, r: &mut Request, qualities: [u16; MOST]) -> Flow<'f> {
        let mut path = Vec::with_capacity(256);
        if files::map_path(r, &mut path).is_err() {
            return refuse(r, &path);
        }
        let len = path.len();
        let mut order = [0, 1, 2];
        order.sort_by_key(|index| std::cmp::Reverse(qualities[*index]));
        for index in order {
            let Some(coding) = self.codings.get(index) else { continue };
            let accepted = qualities[index] > 0;
            if !accepted && !self.vary {
                continue;
            }
            path.truncate(len);
            path.extend_from_slice(coding.extension.as_bytes());
            let found = match files::open(r, &path).await {
                Ok(found) => found,
                Err(failed) => {
                    log(r, failed, &path);
                    continue;
                }
            };
            if !coding.always {
                r.response.vary_accept_encoding = self.vary;
                if !accepted {
                    continue;
                }
            }
            let Found::File(file) = found else { continue };
            if !file.is_regular() {
                let path = Shown(&path);
                r.log_error(Severity::Crit, format_args!("\"{path}\" is not a regular file"));
                return Flow::Deny(404);
            }
            respond(r, file);
            r.response.allow_ranges = false;
            let name = bytes::Bytes::from_static(coding.name.as_bytes());
            r.response.add("Content-Encoding", name);
            return Flow::Done;
        }
        Flow::Decline
    }
}

fn log(r: &Request, failed: Failed, path: &[u8]) {
    if !failed.is_missing() {
        let severity = if failed.is_forbidden() { Severity::Error } else { Severity::Crit };
        files::log_failed(r, severity, failed, path);
    }
}

#[cfg(test)]
mod tests {
    use forebay_testkit::tempdir::TempDir;

    use crate::testing;

    /// What is served for `/a`, beside which these files lie.
    fn served(conf: &str, files: &[&str], accept: &str) -> String {
        let dir = TempDir::new().unwrap();
        for name in files {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let conf = format!("root {}; location / {{ {conf} }}", dir.path().display());
        let head = format!("GET /a HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accept}\r\n\r\n");
        let mut r = testing::request(&conf, &head);
        testing::answer(&mut r);
        let coding = r.response.field("Content-Encoding").cloned().unwrap_or_default();
        let coding = String::from_utf8(coding.to_vec()).unwrap();
        let vary = if r.response.vary_accept_encoding { " vary" } else { "" };
        format!("{} {coding}{vary}", testing::text(&mut r))
    }

    #[test]
    fn the_client_gets_the_file_that_it_wants_most() {
        const ALL: &str = "gzip_static on; brotli_static on; zstd_static on; ";
        const FILES: &[&str] = &["a", "a.gz", "a.br", "a.zst"];
        for (conf, files, accept, want) in [
            (ALL, FILES, "gzip, br, zstd", "a.zst zstd"),
            (ALL, FILES, "gzip, br", "a.br br"),
            (ALL, FILES, "gzip, br;q=0.5", "a.gz gzip"),
            (ALL, &["a", "a.gz"], "gzip, br, zstd", "a.gz gzip"),
            (ALL, FILES, "br;q=0", "a "),
            (ALL, FILES, "", "a "),
            ("brotli_static always;", FILES, "", "a.br br"),
            ("brotli_static always; gzip_static on;", &["a", "a.gz"], "", "a "),
            ("brotli_static on; gzip_vary on;", FILES, "gzip", "a  vary"),
            ("brotli_static on; gzip_vary on;", FILES, "br", "a.br br vary"),
            ("brotli_static on; gzip_vary on;", &["a"], "br", "a "),
            ("zstd_static off;", FILES, "zstd", "a "),
        ] {
            assert_eq!(served(conf, files, accept), want, "{conf} {accept}");
        }
    }
}
