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

/// Has the processor fetch what will be needed in a moment, all of it at once: memory that waited for a
/// while has left the caches, and is otherwise fetched piece by piece, each time that something meets it.
/// What `value` points to is not.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let at = std::ptr::from_ref(value).cast::<i8>();
        for offset in (0..size_of_val(value)).step_by(LINE) {
            // SAFETY: SSE is there on every x86-64; a prefetch reads nothing, wherever it points.
            #[allow(unsafe_code)]
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(offset));
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetching_changes_nothing_whatever_the_size() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let wanted = bytes.clone();
        prefetch(&());
        (0..=bytes.len()).for_each(|len| prefetch(&bytes[..len]));
        prefetch::<dyn std::any::Any>(&bytes);
        assert_eq!(bytes, wanted);
    }

    #[test]
    fn giving_back_leaves_what_is_in_use() {
        let used = vec![7u8; 1 << 20];
        drop(vec![8u8; 1 << 20]);
        give_back();
        assert!(used.iter().all(|byte| *byte == 7));
    }
}
