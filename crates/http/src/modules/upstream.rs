//! Groups of servers to pass requests to (`ngx_http_upstream_module`); the groups themselves are in
//! [`forebay_session::upstream`].
//!
//! Invariant: nothing runs for a request here; who passes requests on asks the group.

use std::sync::Arc;

use forebay_conf::{Arity, Contexts, Error, Node, value};
use forebay_session::upstream::{self, Server, Settings, address::Target};

use crate::{
    module::{self, Cx, Directive, Module, open, set},
    plan::LocId,
};

/// `ngx_http_upstream_module`.
pub struct Upstream;

/// Which block is being read.
#[derive(Default)]
pub struct Conf {
    upstream: Option<Arc<upstream::Upstream>>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, _: &Self) {}
}

impl Conf {
    /// Changes what the block says so far.
    fn draft<T>(&self, f: impl FnOnce(&mut Settings) -> T) -> T {
        let upstream = self.upstream.as_ref().expect("directives of a block stand in one");
        f(upstream.draft().get_or_insert_default())
    }
}

impl Module for Upstream {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_upstream_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        open(
            "upstream",
            &["name"],
            "",
            Contexts::HTTP,
            Arity::BLOCK_ONE,
            "A group of servers.",
            block,
        ),
        set(
            "server",
            &["address [parameters]"],
            "",
            Contexts::UPSTREAM,
            Arity::SOME,
            "A server of the group.",
            server,
        ),
    ];
}

fn block(
    _: &mut Conf,
    node: &Node,
    cx: &mut Cx<'_, '_>,
    _: LocId,
) -> Result<(Contexts, Conf), Error> {
    let upstream = cx.upstreams.define(node.text(0)?, node.span, cx.loader)?;
    Ok((Contexts::UPSTREAM, Conf { upstream: Some(upstream) }))
}

fn server(c: &mut Conf, node: &Node, _: &mut Cx<'_, '_>) -> Result<(), Error> {
    let text = node.text(0)?;
    let (target, _) = Target::parse(text, 80, false)
        .map_err(|why| Error::emerg(node.span, format!("{why} in upstream \"{text}\"")))?;
    let mut server = Server::new(target, node.span);
    for arg in &node.args[1..] {
        match arg.after("weight=").and_then(value::number) {
            Some(weight) if weight > 0 => server.weights.weight = weight as i64,
            _ => return Err(value::invalid_parameter(arg)),
        }
    }
    c.draft(|settings| settings.servers.push(server));
    Ok(())
}
