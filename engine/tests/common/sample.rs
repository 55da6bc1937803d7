//! How the fake model samples: a literal version of the documentation of [`SampleParams`], in f64.

use hearth_forward::SampleParams;

pub fn sample(logits: &[f32], params: &SampleParams) -> Option<u32> {
    let allowed = |token: usize| {
        let Some(mask) = &params.mask else {
            return true;
        };
        mask.get(token / 32)
            .is_some_and(|word| word >> (token % 32) & 1 == 1)
    };
    let mut ranking: Vec<(usize, f32)> = logits.iter().copied().enumerate().collect();
    for (token, logit) in &mut ranking {
        let edits = params.edits.iter();
        for edit in edits.filter(|edit| edit.token as usize == *token) {
            *logit += edit.bias;
            *logit *= if *logit > 0.0 {
                1.0 / edit.factor
            } else {
                edit.factor
            };
            *logit -= edit.amount;
        }
    }
    ranking.retain(|(token, logit)| *logit > f32::NEG_INFINITY && allowed(*token));
    // The sort is stable, so that of equal tokens the lower one stays first.
    ranking.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (best, most) = *ranking.first()?;
    if params.temperature == 0.0 {
        return Some(best as u32);
    }
    ranking.truncate(params.top_k.map_or(usize::MAX, |k| k as usize));
    let weigh = |logit: f32| (f64::from(logit - most) / f64::from(params.temperature)).exp();
    let mut left: Vec<(usize, f64)> = ranking
        .into_iter()
        .map(|(token, logit)| (token, weigh(logit)))
        .filter(|(_, weight)| *weight >= f64::from(params.min_p))
        .collect();
    let sum = |left: &[(usize, f64)]| left.iter().map(|(_, weight)| weight).sum::<f64>();
    let enough = f64::from(params.top_p) * sum(&left);
    let kept = (0..left.len()).find(|&n| sum(&left[..n]) >= enough);
    left.truncate(kept.unwrap_or(left.len()));
    left.sort_by_key(|(token, _)| *token);
    let target = params.draw * sum(&left);
    let drawn = (0..left.len()).find(|&n| sum(&left[..=n]) > target);
    drawn.map(|n| left[n].0 as u32)
}
