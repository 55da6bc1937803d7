//! Why a device could not be found or opened.

/// Why a device could not be found or opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("--device must be auto, {choices}, with an optional :index, got {given:?}")]
    Unparsable { given: String, choices: String },
    #[error("--device {asked}: there is no such device; found: {found}")]
    NotFound { asked: String, found: String },
    #[error("--device {asked}: {device} cannot be used: {reason}")]
    Unusable {
        asked: String,
        device: String,
        reason: String,
    },
    #[error(transparent)]
    Open(#[from] hearth_shaders::device::OpenError),
}
