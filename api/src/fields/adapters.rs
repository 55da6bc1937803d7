//! Fields that select adapters.

use serde::Deserialize;

use crate::adapters::{Choice, MAX_SCALED, Scaled, Wanted};
use crate::error::{ApiError, out_of_bounds};
use crate::fields::capped::Capped;
use crate::fields::wire::Object;
use crate::served::Served;

/// llama-server's `lora`: `[{"id": 0, "scale": 0.5}]`.
pub type ScaledAdapters = Capped<Object<ScaledAdapter>, MAX_SCALED>;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaledAdapter {
    pub id: i64,
    pub scale: f64,
}

/// The checked entries of `field`.
///
/// # Errors
/// 400 for too many of them, an id below 0, or a factor beyond the range of `f32`.
pub fn scaled(field: &str, given: &ScaledAdapters) -> Result<Vec<Scaled>, ApiError> {
    if given.given > MAX_SCALED {
        let bound = format!("a list of at most {MAX_SCALED}");
        return Err(out_of_bounds(
            field,
            &bound,
            format!("one of {}", given.given),
        ));
    }
    let entries = given.items.iter().enumerate();
    entries
        .map(|(index, Object(entry))| {
            let id = usize::try_from(entry.id).map_err(|_| {
                out_of_bounds(&format!("{field}[{index}].id"), "at least 0", entry.id)
            })?;
            let scale = entry.scale as f32;
            if !scale.is_finite() {
                let name = format!("{field}[{index}].scale");
                let bound = format!("between {:e} and {:e}", f32::MIN, f32::MAX);
                return Err(out_of_bounds(&name, &bound, format!("{:e}", entry.scale)));
            }
            Ok(Scaled { id, scale })
        })
        .collect()
}

/// The adapter that a request asks for by the name of its model or by the other fields.
///
/// # Errors
/// 404 for an unknown model, 400 for an unknown adapter.
pub fn choose(
    served: &Served,
    model: Option<&str>,
    lora_path: Option<&str>,
    lora: Option<&ScaledAdapters>,
) -> Result<Choice, ApiError> {
    let lora = lora.map(|lora| scaled("lora", lora)).transpose()?;
    served.choose(&Wanted {
        model,
        lora_path,
        lora: lora.as_deref(),
    })
}
