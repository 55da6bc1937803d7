//! The memory of layers that attend a window, where these have slots of their own.

use hearth_forward::WindowLimits;

use crate::config::ModelConfig;
use crate::load_options::LoadOptions;

/// Window slots beside those of a window, so that prompts are computed in chunks of some size even
/// where the share is small.
const BESIDE: usize = 512;
const _: () = assert!(BESIDE > WindowLimits::LEAST_BESIDE);

/// How the KV pool is divided between layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WindowPlan {
    /// Window slots per slot; `None` if all layers have the same slots.
    share: Option<f64>,
    /// The longest window, in positions.
    tokens: usize,
    /// The share of the layers that attend a window.
    layers: f64,
}

impl WindowPlan {
    pub fn new(config: &ModelConfig, options: &LoadOptions) -> Self {
        let windows = config.layers.iter().filter_map(|layer| layer.window);
        let tokens = windows.clone().max().unwrap_or(u32::MAX) as usize;
        let most = config.max_position_embeddings;
        let most = options.max_model_len.map_or(most, |len| len.min(most));
        let is_shorter = tokens < most && options.host_slots == 0;
        Self {
            share: options
                .window_share
                .filter(|share| is_shorter && *share < 1.0),
            tokens,
            layers: windows.count() as f64 / config.layers.len() as f64,
        }
    }

    pub fn divides(self) -> bool {
        self.share.is_some()
    }

    /// The most slots of a pool that fits into `bytes`, where a token takes `all_layers` bytes over all
    /// layers.
    pub fn slots_in(self, bytes: u64, all_layers: u64) -> u64 {
        let (of_windows, others) = self.divided(all_layers);
        let share = self.share.unwrap_or(1.0);
        let by_share = bytes as f64 / (others + share * of_windows);
        let least = self.tokens.saturating_add(BESIDE) as f64;
        let beside_least = (bytes as f64 - least * of_windows) / others;
        let undivided = bytes / all_layers;
        // A pool of layers without windows alone has no bound of its own.
        let candidates = [by_share, beside_least]
            .into_iter()
            .filter(|n| n.is_finite());
        let fitting = candidates
            .map(|slots| slots.max(0.0) as u64)
            .filter(|&slots| {
                let slots = slots as usize;
                self.bytes(slots, self.limits(slots), all_layers) <= bytes
            });
        fitting.fold(undivided, u64::max)
    }

    /// The window slots beside `slots` slots; `None` if they would save nothing.
    pub fn limits(self, slots: usize) -> Option<WindowLimits> {
        let share = self.share?;
        let least = self.tokens + BESIDE;
        let window = ((slots as f64 * share) as usize).max(least);
        (window < slots).then_some(WindowLimits {
            slots: window,
            tokens: self.tokens,
        })
    }

    /// Bytes of all pools.
    pub fn bytes(self, slots: usize, window: Option<WindowLimits>, all_layers: u64) -> u64 {
        let window = window.map_or(slots, |window| window.slots);
        let (of_windows, others) = self.divided(all_layers);
        (others * slots as f64 + of_windows * window as f64) as u64
    }

    /// The bytes of a token in layers that attend a window, and in the others.
    fn divided(self, all_layers: u64) -> (f64, f64) {
        let of_windows = all_layers as f64 * self.layers;
        (of_windows, all_layers as f64 - of_windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(share: Option<f64>, host_slots: usize, max_model_len: Option<usize>) -> WindowPlan {
        let config = r#"{"architectures": ["Gemma3ForCausalLM"], "vocab_size": 256, "head_dim": 16,
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "query_pre_attn_scalar": 16, "sliding_window": 100, "rope_theta": 1e6,
            "rope_local_base_freq": 1e4, "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
            "full_attention"], "max_position_embeddings": 8192}"#;
        let options = LoadOptions {
            window_share: share,
            host_slots,
            max_model_len,
            ..LoadOptions::default()
        };
        WindowPlan::new(&ModelConfig::from_json(config).unwrap(), &options)
    }

    #[test]
    fn layers_with_windows_get_their_share_of_slots_and_bytes() {
        // Three of four layers, at a quarter of the slots.
        let quarter = plan(Some(0.25), 0, None);
        assert_eq!(quarter.slots_in(8000 * (400 + 300), 1600), 8000);
        let limits = quarter.limits(8000);
        assert_eq!(
            limits.map(|limits| (limits.slots, limits.tokens)),
            Some((2000, 100))
        );
        assert_eq!(quarter.bytes(8000, limits, 1600), 8000 * 400 + 2000 * 1200);
        // A chunk of a prompt has room beside the window, whatever the share.
        let few = plan(Some(0.001), 0, None).limits(8000);
        assert_eq!(few.map(|limits| limits.slots), Some(100 + 512));
    }

    #[test]
    fn slots_are_not_divided_where_that_saves_nothing_or_copies_need_whole_tokens() {
        let whole = |plan: WindowPlan, slots| {
            let limits = plan.limits(slots);
            assert_eq!(limits, None);
            assert_eq!(plan.slots_in(slots as u64 * 1600, 1600), slots as u64);
            assert_eq!(plan.bytes(slots, limits, 1600), slots as u64 * 1600);
        };
        whole(plan(None, 0, None), 8000);
        whole(plan(Some(1.0), 0, None), 8000);
        whole(plan(Some(0.5), 10, None), 8000);
        whole(plan(Some(0.5), 0, Some(100)), 8000);
        whole(plan(Some(0.5), 0, None), 600);
    }

    #[test]
    fn as_many_slots_as_possible_fit_whatever_the_share() {
        for share in [None, Some(0.001), Some(0.3), Some(0.5), Some(0.99)] {
            let plan = plan(share, 0, None);
            let cost = |slots: u64| {
                let slots = slots as usize;
                plan.bytes(slots, plan.limits(slots), 1600)
            };
            for bytes in (0..40_000_000).step_by(77_777) {
                let slots = plan.slots_in(bytes, 1600);
                assert!(cost(slots) <= bytes, "{share:?} {bytes}: {slots}");
                // Rounding a share down leaves room for a few.
                assert!(cost(slots + 5) > bytes, "{share:?} {bytes}: {slots}");
            }
        }
    }
}
