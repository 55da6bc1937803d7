//! ReAct: thoughts and calls of a tool take turns, until the model finishes. It shows a program
//! whose next statement depends on what was generated before.

use hearth_client::Client;
use hearth_client::backends::Server;
use hearth_client::lang::{Error, Frontend, generate, select};

const STEPS: usize = 3;

/// The tool: adds two numbers.
fn add(call: &str) -> String {
    let numbers = call.split('+').map(|number| number.trim().parse::<i64>());
    match numbers.collect::<Result<Vec<_>, _>>() {
        Ok(numbers) => numbers.iter().sum::<i64>().to_string(),
        Err(error) => format!("error: {error}"),
    }
}

pub async fn run(frontend: &Frontend) -> Result<String, Error> {
    let mut s = frontend.state();
    s += "Answer with the tool Add, which adds two numbers.\nQuestion: What is 3 + 4?\n";
    for step in 1..=STEPS {
        s += format!("Thought {step}: ");
        s += generate("thought")
            .max_tokens(12)
            .temperature(0.0)
            .stop("\n");
        s += "\nAction: ";
        s += select("action", ["Add", "Finish"]);
        if s.get_text("action").await? == "Finish" {
            break;
        }
        s += " ";
        s += generate("call")
            .regex("[0-9]{1,3} \\+ [0-9]{1,3}")
            .temperature(0.0);
        let result = add(&s.get_text("call").await?);
        s += format!("\nObservation: {result}\n");
    }
    s.text().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::new(url.as_deref().unwrap_or("http://127.0.0.1:8000"))?;
    println!("{}", run(&Frontend::new(Server::new(client))).await?);
    Ok(())
}
