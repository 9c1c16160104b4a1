//! The allocator, and what is to be known of it.

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc,
    mi_zalloc_aligned,
};

use crate::pool;

// As `libmimalloc_sys::mi_collect`, which only a feature has that brings another crate.
#[allow(unsafe_code)]
unsafe extern "C" {
    fn mi_collect(force: bool);
}

/// mimalloc: threads do not share its locks.
///
/// What needs no alignment of its own is asked for without one: mimalloc takes twice as long to be exact about
/// it, for more than a kilobyte and whenever the free list of a page is empty.
pub struct Allocator;

impl Allocator {
    /// Whether each block of that size has the alignment anyway (`MI_MAX_ALIGN_SIZE`).
    fn is_plain(align: usize, size: usize) -> bool {
        align <= 8 || (align <= 16 && size >= 16)
    }
}

// SAFETY: what is said of `alloc` and the others is what mimalloc does, with whichever of its functions a
// block was asked for: all of them are freed and made larger alike.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size may be asked for; an alignment of a layout is a power of two.
        unsafe {
            match Allocator::is_plain(layout.align(), layout.size()) {
                true => mi_malloc(layout.size()).cast(),
                false => mi_malloc_aligned(layout.size(), layout.align()).cast(),
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            match Allocator::is_plain(layout.align(), layout.size()) {
                true => mi_zalloc(layout.size()).cast(),
                false => mi_zalloc_aligned(layout.size(), layout.align()).cast(),
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller gives back what it was given.
        unsafe { mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the block is the caller's; the alignment is that of a layout.
        unsafe {
            match Allocator::is_plain(layout.align(), new_size) {
                true => mi_realloc(block.cast(), new_size).cast(),
                false => mi_realloc_aligned(block.cast(), new_size, layout.align()).cast(),
            }
        }
    }
}

/// Gives back what this thread has freed, and most of what its pools keep. The allocator does so when a thread
/// asks it for more; one whose clients have all left may never do so again.
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
    #[allow(unsafe_code)]
    fn every_layout_has_its_alignment_and_keeps_its_bytes() {
        let sizes = [1, 7, 8, 9, 15, 16, 17, 24, 40, 100, 1024, 1025, 1816, 5000, 70_000, 300_000];
        for (size, align) in sizes.iter().flat_map(|&size| (0..9).map(move |bit| (size, 1 << bit)))
        {
            let layout = Layout::from_size_align(size, align).unwrap();
            let aligned = |block: *mut u8| !block.is_null() && block.addr().is_multiple_of(align);
            let mut blocks = Vec::new();
            for n in 0..9 {
                // SAFETY: no size is zero, each block is used within its size and freed once, and the
                // larger one has the alignment of the first.
                unsafe {
                    let block = Allocator.alloc_zeroed(layout);
                    assert!(aligned(block), "{layout:?}");
                    assert!(std::slice::from_raw_parts(block, size).iter().all(|byte| *byte == 0));
                    block.write_bytes(n, size);
                    Allocator.dealloc(block, layout);
                    let block = Allocator.alloc(layout);
                    assert!(aligned(block), "{layout:?}");
                    block.write_bytes(n, size);
                    let more = Layout::from_size_align(size + 50, align).unwrap();
                    let block = Allocator.realloc(block, layout, more.size());
                    assert!(aligned(block), "{layout:?}");
                    assert!(std::slice::from_raw_parts(block, size).iter().all(|byte| *byte == n));
                    blocks.push((block, more));
                }
            }
            for (block, layout) in blocks {
                // SAFETY: allocated above with this layout.
                unsafe { Allocator.dealloc(block, layout) };
            }
        }
    }

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
