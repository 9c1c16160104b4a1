//! From files to settings: the whole configuration, once by the master from the files, and again
//! by the worker from the master's record of them.
//!
//! Invariant: reads through [`Files`] only, so that both loads see the same.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use forebay_conf::{
    Diagnostics, Error, Files, Index, Loader, ParseOptions, Sources, parse, parse_command_line,
    parse_text,
};
use forebay_session::log::{ErrorLog, Severity};

use crate::core::{self, Core};
use crate::paths::Paths;
use crate::site::Site;

/// What is to be loaded: the part of the command line that matters to a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where things are.
    pub paths: Paths,
    /// `-g`.
    pub globals: Option<OsString>,
    /// A configuration that is built in, in place of the file.
    pub embedded: Option<String>,
}

/// A configuration with all that was said about it.
pub struct Loaded {
    /// The settings, unless something is wrong with them.
    pub settings: Option<Settings>,
    /// The files.
    pub sources: Sources,
    /// Errors, warnings, remarks; in the order in which nginx would meet them.
    pub diags: Diagnostics,
}

/// A configuration without errors.
pub struct Settings {
    /// What stands outside `http`.
    pub core: Core,
    /// `http`.
    pub site: Site,
    /// The error log outside `http`, with the default if none is named.
    pub error_log: ErrorLog,
}

/// Loads a configuration.
pub fn load(request: &Request, files: &mut dyn Files) -> Loaded {
    let (mut sources, mut diags) = (Sources::new(), Diagnostics::new());
    let settings = load_settings(request, files, &mut sources, &mut diags);
    diags.sort(&sources);
    Loaded { settings, sources, diags }
}

fn load_settings(
    request: &Request,
    files: &mut dyn Files,
    sources: &mut Sources,
    diags: &mut Diagnostics,
) -> Option<Settings> {
    let Paths { conf, prefix, .. } = &request.paths;
    let conf_prefix = conf.parent().unwrap_or(prefix).to_path_buf();
    let options = ParseOptions { conf_prefix: conf_prefix.clone() };
    let mut nodes = Vec::new();
    if let Some(text) = &request.globals {
        nodes.extend(parse_command_line(text.as_bytes(), files, &options, sources, diags));
    }
    nodes.extend(match &request.embedded {
        Some(text) => parse_text("built-in", text.as_bytes(), files, &options, sources, diags),
        None => parse(conf, files, &options, sources, diags),
    });
    let mut loader = Loader { files, sources, diags, prefix: prefix.clone(), conf_prefix };
    let index = Index::new(core::specs().chain(Site::specs()));
    let mut core = Core::default();
    let http = core::load_main(&mut core, &nodes, &index, &mut loader);
    let user = core.default_user();
    loader.diags.take(user);
    let error_log = match (&core.error_log, &request.paths.error_log) {
        (Some(named), _) => named.clone(),
        (None, Some(path)) => ErrorLog::to_file(core.logs.file(path.clone()), Severity::Error),
        (None, None) => {
            core.logs_to_stderr = true;
            ErrorLog::to_stderr(Severity::Error)
        }
    };
    let defaults = request.paths.http();
    let site = Site::load(http, &mut loader, &error_log, defaults);
    let site = site.filter(|_| !diags.has_errors())?;
    Some(Settings { core, site, error_log })
}

impl Settings {
    /// What nginx finds wrong only when all is read (ngx_event_module's init_conf,
    /// ngx_thread_pool_init_conf).
    pub fn check(&self, sources: &Sources) -> Result<(), Error> {
        let plan = self.site.plan();
        let known = |name: &str| {
            name == "default" || self.core.thread_pools.iter().any(|pool| pool.name == name)
        };
        if let Some(pool) = plan.thread_pools.iter().find(|pool| !known(&pool.name)) {
            let (name, file, line) = (&pool.name, sources.path(pool.span.file), pool.span.line);
            let text = format!("unknown thread pool \"{name}\" in {}:{line}", file.display());
            return Err(Error::global(text));
        }
        match self.core.events {
            Some(_) => Ok(()),
            None => Err(Error::global("no \"events\" section in configuration")),
        }
    }
}
