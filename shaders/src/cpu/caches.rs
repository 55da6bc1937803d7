//! The sizes of the CPU's caches.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// Sizes that are believed, in bytes: a virtual machine may report anything.
const SIZES: RangeInclusive<usize> = 8 << 10..=512 << 10;

/// Bytes of a core's first-level cache for data: 32 KiB where the CPU gives no size or one that is
/// not in [`SIZES`]. Where cores differ, it is that of the core that asks first.
pub fn first_level() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        read()
            .filter(|size| SIZES.contains(size))
            .unwrap_or(32 << 10)
    })
}

#[cfg(target_arch = "x86_64")]
fn read() -> Option<usize> {
    use raw_cpuid::{CacheType, CpuId};
    let mut caches = CpuId::new().get_cache_parameters()?;
    let first = caches.find(|cache| cache.level() == 1 && cache.cache_type() == CacheType::Data)?;
    let lines = first.sets() * first.associativity() * first.physical_line_partitions();
    Some(lines * first.coherency_line_size())
}

#[cfg(not(target_arch = "x86_64"))]
fn read() -> Option<usize> {
    None
}
