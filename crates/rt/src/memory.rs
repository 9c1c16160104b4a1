//! Memory that was freed goes back to the kernel. The allocator sees to that when a thread asks it for more;
//! one whose clients have all left may never do so again.

// The allocator of the binary; where it is another, this one has nothing to give.
use libmimalloc_sys as _;

use crate::pool;

// As `libmimalloc_sys::mi_collect`, which only a feature has that brings another crate.
#[allow(unsafe_code)]
unsafe extern "C" {
    fn mi_collect(force: bool);
}

/// Gives back what this thread has freed, and most of what its pools keep.
pub fn give_back() {
    pool::shrink();
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    #[allow(unsafe_code)]
    unsafe {
        mi_collect(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn giving_back_leaves_what_is_in_use() {
        let used = vec![7u8; 1 << 20];
        drop(vec![8u8; 1 << 20]);
        give_back();
        assert!(used.iter().all(|byte| *byte == 7));
    }
}
