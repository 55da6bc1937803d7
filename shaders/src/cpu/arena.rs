//! Memory for weights: matrices lie side by side in regions of many large pages. A model has
//! hundreds of matrices that are smaller than one large page.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cubecl::bytes::{AllocationController, AllocationProperty, Bytes};

use super::{huge_pages, poison};

/// Bytes of a region, which several matrices share. Pages that are never touched take no memory.
const REGION: usize = 64 << 20;
/// Alignment of the bytes of a tensor. Vectors and rows of matrix tiles that cross a cache line
/// take at least twice as long to load.
const LINE: usize = 64;

/// Memory that is freed together with the last of its pieces.
struct Region {
    /// The start of a boxed slice of `length` bytes, which is put together again to free it.
    at: *mut u8,
    length: usize,
}

// SAFETY: the bytes are accessed through pieces only, and pieces do not overlap.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; a shared `Region` gives access to no bytes.
unsafe impl Sync for Region {}

impl Region {
    fn new(length: usize, advise: impl FnOnce(&mut [u8])) -> Arc<Self> {
        // Zeroed pages take no memory until they are touched.
        let mut bytes = vec![0u8; length].into_boxed_slice();
        advise(&mut bytes);
        let at = Box::into_raw(bytes).cast();
        poison::forbid(at, length);
        Arc::new(Self { at, length })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        poison::allow(self.at, self.length);
        let bytes = std::ptr::slice_from_raw_parts_mut(self.at, self.length);
        // SAFETY: the pointer and the length come from `Box::into_raw` in `new`, and no piece is
        // left that could access the bytes, because every piece holds an `Arc` of the region.
        drop(unsafe { Box::from_raw(bytes) });
    }
}

/// The region that the next piece is cut from, and the number of its bytes in use.
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
        // The rest of the previous region stays unused; it was never touched, so it takes no
        // memory.
        let next = from + length.next_multiple_of(LINE);
        *current = (Arc::downgrade(&region), next);
        LineBytes::new(region, from, length)
    }
}

/// Bytes that begin at a cache line. They are zero at first.
pub struct LineBytes {
    region: Arc<Region>,
    from: usize,
    length: usize,
}

impl LineBytes {
    fn new(region: Arc<Region>, from: usize, length: usize) -> Self {
        poison::allow(region.at.wrapping_add(from), length);
        Self {
            region,
            from,
            length,
        }
    }

    /// Memory for weights, which are read all at once and again and again: in large pages, shared
    /// with neighbouring matrices.
    ///
    /// `length` is in bytes.
    pub fn for_weights(length: usize) -> Self {
        ARENA.piece(length)
    }

    /// Memory that may never be touched, for example a KV pool.
    pub fn zeroed(length: usize) -> Self {
        let region = Region::new(length + LINE, |_| {});
        let from = region.at.align_offset(LINE);
        Self::new(region, from, length)
    }

    /// Turns this into the memory of a tensor, without a copy.
    pub fn into_bytes(self) -> Bytes {
        let length = self.length;
        // SAFETY: all `length` bytes are initialised, with zeros at first, and `memory` and
        // `memory_mut` return these bytes.
        unsafe { Bytes::from_controller(Box::new(self), length) }
    }
}

impl Deref for LineBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `from + length` lies within the region, no other piece has these bytes, and they
        // are initialised.
        unsafe { std::slice::from_raw_parts(self.region.at.add(self.from), self.length) }
    }
}

impl DerefMut for LineBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` rules out other references to the piece.
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
        // SAFETY: `u8` and `MaybeUninit<u8>` have the same layout, and the contract of `memory_mut`
        // obliges the caller to write initialised bytes only.
        unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        let bytes: &[u8] = self;
        // SAFETY: `u8` and `MaybeUninit<u8>` have the same layout, and every initialised byte is a
        // valid `MaybeUninit<u8>`.
        unsafe { &*(std::ptr::from_ref(bytes) as *const [MaybeUninit<u8>]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zeroed_aligned_and_do_not_overlap() {
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
    fn a_region_is_freed_with_its_last_piece() {
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
