//! Finds the `hearth` binary.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A command that runs `HEARTH_BIN`, or else the binary that cargo built for the profile of this
/// test, or else the one of the other profile.
pub fn hearth() -> Command {
    let mut command = Command::new(path());
    // Run in a directory without a hearth.toml and without the caller's HEARTH_* variables.
    command.current_dir(std::env::temp_dir());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HEARTH_")) {
        command.env_remove(name);
    }
    command
}

/// The root of the repository.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate is a directory of the workspace")
}

fn path() -> PathBuf {
    if let Some(path) = std::env::var_os("HEARTH_BIN") {
        let path = PathBuf::from(path);
        assert!(
            path.is_file(),
            "HEARTH_BIN={} is not a file",
            path.display()
        );
        return path;
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    let profiles = if cfg!(debug_assertions) {
        ["debug", "release"]
    } else {
        ["release", "debug"]
    };
    let built = profiles.map(|profile| target.join(profile).join("hearth"));
    built
        .iter()
        .find(|path| path.is_file())
        .cloned()
        .unwrap_or_else(|| {
            panic!(
                "there is no hearth binary: neither {} nor {}; build it with \
             `cargo build --release --bin hearth`, or name one in HEARTH_BIN",
                built[0].display(),
                built[1].display()
            )
        })
}
