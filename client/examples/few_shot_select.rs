//! Few-shot questions with four choices, as in MMLU. It shows `select`, which compares all choices
//! with one request, and `run_batch`, which computes the examples that all questions share once.

use hearth_client::Client;
use hearth_client::backends::Server;
use hearth_client::lang::{Batch, Error, Frontend, State, select};

const EXAMPLES: &str = "\
Question: What is 1 + 1?\nA. 2\nB. 3\nC. 4\nD. 5\nAnswer: A\n\n\
Question: What is 2 + 1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: C\n\n";

const QUESTIONS: [(&str, [&str; 4]); 3] = [
    ("What is 3 + 4?", ["6", "7", "8", "9"]),
    ("What is 2 + 2?", ["4", "5", "6", "7"]),
    ("What is 5 + 1?", ["3", "4", "5", "6"]),
];

async fn answer(s: &mut State, question: (&str, [&str; 4])) -> Result<String, Error> {
    let (question, [a, b, c, d]) = question;
    s.extend(EXAMPLES).extend(format!(
        "Question: {question}\nA. {a}\nB. {b}\nC. {c}\nD. {d}\nAnswer: "
    ));
    s.extend(select("answer", ["A", "B", "C", "D"]));
    s.get_text("answer").await
}

pub async fn run(frontend: &Frontend) -> Result<String, Error> {
    let batch = Batch::default().progress_bar();
    let answers = frontend.run_batch(answer, QUESTIONS, batch).await;
    let answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(answers.join(" "))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::new(url.as_deref().unwrap_or("http://127.0.0.1:8000"))?;
    println!("{}", run(&Frontend::new(Server::new(client))).await?);
    Ok(())
}
