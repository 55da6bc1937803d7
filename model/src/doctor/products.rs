//! Which kernel multiplies many tokens on a GPU: what was kept for the same device and sizes, or
//! what is the quickest now. What is kept is a file beside the kernels of this build, and proves
//! nothing: its kernels are compared with the usual one at every start.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::tensor::DType;
use hearth_shaders::tune::{Budget, Outcome, Products, Tuned, is_right, tune};
use hearth_shaders::{Kernels, ProductChoice, ProductKernel};
use serde_json::{Value, json};

use crate::config::ModelConfig;
use crate::device::{DeviceReport, Kind};
use crate::dtype::Dtype;

/// What a start takes for it at most: of timing, and with compiling.
const BUDGET: Budget = Budget {
    timing: Duration::from_secs(3),
    all: Duration::from_secs(60),
};

/// What a model multiplies with many tokens. Its output projection has few rows of them.
fn products(config: &ModelConfig, dtype: Dtype, most_tokens: usize) -> Products {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let heads = config.heads * config.head_dim;
    let qkv = heads + 2 * config.kv_heads * config.head_dim;
    Products {
        matrices: vec![
            [hidden, qkv],
            [heads, hidden],
            [hidden, 2 * inner],
            [inner, hidden],
        ],
        dtype: DType::from(dtype),
        // More are in the class of these.
        most_tokens: most_tokens.min(ProductChoice::CLASSES[ProductChoice::CLASSES.len() - 1]),
    }
}

/// Whether kernels are timed there. Software takes the usual ones: it has no matrix units, and to
/// try them takes it minutes.
pub(super) fn are_tuned(at: &DeviceReport) -> bool {
    !at.is_cpu() && at.kind != Kind::Software
}

/// What would be taken in the sizes of Llama-3.2-1B.
pub(super) fn tune_llama<B: Kernels>(dtype: Dtype, device: &B::Device) -> Result<Tuned, String> {
    let products = Products {
        matrices: vec![[2048, 3072], [2048, 2048], [2048, 16_384], [8192, 2048]],
        dtype: DType::from(dtype),
        most_tokens: usize::MAX,
    };
    tune::<B>(&products, BUDGET, &[], |_| (), device)
}

/// Has the device take the kernels that are the quickest for the model.
///
/// # Errors
/// The device did not survive it.
pub(crate) fn choose_products<B: Kernels>(
    config: &ModelConfig,
    dtype: Dtype,
    most_tokens: usize,
    cache: Option<&Path>,
    at: &DeviceReport,
    device: &B::Device,
) -> Result<(), String> {
    if !are_tuned(at) {
        return Ok(());
    }
    let products = products(config, dtype, most_tokens);
    let file = cache.map(|cache| KeptFile::of(cache, at, &products));
    if let Some(choice) = file.as_ref().and_then(KeptFile::chosen)
        && is_right::<B>(&choice, &products, device)?
    {
        B::choose_products(choice, products.dtype, device);
        tracing::info!(%choice, "products of many tokens: the kernels of an earlier start");
        return Ok(());
    }
    let left_out = file.as_ref().map(KeptFile::ended_at).unwrap_or_default();
    if !left_out.is_empty() {
        tracing::warn!(
            ?left_out,
            "an earlier start ended when these kernels were tried"
        );
    }
    let mut trying = left_out.clone();
    let tuned = tune::<B>(
        &products,
        BUDGET,
        &left_out,
        |kernel| {
            trying.truncate(left_out.len());
            // Without the usual one there is nothing to try.
            trying.extend(Some(kernel).filter(|kernel| *kernel != ProductKernel::Usual));
            if let Some(file) = &file {
                file.write(TRYING, &trying);
            }
        },
        device,
    )?;
    report(&tuned);
    B::choose_products(tuned.choice, products.dtype, device);
    if let Some(file) = file {
        file.write(CHOSEN, &tuned.choice.kernels);
    }
    Ok(())
}

fn report(tuned: &Tuned) {
    for finding in &tuned.findings {
        let (kernel, tokens) = (finding.kernel, finding.tokens);
        match &finding.outcome {
            Outcome::Took(seconds) => tracing::debug!(%kernel, tokens, seconds, "timed"),
            Outcome::Refused => tracing::debug!(%kernel, tokens, "refused"),
            Outcome::Wrong(reason) => tracing::warn!(%kernel, tokens, reason, "left out"),
        }
    }
    tracing::info!(
        choice = %tuned.choice,
        timing_s = tuned.timing.as_secs_f64(),
        all_s = tuned.all.as_secs_f64(),
        "products of many tokens: the quickest kernels"
    );
}

/// Of a kept file: the kernel of each class, or those at which starts ended and the one that is
/// being tried.
const CHOSEN: &str = "kernels";
const TRYING: &str = "trying";

/// What was chosen for a device and sizes.
struct KeptFile {
    path: PathBuf,
    /// What it was chosen for: another's file may have the same name.
    key: String,
}

impl KeptFile {
    fn of(cache: &Path, at: &DeviceReport, products: &Products) -> Self {
        let key = format!(
            "{} {}, {}, {} bytes, {products:?}",
            at.api.name(),
            at.name,
            at.driver,
            at.memory.unwrap_or(0),
        );
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let path = cache.join(format!("products-{:016x}.json", hasher.finish()));
        Self { path, key }
    }

    /// What was chosen; `None` where there is nothing, or nothing that this program wrote for
    /// these sizes.
    fn chosen(&self) -> Option<ProductChoice> {
        let kernels = self.read(CHOSEN)?.try_into().ok()?;
        Some(ProductChoice { kernels })
    }

    /// The kernels at which a start ended: they may have taken the device with them, or the
    /// process.
    fn ended_at(&self) -> Vec<ProductKernel> {
        self.read(TRYING).unwrap_or_default()
    }

    fn read(&self, what: &str) -> Option<Vec<ProductKernel>> {
        let kept: Value = serde_json::from_slice(&fs::read(&self.path).ok()?).ok()?;
        if kept["for"] != self.key.as_str() {
            return None;
        }
        let names = kept[what].as_array()?.iter();
        names
            .map(|name| ProductKernel::named(name.as_str()?))
            .collect()
    }

    /// What cannot be written is found again at the next start.
    fn write(&self, what: &str, kernels: &[ProductKernel]) {
        let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name()).collect();
        let text = json!({"for": self.key, what: names});
        // Another process may read it at any time.
        let begun = self
            .path
            .with_extension(format!("{}.new", std::process::id()));
        let written = self
            .path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&begun, text.to_string()))
            .and_then(|()| fs::rename(&begun, &self.path));
        if let Err(error) = written {
            let _ = fs::remove_file(&begun);
            tracing::debug!(path = ?self.path, %error, "the choice of kernels is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;

    fn sizes() -> Products {
        Products {
            matrices: vec![[64, 192], [96, 64]],
            dtype: DType::BF16,
            most_tokens: 576,
        }
    }

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("hearth-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    const CHOICE: ProductChoice = ProductChoice {
        kernels: [
            ProductKernel::Usual,
            ProductKernel::OrderedMma,
            ProductKernel::LargeMma,
        ],
    };

    #[test]
    fn what_was_chosen_is_read_again_for_the_same_device_and_sizes_and_no_others() {
        let cache = directory("kept-products");
        let at = device::list().pop().unwrap();
        let file = KeptFile::of(&cache, &at, &sizes());
        assert_eq!(file.chosen(), None);
        file.write(CHOSEN, &CHOICE.kernels);
        assert_eq!(file.chosen(), Some(CHOICE));
        let mut others = vec![KeptFile::of(
            &cache,
            &at,
            &Products {
                most_tokens: 64,
                ..sizes()
            },
        )];
        let mut another = at.clone();
        another.name = "another".to_owned();
        others.push(KeptFile::of(&cache, &another, &sizes()));
        another = at.clone();
        another.driver = "newer".to_owned();
        others.push(KeptFile::of(&cache, &another, &sizes()));
        for other in &mut others {
            assert_eq!(other.chosen(), None);
            // Not even where a file of its name is there.
            other.path.clone_from(&file.path);
            assert_eq!(other.chosen(), None);
        }
        assert_eq!(
            fs::read_dir(&cache).unwrap().count(),
            1,
            "nothing half written"
        );
        let _ = fs::remove_dir_all(&cache);
    }

    #[test]
    fn a_file_that_is_broken_is_as_none() {
        let cache = directory("broken-products");
        let file = KeptFile::of(&cache, &device::list().pop().unwrap(), &sizes());
        file.write(CHOSEN, &CHOICE.kernels);
        let whole = fs::read_to_string(&file.path).unwrap();
        for broken in [
            String::new(),
            whole[..whole.len() / 2].to_owned(),
            whole.replace("large-mma", "no-such-kernel"),
            whole.replace("\"usual\",", ""),
            whole.replace("\"usual\"", "7"),
            json!({"for": file.key}).to_string(),
        ] {
            assert_ne!(broken, whole);
            fs::write(&file.path, &broken).unwrap();
            assert_eq!(file.chosen(), None, "{broken}");
        }
        let _ = fs::remove_dir_all(&cache);
    }

    #[test]
    fn a_kernel_at_which_a_start_ended_is_known_until_there_is_a_choice() {
        let cache = directory("ended-products");
        let file = KeptFile::of(&cache, &device::list().pop().unwrap(), &sizes());
        assert_eq!(file.ended_at(), []);
        file.write(TRYING, &[ProductKernel::TmaMma]);
        assert_eq!(file.ended_at(), [ProductKernel::TmaMma]);
        assert_eq!(file.chosen(), None);
        file.write(CHOSEN, &CHOICE.kernels);
        assert_eq!(file.ended_at(), []);
        assert_eq!(file.chosen(), Some(CHOICE));
        let _ = fs::remove_dir_all(&cache);
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is_kept() {
        let cache = directory("no-products");
        fs::write(&cache, b"a file").unwrap();
        let file = KeptFile::of(&cache, &device::list().pop().unwrap(), &sizes());
        file.write(CHOSEN, &CHOICE.kernels);
        assert_eq!(file.chosen(), None);
        let _ = fs::remove_file(&cache);
    }
}
