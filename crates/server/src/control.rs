//! `-s`: sends a signal to the running master (nginx: ngx_signal_process).
//!
//! As in nginx the configuration is read first, for the pid file's name, and an error in it is
//! the end: so `-s reload` tells its caller why a configuration would be refused.

use forebay_conf::Direct;
use forebay_rt::errno::Errno;
use forebay_rt::process;

use crate::cli::Control;
use crate::load::{Loaded, Request, load};
use crate::log::Log;
use crate::pid;

/// Sends it; answers the exit code.
pub fn send(control: Control, request: &Request, log: &Log) -> i32 {
    let Loaded { settings, sources, diags } = load(request, &mut Direct);
    log.report(&diags, &sources, false);
    let Some(settings) = settings else { return 1 };
    if let Err(error) = settings.check(&sources) {
        log.emerg(error);
        return 1;
    }
    log.notice("signal process started");
    let pid = match pid::read(settings.core.pid_file(&request.paths.pid)) {
        Ok(pid) => pid,
        Err((severity, problem)) => {
            log.write(severity, &problem);
            return 1;
        }
    };
    match process::send(pid, control.signal()) {
        Ok(()) => 0,
        Err(err) => {
            let number = control.signal().number();
            log.alert(format_args!("kill({pid}, {number}) failed ({})", Errno(&err)));
            1
        }
    }
}
