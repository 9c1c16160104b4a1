//! Tests of the core directives.

use super::*;
use forebay_conf::files::Memory;
use forebay_conf::{Diagnostics, Index, Loader, ParseOptions, Sources, parse_text};

/// Loads directives of the main context, and of `events` in its block.
fn loaded(text: &str) -> (Core, Vec<String>) {
    let (mut files, mut sources, mut diags) =
        (Memory::default(), Sources::new(), Diagnostics::new());
    let options = ParseOptions::default();
    let nodes = parse_text("t", text.as_bytes(), &mut files, &options, &mut sources, &mut diags);
    let mut loader = Loader {
        files: &mut files,
        sources: &mut sources,
        diags: &mut diags,
        prefix: "/prefix".into(),
        conf_prefix: "/conf".into(),
    };
    let mut core = Core::default();
    let index = Index::new(specs());
    load_main(&mut core, &nodes, &index, &mut loader);
    let messages = diags.iter().map(|error| error.message.clone()).collect();
    (core, messages)
}

#[test]
fn every_directive_of_nginx_s_core_has_a_row() {
    let known: Vec<&str> = specs().map(|spec| spec.name).collect();
    for nginx in forebay_conf::suggest::nginx_directives() {
        if nginx.module == "ngx_core_module" && !nginx.commercial && nginx.name != "include" {
            let there = known.contains(&nginx.name);
            assert!(there || COMMERCIAL.contains(&nginx.name), "{}", nginx.name);
        }
    }
}

/// Not in the open source nginx, though its column says "part".
const COMMERCIAL: [&str; 1] = ["stall_threshold"];

#[test]
fn errors_are_nginx_s() {
    for (text, expected) in [
        ("daemon x;", "invalid value \"x\" in \"daemon\" directive, it must be \"on\" or \"off\""),
        ("daemon on; daemon on;", "\"daemon\" directive is duplicate"),
        ("pid a; pid b;", "\"pid\" directive is duplicate"),
        ("worker_processes x;", "\"worker_processes\" directive invalid value"),
        ("worker_processes 0;", "\"worker_processes\" directive invalid value"),
        (
            "worker_processes auto; worker_processes 1;",
            "\"worker_processes\" directive is duplicate",
        ),
        ("worker_priority x;", "\"worker_priority\" directive invalid number"),
        ("worker_priority -x;", "\"worker_priority\" directive invalid number"),
        ("worker_cpu_affinity 01a;", "invalid character \"a\" in \"worker_cpu_affinity\""),
        (
            "worker_cpu_affinity auto 01 01;",
            "invalid number of arguments in \"worker_cpu_affinity\" directive",
        ),
        ("worker_rlimit_core x;", "\"worker_rlimit_core\" directive invalid value"),
        ("worker_shutdown_timeout x;", "\"worker_shutdown_timeout\" directive invalid value"),
        ("thread_pool x;", "invalid number of arguments in \"thread_pool\" directive"),
        ("thread_pool x threads=0;", "invalid threads value \"threads=0\""),
        ("thread_pool x threads=2 max_queue=x;", "invalid max_queue value \"max_queue=x\""),
        ("thread_pool x max_queue=1;", "\"thread_pool\" must have \"threads\" parameter"),
        ("thread_pool x threads=1; thread_pool x threads=1;", "duplicate thread pool \"x\""),
        ("events {} events {}", "\"events\" directive is duplicate"),
        ("events { use kqueue; }", "invalid event type \"kqueue\""),
        ("events { worker_connections x; }", "invalid number \"x\""),
        ("events { daemon on; }", "\"daemon\" directive is not allowed here"),
        ("multi_accept on;", "\"multi_accept\" directive is not allowed here"),
        ("error_log /x foo;", "invalid log level \"foo\""),
        ("load_module x.so;", "\"load_module\" directive is not supported"),
        ("debug_points stop;", "\"debug_points\" directive is not supported"),
        ("ssl_engine x;", "\"ssl_engine\" directive is not supported"),
        ("user no-such-user;", user_error()),
        ("nonsense;", "unknown directive \"nonsense\""),
    ] {
        assert_eq!(loaded(text).1, [expected], "{text}");
    }
}

fn user_error() -> &'static str {
    match privileges::is_root() {
        true => "getpwnam(\"no-such-user\") failed",
        false => {
            "the \"user\" directive makes sense only if the master process runs with \
             super-user privileges, ignored"
        }
    }
}

#[test]
fn what_changes_nothing_is_told() {
    let text = "lock_file x; pcre_jit on; timer_resolution 100ms; \
                ssl_object_cache_inheritable on; \
                events { use epoll; multi_accept on; accept_mutex on; \
                accept_mutex_delay 1s; worker_aio_requests 3; debug_connection ::1; }";
    let (_, remarks) = loaded(text);
    assert_eq!(remarks.len(), 10, "{remarks:?}");
    assert!(remarks.iter().all(|remark| remark.contains("changes nothing here")));
}

#[test]
fn values_are_taken() {
    let (core, messages) = loaded(
        "daemon off; master_process off; pid run/x.pid; worker_processes 3; \
         worker_priority -5; worker_rlimit_nofile 100; worker_rlimit_core 1m; \
         worker_shutdown_timeout 2s; working_directory /tmp; env A; env B=c=d; \
         thread_pool p threads=2 max_queue=0; events { worker_connections 20; }",
    );
    assert_eq!(messages, [""; 0]);
    assert_eq!((core.daemon, core.master_process), (Some(false), Some(false)));
    assert_eq!(core.pid, Some("/prefix/run/x.pid".into()));
    assert_eq!((core.threads(), core.connections()), (3, 20));
    assert_eq!(core.worker_shutdown_timeout_ms, Some(2000));
    assert_eq!(core.scale(), Scale { threads: 3, connections: 20, affinity: None });
    assert_eq!(core.limits(), RLimits { nofile: Some(300), core: Some(1 << 20) });
    let fixed = core.fixed(false);
    assert_eq!(core.worker_priority, Some(-5));
    assert_eq!(fixed.env, [("A".into(), None), ("B".into(), Some("c=d".into()))]);
    let pool = ThreadPool { name: "p".into(), threads: 2, max_queue: 0 };
    assert_eq!(core.thread_pools, [pool]);
    assert_ne!(fixed, loaded("events {}").0.fixed(false));
}

#[test]
fn workers_keep_the_variables_that_env_names() {
    let environment = |text: &str| {
        let vars = [("A", "1"), ("B", "2"), ("TZ", "UTC")];
        let current = vars.map(|(name, value)| (name.into(), value.into()));
        let kept = loaded(text).0.environment(current.into_iter());
        let shown = kept.iter().map(|(name, value)| {
            format!("{}={} ", name.to_string_lossy(), value.to_string_lossy())
        });
        shown.collect::<String>()
    };
    assert_eq!(environment(""), "TZ=UTC ");
    assert_eq!(environment("env A; env C; env D=4;"), "TZ=UTC A=1 D=4 ");
    assert_eq!(environment("env TZ=CET; env A=;"), "TZ=CET A= ");
}

#[test]
fn defaults_are_nginx_s() {
    let (core, _) = loaded("");
    assert_eq!((core.threads(), core.connections()), (1, 512));
    assert!(core.events.is_none());
    let auto = loaded("worker_processes auto;").0;
    assert_eq!(auto.threads(), affinity::online());
}

#[test]
fn cpus_follow_the_masks_or_go_round() {
    let cpus = |text: &str, thread: usize| {
        loaded(text).0.worker_cpu_affinity.unwrap().cpus(thread, &[4, 6])
    };
    for (text, expected) in [
        ("worker_cpu_affinity 0001 0110;", [vec![0], vec![1, 2], vec![1, 2]]),
        ("worker_cpu_affinity \"10 10\";", [vec![1, 3], vec![1, 3], vec![1, 3]]),
        ("worker_cpu_affinity 0;", [vec![], vec![], vec![]]),
        ("worker_cpu_affinity auto;", [vec![4], vec![6], vec![4]]),
        ("worker_cpu_affinity auto 1010;", [vec![1], vec![3], vec![1]]),
        ("worker_cpu_affinity auto 0;", [vec![], vec![], vec![]]),
    ] {
        assert_eq!([0, 1, 2].map(|thread| cpus(text, thread)), expected, "{text}");
    }
}

#[test]
fn settings_that_do_not_fit_are_remarked() {
    let masks = "the number of \"worker_processes\" is not equal to the number of \
                 \"worker_cpu_affinity\" masks, using last mask for remaining worker processes";
    let remarks = |text: &str| loaded(text).0.remarks();
    assert_eq!(remarks("worker_processes 3; worker_cpu_affinity 01 10;"), [masks]);
    assert_eq!(remarks("worker_processes 3; worker_cpu_affinity 01;"), [""; 0]);
    let present = privileges::nofile().unwrap();
    let many = present + 1;
    let events = format!("events {{ worker_connections {many}; }}");
    let exceed =
        |limit: u64| format!("{many} worker_connections exceed open file resource limit: {limit}");
    assert_eq!(remarks(&events), [exceed(present)]);
    assert_eq!(remarks(&format!("worker_rlimit_nofile 10; {events}")), [exceed(10)]);
    assert_eq!(remarks(&format!("worker_rlimit_nofile {many}; {events}")), [""; 0]);
}
