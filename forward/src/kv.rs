//! Copies of keys and values between the device and the host's memory.

/// Which pool is read and which is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// From the device's slots to the host's.
    ToHost,
    /// From the host's slots to the device's.
    ToDevice,
}

/// Copies the keys and values of all layers between slot `device[i]` of the device's pool and
/// slot `host[i]` of the host's pool, for every `i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvCopy {
    pub direction: CopyDirection,
    pub device: Vec<u32>,
    /// As long as `device`.
    pub host: Vec<u32>,
}
