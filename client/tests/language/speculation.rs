//! API-speculative execution: the same results with fewer calls and tokens.

use std::sync::atomic::Ordering::Relaxed;

use hearth_client::lang::{Error, Frontend, State, generate};

use super::fake::Fake;
use super::random::Numbers;

const TEXTS: [&str; 4] = ["name: ", "age: ", "job: ", "town: "];
const VALUES: [&str; 6] = ["Ada", "36", "Rust and wool", "", "a-b", "Rome"];

/// An extraction: the fields that the model writes, and those that the program asks for, which
/// are often the same.
#[derive(Debug)]
struct Extraction {
    script: String,
    fields: Vec<(String, Option<u32>)>,
    forked: bool,
}

fn extraction(numbers: &mut Numbers) -> Extraction {
    let (mut script, mut fields) = (String::new(), Vec::new());
    for _ in 0..1 + numbers.below(4) {
        let label = TEXTS[numbers.below(TEXTS.len())];
        let value = VALUES[numbers.below(VALUES.len())];
        script += &format!("{label}{value}\n");
        let asked = match numbers.below(6) {
            0 => TEXTS[numbers.below(TEXTS.len())],
            _ => label,
        };
        let limit = [None, None, Some(2), Some(3), Some(16)][numbers.below(5)];
        fields.push((asked.to_owned(), limit));
    }
    Extraction {
        script,
        fields,
        forked: numbers.below(4) == 0,
    }
}

/// Asks for `fields`, whose first is number `first` of all.
fn ask(s: &mut State, fields: &[(String, Option<u32>)], first: usize) {
    for (index, (label, limit)) in (first..).zip(fields) {
        let mut value = generate(&format!("f{index}")).temperature(0.0).stop("\n");
        if let Some(limit) = limit {
            value = value.max_tokens(*limit);
        }
        s.extend(label).extend(value).extend("\n");
    }
}

async fn extract(frontend: &Frontend, asked: &Extraction) -> Result<(Vec<String>, u64), Error> {
    let mut s = frontend.state();
    s += "a long text with examples, of which the fields are taken#";
    let mut states = vec![s];
    if asked.forked {
        ask(&mut states[0], &asked.fields[..1], 0);
        let forks = states[0].fork(2);
        states.extend(forks);
        for state in &mut states {
            ask(state, &asked.fields[1..], 1);
        }
    } else {
        ask(&mut states[0], &asked.fields, 0);
    }
    let (mut texts, mut prompt_tokens) = (Vec::new(), 0);
    for state in &mut states {
        texts.push(state.text().await?);
        for var in state.ending().variables {
            prompt_tokens += var.meta().await?.usage.prompt_tokens;
        }
    }
    Ok((texts, prompt_tokens))
}

#[tokio::test]
async fn a_thousand_random_extractions_give_the_same_with_fewer_calls_and_tokens() {
    let mut numbers = Numbers(7);
    let (mut calls, mut tokens) = ([0, 0], [0, 0]);
    for case in 0..1000 {
        let asked = extraction(&mut numbers);
        let mut results = Vec::new();
        for (way, speculated) in [None, Some(48)].into_iter().enumerate() {
            let fake = Fake {
                tells_tokens: case % 2 == 0,
                ..Fake::with_script(&asked.script)
            };
            let mut frontend = Frontend::new(fake.clone());
            if let Some(tokens) = speculated {
                frontend = frontend.speculating(tokens);
            }
            let (texts, counted) = extract(&frontend, &asked).await.unwrap();
            // Nothing that the server counted is lost.
            let paid = fake.counts.prompt_tokens.load(Relaxed);
            assert_eq!(counted, paid, "{case}: {asked:?}");
            calls[way] += fake.counts.calls.load(Relaxed);
            tokens[way] += paid;
            results.push(texts);
        }
        assert_eq!(results[0], results[1], "{case}: {asked:?}");
    }
    println!("calls {calls:?}, prompt tokens {tokens:?}");
    assert!(
        calls[1] < calls[0] && tokens[1] < tokens[0],
        "{calls:?} {tokens:?}"
    );
}

fn three_fields(speculated: Option<u32>) -> (Fake, Frontend) {
    let fake = Fake::with_script("name: Ada\nage: 36\njob: wizard\n");
    let frontend = Frontend::new(fake.clone());
    match speculated {
        None => (fake, frontend),
        Some(tokens) => (fake, frontend.speculating(tokens)),
    }
}

#[tokio::test]
async fn three_fields_are_one_call_and_a_third_of_the_input() {
    let mut paid = Vec::new();
    for (speculated, expected) in [(None, 3), (Some(64), 1)] {
        let (fake, frontend) = three_fields(speculated);
        let mut s = frontend.state();
        s.extend("few shots of people ".repeat(20)).extend("#");
        let fields: Vec<_> = ["name: ", "age: ", "job: "]
            .map(|f| (f.to_owned(), None))
            .into();
        ask(&mut s, &fields, 0);
        assert_eq!(s.get_text("f2").await.unwrap(), "wizard");
        assert_eq!(s.meta("f2").await.unwrap().speculated, speculated.is_some());
        assert_eq!(fake.counts.calls.load(Relaxed), expected);
        paid.push(fake.counts.prompt_tokens.load(Relaxed));
    }
    assert!(paid[0] as f64 >= 2.5 * paid[1] as f64, "{paid:?}");
}

#[tokio::test]
async fn a_chat_api_writes_the_whole_message_once() {
    let script = "name: Ada\nage: 36\n";
    let fake = Fake {
        is_chat: true,
        ..Fake::with_script(script)
    };
    let run = async |frontend: &Frontend, label: &'static str| {
        let mut s = frontend.state();
        s.user("who?").role(hearth_client::Role::Assistant, |s| {
            ask(
                s,
                &[("name: ".to_owned(), None), (label.to_owned(), None)],
                0,
            );
        });
        s.get_text("f1").await
    };
    let speculating = Frontend::new(fake.clone()).speculating(64);
    assert_eq!(run(&speculating, "age: ").await.unwrap(), "36");
    assert_eq!(fake.counts.calls.load(Relaxed), 1);
    // Another form than the program's is an error and not a wrong result.
    let error = run(&speculating, "job: ").await.unwrap_err();
    assert_eq!(error, Error::FormNotFollowed { attempts: 3 });
    let error = run(&Frontend::new(fake), "age: ").await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}
