//! The files of `hearth-tiny/`, compiled into the binary. `build.rs` sets `hearth_tiny` only if all
//! of them exist, so that the program which trains the model can be built before the model exists.

use super::error::CheckpointError;

/// The name that the embedded model is served under.
pub const EMBEDDED_NAME: &str = "hearth-tiny";

type Embedded = &'static [(&'static str, &'static [u8])];

#[cfg(hearth_tiny)]
pub(super) fn files() -> Result<Embedded, CheckpointError> {
    macro_rules! file {
        ($name:literal) => {
            (
                $name,
                include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/hearth-tiny/", $name))
                    .as_slice(),
            )
        };
    }
    const FILES: Embedded = &[
        file!("config.json"),
        file!("generation_config.json"),
        file!("tokenizer.json"),
        file!("tokenizer_config.json"),
        file!("model.safetensors"),
    ];
    Ok(FILES)
}

#[cfg(not(hearth_tiny))]
pub(super) fn files() -> Result<Embedded, CheckpointError> {
    Err(CheckpointError::NotEmbedded {
        missing: "model/hearth-tiny was incomplete",
    })
}
