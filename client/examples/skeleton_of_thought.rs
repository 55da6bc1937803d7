//! Skeleton of thought: the points of an answer first, then all points written at the same time. It
//! shows forks that read the variables of their parent, and `concatenate`, which puts the texts of
//! the forks together.

use hearth_client::Client;
use hearth_client::backends::Server;
use hearth_client::lang::{Error, Frontend, generate};

const POINTS: usize = 3;

pub async fn run(frontend: &Frontend) -> Result<String, Error> {
    let mut s = frontend.state();
    s += "Question: How does one keep a cat?\nPoints:\n";
    for point in 1..=POINTS {
        s += format!("{point}. ");
        s += generate(&format!("point{point}"))
            .max_tokens(8)
            .temperature(0.0)
            .stop("\n");
        s += "\n";
    }
    let mut forks = s.fork(POINTS);
    for (point, fork) in (1..).zip(&mut forks) {
        let title = fork.var(&format!("point{point}"));
        fork.extend(format!("\nPoint {point}, "))
            .extend(title)
            .extend(": ");
        fork.extend(generate("body").max_tokens(16).temperature(0.0).stop("\n"));
    }
    s.concatenate(forks);
    s.text().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::new(url.as_deref().unwrap_or("http://127.0.0.1:8000"))?;
    println!("{}", run(&Frontend::new(Server::new(client))).await?);
    Ok(())
}
