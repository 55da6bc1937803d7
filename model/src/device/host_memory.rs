//! The host's free memory.

/// Bytes that this process can allocate without swapping: the memory that Linux calls available,
/// within the limit of the control group (a container). `None` on other systems.
pub fn available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let machine = kib << 10;
    Some(group_available().map_or(machine, |group| machine.min(group)))
}

/// Bytes that the control group has left; `None` without a limit.
fn group_available() -> Option<u64> {
    let read = |file: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?;
        text.trim().parse().ok()
    };
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}
