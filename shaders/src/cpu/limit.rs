//! Which instructions the kernels may use: what the CPU has, or less.

use std::sync::OnceLock;

/// The environment variable that sets the [`limit`], to try what other CPUs do on this one.
const VARIABLE: &str = "HEARTH_CPU_LEVEL";

/// Kinds of instructions, each of which includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    Portable,
    Avx2,
    AvxVnni,
    Avx512,
    Avx512Vnni,
    Amx,
}

const NAMES: [(&str, Limit); 6] = [
    ("portable", Limit::Portable),
    ("avx2", Limit::Avx2),
    ("avxvnni", Limit::AvxVnni),
    ("avx512", Limit::Avx512),
    ("avx512vnni", Limit::Avx512Vnni),
    ("amx", Limit::Amx),
];

/// Reads the limit from the environment.
///
/// # Errors
/// Says what the variable may be.
pub fn check_limit() -> Result<(), String> {
    read().map(|_| ())
}

/// Whether instructions of this kind may be used where the CPU has them.
pub fn allows(kind: Limit) -> bool {
    static LIMIT: OnceLock<Limit> = OnceLock::new();
    // Whoever opens the device has checked it.
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
