use std::io::Write;
use std::process::ExitCode;

use clap::FromArgMatches;
use hearth_server::cli::{self, Cli};

// jemalloc was measured to be faster on Linux with glibc. On macOS it does not start with the
// background threads that it is built with.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's options. By default it returns the pages of freed allocations of 8 MiB or more to the
/// system at once. The activations of a prompt are as large, and each operation allocates them anew:
/// the system would zero them every time. With this option those of less than 64 MiB stay for the
/// next operation, and are returned when they have not been used for ten seconds. Memory for weights
/// is allocated in larger pieces, which must be fresh: what is never touched then takes no memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
// SAFETY: jemalloc reads a pointer to a C string under this name, which is the first word of the slice.
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_OPTIONS: &[u8] = b"oversize_threshold:67108864\0";

fn main() -> ExitCode {
    quiet_drivers();
    let matches = cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match hearth_server::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where standard error cannot be written to, the exit code is all there is.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Sets `XDG_RUNTIME_DIR` if it is unset, because Mesa would otherwise warn on standard error
/// about a directory that nothing here needs.
fn quiet_drivers() {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", std::env::temp_dir()) };
    }
}
