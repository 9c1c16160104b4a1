//! A slice by its place: where in the connection's buffer something was found.
//!
//! *Invariant:* a `Span` carries no lifetime and no bytes, so a parsed head can be kept and moved
//! beside the buffer that it describes.

/// A half-open range of offsets into the connection's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// A span over `start..end`. Offsets beyond 4 GiB never occur: the parsers refuse heads of
    /// that size before (`Reject::RequestTooLarge`).
    pub fn new(start: usize, end: usize) -> Span {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Span { start: start as u32, end: end as u32 }
    }

    /// The bytes; empty if `buf` is not the buffer that was parsed and is too short.
    #[inline]
    pub fn of(self, buf: &[u8]) -> &[u8] {
        buf.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether it covers no byte.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_of_another_buffer_is_empty() {
        assert_eq!(Span::new(2, 4).of(b"abcdef"), b"cd");
        assert_eq!(Span::new(2, 9).of(b"abcdef"), b"");
    }
}
