//! Outputs that follow a grammar, over HTTP: what comes back matches, whatever the model
//! would have said, and what cannot be followed is a 400.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hearth_client::Events;
use regex::Regex;
use serde_json::{Map, Value, json};

use super::harness::{CHAT, COMPLETIONS, Server};

fn ask(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}], "max_tokens": 200, "seed": 1})
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

fn content(answer: &Value) -> String {
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str();
    text.or(choice["text"].as_str()).unwrap().to_owned()
}

fn reason(answer: &Value) -> &str {
    answer["choices"][0]["finish_reason"].as_str().unwrap()
}

fn strict(schema: &Value) -> Value {
    json!({"type": "json_schema",
        "json_schema": {"name": "answer", "strict": true, "schema": schema}})
}

/// A record with fixed keys, as in SGLang's article.
fn character() -> Value {
    json!({
        "type": "object", "additionalProperties": false,
        "required": ["name", "house", "wand", "alive"],
        "properties": {
            "name": {"type": "string", "maxLength": 12, "pattern": "^[A-Z][a-z]+$"},
            "house": {"enum": ["Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff"]},
            "wand": {
                "type": "object", "additionalProperties": false,
                "required": ["wood", "length_in_inches"],
                "properties": {
                    "wood": {"enum": ["holly", "yew", "oak"]},
                    "length_in_inches": {"type": "integer", "minimum": 7, "maximum": 14},
                },
            },
            "alive": {"type": "boolean"},
        },
    })
}

/// A call of one of two tools.
fn tool_call() -> Value {
    let call = |name: &str, arguments: Value| {
        json!({
            "type": "object", "additionalProperties": false, "required": ["name", "arguments"],
            "properties": {"name": {"const": name}, "arguments": arguments},
        })
    };
    let weather = json!({
        "type": "object", "additionalProperties": false, "required": ["location", "unit"],
        "properties": {
            "location": {"type": "string", "maxLength": 10},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
    });
    let light = json!({
        "type": "object", "additionalProperties": false, "required": ["brightness_percent"],
        "properties": {"brightness_percent": {"type": "integer", "minimum": 0, "maximum": 100}},
    });
    json!({"anyOf": [call("get_current_weather", weather), call("set_light_brightness", light)]})
}

fn schemas() -> Vec<Value> {
    vec![
        character(),
        tool_call(),
        json!({"type": "integer", "minimum": -5, "maximum": 500}),
        json!({"enum": ["a", 12, null, true, {"b": [1.5]}]}),
        json!({"const": {"é😀": ["\"quoted\"", "line\nbreak"]}}),
        json!({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4}),
        json!({"type": "array", "prefixItems": [{"type": "null"}, {"enum": ["x", "y"]}],
            "items": false, "minItems": 2}),
        json!({"type": "string", "minLength": 2, "maxLength": 5}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "format": "ipv4"}),
        json!({"type": "string", "pattern": "^[a-f]{2,4}-[0-9]{3}$"}),
        json!({"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25}),
        json!({"anyOf": [{"type": "null"}, {"type": "integer", "exclusiveMinimum": 0, "maximum": 9}]}),
        json!({
            "$defs": {"tree": {
                "type": "object", "additionalProperties": false, "required": ["v"],
                "properties": {
                    "v": {"enum": [0, 1]},
                    "kids": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}},
                },
            }},
            "$ref": "#/$defs/tree",
        }),
        json!({"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2,
            "minProperties": 1}),
        json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 6}]}),
    ]
}

#[tokio::test]
async fn every_kind_of_grammar_is_followed_under_every_name() {
    let server = Server::embedded(&[]).await;
    let date = r"[0-9]{4}-[0-9]{2}-[0-9]{2}";
    let lark = "start: \"<\" WORD \">\"\nWORD: /[a-z]{1,8}/";
    let gbnf = "root ::= \"<\" [a-z]{1,8} \">\"";
    let brackets = "root ::= \"(\" root \")\" | \"x\" [0-9]";
    let choices = json!(["yes", "no", "perhaps"]);
    let whole = |pattern: &str| Regex::new(&format!("^(?:{pattern})$")).unwrap();
    let cases = [
        ("regex", json!(date), whole(date)),
        ("guided_regex", json!(date), whole(date)),
        ("structured_outputs", json!({"regex": date}), whole(date)),
        ("guided_choice", choices.clone(), whole("yes|no|perhaps")),
        (
            "structured_outputs",
            json!({"choice": choices}),
            whole("yes|no|perhaps"),
        ),
        ("guided_grammar", json!(lark), whole("<[a-z]{1,8}>")),
        (
            "structured_outputs",
            json!({"grammar": gbnf}),
            whole("<[a-z]{1,8}>"),
        ),
        ("ebnf", json!(gbnf), whole("<[a-z]{1,8}>")),
        ("grammar", json!(brackets), whole(r"\(*x[0-9]\)*")),
    ];
    for (field, value, expected) in cases {
        for temperature in [0.0, 1.0] {
            let body = with(ask("What is 3 + 4?"), "temperature", json!(temperature));
            let answer = server.ok(CHAT, &with(body, field, value.clone())).await;
            let text = content(&answer);
            assert!(
                reason(&answer) == "length" || expected.is_match(&text),
                "{field} {value}: {text:?}"
            );
            assert!(
                reason(&answer) == "stop" || field == "grammar",
                "{field}: {answer}"
            );
        }
    }
    let schema = json!({"type": "integer", "minimum": 0, "maximum": 99});
    let as_text = json!(schema.to_string());
    for (field, value) in [
        ("response_format", strict(&schema)),
        (
            "response_format",
            json!({"type": "json_schema", "schema": schema}),
        ),
        ("guided_json", schema.clone()),
        ("guided_json", as_text.clone()),
        ("json_schema", as_text),
        ("structured_outputs", json!({"json": schema})),
    ] {
        let answer = server
            .ok(CHAT, &with(ask("What is 3 + 4?"), field, value))
            .await;
        let number: u32 = content(&answer).parse().unwrap();
        assert!(number <= 99, "{field}: {answer}");
    }
    for (field, value) in [
        ("response_format", json!({"type": "json_object"})),
        ("structured_outputs", json!({"json_object": true})),
    ] {
        let body = with(ask("What is 3 + 4?"), field, value);
        let answer = server.ok(CHAT, &body).await;
        assert!(content(&answer).starts_with('{'), "{answer}");
        if reason(&answer) == "stop" {
            let value: Value = serde_json::from_str(&content(&answer)).unwrap();
            assert!(value.is_object());
        }
    }
    let plain = with(
        ask("What is 3 + 4?"),
        "response_format",
        json!({"type": "text"}),
    );
    assert!(content(&server.ok(CHAT, &plain).await).contains('7'));
    server.wait_until_idle().await;
}

/// Each schema `per_schema` times at temperature 1; all that ended is valid.
async fn all_valid(server: &Server, path: &str, body: &Value, per_schema: usize) -> (usize, usize) {
    let (mut whole, mut cut) = (0, 0);
    for schema in schemas() {
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .should_validate_formats(true)
            .build(&schema)
            .unwrap();
        let body = with(body.clone(), "response_format", strict(&schema));
        let body = with(body, "n", json!(per_schema));
        let answer = server.ok(path, &body).await;
        for choice in answer["choices"].as_array().unwrap() {
            let text = choice["message"]["content"].as_str();
            let text = text.or(choice["text"].as_str()).unwrap();
            if choice["finish_reason"] == "length" {
                cut += 1;
                continue;
            }
            assert_eq!(choice["finish_reason"], "stop");
            let value: Value = serde_json::from_str(text)
                .unwrap_or_else(|error| panic!("{schema}: {text:?}: {error}"));
            assert!(validator.is_valid(&value), "{schema}: {text}");
            whole += 1;
        }
        let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
        assert!(tokens <= 200 * per_schema as u64);
    }
    (whole, cut)
}

#[tokio::test]
async fn what_a_schema_asks_for_is_valid_whatever_the_model_would_say() {
    let server = Server::embedded(&[]).await;
    let body = with(ask("Tell me a story."), "temperature", json!(1));
    let (whole, cut) = all_valid(&server, CHAT, &body, 16).await;
    println!("the embedded model: {whole} whole and valid, {cut} cut by max_tokens");
    assert!(whole > 10 * cut, "{whole} {cut}");
    server.wait_until_idle().await;
    drop(server);
    // Random weights over bytes: nothing but the grammar makes sense of it.
    let server = Server::start(&[]).await;
    let body = json!({"prompt": "a", "max_tokens": 200, "temperature": 1, "seed": 3});
    let (whole, cut) = all_valid(&server, COMPLETIONS, &body, 32).await;
    println!("random weights: {whole} whole and valid, {cut} cut by max_tokens");
    assert!(whole > 10 * cut, "{whole} {cut}");
    server.wait_until_idle().await;
}

#[tokio::test]
async fn jumping_forward_changes_no_greedy_text_and_saves_steps() {
    let server = Server::embedded(&["--dtype", "f32"]).await;
    let questions: Vec<String> = (0..50)
        .map(|i| match i % 5 {
            0 => format!("What is {} + {}?", i, i / 2 + 1),
            1 => format!("Tell me a story about {i} owls."),
            2 => format!("Who are you, number {i}?"),
            3 => format!("What is the colour of {i} roses?"),
            _ => format!("Turn the light to {i} percent."),
        })
        .collect();
    // Where text is forced the masks leave the tokenizer's way alone, jump or not.
    let words = r"(The|A) (quick|quiet) (brown|broad) (fox|forest) (jumps|jumped) (over|under)\.";
    let grammars = [
        ("response_format", strict(&character()), Some("natural"), 95),
        ("response_format", strict(&character()), Some("compact"), 95),
        ("response_format", strict(&tool_call()), Some("natural"), 95),
        ("response_format", strict(&tool_call()), Some("compact"), 95),
        ("regex", json!(words), None, 95),
    ];
    for (field, grammar, layout, percent) in grammars {
        let (mut same, mut all) = (0, 0);
        for question in &questions {
            let mut texts = Vec::new();
            for jump in [false, true] {
                let body = with(ask(question), field, grammar.clone());
                let body = with(body, "jump_forward", json!(jump));
                let body = with(body, "json_whitespace", json!(layout));
                let body = with(body, "temperature", json!(0));
                let answer = server.ok(CHAT, &body).await;
                assert_eq!(reason(&answer), "stop", "{answer}");
                texts.push(content(&answer));
            }
            all += 1;
            same += usize::from(texts[0] == texts[1]);
            if texts[0] != texts[1] {
                println!("{question} {texts:?}");
            }
        }
        println!("{field}, {layout:?}: {same} of {all} the same");
        assert!(same * 100 >= all * percent, "{same} of {all}");
    }
    // Passes saved: a tool call in compact form.
    let before = server.stats().await;
    for question in &questions {
        let body = with(ask(question), "response_format", strict(&tool_call()));
        let body = with(body, "json_whitespace", json!("compact"));
        server.ok(CHAT, &body).await;
    }
    server.wait_until_idle().await;
    let after = server.stats().await;
    let grown = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    let (forced, sampled) = (grown("forced_tokens"), grown("generated_tokens"));
    println!("tool calls: {forced} tokens forced, {sampled} sampled");
    assert!(
        forced * 100 >= (forced + sampled) * 40,
        "{forced} of {}",
        forced + sampled
    );
    // What it cost and saved is there for a scrape, too.
    let page = server.http.get(server.url("/metrics")).send().await;
    let page = page.unwrap().text().await.unwrap();
    let total = |name: &str| -> f64 {
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    };
    let forced = after["forced_tokens"].as_f64().unwrap();
    assert!(
        total("llm_grammar_forced_tokens_total{") >= forced,
        "{page}"
    );
    assert!(total("llm_grammar_forced_bytes_total{") > forced);
    for name in ["cache_hits", "cache_misses", "compilations", "masks"] {
        assert!(
            total(&format!("llm_grammar_{name}_total{{")) > 1.0,
            "{name}"
        );
    }
    for name in ["compile_time", "mask_time"] {
        let seconds = total(&format!("llm_grammar_{name}_seconds_total{{"));
        assert!(seconds > 0.0, "{name}");
    }
}

#[tokio::test]
async fn forced_text_streams_as_one_delta_and_is_in_the_usage() {
    let server = Server::embedded(&[]).await;
    let body = with(ask("Who are you?"), "response_format", strict(&character()));
    let whole = server.ok(CHAT, &body).await;
    let body = with(body, "stream", json!(true));
    let body = with(body, "stream_options", json!({"include_usage": true}));
    let mut events = server.client.stream(CHAT, &body).await.unwrap();
    let (mut pieces, mut usage) = (Vec::new(), Value::Null);
    while let Some(event) = events.next().await.unwrap() {
        pieces.push(Events::text_of(&event).to_owned());
        if !event["usage"].is_null() {
            usage = event["usage"].clone();
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    assert_eq!(pieces.concat(), content(&whole));
    assert_eq!(
        usage["completion_tokens"],
        whole["usage"]["completion_tokens"]
    );
    let tokens = usage["completion_tokens"].as_u64().unwrap() as usize;
    assert!(
        pieces.len() < tokens,
        "{tokens} tokens in {} deltas",
        pieces.len()
    );
    assert!(pieces[0].starts_with("{\"n"), "{pieces:?}");
}

#[tokio::test]
async fn logprobs_count_only_what_the_grammar_allows() {
    let server = Server::embedded(&[]).await;
    let body = with(ask("What is 3 + 4?"), "guided_choice", json!(["yes", "no"]));
    let body = with(body, "logprobs", json!(true));
    let body = with(body, "top_logprobs", json!(5));
    let answer = server.ok(CHAT, &body).await;
    let tokens = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    let first: f64 = tokens[0]["top_logprobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|top| top["logprob"].as_f64().unwrap().exp())
        .sum();
    assert!((first - 1.0).abs() < 1e-3, "{answer}");
}

#[tokio::test]
async fn forced_tokens_have_the_models_log_probabilities_jump_or_not() {
    let server = Server::embedded(&[]).await;
    let mut seen = Vec::new();
    for jump in [true, false] {
        let body = with(
            ask("What is 3 + 4?"),
            "guided_regex",
            json!("zebra crossing (yes|no)"),
        );
        let body = with(body, "jump_forward", json!(jump));
        let body = with(body, "logprobs", json!(true));
        let answer = server.ok(CHAT, &body).await;
        let tokens = answer["choices"][0]["logprobs"]["content"]
            .as_array()
            .unwrap();
        let logprobs = tokens.iter().map(|token| {
            let logprob = token["logprob"].as_f64().unwrap();
            (token["token"].to_string(), logprob)
        });
        seen.push(logprobs.collect::<Vec<_>>());
    }
    assert_eq!(seen[0].len(), seen[1].len());
    for (jumped, sampled) in seen[0].iter().zip(&seen[1]) {
        assert_eq!(jumped.0, sampled.0);
        assert!((jumped.1 - sampled.1).abs() < 1e-3, "{seen:?}");
    }
    // Nobody answers a sum with this.
    assert!(seen[0][0].1 < -1.0, "{seen:?}");
}

/// Free text in which every begin of a tag must be that of a whole one.
#[tokio::test]
async fn text_is_free_until_a_trigger_and_the_schema_holds_after_it() {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 99});
    // A trigger of one letter, so that random text has it often.
    let older = json!({
        "triggers": ["e"],
        "structures": [{"begin": "e=", "schema": number, "end": ";"}],
    });
    let newer = json!({"format": {"type": "triggered_tags", "triggers": ["e"], "tags": [
        {"begin": "e=", "content": {"type": "json_schema", "json_schema": number}, "end": ";"}]}});
    let whole = Regex::new(r"^(?:[^e]|e=[0-9]{1,2};)*$").unwrap();
    let server = Server::embedded(&[]).await;
    let of = |tag: &Value| with(tag.clone(), "type", json!("structural_tag"));
    let (mut free, mut tagged) = (0, 0);
    let mut check = |text: &str, reason: &str| {
        let text = match reason {
            "length" => text.rsplit_once('e').map_or(text, |(before, _)| before),
            _ => text,
        };
        assert!(whole.is_match(text), "{reason}: {text:?}");
        free += usize::from(!text.is_empty() && !text.starts_with('e'));
        tagged += text.matches(';').count().min(text.matches("e=").count());
    };
    for (path, field, value) in [
        (CHAT, "response_format", of(&older)),
        (CHAT, "response_format", of(&newer)),
        (
            CHAT,
            "structured_outputs",
            json!({"structural_tag": older.to_string()}),
        ),
        ("/generate", "", newer),
    ] {
        for seed in 0..8 {
            if path == CHAT {
                let body = with(ask("Tell me a story."), field, value.clone());
                let body = with(with(body, "seed", json!(seed)), "temperature", json!(1));
                let answer = server.ok(CHAT, &with(body, "max_tokens", json!(40))).await;
                check(&content(&answer), reason(&answer));
            } else {
                let params = json!({"structural_tag": value.to_string(), "max_new_tokens": 40,
                    "sampling_seed": seed});
                let body = json!({"text": "Tell me", "sampling_params": params});
                let answer = server.ok(path, &body).await;
                let kind = answer["meta_info"]["finish_reason"]["type"]
                    .as_str()
                    .unwrap();
                check(answer["text"].as_str().unwrap(), kind);
            }
        }
    }
    server.wait_until_idle().await;
    drop(server);
    // Random weights over bytes: a tag is begun, and not by its own sense.
    let server = Server::start(&[]).await;
    let body = json!({"prompt": "a", "max_tokens": 200, "temperature": 1, "n": 32});
    let answer = server
        .ok(COMPLETIONS, &with(body, "response_format", of(&older)))
        .await;
    for choice in answer["choices"].as_array().unwrap() {
        let reason = choice["finish_reason"].as_str().unwrap();
        check(choice["text"].as_str().unwrap(), reason);
    }
    println!("{free} texts began free, {tagged} tags");
    assert!(free > 10 && tagged > 10, "{free} {tagged}");
}

/// A schema that is `links` references away.
fn chained(links: usize) -> Value {
    let link = |i: usize| {
        (
            format!("d{i}"),
            json!({"$ref": format!("#/$defs/d{}", i + 1)}),
        )
    };
    let mut defs: Map<String, Value> = (0..links).map(link).collect();
    defs.insert(format!("d{links}"), json!({"type": "null"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// Grammars that are too much, or nothing.
fn abuses() -> Vec<(&'static str, &'static str, Value)> {
    let invalid = "invalid_grammar";
    let unsupported = "unsupported_schema_feature";
    let complex = "grammar_too_complex";
    let properties = |n: usize| -> Map<String, Value> {
        (0..n)
            .map(|i| (format!("p{i}"), json!({"type": "null"})))
            .collect()
    };
    let mut deep = json!({"type": "null"});
    for _ in 0..40 {
        deep = json!({"items": deep});
    }
    vec![
        (complex, "regex", json!("a{1000000}")),
        (complex, "regex", json!("((a{100}){100}){100}")),
        (complex, "regex", json!("a".repeat(1 << 20))),
        (unsupported, "regex", json!("(?<=a)b")),
        (invalid, "regex", json!("(a")),
        (invalid, "regex", json!("[^\\s\\S]")),
        (
            complex,
            "guided_json",
            json!({"type": "object", "properties": properties(10_000)}),
        ),
        (
            complex,
            "guided_json",
            json!({"enum": (0..100_000).collect::<Vec<_>>()}),
        ),
        (
            complex,
            "guided_json",
            json!({"const": "a".repeat(1 << 20)}),
        ),
        (
            unsupported,
            "guided_json",
            json!({"not": {"type": "string"}}),
        ),
        (
            unsupported,
            "guided_json",
            json!({"$ref": "https://example.com/schema.json"}),
        ),
        (
            unsupported,
            "guided_json",
            json!({"$ref": "file:///etc/passwd"}),
        ),
        (
            unsupported,
            "guided_json",
            json!({"type": "string", "format": "topic"}),
        ),
        (
            invalid,
            "guided_json",
            json!({"$ref": "#/$defs/a", "$defs": {
            "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ),
        (invalid, "guided_json", json!(false)),
        (complex, "guided_json", chained(1_500)),
        (
            complex,
            "guided_json",
            json!({"required": properties(5_000).keys().collect::<Vec<_>>()}),
        ),
        (
            complex,
            "guided_json",
            json!({"type": "integer", "multipleOf": 999_999}),
        ),
        (
            complex,
            "guided_json",
            json!({"patternProperties": properties(300)}),
        ),
        (
            complex,
            "guided_json",
            json!({"allOf": (0..30).map(|i| json!({
            "type": "string", "pattern": format!("a{i}.*b")})).collect::<Vec<_>>()}),
        ),
        (
            complex,
            "guided_grammar",
            json!(format!("start: %json {}", chained(1_500))),
        ),
        (
            complex,
            "guided_grammar",
            json!(format!(
                "start: %json {}",
                json!({"properties": properties(4_000)})
            )),
        ),
        (
            unsupported,
            "guided_grammar",
            json!("start: %json {\"not\": {}}"),
        ),
        (
            complex,
            "guided_grammar",
            json!(
                (0..5_000)
                    .map(|i| format!("r{i}: \"a\" r{}\n", i + 1))
                    .collect::<String>()
            ),
        ),
        (
            complex,
            "guided_grammar",
            json!(format!(
                "start: x::0\nx::_: \"a\" %if {}eq(_,1){}\n | \"b\"",
                "not(".repeat(20_000),
                ")".repeat(20_000)
            )),
        ),
        (
            complex,
            "guided_grammar",
            json!(format!(
                "start: A\nA: /a/{}",
                " & /(?s:.)*b(?s:.)*/".repeat(30)
            )),
        ),
        (complex, "guided_grammar", json!("start: \"a\"{1000000}")),
        (complex, "guided_grammar", json!("start: /a{1000000}/")),
        (invalid, "guided_grammar", json!("start: start")),
        (invalid, "guided_grammar", json!("start: \"a\u{0}\"")),
        (invalid, "ebnf", json!("root ::= nothing")),
        (invalid, "ebnf", json!("start: \"a\"")),
        (
            complex,
            "ebnf",
            json!(format!(
                "root ::= {}\"a\"{}",
                "(".repeat(9000),
                ")".repeat(9000)
            )),
        ),
        (invalid, "guided_choice", json!([])),
        (complex, "guided_choice", json!(vec!["a"; 20_000])),
    ]
}

async fn refused(server: &Server, code: &str, field: &str, value: &Value) {
    let began = Instant::now();
    let body = with(ask("Hello"), field, value.clone());
    let answer = server.post_raw(CHAT, body.to_string()).await;
    let shown = value.to_string().chars().take(60).collect::<String>();
    assert_eq!(answer.status, 400, "{field} {shown}: {}", answer.body);
    let error = &answer.body["error"];
    assert_eq!(error["code"], code, "{field} {shown}: {error}");
    assert!(
        error["param"].as_str().unwrap().starts_with(field),
        "{error}"
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.len() < 600, "{field} {shown}: {message}");
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{shown}: {:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn what_is_too_much_or_nothing_is_refused_and_disturbs_nobody() {
    let server = Server::embedded(&[]).await;
    for (code, field, value) in abuses() {
        refused(&server, code, field, &value).await;
        // And from the cache of refusals.
        refused(&server, code, field, &value).await;
    }
    // Large, and fine: a lazily explored regex, and deep nesting.
    for (field, value) in [
        ("regex", json!("(a|b)*a(a|b){200}c")),
        ("regex", json!("(a+)+x")),
    ] {
        let body = with(with(ask("Hello"), field, value), "max_tokens", json!(3));
        server.ok(CHAT, &body).await;
    }
    // Many at once, each of its own, beside one that is fine.
    let bad = (0..64).map(|i| {
        let pattern = format!("(x{i}|y)*x(x|y){{30}}(?=a)");
        let value = json!(pattern);
        let server = &server;
        async move { refused(server, "unsupported_schema_feature", "regex", &value).await }
    });
    let fine = with(ask("What is 3 + 4?"), "regex", json!("[0-9]{1,2}"));
    let (answer, _) = tokio::join!(server.ok(CHAT, &fine), join_all(bad));
    assert!(content(&answer).parse::<u32>().is_ok(), "{answer}");
    server.wait_until_idle().await;
    assert_eq!(server.stats().await["failed"], 0);
}

#[tokio::test]
async fn contradictions_are_refused_by_name() {
    let server = Server::embedded(&[]).await;
    let refused = async |body: Value, param: &str| {
        let answer = server.post_raw(CHAT, body.to_string()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert_eq!(answer.body["error"]["param"], param, "{}", answer.body);
    };
    let regex = with(ask("Hello"), "regex", json!("a"));
    refused(with(regex.clone(), "ebnf", json!("root ::= \"a\"")), "ebnf").await;
    refused(with(regex.clone(), "ignore_eos", json!(true)), "ignore_eos").await;
    refused(
        with(ask("Hello"), "jump_forward", json!(true)),
        "jump_forward",
    )
    .await;
    let compact = with(ask("Hello"), "json_whitespace", json!("compact"));
    refused(compact, "json_whitespace").await;
    let tag = json!({"format": {"type": "any_text"}});
    let both = with(regex, "structured_outputs", json!({"structural_tag": tag}));
    refused(both, "regex").await;
    let xml = json!({"format": {"type": "qwen_xml_parameter", "json_schema": {}}});
    let body = with(
        ask("Hello"),
        "structured_outputs",
        json!({"structural_tag": xml}),
    );
    refused(body, "structured_outputs.structural_tag").await;
    let not = strict(&json!({"properties": {"x": {"not": {}}}}));
    let body = with(ask("Hello"), "response_format", not);
    let answer = server.post_raw(CHAT, body.to_string()).await;
    let message = answer.body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("#/properties/x") && message.contains("not"),
        "{message}"
    );
}
