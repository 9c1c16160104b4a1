//! Processes as `/proc` shows them: the tree below a server, its processor time, its memory.

use std::fs;
use std::io;

/// A process id.
pub type Pid = i32;

/// The children of `parent`, in order of their ids.
pub fn children(parent: Pid) -> Vec<Pid> {
    let mut found: Vec<Pid> =
        all().into_iter().filter(|&pid| parent_of(pid) == Some(parent)).collect();
    found.sort_unstable();
    found
}

/// `root` and every process below it.
pub fn tree(root: Pid) -> Vec<Pid> {
    let parents: Vec<(Pid, Pid)> =
        all().into_iter().filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child));
        next += 1;
    }
    found
}

/// The thread ids of a process; empty when it is gone.
pub fn threads(pid: Pid) -> Vec<Pid> {
    numbers_in(&format!("/proc/{pid}/task"))
}

/// Processor time that all threads of the given processes have used, in nanoseconds (the first field
/// of `schedstat`, which is exact where `stat` counts clock ticks).
pub fn cpu_time_ns(pids: &[Pid]) -> u64 {
    pids.iter()
        .flat_map(|&pid| threads(pid).into_iter().map(move |tid| (pid, tid)))
        .filter_map(|(pid, tid)| {
            fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()
        })
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Proportional set size of the given processes, in bytes.
pub fn pss_bytes(pids: &[Pid]) -> io::Result<u64> {
    rollup(pids, "Pss:")
}

/// The part of it that no file stands behind, in bytes: what does not change when other processes of
/// the same program come and go.
pub fn anonymous_bytes(pids: &[Pid]) -> io::Result<u64> {
    rollup(pids, "Pss_Anon:")
}

/// A number of kilobytes from `/proc/PID/status`, such as `VmHWM`: the most that was ever resident.
pub fn status_kb(pid: Pid, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn rollup(pids: &[Pid], name: &str) -> io::Result<u64> {
    let mut sum = 0;
    for pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        sum += kib.ok_or_else(|| io::Error::other(format!("no {name} in smaps_rollup")))? * 1024;
    }
    Ok(sum)
}

/// How many descriptors a process has open.
pub fn open_files(pid: Pid) -> usize {
    numbers_in(&format!("/proc/{pid}/fd")).len()
}

fn all() -> Vec<Pid> {
    numbers_in("/proc")
}

fn numbers_in(dir: &str) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may itself hold spaces and parentheses: what follows the last one counts.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    // A dead process that nobody has waited for yet is no worker.
    if state == "Z" {
        return None;
    }
    fields.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_threads_time_and_memory() {
        let me = std::process::id() as Pid;
        assert!(threads(me).contains(&me));
        assert!(cpu_time_ns(&[me]) > 0);
        assert!(pss_bytes(&[me]).expect("smaps_rollup") > 4096);
        assert!(anonymous_bytes(&[me]).expect("smaps_rollup") > 4096);
        assert!(open_files(me) >= 3);
    }

    #[test]
    fn child_is_in_the_tree_until_it_is_gone() {
        let me = std::process::id() as Pid;
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = child.id() as Pid;
        assert!(children(me).contains(&pid));
        assert!(tree(me).contains(&pid));
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(!children(me).contains(&pid));
    }
}
