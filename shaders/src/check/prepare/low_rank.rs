//! Cases of the changes by adapters.

use burn::tensor::DType;

use super::{Expected, Maker, Output, Prepared, Random, Work, exact, float, reference};
use crate::check::Precision;
use crate::{AdapterIndex, Kernels, LowRankStack, indices};

/// Adapters of a case.
const SLOTS: usize = 3;

/// Random changes, with the values that are on the device.
pub struct RandomStack<B: Kernels> {
    pub stack: LowRankStack<B>,
    a: Vec<f32>,
    b: Vec<f32>,
    bias: Vec<f32>,
    scale: Vec<f32>,
}

impl<B: Kernels> RandomStack<B> {
    /// Some slices are not changed, and beyond the rank of a slice there is NaN.
    pub fn make(
        input: usize,
        slices: Vec<usize>,
        rank: usize,
        precision: Precision,
        random: &mut Random,
        device: &B::Device,
    ) -> Self {
        let (count, output) = (slices.len(), slices.iter().sum::<usize>());
        let ranks: Vec<u32> = (0..SLOTS * count)
            .map(|_| random.within(0, rank) as u32)
            .collect();
        let stored = precision.stored;
        let mut a = random.normal_as(stored, SLOTS * count * rank * input);
        for (row, values) in a.chunks_exact_mut(input).enumerate() {
            if row % rank >= ranks[row / rank] as usize {
                values.fill(f32::NAN);
            }
        }
        let b = random.normal_as(stored, SLOTS * rank * output);
        let biased: Vec<bool> = (0..SLOTS).map(|_| random.one_in(2)).collect();
        let mut bias = random.normal_as(stored, SLOTS * output);
        for (values, biased) in bias.chunks_exact_mut(output).zip(&biased) {
            if !biased {
                values.fill(0.0);
            }
        }
        let scaled: Vec<bool> = (0..SLOTS).map(|_| random.one_in(2)).collect();
        let mut scale = vec![1.0; SLOTS * output];
        for (values, scaled) in scale.chunks_exact_mut(output).zip(&scaled) {
            if *scaled {
                values.copy_from_slice(&random.normal(output));
            }
        }
        let on = |values: &[f32], rows: usize, columns: usize| {
            float::<B>(values, &[rows, columns], stored, device)
        };
        let of_slots = b.chunks_exact(rank * output);
        let packed: Vec<f32> = of_slots
            .flat_map(|b| B::packed_low_rank(b.to_vec(), output))
            .collect();
        let stack = LowRankStack {
            a: on(&a, SLOTS * count * rank, input),
            b: on(&packed, SLOTS * rank, output),
            bias: on(&bias, SLOTS, output),
            scale: float::<B>(&scale, &[SLOTS, output], DType::F32, device),
            ranks: indices::<B>(&ranks, device),
            host_ranks: ranks,
            biased,
            scaled,
            slices,
            rank,
        };
        Self {
            stack,
            a,
            b,
            bias,
            scale,
        }
    }

    /// The expected `y` for rows with these `slots`, counted from 1.
    fn changed(&self, x: &[f32], y: &[f32], slots: &[u32], input: usize) -> Vec<f64> {
        let LowRankStack {
            slices,
            rank,
            host_ranks,
            ..
        } = &self.stack;
        let (count, output) = (slices.len(), slices.iter().sum::<usize>());
        let mut all = exact(y);
        let rows = all.chunks_exact_mut(output).zip(x.chunks_exact(input));
        for ((y, x), slot) in rows.zip(slots) {
            let Some(slot) = slot.checked_sub(1) else {
                continue;
            };
            let slot = slot as usize;
            let mut from = 0;
            for (slice, width) in slices.iter().enumerate() {
                let here = host_ranks[slot * count + slice] as usize;
                let a = &self.a[(slot * count + slice) * rank * input..][..here * input];
                let h = reference::linear(x, a, None, input);
                if here > 0 {
                    for (column, y) in y.iter_mut().enumerate().skip(from).take(*width) {
                        *y *= f64::from(self.scale[slot * output + column]);
                        *y += f64::from(self.bias[slot * output + column]);
                        for (j, h) in h.iter().enumerate() {
                            let b = self.b[(slot * rank + j) * output + column];
                            *y += h * f64::from(b);
                        }
                    }
                }
                from += width;
            }
        }
        all
    }
}

/// The slot of each of `rows` rows, counted from 1; 0 for the base model. At least one has one.
pub fn random_slots(rows: usize, random: &mut Random) -> Vec<u32> {
    let mut slots: Vec<u32> = (0..rows).map(|_| random.below(SLOTS + 1) as u32).collect();
    slots[0] = slots[0].max(1);
    slots
}

pub(super) fn low_rank<B: Kernels>(
    mut make: Maker<B>,
    [tokens, input, rank]: [usize; 3],
    slices: Vec<usize>,
) -> Prepared<B> {
    let output: usize = slices.iter().sum();
    let (x, x_on) = make.activations(&[tokens, input]);
    let (precision, device) = (make.precision, make.device.clone());
    let y = make
        .random
        .normal_as(precision.activations, tokens * output);
    let count = slices.len();
    let changes = RandomStack::<B>::make(input, slices, rank, precision, make.random, &device);
    let slots = random_slots(tokens, make.random);
    let index = AdapterIndex::<B>::upload(&slots, &device).expect("a row has an adapter");
    let (stored, activation) = precision.sizes();
    let (stack, before) = (changes.stack.clone(), y.clone());
    Prepared {
        launch: Box::new(move || {
            // It is changed in place.
            let y = float::<B>(&before, &[tokens, output], precision.activations, &device);
            let h = B::shrink(x_on.clone(), &stack, &index);
            vec![Output::Float(B::expand(y, h, &stack, &index))]
        }),
        want: Box::new(move || {
            let changed = changes.changed(&x, &y, &slots, input);
            vec![("y", Expected::Values(changed))]
        }),
        work: Work {
            bytes: (SLOTS * rank * (count * input + output)) as u64 * stored
                + (tokens * (input + 2 * output)) as u64 * activation,
            flops: 2 * (tokens * rank * (count * input + output)) as u64,
        },
    }
}

#[cfg(test)]
mod tests {
    use burn_flex::{Flex, FlexDevice};

    use super::super::packed;
    use super::*;
    use crate::check::read;
    use crate::{BlockFormat, Summation};

    const FLOATS: Precision = Precision {
        activations: DType::F32,
        stored: DType::BF16,
    };

    /// On the CPU the tasks of a product add the changes to it.
    #[test]
    fn a_product_with_its_changes_has_the_bits_of_the_steps_alone() {
        let device = FlexDevice;
        let mut random = Random::seeded(7);
        for case in 0..60 {
            let tokens = random.within(1, 70);
            // Whole blocks of integers, but slices of any width.
            let input = 32 * random.within(1, 12);
            let slices: Vec<usize> = (0..random.within(1, 3))
                .map(|_| random.within(1, 300))
                .collect();
            let (rank, output) = (random.within(1, 20), slices.iter().sum::<usize>());
            let slots = random_slots(tokens, &mut random);
            let index = AdapterIndex::<Flex>::upload(&slots, &device).expect("a row has one");
            let x = random.normal(tokens * input);
            let x = || float::<Flex>(&x, &[tokens, input], DType::F32, &device);
            let weight = match case % 2 {
                0 => {
                    let weight = random.normal(output * input);
                    float::<Flex>(&weight, &[output, input], DType::BF16, &device)
                }
                _ => {
                    let (format, shape) = (BlockFormat::Q8_0, [output, input]);
                    packed::<Flex>(format, shape, DType::F32, &mut random, &device).1
                }
            };
            let changes =
                RandomStack::<Flex>::make(input, slices, rank, FLOATS, &mut random, &device);
            let stack = changes.stack;
            let together = Flex::project_changed(
                x(),
                weight.clone(),
                None,
                Summation::Fastest,
                &stack,
                &index,
            );
            let y = Flex::project(x(), weight, None, Summation::Fastest);
            let h = Flex::shrink(x(), &stack, &index);
            let apart = Flex::expand(y, h, &stack, &index);
            let bits = |y| {
                let values = read::<Flex>(Output::Float(y)).into_iter();
                values.map(f32::to_bits).collect::<Vec<_>>()
            };
            assert_eq!(bits(together), bits(apart), "case {case}");
        }
    }
}
