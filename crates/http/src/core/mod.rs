//! The settings of `ngx_http_core_module`, which the engine itself obeys.
//!
//! [`Conf`] is what one level of the file says; [`Settings`] what holds there after inheritance.
//! The directives that fill them are in `directives`.
//!
//! Leaves out: `try_files` (a module of its own), `resolver` too, and `early_hints` (proxying).

mod directives;
mod error_page;
mod listen;
mod server_name;
mod types;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use bytes::Bytes;
use forebay_rt::threads::{self, Pool};
use forebay_session::{
    log::ErrorLog,
    var::{Registry, Template},
};

pub(crate) use directives::levels;
pub use error_page::{ErrorPage, Status};
pub use listen::Listen;
pub use server_name::ServerName;
pub use types::Types;

use crate::{
    module::{self, Module},
    plan::{Kind, LocId},
    request::Request,
};

/// Where files are looked for.
#[derive(Clone, Debug)]
pub struct Root {
    /// The directory: absolute once its variables are filled in.
    pub path: Template,
    /// `alias`: what of the URI it replaces.
    pub alias: Option<Alias>,
}

/// What `alias` replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alias {
    /// The first bytes of the URI: the location's name.
    Prefix(usize),
    /// All of it (regex locations).
    Whole,
}

/// `aio`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Aio {
    /// Files are read by the event loop.
    #[default]
    Off,
    /// Files are read by the thread pool of that name.
    Threads(Box<str>),
}

impl Settings {
    /// Who reads files, unless the event loop does.
    pub fn read_pool(&self) -> Option<Arc<Pool>> {
        match &self.aio {
            Aio::Off => None,
            Aio::Threads(name) => Some(threads::pool(name)),
        }
    }

    /// Who writes temporary files, unless the event loop does (`aio_write off`).
    pub fn write_pool(&self) -> Option<Arc<Pool>> {
        let pool = || self.read_pool().unwrap_or_else(|| threads::pool("default"));
        self.aio_write.then(pool)
    }
}

/// A thread pool that `aio` names; whether there is one is known when all is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Its name.
    pub name: Box<str>,
    /// Where it is named.
    pub span: forebay_conf::Span,
}

/// `client_body_in_file_only`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyInFile {
    /// Only when it does not fit the buffer.
    #[default]
    Off,
    /// Always, and the file stays.
    On,
    /// Always, and the file goes with the request.
    Clean,
}

/// `client_body_temp_path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TempPath {
    /// The directory.
    pub path: PathBuf,
    /// The lengths of the names of up to three levels of subdirectories; 0: no such level.
    pub levels: [u8; 3],
}

/// `disable_symlinks`.
#[derive(Clone, Debug, Default)]
pub enum Symlinks {
    /// Followed.
    #[default]
    Off,
    /// Refused in every component after `from`.
    Refuse {
        /// The part of the path that is not checked.
        from: Option<Template>,
    },
    /// Refused where link and target have different owners.
    IfNotOwner {
        /// The part of the path that is not checked.
        from: Option<Template>,
    },
}

/// `if_modified_since`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfModifiedSince {
    /// The field is ignored.
    Off,
    /// Only the same time counts.
    #[default]
    Exact,
    /// That time or a later one counts.
    Before,
}

/// `lingering_close`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lingering {
    /// Never.
    Off,
    /// When there may be more to read.
    #[default]
    On,
    /// Always.
    Always,
}

/// `satisfy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Satisfy {
    /// Every access module must allow.
    #[default]
    All,
    /// One is enough.
    Any,
}

/// `server_tokens`.
#[derive(Clone, Debug, Default)]
pub enum ServerTokens {
    /// Name and version.
    #[default]
    On,
    /// The name alone.
    Off,
    /// Name, version and build.
    Build,
    /// This text; empty: no `Server` field at all.
    Text(Template),
}

/// `open_file_cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCacheConf {
    /// The number of files kept; the least recently used goes first.
    pub max: usize,
    /// Files not asked for in that time go, in milliseconds.
    pub inactive_ms: u64,
}

/// A rate or size that may be computed from variables.
#[derive(Clone, Debug)]
pub enum SizeValue {
    /// Fixed, in bytes (per second).
    Fixed(u64),
    /// From variables, at each use; nonsense counts as 0.
    Computed(Template),
}

/// Declares the plain settings once: a `Conf` of options, how it inherits, and `Settings` with the
/// defaults filled in.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr;)+) => {
        /// What one level of the configuration sets.
        #[derive(Default)]
        pub struct Conf {
            $($(#[$doc])* pub $name: Option<$type>,)+
            /// What does not follow the plain pattern.
            pub own: Own,
        }

        impl module::Conf for Conf {
            fn inherit(&mut self, parent: &Self) {
                $(if self.$name.is_none() { self.$name.clone_from(&parent.$name); })+
                self.own.inherit(&parent.own);
            }
        }

        /// What holds at one level, after inheritance.
        pub struct Settings {
            $($(#[$doc])* pub $name: $type,)+
            /// `error_page`s, in the order in which they are tried.
            pub error_pages: Vec<Arc<ErrorPage>>,
            /// `types`.
            pub types: Arc<Types>,
            /// `internal`.
            pub internal: bool,
        }

        impl Conf {
            /// Fills in the defaults.
            pub fn settings(&self) -> Settings {
                Settings {
                    $($name: self.$name.clone().unwrap_or_else(|| $default),)+
                    error_pages: self.own.error_pages.clone().unwrap_or_default(),
                    types: self.own.types.clone().unwrap_or_else(Types::built_in),
                    internal: self.own.internal,
                }
            }
        }
    };
}

settings! {
    /// `absolute_redirect`.
    absolute_redirect: bool = true;
    /// `aio`.
    aio: Aio = Aio::Off;
    /// `aio_write`.
    aio_write: bool = true;
    /// `auth_delay`, milliseconds before a request without valid credentials is answered.
    auth_delay_ms: u64 = 0;
    /// `chunked_transfer_encoding`.
    chunked_transfer_encoding: bool = true;
    /// `client_body_buffer_size`, bytes.
    client_body_buffer_size: usize = 16 << 10;
    /// `client_body_in_file_only`.
    client_body_in_file_only: BodyInFile = BodyInFile::Off;
    /// `client_body_in_single_buffer`; bodies in memory always are in one buffer here.
    client_body_in_single_buffer: bool = false;
    /// `client_body_postpone_sending`, bytes that are read before an upstream is asked.
    client_body_postpone_sending: usize = 0;
    /// `client_body_temp_path`.
    client_body_temp_path: Arc<TempPath> =
        Arc::new(TempPath { path: "client_body_temp".into(), levels: [0; 3] });
    /// `client_body_timeout`, milliseconds between two reads.
    client_body_timeout_ms: u64 = 60_000;
    /// `client_header_buffer_size`, bytes.
    client_header_buffer_size: usize = 1 << 10;
    /// `client_header_timeout`, milliseconds for the whole head.
    client_header_timeout_ms: u64 = 60_000;
    /// `client_max_body_size`, bytes; 0: no limit.
    client_max_body_size: u64 = 1 << 20;
    /// `connection_pool_size`, bytes; held against `large_client_header_buffers` only.
    connection_pool_size: u64 = 512;
    /// `default_type`.
    default_type: Bytes = Bytes::from_static(b"text/plain");
    /// `directio`: files of at least that many bytes bypass the page cache.
    directio: Option<u64> = None;
    /// `directio_alignment`, bytes.
    directio_alignment: u64 = 512;
    /// `disable_symlinks`.
    disable_symlinks: Arc<Symlinks> = Arc::new(Symlinks::Off);
    /// `early_hints`: one of these must be neither empty nor `0`.
    early_hints: Arc<Vec<Template>> = Arc::default();
    /// `etag`.
    etag: bool = true;
    /// `if_modified_since`.
    if_modified_since: IfModifiedSince = IfModifiedSince::Exact;
    /// `ignore_invalid_headers`.
    ignore_invalid_headers: bool = true;
    /// `keepalive_disable`: MSIE 6 (POST only), Safari.
    keepalive_disable: KeepaliveDisable = KeepaliveDisable { msie6: true, safari: false };
    /// `keepalive_min_timeout`, milliseconds that an idle connection is kept at shutdown.
    keepalive_min_timeout_ms: u64 = 0;
    /// `keepalive_requests`.
    keepalive_requests: u32 = 1000;
    /// `keepalive_time`, milliseconds that a connection may serve requests.
    keepalive_time_ms: u64 = 3_600_000;
    /// `keepalive_timeout`, milliseconds; 0: connections close after one request.
    keepalive_timeout_ms: u64 = 75_000;
    /// The second parameter of `keepalive_timeout`, seconds; 0: no `Keep-Alive` field.
    keepalive_header: u64 = 0;
    /// `large_client_header_buffers`: number and bytes.
    large_client_header_buffers: (usize, usize) = (4, 8 << 10);
    /// `limit_rate`, bytes per second; 0: no limit.
    limit_rate: SizeValue = SizeValue::Fixed(0);
    /// `limit_rate_after`, bytes.
    limit_rate_after: SizeValue = SizeValue::Fixed(0);
    /// `lingering_close`.
    lingering_close: Lingering = Lingering::On;
    /// `lingering_time`, milliseconds.
    lingering_time_ms: u64 = 30_000;
    /// `lingering_timeout`, milliseconds between two reads.
    lingering_timeout_ms: u64 = 5_000;
    /// `log_not_found`.
    log_not_found: bool = true;
    /// `log_subrequest`.
    log_subrequest: bool = false;
    /// `max_headers`.
    max_headers: usize = 1000;
    /// `max_ranges`; `None`: as many as make sense.
    max_ranges: Option<usize> = None;
    /// `merge_slashes`.
    merge_slashes: bool = true;
    /// `msie_padding`.
    msie_padding: bool = true;
    /// `msie_refresh`.
    msie_refresh: bool = false;
    /// `open_file_cache`: an index into `Plan::file_caches`; `None`: off.
    open_file_cache: Option<usize> = None;
    /// `open_file_cache_errors`.
    open_file_cache_errors: bool = false;
    /// `open_file_cache_min_uses`.
    open_file_cache_min_uses: u32 = 1;
    /// `open_file_cache_valid`, milliseconds.
    open_file_cache_valid_ms: u64 = 60_000;
    /// `output_buffers`: number and bytes, for files that are read and not sent by the kernel.
    output_buffers: (usize, usize) = (2, 32 << 10);
    /// `port_in_redirect`.
    port_in_redirect: bool = true;
    /// `post_action`: a URI or named location; empty: none.
    post_action: Bytes = Bytes::new();
    /// `postpone_output`, bytes.
    postpone_output: usize = 1460;
    /// `read_ahead`, bytes; 0: the kernel's own.
    read_ahead: u64 = 0;
    /// `recursive_error_pages`.
    recursive_error_pages: bool = false;
    /// `reset_timedout_connection`.
    reset_timedout_connection: bool = false;
    /// `root` or `alias`.
    root: Root = Root { path: Template::text(b"html"), alias: None };
    /// `satisfy`.
    satisfy: Satisfy = Satisfy::All;
    /// `send_timeout`, milliseconds between two writes.
    send_timeout_ms: u64 = 60_000;
    /// `sendfile`.
    sendfile: bool = false;
    /// `sendfile_max_chunk`, bytes in one call and in one turn of a connection; 0: no limit.
    sendfile_max_chunk: u64 = 2 << 20;
    /// `server_name_in_redirect`.
    server_name_in_redirect: bool = false;
    /// `server_tokens`.
    server_tokens: Arc<ServerTokens> = Arc::new(ServerTokens::On);
    /// `subrequest_output_buffer_size`, bytes.
    subrequest_output_buffer_size: usize = 8 << 10;
    /// `tcp_nodelay`.
    tcp_nodelay: bool = true;
    /// `tcp_nopush`.
    tcp_nopush: bool = false;
    /// `underscores_in_headers`.
    underscores_in_headers: bool = false;
}

impl Conf {
    /// Defaults that are paths belong to the prefix, like paths that are written.
    pub fn default_paths(&mut self, cx: &module::Cx<'_, '_>) {
        self.root.get_or_insert_with(|| {
            let path = cx.loader.full_path("html").into_os_string().into_encoded_bytes();
            Root { path: Template::text(&path), alias: None }
        });
        self.client_body_temp_path.get_or_insert_with(|| {
            Arc::new(TempPath { path: cx.default_temp_path("client_body"), levels: [0; 3] })
        });
    }
}

/// `keepalive_disable`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepaliveDisable {
    /// Old MSIE, for POST requests.
    pub msie6: bool,
    /// Safari on macOS.
    pub safari: bool,
}

/// The parts of [`Conf`] that have rules of their own.
#[derive(Default)]
pub struct Own {
    /// `server` blocks (of `http`).
    pub servers: Vec<LocId>,
    /// `location` blocks directly inside.
    pub locations: Vec<LocId>,
    /// The name of this level, without modifier.
    pub name: Bytes,
    /// What kind of level it is.
    pub kind: Kind,
    /// Where it stands.
    pub span: forebay_conf::Span,
    /// The pattern of a regex location, and whether case counts.
    pub regex: Option<forebay_session::regex::Regex>,
    /// `limit_except`: the methods that it leaves alone, upper case, and its level.
    pub limit_except: Option<(Vec<Box<[u8]>>, LocId)>,
    /// `listen`s of a server.
    pub listens: Vec<Listen>,
    /// `server_name`s of a server.
    pub names: Vec<ServerName>,
    /// `error_page`s; replaced as a whole by an inner level's.
    pub error_pages: Option<Vec<Arc<ErrorPage>>>,
    /// `types`; replaced as a whole by an inner level's.
    pub types: Option<Arc<Types>>,
    /// `internal`.
    pub internal: bool,
    /// The module that answers what comes here, by number.
    pub served_by: Option<usize>,
    /// `keepalive_disable`, as the directives of this level add up.
    pub keepalive_disable_bits: Option<u32>,
    /// `error_log`s; replaced as a whole by an inner level's.
    pub error_log: Option<ErrorLog>,
    /// Directives without a meaning that stand here, whose values nobody keeps.
    pub ignored: BTreeSet<Box<str>>,
}

impl Own {
    fn inherit(&mut self, parent: &Own) {
        if self.error_pages.is_none() {
            self.error_pages.clone_from(&parent.error_pages);
        }
        if self.types.is_none() {
            self.types.clone_from(&parent.types);
        }
        if self.error_log.is_none() {
            self.error_log.clone_from(&parent.error_log);
        }
        // A server's names are known inside it (`valid_referers server_names`).
        if self.names.is_empty() {
            self.names.clone_from(&parent.names);
        }
        // `if` and `limit_except` are the same location with some settings changed.
        if matches!(self.kind, Kind::If | Kind::LimitExcept) {
            self.name = parent.name.clone();
        }
        self.internal |= parent.internal;
    }
}

/// What the engine needs of a server before a location is known.
#[derive(Clone, Copy, Debug)]
pub struct ServerSettings {
    /// Limits of the head, for the parser.
    pub head: forebay_wire::h1::Options,
    /// Milliseconds for the whole head.
    pub client_header_timeout_ms: u64,
    /// `merge_slashes`.
    pub merge_slashes: bool,
    /// Whether CONNECT opens tunnels somewhere in it.
    pub takes_connect: bool,
}

impl ServerSettings {
    /// Of the settings that hold at the server's level.
    pub fn new(settings: &Settings) -> ServerSettings {
        ServerSettings {
            head: forebay_wire::h1::Options {
                underscores: settings.underscores_in_headers,
                ignore_invalid_headers: settings.ignore_invalid_headers,
                client_header_buffer_size: settings.client_header_buffer_size,
                large_buffers: settings.large_client_header_buffers,
                max_headers: settings.max_headers,
            },
            client_header_timeout_ms: settings.client_header_timeout_ms,
            merge_slashes: settings.merge_slashes,
            takes_connect: false,
        }
    }
}

/// `ngx_http_core_module`, as the loader sees it. The engine compiles these settings itself.
pub struct Core;

impl Module for Core {
    type Conf = Conf;
    const NAME: &'static str = "ngx_http_core_module";
    const DIRECTIVES: &'static [module::Directive<Conf>] = directives::DIRECTIVES;

    fn variables(registry: &mut Registry<Request>) {
        crate::variables::register(registry);
    }
}
