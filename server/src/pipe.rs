//! The end of a command whose reader has gone, as in `hearth devices | head -1`.

/// Lets the process end quietly when it writes into a pipe that nobody reads. Rust's runtime ignores
/// SIGPIPE, so that `println!` would panic instead.
#[cfg(unix)]
pub fn end_without_reader() {
    // SAFETY: the default action is no handler, so that no code of ours runs in a signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Other systems have no such signal.
#[cfg(not(unix))]
pub fn end_without_reader() {}
