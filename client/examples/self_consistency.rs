//! Self-consistency: several answers are sampled, and the most frequent one is taken. It shows
//! `fork`, whose copies share the prompt in the cache, and `join`, which gathers their variables.

use std::collections::BTreeMap;

use hearth_client::Client;
use hearth_client::backends::Server;
use hearth_client::lang::{Error, Frontend, gen_int};

const SAMPLES: usize = 8;

pub async fn run(frontend: &Frontend) -> Result<String, Error> {
    let mut s = frontend.state();
    s += "Question: What is 3 + 4?\nAnswer: ";
    let mut forks = s.fork(SAMPLES);
    for (seed, fork) in (0..).zip(&mut forks) {
        *fork += gen_int("answer").max_tokens(4).temperature(1.0).seed(seed);
    }
    s.join(forks);
    let mut votes: BTreeMap<String, usize> = BTreeMap::new();
    for answer in s.var("answer").texts().await? {
        *votes.entry(answer?).or_default() += 1;
    }
    let best = votes.iter().max_by_key(|(_, count)| **count);
    let (answer, count) = best.map_or(("none", 0), |(answer, count)| (answer, *count));
    Ok(format!("{answer} ({count} of {SAMPLES} votes)"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::new(url.as_deref().unwrap_or("http://127.0.0.1:8000"))?;
    println!("{}", run(&Frontend::new(Server::new(client))).await?);
    Ok(())
}
