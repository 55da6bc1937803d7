//! Every example runs to its end on a made-up back end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each example has a main function of its own")]

use async_trait::async_trait;
use hearth_client::lang::backend::{Backend, Call, Completion, Prompt, Scores, Sink};
use hearth_client::lang::{ChoiceLogprobs, Error, Frontend};

#[path = "../examples/branch_solve_merge.rs"]
mod branch_solve_merge;
#[path = "../examples/few_shot_select.rs"]
mod few_shot_select;
#[path = "../examples/json_extraction.rs"]
mod json_extraction;
#[path = "../examples/long_document_rag.rs"]
mod long_document_rag;
#[path = "../examples/multi_turn_chat.rs"]
mod multi_turn_chat;
#[path = "../examples/react_agent.rs"]
mod react_agent;
#[path = "../examples/self_consistency.rs"]
mod self_consistency;
#[path = "../examples/skeleton_of_thought.rs"]
mod skeleton_of_thought;
#[path = "../examples/tree_of_thought.rs"]
mod tree_of_thought;

#[tokio::test]
async fn each_example_gives_its_answer() {
    let frontend = Frontend::new(Obedient);
    let cases = [
        (few_shot_select::run(&frontend).await, "B B B"),
        (multi_turn_chat::run(&frontend).await, "assistant: word"),
        (self_consistency::run(&frontend).await, "7 (8 of 8 votes)"),
        (tree_of_thought::run(&frontend).await, "grade 2: word"),
        (
            skeleton_of_thought::run(&frontend).await,
            "Point 3, word: word",
        ),
        (branch_solve_merge::run(&frontend).await, "Grade: B"),
        (react_agent::run(&frontend).await, "Action: Finish"),
        (
            json_extraction::run(&frontend).await,
            "house Gryffindor, wizard true, friends 2",
        ),
        (
            long_document_rag::run(&frontend).await,
            "Who is happy? word",
        ),
    ];
    for (given, expected) in cases {
        let given = given.unwrap();
        assert!(given.contains(expected), "{given}");
    }
}

/// Writes a text of the form that the program asks for, and takes the second choice.
struct Obedient;

#[async_trait]
impl Backend for Obedient {
    fn name(&self) -> &str {
        "obedient"
    }

    async fn generate(&self, call: &Call, _: Sink<'_>) -> Result<Completion, Error> {
        let text = match (&call.format.regex, &call.format.json_schema) {
            (Some(regex), _) if regex.contains("\\+") => "3 + 4",
            (Some(_), _) => "7",
            (_, Some(_)) => r#"{"house": "Gryffindor", "wizard": true, "friends": 2}"#,
            _ => "word",
        };
        Ok(Completion {
            text: text.to_owned(),
            ..Completion::default()
        })
    }

    async fn score(&self, _: &Prompt, choices: &[String], _: bool) -> Result<Scores, Error> {
        let each = (0..choices.len()).map(|index| ChoiceLogprobs {
            logprobs: vec![if index == 1 { 0.0 } else { -1.0 }],
            unconditional: Vec::new(),
        });
        Ok(Scores {
            choices: each.collect(),
            ..Scores::default()
        })
    }
}
