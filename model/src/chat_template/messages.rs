//! Preparation of messages for a template: as transformers prepares them, and one step more that
//! OpenAI's wire format makes necessary.

use serde_json::{Map, Value, json};

/// The names of a message's reasoning; the first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The messages as templates expect them. Anything but a list of objects is returned unchanged, and
/// the template decides what to do with it.
pub(super) fn prepare(messages: &Value) -> Value {
    match messages.as_array() {
        Some(list) => Value::Array(list.iter().map(prepare_message).collect()),
        None => messages.clone(),
    }
}

fn prepare_message(message: &Value) -> Value {
    let Some(fields) = message.as_object() else {
        return message.clone();
    };
    // `content: null` beside tool calls would be printed as "None"; templates handle its
    // absence.
    let mut fields: Map<String, Value> = fields
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name).cloned()) {
        // GPT-OSS's template refuses `thinking` beside both a text and calls, which an answer may
        // have had.
        if !(is_filled(&fields, "content") && is_filled(&fields, "tool_calls")) {
            fields
                .entry("thinking")
                .or_insert_with(|| reasoning.clone());
        }
        fields.insert("reasoning_content".to_owned(), reasoning);
    }
    for call in fields
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let arguments = call
            .get_mut("function")
            .and_then(|function| function.get_mut("arguments"));
        if let Some(arguments) = arguments {
            parse_arguments(arguments);
        }
    }
    Value::Object(fields)
}

fn is_filled(fields: &Map<String, Value>, name: &str) -> bool {
    match fields.get(name) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        _ => false,
    }
}

/// The messages with `tools` in that of the system, which is made if there is none: as a list of
/// functions in a text, where Phi-4-mini's template reads them.
pub(super) fn with_tools(messages: &mut Value, tools: &Value) {
    let (Some(messages), Some(tools)) = (messages.as_array_mut(), tools.as_array()) else {
        return;
    };
    let function = |tool: &Value| tool.get("function").unwrap_or(tool).clone();
    let functions: Vec<Value> = tools.iter().map(function).collect();
    let is_system = |message: &Value| message.get("role") == Some(&json!("system"));
    if !messages.first().is_some_and(is_system) {
        messages.insert(0, json!({"role": "system", "content": ""}));
    }
    if let Some(Value::Object(system)) = messages.first_mut() {
        let text = super::json::python(&Value::Array(functions));
        system.entry("tools").or_insert_with(|| text.into());
    }
}

/// On the wire the arguments of a call are JSON in a string; templates write them with `tojson`
/// and would quote them twice.
fn parse_arguments(arguments: &mut Value) {
    let Some(text) = arguments.as_str() else {
        return;
    };
    if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
        *arguments = object;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_null_are_left_out() {
        let message = json!([{"role": "assistant", "content": null, "tool_calls": null}]);
        assert_eq!(prepare(&message), json!([{"role": "assistant"}]));
    }

    #[test]
    fn reasoning_is_found_under_each_of_its_names() {
        for name in REASONING {
            let prepared = prepare(&json!([{ "role": "assistant", name: "because" }]));
            assert_eq!(prepared[0]["reasoning_content"], "because", "{name}");
            assert_eq!(prepared[0]["thinking"], "because", "{name}");
        }
    }

    #[test]
    fn reasoning_beside_a_text_and_calls_has_one_name() {
        let mut message = json!({"reasoning": "so", "content": "a", "tool_calls": [{}]});
        let prepared = prepare(&json!([message]));
        assert_eq!(prepared[0]["reasoning_content"], "so");
        assert_eq!(prepared[0].get("thinking"), None);
        message["content"] = json!("");
        assert_eq!(prepare(&json!([message]))[0]["thinking"], "so");
    }

    #[test]
    fn tools_go_into_the_first_message_of_the_system() {
        let tools = json!([{"type": "function", "function": {"name": "f", "strict": null}}]);
        let text = "[{\"name\": \"f\", \"strict\": null}]";
        let mut messages = json!([{"role": "system", "content": "a"}]);
        with_tools(&mut messages, &tools);
        assert_eq!(
            messages,
            json!([{"role": "system", "content": "a", "tools": text}])
        );
        let mut messages = json!([{"role": "user", "content": "a"}]);
        with_tools(&mut messages, &tools);
        assert_eq!(
            messages[0],
            json!({"role": "system", "content": "", "tools": text})
        );
        assert_eq!(messages[1]["role"], "user");
    }

    #[test]
    fn arguments_in_a_string_become_an_object_and_others_stay() {
        let with = |arguments: Value| {
            let call = json!({"function": {"name": "f", "arguments": arguments}});
            prepare(&json!([{ "tool_calls": [call] }]))[0]["tool_calls"][0]["function"]["arguments"]
                .clone()
        };
        assert_eq!(
            with(json!("{\"b\": 1, \"a\": [2]}")),
            json!({"b": 1, "a": [2]})
        );
        assert_eq!(with(json!("not json")), json!("not json"));
        assert_eq!(with(json!("3")), json!("3"));
        assert_eq!(with(json!({"a": 1})), json!({"a": 1}));
    }

    #[test]
    fn what_is_no_list_of_objects_is_left_alone() {
        for odd in [
            json!(null),
            json!("text"),
            json!([1, "a", null]),
            json!({"role": "user"}),
        ] {
            assert_eq!(prepare(&odd), odd);
        }
        let odd_calls = json!([{"tool_calls": [null, {"function": 3}, {}]}]);
        assert_eq!(prepare(&odd_calls), odd_calls);
    }
}
