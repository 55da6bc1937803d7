//! A grammar's mask over a row of logits.

/// Sets the logits of tokens that `mask` lacks to minus infinity, in a row of `[vocab_size]`.
pub fn apply(mask: &[u32], logits: &mut [f32]) {
    for (index, chunk) in logits.chunks_mut(32).enumerate() {
        match mask.get(index).copied().unwrap_or(0) {
            u32::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if word & (1 << bit) == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tokens_of_the_mask_keep_their_logits() {
        let mut logits = vec![1.0; 100];
        apply(&[u32::MAX, 0, 0b101], &mut logits);
        let kept: Vec<usize> = (0..100).filter(|&token| logits[token] == 1.0).collect();
        let expected: Vec<usize> = (0..32).chain([64, 66]).collect();
        assert_eq!(kept, expected);
    }
}
