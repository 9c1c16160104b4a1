//! Variables by the client's address (`ngx_http_geo_module`); the tables are in
//! [`forebay_session::geo`].
//!
//! Invariant: nothing runs for a request that does not use the variable.

use std::sync::Arc;

use forebay_conf::{Arity, Contexts, Error, Node};
use forebay_session::geo::Geo as Table;

use crate::{
    forwarded,
    module::{self, Cx, Directive, Module, set},
    request::Request,
};

/// `ngx_http_geo_module`.
pub struct Geo;

/// Its blocks define variables, and are not settings of a level.
#[derive(Default)]
pub struct Conf;

impl module::Conf for Conf {
    fn inherit(&mut self, _: &Self) {}
}

impl Module for Geo {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_geo_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[set(
        "geo",
        &["[$address] $variable"],
        "",
        Contexts::HTTP,
        Arity::ONE_OR_TWO.block(),
        "A variable whose value depends on the client's address.",
        geo,
    )];
}

fn geo(_: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (name, table) = Table::parse(node, &mut cx.registry, cx.loader, true)?;
    let volatile = table.volatile;
    let compute = move |r: &Request, out: &mut Vec<u8>| {
        out.extend_from_slice(value(&table, r));
        true
    };
    cx.registry.computed(&name, node.span, volatile, Arc::new(compute))?;
    Ok(())
}

/// `ngx_http_geo_addr`, and the look-up.
fn value<'t>(table: &'t Table, r: &Request) -> &'t [u8] {
    let Ok(ip) = table.address(r, r.remote().ip()) else { return table.value(None) };
    if table.proxies.is_empty() {
        return table.value(ip);
    }
    let addr = (ip, None);
    let behind = forwarded::x_forwarded_for(r, addr, &table.proxies, table.proxy_recursive);
    table.value(behind.unwrap_or(addr).0)
}

#[cfg(test)]
mod tests {
    use forebay_session::var;

    use super::*;
    use crate::testing;

    fn check(conf: &str, cases: &[(&str, &str, &str)]) {
        let plan = testing::plan(&format!("{conf} server {{ listen 127.0.0.1:1; }}"));
        let plan = Arc::new(plan.expect("it must load"));
        for (target, fields, want) in cases {
            let head = format!("GET {target} HTTP/1.1\r\n{fields}\r\n");
            let r = testing::request_of(plan.clone(), &head);
            let mut out = Vec::new();
            assert!(var::read(&r, plan.registry.find("x").unwrap(), &mut out));
            assert_eq!(String::from_utf8_lossy(&out), *want, "{conf} {target} {fields}");
        }
    }

    #[test]
    fn the_address_is_the_clients_or_what_a_variable_says() {
        check("geo $x { default d; 127.0.0.0/8 local; }", &[("/", "", "local")]);
        check(
            "geo $arg_a $x { default d; 10.0.0.0/8 ten; 255.255.255.255 none; ::1 six; }",
            &[
                ("/?a=10.1.1.1", "", "ten"),
                ("/?a=::1", "", "six"),
                ("/?a=11.0.0.0", "", "d"),
                ("/?a=10.1.1.1:80", "", "ten"),
                ("/?a=[::1]:80", "", "six"),
                ("/?a=10.1.1.1:x", "", "none"),
                ("/?a=x", "", "none"),
                ("/", "", "none"),
            ],
        );
    }

    #[test]
    fn proxies_tell_who_is_behind_them() {
        let conf = "geo $x { proxy 127.0.0.1; proxy 10.0.0.0/8; proxy_recursive;
            default d; 1.0.0.0/8 one; 10.0.0.0/8 ten; 127.0.0.1 local; }";
        check(
            conf,
            &[
                ("/", "", "local"),
                ("/", "X-Forwarded-For: 1.1.1.1\r\n", "one"),
                ("/", "X-Forwarded-For: 1.1.1.1, 10.0.0.1\r\n", "one"),
                ("/", "X-Forwarded-For: 1.1.1.1, x, 10.0.0.1\r\n", "ten"),
                ("/", "X-Forwarded-For: x\r\n", "local"),
            ],
        );
    }

    #[test]
    fn wrong_blocks_have_nginx_texts() {
        let cases = [
            ("geo x { }", "invalid variable name \"x\""),
            ("geo x $y { }", "invalid variable name \"x\""),
            ("geo $uri { }", "the duplicate \"uri\" variable"),
            ("geo $a $b $c { }", "invalid number of arguments in \"geo\" directive"),
        ];
        for (conf, want) in cases {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }
}
