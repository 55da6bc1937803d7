//! Cases of a mixture of experts.

use burn::tensor::{DType, TensorData};

use super::{Expected, Maker, Output, Prepared, Work, float, packed, reference};
use crate::check::case::ExpertSizes;
use crate::check::{Precision, Random};
use crate::{ChosenExperts, ExpertActivation, Experts, Kernels, Routing, upload};

/// Random experts, with the values that are on the device.
pub struct RandomExperts<B: Kernels> {
    pub stack: Experts<B>,
    gate_up: Vec<f32>,
    gate_up_bias: Option<Vec<f32>>,
    down: Vec<f32>,
    down_bias: Option<Vec<f32>>,
}

impl<B: Kernels> RandomExperts<B> {
    pub fn make(
        sizes: ExpertSizes,
        precision: Precision,
        random: &mut Random,
        device: &B::Device,
    ) -> Self {
        let (count, hidden, width) = (sizes.experts, sizes.hidden, sizes.width);
        let mut matrix = |rows: usize, columns: usize| match sizes.format {
            None => {
                let values = random.normal_as(precision.stored, rows * columns);
                let data = TensorData::new(values.clone(), [rows, columns]);
                let data = data.convert_dtype(precision.stored);
                let tensor = upload::<B, 2>(data, precision.stored, device);
                (values, tensor.into_primitive().tensor())
            }
            Some(format) => {
                let shape = [rows, columns];
                packed::<B>(format, shape, precision.activations, random, device)
            }
        };
        let (gate_up, gate_up_on) = matrix(count * 2 * width, hidden);
        let (down, down_on) = matrix(count * hidden, width);
        let mut bias = |length: usize| {
            sizes.bias.then(|| {
                let values = random.normal_as(precision.activations, length);
                let tensor = float::<B>(&values, &[length], precision.activations, device);
                (values, tensor)
            })
        };
        let (gate_up_bias, gate_up_bias_on) = bias(count * 2 * width).unzip();
        let (down_bias, down_bias_on) = bias(count * hidden).unzip();
        let clamped = ExpertActivation::Clamped {
            alpha: 1.702,
            limit: 1.0,
        };
        Self {
            stack: Experts {
                gate_up: gate_up_on,
                gate_up_bias: gate_up_bias_on,
                down: down_on,
                down_bias: down_bias_on,
                hidden,
                width,
                activation: if sizes.clamped {
                    clamped
                } else {
                    ExpertActivation::Silu
                },
            },
            gate_up,
            gate_up_bias,
            down,
            down_bias,
        }
    }

    fn values(&self) -> reference::ExpertValues<'_> {
        reference::ExpertValues {
            gate_up: &self.gate_up,
            gate_up_bias: self.gate_up_bias.as_deref(),
            down: &self.down,
            down_bias: self.down_bias.as_deref(),
            hidden: self.stack.hidden,
            width: self.stack.width,
            activation: self.stack.activation,
        }
    }
}

/// Random rows for experts, the ids of their experts and the weights.
pub struct ExpertRows {
    /// `[rows, hidden]`
    pub x: Vec<f32>,
    /// `[rows, top]`
    pub ids: Vec<i32>,
    pub weights: Vec<f32>,
    top: usize,
}

impl ExpertRows {
    pub fn make(
        rows: usize,
        sizes: ExpertSizes,
        precision: Precision,
        random: &mut Random,
    ) -> Self {
        // The products with the gates stay around 1, so that none is beyond the range of f16. A
        // power of two changes no bits but those of the exponent.
        let scale = (-((sizes.hidden as f32).log2() / 2.0).floor()).exp2();
        let x = random.normal_as(precision.activations, rows * sizes.hidden);
        Self {
            x: x.into_iter().map(|x| x * scale).collect(),
            ids: (0..rows * sizes.top)
                .map(|_| random.below(sizes.experts) as i32)
                .collect(),
            weights: random.normal(rows * sizes.top),
            top: sizes.top,
        }
    }

    /// The experts of `rows`.
    pub fn chosen<B: Kernels>(&self, rows: &[usize], device: &B::Device) -> ChosenExperts<B> {
        let top = self.top;
        let of = |row: &usize| row * top..(row + 1) * top;
        let ids: Vec<i32> = rows
            .iter()
            .flat_map(|row| &self.ids[of(row)])
            .copied()
            .collect();
        let weights = rows.iter().flat_map(|row| &self.weights[of(row)]);
        let weights: Vec<f32> = weights.copied().collect();
        let shape = [rows.len(), top];
        ChosenExperts {
            ids: B::int_from_data(TensorData::new(ids, shape), device),
            weights: float::<B>(&weights, &shape, DType::F32, device),
        }
    }
}

pub(super) fn choose<B: Kernels>(
    mut make: Maker<B>,
    [rows, experts]: [usize; 2],
    routing: Routing,
) -> Prepared<B> {
    let (logits, logits_on) = make.activations(&[rows, experts]);
    let (_, activation) = make.precision.sizes();
    Prepared {
        launch: Box::new(move || {
            let ChosenExperts { ids, weights } = B::choose_experts(logits_on.clone(), routing);
            vec![Output::Int(ids), Output::Float(weights)]
        }),
        want: Box::new(move || {
            let (ids, weights) = reference::choose_experts(&logits, experts, routing);
            let ids = ids.into_iter().map(|id| vec![id]).collect();
            vec![
                ("ids", Expected::OneOf(ids)),
                ("weights", Expected::Values(weights)),
            ]
        }),
        work: Work {
            bytes: (rows * experts) as u64 * activation,
            flops: 0,
        },
    }
}

pub(super) fn mix<B: Kernels>(make: Maker<B>, rows: usize, sizes: ExpertSizes) -> Prepared<B> {
    let (precision, device) = (make.precision, make.device.clone());
    let experts = RandomExperts::<B>::make(sizes, precision, make.random, &device);
    let given = ExpertRows::make(rows, sizes, precision, make.random);
    let x = float::<B>(
        &given.x,
        &[rows, sizes.hidden],
        precision.activations,
        &device,
    );
    let all: Vec<usize> = (0..rows).collect();
    let chosen = given.chosen::<B>(&all, &device);
    let (_, activation) = precision.sizes();
    let read = sizes.experts.min(rows * sizes.top);
    let bytes = make.matrix_bytes(sizes.format, read * 2 * sizes.width, sizes.hidden)
        + make.matrix_bytes(sizes.format, read * sizes.hidden, sizes.width);
    let stack = experts.stack.clone();
    Prepared {
        launch: Box::new(move || {
            let mixed = B::mix_experts(x.clone(), &chosen, &stack);
            vec![Output::Float(mixed)]
        }),
        want: Box::new(move || {
            let values = experts.values();
            let (values, sizes) =
                reference::mix_experts(&given.x, &given.ids, &given.weights, &values);
            vec![("mixed", Expected::Composed { values, sizes })]
        }),
        work: Work {
            bytes: bytes + (2 * rows * sizes.hidden) as u64 * activation,
            flops: (6 * rows * sizes.top * sizes.hidden * sizes.width) as u64,
        },
    }
}
