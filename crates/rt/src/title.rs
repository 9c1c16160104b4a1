//! The process title that `ps` shows: `nginx: worker process` (nginx: ngx_setproctitle.c).
//!
//! The kernel shows the memory where it put the arguments at exec. As nginx does, we write over
//! it, and over the environment behind it. Both are copied elsewhere first, so that afterwards
//! nobody reads that memory but the kernel, and a title may change while threads run.
//!
//! Invariant: the byte before the end of that memory stays NUL: a stray reader stops in time.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::Mutex;

use crate::process::{is_variable_name, single_threaded};

/// What the kernel wrote at exec: addresses and a length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    /// Where the count of arguments is, with the pointers to them behind it.
    stack: usize,
    start: usize,
    len: usize,
}

static AREA: Mutex<Option<Area>> = Mutex::new(None);

/// Makes room for titles. To be called at the start of `main`, before any thread; where the
/// memory does not look as expected it fails, and titles stay as they are.
pub fn init() -> io::Result<()> {
    if !single_threaded() {
        return Err(io::Error::other("process title while other threads run"));
    }
    let Ok(mut slot) = AREA.lock() else { return Ok(()) };
    if slot.is_some() {
        return Ok(());
    }
    let stat = fs::read_to_string("/proc/self/stat")?;
    let area = parse_area(&stat).ok_or_else(|| io::Error::other("/proc/self/stat"))?;
    move_arguments(area)?;
    for (name, value) in std::env::vars_os().filter(|(name, _)| is_variable_name(name)) {
        // The C library copies name and value to the heap and forgets the old string.
        // SAFETY: no other thread runs that could read the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    *slot = Some(area);
    Ok(())
}

/// Sets the title; what is too long for the memory is cut. Does nothing before [`init`].
pub fn set(title: &str) {
    let Ok(slot) = AREA.lock() else { return };
    let Some(area) = *slot else { return };
    let text = &title.as_bytes()[..title.len().min(area.len - 1)];
    let start = std::ptr::with_exposed_provenance_mut::<u8>(area.start);
    // SAFETY: the kernel mapped these `len` bytes writable at exec for the strings of this
    // process, and nothing else lies there. `init` gave the C library and std copies of these
    // strings, so no pointer into them is followed any more; the lock keeps other writers out.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), start, text.len());
        std::ptr::write_bytes(start.add(text.len()), 0, area.len - text.len());
    }
}

/// Lets the pointers to the arguments, which std and the C library read, point to copies that
/// are never freed.
fn move_arguments(area: Area) -> io::Result<()> {
    let args: Vec<_> = std::env::args_os().collect();
    let stack = std::ptr::with_exposed_provenance_mut::<usize>(area.stack);
    // SAFETY: the kernel leaves the count of arguments at this address (System V ABI, "initial
    // process stack"), which it names in proc_pid_stat(5); stacks stay mapped.
    let count = unsafe { stack.read() };
    if count == 0 || count != args.len() {
        return Err(io::Error::other("unexpected count of arguments"));
    }
    // SAFETY: behind the count are so many pointers, which nobody else reads: one thread runs.
    let pointers = unsafe { std::slice::from_raw_parts_mut(stack.add(1).cast(), count) };
    if pointers.first().map(|first: &*mut c_char| first.addr()) != Some(area.start) {
        return Err(io::Error::other("unexpected place of arguments"));
    }
    for (pointer, arg) in pointers.iter_mut().zip(args) {
        // An argument comes from a C string and has no NUL within.
        *pointer = CString::new(arg.into_vec()).unwrap_or_default().into_raw();
    }
    Ok(())
}

/// Reads startstack, arg_start, arg_end, env_start and env_end, fields 28 and 48 to 51 of
/// proc_pid_stat(5). The environment counts where it follows the arguments, as after exec.
fn parse_area(stat: &str) -> Option<Area> {
    // The second field is the command in brackets and may hold spaces and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<usize>().ok();
    let (arg_start, arg_end) = (field(48)?, field(49)?);
    let end = if field(50)? == arg_end { field(51)?.max(arg_end) } else { arg_end };
    // Zeros stand where the kernel may not tell.
    let stack = field(28).filter(|stack| *stack > 0 && stack % align_of::<usize>() == 0)?;
    let len = end.checked_sub(arg_start).filter(|len| arg_start > 0 && *len > 1)?;
    Some(Area { stack, start: arg_start, len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn ps_sees_the_title_and_the_environment_stays() {
        testing::in_child("title::tests::ps_sees_the_title_and_the_environment_stays", || {
            let path = std::env::var_os("PATH");
            let args: Vec<_> = std::env::args_os().collect();
            init().unwrap();
            set("nginx: master process forebay -c x");
            let seen = fs::read("/proc/self/cmdline").unwrap();
            assert!(seen.starts_with(b"nginx: master process forebay -c x\0"));
            set("nginx: worker process");
            let seen = fs::read("/proc/self/cmdline").unwrap();
            assert!(seen.starts_with(b"nginx: worker process\0"));
            assert!(seen[b"nginx: worker process".len()..].iter().all(|byte| *byte == 0));
            assert_eq!(std::env::var_os("PATH"), path);
            set(&"x".repeat(4_000_000));
            assert_eq!(std::env::var_os("PATH"), path);
            assert_eq!(std::env::args_os().collect::<Vec<_>>(), args);
            // Also while threads run; a second `init` is harmless.
            init().unwrap();
            std::thread::spawn(|| set("nginx: worker process is shutting down")).join().unwrap();
            let seen = fs::read("/proc/self/cmdline").unwrap();
            assert!(seen.starts_with(b"nginx: worker process is shutting down\0"));
        });
    }

    #[test]
    fn area_is_found_behind_a_command_with_brackets() {
        let stat = |stack: u32, args: &str| {
            let zeros = |count| " 0".repeat(count);
            format!("7 (a) b) S{} {stack}{} {args} 0\n", zeros(24), zeros(19))
        };
        let area = |len| Some(Area { stack: 800, start: 1000, len });
        assert_eq!(parse_area(&stat(800, "1000 1010 1010 1300")), area(300));
        assert_eq!(parse_area(&stat(800, "1000 1010 2000 2300")), area(10));
        for bad in [&stat(0, "1000 1010 1010 1300"), &stat(800, "0 0 0 0"), "7 (a) S 1 2", ""] {
            assert_eq!(parse_area(bad), None, "{bad}");
        }
    }
}
