//! The content of messages as OpenTelemetry's GenAI conventions write it, for traces that are to have
//! it (`--trace-message-content`). The newest messages come first into a bounded attribute.

use hearth_otel::MessageContent;
use serde_json::{Value, json};

/// Most bytes of text in each of the attributes.
pub const MAX_BYTES: usize = 16 << 10;
/// The bytes that a message, and each part of one, takes beside its text, so that a bound on the bytes
/// is one on their number.
const FRAME_BYTES: usize = 64;

/// The bytes that the bound leaves.
struct Budget(usize);

impl Budget {
    /// Takes the bytes beside the text of one more message or part. False if they are not left.
    fn begin(&mut self) -> bool {
        let left = self.0.checked_sub(FRAME_BYTES);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }

    /// The beginning of a text in `json` that still fits; an empty text for other values.
    fn take_str<'a>(&mut self, json: &'a Value) -> &'a str {
        self.take(json.as_str().unwrap_or_default())
    }

    /// The beginning of `text` that still fits.
    fn take<'a>(&mut self, text: &'a str) -> &'a str {
        let kept = &text[..text.floor_char_boundary(self.0)];
        self.0 -= kept.len();
        kept
    }
}

/// The input of a chat: its messages and its tools in OpenAI's form.
pub fn of_conversation(messages: &Value, tools: Option<&Value>) -> MessageContent {
    let (mut system, mut told) = (Vec::new(), Vec::new());
    let (mut of_system, mut of_messages) = (Budget(MAX_BYTES), Budget(MAX_BYTES));
    for message in messages.as_array().into_iter().flatten().rev() {
        if message["role"] == "system" {
            system.extend(text(&message["content"], &mut of_system));
            continue;
        }
        if of_messages.begin() {
            let role = of_messages.take_str(&message["role"]);
            told.push(json!({"role": role, "parts": parts(message, &mut of_messages)}));
        }
    }
    told.reverse();
    system.reverse();
    MessageContent {
        system: (!system.is_empty()).then(|| Value::from(system).to_string()),
        tools: tools.map(definitions),
        input: Value::from(told).to_string(),
        output: None,
    }
}

/// The definitions of tools. Parameters that do not fit are left out, because a part of a schema is not a schema.
fn definitions(tools: &Value) -> String {
    let (mut budget, mut told) = (Budget(MAX_BYTES), Vec::new());
    for tool in tools.as_array().into_iter().flatten() {
        if !budget.begin() {
            break;
        }
        let function = &tool["function"];
        let name = budget.take_str(&function["name"]);
        let mut definition = json!({"type": "function", "name": name});
        if function["description"].is_string() {
            definition["description"] = budget.take_str(&function["description"]).into();
        }
        let parameters = &function["parameters"];
        if let Some(left) = budget.0.checked_sub(parameters.to_string().len())
            && parameters.is_object()
        {
            budget.0 = left;
            definition["parameters"] = parameters.clone();
        }
        told.push(definition);
    }
    Value::from(told).to_string()
}

/// The parts of a message: its reasoning, its text, its calls, or the result of a call.
fn parts(message: &Value, budget: &mut Budget) -> Vec<Value> {
    let mut parts = Vec::new();
    if message["role"] == "tool" {
        if budget.begin() {
            let id = budget.take_str(&message["tool_call_id"]);
            let response = budget.take_str(&message["content"]);
            parts.push(json!({"type": "tool_call_response", "id": id, "response": response}));
        }
        return parts;
    }
    if message["reasoning_content"].is_string() && budget.begin() {
        let content = budget.take_str(&message["reasoning_content"]);
        parts.push(json!({"type": "reasoning", "content": content}));
    }
    parts.extend(text(&message["content"], budget));
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        if !budget.begin() {
            break;
        }
        let function = &call["function"];
        let (id, name) = (
            budget.take_str(&call["id"]),
            budget.take_str(&function["name"]),
        );
        let arguments = budget.take_str(&function["arguments"]);
        parts.push(json!({"type": "tool_call", "id": id, "name": name, "arguments": arguments}));
    }
    parts
}

fn text(content: &Value, budget: &mut Budget) -> Option<Value> {
    let text = content.as_str().filter(|text| !text.is_empty())?;
    let begun = budget.begin();
    begun.then(|| json!({"type": "text", "content": budget.take(text)}))
}

/// The input of a text completion.
pub fn of_prompt(prompt: &str) -> MessageContent {
    let text = Budget(MAX_BYTES).take(prompt);
    let parts = [json!({"type": "text", "content": text})];
    MessageContent {
        system: None,
        tools: None,
        input: json!([{"role": "user", "parts": parts}]).to_string(),
        output: None,
    }
}

/// An output that ended for `reason`, as the model wrote it: reasoning and calls are part of its text.
pub fn of_output(text: &str, reason: &str) -> String {
    let text = Budget(MAX_BYTES).take(text);
    let parts = [json!({"type": "text", "content": text})];
    json!([{"role": "assistant", "parts": parts, "finish_reason": reason}]).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn messages_have_the_parts_of_the_conventions() {
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let messages = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "7"},
        ]);
        let function =
            json!({"name": "f", "description": "does it", "parameters": {"type": "object"}});
        let content = of_conversation(
            &messages,
            Some(&json!([{"type": "function", "function": function}])),
        );
        let tools = read(&content.tools.unwrap());
        let parameters = json!({"type": "object"});
        let expected = json!([{"type": "function", "name": "f", "description": "does it", "parameters": parameters}]);
        assert_eq!(tools, expected);
        let system = read(&content.system.unwrap());
        assert_eq!(system, json!([{"type": "text", "content": "Be brief."}]));
        let expected = json!([
            {"role": "user", "parts": [{"type": "text", "content": "Hi"}]},
            {"role": "assistant", "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "id": "c1", "name": "f", "arguments": "{}"}]},
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "7"}]},
        ]);
        assert_eq!(read(&content.input), expected);
        let output = read(&of_output("Yes.", "stop"));
        assert_eq!(output[0]["finish_reason"], "stop");
        assert_eq!(output[0]["parts"][0]["content"], "Yes.");
    }

    #[test]
    fn long_conversations_keep_their_newest_part_and_are_bounded() {
        let message =
            |n: usize| json!({"role": "user", "content": format!("{n} {}", "ä".repeat(500))});
        let many: Value = (0..1000).map(message).collect();
        let input = of_conversation(&many, None).input;
        assert!(input.len() < 3 * MAX_BYTES, "{}", input.len());
        let told = read(&input);
        let last = told.as_array().unwrap().last().unwrap();
        assert!(
            last["parts"][0]["content"]
                .as_str()
                .unwrap()
                .starts_with("999 ")
        );
        let empty: Value = (0..100_000)
            .map(|_| json!({"role": "user", "content": ""}))
            .collect();
        assert!(of_conversation(&empty, None).input.len() < MAX_BYTES);
        // Many parts, whose names are long.
        let name = "n".repeat(1000);
        let call =
            json!({"id": name, "type": "function", "function": {"name": name, "arguments": ""}});
        let calls = json!([{"role": "assistant", "content": "", "tool_calls": vec![call; 10_000]}]);
        assert!(of_conversation(&calls, None).input.len() < 3 * MAX_BYTES);
        let systems = (0..10_000).map(|_| json!({"role": "system", "content": "a"}));
        let system = of_conversation(&systems.collect(), None).system.unwrap();
        assert!(system.len() < MAX_BYTES, "{}", system.len());
        let function = json!({"name": name, "description": name, "parameters": {"title": name}});
        let tools = json!(vec![
            json!({"type": "function", "function": function});
            1000
        ]);
        let tools = of_conversation(&json!([]), Some(&tools)).tools.unwrap();
        assert!(tools.len() < 3 * MAX_BYTES, "{}", tools.len());
        assert!(read(&tools).as_array().unwrap().len() < 300);
        let long = of_prompt(&"ä".repeat(MAX_BYTES)).input;
        assert!(long.len() < MAX_BYTES + 100, "{}", long.len());
    }
}
