//! A chat of several turns. It shows roles: every answer is generated while the whole conversation
//! before it is in the prefix cache, and only the last reading waits.

use hearth_client::Client;
use hearth_client::backends::Server;
use hearth_client::lang::{Error, Frontend, generate};

const QUESTIONS: [&str; 3] = ["What is 3 + 4?", "What is 2 + 2?", "Tell me a story."];

pub async fn run(frontend: &Frontend) -> Result<String, Error> {
    let mut s = frontend.state();
    for (turn, question) in QUESTIONS.iter().enumerate() {
        s.user(*question);
        let answer = generate(&format!("answer{turn}"));
        s.assistant(answer.max_tokens(24).temperature(0.0));
    }
    let messages = s.messages().await?;
    let lines = messages
        .iter()
        .map(|m| format!("{}: {}", m.role.name(), m.content));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::new(url.as_deref().unwrap_or("http://127.0.0.1:8000"))?;
    println!("{}", run(&Frontend::new(Server::new(client))).await?);
    Ok(())
}
