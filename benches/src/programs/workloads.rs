//! The programs: those of `client/examples`, as texts without roles and grammars, so that they run on
//! any completions API, and with lengths that make a model work. A choice is a generation of one token.

use clap::ValueEnum;
use hearth_client::lang::Generate;
use hearth_client::lang::{Error, State, generate};

use super::texts::text;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Program {
    /// Questions after the same examples, with an answer of one token
    FewShot,
    /// Four turns
    Chat,
    /// Eight samples of one prompt
    SelfConsistency,
    /// Three plans, three solutions of each, a grade for each
    TreeOfThought,
    /// Four points one after another, and then four texts at a time
    SkeletonOfThought,
    /// An essay judged in four dimensions at a time, and a grade
    Judge,
    /// Four steps of a thought, an action and an observation
    React,
    /// Five fields of a record after a document
    Extraction,
    /// Six questions about one document
    Rag,
}

use Program::*;

impl Program {
    /// The name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Runs one instance to its end.
    ///
    /// # Errors
    /// A call fails.
    pub async fn run(self, s: &mut State, instance: usize) -> Result<(), Error> {
        let seed = instance as u64;
        match self {
            FewShot => {
                s.extend(format!("Few-shot. {}\n", text(1_000, 1_200)));
                s.extend(format!("Question {instance}: {}\nAnswer: ", text(seed, 80)));
                s.extend(write("answer", 1));
            }
            Chat => {
                s.extend(format!("Chat. {}\n", text(2_000, 400)));
                for turn in 0..4 {
                    s.extend(format!(
                        "User: {}\nAssistant: ",
                        text(100 * seed + turn, 60)
                    ));
                    s.extend(write(&format!("turn{turn}"), 24)).extend("\n");
                }
            }
            SelfConsistency => {
                s.extend(format!("Samples. {}\nAnswer: ", text(3_000 + seed, 300)));
                let forks = spread(s, 8, |_| String::new(), "answer", 24);
                wait(forks).await?;
            }
            TreeOfThought => {
                s.extend(format!("Tree. {}\n", text(4_000 + seed, 400)));
                let mut leaves = Vec::new();
                for mut plan in spread(s, 3, |_| "Plan: ".to_owned(), "plan", 16) {
                    for mut leaf in
                        spread(&mut plan, 3, |_| "\nSolution: ".to_owned(), "solution", 16)
                    {
                        leaf.extend("\nGrade: ").extend(write("grade", 1));
                        leaves.push(leaf);
                    }
                }
                wait(leaves).await?;
            }
            SkeletonOfThought => {
                s.extend(format!("Skeleton. {}\nPoints:\n", text(5_000 + seed, 300)));
                for point in 0..4 {
                    s.extend(format!("{point}. "));
                    s.extend(write(&format!("point{point}"), 8)).extend("\n");
                }
                let forks = spread(s, 4, |point| format!("Point {point}: "), "body", 24);
                wait(forks).await?;
            }
            Judge => {
                s.extend(format!("Judge. {}\n", text(6_000, 200)));
                s.extend(format!("Essay: {}\n", text(7_000 + seed, 600)));
                let forks = spread(
                    s,
                    4,
                    |d| format!("Dimension {d}: {}: ", text(d, 40)),
                    "judgement",
                    24,
                );
                s.concatenate(forks);
                s.extend("\nGrade: ").extend(write("grade", 1));
            }
            React => {
                s.extend(format!(
                    "React. {}\nQuestion: {}\n",
                    text(8_000, 400),
                    text(seed, 60)
                ));
                for step in 0..4 {
                    s.extend(format!("Thought {step}: "));
                    s.extend(write(&format!("thought{step}"), 16))
                        .extend("\nAction: ");
                    s.extend(write(&format!("action{step}"), 8));
                    s.extend(format!("\nObservation: {}\n", text(10 * seed + step, 60)));
                }
            }
            Extraction => {
                s.extend(format!("Extract. {}\n", text(9_000 + seed, 500)));
                for field in ["name", "house", "age", "city", "pet"] {
                    s.extend(format!("{field}: "))
                        .extend(write(field, 8))
                        .extend("\n");
                }
            }
            Rag => {
                s.extend(format!("Document: {}\n", text(10_000 + seed, 1_200)));
                let question = |n| format!("Question: {}\nAnswer: ", text(50 + n, 60));
                let forks = spread(s, 6, question, "answer", 16);
                wait(forks).await?;
            }
        }
        s.text().await.map(drop)
    }
}

/// A generation of exactly `tokens` tokens, unless the model ends the text before.
fn write(name: &str, tokens: u32) -> Generate {
    generate(name).max_tokens(tokens).temperature(0.0)
}

/// Forks `s`; each fork asks `ask` of its number and samples an answer.
fn spread(
    s: &mut State,
    n: usize,
    ask: impl Fn(u64) -> String,
    name: &str,
    tokens: u32,
) -> Vec<State> {
    let mut forks = s.fork(n);
    for (number, fork) in (0_u32..).zip(&mut forks) {
        fork.extend(ask(u64::from(number)));
        let sampled = generate(name).max_tokens(tokens);
        fork.extend(sampled.temperature(1.0).seed(i64::from(number)));
    }
    forks
}

async fn wait(states: Vec<State>) -> Result<(), Error> {
    for mut state in states {
        state.text().await?;
    }
    Ok(())
}
