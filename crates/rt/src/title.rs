//! The process title that `ps` shows: `nginx: worker process` (nginx: ngx_setproctitle.c).
//!
//! The kernel shows the memory where it put the arguments at exec. As nginx does, we write over
//! it, and over the environment behind it once that is copied elsewhere.
//!
//! Invariant: the byte before the end of that memory stays NUL, so that whoever reads an
//! argument or an old environment string from it stops in time.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::sync::OnceLock;

use crate::process::single_threaded;

/// Where the arguments and the environment were at exec: address and length in bytes.
#[derive(Clone, Copy)]
struct Area {
    start: usize,
    len: usize,
}

static AREA: OnceLock<Area> = OnceLock::new();

/// Makes room for titles. To be called at the start of `main`, before any thread, and after the
/// arguments are read: they are gone once a title is set.
pub fn init() -> io::Result<()> {
    if !single_threaded() {
        return Err(io::Error::other("process title while other threads run"));
    }
    let stat = fs::read_to_string("/proc/self/stat")?;
    let area = parse_area(&stat).ok_or_else(|| io::Error::other("/proc/self/stat"))?;
    for (name, value) in std::env::vars_os() {
        // The C library copies name and value to the heap and forgets the old string.
        // SAFETY: no other thread runs that could read the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    let _ = AREA.set(area);
    Ok(())
}

/// Sets the title; what is too long for the memory is cut. Does nothing before [`init`], or
/// while other threads run.
pub fn set(title: &str) {
    let Some(area) = AREA.get().filter(|_| single_threaded()) else {
        return;
    };
    let text = &title.as_bytes()[..title.len().min(area.len - 1)];
    let start = std::ptr::with_exposed_provenance_mut::<u8>(area.start);
    // SAFETY: the kernel mapped these `len` bytes writable at exec for the strings of this
    // process and nothing else lies there. `init` moved the environment away; the arguments are
    // read by `std::env::args` as C strings, which end within the area because its last byte is
    // NUL. No other thread runs, so nobody reads while we write.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), start, text.len());
        std::ptr::write_bytes(start.add(text.len()), 0, area.len - text.len());
    }
}

/// Reads arg_start, arg_end, env_start and env_end, fields 48 to 51 of proc_pid_stat(5). The
/// environment counts where it follows the arguments, which is always so after exec.
fn parse_area(stat: &str) -> Option<Area> {
    // The second field is the command in brackets and may hold spaces and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<usize> = rest
        .split_ascii_whitespace()
        .skip(48 - 3)
        .take(4)
        .map_while(|field| field.parse().ok())
        .collect();
    let &[arg_start, arg_end, env_start, env_end] = fields.as_slice() else {
        return None;
    };
    let end = if env_start == arg_end { env_end.max(arg_end) } else { arg_end };
    // Zeros stand where the kernel may not tell.
    let len = end.checked_sub(arg_start).filter(|len| arg_start > 0 && *len > 1)?;
    Some(Area { start: arg_start, len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn ps_sees_the_title_and_the_environment_stays() {
        testing::in_child("title::tests::ps_sees_the_title_and_the_environment_stays", || {
            let path = std::env::var_os("PATH");
            init().unwrap();
            set("nginx: master process forebay -c x");
            let seen = fs::read("/proc/self/cmdline").unwrap();
            assert!(seen.starts_with(b"nginx: master process forebay -c x\0"));
            set("nginx: worker process");
            let seen = fs::read("/proc/self/cmdline").unwrap();
            assert!(seen.starts_with(b"nginx: worker process\0"));
            assert!(seen[b"nginx: worker process".len()..].iter().all(|byte| *byte == 0));
            assert_eq!(std::env::var_os("PATH"), path);
            // Reads the overwritten memory, and must stay within it.
            assert!(std::env::args_os().count() > 1);
            let long = "x".repeat(4_000_000);
            set(&long);
            assert_eq!(std::env::var_os("PATH"), path);
            assert!(std::env::args_os().count() > 1);
        });
    }

    #[test]
    fn area_is_found_behind_a_command_with_brackets() {
        let zeros = " 0".repeat(44);
        let stat = format!("7 (a) b) S{zeros} 1000 1010 1010 1300 0\n");
        let area = parse_area(&stat).unwrap();
        assert_eq!((area.start, area.len), (1000, 300));
        let apart = format!("7 (a) S{zeros} 1000 1010 2000 2300 0\n");
        assert_eq!(parse_area(&apart).unwrap().len, 10);
        assert!(parse_area(&format!("7 (a) S{zeros} 0 0 0 0 0\n")).is_none());
        assert!(parse_area("7 (a) S 1 2").is_none());
        assert!(parse_area("").is_none());
    }
}
