//! Greedy decoding without a KV cache, for stories and for sample answers.

use anyhow::Result;
use burn::tensor::backend::Backend;
use hearth_model::config::ModelConfig;
use hearth_model::transformer::Transformer;
use serde::Serialize;

use crate::corpus::rng::Rng;
use crate::corpus::story::{request, sentences};
use crate::corpus::{Conversation, Split, Task, Turn};
use crate::evaluate::{Grid, most_probable};
use crate::tokenizer::{END_ID, Encoder};

/// Answers to the last turn of each conversation, of at most `limit` tokens each. An answer that
/// does not end by itself is an `Err` with its text.
pub fn greedy<B: Backend>(
    model: &Transformer<B>,
    config: &ModelConfig,
    encoder: &Encoder,
    device: &B::Device,
    conversations: &[Conversation],
    limit: usize,
    grid: Grid,
) -> Result<Vec<std::result::Result<String, String>>> {
    let mut rows = Vec::with_capacity(conversations.len());
    for conversation in conversations {
        rows.push(encoder.last_answer(conversation)?.0);
    }
    let prompts: Vec<usize> = rows.iter().map(Vec::len).collect();
    let mut open: Vec<bool> = vec![true; rows.len()];
    for _ in 0..limit {
        let views: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let best = most_probable(model, config, device, &views, grid);
        for ((row, open), best) in rows.iter_mut().zip(&mut open).zip(best) {
            let next = best.last().copied().unwrap_or(END_ID);
            *open = *open && next != END_ID;
            if *open {
                row.push(next);
            }
        }
        if open.iter().all(|open| !open) {
            break;
        }
    }
    let answers = rows.iter().enumerate().map(|(i, row)| {
        let text = encoder.decode(&row[prompts[i]..])?;
        Ok(if open[i] { Err(text) } else { Ok(text) })
    });
    answers.collect()
}

/// Counts of properties of the generated stories.
#[derive(Debug, Clone, Serialize)]
pub struct StoryReport {
    pub stories: usize,
    /// Stories that ended by themselves and have 5 to 18 sentence ends.
    pub well_formed: usize,
    /// Stories that name the hero that their request names.
    pub hero_kept: usize,
    pub heroes_asked: usize,
    pub samples: Vec<(String, String)>,
}

/// Generates `count` stories for held-out requests.
pub fn tell_stories<B: Backend>(
    model: &Transformer<B>,
    config: &ModelConfig,
    encoder: &Encoder,
    device: &B::Device,
    count: usize,
    grid: Grid,
) -> Result<StoryReport> {
    let requests: Vec<_> = (0..count)
        .map(|i| request(&mut Rng::new(0x570, i as u64), Split::HeldOut))
        .collect();
    let conversations: Vec<_> = requests
        .iter()
        .map(|(turn, _)| Conversation::of(turn.clone()))
        .collect();
    let answers = greedy(model, config, encoder, device, &conversations, 240, grid)?;
    let mut report = StoryReport {
        stories: count,
        well_formed: 0,
        hero_kept: 0,
        heroes_asked: 0,
        samples: vec![],
    };
    for ((turn, wish), answer) in requests.iter().zip(answers) {
        let ended = answer.is_ok();
        let (Ok(text) | Err(text)) = answer;
        report.well_formed += usize::from(ended && (5..=18).contains(&sentences(&text)));
        if wish.kind.is_some() || wish.name.is_some() {
            report.heroes_asked += 1;
            let kind = wish.kind.is_none_or(|kind| text.contains(kind));
            let name = wish
                .name
                .as_ref()
                .is_none_or(|(name, _)| text.contains(name.as_str()));
            report.hero_kept += usize::from(kind && name);
        }
        if report.samples.len() < 6 {
            report.samples.push((turn.user.clone(), text));
        }
    }
    Ok(report)
}

/// A scripted conversation in which the model's own answers stay in the context.
pub fn transcript<B: Backend>(
    model: &Transformer<B>,
    config: &ModelConfig,
    encoder: &Encoder,
    device: &B::Device,
    prompts: &[&str],
    grid: Grid,
) -> Result<Vec<Turn>> {
    let mut conversation = Conversation {
        system: None,
        turns: Vec::new(),
    };
    for prompt in prompts {
        conversation.turns.push(Turn {
            task: Task::Chat,
            user: (*prompt).to_owned(),
            assistant: String::new(),
        });
        let asked = std::slice::from_ref(&conversation);
        let answer = greedy(model, config, encoder, device, asked, 240, grid)?.remove(0);
        let (Ok(text) | Err(text)) = answer;
        if let Some(turn) = conversation.turns.last_mut() {
            turn.assistant = text;
        }
    }
    Ok(conversation.turns)
}
