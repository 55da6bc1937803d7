//! PD mode writes defaults into a request before the bootstrap fields: those that sglang-router
//! writes, so that a worker gets the same fields from either, and the request's id.

use crate::body::{Fields, add, quoted};

/// The routes of PD mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PdRoute {
    Generate,
    Chat,
    Completions,
}

/// Fields with values that ask for nothing.
type Defaults = &'static [(&'static str, &'static str)];

const GENERATE: Defaults = &[
    ("model", "null"),
    ("return_text_in_logprobs", "false"),
    ("stream", "false"),
    ("log_metrics", "true"),
    ("return_hidden_states", "false"),
    ("background", "false"),
    ("no_logs", "false"),
    ("return_bytes", "false"),
    ("return_entropy", "false"),
];
const CHAT: Defaults = &[
    ("logprobs", "false"),
    ("stream", "false"),
    ("no_stop_trim", "false"),
    ("ignore_eos", "false"),
    ("continue_final_message", "false"),
    ("skip_special_tokens", "true"),
    ("separate_reasoning", "true"),
    ("stream_reasoning", "true"),
    ("return_hidden_states", "false"),
];
const COMPLETIONS: Defaults = &[
    ("stream", "false"),
    ("echo", "false"),
    ("no_stop_trim", "false"),
    ("ignore_eos", "false"),
    ("skip_special_tokens", "true"),
    ("return_hidden_states", "false"),
];

impl PdRoute {
    /// The prefix of the request's id.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Generate => "gnt-",
            Self::Chat => "chatcmpl-",
            Self::Completions => "cmpl-",
        }
    }

    fn defaults(self) -> Defaults {
        match self {
            Self::Generate => GENERATE,
            Self::Chat => CHAT,
            Self::Completions => COMPLETIONS,
        }
    }
}

/// The inside of the object that both workers get, without the bootstrap fields. A field that the
/// client gave stays as it is, null included.
pub fn fill(route: PdRoute, mut fields: Fields<'_>, new_id: impl FnOnce() -> String) -> String {
    if route == PdRoute::Chat && fields.given("max_completion_tokens").is_none() {
        // The newer name, as sglang-router sends it.
        fields.remove("max_completion_tokens");
        fields.rename("max_tokens", "max_completion_tokens");
    }
    for name in ["bootstrap_host", "bootstrap_port", "bootstrap_room"] {
        // The router alone decides where workers meet.
        fields.remove(name);
    }
    let id = match fields.given("rid") {
        Some(_) => None,
        None => {
            fields.remove("rid");
            Some(new_id())
        }
    };
    let mut text = String::new();
    fields.write(&mut text);
    for (name, value) in route.defaults() {
        if fields.raw(name).is_none() {
            add(&mut text, name, value);
        }
    }
    let no_tools = fields
        .read::<Vec<serde::de::IgnoredAny>>("tools")
        .is_some_and(|tools| tools.is_empty());
    if route == PdRoute::Chat && no_tools && fields.raw("tool_choice").is_none() {
        add(&mut text, "tool_choice", "\"none\"");
    }
    if let Some(id) = id {
        add(&mut text, "rid", &quoted(&id));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn filled(route: PdRoute, given: &str) -> Value {
        let fields = Fields::parse(given.as_bytes()).unwrap();
        let text = fill(route, fields, || "id".to_owned());
        serde_json::from_str(&format!("{{{text}}}")).unwrap()
    }

    #[test]
    fn what_the_client_gave_stays() {
        let given = r#"{"stream": true, "rid": "mine", "echo": null, "unknown": 1}"#;
        let value = filled(PdRoute::Completions, given);
        assert_eq!(value["stream"], true);
        assert_eq!(value["rid"], "mine");
        assert_eq!(value["echo"], Value::Null);
        assert_eq!(value["unknown"], 1);
        assert_eq!(filled(PdRoute::Generate, r#"{"rid": null}"#)["rid"], "id");
    }

    #[test]
    fn bootstrap_fields_of_clients_are_dropped() {
        let value = filled(
            PdRoute::Generate,
            r#"{"bootstrap_host": "evil", "text": "a"}"#,
        );
        assert_eq!(value.get("bootstrap_host"), None);
    }

    #[test]
    fn the_older_name_of_the_longest_chat_output_is_replaced() {
        let value = filled(PdRoute::Chat, r#"{"max_tokens": 8, "tools": []}"#);
        assert_eq!(value["max_completion_tokens"], 8);
        assert_eq!(value.get("max_tokens"), None);
        assert_eq!(value["tool_choice"], "none");
        let both = filled(
            PdRoute::Chat,
            r#"{"max_tokens": 8, "max_completion_tokens": 9}"#,
        );
        assert_eq!(
            [&both["max_tokens"], &both["max_completion_tokens"]],
            [8, 9]
        );
        let value = filled(PdRoute::Completions, r#"{"max_tokens": 8}"#);
        assert_eq!(value["max_tokens"], json!(8));
    }
}
