//! Branch-solve-merge: an essay is judged in several dimensions at the same time, and the judgements
//! are merged into one grade. It shows that a failed branch is a value and no end of the program.

use hearth_client::Client;
use hearth_client::backends::Server;
use hearth_client::lang::{Error, Frontend, generate, select};

const ESSAY: &str = "Once upon a time there was a cat. It had a hat, and everybody was happy.";
const DIMENSIONS: [&str; 3] = ["clarity", "originality", "grammar"];

pub async fn run(frontend: &Frontend) -> Result<String, Error> {
    let mut s = frontend.state();
    s.extend("Essay: ").extend(ESSAY).extend("\n");
    let mut forks = s.fork(DIMENSIONS.len());
    for (fork, dimension) in forks.iter_mut().zip(DIMENSIONS) {
        fork.extend(format!("Judge its {dimension} in one sentence: "));
        fork.extend(
            generate("judgement")
                .max_tokens(20)
                .temperature(0.0)
                .stop("\n"),
        );
    }
    s.join(forks);
    s += "Judgements:\n";
    let judgements = s.var("judgement").texts().await?;
    for (dimension, judgement) in DIMENSIONS.iter().zip(judgements) {
        let judgement = judgement.unwrap_or_else(|error| format!("there is none ({error})"));
        s += format!("- {dimension}: {judgement}\n");
    }
    s += "Grade: ";
    s += select("grade", ["A", "B", "C", "D"]);
    s.text().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::new(url.as_deref().unwrap_or("http://127.0.0.1:8000"))?;
    println!("{}", run(&Frontend::new(Server::new(client))).await?);
    Ok(())
}
