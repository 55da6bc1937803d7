use proptest::prelude::*;

use super::*;

fn tools() -> Arc<[String]> {
    ["f", "get_weather"].map(str::to_owned).into()
}

/// Reasoning, text and calls of all parts together.
fn read(at: At, verbatim: bool, pieces: &[&str]) -> (String, String, Vec<Call>) {
    let mut channels = Channels::new(at, tools(), verbatim);
    let mut parts: Vec<Part> = pieces
        .iter()
        .flat_map(|piece| channels.push(piece))
        .collect();
    parts.extend(channels.finish());
    let (mut reasoning, mut text, mut calls) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Reasoning(part) => reasoning.push_str(&part),
            Part::Text(part) => text.push_str(&part),
            Part::Call(call) => calls.push(call),
        }
    }
    (reasoning, text, calls)
}

#[track_caller]
fn check(at: At, given: &str, reasoning: &str, text: &str, calls: &[(&str, &str)]) {
    let call = |(name, arguments): &(&str, &str)| Call {
        name: (*name).to_owned(),
        arguments: (*arguments).to_owned(),
    };
    let expected = (
        reasoning.to_owned(),
        text.to_owned(),
        calls.iter().map(call).collect(),
    );
    assert_eq!(read(at, false, &[given]), expected, "{given}");
}

const THOUGHT: &str = "<|channel|>analysis<|message|>I should ask.<|end|>";

#[test]
fn channels_are_reasoning_text_and_calls() {
    check(
        At::Header,
        &format!("{THOUGHT}<|start|>assistant<|channel|>final<|message|>It is 4.<|return|>"),
        "I should ask.",
        "It is 4.",
        &[],
    );
    for header in [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        " to=functions.get_weather<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.get_weather<|message|>",
        "commentary to=functions.get_weather<|message|>",
        // Models err in the channel at times.
        "<|channel|>analysis to=functions.get_weather code<|message|>",
    ] {
        let call = format!("{header}{{\"city\": \"Oslo\"}}");
        let called = [("get_weather", "{\"city\": \"Oslo\"}")];
        check(At::Header, &call, "", "", &called);
        let author = if header.starts_with("comm") {
            ""
        } else {
            "<|start|>assistant"
        };
        let whole = format!("{THOUGHT}{author}{call}<|call|>");
        check(At::Header, &whole, "I should ask.", "", &called);
    }
    check(
        At::Header,
        "<|channel|>commentary<|message|>First f.<|end|><|start|>assistant<|channel|>commentary \
         to=functions.f<|message|><|call|><|start|>assistant<|channel|>final<|message|>Done.",
        "",
        "First f.\nDone.",
        &[("f", "{}")],
    );
    check(
        At::Header,
        &format!("{THOUGHT}<|start|>assistant{THOUGHT}<|start|>assistant<|channel|>fin"),
        "I should ask.\nI should ask.",
        "",
        &[],
    );
    // A tool of the model's own is not called, and is not for the user.
    let browse = "<|channel|>commentary to=browser.search<|message|>{}<|call|>";
    check(At::Header, browse, "{}", "", &[]);
    check(At::Final, " of it.<|return|>", "", " of it.", &[]);
    check(
        At::Analysis,
        "so.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "so.",
        "Yes.",
        &[],
    );
    check(
        At::Header,
        "Just text <| with bars.",
        "",
        "Just text <| with bars.",
        &[],
    );
}

#[test]
fn what_is_malformed_is_text() {
    for text in [
        "<|channel|>commentary to=functions.nothing<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.f<|message|>{\"a\": <|call|>",
        "<|channel|>commentary to=functions.f<|message|>[1]",
        "<|channel|>commentary to=functions.f",
    ] {
        check(At::Header, text, "", text, &[]);
    }
    let endless = format!("<|channel|>{}", "x".repeat(2 * MAX_HEADER));
    let (_, text, _) = read(At::Header, false, &[&endless]);
    assert!(
        text.ends_with("xxx") && text.len() > MAX_HEADER / 2,
        "{}",
        text.len()
    );
}

#[test]
fn reasoning_may_keep_its_marks() {
    let text = format!("{THOUGHT}<|start|>assistant<|channel|>final<|message|>Yes.<|return|>");
    let expected = (THOUGHT.to_owned(), "Yes.".to_owned(), Vec::new());
    assert_eq!(read(At::Header, true, &[&text]), expected);
}

#[test]
fn the_prompt_says_where_the_answer_begins() {
    let end = "<|start|>assistant";
    assert_eq!(At::end_of(end, false), At::Header);
    let thinks =
        format!("{end}<|channel|>final<|message|>A<|end|>{end}<|channel|>analysis<|message|>so");
    assert_eq!(At::end_of(&thinks, true), At::Analysis);
    assert_eq!(
        At::end_of(&format!("{end}<|channel|>final<|message|>So"), true),
        At::Final
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn pieces_give_what_the_whole_gives(
        words in prop::collection::vec(
            prop::sample::select(vec![
                START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN, "assistant", "analysis",
                "final", "commentary", " to=functions.f", "commentary to=functions.f", " to=functions.g", " ", "<|", "<", "é",
                "json", "{}", "{\"a\": \"<|x|>\"}", "text",
            ]),
            0..24,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        at in prop::sample::select(vec![At::Header, At::Analysis, At::Final]),
        verbatim in any::<bool>(),
    ) {
        let whole = words.concat();
        let expected = read(at, verbatim, &[&whole]);
        prop_assert_eq!(&read(at, verbatim, &crate::tools::pieces(&whole, &cuts)), &expected);
        let letters: Vec<String> = whole.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        prop_assert_eq!(&read(at, verbatim, &letters), &expected);
        for call in expected.2 {
            prop_assert!(serde_json::from_str::<serde_json::Map<_, _>>(&call.arguments).is_ok());
        }
    }
}
