//! Each primitive on its own.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hearth_client::lang::{
    ChoiceMethod, Error, Expr, Frontend, Scripted, Value, gen_int, generate, image, select, trace,
};
use hearth_client::{Message, Role};
use serde_json::json;

use super::fake::Fake;

fn scripted(script: &str) -> (Fake, Frontend) {
    let fake = Fake::with_script(script);
    (fake.clone(), Frontend::new(fake))
}

#[tokio::test]
async fn text_and_generations_follow_one_another() {
    let (_, frontend) = scripted("name: Ada\nage: 36\n");
    let mut s = frontend.state();
    s += "form#name: ";
    s += generate("name").stop("\n");
    s += [
        "\nage: ".into(),
        Expr::from(gen_int("age").stop("\n")),
        "\n".into(),
    ];
    assert_eq!(s.get::<i64>("age").await, Ok(36));
    assert_eq!(s.get_text("name").await.unwrap(), "Ada");
    assert_eq!(s.text().await.unwrap(), "form#name: Ada\nage: 36\n");
    assert!(s.meta("age").await.unwrap().usage.prompt_tokens > 0);
    // A variable is an expression.
    let name = s.var("name");
    s += name;
    assert!(s.text().await.unwrap().ends_with("\nAda"));
}

#[tokio::test]
async fn only_reading_waits() {
    let mut fake = Fake::with_script("abc");
    fake.step = Duration::from_millis(50);
    let frontend = Frontend::new(fake.clone());
    let mut s = frontend.state();
    s += "#";
    s += generate("x");
    let mut forks = s.fork(4);
    for fork in &mut forks {
        *fork += "!";
        *fork += generate("y").max_tokens(2);
    }
    assert_eq!(fake.counts.calls.load(Relaxed), 0);
    s.join(forks);
    assert_eq!(s.var("y").texts().await.unwrap().len(), 4);
    // The generations of independent forks ran together.
    assert_eq!(fake.counts.most_running.load(Relaxed), 4);
}

#[tokio::test]
async fn roles_make_messages_and_text_outside_of_them_is_an_error() {
    let (_, frontend) = scripted("hello");
    let mut s = frontend.state();
    s.system("be brief").user("say it");
    s.assistant(generate("answer"));
    let messages = s.messages().await.unwrap();
    let last = Message {
        role: Role::Assistant,
        content: "hello".to_owned(),
    };
    assert_eq!((messages.len(), &messages[2]), (3, &last));
    s += "lost";
    assert!(matches!(s.text().await, Err(Error::Misuse(_))));
}

#[tokio::test]
async fn select_takes_the_best_choice_by_each_method() {
    let (fake, frontend) = scripted("");
    for method in [
        ChoiceMethod::TokenLengthNormalized,
        ChoiceMethod::GreedyTokenSelection,
        ChoiceMethod::UnconditionalLikelihoodNormalized,
    ] {
        let before = fake.counts.calls.load(Relaxed);
        let mut s = frontend.state();
        s += "pick ";
        s += select("which", ["one", "two", "three"]).method(method);
        let which = s.get_text("which").await.unwrap();
        assert!(["one", "two", "three"].contains(&which.as_str()));
        assert_eq!(s.meta("which").await.unwrap().scores.len(), 3);
        assert_eq!(s.text().await.unwrap(), format!("pick {which}"));
        assert_eq!(fake.counts.calls.load(Relaxed), before + 1);
    }
    let mut s = frontend.state();
    s += select("none", Vec::<String>::new());
    assert!(matches!(s.get_text("none").await, Err(Error::Misuse(_))));
}

#[tokio::test]
async fn a_fork_fails_alone_and_its_error_is_its_value() {
    let (fake, frontend) = scripted("abc");
    let mut s = frontend.state();
    s += "#";
    let mut forks = s.fork(3);
    forks[1] += "fail here";
    for fork in &mut forks {
        *fork += generate("x");
    }
    s.join(forks);
    let values = s.var("x").texts().await.unwrap();
    assert_eq!(values[0].as_deref(), Ok("abc"));
    assert!(matches!(
        &values[1],
        Err(Error::Refused { status: 400, .. })
    ));
    assert_eq!(values[2].as_deref(), Ok("abc"));
    let json = match s.var("x").outcome().await.unwrap().value {
        value @ Value::List(_) => value.to_json(),
        Value::Text(_) => json!(null),
    };
    assert_eq!(json[1]["error"], "400: it was told to");
    // The state itself goes on, and computed the common text once.
    s += generate("more");
    assert_eq!(s.get_text("more").await.unwrap(), "abc");
    assert_eq!(*fake.counts.cached.lock().unwrap(), ["#"]);
}

#[tokio::test]
async fn forks_are_concatenated_in_their_order() {
    let (_, frontend) = scripted("ab");
    let mut s = frontend.state();
    s += "list#";
    let mut forks = s.fork(2);
    for fork in &mut forks {
        *fork += generate("part");
        *fork += ";";
    }
    s.concatenate(forks);
    assert_eq!(s.text().await.unwrap(), "list#ab;ab;");
}

#[tokio::test]
async fn a_scope_has_the_text_of_its_statements() {
    let (_, frontend) = scripted("abc");
    let mut s = frontend.state();
    s += "#";
    s.var_scope("all", |s| {
        s.extend("a").extend(generate("rest")).extend("!");
    });
    assert_eq!(s.get_text("all").await.unwrap(), "abc!");
    s.set("note", "n");
    assert_eq!(s.get_text("note").await.unwrap(), "n");
}

#[tokio::test]
async fn variables_and_texts_are_streamed() {
    let frontend = Frontend::new(Fake::with_script("a b c d e f g")).streaming();
    let mut s = frontend.state();
    s += "#";
    s += generate("x");
    s += "!";
    let (mut var, mut text) = (s.stream("x"), s.text_stream());
    let (mut pieces, mut whole) = (Vec::new(), String::new());
    while let Some(piece) = var.next().await {
        pieces.push(piece.unwrap());
    }
    while let Some(piece) = text.next().await {
        whole += &piece.unwrap();
    }
    assert!(pieces.len() > 1, "{pieces:?}");
    assert_eq!(
        (pieces.concat().as_str(), whole.as_str()),
        ("a b c d e f g", "#a b c d e f g!")
    );
}

#[tokio::test]
async fn what_cannot_be_is_a_typed_error() {
    let (_, frontend) = scripted("abc");
    let mut s = frontend.state();
    assert_eq!(s.get_text("x").await, Err(Error::Undefined("x".to_owned())));
    s += "#";
    s += generate("x");
    assert!(matches!(
        s.get::<i64>("x").await,
        Err(Error::WrongType { .. })
    ));
    s += image("cat.png");
    s += generate("y");
    let error = s.get_text("y").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the back end `fake` does not support images"
    );
    // A variable that was computed before keeps its value.
    assert_eq!(s.get_text("x").await.unwrap(), "abc");
}

#[tokio::test]
async fn a_dropped_state_cancels_what_it_runs() {
    let mut fake = Fake::with_script("abc");
    fake.step = Duration::from_secs(600);
    let frontend = Frontend::new(fake.clone());
    let mut s = frontend.state();
    s += "#";
    s += generate("x");
    let x = s.var("x");
    while fake.counts.running.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    drop(s);
    assert_eq!(x.text().await, Err(Error::Cancelled));
    assert_eq!(fake.counts.cancelled.load(Relaxed), 1);
}

#[tokio::test]
async fn several_outputs_are_a_list_and_the_state_goes_on_after_the_first() {
    let frontend = Frontend::new(Scripted::new(["red", "blue", "end"])).speculating(64);
    let mut s = frontend.state();
    s += generate("colour").n(2).logprobs(3).stop(";");
    s += ", ";
    s += generate("last").n(1);
    let colours = s.var("colour").texts().await.unwrap();
    assert_eq!(colours, [Ok("red".to_owned()), Ok("blue".to_owned())]);
    assert_eq!(s.text().await.unwrap(), "red, end");
    let meta = s.meta("colour").await.unwrap();
    let tokens: Vec<&str> = meta
        .outputs
        .iter()
        .map(|output| output.logprobs[0].token.as_str())
        .collect();
    assert_eq!((tokens, meta.speculated), (vec!["red", "blue"], false));
    // One output is a text, and its facts are those of the generation.
    assert_eq!(s.get_text("last").await.unwrap(), "end");
    assert!(s.meta("last").await.unwrap().outputs.is_empty());
}

#[tokio::test]
async fn no_output_is_refused_and_a_back_end_that_gives_too_few_is_noticed() {
    let mut s = Frontend::new(Scripted::new(["a"])).state();
    s += generate("x").n(0);
    let error = s.get_text("x").await.unwrap_err().to_string();
    assert!(error.contains("`n` must be at least 1, got 0"), "{error}");
    let (_, frontend) = scripted("a b c");
    let mut s = frontend.state();
    s += "form#";
    s += generate("x").n(3);
    let error = s.var("x").texts().await.unwrap_err().to_string();
    assert!(error.contains("gave 1 outputs, not 3"), "{error}");
}

#[test]
fn a_graph_has_the_number_of_outputs_and_of_log_probabilities() {
    let graph = trace(|s| {
        s.extend(generate("x").n(2).logprobs(0));
    });
    let node = json!({"state": 0, "op": "gen", "name": "x", "n": 2, "logprobs": 0});
    assert_eq!(json!(graph)["nodes"][0], node);
}
