//! Progress bars of loading and tuning. They are drawn only on a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error that fills as `total` bytes of weights are loaded; for
/// [`Weights::set_progress`](crate::weights::Weights::set_progress).
pub fn loading_bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("loading [{wide_bar}] {bytes}/{total_bytes} ({eta})")
        .expect("the template is valid");
    ProgressBar::new(total).with_style(style)
}

/// A bar on standard error that counts `what`, for example `timing kernels`.
pub fn counting_bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {pos}/{len}")
        .expect("the template is valid");
    ProgressBar::new(0).with_style(style).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_counts_to_its_total() {
        let bar = loading_bar(10);
        bar.inc(10);
        assert_eq!((bar.position(), bar.length()), (10, Some(10)));
        bar.finish_and_clear();
    }
}
