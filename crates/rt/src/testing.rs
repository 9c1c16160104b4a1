//! For tests that change their process (signals, fork, title): each runs alone in a child.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Runs `body` in a process of its own that has one thread. A failure there fails the caller,
/// with its output.
///
/// The test binary is started again for the test `name` alone; there the harness still has a
/// second thread, which only waits, so a fork leaves it behind.
pub fn in_child(name: &str, body: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() {
        return fork_once(body);
    }
    let exe = std::env::current_exe().unwrap();
    let output = Command::new(exe)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

#[allow(unsafe_code)]
fn fork_once(body: impl FnOnce()) {
    // SAFETY: the other thread of this process waits for this test to end and holds no lock.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let code = catch_unwind(AssertUnwindSafe(body)).map_or(1, |()| 0);
            std::process::exit(code);
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}

const MARK: &str = "FOREBAY_TEST_CHILD";
