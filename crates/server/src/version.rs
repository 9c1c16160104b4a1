//! What `-v`, `-V` and `-h` print (ngx_show_version_info). certbot, Ansible and test suites
//! parse it, so `configure arguments` names exactly what is built in, in nginx's spelling.

use std::fmt::Write as _;

use forebay_http::module::DefaultPaths;

use crate::paths;

/// The nginx whose behaviour this is.
pub const NGINX: &str = "1.31.5";
/// Our own version.
pub const FOREBAY: &str = env!("CARGO_PKG_VERSION");

/// What it was compiled with.
pub const COMPILER: &str = env!("FOREBAY_RUSTC");

/// The first line of `-v`: `nginx version: nginx/1.31.5 (forebay/0.1.0)`.
pub fn version_line() -> String {
    format!("nginx version: nginx/{NGINX} (forebay/{FOREBAY})\n")
}

/// What `-V` prints after the version. `has` tells whether a module, by nginx's name, is built in.
pub fn configuration(has: impl Fn(&str) -> bool) -> String {
    let mut text = format!("built with {COMPILER}\n");
    if has("ngx_http_ssl_module") {
        text.push_str("built with rustls and AWS-LC\nTLS SNI support enabled\n");
    }
    text.push_str("configure arguments:");
    let paths = [
        ("prefix", paths::PREFIX),
        ("conf-path", paths::CONF),
        ("error-log-path", paths::ERROR_LOG),
        ("http-log-path", paths::ACCESS_LOG),
        ("pid-path", paths::PID),
        ("lock-path", paths::LOCK),
    ];
    for (name, path) in paths {
        let _ = write!(text, " --{name}={path}");
    }
    let defaults = DefaultPaths { temp: Some(paths::TEMP.into()), ..DefaultPaths::default() };
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        if kind == "client_body" || has(&format!("ngx_http_{kind}_module")) {
            let (name, path) = (kind.replace('_', "-"), defaults.temp(kind));
            let _ = write!(text, " --http-{name}-temp-path={}", path.display());
        }
    }
    // The engine reads files in threads, and expressions of its own need no PCRE.
    text.push_str(" --with-threads --with-file-aio");
    for name in OPTIONAL.iter().filter(|name| is_built_in(name, &has)) {
        let _ = write!(text, " --with-{name}");
    }
    for name in DEFAULT.iter().filter(|name| !is_built_in(name, &has)) {
        let _ = write!(text, " --without-{name}");
    }
    // It is no module of nginx's, and no module here.
    text.push_str(" --without-http-cache\n");
    text
}

/// What `-h` prints after the version.
pub fn usage() -> String {
    format!(
        "Usage: nginx [-?hvVtTq] [-s signal] [-p prefix]
             [-e filename] [-c filename] [-g directives]

Options:
  -?,-h         : this help
  -v            : show version and exit
  -V            : show version and configure options then exit
  -t            : test configuration and exit
  -T            : test configuration, dump it and exit
  -q            : suppress non-error messages during configuration testing
  -s signal     : send signal to a master process: stop, quit, reopen, reload
  -p prefix     : set prefix path (default: {}/)
  -e filename   : set error log file (default: {})
  -c filename   : set configuration file (default: {})
  -g directives : set global directives out of configuration file

",
        paths::PREFIX,
        paths::ERROR_LOG,
        paths::CONF
    )
}

/// What `help` prints: the subcommands before nginx's options.
pub fn help() -> String {
    format!(
        "forebay {FOREBAY}: a web server that reads nginx.conf

  forebay                                 start on a free loopback port, to see it alive
  forebay serve [DIR] [--listen ADDR]     serve a folder, with listings
  forebay fmt [--check] FILE...           format configuration files
  forebay help                            this help
  forebay [OPTIONS]                       run as nginx does, with its options:

{}",
        usage()
    )
}

/// Whether the module that a `configure` option switches is there: `ngx_http_ssl_module` for
/// `http_ssl_module`. Some filters have it in their names, and balancing is one module here.
fn is_built_in(option: &str, has: &impl Fn(&str) -> bool) -> bool {
    let name = option.trim_end_matches("_module");
    has(&format!("ngx_{option}"))
        || has(&format!("ngx_{name}_filter_module"))
        || (name.starts_with("http_upstream_") && has("ngx_http_upstream_module"))
}

/// Modules that nginx's `configure` builds when asked by `--with-`.
const OPTIONAL: &[&str] = &[
    "http_ssl_module",
    "http_v2_module",
    "http_v3_module",
    "http_realip_module",
    "http_addition_module",
    "http_sub_module",
    "http_dav_module",
    "http_flv_module",
    "http_mp4_module",
    "http_gunzip_module",
    "http_gzip_static_module",
    "http_auth_request_module",
    "http_random_index_module",
    "http_secure_link_module",
    "http_slice_module",
    "http_stub_status_module",
];

/// Modules that nginx's `configure` builds unless told `--without-`.
const DEFAULT: &[&str] = &[
    "http_charset_module",
    "http_gzip_module",
    "http_ssi_module",
    "http_userid_module",
    "http_access_module",
    "http_auth_basic_module",
    "http_mirror_module",
    "http_autoindex_module",
    "http_geo_module",
    "http_map_module",
    "http_split_clients_module",
    "http_referer_module",
    "http_rewrite_module",
    "http_proxy_module",
    "http_fastcgi_module",
    "http_uwsgi_module",
    "http_scgi_module",
    "http_grpc_module",
    "http_memcached_module",
    "http_limit_conn_module",
    "http_limit_req_module",
    "http_empty_gif_module",
    "http_browser_module",
    "http_upstream_hash_module",
    "http_upstream_ip_hash_module",
    "http_upstream_least_conn_module",
    "http_upstream_random_module",
    "http_upstream_keepalive_module",
    "http_upstream_zone_module",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_is_nginx_s_with_ours_in_brackets() {
        let line = version_line();
        assert!(line.starts_with("nginx version: nginx/1.31.5 (forebay/"), "{line}");
        assert!(line.ends_with(")\n"));
    }

    #[test]
    fn arguments_say_what_is_there_and_what_is_not() {
        let all = configuration(|_| true);
        assert!(all.contains("\nTLS SNI support enabled\nconfigure arguments: "));
        assert!(all.contains(" --with-http_ssl_module ") && !all.contains("--without-http_"));
        assert!(all.ends_with(" --without-http-cache\n"), "{all}");
        let none = configuration(|_| false);
        assert!(none.contains(" --without-http_gzip_module ") && !none.contains("--with-http_"));
        let gzip = configuration(|name| name == "ngx_http_gzip_module");
        assert!(!gzip.contains("http_gzip_module"), "a default module needs no option");
        let balancing = configuration(|name| name == "ngx_http_upstream_module");
        assert!(!balancing.contains("http_upstream_"), "{balancing}");
        assert!(gzip.starts_with("built with rustc "));
        let arguments = gzip.lines().nth(1).unwrap();
        assert!(arguments.starts_with(
            "configure arguments: --prefix=/etc/nginx --conf-path=/etc/nginx/nginx.conf \
             --error-log-path=/var/log/nginx/error.log"
        ));
        let bodies = " --http-client-body-temp-path=/var/cache/nginx/client_temp ";
        assert!(gzip.contains(bodies) && !gzip.contains("proxy_temp"), "{gzip}");
        assert!(all.contains(" --http-proxy-temp-path=/var/cache/nginx/proxy_temp "), "{all}");
        assert_eq!(gzip.lines().count(), 2);
    }

    #[test]
    fn usage_is_nginx_s() {
        assert!(usage().starts_with("Usage: nginx [-?hvVtTq] [-s signal] [-p prefix]\n"));
        assert!(help().contains("serve [DIR] [--listen ADDR]") && help().contains(&usage()));
    }
}
