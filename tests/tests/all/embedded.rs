//! Tests the embedded model, which a new user meets first.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use futures_util::future::join_all;
use hearth_client::Events;
use serde_json::{Value, json};

use super::harness::{CHAT, Server};

async fn say(server: &Server, question: &str) -> String {
    let body = json!({
        "model": "hearth-tiny", "messages": [{"role": "user", "content": question}],
        "temperature": 0, "max_tokens": 200, "stream": true,
    });
    let mut events = server.client.stream(CHAT, &body).await.unwrap();
    let (mut text, mut reason) = (String::new(), Value::Null);
    while let Some(event) = events.next().await.unwrap() {
        text += Events::text_of(&event);
        reason = event["choices"][0]["finish_reason"].clone();
    }
    println!("{question} {text}");
    assert_eq!(reason, "stop", "{question}: {text}");
    text
}

#[tokio::test]
async fn without_arguments_the_server_streams_a_sensible_answer() {
    let server = Server::embedded(&[]).await;
    println!(
        "/ready {:?} after the start of the process",
        server.ready_after
    );
    let answer = say(&server, "What is 3 + 4?").await;
    assert!(answer.contains('7'), "{answer}");
    let story = say(&server, "Tell me a story.").await;
    assert!(story.split_whitespace().count() >= 15, "{story}");
    server.wait_until_idle().await;
}

#[tokio::test]
async fn an_answer_does_not_depend_on_another_conversation() {
    let server = Server::embedded(&[]).await;
    let alone = say(&server, "What is 2 + 2?").await;
    say(&server, "Tell me a story.").await;
    assert_eq!(say(&server, "What is 2 + 2?").await, alone);
    assert!(alone.contains('4'), "{alone}");
}

#[tokio::test]
async fn sixteen_concurrent_conversations_get_the_same_answers_as_alone() {
    let bodies: Vec<Value> = (0..16)
        .map(|i| {
            let question = format!("What is {} + {}?", i % 4 + 1, i / 4 + 2);
            let messages = json!([{"role": "user", "content": question}]);
            json!({"messages": messages, "temperature": 0, "max_tokens": 60})
        })
        .collect();
    let mut answers = Vec::new();
    for flags in [
        &["--dtype", "f32", "--no-prefix-cache"][..],
        &["--dtype", "f32"],
        &["--dtype", "f32", "--prefill-chunk", "8"],
    ] {
        let server = Server::embedded(flags).await;
        let mut alone = Vec::new();
        for body in &bodies {
            alone.push(content(&server.ok(CHAT, body).await));
        }
        let together = join_all(bodies.iter().map(|body| server.ok(CHAT, body))).await;
        answers.push(alone);
        answers.push(together.iter().map(content).collect());
        server.wait_until_idle().await;
    }
    for other in &answers[1..] {
        assert_eq!(*other, answers[0]);
    }
}

fn content(answer: &Value) -> String {
    let content = answer["choices"][0]["message"]["content"].as_str();
    content.unwrap().to_owned()
}

/// A process that is killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_printed_curl_command_works() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no curl on this machine");
        return;
    }
    let mut command = super::harness::hearth();
    command.args(["--device", "cpu", "--port", "0"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process(command.spawn().unwrap());
    // Kept open to the end, because a server cannot print to a closed standard output.
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let mut banner = String::new();
    for line in lines.by_ref().map_while(Result::ok) {
        banner += &line;
        banner += "\n";
        // The body of the request is the banner's last line.
        if line.trim_start().starts_with("-d '") {
            break;
        }
    }
    for word in [
        "hearth-tiny",
        "http://127.0.0.1:",
        "weights",
        "KV cache",
        "slots",
        "context",
    ] {
        assert!(
            banner.contains(word),
            "the banner lacks {word:?}:\n{banner}"
        );
    }
    let (_, pasted) = banner.split_once("Try it:\n").expect("a line to paste");
    let answer = Command::new("sh").args(["-c", pasted]).output().unwrap();
    let answer: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    println!("{banner}{text}");
    assert!(text.split_whitespace().count() >= 5, "{answer}");
}

#[tokio::test]
async fn llama_servers_routes_tokenize_complete_and_give_the_text_back() {
    let server = Server::embedded(&[]).await;
    let tokens = async |parse: bool, text: &str| {
        let body = json!({"content": text, "parse_special": parse, "with_pieces": true});
        let answer = server.ok("/tokenize", &body).await;
        answer["tokens"].as_array().unwrap().clone()
    };
    let marked = "<|im_start|>user\nHi<|im_end|>";
    let (special, literal) = (tokens(true, marked).await, tokens(false, marked).await);
    assert_eq!(special[0]["piece"], "<|im_start|>");
    assert!(literal.len() > special.len() + 4, "{literal:?}");
    assert!(literal.iter().all(|token| token["id"] != special[0]["id"]));
    for tokens in [special, literal] {
        let ids: Vec<&Value> = tokens.iter().map(|token| &token["id"]).collect();
        let answer = server.ok("/detokenize", &json!({"tokens": ids})).await;
        assert_eq!(answer["content"], marked);
    }
    let prompt = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n";
    let body = json!({"prompt": prompt, "temperature": 0, "n_predict": 60, "n_probs": 1});
    let answer = server.ok("/completion", &body).await;
    assert!(
        answer["content"].as_str().unwrap().contains('7'),
        "{answer}"
    );
    assert_eq!(answer["stop_type"], "eos");
    assert_eq!(answer["prompt"], prompt);
    let told = answer["completion_probabilities"].as_array().unwrap();
    let texts = told.iter().map(|token| token["token"].as_str().unwrap());
    assert_eq!(
        texts.collect::<String>(),
        answer["content"].as_str().unwrap()
    );
    server.wait_until_idle().await;
}
