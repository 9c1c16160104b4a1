//! A response that goes out often, head and body as one file in memory: the kernel sends it with one system
//! call, from pages that it has.
//!
//! Invariant: what was handed out is never written again: pages of it may still be on their way to a client.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::{Rc, Weak},
};

use super::open;

/// After so many times in a row with the same head it is worth the making, which takes ten to twenty times
/// what is saved by one use. The head changes every second, with the date.
const OFTEN: u32 = 16;

/// The largest body: of larger ones the second call is a small part.
const MAX_BYTES: usize = 32 << 10;

/// How many a thread keeps, each with a descriptor and pages of its own; those made last.
const MAX_KEPT: usize = 64;

/// How many it has at the most, with those that are still on their way to clients.
const MAX_WHOLE: usize = 128;

thread_local! {
    static KEPT: RefCell<VecDeque<Rc<Whole>>> = const { RefCell::new(VecDeque::new()) };
    static WHOLE: Cell<usize> = const { Cell::new(0) };
}

/// What one file was last sent with.
#[derive(Default)]
pub(super) struct Ready(RefCell<Last>);

#[derive(Default)]
struct Last {
    head: Vec<u8>,
    /// How often in a row.
    times: u32,
    whole: Weak<Whole>,
}

/// A head and the body behind it, as a file.
pub struct Whole(OwnedFd);

impl AsFd for Whole {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Whole {
    fn of(head: &[u8], body: &[u8]) -> Option<Rc<Whole>> {
        if body.len() > MAX_BYTES || WHOLE.get() >= MAX_WHOLE {
            return None;
        }
        let whole = Rc::new(Whole(open::in_memory(&[head, body])?));
        WHOLE.set(WHOLE.get() + 1);
        KEPT.with_borrow_mut(|kept| {
            if kept.len() == MAX_KEPT {
                kept.pop_front();
            }
            kept.push_back(whole.clone());
        });
        Some(whole)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        WHOLE.set(WHOLE.get() - 1);
    }
}

impl Ready {
    /// The response, if it goes out often.
    pub fn of(&self, head: &[u8], body: &[u8]) -> Option<Rc<Whole>> {
        let mut last = self.0.borrow_mut();
        if last.head != head {
            last.head.clear();
            last.head.extend_from_slice(head);
            (last.times, last.whole) = (1, Weak::new());
            return None;
        }
        last.times = last.times.saturating_add(1);
        if last.times == OFTEN {
            let whole = Whole::of(head, body)?;
            last.whole = Rc::downgrade(&whole);
            return Some(whole);
        }
        last.whole.upgrade()
    }
}

/// A file that is kept anew was not sent yet.
impl Clone for Ready {
    fn clone(&self) -> Ready {
        Ready::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Read, os::unix::fs::FileExt};

    fn contents(whole: &Whole) -> Vec<u8> {
        let file = File::from(whole.0.try_clone().unwrap());
        let mut all = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut all, 0).unwrap();
        assert_eq!((&file).read(&mut [0]).unwrap(), 0, "nobody reads on from where it was written");
        all
    }

    /// What comes of sending a file with a head so many times.
    fn sent(ready: &Ready, head: &[u8], body: &[u8], times: u32) -> Option<Rc<Whole>> {
        (0..times).map(|_| ready.of(head, body)).last().flatten()
    }

    #[test]
    fn what_goes_out_often_is_put_together_until_the_head_changes() {
        let (ready, body) = (Ready::default(), vec![b'x'; 10_000]);
        assert!(sent(&ready, b"one", &body, OFTEN - 1).is_none());
        let first = sent(&ready, b"one", &body, 1).unwrap();
        assert!(contents(&first) == [b"one", &body[..]].concat());
        assert!(Rc::ptr_eq(&first, &sent(&ready, b"one", &body, 100).unwrap()), "made once");
        assert!(sent(&ready, b"two", &body, OFTEN - 1).is_none());
        let second = sent(&ready, b"two", &body, 1).unwrap();
        assert!(contents(&second) == [b"two", &body[..]].concat());
        assert!(contents(&first).starts_with(b"one"), "it may be on its way");
        assert!(sent(&ready, b"one", &body, 1).is_none());
    }

    #[test]
    fn none_is_large_few_are_kept_and_not_many_are_on_their_way() {
        let one = |size: usize| {
            let (ready, body) = (Ready::default(), vec![b'x'; size]);
            let whole = sent(&ready, b"head", &body, OFTEN);
            (ready, whole)
        };
        assert!(one(MAX_BYTES).1.is_some() && one(MAX_BYTES + 1).1.is_none());
        let files: Vec<Ready> = (0..MAX_KEPT + 10).map(|_| one(5000).0).collect();
        let has = |ready: &Ready| ready.of(b"head", &[b'x'; 5000]).is_some();
        assert!(!files[..10].iter().any(has) && files[10..].iter().all(has), "those made last");
        assert_eq!(WHOLE.get(), MAX_KEPT);
        let sending: Vec<_> = (0..2 * MAX_WHOLE).filter_map(|_| one(5000).1).collect();
        assert!(sending.len() <= MAX_WHOLE && WHOLE.get() == MAX_WHOLE, "{}", sending.len());
        drop(sending);
        assert_eq!(WHOLE.get(), MAX_KEPT);
        assert!(one(5000).1.is_some());
    }
}
