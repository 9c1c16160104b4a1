//! Memory that goes round: read buffers and the futures of requests, one set per thread.
//!
//! An idle connection holds neither. A busy thread takes both from here and puts them back, so a
//! request costs no trip to the allocator.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    cell::RefCell,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    ptr::NonNull,
    task::{Context, Poll},
};

use crate::memory;

/// The size of a pooled buffer.
pub const BUFFER_BYTES: usize = 16 << 10;
/// How many of each kind a thread keeps.
const KEPT: usize = 256;
/// How many are left when a crowd of connections has gone.
const KEPT_QUIET: usize = 16;

/// Free places of one size. The last one put back is the first one taken: it is still in the caches.
struct Shelf {
    layout: Layout,
    places: Vec<NonNull<u8>>,
}

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    // A few: one for each kind of future.
    static SHELVES: RefCell<Vec<Shelf>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with room for at least [`BUFFER_BYTES`].
pub fn buffer() -> Vec<u8> {
    let pooled = BUFFERS.with_borrow_mut(Vec::pop);
    pooled.unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
}

/// Puts a buffer back; one of another size goes to the allocator.
pub fn recycle(mut buffer: Vec<u8>) {
    if buffer.capacity() < BUFFER_BYTES || buffer.capacity() > 2 * BUFFER_BYTES {
        return;
    }
    buffer.clear();
    BUFFERS.with_borrow_mut(|buffers| {
        if buffers.len() < KEPT {
            buffers.push(buffer);
        }
    });
}

/// Leaves a few of each to the next ones.
pub fn shrink() {
    BUFFERS.with_borrow_mut(|buffers| buffers.truncate(KEPT_QUIET));
    SHELVES.with_borrow_mut(|shelves| {
        for Shelf { layout, places } in shelves {
            for place in places.drain(KEPT_QUIET.min(places.len())..) {
                // SAFETY: allocated in `Pooled::new` with this layout, and no longer on the shelf.
                #[allow(unsafe_code)]
                unsafe {
                    dealloc(place.as_ptr(), *layout);
                }
            }
        }
    });
}

fn take_place(layout: Layout) -> NonNull<u8> {
    assert!(layout.size() > 0, "futures that hold nothing need no place");
    let free = SHELVES.with_borrow_mut(|shelves| {
        shelves.iter_mut().find(|shelf| shelf.layout == layout)?.places.pop()
    });
    free.unwrap_or_else(|| {
        // SAFETY: the size is not zero, as asserted.
        #[allow(unsafe_code)]
        let raw = unsafe { alloc(layout) };
        NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout))
    })
}

/// Whether there was room for it.
fn put_back(layout: Layout, place: NonNull<u8>) -> bool {
    let kept = SHELVES.try_with(|shelves| {
        let mut shelves = shelves.borrow_mut();
        let at = shelves.iter().position(|shelf| shelf.layout == layout).unwrap_or_else(|| {
            shelves.push(Shelf { layout, places: Vec::new() });
            shelves.len() - 1
        });
        let places = &mut shelves[at].places;
        let room = places.len() < KEPT;
        if room {
            places.push(place);
        }
        room
    });
    kept.unwrap_or(false)
}

/// A future in pooled memory: what `Box::pin` does, without the allocator once the thread is warm.
pub struct Pooled<F: ?Sized> {
    place: NonNull<F>,
    owns: PhantomData<F>,
}

impl<F: Future> Pooled<F> {
    /// Makes a future in a free place of this thread, or a new one. It is made there, not moved there: a
    /// future that has not begun is as large as it will ever be.
    pub fn new(make: impl FnOnce() -> F) -> Pooled<F> {
        let place = take_place(Layout::new::<F>()).cast::<F>();
        // SAFETY: the place was allocated with the layout of F, is aligned for it, and nobody else
        // has it: it was either just allocated or taken off its shelf. Should `make` panic, it leaks.
        #[allow(unsafe_code)]
        unsafe {
            place.write(make());
        }
        Pooled { place, owns: PhantomData }
    }

    /// The same future, where its type does not matter.
    pub fn erased<'a>(self) -> Pooled<dyn Future<Output = F::Output> + 'a>
    where
        F: 'a,
    {
        let place: NonNull<dyn Future<Output = F::Output> + 'a> = self.place;
        std::mem::forget(self);
        Pooled { place, owns: PhantomData }
    }
}

// The future itself stays where it is when the handle moves.
impl<F: ?Sized> Unpin for Pooled<F> {}

impl<F: Future + ?Sized> Future for Pooled<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        // SAFETY: the place holds an F from `new` to `drop`, and this is the only reference to it.
        // It is never moved out of its place, which makes the pin true.
        #[allow(unsafe_code)]
        let future = unsafe { Pin::new_unchecked(this.place.as_mut()) };
        // Many others had their turn meanwhile.
        memory::prefetch(&*future);
        future.poll(cx)
    }
}

impl<F: ?Sized> Drop for Pooled<F> {
    fn drop(&mut self) {
        // SAFETY: the place holds an F that nobody can reach any more. Should its drop panic, the
        // place leaks, which is safe.
        #[allow(unsafe_code)]
        let layout = unsafe {
            let layout = Layout::for_value(self.place.as_ref());
            self.place.drop_in_place();
            layout
        };
        let raw = self.place.cast::<u8>();
        if !put_back(layout, raw) {
            // SAFETY: allocated in `new` with this layout, and not on its shelf.
            #[allow(unsafe_code)]
            unsafe {
                dealloc(raw.as_ptr(), layout);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_place_is_used_again_and_what_was_in_it_is_dropped() {
        let held = Rc::new(());
        let make = |held: Rc<()>| async move {
            std::future::pending::<()>().await;
            drop(held);
        };
        let first = Pooled::new(|| make(held.clone()));
        let place = first.place;
        assert_eq!(Rc::strong_count(&held), 2);
        drop(first);
        assert_eq!(Rc::strong_count(&held), 1);
        let second = Pooled::new(|| make(held.clone()));
        assert_eq!(second.place, place);
    }

    #[test]
    fn a_pooled_future_gives_its_result() {
        let n = 21;
        assert_eq!(crate::task::block_on(Pooled::new(|| async move { n * 2 })), 42);
    }

    #[test]
    fn an_erased_future_gives_its_place_back_and_its_result() {
        let make = |n: u64| async move { [n, n * 2] };
        let first = Pooled::new(|| make(1));
        let place = first.place;
        assert_eq!(crate::task::block_on(first.erased()), [1, 2]);
        assert_eq!(Pooled::new(|| make(2)).place, place);
    }

    #[test]
    fn a_few_places_are_left_when_a_crowd_has_gone() {
        let crowd: Vec<_> =
            (0..2 * KEPT).map(|n| Pooled::new(move || async move { [n; 9] })).collect();
        drop(crowd);
        (0..2 * KEPT).for_each(|_| recycle(Vec::with_capacity(BUFFER_BYTES)));
        let places = |shelves: &Vec<Shelf>| shelves.iter().map(|shelf| shelf.places.len()).sum();
        let kept = || (BUFFERS.with_borrow(Vec::len), SHELVES.with_borrow(places));
        assert_eq!(kept(), (KEPT, KEPT));
        shrink();
        assert_eq!(kept(), (KEPT_QUIET, KEPT_QUIET));
        shrink();
        assert_eq!(kept(), (KEPT_QUIET, KEPT_QUIET));
    }

    #[test]
    fn odd_buffers_are_not_kept() {
        recycle(Vec::with_capacity(1 << 20));
        assert!(buffer().capacity() <= 2 * BUFFER_BYTES);
    }
}
