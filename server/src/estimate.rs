//! `hearth serve --estimate`: the memory that a model needs, before anything is loaded.

use std::fmt::Write as _;

use anyhow::Result;
use hearth_api::numbers::count_text;
use hearth_model::config::ModelConfig;

use crate::banner::bytes_text;
use crate::config::{Config, Dtype, Quantization};
use crate::load;

/// Bits of a weight in blocks of 32 weights with a scale of 16 bits.
const BLOCK_SCALE_BITS: f64 = 0.5;

/// Prints the memory of weights and KV cache for several numbers of requests.
///
/// # Errors
/// The model cannot be opened.
pub fn run(config: &Config) -> Result<()> {
    let checkpoint = load::open(config)?;
    let model = &checkpoint.config;
    let stored = model.torch_dtype.map_or(2, |dtype| dtype.size());
    let size = match config.dtype {
        Dtype::Auto => stored,
        Dtype::F32 => 4,
        Dtype::F16 | Dtype::Bf16 => 2,
    };
    let context = config
        .max_model_len
        .unwrap_or(model.max_position_embeddings);
    print!(
        "{}",
        table(
            &config.model_id(),
            &Estimate::of(model, size, config.quantization),
            context,
            config.max_running_requests,
        )
    );
    Ok(())
}

/// The memory of a model.
#[derive(Debug, PartialEq, Eq)]
struct Estimate {
    parameters: u64,
    weight_bytes: u64,
    /// Keys and values of one token.
    token_bytes: u64,
}

impl Estimate {
    /// `size` is the number of bytes of an element.
    fn of(model: &ModelConfig, size: usize, quantization: Option<Quantization>) -> Self {
        let tables = if model.tie_word_embeddings { 1 } else { 2 };
        let table = tables * model.vocab_size * model.hidden_size;
        let vectors = model.vector_elements();
        let matrices = model.parameters() as usize - table - vectors;
        let kv = model.kv_heads * model.head_dim;
        let [table_bits, matrix_bits] = match quantization {
            None => [8.0 * size as f64; 2],
            Some(Quantization::Int8) => [8.0 + BLOCK_SCALE_BITS; 2],
            Some(Quantization::Int4) => [8.0 + BLOCK_SCALE_BITS, 4.0 + BLOCK_SCALE_BITS],
        };
        let blocks = (table as f64 * table_bits + matrices as f64 * matrix_bits) / 8.0;
        Self {
            parameters: (table + matrices + vectors) as u64,
            weight_bytes: blocks as u64 + (vectors * size) as u64,
            token_bytes: (2 * model.layers.len() * kv * size) as u64,
        }
    }
}

/// The estimate for requests of `context` tokens, for one request up to `most` at a time.
fn table(name: &str, estimate: &Estimate, context: usize, most: usize) -> String {
    let Estimate {
        parameters,
        weight_bytes,
        token_bytes,
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
        let slots = (requests as u64).saturating_mul(context as u64);
        let kv = slots.saturating_mul(*token_bytes);
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
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_model::checkpoint::Checkpoint;

    #[test]
    fn the_embedded_models_estimate_is_what_its_file_has() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let estimate = Estimate::of(&checkpoint.config, 2, None);
        assert_eq!(estimate.parameters, 984_192);
        assert_eq!(estimate.weight_bytes, checkpoint.weights.total_bytes());
        // Keys and values of four layers with two heads of 32 numbers of two bytes.
        assert_eq!(estimate.token_bytes, 2 * 4 * 2 * 32 * 2);
        let small = Estimate::of(&checkpoint.config, 2, Some(Quantization::Int4));
        assert!(small.weight_bytes < estimate.weight_bytes / 2, "{small:?}");
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
