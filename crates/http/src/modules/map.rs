//! `ngx_http_map_module`: `map`. The map itself is [`forebay_session::map`].
//!
//! Invariant: the same as there.

use forebay_conf::{Arity, Contexts, Error, Node};

use crate::module::{self, Cx, Directive, Module, set};

/// Maps belong to the registry of variables: a level keeps what may be said once.
#[derive(Default)]
pub struct Conf {
    hash_bucket_size: Option<u64>,
    hash_max_size: Option<u64>,
}

impl module::Conf for Conf {
    fn inherit(&mut self, _parent: &Self) {}
}

/// The module.
pub struct Map;

impl Module for Map {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_map_module";
    const DIRECTIVES: &'static [Directive<Conf>] = &[
        set(
            "map",
            &["string $variable"],
            "",
            Contexts::HTTP,
            Arity::BLOCK_TWO,
            "A variable whose value depends on that of others.",
            |_, n, cx| forebay_session::map::define(n, &mut cx.registry, cx.loader.diags),
        ),
        set(
            "map_hash_bucket_size",
            &["size"],
            "32|64|128",
            Contexts::HTTP,
            Arity::ONE,
            "The bucket size of the hash tables of maps.",
            |c, n, cx| no_meaning(&mut c.hash_bucket_size, n, cx),
        ),
        set(
            "map_hash_max_size",
            &["size"],
            "2048",
            Contexts::HTTP,
            Arity::ONE,
            "The size of the hash tables of maps.",
            |c, n, cx| no_meaning(&mut c.hash_max_size, n, cx),
        ),
    ];
}

fn no_meaning(slot: &mut Option<u64>, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
    forebay_conf::value::set_number(slot, node)?;
    let text = format!("\"{}\" changes nothing here: hash tables grow as needed", node.name());
    cx.loader.info(node.span, text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{self, conf_error};

    #[test]
    fn a_map_stands_below_its_first_use() {
        let plan = testing::plan(
            "server { return 200 $b:$c; } \
             map $arg_a:$uri $b { volatile; 1:/x one; ~^2:(?<rest>.*)$ $rest-$1; default none; } \
             map $b $c { ~o(.)e <$1>; }",
        );
        let plan = std::sync::Arc::new(plan.unwrap());
        for (target, expected) in [("/x?a=1", "one:<n>"), ("/y?a=2", "/y-/y:"), ("/x", "none:<n>")]
        {
            let head = format!("GET {target} HTTP/1.1\r\n\r\n");
            let mut r = testing::request_of(plan.clone(), &head);
            testing::answer(&mut r);
            let body = testing::drain(&mut r.response.body).unwrap();
            assert_eq!(String::from_utf8_lossy(&body), expected, "{target}");
        }
    }

    #[test]
    fn a_map_of_itself_ends() {
        let plan = testing::plan(
            "server { return 200 <$a>; } map $b $a { default a$b; } \
                                  map $a $b { default b$a; }",
        );
        let mut r = testing::request_of(plan.unwrap().into(), "GET / HTTP/1.1\r\n\r\n");
        testing::answer(&mut r);
        assert_eq!(r.response.status, 200);
    }

    #[test]
    fn errors_are_nginxs() {
        let cases = [
            ("map $uri x { }", "invalid variable name \"x\""),
            ("map $uri $uri { }", "the duplicate \"uri\" variable"),
            ("map $uri $a { a b; A c; }", "conflicting parameter \"a\""),
            ("map $uri $a { a; }", "invalid number of the map parameters"),
            ("map $uri $a { default b; default c; }", "duplicate default map parameter"),
            ("map $uri $a { hostnames; *.*.x 1; }", "invalid hostname or wildcard \"*.*.x\""),
            ("map $uri $a { ~( 1; }", "pcre2_compile() failed: "),
            ("map $uri $a { a $nothing; }", "unknown \"nothing\" variable"),
            ("map_hash_max_size 1; map_hash_max_size 1;", "\"map_hash_max_size\" directive is dup"),
            ("map_hash_max_size x;", "\"map_hash_max_size\" directive invalid number"),
        ];
        for (conf, expected) in cases {
            let error = conf_error(conf);
            assert!(error.contains(expected), "{conf}: {error}");
        }
    }
}
