//! Limits which instruction sets the kernels use, below what the CPU supports.

use std::sync::OnceLock;

/// The environment variable that sets the limit, to test on this CPU what other CPUs do.
const VARIABLE: &str = "HEARTH_CPU_LEVEL";

/// Groups of instructions. Each group includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    Portable,
    Avx2,
    AvxVnni,
    Avx512,
    Avx512Vnni,
    Avx512Bf16,
    Amx,
}

const NAMES: [(&str, Limit); 7] = [
    ("portable", Limit::Portable),
    ("avx2", Limit::Avx2),
    ("avxvnni", Limit::AvxVnni),
    ("avx512", Limit::Avx512),
    ("avx512vnni", Limit::Avx512Vnni),
    ("avx512bf16", Limit::Avx512Bf16),
    ("amx", Limit::Amx),
];

/// Checks the environment variable.
///
/// # Errors
/// The text lists the valid values.
pub fn check_limit() -> Result<(), String> {
    read().map(|_| ())
}

/// True if these instructions may be used, provided that the CPU supports them.
pub fn allows(kind: Limit) -> bool {
    static LIMIT: OnceLock<Limit> = OnceLock::new();
    // An invalid value is reported by `check_limit` when a device is opened.
    kind <= *LIMIT.get_or_init(|| read().unwrap_or(Limit::Amx))
}

fn read() -> Result<Limit, String> {
    let Some(given) = std::env::var_os(VARIABLE) else {
        return Ok(Limit::Amx);
    };
    let found = NAMES.iter().find(|(name, _)| given == **name);
    found.map(|(_, limit)| *limit).ok_or_else(|| {
        let names = NAMES.map(|(name, _)| name).join(", ");
        format!("{VARIABLE} must be one of {names}, got {given:?}")
    })
}
