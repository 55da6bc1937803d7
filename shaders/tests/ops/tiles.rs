//! Checks attention of chunks of many tokens, which devices with cooperative matrices compute in
//! tiles.

use burn::tensor::DType;
use hearth_shaders::check::{CASES_PER_SHAPE, Case, PoolKind, Random};
use hearth_shaders::{HeadLayout, Kernels, Summation};

use super::{assert_right, cases, fresh_random, half_precisions, precision};

/// Heads whose width is divisible by cooperative matrices of 16 x 16 x 16, in groups of any size.
fn layout(shape: &mut Random) -> HeadLayout {
    let kv_heads = shape.within(1, 3);
    HeadLayout {
        heads: kv_heads * [1, 2, 3, 4, 7, 9, 33][shape.below(7)],
        kv_heads,
        head_dim: [16, 32, 48, 64, 80, 96, 128, 256][shape.below(8)],
    }
}

/// A long chunk beside decode rows and chunks that are too short for tiles.
fn batch(layout: HeadLayout, random: &mut Random) -> Case {
    let longest = [70, 300, 1200][random.below(3)];
    let sequence = |random: &mut Random| {
        let context = random.within(1, longest);
        let new = [1, 6, 40, 200][random.below(4)].min(context);
        (context, random.within(1, new))
    };
    let mut sequences: Vec<(usize, usize)> =
        (0..random.within(0, 3)).map(|_| sequence(random)).collect();
    let chunk = random.within(32, 150);
    let at = random.below(sequences.len() + 1);
    sequences.insert(at, (chunk + random.below(longest), chunk));
    Case::Attention {
        sequences,
        layout,
        window: random.one_in(3).then(|| random.within(1, longest) as u32),
        capped: layout.head_dim % 3 == 1,
        sinks: layout.heads % 2 == 1,
        summation: Summation::Fastest,
        pool: PoolKind::Floats,
    }
}

/// True if the device computes chunks in tiles. Fails if `HEARTH_EXPECT_TILES` says that it must.
fn has_tiles<B: Kernels>(device: &B::Device, backend: &str, dtype: DType) -> bool {
    let layout = HeadLayout {
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
    };
    let tiles = B::attention_tiles(layout, dtype, device);
    match &tiles {
        Some(tiles) => eprintln!("{backend}, {dtype:?}: {tiles}"),
        None => eprintln!("{backend}, {dtype:?}: no cooperative matrices"),
    }
    assert!(B::attention_tiles(layout, DType::F32, device).is_none());
    let expected = std::env::var("HEARTH_EXPECT_TILES").unwrap_or_default();
    let mut expected = expected.split(',').filter_map(|pair| pair.split_once(':'));
    let dtype = format!("{dtype:?}").to_lowercase();
    if expected.any(|pair| pair == (backend, &dtype)) {
        assert!(tiles.is_some(), "{backend} is to have matrices of {dtype}");
    }
    tiles.is_some()
}

pub fn chunks_of_many_tokens_are_right_in_half_precision<B: Kernels>(
    device: &B::Device,
    backend: &str,
) {
    for dtype in half_precisions(backend) {
        let cases = match has_tiles::<B>(device, backend, *dtype) {
            true => cases(),
            // Without tiles, the kernel is the one that the other tests have checked.
            false => 2,
        };
        let (mut random, seed) = fresh_random();
        eprintln!("{dtype:?}: seed {seed}");
        let mut heads = layout(&mut random);
        for case in 0..cases {
            if case.is_multiple_of(CASES_PER_SHAPE.min(cases.div_ceil(3))) {
                heads = layout(&mut random);
            }
            let case = batch(heads, &mut random);
            let precision = precision(backend, *dtype);
            assert_right::<B>(device, backend, &case, precision, &mut random);
        }
    }
}
