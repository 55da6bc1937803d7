//! Exact-match accuracy on the held-out suites.
//!
//! Every prompt has one right answer, so greedy decoding need not be run token by token: it
//! produces the right answer if and only if, given the prompt and the right answer so far, the
//! most probable token is the right one at each place, its end included. One forward pass over
//! prompt and answer decides that. (An answer spelled with other tokens counts as wrong.)

use anyhow::Result;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use hearth_model::config::ModelConfig;
use hearth_model::transformer::Transformer;
use serde::Serialize;

use crate::options::{DeviceKind, TrainOptions};
use crate::suites::{Group, suites};
use crate::tokenizer::{Encoder, PAD_ID};

/// The largest number of tokens of prompt and answer of a case. Longer cases are left out.
pub const LENGTH: usize = 1024;

/// The shapes of the measured forward passes. They are few, because a GPU tunes its kernels for
/// each.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    /// Rows of a forward pass.
    pub rows: usize,
    /// Lengths are rounded up to a multiple of this.
    pub length: usize,
    /// A pass with fewer rows is filled up to `rows`.
    pub fill: bool,
}

impl Grid {
    /// On a GPU the shapes of training, whose kernels are tuned already; on a CPU at most `rows`
    /// rows and as little padding as possible.
    pub fn of(options: &TrainOptions, rows: usize) -> Self {
        match options.device {
            DeviceKind::Cpu => Self {
                rows: rows.max(1),
                length: 64,
                fill: false,
            },
            DeviceKind::Cuda | DeviceKind::Vulkan => Self {
                rows: options.batch,
                length: options.length,
                fill: true,
            },
        }
    }

    /// Pads `rows` of ids to a tensor `[rows, length]`; causal attention makes padding on
    /// the right harmless. At most `self.rows` rows.
    pub fn tokens<B: Backend>(&self, rows: &[&[u32]], device: &B::Device) -> Tensor<B, 2, Int> {
        let longest = rows.iter().map(|row| row.len()).max().unwrap_or(1);
        let length = longest.next_multiple_of(self.length);
        let count = if self.fill { self.rows } else { rows.len() };
        let mut tokens = vec![PAD_ID as i32; count * length];
        for (row, place) in rows.iter().zip(tokens.chunks_mut(length)) {
            for (id, place) in row.iter().zip(place) {
                *place = *id as i32;
            }
        }
        Tensor::from_data(TensorData::new(tokens, [count, length]), device)
    }
}

/// For each row of `rows` the most probable next token at each of its places.
pub fn most_probable<B: Backend>(
    model: &Transformer<B>,
    config: &ModelConfig,
    device: &B::Device,
    rows: &[&[u32]],
    grid: Grid,
) -> Vec<Vec<u32>> {
    let mut out = Vec::with_capacity(rows.len());
    for chunk in rows.chunks(grid.rows) {
        let tokens = grid.tokens(chunk, device);
        let [_, length] = tokens.dims();
        let best = model
            .forward_dense(config, tokens)
            .argmax(2)
            .into_data()
            .convert::<i64>();
        let best: Vec<i64> = best.iter().collect();
        out.extend(chunk.iter().zip(best.chunks(length)).map(|(row, best)| {
            best[..row.len()]
                .iter()
                .map(|&token| token as u32)
                .collect::<Vec<u32>>()
        }));
    }
    out
}

#[derive(Debug, Clone, Serialize)]
pub struct Score {
    pub suite: &'static str,
    pub right: usize,
    pub prompts: usize,
    /// The first wrong answers: the prompt, the right answer, and the most probable tokens.
    pub wrong: Vec<Wrong>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Wrong {
    pub prompt: String,
    pub expected: String,
    pub most_probable: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub scores: Vec<Score>,
    /// Over all suites of one-digit additions, in percent.
    pub addition_percent: f64,
    /// Over all suites of JSON extraction, in percent.
    pub json_percent: f64,
}

struct Case {
    suite: usize,
    ids: Vec<u32>,
    answer: usize,
}

/// Measures `model` on `count` prompts per suite.
pub fn evaluate<B: Backend>(
    model: &Transformer<B>,
    config: &ModelConfig,
    encoder: &Encoder,
    device: &B::Device,
    count: usize,
    grid: Grid,
) -> Result<Report> {
    let suites = suites(count);
    let mut cases = Vec::new();
    for (suite, set) in suites.iter().enumerate() {
        for case in &set.cases {
            let (prompt, answer) = encoder.last_answer(case)?;
            if prompt.len() + answer.len() <= LENGTH {
                let ids = [prompt, answer.clone()].concat();
                cases.push(Case {
                    suite,
                    ids,
                    answer: answer.len(),
                });
            }
        }
    }
    let mut scores: Vec<Score> = suites
        .iter()
        .map(|s| Score {
            suite: s.name,
            right: 0,
            prompts: 0,
            wrong: Vec::new(),
        })
        .collect();
    // Cases of similar length share a batch, so that short prompts are not padded to long ones.
    cases.sort_by_key(|case| case.ids.len());
    let rows: Vec<&[u32]> = cases.iter().map(|case| case.ids.as_slice()).collect();
    let best = most_probable(model, config, device, &rows, grid);
    for (case, best) in cases.iter().zip(best) {
        let start = case.ids.len() - case.answer;
        // The token at i is predicted at i - 1.
        let guess = &best[start - 1..case.ids.len() - 1];
        let score = &mut scores[case.suite];
        score.prompts += 1;
        if *guess == case.ids[start..] {
            score.right += 1;
        } else if score.wrong.len() < 5 {
            score.wrong.push(Wrong {
                prompt: encoder.decode(&case.ids[..start])?,
                expected: encoder.decode(&case.ids[start..])?,
                most_probable: encoder.decode(guess)?,
            });
        }
    }
    let percent = |group: Group| {
        let of_group = || suites.iter().zip(&scores).filter(|(s, _)| s.group == group);
        let right: usize = of_group().map(|(_, score)| score.right).sum();
        let prompts: usize = of_group().map(|(_, score)| score.prompts).sum();
        100.0 * right as f64 / prompts.max(1) as f64
    };
    let (addition_percent, json_percent) = (percent(Group::Addition), percent(Group::Json));
    Ok(Report {
        scores,
        addition_percent,
        json_percent,
    })
}

/// The report as lines for a terminal.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    for score in &report.scores {
        let percent = 100.0 * score.right as f64 / score.prompts.max(1) as f64;
        out += &format!(
            "  {percent:6.1} %  {:>4}/{:<4} {}\n",
            score.right, score.prompts, score.suite
        );
    }
    out += &format!(
        "  one-digit additions {:.1} %, JSON extractions {:.1} %",
        report.addition_percent, report.json_percent
    );
    out
}
