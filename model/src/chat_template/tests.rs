use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/chat")
}

fn read(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(goldens().join(name)).unwrap()).unwrap()
}

fn special() -> BTreeMap<String, String> {
    [
        ("bos_token", "<s>"),
        ("eos_token", "</s>"),
        ("unk_token", "<unk>"),
    ]
    .map(|(name, token)| (name.to_owned(), token.to_owned()))
    .into()
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_checkpoint(Some(source), &Map::new(), special()).unwrap()
}

fn render(source: &str, messages: Value) -> Result<String, ChatTemplateError> {
    template(source).render(ChatInput {
        messages: &messages,
        tools: None,
        add_generation_prompt: false,
        kwargs: &Map::new(),
        quoting: None,
    })
}

#[test]
fn conversations_render_as_transformers_renders_them() {
    let conversations = read("conversations.json");
    let cases = read("cases.json");
    let cases = cases.as_array().unwrap();
    assert!(cases.len() >= 160);
    let mut wrong = Vec::new();
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let template = template(&fs::read_to_string(goldens().join(name)).unwrap());
        let mut kwargs = case.as_object().unwrap().clone();
        for used in [
            "template",
            "conversation",
            "tools",
            "add_generation_prompt",
            "text",
            "error",
        ] {
            kwargs.remove(used);
        }
        let ours = template.render(ChatInput {
            messages: &conversations[case["conversation"].as_str().unwrap()],
            tools: case.get("tools"),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            kwargs: &kwargs,
            quoting: None,
        });
        let same = match (case["text"].as_str(), case["error"].as_str()) {
            (Some(text), _) => ours.as_deref() == Ok(text),
            (None, Some("TemplateError")) => {
                let message = case["message"].as_str().unwrap().to_owned();
                ours == Err(ChatTemplateError::Refused(message))
            }
            (None, _) => matches!(ours, Err(ChatTemplateError::Render { .. })),
        };
        if !same {
            wrong.push(format!("{case}\nours: {ours:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}

#[test]
fn a_template_that_reads_tools_of_a_message_gets_them_there() {
    let source = "{% for message in messages %}{% if 'tools' in message and message['tools'] is not \
                  none %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}{{ message['content'] }}\
                  {% endfor %}";
    let render = |tools: Option<&Value>| {
        template(source).render(ChatInput {
            messages: &json!([{"role": "user", "content": "hi"}]),
            tools,
            add_generation_prompt: true,
            kwargs: &Map::new(),
            quoting: None,
        })
    };
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let with = "<|tool|>[{\"name\": \"f\"}]<|/tool|>hi";
    assert_eq!(render(Some(&tools)).as_deref(), Ok(with));
    assert_eq!(render(None).as_deref(), Ok("hi"));
}

#[test]
fn a_checkpoint_without_a_template_is_an_error() {
    let result = ChatTemplate::from_checkpoint(None, &Map::new(), special());
    assert_eq!(result.unwrap_err(), ChatTemplateError::Missing);
}

#[test]
fn the_template_may_be_a_string_a_file_or_a_named_list() {
    let config = |value: Value| json!({"chat_template": value}).as_object().unwrap().clone();
    let source = |jinja, value, tools| {
        let template = ChatTemplate::from_checkpoint(jinja, &config(value), special())?;
        template.source(tools).map(str::to_owned)
    };
    assert_eq!(source(None, json!("a"), false).unwrap(), "a");
    assert_eq!(
        source(Some("b"), json!("a"), false).unwrap(),
        "b",
        "the file wins"
    );
    let list = json!([{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]);
    assert_eq!(source(None, list.clone(), false).unwrap(), "d");
    assert_eq!(source(None, list, true).unwrap(), "t");
    let rag = json!([{"name": "rag", "template": "r"}]);
    let error = source(None, rag, false).unwrap_err();
    assert_eq!(
        error,
        ChatTemplateError::NoDefault {
            available: "rag".to_owned()
        }
    );
    for bad in [
        json!(3),
        json!([{"name": "default"}]),
        json!({"default": "x"}),
    ] {
        let error = source(None, bad, false).unwrap_err();
        assert!(
            matches!(error, ChatTemplateError::Malformed { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_syntax_error_names_the_template_and_the_line() {
    let error =
        ChatTemplate::from_checkpoint(Some("a\n{% if %}"), &Map::new(), special()).unwrap_err();
    assert!(matches!(&error, ChatTemplateError::Syntax { name, line: 2, .. } if name == "default"));
}

#[test]
fn a_refusal_is_told_from_a_fault() {
    let refused = render(
        "{{ raise_exception('No, ' ~ messages[0].role) }}",
        json!([{"role": "x"}]),
    );
    assert_eq!(refused, Err(ChatTemplateError::Refused("No, x".to_owned())));
    let fault = render("a\n{{ messages.nothing.at.all }}", json!([]));
    assert!(
        matches!(fault, Err(ChatTemplateError::Render { line: 2, .. })),
        "{fault:?}"
    );
}

#[test]
fn an_endless_template_is_stopped() {
    let start = Instant::now();
    let source =
        "{% for a in range(10000) %}{% for b in range(10000) %}{{ b - b }}{% endfor %}{% endfor %}";
    assert_eq!(render(source, json!([])), Err(ChatTemplateError::Endless));
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_long_conversation_renders_within_the_limit() {
    let source = fs::read_to_string(goldens().join("thinking.jinja")).unwrap();
    let messages: Vec<Value> = (0..5000)
        .map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "hi"}))
        .collect();
    assert!(render(&source, Value::Array(messages)).is_ok());
}

#[test]
fn generation_marks_render_as_their_content_whatever_the_spaces() {
    for source in [
        "a{% generation %}b{% endgeneration %}c",
        "a{%- generation -%} b {%- endgeneration -%}c",
        "a{%generation%}b{%endgeneration%}c",
        "a{%- generation %}b{% endgeneration -%} c",
    ] {
        assert_eq!(render(source, json!([])).as_deref(), Ok("abc"), "{source}");
    }
    let variable = "{% if true %}{{ add_generation_prompt }}{% endif %}";
    assert_eq!(render(variable, json!([])).as_deref(), Ok("False"));
    let open = "generation {% if";
    assert_eq!(without_generation_tags(open), open);
}

#[test]
fn a_request_cannot_replace_its_own_messages() {
    let messages = json!([{"role": "user", "content": "mine"}]);
    let kwargs = json!({"messages": [], "bos_token": "<b>", "extra": 1});
    let rendered =
        template("{{ bos_token }}{{ messages[0].content }}{{ extra }}").render(ChatInput {
            messages: &messages,
            tools: None,
            add_generation_prompt: false,
            kwargs: kwargs.as_object().unwrap(),
            quoting: None,
        });
    assert_eq!(rendered.as_deref(), Ok("<b>mine1"));
}

#[test]
fn the_date_is_available() {
    let rendered = render("{{ strftime_now('%Y') }}", json!([])).unwrap();
    assert!(rendered.parse::<u32>().unwrap() >= 2026);
}
