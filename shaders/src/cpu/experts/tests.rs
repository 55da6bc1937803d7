//! Tests that experts compute what single products would.

use std::borrow::Cow;

use burn::tensor::{DType, TensorData};
use burn_flex::{Flex, FlexTensor};

use super::*;
use crate::check::Random;
use crate::{BlockFormat, BlockMatrix, ChosenExperts, Experts, Kernels, Summation};

const HIDDEN: usize = 256;
const WIDTH: usize = 256;
const COUNT: usize = 5;
const TOP: usize = 3;

#[test]
fn ties_and_nan_go_to_lower_ids_and_pairs_are_in_the_order_of_experts() {
    let nan = f32::NAN;
    let logits = [1.0, 3.0, 3.0, 0.0, nan, 2.0, 2.0, nan, nan, nan, nan, nan];
    let routing = Routing {
        top: 2,
        weights: ExpertWeights::OfChosen,
    };
    let (ids, weights) = choose(&logits, 4, routing);
    assert_eq!(ids, [1, 2, 1, 2, 0, 1]);
    assert_eq!(weights, [0.5; 6]);
    let routing = Routing {
        top: 2,
        weights: ExpertWeights::OfAll,
    };
    let of_all = choose(&[nan, 0.0, f32::INFINITY, f32::NEG_INFINITY], 4, routing);
    assert_eq!(of_all, (vec![2, 1], vec![1.0, 0.0]));
    let pairs = Pairs::of(&ids, 2, 4);
    assert_eq!(pairs.groups, [(0, 0..1), (1, 1..4), (2, 4..6)]);
    assert_eq!(pairs.rows, [2, 0, 1, 2, 0, 1]);
    assert_eq!(pairs.places, [1, 4, 2, 5, 0, 3]);
    let gathered = pairs.gather(&[10.0, 11.0, 12.0], 1);
    assert_eq!(gathered, [12.0, 10.0, 11.0, 12.0, 10.0, 11.0]);
    let mixed = pairs.mix(&gathered, &[1.0, 2.0, 0.5, 0.25, 1.0, 0.0], 1);
    assert_eq!(mixed, [30.0, 8.25, 12.0]);
}

fn on(values: Vec<f32>, shape: [usize; 2], dtype: DType) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape).convert_dtype(dtype))
}

fn values(tensor: FlexTensor) -> Vec<f32> {
    tensor.into_data().into_vec().unwrap()
}

/// Matrices of all experts one below another, and each of the same matrices alone.
type Made = (FlexTensor, Vec<FlexTensor>);

/// Random rows in blocks: the bytes of a block may be any, except that scales have to be finite.
fn packed(format: BlockFormat, rows: usize, columns: usize, random: &mut Random) -> Made {
    let blocks: Vec<Vec<u8>> = (0..COUNT * rows)
        .map(|_| {
            let length = columns.div_ceil(format.elements()) * format.bytes();
            // Each pair of bytes is a small f16.
            let mut bytes: Vec<u8> = (0..length)
                .map(|at| random.bits() as u8 & if at % 2 == 0 { 0xff } else { 0x2f })
                .collect();
            if format == BlockFormat::MXFP4 {
                let scales = bytes.iter_mut().step_by(format.bytes());
                scales.for_each(|scale| *scale = 115 + *scale % 8);
            }
            bytes
        })
        .collect();
    matrices(format, &blocks, rows, columns)
}

/// Random rows of packed bf16.
fn packed_bf16(rows: usize, columns: usize, random: &mut Random) -> Made {
    let row = |_| {
        let values = random.normal(columns).into_iter();
        let bytes = values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes());
        bytes.collect()
    };
    let all: Vec<Vec<u8>> = (0..COUNT * rows).map(row).collect();
    matrices(BlockFormat::Bf16, &all, rows, columns)
}

/// The matrices with these rows, `rows` to an expert.
fn matrices(format: BlockFormat, blocks: &[Vec<u8>], rows: usize, columns: usize) -> Made {
    let matrix = |from: usize, rows: usize| {
        let mut matrix = BlockMatrix::zeros(&[(format, rows)], columns);
        let set = matrix.set_rows(0..rows, |row| Some(Cow::Borrowed(&*blocks[from + row])));
        assert_eq!(set, Ok(()));
        Flex::packed(matrix, DType::F32, &Default::default())
    };
    let each = (0..COUNT).map(|expert| matrix(expert * rows, rows));
    (matrix(0, COUNT * rows), each.collect())
}

fn floats(dtype: DType, rows: usize, columns: usize, random: &mut Random) -> Made {
    let all = random.normal(COUNT * rows * columns);
    let each = all.chunks_exact(rows * columns);
    let each = each.map(|expert| on(expert.to_vec(), [rows, columns], dtype));
    let each = each.collect();
    (on(all, [COUNT * rows, columns], dtype), each)
}

/// Checks that experts have the bits of single products, with many and with few rows of an expert.
fn check(make: impl Fn(usize, usize, &mut Random) -> Made) {
    let mut random = Random::seeded(11);
    let (gate_up, gate_ups) = make(2 * WIDTH, HIDDEN, &mut random);
    let (down, downs) = make(HIDDEN, WIDTH, &mut random);
    let gate_up_bias = random.normal(COUNT * 2 * WIDTH);
    let down_bias = random.normal(COUNT * HIDDEN);
    let bias =
        |values: &[f32]| FlexTensor::from_data(TensorData::new(values.to_vec(), [values.len()]));
    let stack = Experts::<Flex> {
        gate_up,
        gate_up_bias: Some(bias(&gate_up_bias)),
        down,
        down_bias: Some(bias(&down_bias)),
        hidden: HIDDEN,
        width: WIDTH,
        activation: ExpertActivation::Silu,
    };
    for rows in [1, 4, 90] {
        let x = random.normal(rows * HIDDEN);
        let weights = random.normal(rows * TOP);
        let ids: Vec<i32> = (0..rows)
            .flat_map(|_| random.distinct(TOP, COUNT))
            .map(|id| id as i32)
            .collect();
        let chosen = ChosenExperts {
            ids: FlexTensor::from_data(TensorData::new(ids.clone(), [rows, TOP])),
            weights: on(weights.clone(), [rows, TOP], DType::F32),
        };
        let mixed = Flex::mix_experts(on(x.clone(), [rows, HIDDEN], DType::F32), &chosen, &stack);
        for (row, mixed) in values(mixed).chunks_exact(HIDDEN).enumerate() {
            let x = on(
                x[row * HIDDEN..][..HIDDEN].to_vec(),
                [1, HIDDEN],
                DType::F32,
            );
            let mut want = vec![0.0; HIDDEN];
            for rank in row * TOP..(row + 1) * TOP {
                let id = ids[rank] as usize;
                let gated = Flex::project_gated(
                    x.clone(),
                    gate_ups[id].clone(),
                    Some(bias(&gate_up_bias[id * 2 * WIDTH..][..2 * WIDTH])),
                    Activation::Silu,
                    Summation::Fastest,
                );
                let bias = Some(bias(&down_bias[id * HIDDEN..][..HIDDEN]));
                let y = Flex::project(gated, downs[id].clone(), bias, Summation::Fastest);
                let pairs = want.iter_mut().zip(values(y));
                pairs.for_each(|(want, y)| *want += weights[rank] * y);
            }
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(want.iter().all(|want| want.is_finite()));
            assert_eq!(bits(mixed), bits(&want), "row {row} of {rows}");
        }
    }
}

#[test]
fn experts_of_floats_have_the_bits_of_single_products() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        check(|rows, columns, random| floats(dtype, rows, columns, random));
    }
}

#[test]
fn experts_of_packed_bf16_have_the_bits_of_single_products() {
    if Flex::packs(&[BlockFormat::Bf16]) {
        check(packed_bf16);
    }
}

#[test]
fn experts_in_blocks_have_the_bits_of_single_products() {
    for format in BlockFormat::integers() {
        check(|rows, columns, random| packed(format, rows, columns, random));
    }
}
