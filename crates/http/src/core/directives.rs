//! The directives of `ngx_http_core_module`: the table, and the setters that need more than a line.

use std::sync::Arc;

use bytes::Bytes;
use forebay_conf::{
    Arg, Arity, Contexts, Error, Node,
    value::{self, Bufs},
};
use forebay_session::{regex::Regex, var::Template};

use super::{
    Aio, Alias, BodyInFile, Conf, ErrorPage, FileCacheConf, IfModifiedSince, KeepaliveDisable,
    Lingering, Listen, PoolUse, Root, Satisfy, ServerName, ServerTokens, SizeValue, Symlinks,
    TempPath,
};
use crate::{
    module::{ANY, ANY_IF, Cx, Directive, INNER, SERVERS, open, set},
    plan::{Kind, LocId},
};

pub(super) const DIRECTIVES: &[Directive<Conf>] = &[
    set(
        "absolute_redirect",
        &["on | off"],
        "on",
        ANY,
        Arity::FLAG,
        "Whether redirects name scheme and host.",
        |c, n, _| value::set_flag(&mut c.absolute_redirect, n),
    ),
    set(
        "aio",
        &["on | off | threads[=pool]"],
        "off",
        ANY,
        Arity::ONE,
        "Reading files in a thread pool.",
        aio,
    ),
    set(
        "aio_write",
        &["on | off"],
        "on",
        ANY,
        Arity::FLAG,
        "Whether temporary files are written by the thread pool: those of responses always, those of \
         request bodies with `aio threads`.",
        |c, n, _| value::set_flag(&mut c.aio_write, n),
    ),
    set(
        "alias",
        &["path"],
        "",
        Contexts::LOCATION,
        Arity::ONE,
        "The directory that stands for the name of the location.",
        alias,
    ),
    set(
        "auth_delay",
        &["time"],
        "0s",
        ANY,
        Arity::ONE,
        "How long requests without valid credentials wait for their 401.",
        |c, n, _| value::set_msec(&mut c.auth_delay_ms, n),
    ),
    set(
        "chunked_transfer_encoding",
        &["on | off"],
        "on",
        ANY,
        Arity::FLAG,
        "Whether bodies of unknown length are sent chunked.",
        |c, n, _| value::set_flag(&mut c.chunked_transfer_encoding, n),
    ),
    set(
        "client_body_buffer_size",
        &["size"],
        "8k|16k",
        ANY,
        Arity::ONE,
        "How much of a request body is kept in memory.",
        |c, n, _| set_usize(&mut c.client_body_buffer_size, n),
    ),
    set(
        "client_body_in_file_only",
        &["on | clean | off"],
        "off",
        ANY,
        Arity::ONE,
        "Whether a request body always goes to a file.",
        |c, n, _| {
            value::set_enum(
                &mut c.client_body_in_file_only,
                n,
                &[("off", BodyInFile::Off), ("on", BodyInFile::On), ("clean", BodyInFile::Clean)],
            )
        },
    ),
    set(
        "client_body_in_single_buffer",
        &["on | off"],
        "off",
        ANY,
        Arity::FLAG,
        "Whether a body in memory is in one piece; here it always is.",
        |c, n, cx| {
            value::set_flag(&mut c.client_body_in_single_buffer, n)?;
            no_meaning(n, cx, "a body in memory always is in one buffer")
        },
    ),
    set(
        "client_body_postpone_sending",
        &["size"],
        "0",
        ANY,
        Arity::ONE,
        "How much of a body that is not buffered is read before an upstream is asked.",
        |c, n, _| set_usize(&mut c.client_body_postpone_sending, n),
    ),
    set(
        "client_body_temp_path",
        &["path [level1 [level2 [level3]]]"],
        "client_body_temp",
        ANY,
        Arity::between(1, 4),
        "Where request bodies that do not fit the buffer are kept.",
        temp_path,
    ),
    set(
        "client_body_timeout",
        &["time"],
        "60s",
        ANY,
        Arity::ONE,
        "How long to wait between two pieces of a request body.",
        |c, n, _| value::set_msec(&mut c.client_body_timeout_ms, n),
    ),
    set(
        "client_header_buffer_size",
        &["size"],
        "1k",
        SERVERS,
        Arity::ONE,
        "The first buffer of a request head.",
        |c, n, _| set_usize(&mut c.client_header_buffer_size, n),
    ),
    set(
        "client_header_timeout",
        &["time"],
        "60s",
        SERVERS,
        Arity::ONE,
        "How long a request head may take.",
        |c, n, _| value::set_msec(&mut c.client_header_timeout_ms, n),
    ),
    set(
        "client_max_body_size",
        &["size"],
        "1m",
        ANY,
        Arity::ONE,
        "The largest request body; 0 for any.",
        |c, n, _| value::set_offset(&mut c.client_max_body_size, n),
    ),
    set(
        "connection_pool_size",
        &["size"],
        "256|512",
        SERVERS,
        Arity::ONE,
        "Memory taken at once per connection.",
        |c, n, cx| pool_size(&mut c.connection_pool_size, n, cx),
    ),
    set(
        "default_type",
        &["mime-type"],
        "text/plain",
        ANY,
        Arity::ONE,
        "The MIME type of files with unknown extensions.",
        default_type,
    ),
    set(
        "directio",
        &["size | off"],
        "off",
        ANY,
        Arity::ONE,
        "The size from which files bypass the page cache.",
        directio,
    ),
    set(
        "directio_alignment",
        &["size"],
        "512",
        ANY,
        Arity::ONE,
        "The alignment of reads that bypass the page cache.",
        |c, n, _| value::set_offset(&mut c.directio_alignment, n),
    ),
    set(
        "disable_symlinks",
        &["off", "on | if_not_owner [from=part]"],
        "off",
        ANY,
        Arity::ONE_OR_TWO,
        "Which symbolic links are refused.",
        disable_symlinks,
    ),
    set(
        "error_page",
        &["code ... [=[response]] uri"],
        "",
        ANY_IF,
        Arity::at_least(2),
        "What to show for an error.",
        error_page,
    ),
    set(
        "early_hints",
        &["string ..."],
        "",
        ANY,
        Arity::SOME,
        "When 103 responses of upstreams are passed on: one of these is neither empty nor 0.",
        |c, n, cx| {
            value::set_once(&mut c.early_hints, n, |n| {
                let parse = |arg: &Arg| Template::parse(&arg.value, arg.span, &mut cx.registry);
                Ok(Arc::new(n.args.iter().map(parse).collect::<Result<Vec<_>, Error>>()?))
            })
        },
    ),
    set(
        "etag",
        &["on | off"],
        "on",
        ANY,
        Arity::FLAG,
        "Whether static files get an ETag.",
        |c, n, _| value::set_flag(&mut c.etag, n),
    ),
    set(
        "if_modified_since",
        &["off | exact | before"],
        "exact",
        ANY,
        Arity::ONE,
        "How If-Modified-Since is compared.",
        |c, n, _| {
            value::set_enum(
                &mut c.if_modified_since,
                n,
                &[
                    ("off", IfModifiedSince::Off),
                    ("exact", IfModifiedSince::Exact),
                    ("before", IfModifiedSince::Before),
                ],
            )
        },
    ),
    set(
        "ignore_invalid_headers",
        &["on | off"],
        "on",
        SERVERS,
        Arity::FLAG,
        "Whether fields with invalid names are ignored or refused.",
        |c, n, _| value::set_flag(&mut c.ignore_invalid_headers, n),
    ),
    set(
        "internal",
        &[""],
        "",
        Contexts::LOCATION,
        Arity::NONE,
        "Only internal redirects may enter this location.",
        internal,
    ),
    set(
        "keepalive_disable",
        &["none | browser ..."],
        "msie6",
        ANY,
        Arity::ONE_OR_TWO,
        "Browsers that get no keep-alive.",
        keepalive_disable,
    ),
    set(
        "keepalive_min_timeout",
        &["timeout"],
        "0",
        ANY,
        Arity::ONE,
        "How long an idle connection is kept at least, even at shutdown.",
        |c, n, _| value::set_msec(&mut c.keepalive_min_timeout_ms, n),
    ),
    set(
        "keepalive_requests",
        &["number"],
        "1000",
        ANY,
        Arity::ONE,
        "How many requests a connection may serve.",
        |c, n, _| value::set_number(&mut c.keepalive_requests, n),
    ),
    set(
        "keepalive_time",
        &["time"],
        "1h",
        ANY,
        Arity::ONE,
        "How long a connection may serve requests.",
        |c, n, _| value::set_msec(&mut c.keepalive_time_ms, n),
    ),
    set(
        "keepalive_timeout",
        &["timeout [header_timeout]"],
        "75s",
        ANY,
        Arity::ONE_OR_TWO,
        "How long an idle connection is kept.",
        keepalive_timeout,
    ),
    set(
        "large_client_header_buffers",
        &["number size"],
        "4 8k",
        SERVERS,
        Arity::TWO,
        "Number and size of buffers for long request heads.",
        |c, n, _| set_buffers(&mut c.large_client_header_buffers, n),
    ),
    open(
        "limit_except",
        &["method ..."],
        "",
        Contexts::LOCATION,
        Arity::SOME.block(),
        "Settings for all methods but these.",
        (|_| Contexts::LMT, limit_except),
    ),
    set(
        "limit_rate",
        &["rate"],
        "0",
        ANY_IF,
        Arity::ONE,
        "Bytes per second of one response.",
        |c, n, cx| size_value(&mut c.limit_rate, n, cx),
    ),
    set(
        "limit_rate_after",
        &["size"],
        "0",
        ANY_IF,
        Arity::ONE,
        "Bytes sent before limit_rate holds.",
        |c, n, cx| size_value(&mut c.limit_rate_after, n, cx),
    ),
    set(
        "lingering_close",
        &["off | on | always"],
        "on",
        ANY,
        Arity::ONE,
        "Whether to read on before closing a connection.",
        |c, n, _| {
            value::set_enum(
                &mut c.lingering_close,
                n,
                &[("off", Lingering::Off), ("on", Lingering::On), ("always", Lingering::Always)],
            )
        },
    ),
    set(
        "lingering_time",
        &["time"],
        "30s",
        ANY,
        Arity::ONE,
        "How long to read on at most.",
        |c, n, _| value::set_msec(&mut c.lingering_time_ms, n),
    ),
    set(
        "lingering_timeout",
        &["time"],
        "5s",
        ANY,
        Arity::ONE,
        "How long to wait for more while reading on.",
        |c, n, _| value::set_msec(&mut c.lingering_timeout_ms, n),
    ),
    set(
        "listen",
        &[
            "address[:port] [default_server] [ssl] [http2 | quic] [proxy_protocol] [setfib=number] [fastopen=number] [backlog=number] [rcvbuf=size] [sndbuf=size] [accept_filter=filter] [deferred] [bind] [ipv6only=on|off] [reuseport] [multipath] [so_keepalive=on|off|[keepidle]:[keepintvl]:[keepcnt]]",
            "port [default_server] [ssl] [http2 | quic] [proxy_protocol] [setfib=number] [fastopen=number] [backlog=number] [rcvbuf=size] [sndbuf=size] [accept_filter=filter] [deferred] [bind] [ipv6only=on|off] [reuseport] [multipath] [so_keepalive=on|off|[keepidle]:[keepintvl]:[keepcnt]]",
            "unix:path [default_server] [ssl] [http2 | quic] [proxy_protocol] [backlog=number] [rcvbuf=size] [sndbuf=size] [accept_filter=filter] [deferred] [bind] [so_keepalive=on|off|[keepidle]:[keepintvl]:[keepcnt]]",
        ],
        "*:80 | *:8000",
        Contexts::SERVER,
        Arity::SOME,
        "An address to accept connections on.",
        listen,
    ),
    open(
        "location",
        &["[ = | ~ | ~* | ^~ ] uri", "@name"],
        "",
        INNER,
        Arity::ONE_OR_TWO.block(),
        "Settings for a part of the URI space.",
        (|_| Contexts::LOCATION, location),
    ),
    set(
        "log_not_found",
        &["on | off"],
        "on",
        ANY,
        Arity::FLAG,
        "Whether missing files are logged as errors.",
        |c, n, _| value::set_flag(&mut c.log_not_found, n),
    ),
    set(
        "log_subrequest",
        &["on | off"],
        "off",
        ANY,
        Arity::FLAG,
        "Whether subrequests are logged.",
        |c, n, _| value::set_flag(&mut c.log_subrequest, n),
    ),
    set(
        "max_headers",
        &["number"],
        "1000",
        SERVERS,
        Arity::ONE,
        "How many fields a request head may have.",
        |c, n, _| value::set_number(&mut c.max_headers, n),
    ),
    set(
        "max_ranges",
        &["number"],
        "",
        ANY,
        Arity::ONE,
        "How many byte ranges one request may ask for.",
        |c, n, _| max_ranges(c, n),
    ),
    set(
        "merge_slashes",
        &["on | off"],
        "on",
        SERVERS,
        Arity::FLAG,
        "Whether // in a path counts as /.",
        |c, n, _| value::set_flag(&mut c.merge_slashes, n),
    ),
    set(
        "msie_padding",
        &["on | off"],
        "on",
        ANY,
        Arity::FLAG,
        "Whether error pages for old MSIE are padded to 512 bytes.",
        |c, n, _| value::set_flag(&mut c.msie_padding, n),
    ),
    set(
        "msie_refresh",
        &["on | off"],
        "off",
        ANY,
        Arity::FLAG,
        "Whether old MSIE gets a refresh page in place of a redirect.",
        |c, n, _| value::set_flag(&mut c.msie_refresh, n),
    ),
    set(
        "open_file_cache",
        &["off", "max=N [inactive=time]"],
        "off",
        ANY,
        Arity::ONE_OR_TWO,
        "Keeps files open, and small ones in memory.",
        open_file_cache,
    ),
    set(
        "open_file_cache_errors",
        &["on | off"],
        "off",
        ANY,
        Arity::FLAG,
        "Whether failures to open are kept too.",
        |c, n, _| value::set_flag(&mut c.open_file_cache_errors, n),
    ),
    set(
        "open_file_cache_events",
        &["on | off"],
        "off",
        ANY,
        Arity::FLAG,
        "Whether changes are learned from the kernel.",
        |c, n, cx| {
            once(c, n)?;
            no_meaning(n, cx, "file system events are not used")
        },
    ),
    set(
        "open_file_cache_min_uses",
        &["number"],
        "1",
        ANY,
        Arity::ONE,
        "How often a file must be asked for to be kept open.",
        |c, n, _| value::set_number(&mut c.open_file_cache_min_uses, n),
    ),
    set(
        "open_file_cache_valid",
        &["time"],
        "60s",
        ANY,
        Arity::ONE,
        "After how long a kept file is checked again.",
        |c, n, _| seconds(&mut c.open_file_cache_valid_ms, n),
    ),
    set(
        "output_buffers",
        &["number size"],
        "2 32k",
        ANY,
        Arity::TWO,
        "Number and size of buffers for files that are read.",
        |c, n, _| set_buffers(&mut c.output_buffers, n),
    ),
    set(
        "port_in_redirect",
        &["on | off"],
        "on",
        ANY,
        Arity::FLAG,
        "Whether redirects name the port.",
        |c, n, _| value::set_flag(&mut c.port_in_redirect, n),
    ),
    set(
        "post_action",
        &["uri"],
        "",
        ANY_IF,
        Arity::ONE,
        "Where a request goes when it has been answered; what comes of it is not sent.",
        |c, n, _| {
            value::set_once(&mut c.post_action, n, |node| {
                Ok(Bytes::copy_from_slice(&node.arg(0)?.value))
            })
        },
    ),
    set(
        "postpone_output",
        &["size"],
        "1460",
        ANY,
        Arity::ONE,
        "How many bytes are gathered before a send.",
        |c, n, cx| {
            set_usize(&mut c.postpone_output, n)?;
            // DIFFERS(nothing-postponed): nginx waits for more.
            no_meaning(n, cx, "what is ready leaves at once")
        },
    ),
    set(
        "read_ahead",
        &["size"],
        "0",
        ANY,
        Arity::ONE,
        "How much the kernel reads ahead of a file.",
        |c, n, _| value::set_size(&mut c.read_ahead, n),
    ),
    set(
        "recursive_error_pages",
        &["on | off"],
        "off",
        ANY,
        Arity::FLAG,
        "Whether an error page may lead to another.",
        |c, n, _| value::set_flag(&mut c.recursive_error_pages, n),
    ),
    set(
        "request_pool_size",
        &["size"],
        "4k",
        SERVERS,
        Arity::ONE,
        "Memory taken at once per request.",
        |c, n, cx| {
            once(c, n)?;
            pool_size(&mut None, n, cx)
        },
    ),
    set(
        "reset_timedout_connection",
        &["on | off"],
        "off",
        ANY,
        Arity::FLAG,
        "Whether timed out connections are reset.",
        |c, n, _| value::set_flag(&mut c.reset_timedout_connection, n),
    ),
    set(
        "root",
        &["path"],
        "html",
        ANY_IF,
        Arity::ONE,
        "The directory in which paths are looked up.",
        root,
    ),
    set(
        "satisfy",
        &["all | any"],
        "all",
        ANY,
        Arity::ONE,
        "Whether all access modules must allow, or any.",
        |c, n, _| {
            value::set_enum(&mut c.satisfy, n, &[("all", Satisfy::All), ("any", Satisfy::Any)])
        },
    ),
    set(
        "send_lowat",
        &["size"],
        "0",
        ANY,
        Arity::ONE,
        "A low-water mark for sending.",
        |c, n, cx| {
            once(c, n)?;
            value::set_size(&mut None, n)?;
            cx.loader.warn(n.span, "\"send_lowat\" is not supported, ignored");
            Ok(())
        },
    ),
    set(
        "send_timeout",
        &["time"],
        "60s",
        ANY,
        Arity::ONE,
        "How long to wait between two writes.",
        |c, n, _| value::set_msec(&mut c.send_timeout_ms, n),
    ),
    set(
        "sendfile",
        &["on | off"],
        "off",
        ANY_IF,
        Arity::FLAG,
        "Whether the kernel sends files itself.",
        |c, n, _| value::set_flag(&mut c.sendfile, n),
    ),
    set(
        "sendfile_max_chunk",
        &["size"],
        "2m",
        ANY,
        Arity::ONE,
        "How much one sendfile call sends at most.",
        |c, n, _| value::set_size(&mut c.sendfile_max_chunk, n),
    ),
    open(
        "server",
        &[""],
        "",
        Contexts::HTTP,
        Arity::BLOCK,
        "A virtual server.",
        (|_| Contexts::SERVER, server),
    ),
    set(
        "server_name",
        &["name ..."],
        "",
        Contexts::SERVER,
        Arity::SOME,
        "The names of a virtual server.",
        server_name,
    ),
    set(
        "server_name_in_redirect",
        &["on | off"],
        "off",
        ANY,
        Arity::FLAG,
        "Whether redirects name the server by its first name.",
        |c, n, _| value::set_flag(&mut c.server_name_in_redirect, n),
    ),
    set(
        "server_names_hash_bucket_size",
        &["size"],
        "32|64|128",
        Contexts::HTTP,
        Arity::ONE,
        "The bucket size of a hash table.",
        table_size,
    ),
    set(
        "server_names_hash_max_size",
        &["size"],
        "512",
        Contexts::HTTP,
        Arity::ONE,
        "The size of a hash table.",
        table_size,
    ),
    set(
        "server_tokens",
        &["on | off | build | string"],
        "on",
        ANY,
        Arity::ONE,
        "What the Server field says.",
        server_tokens,
    ),
    set(
        "subrequest_output_buffer_size",
        &["size"],
        "4k|8k",
        ANY,
        Arity::ONE,
        "The largest response of a subrequest kept in memory.",
        |c, n, _| set_usize(&mut c.subrequest_output_buffer_size, n),
    ),
    set(
        "tcp_nodelay",
        &["on | off"],
        "on",
        ANY,
        Arity::FLAG,
        "Whether small packets are sent at once.",
        |c, n, cx| {
            value::set_flag(&mut c.tcp_nodelay, n)?;
            no_meaning(n, cx, "small packets always leave at once")
        },
    ),
    set(
        "tcp_nopush",
        &["on | off"],
        "off",
        ANY,
        Arity::FLAG,
        "Whether head and body leave in full packets.",
        |c, n, cx| {
            value::set_flag(&mut c.tcp_nopush, n)?;
            no_meaning(n, cx, "head and body always leave in full packets")
        },
    ),
    set(
        "types",
        &[""],
        "text/html html; image/gif gif; image/jpeg jpg;",
        ANY,
        Arity::BLOCK,
        "MIME types of file name extensions.",
        types,
    ),
    set(
        "types_hash_bucket_size",
        &["size"],
        "64",
        ANY,
        Arity::ONE,
        "The bucket size of a hash table.",
        table_size,
    ),
    set(
        "types_hash_max_size",
        &["size"],
        "1024",
        ANY,
        Arity::ONE,
        "The size of a hash table.",
        table_size,
    ),
    set(
        "underscores_in_headers",
        &["on | off"],
        "off",
        SERVERS,
        Arity::FLAG,
        "Whether field names may have underscores.",
        |c, n, _| value::set_flag(&mut c.underscores_in_headers, n),
    ),
    set(
        "variables_hash_bucket_size",
        &["size"],
        "64",
        Contexts::HTTP,
        Arity::ONE,
        "The bucket size of a hash table.",
        variables_table_size,
    ),
    set(
        "variables_hash_max_size",
        &["size"],
        "1024",
        Contexts::HTTP,
        Arity::ONE,
        "The size of a hash table.",
        variables_table_size,
    ),
    set(
        "error_log",
        &["file [level]"],
        "logs/error.log error",
        ANY,
        Arity::SOME,
        "Where errors are written, and which.",
        error_log,
    ),
];

type Done = Result<(), Error>;

/// A time that nginx keeps in seconds, in milliseconds: it has no `ms`, but months and years.
fn seconds(slot_ms: &mut Option<u64>, node: &Node) -> Done {
    let mut time = slot_ms.map(|ms| ms / 1000);
    value::set_sec(&mut time, node)?;
    *slot_ms = time.map(|seconds| seconds.saturating_mul(1000));
    Ok(())
}

/// A size that fits memory.
fn set_usize(slot: &mut Option<usize>, node: &Node) -> Done {
    let mut size = slot.map(|before| before as u64);
    value::set_size(&mut size, node)?;
    *slot = size.map(|size| size as usize);
    Ok(())
}

fn set_buffers(slot: &mut Option<(usize, usize)>, node: &Node) -> Done {
    let mut bufs = slot.map(|(count, size)| Bufs { count: count as u64, size: size as u64 });
    value::set_bufs(&mut bufs, node)?;
    *slot = bufs.map(|bufs| (bufs.count as usize, bufs.size as usize));
    Ok(())
}

/// Accepts a directive that has no meaning here, and says so.
fn no_meaning(node: &Node, cx: &mut Cx<'_, '_>, why: &str) -> Done {
    let name = node.name.lossy();
    cx.loader.info(node.span, format!("the \"{name}\" directive changes nothing here: {why}"));
    Ok(())
}

/// Whether a directive whose value nobody keeps stands here for the first time.
fn once(c: &mut Conf, n: &Node) -> Done {
    match c.own.ignored.insert(n.name().into()) {
        true => Ok(()),
        false => Err(value::duplicate(n)),
    }
}

/// The sizes of nginx's hash tables.
fn table_size(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    once(c, n)?;
    value::set_number::<u64>(&mut None, n)?;
    no_meaning(n, cx, "tables size themselves")
}

/// The sizes of the table that nginx always has: of one there is not a variable fits
/// (`ngx_hash_init`).
fn variables_table_size(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    table_size(c, n, cx)?;
    let (name, size) = (n.name.lossy(), value::number(&n.arg(0)?.value).unwrap_or_default());
    // A bucket is of whole lines of the processor's cache, and its size one of 16 bits.
    let bucket = size.next_multiple_of(64);
    let (problem, size) = match size {
        0 => ("you should increase", size),
        _ if name.ends_with("bucket_size") && bucket > 65_536 - 64 => ("too large", bucket),
        _ => return Ok(()),
    };
    let text = format!("could not build variables_hash, {problem} {name}: {size}");
    Err(Error::emerg(n.span, text))
}

/// `connection_pool_size`, `request_pool_size`.
fn pool_size(slot: &mut Option<u64>, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    value::set_size(slot, n)?;
    // NGX_MIN_POOL_SIZE and NGX_POOL_ALIGNMENT (`ngx_http_core_pool_size`).
    let text = match slot.unwrap_or_default() {
        ..112 => "the pool size must be no less than 112",
        size if size % 16 != 0 => "the pool size must be a multiple of 16",
        _ => return no_meaning(n, cx, "memory is not taken from pools"),
    };
    Err(Error::emerg(n.span, text))
}

fn aio(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    if c.aio.is_some() {
        return Err(value::duplicate(n));
    }
    c.aio = Some(match n.args[0].lossy().as_ref() {
        // DIFFERS(aio-on): where nginx has Linux's own asynchronous I/O built in, it needs `directio`, and
        // else the directive is refused. Threads do the same work in either case: `on` is theirs.
        "on" | "threads" => Aio::Threads("default".into()),
        "off" => Aio::Off,
        other => match other.strip_prefix("threads=") {
            Some(pool) => {
                cx.shared::<Vec<PoolUse>>().push(PoolUse { name: pool.into(), span: n.span });
                Aio::Threads(pool.into())
            }
            None => return Err(value::unreadable(n, &n.args[0])),
        },
    });
    Ok(())
}

fn root(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    set_root(c, n, cx, None)
}

fn alias(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    let alias = match c.own.kind {
        Kind::Named => {
            let text = "the \"alias\" directive cannot be used inside the named location";
            return Err(Error::emerg(n.span, text.to_owned()));
        }
        Kind::Regex => Alias::Whole,
        _ => Alias::Prefix(c.own.name.len()),
    };
    set_root(c, n, cx, Some(alias))
}

fn set_root(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>, alias: Option<Alias>) -> Done {
    if let Some(before) = &c.root {
        if before.alias.is_some() == alias.is_some() {
            return Err(value::duplicate(n));
        }
        let other = if before.alias.is_some() { "alias" } else { "root" };
        let name = n.name.lossy();
        let text = format!(
            "\"{name}\" directive is duplicate, \"{other}\" directive was specified earlier"
        );
        return Err(Error::emerg(n.span, text));
    }
    let arg = &n.args[0];
    for forbidden in ["$document_root", "${document_root}", "$realpath_root", "${realpath_root}"] {
        if arg.lossy().contains(forbidden) {
            let variable = forbidden.replace(['{', '}'], "");
            let text = format!(
                "the {variable} variable cannot be used in the \"{}\" directive",
                n.name.lossy()
            );
            return Err(Error::emerg(arg.span, text));
        }
    }
    let mut path = arg.value.to_vec();
    // A relative path belongs to the prefix; one that begins with a variable is left as it is.
    if path.first() != Some(&b'/') && path.first() != Some(&b'$') {
        let full = cx.loader.full_path(arg.path());
        path = full.into_os_string().into_encoded_bytes();
    }
    // The root of the file system is the empty name: what follows begins with a slash.
    if alias.is_none() && path.last() == Some(&b'/') {
        path.pop();
    }
    let path = Template::parse(&path, arg.span, &mut cx.registry)?;
    c.root = Some(Root { path, alias });
    Ok(())
}

fn temp_path(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    if c.client_body_temp_path.is_some() {
        return Err(value::duplicate(n));
    }
    let levels = levels(n)?;
    let path = cx.loader.full_path(n.args[0].path());
    cx.add_temp_path(&path, levels, Some(n.span))?;
    c.client_body_temp_path = Some(Arc::new(TempPath { path, levels }));
    Ok(())
}

/// How many characters the directories of each level below a temporary path have
/// (`ngx_conf_set_path_slot`): ten at most, all together.
pub fn levels(n: &Node) -> Result<[u8; 3], Error> {
    let mut levels = [0; 3];
    for (level, arg) in levels.iter_mut().zip(n.args.iter().skip(1)) {
        *level = match value::number(&arg.value) {
            Some(length @ 1..=10) => length as u8,
            _ => return Err(n.error("invalid value")),
        };
    }
    if levels.iter().sum::<u8>() > 10 {
        return Err(n.error("invalid value"));
    }
    Ok(levels)
}

fn default_type(c: &mut Conf, n: &Node, _: &mut Cx<'_, '_>) -> Done {
    if c.default_type.is_some() {
        return Err(value::duplicate(n));
    }
    c.default_type = Some(Bytes::copy_from_slice(&n.args[0].value));
    Ok(())
}

fn directio(c: &mut Conf, n: &Node, _: &mut Cx<'_, '_>) -> Done {
    if n.args[0].value[..] == *b"off" {
        if c.directio.is_some() {
            return Err(value::duplicate(n));
        }
        c.directio = Some(None);
        return Ok(());
    }
    let mut size = None;
    if c.directio.is_some() {
        return Err(value::duplicate(n));
    }
    value::set_offset(&mut size, n)?;
    c.directio = Some(size);
    Ok(())
}

fn disable_symlinks(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    if c.disable_symlinks.is_some() {
        return Err(value::duplicate(n));
    }
    let (mut from, mut mode) = (None, None);
    for arg in &n.args {
        if matches!(&arg.value[..], b"off" | b"on" | b"if_not_owner") {
            mode = Some(arg.lossy());
        } else if let Some(path) = arg.after("from=") {
            from = Some(Template::parse(path, arg.span, &mut cx.registry)?);
        } else {
            return Err(value::invalid_parameter(arg));
        }
    }
    let fail = |text: String| Err(Error::emerg(n.span, text));
    let Some(mode) = mode else {
        let words = "\"off\", \"on\" or \"if_not_owner\"";
        return fail(format!("\"disable_symlinks\" must have {words} parameter"));
    };
    if let ([first, second], None) = (&n.args[..], &from) {
        return fail(format!("duplicate parameters \"{} {}\"", first.lossy(), second.lossy()));
    }
    c.disable_symlinks = Some(Arc::new(match mode.as_ref() {
        "on" => Symlinks::Refuse { from },
        "if_not_owner" => Symlinks::IfNotOwner { from },
        _ if from.is_none() => Symlinks::Off,
        _ => return fail("\"from=\" cannot be used with \"off\" parameter".to_owned()),
    }));
    Ok(())
}

fn error_page(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    let page = ErrorPage::parse(n, cx)?;
    c.own.error_pages.get_or_insert_default().push(Arc::new(page));
    Ok(())
}

fn error_log(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    cx.logs.error_log(&mut c.own.error_log, n, cx.loader)
}

fn internal(c: &mut Conf, n: &Node, _: &mut Cx<'_, '_>) -> Done {
    if c.own.internal {
        return Err(value::duplicate(n));
    }
    c.own.internal = true;
    Ok(())
}

fn keepalive_disable(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    let (none, msie6, safari) = (1, 2, 4);
    let browsers = [("none", none), ("msie6", msie6), ("safari", safari)];
    let bits = &mut c.own.keepalive_disable_bits;
    value::set_bits(bits, n, &browsers, cx.loader.diags)?;
    let has = |bit| bits.is_some_and(|bits| bits & bit != 0);
    c.keepalive_disable = Some(KeepaliveDisable { msie6: has(msie6), safari: has(safari) });
    Ok(())
}

fn keepalive_timeout(c: &mut Conf, n: &Node, _: &mut Cx<'_, '_>) -> Done {
    if c.keepalive_timeout_ms.is_some() {
        return Err(value::duplicate(n));
    }
    let timeout = value::msec(&n.args[0].value).ok_or_else(|| value::unreadable(n, &n.args[0]))?;
    c.keepalive_timeout_ms = Some(timeout);
    if let Some(header) = n.args.get(1) {
        c.keepalive_header =
            Some(value::sec(&header.value).ok_or_else(|| value::unreadable(n, header))?);
    } else {
        c.keepalive_header = Some(0);
    }
    Ok(())
}

fn size_value(slot: &mut Option<SizeValue>, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    if slot.is_some() {
        return Err(value::duplicate(n));
    }
    let arg = &n.args[0];
    let template = Template::parse(&arg.value, arg.span, &mut cx.registry)?;
    *slot = Some(match template.as_text() {
        Some(text) => SizeValue::Fixed(value::size(text).ok_or_else(|| value::unreadable(n, arg))?),
        None => SizeValue::Computed(template),
    });
    Ok(())
}

fn max_ranges(c: &mut Conf, n: &Node) -> Done {
    let mut number: Option<usize> = None;
    if c.max_ranges.is_some() {
        return Err(value::duplicate(n));
    }
    value::set_number(&mut number, n)?;
    c.max_ranges = Some(number);
    Ok(())
}

fn open_file_cache(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    if c.open_file_cache.is_some() {
        return Err(value::duplicate(n));
    }
    let (mut max, mut inactive_ms, mut off) = (0, 60_000, false);
    for arg in &n.args {
        let text = arg.lossy();
        let invalid =
            || Error::emerg(arg.span, format!("invalid \"open_file_cache\" parameter \"{text}\""));
        match text.split_once('=') {
            None if text == "off" => off = true,
            Some(("max", value)) => match value::number(value.as_bytes()) {
                Some(number) if number > 0 => max = number as usize,
                _ => return Err(invalid()),
            },
            Some(("inactive", value)) => {
                inactive_ms = value::sec(value.as_bytes()).ok_or_else(invalid)? * 1000;
            }
            _ => return Err(invalid()),
        }
    }
    if off {
        c.open_file_cache = Some(None);
        return Ok(());
    }
    if max == 0 {
        let text = "\"open_file_cache\" must have the \"max\" parameter".to_owned();
        return Err(Error::emerg(n.span, text));
    }
    let caches = cx.shared::<Vec<FileCacheConf>>();
    caches.push(FileCacheConf { max, inactive_ms });
    c.open_file_cache = Some(Some(caches.len() - 1));
    Ok(())
}

fn server_tokens(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    if c.server_tokens.is_some() {
        return Err(value::duplicate(n));
    }
    let arg = &n.args[0];
    c.server_tokens = Some(Arc::new(match arg.lossy().as_ref() {
        "on" => ServerTokens::On,
        "off" => ServerTokens::Off,
        "build" => ServerTokens::Build,
        _ => ServerTokens::Text(Template::parse(&arg.value, arg.span, &mut cx.registry)?),
    }));
    Ok(())
}

fn types(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    let types = c.own.types.get_or_insert_default();
    // Only this level holds it while its directives are being read.
    let types = Arc::get_mut(types).expect("not shared before inheritance");
    types.read(n.block.as_deref().unwrap_or_default(), cx.loader);
    Ok(())
}

fn listen(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    for listen in Listen::parse(n, cx.loader)? {
        if let Some(span) = listen.http2 {
            let text = "the \"listen ... http2\" directive is deprecated, use the \"http2\" \
                        directive instead";
            cx.loader.warn(span, text);
        }
        if c.own.listens.iter().any(|before| before.addr == listen.addr) {
            let text = format!("a duplicate listen {}", listen.addr);
            return Err(Error::emerg(n.span, text));
        }
        c.own.listens.push(listen);
    }
    Ok(())
}

fn server_name(c: &mut Conf, n: &Node, cx: &mut Cx<'_, '_>) -> Done {
    for arg in &n.args {
        if c.own.names.is_empty() && c.own.name.is_empty() {
            c.own.name = ServerName::shown(arg);
        }
        if arg.value.contains(&b'/') {
            let text = format!("server name \"{}\" has suspicious symbols", arg.lossy());
            cx.loader.warn(arg.span, text);
        }
        let names = ServerName::parse(arg, &mut cx.registry)?;
        c.own.names.extend(names);
    }
    Ok(())
}

fn server(c: &mut Conf, n: &Node, _: &mut Cx<'_, '_>, child: LocId) -> Result<Conf, Error> {
    c.own.servers.push(child);
    let mut inner = Conf::default();
    inner.own.kind = Kind::Server;
    inner.own.span = n.span;
    Ok(inner)
}

fn limit_except(c: &mut Conf, n: &Node, _: &mut Cx<'_, '_>, child: LocId) -> Result<Conf, Error> {
    const KNOWN: [&str; 15] = [
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "DELETE",
        "MKCOL",
        "COPY",
        "MOVE",
        "OPTIONS",
        "PROPFIND",
        "PROPPATCH",
        "LOCK",
        "UNLOCK",
        "PATCH",
        "TRACE",
    ];
    if c.own.limit_except.is_some() {
        return Err(value::duplicate(n));
    }
    let mut methods: Vec<Box<[u8]>> = Vec::new();
    for arg in &n.args {
        let name = arg.lossy().to_ascii_uppercase();
        if !KNOWN.contains(&name.as_str()) {
            let text = format!("invalid method \"{}\"", arg.lossy());
            return Err(Error::emerg(arg.span, text));
        }
        // nginx: GET allows HEAD too.
        if name == "GET" {
            methods.push((*b"HEAD").into());
        }
        methods.push(name.into_bytes().into());
    }
    c.own.limit_except = Some((methods, child));
    let mut inner = Conf::default();
    inner.own.kind = Kind::LimitExcept;
    inner.own.span = n.span;
    Ok(inner)
}

fn location(c: &mut Conf, n: &Node, _: &mut Cx<'_, '_>, child: LocId) -> Result<Conf, Error> {
    let (kind, name, regex) = location_name(n)?;
    let outer = &c.own;
    let shown = String::from_utf8_lossy(&name).into_owned();
    let outer_name = String::from_utf8_lossy(&outer.name);
    let fail = |text: String| Err(Error::emerg(n.span, text));
    match outer.kind {
        Kind::Exact => {
            return fail(format!(
                "location \"{shown}\" cannot be inside the exact location \"{outer_name}\""
            ));
        }
        Kind::Named => {
            return fail(format!(
                "location \"{shown}\" cannot be inside the named location \"{outer_name}\""
            ));
        }
        _ => {}
    }
    if kind == Kind::Named && !matches!(outer.kind, Kind::Server | Kind::Aside) {
        return fail(format!("named location \"{shown}\" can be on the server level only"));
    }
    let plain = matches!(kind, Kind::Exact | Kind::Prefix { .. });
    // Within a pattern, too: nginx compares the texts.
    let is_named = matches!(outer.kind, Kind::Prefix { .. } | Kind::Regex);
    if plain && is_named && !name.starts_with(&outer.name) {
        return fail(format!("location \"{shown}\" is outside location \"{outer_name}\""));
    }
    c.own.locations.push(child);
    let mut inner = Conf::default();
    inner.own.kind = kind;
    inner.own.span = n.span;
    inner.own.name = name;
    inner.own.regex = regex;
    Ok(inner)
}

fn location_name(n: &Node) -> Result<(Kind, Bytes, Option<Regex>), Error> {
    let copy = |text: &[u8]| Bytes::copy_from_slice(text);
    let compile = |pattern: &[u8], caseless| {
        let span = n.args.last().map_or(n.span, |arg| arg.span);
        let regex = Regex::compile(pattern, caseless, span)?;
        Ok((Kind::Regex, copy(pattern), Some(regex)))
    };
    if let [modifier, name] = &n.args[..] {
        return match &modifier.value[..] {
            b"=" => Ok((Kind::Exact, copy(&name.value), None)),
            b"^~" => Ok((Kind::Prefix { noregex: true }, copy(&name.value), None)),
            b"~" => compile(&name.value, false),
            b"~*" => compile(&name.value, true),
            _ => {
                let text = format!("invalid location modifier \"{}\"", modifier.lossy());
                Err(Error::emerg(modifier.span, text))
            }
        };
    }
    // Modifier and name may be written without a space between them.
    match &n.args[0].value[..] {
        [b'=', rest @ ..] => Ok((Kind::Exact, copy(rest), None)),
        [b'^', b'~', rest @ ..] => Ok((Kind::Prefix { noregex: true }, copy(rest), None)),
        [b'~', b'*', rest @ ..] => compile(rest, true),
        [b'~', rest @ ..] => compile(rest, false),
        name @ [b'@', ..] => Ok((Kind::Named, copy(name), None)),
        name => Ok((Kind::Prefix { noregex: false }, copy(name), None)),
    }
}
