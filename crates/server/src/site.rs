//! What is served: the `http` block, compiled. The server's side of the seam to `forebay_http`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_conf::{Arg, Loader, Node, Span, Spec};
use forebay_http::load_with;
use forebay_http::module::{AnyModule, Cx, DefaultPaths};
use forebay_http::plan::Plan;
use forebay_rt::listen::{Addr, Options};
use forebay_rt::privileges;
use forebay_session::log::{ErrorLog, LogFile};

/// A compiled `http` block.
#[derive(Clone)]
pub struct Site {
    plan: Arc<Plan>,
}

impl Site {
    /// Every directive that may stand in it.
    pub fn specs() -> Vec<&'static Spec> {
        modules().iter().flat_map(|module| module.specs()).collect()
    }

    /// Whether a module, by nginx's name, is built in.
    pub fn has_module(name: &str) -> bool {
        modules().iter().any(|module| module.name() == name)
    }

    /// Compiles a block; without one, nothing is listened on. Errors are in the loader.
    pub fn load(
        block: Option<&Node>,
        loader: &mut Loader<'_>,
        error_log: &ErrorLog,
        defaults: DefaultPaths,
    ) -> Option<Site> {
        let empty = empty_block();
        let block = block.unwrap_or(&empty);
        let mut cx = Cx::new(loader);
        cx.defaults = defaults;
        cx.elsewhere = crate::core::specs().collect();
        let plan = load_with(block, &modules(), cx, error_log, privileges::is_root())?;
        Some(Site { plan: Arc::new(plan) })
    }

    /// What the threads run under.
    pub fn plan(&self) -> Arc<Plan> {
        self.plan.clone()
    }

    /// Goes on with the shared memory of the site before it; errors say why it may not follow it.
    pub fn take_over(&self, old: &Site) -> Result<(), String> {
        self.plan.zones.take_over(&old.plan.zones)?;
        self.plan.upstreams.take_over(&old.plan.upstreams);
        Ok(())
    }

    /// Where it listens.
    pub fn listeners(&self) -> Vec<(Addr, Options)> {
        let listeners = self.plan.listeners.iter();
        listeners.map(|listener| (listener.addr.clone(), listener.options.clone())).collect()
    }

    /// The log files that it names.
    pub fn logs(&self) -> impl Iterator<Item = &Arc<LogFile>> {
        self.plan.logs.iter()
    }

    /// Whether one of its error logs is standard error.
    pub fn names_stderr(&self) -> bool {
        self.plan.logs.names_stderr
    }

    /// The directories of its temporary files.
    pub fn temp_paths(&self) -> BTreeSet<PathBuf> {
        self.plan.temp_paths()
    }

    /// Whether connections are made from addresses that are not of this machine.
    pub fn transparent(&self) -> bool {
        self.plan.transparent
    }

    /// The names of these files.
    pub fn log_paths(&self) -> Vec<PathBuf> {
        self.plan.log_paths()
    }
}

fn modules() -> Vec<Box<dyn AnyModule>> {
    forebay_http::modules::all()
}

fn empty_block() -> Node {
    let span = Span::default();
    let name = Arg { value: b"http".as_slice().into(), span, quoted: false };
    Node { name, args: Vec::new(), block: Some(Vec::new()), span, block_end: None }
}
