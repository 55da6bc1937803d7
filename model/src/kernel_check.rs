//! One kernel against its reference, for the check at every start and for `hearth doctor`.

use burn::tensor::DType;
use hearth_shaders::Kernels;
use hearth_shaders::check::{self, Case, Precision, Random};

use crate::driver_panic::caught;
use crate::dtype::Dtype;

/// Runs a case and returns its largest relative error.
///
/// # Errors
/// The first value whose error is above `tolerance`, or the panic with which a driver refused
/// the kernel.
pub(crate) fn check_case<B: Kernels>(
    case: &Case,
    precision: Precision,
    tolerance: f64,
    random: &mut Random,
    device: &B::Device,
) -> Result<f64, String> {
    caught(|| check::check::<B>(case, precision, tolerance, random, device))
        .map_err(|panic| format!("{case:?}: {panic}"))?
        .map_err(|mismatch| mismatch.to_string())
}

/// The types that a kernel computes in where a model is served in `dtype`.
pub(crate) fn precision(dtype: Dtype, cpu: bool) -> Precision {
    let dtype = DType::from(dtype);
    match cpu {
        true => Precision::on_cpu(dtype),
        false => Precision::uniform(dtype),
    }
}

#[cfg(test)]
mod tests {
    use burn_flex::Flex;
    use hearth_shaders::check::NormWeight;

    use super::*;

    #[test]
    fn a_value_beyond_the_tolerance_is_an_error() {
        // No rounding meets a tolerance of zero, which makes every kernel a wrong one.
        let case = Case::RmsNorm {
            tokens: 3,
            hidden: 64,
            weight: NormWeight::Same,
        };
        let wrong = check_case::<Flex>(
            &case,
            precision(Dtype::F32, true),
            0.0,
            &mut Random::seeded(1),
            &Default::default(),
        );
        assert!(wrong.unwrap_err().contains("normed["));
    }
}
