//! Lists of MIME types that directives such as `gzip_types` hold (`ngx_http_types_slot`,
//! `ngx_http_test_content_type`).
//!
//! Invariant: a list that begins with a default keeps it, whatever is added.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use forebay_conf::{Error, Node};

use crate::module::Cx;

/// Which types of responses a filter takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Types {
    /// `*`: all.
    Any,
    /// These, in lower case.
    These(Arc<HashSet<Box<[u8]>>>),
}

impl Types {
    /// A list of these.
    pub fn of(names: &[&str]) -> Types {
        Types::These(Arc::new(names.iter().map(|name| name.as_bytes().into()).collect()))
    }

    /// `text/html` alone: where most lists begin.
    pub fn html() -> Types {
        Types::of(&["text/html"])
    }

    /// Whether a response of that type is taken; one without a type is not, unless all are.
    pub fn has(&self, content_type: Option<&Bytes>) -> bool {
        let Types::These(set) = self else { return true };
        let Some(name) = content_type else { return false };
        if name.iter().any(u8::is_ascii_uppercase) {
            return set.contains(&name.to_ascii_lowercase()[..]);
        }
        set.contains(&name[..])
    }

    /// A setter's work: adds the arguments to the list, which begins with `text/html`.
    pub fn set(slot: &mut Option<Types>, node: &Node, cx: &mut Cx<'_, '_>) -> Result<(), Error> {
        Types::set_with(slot, node, cx, &["text/html"])
    }

    /// The same for a list that begins otherwise.
    pub fn set_with(
        slot: &mut Option<Types>,
        node: &Node,
        cx: &mut Cx<'_, '_>,
        first: &[&str],
    ) -> Result<(), Error> {
        let types = slot.get_or_insert_with(|| Types::of(first));
        for arg in &node.args {
            if arg.is("*") {
                *types = Types::Any;
            }
            let Types::These(set) = types else { return Ok(()) };
            let name = arg.value.to_ascii_lowercase().into_boxed_slice();
            if !Arc::make_mut(set).insert(name) {
                cx.loader.warn(arg.span, format!("duplicate MIME type \"{}\"", arg.lossy()));
            }
        }
        Ok(())
    }
}
