//! Structured output over HTTP: answers match their grammar whatever the model's logits are, and
//! grammars that cannot be used get status 400.

mod abuse;
mod drafts;
mod jump_forward;
mod kinds;
mod logprobs;
mod tags;
mod valid;

use serde_json::{Value, json};

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

/// The schema of a record with fixed keys, as in SGLang's article.
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

/// The schema of a call of one of two tools.
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
