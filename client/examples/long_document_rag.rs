//! Questions about a long document. It shows a document that is computed once for all questions,
//! and a program that is traced first: its graph is checked, and then run.

use hearth_client::Client;
use hearth_client::backends::Server;
use hearth_client::lang::{Error, Frontend, State, generate, trace};

const QUESTIONS: [&str; 3] = [
    "Who has a hat?",
    "Who is happy?",
    "What is the story about?",
];

fn program(s: &mut State) {
    let document = "Once upon a time there was a cat. It had a hat. ".repeat(8);
    s.extend("Document: ").extend(document).extend("\n");
    let mut forks = s.fork(QUESTIONS.len());
    for (fork, question) in forks.iter_mut().zip(QUESTIONS) {
        fork.extend(format!("Question: {question}\nAnswer: "));
        fork.extend(
            generate("answer")
                .max_tokens(12)
                .temperature(0.0)
                .stop("\n"),
        );
    }
    s.join(forks);
}

pub async fn run(frontend: &Frontend) -> Result<String, Error> {
    let graph = trace(program);
    if let Some(warning) = graph.check(&["answer"]).first() {
        return Err(Error::Misuse(warning.to_string()));
    }
    let states = graph.run(frontend)?;
    let mut lines = Vec::new();
    for (question, state) in QUESTIONS.iter().zip(&states[1..]) {
        for answer in &state.variables {
            lines.push(format!("{question} {}", answer.text().await?));
        }
    }
    Ok(lines.join("\n"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::new(url.as_deref().unwrap_or("http://127.0.0.1:8000"))?;
    println!("{}", run(&Frontend::new(Server::new(client))).await?);
    Ok(())
}
