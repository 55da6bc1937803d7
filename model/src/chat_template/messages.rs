//! Preparation of messages for a template: as transformers prepares them, and one step more that
//! OpenAI's wire format makes necessary.

use serde_json::{Map, Value};

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
        fields
            .entry("thinking")
            .or_insert_with(|| reasoning.clone());
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
    use serde_json::json;

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
