//! CPUs that a thread may run on (nginx: ngx_setaffinity.c and `worker_cpu_affinity`).
//! Invariant: CPU numbers only; which thread gets which is `worker_cpu_affinity`'s matter.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Binds the calling thread to `cpus`, numbered from zero.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(*cpu)?;
    }
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// The CPUs that the calling thread may use, for `worker_processes auto` within a container and
/// for `worker_cpu_affinity auto`.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect())
}

/// CPUs that are online: what nginx counts for `worker_processes auto`
/// (sysconf(_SC_NPROCESSORS_ONLN)).
pub fn online() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN)
        .ok()
        .flatten()
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(1)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_thread_may_use_one_cpu() {
        std::thread::spawn(|| {
            let cpu = allowed().unwrap()[0];
            pin(&[cpu]).unwrap();
            assert_eq!(allowed().unwrap(), [cpu]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn cpu_that_cannot_be_is_an_error() {
        assert!(pin(&[1_000_000]).is_err());
        assert!(online() >= 1);
    }
}
