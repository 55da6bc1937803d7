//! Tests of the formats, and that a stream gives the same parts as the whole text.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

use crate::tools::{Call, Forced, Format, Layout, Parser, Part, Signature, pieces};

/// The text and the calls of all `parts` together.
fn folded(parts: Vec<Part>) -> (String, Vec<Call>) {
    let (mut text, mut calls) = (String::new(), Vec::<Call>::new());
    for part in parts {
        match part {
            Part::Text(part) => text.push_str(&part),
            Part::Call(name) => calls.push(Call {
                name,
                arguments: String::new(),
            }),
            Part::Arguments(part) => calls.last_mut().unwrap().arguments.push_str(&part),
        }
    }
    (text, calls)
}

fn tools() -> Arc<[String]> {
    ["f", "get_weather", "get"].map(str::to_owned).into()
}

fn read(format: Format, pieces: &[&str]) -> (String, Vec<Call>) {
    let mut parser = Parser::new(format, tools());
    let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    folded(parts)
}

#[track_caller]
fn check(format: Format, given: &str, text: &str, calls: &[(&str, &str)]) {
    let calls: Vec<Call> = calls
        .iter()
        .map(|(name, arguments)| Call {
            name: (*name).to_owned(),
            arguments: (*arguments).to_owned(),
        })
        .collect();
    assert_eq!(read(format, &[given]), (text.to_owned(), calls), "{given}");
}

#[test]
fn hermes_calls_are_between_marks() {
    let check =
        |given: &str, text: &str, calls: &[(&str, &str)]| check(Format::Hermes, given, text, calls);
    check(
        "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.0}}\n</tool_call>\n\
         <tool_call>{\"arguments\": {\"b\": \"</tool_call>}\"}, \"name\": \"get\"}</tool_call>\n",
        "Let me see.",
        &[("f", "{\"a\": 1.0}"), ("get", "{\"b\": \"</tool_call>}\"}")],
    );
    check("<tool_call>{\"name\": \"f\"}", "", &[("f", "{}")]);
    check(
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call> Done.",
        " Done.",
        &[("f", "{\"a\": 1}")],
    );
    check(" hello \n", " hello \n", &[]);
}

#[test]
fn llama3_calls_are_the_message_or_follow_a_mark() {
    let check =
        |given: &str, text: &str, calls: &[(&str, &str)]| check(Format::Llama3, given, text, calls);
    let call = "{\"name\": \"f\", \"parameters\": {\"a\": {}}}";
    check(call, "", &[("f", "{\"a\": {}}")]);
    let two = [("f", "{\"a\": {}}"), ("f", "{\"a\": {}}")];
    check(&format!("\n{call}; {call}"), "", &two);
    check(&format!("<|python_tag|>{call}\n{call}"), "", &two);
    check(&format!("So: {call}"), &format!("So: {call}"), &[]);
    check(&format!("So: <|python_tag|>{call}"), "So:", &two[..1]);
    check("{\"answer\": 5} x", "{\"answer\": 5} x", &[]);
}

#[test]
fn mistral_calls_are_a_list_or_named() {
    let check = |given: &str, text: &str, calls: &[(&str, &str)]| {
        check(Format::Mistral, given, text, calls)
    };
    check(
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1]}, \"id\": \"123456789\"}, \
         {\"name\": \"get\", \"arguments\": {}}]",
        "",
        &[("f", "{\"a\": [1]}"), ("get", "{}")],
    );
    check(
        "Well. [TOOL_CALLS]get_weather[CALL_ID]ab12[ARGS]{\"a\": 1}[TOOL_CALLS]get{\"b\": 2}",
        "Well.",
        &[("get_weather", "{\"a\": 1}"), ("get", "{\"b\": 2}")],
    );
    check(
        "[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}",
        "",
        &[("f", "{}")],
    );
    check("[TOOL_CALLS] []", "[TOOL_CALLS] []", &[]);
    check("[TOOL_CALLS]what{}", "[TOOL_CALLS]what{}", &[]);
}

#[test]
fn pythonic_calls_are_the_message() {
    let check = |given: &str, text: &str, calls: &[(&str, &str)]| {
        check(Format::Pythonic, given, text, calls)
    };
    check(
        "[get_weather(city='San Francisco', days=[1, 2]), f(), get(x={\"k\": True})]",
        "",
        &[
            (
                "get_weather",
                "{\"city\": \"San Francisco\", \"days\": [1, 2]}",
            ),
            ("f", "{}"),
            ("get", "{\"x\": {\"k\": true}}"),
        ],
    );
    check(
        "<|python_start|>[f(a=1)]<|python_end|>",
        "",
        &[("f", "{\"a\": 1}")],
    );
    for text in [
        "[link](f)",
        "[f(1)]",
        "[f(a=1), g()]",
        "[f(a=1",
        "see [f(a=1)]",
        "[f]",
    ] {
        check(text, text, &[]);
    }
}

#[test]
fn granite_and_phi_write_a_list_after_a_mark() {
    let list = "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"get\"}]";
    let calls = [("f", "{\"a\": 1}"), ("get", "{}")];
    for mark in ["<|tool_call|>", "<tool_call>"] {
        check(Format::Granite, &format!("{mark}{list}"), "", &calls);
        check(
            Format::Granite,
            &format!("So: {mark}\n{list}"),
            "So:",
            &calls,
        );
    }
    let one = "<|tool_call|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}";
    check(Format::Granite, one, "", &calls[..1]);
    check(
        Format::Phi4,
        &format!("{one}<|/tool_call|>"),
        "",
        &calls[..1],
    );
    check(
        Format::Phi4,
        &format!("<|tool_call|>{list}<|/tool_call|> So."),
        " So.",
        &calls,
    );
    for text in [
        "<|tool_call|>[]",
        "<|tool_call|>[{\"name\": \"g\"}]",
        "<|tool_call|>[{\"name\": \"f\"}",
        "<|tool_call|>f()",
    ] {
        check(Format::Granite, text, text, &[]);
        check(Format::Phi4, text, text, &[]);
    }
    let other = "<tool_call>[{\"name\": \"f\"}]";
    check(Format::Phi4, other, other, &[]);
}

#[test]
fn what_is_malformed_is_text() {
    for text in [
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call>",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}",
        "<tool_call>{'name': 'f'}</tool_call>",
        "<tool_call>f()</tool_call>",
        "<tool_call",
        "a <tool_call>\n\n",
    ] {
        check(Format::Hermes, text, text, &[]);
    }
    // It hides no call that follows it.
    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    let broken = "<tool_call>{\"name\": {</tool_call>";
    check(
        Format::Hermes,
        &format!("{broken}{call}"),
        broken,
        &[("f", "{}")],
    );
    let deep = format!(
        "{{\"name\": \"f\", \"parameters\": {{\"a\": {}}}",
        "[".repeat(100_000)
    );
    check(Format::Llama3, &deep, &deep, &[]);
}

#[test]
fn templates_show_their_format_where_there_is_no_doubt() {
    for (template, expected) in [
        ("{% if tools %}<tool_call>{% endif %}", Some(Format::Hermes)),
        (
            "{% if tools %}[TOOL_CALLS]{% endif %}",
            Some(Format::Mistral),
        ),
        (
            "{{ tools }}{\"name\": function name, \"parameters\": dictionary of argument",
            Some(Format::Llama3),
        ),
        ("{% if tools %}<tool_call><function=f>{% endif %}", None),
        (
            "{{ tools }} respond with <|tool_call|> and a list",
            Some(Format::Granite),
        ),
        (
            "{{ tools }}<|start_of_role|> respond with <tool_call> and a list",
            Some(Format::Granite),
        ),
        (
            "{{ tools }}<|start_of_role|> <tool_call>{}</tool_call>",
            Some(Format::Hermes),
        ),
        (
            "{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}",
            Some(Format::Phi4),
        ),
        (
            "{{ tools }}<|start|>assistant<|channel|>final<|message|>",
            Some(Format::Harmony),
        ),
        // Gemma 3's template knows neither tools nor a system's message.
        ("<start_of_turn>{{ message['content'] }}<end_of_turn>", None),
        ("{% if tools %}x{% endif %}", None),
        ("<tool_call>", None),
    ] {
        assert_eq!(Format::detect(template), expected, "{template}");
    }
}

/// Texts that look like calls, whole and broken.
fn texts() -> impl Strategy<Value = String> {
    let words = vec![
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "<|python_tag|>",
        "<|tool_call|>",
        "<|/tool_call|>",
        "<|",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_start|>",
        "<|python_end|>",
        "{\"name\": \"f\", ",
        "\"arguments\": ",
        "\"parameters\": ",
        "{\"a\": 1}",
        "{}",
        "}",
        "{",
        "[",
        "]",
        ";",
        ",",
        " ",
        "\n",
        "é",
        "\"",
        "\\",
        "get",
        "get_weather(",
        "f(",
        "a='é'",
        "b=[1]",
        ")",
        "x",
        "{\"name\": \"f\", \"arguments\": {\"é\": \"}\"}}",
        "{\"name\": \"get\", \"parameters\": {}}",
        "[f(a=1)]",
        "[{\"name\": \"get\"}, {\"name\": \"f\"}]",
    ];
    prop::collection::vec(prop::sample::select(words), 0..14).prop_map(|words| words.concat())
}

fn formats() -> impl Strategy<Value = Format> {
    prop::sample::select(Format::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn pieces_give_what_the_whole_gives(
        format in formats(),
        text in texts(),
        cuts in prop::collection::vec(any::<Index>(), 0..12),
    ) {
        let whole = read(format, &[&text]);
        prop_assert_eq!(&read(format, &pieces(&text, &cuts)), &whole);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        prop_assert_eq!(&read(format, &characters), &whole);
        if whole.1.is_empty() {
            prop_assert_eq!(whole.0, text);
        } else {
            for call in whole.1 {
                let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
                prop_assert!(arguments.is_object());
            }
        }
    }

    #[test]
    fn what_a_grammar_forces_is_read_by_both_parsers(
        format in prop::sample::select(vec![
            Format::Hermes, Format::Llama3, Format::Mistral, Format::Granite, Format::Phi4,
        ]),
        compact in any::<bool>(),
        calls in prop::collection::vec((0..3_usize, "[a\"\\\\é{}\n]{0,6}"), 1..4),
        cuts in prop::collection::vec(any::<Index>(), 0..12),
    ) {
        let layout = Layout::new(format, compact, |_| None);
        let calls: Vec<Call> = calls
            .into_iter()
            .map(|(tool, value)| Call {
                name: tools()[tool].clone(),
                arguments: json!({"v": value}).to_string(),
            })
            .collect();
        let written: Vec<String> = calls
            .iter()
            .map(|call| format!("{}{}{}", layout.head(&call.name), call.arguments, layout.tail))
            .collect();
        let text = [layout.opening, &written.join(layout.between), layout.closing].concat();
        let mut forced = Forced::new(layout, tools());
        let mut parts: Vec<Part> =
            pieces(&text, &cuts).iter().flat_map(|piece| forced.push(piece)).collect();
        parts.extend(forced.finish());
        let expected = (String::new(), calls);
        prop_assert_eq!(&folded(parts), &expected);
        prop_assert_eq!(&read(format, &[&text]), &expected);
    }

    #[test]
    fn a_forced_answer_that_was_cut_loses_no_arguments(
        end in any::<Index>(),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let layout = Layout::new(Format::Hermes, false, |_| None);
        let text = format!("{}{}{{\"a\": \"b\"}}{}", layout.opening, layout.head("f"), layout.tail);
        let text = &text[..end.index(text.len() + 1)];
        let read = |pieces: &[&str]| {
            let mut forced = Forced::new(layout.clone(), tools());
            let mut parts: Vec<Part> = pieces.iter().flat_map(|p| forced.push(p)).collect();
            parts.extend(forced.finish());
            folded(parts)
        };
        let whole = read(&[text]);
        prop_assert_eq!(&read(&pieces(text, &cuts)), &whole);
        let given = whole.0.len() + whole.1.iter().map(|c| c.arguments.len()).sum::<usize>();
        prop_assert!(given > 0 || text.is_empty() || text.ends_with("\"arguments\": "));
    }
}

#[test]
fn a_pythonic_schema_must_have_names() {
    let layout = Layout::new(Format::Pythonic, false, |_| None);
    let refused = |schema| {
        let tool = Signature {
            name: "f".to_owned(),
            schema,
            field: "tools[0]".to_owned(),
        };
        layout.calls_alone(&[tool], super::Quantity::One).is_err()
    };
    assert!(!refused(json!({"type": "object"})));
    assert!(!refused(
        json!({"properties": {"a": {}}, "required": ["a"]})
    ));
    assert!(refused(json!({"properties": {"a b": {}}})));
    assert!(refused(json!({"properties": {"a": {}}, "required": ["b"]})));
    assert!(refused(json!({"anyOf": []})));
}

/// Bytes, an end, and the marks of Hermes as special tokens.
struct Special;

const EOS: u32 = 256;
const MARKS: [&str; 2] = ["<tool_call>", "</tool_call>"];

impl hearth_grammar::VocabularySource for Special {
    fn size(&self) -> usize {
        259
    }
    fn bytes(&self, token: u32) -> Vec<u8> {
        match token {
            ..EOS => vec![token as u8],
            EOS => b"</s>".to_vec(),
            _ => MARKS[token as usize - 257].as_bytes().to_vec(),
        }
    }
    fn is_special(&self, token: u32) -> bool {
        token >= EOS
    }
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        Some(text.bytes().map(u32::from).collect())
    }
}

/// The tokens of `text`, with marks as special tokens.
fn tokens(text: &str) -> Vec<u32> {
    if let Some((before, after)) = text.split_once(MARKS[0]) {
        return [tokens(before), vec![257], tokens(after)].concat();
    }
    match text.split_once(MARKS[1]) {
        Some((before, after)) => [tokens(before), vec![258], tokens(after)].concat(),
        None => text.bytes().map(u32::from).collect(),
    }
}

#[test]
fn marks_that_are_special_tokens_are_written_as_such() {
    use hearth_grammar::{Compiler, Source, Spec, Ticket};
    let layout = Layout::new(Format::Hermes, false, |text| {
        let mark = MARKS.iter().position(|mark| *mark == text)?;
        Some(257 + mark as u32)
    });
    let tool = Signature {
        name: "f".to_owned(),
        schema: json!({"enum": [{"a": 1}]}),
        field: "tools[0]".to_owned(),
    };
    let compiler = Compiler::new(Arc::new(Special), vec![EOS]);
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    for quantity in [super::Quantity::One, super::Quantity::Several] {
        let tools = [tool.clone()];
        let alone = layout.calls_alone(&tools, quantity).unwrap();
        let in_text = layout.calls_in_text(&tools, quantity).unwrap();
        let texts = [call.to_owned(), format!("Hm. {call}"), "Hm.".to_owned()];
        for (lark, fits) in [(alone, [true, false, false]), (in_text, [true; 3])] {
            let spec = Spec::new(Source::LarkWithSchemas {
                lark: lark.text,
                schemas: lark.schemas,
            });
            let compiled = compiler.compile(&spec, &Ticket::default()).unwrap();
            for (text, fits) in texts.iter().zip(fits) {
                let mut matcher = compiled.matcher();
                let mut all = tokens(text).into_iter().chain([EOS]);
                let taken = all.all(|token| {
                    let mask = matcher.mask().unwrap();
                    let allowed = mask[token as usize / 32] >> (token % 32) & 1 == 1;
                    allowed && matcher.consume(token).is_ok()
                });
                assert_eq!(taken, fits, "{quantity:?}: {text}");
            }
        }
    }
}
