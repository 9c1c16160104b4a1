//! What the two limit modules have in common: keys, verdicts, severities.
//!
//! Hot path: making a key takes no memory.

use std::cell::Cell;

use forebay_conf::{Error, Node, value};
use forebay_session::{
    log::{Severity, Shown},
    var::Template,
};

use crate::{module::Cx, request::Request};

/// What became of a request at a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let through.
    Passed,
    /// Let through, later.
    Delayed,
    /// Answered with an error.
    Rejected,
    /// Would have been delayed.
    DelayedDryRun,
    /// Would have been rejected.
    RejectedDryRun,
}

impl Verdict {
    /// As `$limit_req_status` and `$limit_conn_status` have it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Passed => "PASSED",
            Verdict::Delayed => "DELAYED",
            Verdict::Rejected => "REJECTED",
            Verdict::DelayedDryRun => "DELAYED_DRY_RUN",
            Verdict::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }

    /// Rejected, or that it would have been.
    pub fn rejected(dry_run: bool) -> Verdict {
        if dry_run { Verdict::RejectedDryRun } else { Verdict::Rejected }
    }
}

/// The severities that the modules' `…_log_level` directives know.
pub const LEVELS: [(&str, Severity); 4] = [
    ("info", Severity::Info),
    ("notice", Severity::Notice),
    ("warn", Severity::Warn),
    ("error", Severity::Error),
];

/// What the limit modules have in common.
#[derive(Default)]
pub struct Common {
    /// `…_dry_run`.
    pub dry_run: Option<bool>,
    /// `…_log_level`.
    pub log_level: Option<Severity>,
    /// `…_status`.
    pub status: Option<u16>,
}

impl Common {
    /// Takes over what is not set.
    pub fn inherit(&mut self, parent: &Common) {
        crate::inherit!(self, parent; dry_run, log_level, status);
    }
}

/// The directives of a limit module: its own, and those that both have, with its prefix. Its settings
/// have the common ones in a field `common`. What tables are written with is at hand.
macro_rules! directives {
    ($prefix:literal; $($own:expr,)*) => {{
        use forebay_conf::{Arity, value};
        use $crate::{limits, module::{ANY, set}};
        &[
            $($own,)*
            set(
                concat!($prefix, "_dry_run"),
                &["on | off"],
                "off",
                ANY,
                Arity::FLAG,
                "Whether requests are only counted, never held up or rejected.",
                |c, n, _| value::set_flag(&mut c.common.dry_run, n),
            ),
            set(
                concat!($prefix, "_log_level"),
                &["info | notice | warn | error"],
                "error",
                ANY,
                Arity::ONE,
                "How loud rejections are.",
                |c, n, _| value::set_enum(&mut c.common.log_level, n, &limits::LEVELS),
            ),
            set(
                concat!($prefix, "_status"),
                &["code"],
                "503",
                ANY,
                Arity::ONE,
                "What rejected requests are answered with.",
                |c, n, _| limits::set_status(&mut c.common.status, n),
            ),
        ]
    }};
}
pub(crate) use directives;

thread_local! {
    static KEY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Fills in a key and looks at it.
pub fn with_key<T>(key: &Template, r: &Request, f: impl FnOnce(&[u8]) -> T) -> T {
    let mut buf = KEY.take();
    buf.clear();
    key.write(r, &mut buf);
    let result = f(&buf);
    KEY.set(buf);
    result
}

/// Says that a key is too long to be counted.
pub fn log_long_key(r: &Request, key_text: &str, max: usize, key: &[u8]) {
    let value = Shown(key);
    let text =
        format_args!("the value of the \"{key_text}\" key is more than {max} bytes: \"{value}\"");
    r.log_error(Severity::Error, text);
}

/// The key of a zone, and as it was written.
pub fn key(node: &Node, cx: &mut Cx<'_, '_>) -> Result<(Template, String), Error> {
    let arg = node.arg(0)?;
    let template = Template::parse(&arg.value, arg.span, &mut cx.registry)?;
    Ok((template, arg.lossy().into_owned()))
}

/// A limit or a zone has no zone, or one without a name.
pub fn no_zone(node: &Node) -> Error {
    Error::emerg(node.span, format!("\"{}\" must have \"zone\" parameter", node.name()))
}

/// nginx's error for a zone that is declared twice.
pub fn bound_already(node: &Node, name: &str, key_text: &str) -> String {
    format!("{} \"{name}\" is already bound to key \"{key_text}\"", node.name())
}

/// A status between 400 and 599.
pub fn set_status(slot: &mut Option<u16>, node: &Node) -> Result<(), Error> {
    value::set_number(slot, node)?;
    value::check_bounds(node, u64::from(slot.unwrap_or_default()), 400, Some(599))
}
