//! The model card, rendered from the numbers of one run.

use hearth_model::config::ModelConfig;

use crate::checkpoint::MAX_POSITIONS;
use crate::corpus::Turn;
use crate::corpus::arithmetic::HELD_OUT_PAIRS;
use crate::decode::StoryReport;
use crate::evaluate::Report;
use crate::options::{DeviceKind, TrainOptions};
use crate::record::Run;

const LIMITS: &str = "\
## What it can and cannot do

It is a demonstration: small enough to be compiled into the server, trained to answer sensibly in
a narrow domain so that every feature of the server has something to show.

It can tell short stories (with a hero, a name and a place of your choice), add and subtract
numbers below 100, copy fields of a short text into JSON, answer questions from a fixed list of
simple facts, remember the name you gave it, and make small talk, in English, over a few turns.

It knows nothing else. It has seen no text but the output of a small grammar: outside its domain
it says that it does not know, or answers nonsense with confidence. Its stories come from ten
plots. System prompts change nothing. Other wordings of a known task often work and often do not.
It must not be used for anything that matters.
";

const DATA: &str = "\
## Data

All text is made by the generator in `train/src/corpus` (own grammar, own word lists, no other
source); `hearth-train samples` prints it. A conversation is a pure function of a seed and an
index and mixes extraction (44 % of turns), arithmetic (36 %), facts (8 %), small talk (6 %) and
stories (6 %). In three quarters of the steps three in four have one turn and none more than five;
in the others most have two to fifteen. One in four has a system prompt. The loss counts the tokens of the answers only.

Held out of training, by construction and proved by tests that scan 50,000 conversations:

- these one-digit additions in any wording: PAIRS. The first nine are held out in both orders, of
  the last five the other order is trained. Training does hold sums of larger numbers in whose
  columns these digits meet (12 + 26), and subtractions that invert them (8 - 6 = 2);
- one in ten of the larger sums and of all subtractions;
- one in nine of all names of people and of cities, listed or made up from syllables (capitals of
  the facts excepted);
- one in eight of all combinations of a wording with an opening (\"Hello! \") or a closing
  (\" Thanks!\"), and three wordings of addition altogether.
";

/// The whole card.
pub fn render(
    options: &TrainOptions,
    config: &ModelConfig,
    run: &Run,
    report: &Report,
    stories: &StoryReport,
    talk: &[Turn],
) -> String {
    let pairs: Vec<String> = HELD_OUT_PAIRS
        .iter()
        .map(|(a, b)| format!("{a} + {b}"))
        .collect();
    let mut card = String::from("# hearth-tiny\n\n");
    card += "The model that `hearth` serves when it is given no other. Trained by this project with \
             `hearth-train` (`train`). Licence: MIT OR Apache-2.0.\n\n";
    card += LIMITS;
    card += "\n## Parameters\n\n";
    card += &format!(
        "Llama architecture, {} parameters, bf16: {} layers, hidden {}, {} query and {} key/value \
         heads of {}, SwiGLU {}, tied embeddings, vocabulary {} (byte-level BPE, single digits), \
         {} positions (trained on rows of {}, at times {} tokens).\n\n",
        run.parameters,
        config.layers.len(),
        config.hidden_size,
        config.heads,
        config.kv_heads,
        config.head_dim,
        config.widest_mlp(),
        config.vocab_size,
        MAX_POSITIONS,
        options.length,
        3 * options.length,
    );
    card += &DATA.replace("PAIRS", &pairs.join(", "));
    card += &training(options, run);
    card += &measured(report, stories);
    card += "\n## A conversation\n\nGreedy decoding, one conversation, as it came:\n\n";
    for turn in talk {
        card += &format!(
            "> **{}**\n>\n> {}\n\n",
            turn.user,
            turn.assistant.replace('\n', "\n> ")
        );
    }
    card
}

fn training(options: &TrainOptions, run: &Run) -> String {
    let device = match options.device {
        DeviceKind::Cpu => "the CPU (`flex`)",
        DeviceKind::Cuda => "CUDA",
        DeviceKind::Vulkan => "Vulkan",
    };
    let mut out = format!(
        "\n## Training\n\n{} steps of {} rows of {} tokens ({:.1} million tokens) in {:.1} minutes on \
         {device}, {:.0} tokens/s, f32. AdamW (0.9, 0.98), weight decay {}, gradients clipped at {}, \
         learning rate {} after {} steps of warm-up, then a cosine, seed {}.\n\n\
         Loss curve (mean of the points around each step; all points are in `loss.csv`):\n\n\
         | step | million tokens | loss |\n|---|---|---|\n",
        run.steps,
        options.batch,
        options.length,
        run.tokens as f64 / 1e6,
        run.seconds / 60.0,
        run.tokens as f64 / run.seconds.max(1e-9),
        options.weight_decay,
        options.clip,
        options.lr,
        options.warmup,
        options.seed,
    );
    for points in run.curve.chunks(run.curve.len().div_ceil(12).max(1)) {
        let (Some(last), count) = (points.last(), points.len() as f64) else {
            continue;
        };
        let mean = points.iter().map(|p| p.loss).sum::<f64>() / count;
        out += &format!(
            "| {} | {:.2} | {mean:.4} |\n",
            last.step,
            last.tokens as f64 / 1e6
        );
    }
    out
}

fn measured(report: &Report, stories: &StoryReport) -> String {
    let mut out = String::from(
        "\n## Measured on held-out prompts\n\n\
         Greedy decoding of the bf16 weights; an answer is right when it is the expected text to \
         the last character.\n\n| prompts | right | of | % |\n|---|---|---|---|\n",
    );
    for score in &report.scores {
        let percent = 100.0 * score.right as f64 / score.prompts.max(1) as f64;
        let (name, right, prompts) = (score.suite, score.right, score.prompts);
        out += &format!("| {name} | {right} | {prompts} | {percent:.1} |\n");
    }
    out += &format!(
        "\nAll one-digit additions: **{:.1} %**. All JSON extractions: **{:.1} %**. Of {} stories told \
         for held-out requests {} ended by themselves with 5 to 18 sentences, and {} of {} kept the \
         hero that was asked for.\n",
        report.addition_percent,
        report.json_percent,
        stories.stories,
        stories.well_formed,
        stories.hero_kept,
        stories.heroes_asked,
    );
    out
}
