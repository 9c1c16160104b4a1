//! Active health checks in Tengine's form (`ngx_http_upstream_check_module`), and the page that shows
//! their results; the checks themselves are in [`forebay_session::upstream::health`].
//!
//! Leaves out: `type=fastcgi`, and the page's generation number, which is always 0.
//!
//! Invariant: reads what the checks know, changes nothing.

use bytes::Bytes;
use forebay_conf::{Arity, Contexts, Error, value};
use forebay_session::upstream::{
    Settings,
    health::{Style, directives},
};
use forebay_wire::{
    h1::Method,
    uri::{escape_html, escape_json},
};

use crate::{
    client::Client,
    handler::{Flow, Handler},
    module::{self, Builder, Cx, Directive, INNER, Module, in_upstream, set},
    request::Request,
    variables::argument,
};

/// `ngx_http_upstream_check_module`.
pub struct Check;

/// Whether the results are shown here, and how.
#[derive(Default)]
pub struct Conf {
    status: Option<Format>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, _: &Self) {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Html,
    Csv,
    Json,
}

const FORMATS: [(&str, Format); 3] =
    [("html", Format::Html), ("csv", Format::Csv), ("json", Format::Json)];

impl Module for Check {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_upstream_check_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        in_upstream(
            "check",
            &["interval=milliseconds [fall=count] [rise=count] [timeout=milliseconds] \
               [default_down=true|false] [type=tcp|http|ssl_hello|mysql|ajp] [port=number]"],
            "interval=30000 fall=5 rise=2 timeout=1000 default_down=true type=tcp",
            Arity::ANY,
            "Checks on the servers of the group, as Tengine does.",
            |_, n, cx| draft(cx, |s| directives::check(s, n)),
        ),
        in_upstream(
            "check_http_send",
            &["request"],
            "\"GET / HTTP/1.0\\r\\n\\r\\n\"",
            Arity::ONE,
            "What a check of type http sends.",
            |_, n, cx| draft(cx, |s| directives::check_http_send(s, n)),
        ),
        in_upstream(
            "check_http_expect_alive",
            &["http_1xx | http_2xx | http_3xx | http_4xx | http_5xx ..."],
            "http_2xx http_3xx",
            Arity::SOME,
            "Which statuses pass a check of type http.",
            |_, n, cx| draft(cx, |s| directives::check_http_expect_alive(s, n)),
        ),
        in_upstream(
            "check_keepalive_requests",
            &["number"],
            "1",
            Arity::ONE,
            "How many checks go over one connection.",
            |_, n, cx| draft(cx, |s| directives::check_keepalive_requests(s, n)),
        ),
        set(
            "check_shm_size",
            &["size"],
            "1m",
            Contexts::HTTP,
            Arity::ONE,
            "Has no meaning here: what checks know is as large as the groups.",
            |_, n, cx| {
                let mut size = None;
                value::set_size(&mut size, n)?;
                let text = "the \"check_shm_size\" directive changes nothing here: threads share \
                            what the checks know";
                cx.loader.info(n.span, text);
                Ok(())
            },
        ),
        set(
            "check_status",
            &["[html | csv | json]"],
            "html",
            INNER,
            Arity::between(0, 1),
            "Answers with the results of the checks.",
            |c, n, cx| {
                cx.serves = true;
                let format = n.args.first().map(|arg| value::choice(arg, &FORMATS)).transpose()?;
                c.status = Some(format.unwrap_or(Format::Html));
                Ok(())
            },
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        let format = conf.status.or_else(|| b.enclosing::<Conf>()?.status);
        if let Some(format) = format.filter(|_| b.serves()) {
            b.sole_content(Page(format));
        }
        Ok(())
    }
}

/// Changes what the block at hand says so far.
fn draft(
    cx: &mut Cx<'_, '_>,
    f: impl FnOnce(&mut Settings) -> Result<(), Error>,
) -> Result<(), Error> {
    let upstream = cx.upstreams.block().expect("directives of a block stand in one");
    f(upstream.draft().get_or_insert_default())
}

/// The page.
struct Page(Format);

/// What it shows of a server.
struct Row {
    upstream: Box<str>,
    name: Box<str>,
    up: bool,
    rise: u32,
    fall: u32,
    kind: &'static str,
    port: u16,
}

impl Handler for Page {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        if !matches!(r.method, Method::Get | Method::Head) {
            return Flow::Deny(405);
        }
        let asked = |name: &[u8]| argument(&r.args, name).unwrap_or_default();
        let known = FORMATS.iter().find(|(name, _)| asked(b"format") == name.as_bytes());
        let format = known.map_or(self.0, |(_, format)| *format);
        let wanted = match asked(b"status") {
            b"up" => Some(true),
            b"down" => Some(false),
            _ => None,
        };
        let rows: Vec<Row> =
            rows(r).into_iter().filter(|row| wanted.is_none_or(|up| row.up == up)).collect();
        let mut out = Vec::with_capacity(256 + 128 * rows.len());
        let content_type: &[u8] = match format {
            Format::Html => {
                html(&rows, &mut out);
                b"text/html"
            }
            Format::Csv => {
                rows.iter().enumerate().for_each(|(n, row)| row.csv(n, &mut out));
                b"text/plain"
            }
            Format::Json => {
                json(&rows, &mut out);
                b"application/json"
            }
        };
        r.respond(200, Bytes::from_static(content_type), out.into());
        Flow::Done
    }
}

/// All servers that are checked in Tengine's form.
fn rows(r: &Request) -> Vec<Row> {
    let mut rows = Vec::new();
    for upstream in r.plan.upstreams.iter() {
        let group = upstream.group();
        let checks = group.settings.checks.iter().enumerate();
        for (number, check) in checks.filter(|(_, check)| check.style == Style::Tengine) {
            for peer in group.peers() {
                let Some(record) = peer.health(number) else { continue };
                rows.push(Row {
                    upstream: group.name.clone(),
                    name: peer.name.clone(),
                    up: record.up,
                    rise: record.rise,
                    fall: record.fall,
                    kind: check.kind.name(),
                    port: check.port.unwrap_or(0),
                });
            }
        }
    }
    rows
}

impl Row {
    fn status(&self) -> &'static str {
        if self.up { "up" } else { "down" }
    }

    /// The columns after the index, with the texts written by `escape`.
    fn columns(&self, escape: fn(&[u8], &mut Vec<u8>)) -> [String; 7] {
        let text = |text: &str| {
            let mut out = Vec::new();
            escape(text.as_bytes(), &mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        [
            text(&self.upstream),
            text(&self.name),
            self.status().to_owned(),
            self.rise.to_string(),
            self.fall.to_string(),
            self.kind.to_owned(),
            self.port.to_string(),
        ]
    }

    fn csv(&self, index: usize, out: &mut Vec<u8>) {
        let columns = self.columns(|text, out| out.extend_from_slice(text));
        out.extend_from_slice(format!("{index},{}\n", columns.join(",")).as_bytes());
    }
}

fn json(rows: &[Row], out: &mut Vec<u8>) {
    let head = format!(
        "{{\"servers\": {{\n  \"total\": {},\n  \"generation\": 0,\n  \"server\": [\n",
        rows.len()
    );
    out.extend_from_slice(head.as_bytes());
    for (index, row) in rows.iter().enumerate() {
        let [upstream, name, status, rise, fall, kind, port] = row.columns(escape_json);
        let comma = if index + 1 < rows.len() { "," } else { "" };
        let line = format!(
            "    {{\"index\": {index}, \"upstream\": \"{upstream}\", \"name\": \"{name}\", \
             \"status\": \"{status}\", \"rise\": {rise}, \"fall\": {fall}, \"type\": \"{kind}\", \
             \"port\": {port}}}{comma}\n"
        );
        out.extend_from_slice(line.as_bytes());
    }
    out.extend_from_slice(b"  ]\n}}\n");
}

fn html(rows: &[Row], out: &mut Vec<u8>) {
    const TITLE: &str = "Nginx http upstream check status";
    let head = format!(
        "<!DOCTYPE html>\n<html>\n<head>\n  <title>{TITLE}</title>\n</head>\n<body>\n\
         <h1>{TITLE}</h1>\n<h2>Check upstream server number: {}, generation: 0</h2>\n\
         <table style=\"background-color:white\" cellspacing=\"0\" cellpadding=\"3\" border=\"1\">\n\
         \x20 <tr bgcolor=\"#C0C0C0\">\n",
        rows.len()
    );
    out.extend_from_slice(head.as_bytes());
    let names = [
        "Index",
        "Upstream",
        "Name",
        "Status",
        "Rise counts",
        "Fall counts",
        "Check type",
        "Check port",
    ];
    for name in names {
        out.extend_from_slice(format!("    <th>{name}</th>\n").as_bytes());
    }
    out.extend_from_slice(b"  </tr>\n");
    for (index, row) in rows.iter().enumerate() {
        let color = if row.up { "" } else { " bgcolor=\"#FF0000\"" };
        out.extend_from_slice(format!("  <tr{color}>\n    <td>{index}</td>\n").as_bytes());
        for column in row.columns(escape_html) {
            out.extend_from_slice(format!("    <td>{column}</td>\n").as_bytes());
        }
        out.extend_from_slice(b"  </tr>\n");
    }
    out.extend_from_slice(b"</table>\n</body>\n</html>\n");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{body::Body, client::Nobody, plan::LocId, testing};

    fn page(format: &str, target: &str) -> (String, String) {
        let conf = format!(
            "upstream u {{ server 127.0.0.1:81; server 127.0.0.1:82; \
             check interval=1000 type=http port=9 default_down=false; }} \
             upstream v {{ server 127.0.0.1:83; check; }} \
             upstream w {{ server 127.0.0.1:84; }} \
             server {{ listen 127.0.0.1:1; check_status {format}; }}"
        );
        let plan = Arc::new(testing::plan(&conf).expect("it must load"));
        let level = plan.server(Default::default()).location;
        let mut r = testing::request_of(plan.clone(), &format!("GET {target} HTTP/1.1\r\n\r\n"));
        r.location = level;
        assert_ne!(level, LocId::default());
        let handler = plan.location(level).sole_content.as_ref().unwrap();
        assert!(matches!(handler.handle(&mut r, &mut Nobody), Flow::Done));
        let Body::Bytes(body) = &r.response.body else { panic!("no body") };
        let content_type = r.response.content_type.clone().unwrap_or_default();
        (
            String::from_utf8_lossy(&content_type).into_owned(),
            String::from_utf8_lossy(body).into_owned(),
        )
    }

    #[test]
    fn the_page_shows_each_server_that_is_checked() {
        let (content_type, body) = page("csv", "/");
        let want = "0,u,127.0.0.1:81,up,0,0,http,9\n1,u,127.0.0.1:82,up,0,0,http,9\n\
                    2,v,127.0.0.1:83,down,0,0,tcp,0\n";
        assert_eq!((content_type.as_str(), body.as_str()), ("text/plain", want));
        let (content_type, body) = page("", "/?format=json&status=down");
        let want = "{\"servers\": {\n  \"total\": 1,\n  \"generation\": 0,\n  \"server\": [\n    \
                    {\"index\": 0, \"upstream\": \"v\", \"name\": \"127.0.0.1:83\", \
                    \"status\": \"down\", \"rise\": 0, \"fall\": 0, \"type\": \"tcp\", \
                    \"port\": 0}\n  ]\n}}\n";
        assert_eq!((content_type.as_str(), body.as_str()), ("application/json", want));
        let (content_type, body) = page("json", "/?format=html");
        assert_eq!(content_type, "text/html");
        assert_eq!(body.matches("<tr>").count(), 2);
        assert_eq!(body.matches("<tr bgcolor=\"#FF0000\">").count(), 1);
    }

    #[test]
    fn wrong_directives_have_nginx_texts() {
        let cases = [
            ("check interval=0;", "invalid parameter \"interval=0\""),
            ("check type=smtp;", "invalid parameter \"type=smtp\""),
            ("check rise;", "invalid parameter \"rise\""),
            ("check port=65536;", "invalid parameter \"port=65536\""),
            ("check; check;", "\"check\" directive is duplicate"),
            ("check_http_expect_alive http_6xx;", "invalid value \"http_6xx\""),
            ("check_keepalive_requests x;", "directive invalid number"),
        ];
        for (text, want) in cases {
            let conf = format!("upstream u {{ server 127.0.0.1:1; {text} }}");
            let error = testing::conf_error(&conf);
            assert!(error.contains(want), "{text}: {error}");
        }
        assert!(testing::conf_error("check_shm_size x;").contains("invalid value"));
    }
}
