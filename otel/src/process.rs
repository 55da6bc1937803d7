//! The operating system's figures of this process, on Linux; there are none elsewhere.

use std::fs;

/// Clock ticks per second in `/proc`, which is 100 on all current Linux systems.
const TICKS: f64 = 100.0;

/// Figures of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessStats {
    pub cpu_seconds: f64,
    pub resident_bytes: i64,
    pub virtual_bytes: i64,
    pub open_fds: i64,
    pub max_fds: i64,
    pub threads: i64,
}

/// Reads the figures; `None` if there is no `/proc`.
pub fn stats() -> Option<ProcessStats> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process is in parentheses and may contain spaces.
    let (_, rest) = stat.rsplit_once(") ")?;
    let field = |number: usize| rest.split(' ').nth(number - 3)?.parse::<i64>().ok();
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|line| line.trim().strip_suffix("kB"))
        .and_then(|kib| kib.trim().parse::<i64>().ok());
    Some(ProcessStats {
        cpu_seconds: (field(14)? + field(15)?) as f64 / TICKS,
        threads: field(20)?,
        virtual_bytes: field(23)?,
        resident_bytes: resident? * 1024,
        open_fds: fs::read_dir("/proc/self/fd").ok()?.count() as i64,
        max_fds: max_fds()?,
    })
}

fn max_fds() -> Option<i64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_figures_of_this_process_are_plausible() {
        let stats = stats().unwrap();
        assert!(stats.resident_bytes > 1 << 20 && stats.virtual_bytes >= stats.resident_bytes);
        assert!(stats.open_fds >= 3 && stats.max_fds >= stats.open_fds && stats.threads >= 1);
    }
}
