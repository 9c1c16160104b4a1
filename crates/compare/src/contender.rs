//! Who is measured: nginx, Forebay or HAProxy, running, with what stands behind it.

use std::fmt;
use std::net::SocketAddr;

use forebay_testkit::{Kind, Server, process};

use crate::floor::Floor;
use crate::haproxy::Haproxy;
use crate::measure::Plan;
use crate::rows::{self, Row, Setting};

const FILES_CONF: &str = include_str!("../../../benches/conf/nginx.conf");
const PROXY_CONF: &str = include_str!("../../../benches/conf/proxy.conf");
const HTTP2_CONF: &str = include_str!("../../../benches/conf/http2.conf");
const TLS_CONF: &str = include_str!("../../../benches/conf/tls.conf");
const BACKEND_CONF: &str = include_str!("../../../benches/conf/backend.conf");

/// One of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The measure.
    Nginx,
    /// What is judged.
    Forebay,
    /// The other measure of proxies.
    Haproxy,
    /// What nobody can go below.
    Floor,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Who::Nginx => "nginx",
            Who::Forebay => "forebay",
            Who::Haproxy => "haproxy",
            Who::Floor => "floor",
        })
    }
}

enum Running {
    Server(Box<Server>),
    Haproxy(Haproxy),
    Floor(Floor),
}

/// A running server.
pub struct Contender {
    /// Which.
    pub who: Who,
    running: Running,
}

/// What the servers of the proxy rows pass requests to: Debian's nginx, which stays on the load's core.
pub fn backend(plan: &Plan) -> Result<Server, String> {
    let builder = Server::builder(Kind::Nginx, BACKEND_CONF).binary(&plan.nginx);
    builder.files(&rows::files()).start().map_err(|e| format!("back end: {e}"))
}

impl Contender {
    /// Starts one on the configuration of a row.
    pub fn start(
        plan: &Plan,
        who: Who,
        row: &Row,
        backend: Option<&Server>,
    ) -> Result<Contender, String> {
        let (setting, behind) = (row.setting, backend.map(|server| server.addr()));
        let running = match (who, setting, behind) {
            (Who::Floor, ..) => {
                let model = Contender::start(plan, Who::Nginx, row, backend)?;
                Running::Floor(Floor::start(row, model.addr(), behind)?)
            }
            (Who::Haproxy, _, Some(behind)) => {
                let binary = plan.haproxy.as_deref().ok_or("haproxy is not installed")?;
                Running::Haproxy(Haproxy::start(binary, behind)?)
            }
            (Who::Haproxy, ..) => return Err("haproxy serves no files".to_owned()),
            (_, Setting::Files, _) => Running::Server(server(plan, who, FILES_CONF)?),
            (_, Setting::Proxy, Some(behind)) => {
                let conf = PROXY_CONF.replace("{backend}", &behind.to_string());
                Running::Server(server(plan, who, &conf)?)
            }
            (_, Setting::Tls | Setting::TlsRsa, _) => {
                let conf = TLS_CONF.replace("{key}", setting.key().unwrap_or_default());
                Running::Server(server(plan, who, &conf)?)
            }
            (_, Setting::Http2 | Setting::Http2Tls, _) => {
                let ssl = if setting == Setting::Http2Tls { "ssl" } else { "" };
                Running::Server(server(plan, who, &HTTP2_CONF.replace("{ssl}", ssl))?)
            }
            (_, Setting::Proxy, None) => return Err("no back end".to_owned()),
        };
        Ok(Contender { who, running })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        match &self.running {
            Running::Server(server) => server.addr(),
            Running::Haproxy(haproxy) => haproxy.addr(),
            Running::Floor(floor) => floor.addr(),
        }
    }

    /// Its processes.
    pub fn process_tree(&self) -> Vec<process::Pid> {
        match &self.running {
            Running::Server(server) => server.process_tree(),
            Running::Haproxy(haproxy) => haproxy.process_tree(),
            Running::Floor(floor) => floor.process_tree(),
        }
    }
}

impl Drop for Contender {
    /// Asks it to quit, so that it writes what it writes at its end: a profile of its run.
    fn drop(&mut self) {
        if let Running::Server(server) = &mut self.running {
            server.stop();
        }
    }
}

fn server(plan: &Plan, who: Who, conf: &str) -> Result<Box<Server>, String> {
    let (kind, binary) = match who {
        Who::Forebay => (Kind::Forebay, &plan.forebay),
        Who::Nginx | Who::Haproxy | Who::Floor => (Kind::Nginx, &plan.nginx),
    };
    let builder = Server::builder(kind, conf).binary(binary).files(&rows::files());
    builder.start().map(Box::new).map_err(|e| e.to_string())
}
