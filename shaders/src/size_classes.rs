//! The sizes at which a GPU switches to another compiled kernel.
//!
//! A GPU compiles a kernel when it first runs, which takes from milliseconds to seconds. The
//! functions and constants here name at least one size of every class of sizes that share their
//! compiled kernels. A server that runs a forward pass of each of these sizes before its first
//! request has compiled all kernels that serving will use. On the CPU nothing is compiled and the
//! classes do not matter.
//!
//! Kernels of this crate depend on the number of rows of a matrix multiplication, and attention
//! on the length of the context and of the chunk. Burn's own kernels, which gather and concatenate
//! rows, depend on the powers of two that divide the number of rows.

use crate::TILE_ROWS;
use crate::cube::MAX_FEW_TOKENS;

/// Matrix multiplications of `1..=FEW_TOKENS` rows have a kernel for each number of rows.
pub const FEW_TOKENS: usize = MAX_FEW_TOKENS;

/// Numbers of rows above [`FEW_TOKENS`] that together use every kernel of matrix multiplications.
/// The kernels change where tiles have 16, 32 and 64 rows, above 32 rows for packed matrices, and
/// within a class where the number of rows is odd (31).
pub const MANY_TOKENS: [usize; 5] = [FEW_TOKENS + 1, 16, 31, 32, 64];

/// A context, in positions, that is long enough for attention to be split over the device.
pub const LONG_CONTEXT: usize = 2048;

/// Tokens of a chunk that fill a tile of attention, which devices with cooperative matrices compute
/// with a kernel of their own, whatever the heads of the model.
pub const TILED_TOKENS: usize = TILE_ROWS;

/// Slots that are copied between the device and the host together, above which no kernel changes.
const MOST_COPIED_SLOTS: usize = 64;

/// Numbers of sequences to decode together, ascending and up to `most`: every small number, and
/// then each power of two and the two numbers after it. Burn's kernel that gathers rows reads 4, 2
/// or 1 of them at once, whichever divides their number, and uses more units from each power of two
/// on.
pub fn decode_rows(most: usize) -> impl Iterator<Item = usize> {
    let many = powers_of_two(2 * FEW_TOKENS).flat_map(|power| [power, power + 1, power + 2]);
    let rows = (1..=FEW_TOKENS + 2).chain(many);
    rows.take_while(move |rows| *rows <= most)
}

/// Numbers of tokens of one prompt's chunk, ascending, all above [`FEW_TOKENS`] except that `most`
/// itself always comes last.
pub fn chunk_tokens(most: usize) -> impl Iterator<Item = usize> {
    let between = powers_of_two(FEW_TOKENS).flat_map(|power| [power, power + power / 2 + 1]);
    let between = between.filter(|tokens| *tokens > FEW_TOKENS);
    between
        .take_while(move |tokens| *tokens < most)
        .chain([most])
}

/// Numbers of slots to copy between the device and the host, ascending and up to `most`.
pub fn copied_slots(most: usize) -> impl Iterator<Item = usize> {
    powers_of_two(1).take_while(move |slots| *slots <= most.min(MOST_COPIED_SLOTS))
}

/// `first`, a power of two, and all powers of two above it.
fn powers_of_two(first: usize) -> impl Iterator<Item = usize> {
    (first.ilog2()..usize::BITS).map(|power| 1 << power)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::HeadLayout;
    use crate::cube::{MAX_GROUPED_TOKENS, TILE_TOKENS};

    #[test]
    fn every_kernel_of_matrix_multiplications_has_a_number_of_rows() {
        // The kernels for packed matrices and for tens of tokens, by the largest number of rows.
        let class = |rows: usize| {
            let tile = TILE_TOKENS.iter().filter(|most| rows > **most).count();
            (rows > MAX_GROUPED_TOKENS, tile)
        };
        let named: BTreeSet<_> = MANY_TOKENS.into_iter().map(class).collect();
        let all: BTreeSet<_> = (FEW_TOKENS + 1..=64).map(class).collect();
        assert_eq!(named, all);
        // Multiplications of more rows take further tiles of 64.
        assert_eq!(TILE_TOKENS.last(), Some(&64));
    }

    #[test]
    fn a_tiled_chunk_is_worth_tiles_for_any_heads() {
        for (heads, kv_heads) in [(16, 16), (32, 8), (28, 4), (71, 1)] {
            let layout = HeadLayout {
                heads,
                kv_heads,
                head_dim: 64,
            };
            assert!(layout.fills_tiles(TILED_TOKENS));
            assert!(!layout.fills_tiles(1));
        }
    }

    #[test]
    fn rows_that_decode_together_have_every_divisor_beyond_each_power_of_two() {
        let rows: Vec<usize> = decode_rows(40).filter(|rows| *rows > FEW_TOKENS).collect();
        assert_eq!(rows, [9, 10, 16, 17, 18, 32, 33, 34]);
        assert_eq!(decode_rows(3).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(decode_rows(0).count(), 0);
    }

    #[test]
    fn chunks_grow_by_half_up_to_the_largest() {
        let chunks = |most| chunk_tokens(most).collect::<Vec<_>>();
        assert_eq!(chunks(100), [13, 16, 25, 32, 49, 64, 97, 100]);
        assert_eq!(chunks(16), [13, 16]);
        assert_eq!(chunks(5), [5]);
    }

    #[test]
    fn copies_double_up_to_the_largest() {
        assert_eq!(copied_slots(5).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(copied_slots(1000).last(), Some(64));
        assert_eq!(copied_slots(0).count(), 0);
    }
}
