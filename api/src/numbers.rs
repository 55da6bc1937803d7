//! How numbers are written in answers.

/// JSON has no -inf. OpenAI writes this for "practically never".
const IMPOSSIBLE: f32 = -9999.0;

/// `logprob` as a number that JSON can write.
pub fn finite(logprob: f32) -> f32 {
    logprob.max(IMPOSSIBLE)
}

/// A number of parameters for people, by powers of 1000: `135.0 M`.
pub fn count_text(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.1} K", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", count as f64 / 1e6),
        _ => format!("{:.2} B", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_in_powers_of_1000() {
        assert_eq!(count_text(135_000), "135.0 K");
        assert_eq!(count_text(135_000_000), "135.0 M");
        assert_eq!(count_text(1_236_000_000), "1.24 B");
    }

    #[test]
    fn an_impossible_token_has_a_logprob_that_json_can_write() {
        assert_eq!(finite(f32::NEG_INFINITY), -9999.0);
        assert_eq!(finite(-1.5), -1.5);
    }
}
