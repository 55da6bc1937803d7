//! Memory for weights, side by side in regions of many large pages: a model has hundreds of
//! matrices that are smaller than one such page.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cubecl::bytes::{AllocationController, AllocationProperty, Bytes};

use super::huge_pages;

/// Bytes of a region, which several matrices share. What is never touched of them takes no memory.
const REGION: usize = 64 << 20;
/// Where the bytes of a tensor begin: vectors and rows of matrix tiles that lie across two cache
/// lines take twice the time to load, or worse.
const LINE: usize = 64;

/// Memory that goes with the last of its pieces.
struct Region {
    /// Of a vector of bytes, which is put together again when it goes.
    at: *mut u8,
    length: usize,
}

// SAFETY: the bytes are reached through pieces only, each of which has its own.
unsafe impl Send for Region {}
unsafe impl Sync for Region {}

impl Region {
    fn new(length: usize, advise: impl FnOnce(&mut [u8])) -> Arc<Self> {
        // Zeroed pages cost nothing until they are touched.
        let mut bytes = vec![0u8; length].into_boxed_slice();
        advise(&mut bytes);
        let at = Box::into_raw(bytes).cast();
        Arc::new(Self { at, length })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.at, self.length);
        // SAFETY: it came from a box of as many bytes, and nobody has a piece any more.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

/// The region that the next piece is cut from, and how much of it is taken.
struct Arena(Mutex<(Weak<Region>, usize)>);

static ARENA: Arena = Arena::new();

impl Arena {
    const fn new() -> Self {
        Self(Mutex::new((Weak::new(), 0)))
    }

    fn piece(&self, length: usize) -> LineBytes {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let old = current.0.upgrade();
        let fits = old.filter(|region| current.1 + length <= region.length);
        let (region, from) = fits.map_or_else(
            || {
                let room = REGION.max(length) + huge_pages::SIZE;
                let region = Region::new(room, huge_pages::advise);
                let from = region.at.align_offset(huge_pages::SIZE);
                (region, from)
            },
            |region| (region, current.1),
        );
        // What is left of another region stays unused: nothing has touched it.
        let next = from + length.next_multiple_of(LINE);
        *current = (Arc::downgrade(&region), next);
        LineBytes {
            region,
            from,
            length,
        }
    }
}

/// Bytes from the beginning of a cache line on, all zero when they are new.
pub struct LineBytes {
    region: Arc<Region>,
    from: usize,
    length: usize,
}

impl LineBytes {
    /// For weights, which are read all at once, over and over: in large pages, that they share with
    /// their neighbours.
    pub fn for_weights(length: usize) -> Self {
        ARENA.piece(length)
    }

    /// For what may never be touched.
    pub fn zeroed(length: usize) -> Self {
        let region = Region::new(length + LINE, |_| {});
        let from = region.at.align_offset(LINE);
        Self {
            region,
            from,
            length,
        }
    }

    /// The same memory as that of a tensor.
    pub fn into_bytes(self) -> Bytes {
        let length = self.length;
        // SAFETY: all of it has been set, to zero at first.
        unsafe { Bytes::from_controller(Box::new(self), length) }
    }
}

impl Deref for LineBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are within the region, and nobody else's.
        unsafe { std::slice::from_raw_parts(self.region.at.add(self.from), self.length) }
    }
}

impl DerefMut for LineBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.region.at.add(self.from), self.length) }
    }
}

impl AllocationController for LineBytes {
    fn alloc_align(&self) -> usize {
        LINE
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes: &mut [u8] = self;
        // SAFETY: the caller writes initialised bytes only.
        unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        let bytes: &[u8] = self;
        // SAFETY: initialised bytes are bytes that may be so.
        unsafe { &*(std::ptr::from_ref(bytes) as *const [MaybeUninit<u8>]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zero_whole_lines_and_nobody_elses() {
        let lengths = [
            1,
            63,
            64,
            65,
            1000,
            3 << 20,
            REGION - 70,
            REGION,
            REGION + 5,
            7,
        ];
        let mut pieces: Vec<LineBytes> = lengths
            .into_iter()
            .flat_map(|length| [LineBytes::for_weights(length), LineBytes::zeroed(length)])
            .collect();
        for (number, piece) in (1..).zip(&mut pieces) {
            assert_eq!(piece.as_ptr().align_offset(LINE), 0);
            assert!(piece.iter().all(|byte| *byte == 0), "piece {number}");
            piece.fill(number);
        }
        let lengths = lengths.into_iter().flat_map(|length| [length; 2]);
        for ((number, piece), length) in (1..).zip(pieces).zip(lengths) {
            let bytes = piece.into_bytes();
            assert_eq!(bytes.len(), length);
            assert!(bytes.iter().all(|byte| *byte == number), "piece {number}");
        }
    }

    #[test]
    fn a_region_goes_with_its_last_piece() {
        let arena = Arena::new();
        let first = arena.piece(100);
        let region = Arc::downgrade(&first.region);
        let bytes = arena.piece(200).into_bytes();
        drop(first);
        assert!(region.upgrade().is_some());
        drop(bytes);
        assert!(region.upgrade().is_none());
        assert!(arena.piece(1).iter().all(|byte| *byte == 0));
    }
}
