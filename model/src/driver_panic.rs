//! Panics of drivers and compilers as errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work` and returns the text of its panic, if it panics: Burn and CubeCL panic where a
/// device refuses something.
///
/// # Errors
/// The text of the panic.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = hearth_forward::panic_text(&*panic);
        without_source(&text).to_owned()
    })
}

/// CubeCL appends the source of a kernel that a compiler refused, hundreds of lines, to the
/// compiler's message.
fn without_source(text: &str) -> &str {
    let message = text.split_once("[Source]");
    message.map_or(text, |(message, _)| message).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message_without_the_kernels_source() {
        assert_eq!(caught(|| 7), Ok(7));
        let lost: Result<(), _> = caught(|| panic!("lost"));
        assert_eq!(lost, Err("lost".to_owned()));
        let refused: Result<(), _> = caught(|| panic!("error: no wgmma\n[Source]\nkernel() {{"));
        assert_eq!(refused, Err("error: no wgmma".to_owned()));
    }
}
