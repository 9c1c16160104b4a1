//! Variables by the hash of a text (`ngx_http_split_clients_module`); the parts are in
//! [`forebay_session::split_clients`].
//!
//! Invariant: nothing runs for a request that does not use the variable.

use std::sync::Arc;

use forebay_conf::{Arity, Contexts, Error, Node};
use forebay_session::split_clients::SplitClients as Parts;

use crate::{
    limits::with_key,
    module::{self, Cx, Directive, Module, set},
    request::Request,
};

/// `ngx_http_split_clients_module`.
pub struct SplitClients;

/// Its blocks define variables, and are not settings of a level.
#[derive(Default)]
pub struct Conf;

impl module::Conf for Conf {
    fn inherit(&mut self, _: &Self) {}
}

impl Module for SplitClients {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_split_clients_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[set(
        "split_clients",
        &["string $variable"],
        "",
        Contexts::HTTP,
        Arity::BLOCK_TWO,
        "A variable that divides clients by the hash of a text.",
        split_clients,
    )];
}

fn split_clients(_: &mut Conf, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    let (name, parts) = Parts::parse(node, &mut cx.registry, cx.loader.diags)?;
    let compute = move |r: &Request, out: &mut Vec<u8>| {
        with_key(&parts.text, r, |text| out.extend_from_slice(parts.value(text)));
        true
    };
    cx.registry.computed(&name, node.span, false, Arc::new(compute))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_session::var;

    use super::*;
    use crate::testing;

    #[test]
    fn the_text_is_hashed_with_its_variables() {
        let conf = "split_clients \"$arg_k\" $x { 50% a; * b; } server { listen 127.0.0.1:1; }";
        let plan = Arc::new(testing::plan(conf).expect("it must load"));
        // Hashes 0x1357…, 0x9268….
        for (key, want) in [("abc", "a"), ("a", "b"), ("", "a")] {
            let head = format!("GET /?k={key} HTTP/1.1\r\n\r\n");
            let r = testing::request_of(plan.clone(), &head);
            let mut out = Vec::new();
            assert!(var::read(&r, plan.registry.find("x").unwrap(), &mut out));
            assert_eq!(String::from_utf8_lossy(&out), want, "{key}");
        }
    }

    #[test]
    fn wrong_blocks_have_nginx_texts() {
        let cases = [
            ("split_clients $uri x { }", "invalid variable name \"x\""),
            ("split_clients $uri $x { 50 a; }", "invalid percent value \"50\""),
            ("split_clients $uri $x { 60% a; 41% b; }", "percent total is greater than 100%"),
            ("split_clients $uri $x { * a; 1% b; }", "percent total is greater than 100%"),
        ];
        for (conf, want) in cases {
            let error = testing::conf_error(conf);
            assert!(error.contains(want), "{conf}: {error}");
        }
    }
}
