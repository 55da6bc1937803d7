//! Commands whose work is their output.

use std::process::Stdio;

use super::harness::hearth;

/// As in `hearth devices | head -1`, only that the reader is gone from the beginning.
#[test]
fn a_command_whose_reader_is_gone_ends_quietly() {
    for arguments in [
        &["devices"][..],
        &["config"],
        &["serve", "--estimate"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = hearth();
        command
            .args(arguments)
            .stdout(writer)
            .stderr(Stdio::piped());
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("panicked"), "{arguments:?}: {errors}");
        assert_ne!(output.status.code(), Some(101), "{arguments:?}: {errors}");
    }
}
