//! `hearth serve --estimate`: the memory that a model needs, before anything is loaded.

use std::fmt::Write as _;

use anyhow::Result;
use hearth_api::numbers::count_text;
use hearth_model::device::DeviceSpec;
use hearth_model::{Estimate, LoadOptions, estimate, max_model_len};

use crate::banner::bytes_text;
use crate::config::Config;
use crate::load;
use crate::load_formats::formats_to_load;

/// Prints the memory of weights and KV cache for several numbers of requests.
///
/// # Errors
/// The model cannot be opened, there is no device of such a name, the model does not fit
/// `--kv-cache-dtype`, or `--max-model-len` is more than the model or `--kv-tokens` has.
pub fn run(config: &Config) -> Result<()> {
    let checkpoint = load::open(config)?;
    let options = LoadOptions {
        device: DeviceSpec::parse(&config.device)?,
        window_share: load::window_share(config),
        max_model_len: config.max_model_len,
        ..formats_to_load(config)
    };
    let slots = config.kv_tokens.unwrap_or(usize::MAX);
    let context = max_model_len(&checkpoint.config, slots, config.max_model_len)?;
    print!(
        "{}",
        table(
            &config.model_id(),
            &estimate(&checkpoint, &options)?,
            context,
            config.max_running_requests,
        )
    );
    Ok(())
}

/// The estimate for requests of `context` tokens, for one request up to `most` at a time.
fn table(name: &str, estimate: &Estimate, context: usize, most: usize) -> String {
    let Estimate {
        parameters,
        weight_bytes,
        token_bytes,
        ..
    } = estimate;
    let mut text = format!(
        "{name}: {} parameters\n  weights    {}\n  KV cache   {} per token\n\n\
         {:>10}  {:>12}  {:>12}  {:>12}\n",
        count_text(*parameters),
        bytes_text(*weight_bytes),
        bytes_text(*token_bytes),
        "requests",
        "--kv-tokens",
        "KV cache",
        "with weights",
    );
    let doubled = std::iter::successors(Some(1), |requests| Some(requests * 4));
    let counts = doubled.take_while(|&requests| requests < most);
    for requests in counts.chain([most]) {
        let slots = requests.saturating_mul(context);
        let kv = estimate.kv_bytes(slots);
        // A write to a string does not fail.
        let _ = writeln!(
            text,
            "{requests:>10}  {slots:>12}  {:>12}  {:>12}",
            bytes_text(kv),
            bytes_text(kv.saturating_add(*weight_bytes)),
        );
    }
    let _ = writeln!(
        text,
        "\nEach request has {context} tokens (--max-model-len), prompt and output together, and shares none.\n\
         Activations and buffers come on top: some hundred MB."
    );
    if estimate.divides() {
        text.push_str(
            "Layers that attend a window have fewer slots than the others (--swa-full-tokens-ratio).\n",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_model::KvDtype;
    use hearth_model::checkpoint::Checkpoint;
    use hearth_model::weights::Quantization;

    #[test]
    fn a_context_that_serve_would_refuse_is_refused() {
        let with = |max_model_len| Config {
            max_model_len: Some(max_model_len),
            ..Config::default()
        };
        let error = run(&with(1 << 40)).unwrap_err().to_string();
        assert!(
            error.contains("--max-model-len") && error.contains("max_position_embeddings"),
            "{error}"
        );
        let small = Config {
            kv_tokens: Some(100),
            ..with(101)
        };
        let error = run(&small).unwrap_err().to_string();
        assert!(error.contains("slots of the KV pool"), "{error}");
    }

    #[test]
    fn the_embedded_models_estimate_is_what_its_file_has() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let unasked = LoadOptions::default();
        let estimate = hearth_model::estimate(&checkpoint, &unasked).unwrap();
        assert_eq!(estimate.parameters, 984_192);
        // On CPUs that multiply bf16, each of the packed matrices has a header of 64 bytes.
        let stored = checkpoint.weights.total_bytes();
        let headers = estimate.weight_bytes - stored;
        assert!(headers.is_multiple_of(64) && headers < 4096, "{headers}");
        // Keys and values of four layers with two heads of 32 numbers of two bytes.
        assert_eq!(estimate.token_bytes, 2 * 4 * 2 * 32 * 2);
        let int4 = LoadOptions {
            quantization: Some(Quantization::Int4),
            kv_dtype: KvDtype::Int8,
            ..unasked
        };
        let small = hearth_model::estimate(&checkpoint, &int4).unwrap();
        assert!(small.weight_bytes < estimate.weight_bytes / 2, "{small:?}");
        // 32 numbers of one byte, and a scale of four.
        assert_eq!(small.token_bytes, 2 * 4 * 2 * 36);
        let text = table("tiny", &estimate, 1000, 6);
        for line in [
            "984.2 K parameters",
            "1.0 KiB per token",
            "4          4000",
            "6          6000",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
