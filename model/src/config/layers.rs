//! Fields that say which layers attend a window.

use super::ModelConfig;
use super::bounds::MAX_POSITIONS;
use super::error::ConfigError;
use super::fields::Fields;

/// `sliding_window`: `default` if the field is absent, and no window if it is `null`.
pub(super) fn window(config: Fields<'_>, default: Option<u32>) -> Result<Option<u32>, ConfigError> {
    let key = "sliding_window";
    match config.count(key, MAX_POSITIONS)? {
        None if config.raw(key).is_none() => Ok(default),
        window => Ok(window.map(|window| window as u32)),
    }
}

/// `[layers]`: true for a layer that `layer_types` gives a window; `None` if there is no such field.
pub(super) fn sliding(config: Fields<'_>, layers: usize) -> Result<Option<Vec<bool>>, ConfigError> {
    let key = "layer_types";
    let Some(value) = config.value(key) else {
        return Ok(None);
    };
    let types = value
        .as_array()
        .filter(|types| types.len() == layers)
        .ok_or_else(|| config.bad(key, format!("a list of {layers} types of layers")))?;
    let types = types.iter().map(|layer_type| match layer_type.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(config.bad(
            key,
            "a list of \"full_attention\" and \"sliding_attention\"",
        )),
    });
    types.collect::<Result<_, _>>().map(Some)
}

/// Gives the window, or none, to every layer.
pub(super) fn set_window(model: &mut ModelConfig, window: Option<u32>) {
    for layer in &mut model.layers {
        layer.window = window;
    }
}

/// Gives the window to the layers that are `sliding`.
///
/// # Errors
/// A layer is, and the file has no window.
pub(super) fn set_windows(
    config: Fields<'_>,
    model: &mut ModelConfig,
    window: Option<u32>,
    sliding: &[bool],
) -> Result<(), ConfigError> {
    if window.is_none() && sliding.contains(&true) {
        return Err(config.missing("sliding_window"));
    }
    for (layer, sliding) in model.layers.iter_mut().zip(sliding) {
        layer.window = window.filter(|_| *sliding);
    }
    Ok(())
}
