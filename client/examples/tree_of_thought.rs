//! Tree of thought: several plans, several solutions of each, a grade for each solution, and the
//! best of them. It shows forks of forks: all branches share the prefixes that they have in common.

use hearth_client::Client;
use hearth_client::backends::Server;
use hearth_client::lang::{Error, Frontend, State, generate, select};

const BRANCHES: usize = 2;

/// Adds `ask` to copies of the state, and generates an answer in each.
fn branch(s: &mut State, ask: &str, name: &str) -> Vec<State> {
    let mut forks = s.fork(BRANCHES);
    for (seed, fork) in (0..).zip(&mut forks) {
        fork.extend(ask);
        fork.extend(
            generate(name)
                .max_tokens(16)
                .temperature(0.8)
                .seed(seed)
                .stop("\n"),
        );
    }
    forks
}

pub async fn run(frontend: &Frontend) -> Result<String, Error> {
    let mut s = frontend.state();
    s += "Question: Tom has 3 apples and gets 4. How many has he now?\n";
    let mut leaves = Vec::new();
    for mut plan in branch(&mut s, "Plan: ", "plan") {
        for mut leaf in branch(&mut plan, "\nSolution: ", "solution") {
            leaf += "\nGrade from 1 to 5: ";
            leaf += select("grade", ["1", "2", "3", "4", "5"]);
            leaves.push(leaf);
        }
    }
    let mut best = (0, String::new());
    for leaf in &leaves {
        let grade: u32 = leaf.get("grade").await?;
        if grade > best.0 {
            best = (grade, leaf.get_text("solution").await?);
        }
    }
    Ok(format!("grade {}: {}", best.0, best.1))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::new(url.as_deref().unwrap_or("http://127.0.0.1:8000"))?;
    println!("{}", run(&Frontend::new(Server::new(client))).await?);
    Ok(())
}
