//! `auth_request`: a subrequest's status decides whether a request has access
//! (`ngx_http_auth_request_module.c`).
//!
//! Invariant: nothing of the subrequest is sent but its `WWW-Authenticate`.

use std::sync::Arc;

use bytes::Bytes;
use forebay_conf::{Arity, Error, Node, value};
use forebay_session::{
    log::Severity,
    var::{self, Template, VarId},
};

use crate::{
    client::Client,
    engine,
    handler::{Flow, Handler},
    module::{self, ANY, Builder, Cx, Directive, Module, set},
    request::Request,
};

/// `ngx_http_auth_request_module`.
pub struct AuthRequest;

/// What one level of the configuration says.
#[derive(Default)]
pub struct Conf {
    uri: Option<Option<Bytes>>,
    set: Option<Arc<Vec<(VarId, Template)>>>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, parent: &Self) {
        crate::inherit!(self, parent; uri, set);
    }
}

impl Module for AuthRequest {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_auth_request_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "auth_request",
            &["uri | off"],
            "off",
            ANY,
            Arity::ONE,
            "The subrequest that decides on access.",
            |c, n, _| {
                value::set_once(&mut c.uri, n, |node| {
                    let arg = node.arg(0)?;
                    Ok((!arg.is("off")).then(|| Bytes::copy_from_slice(&arg.value)))
                })
            },
        ),
        set(
            "auth_request_set",
            &["$variable value"],
            "",
            ANY,
            Arity::TWO,
            "Sets a variable to what the subrequest has, once it has ended.",
            set_variable,
        ),
    ];

    fn build(conf: &Conf, b: &mut Builder<'_, '_, '_>) -> Result<(), Error> {
        if let Some(Some(uri)) = &conf.uri {
            let set = conf.set.clone().unwrap_or_default();
            b.access(Ask { uri: uri.clone(), set });
        }
        Ok(())
    }
}

fn set_variable(conf: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (name, text) = (&node.args[0], &node.args[1]);
    let Some(variable) = name.value.strip_prefix(b"$").filter(|name| !name.is_empty()) else {
        let text = format!("invalid variable name \"{}\"", name.lossy());
        return Err(Error::emerg(name.span, text));
    };
    let variable = String::from_utf8_lossy(variable);
    let id = cx.registry.settable(&variable, name.span, None)?;
    let template = Template::parse(&text.value, text.span, &mut cx.registry)?;
    let list = conf.set.get_or_insert_default();
    // Only this level holds it while its directives are being read.
    Arc::get_mut(list).expect("not shared before inheritance").push((id, template));
    Ok(())
}

struct Ask {
    uri: Bytes,
    set: Arc<Vec<(VarId, Template)>>,
}

impl Handler for Ask {
    fn handle<'a>(&'a self, r: &'a mut Request, _client: &'a mut dyn Client) -> Flow<'a> {
        Flow::later(|| self.ask(r))
    }
}

impl Ask {
    async fn ask<'f>(&self, r: &mut Request) -> Flow<'f> {
        let Some(mut child) = r.subrequest(&self.uri, b"") else { return Flow::Deny(500) };
        engine::subrequest(&mut child).await;
        child.end_upstream();
        child.log_subrequest();
        for (id, template) in self.set.iter() {
            let value = template.value(&child);
            var::assign(r, *id, &value);
        }
        match child.response.status {
            // `return 444`: the client hears nothing at all.
            status if status != 0 && child.ends_without_answer() => Flow::Deny(status),
            403 => Flow::Deny(403),
            401 => {
                let fields = child.response.fields.drain(..);
                let is_it = |name: &[u8]| name.eq_ignore_ascii_case(b"WWW-Authenticate");
                r.response.fields.extend(fields.filter(|field| is_it(&field.name)));
                Flow::Deny(401)
            }
            200..=299 => Flow::Allow,
            status => {
                let doing = r.main.doing.get();
                let text = format_args!("auth request unexpected status: {status}{doing}");
                r.log_error(Severity::Error, text);
                Flow::Deny(500)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn the_status_of_the_subrequest_decides() {
        // What has access is not found, as there is no file.
        for (auth, want) in [
            ("return 200;", 404),
            ("return 204;", 404),
            ("return 401;", 401),
            ("return 403;", 403),
            ("return 404;", 500),
            ("return 302 /;", 500),
            ("return 444;", 444),
            ("error_page 401 =200 /ok; return 401;", 404),
            ("error_page 404 =403 /ok; return 404;", 403),
        ] {
            let conf = format!(
                "location / {{ auth_request /a; root /nowhere; }} \
                 location = /a {{ {auth} }} location = /ok {{ return 200; }}"
            );
            let mut r = testing::request(&conf, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
            testing::answer(&mut r);
            assert_eq!(r.response.status, want, "{auth}");
        }
    }

    #[test]
    fn variables_come_from_the_subrequest() {
        let conf = "location / { auth_request /a; auth_request_set $who $upper-$status; \
                    add_header X-Who $who always; root /nowhere; } \
                    location = /a { set $upper A; return 204; }";
        let mut r = testing::request(conf, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
        testing::answer(&mut r);
        assert_eq!(testing::fields(&r), "X-Who: A-204\n");
    }

    #[test]
    fn mistakes_are_told_in_nginx_words() {
        for (conf, want) in [
            ("auth_request_set who x;", "invalid variable name \"who\""),
            ("auth_request_set $host x;", "the duplicate \"host\" variable"),
            ("auth_request /a; auth_request off;", "\"auth_request\" directive is duplicate"),
        ] {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }
}
