//! The fields by which a prefill and a decode worker find each other: `bootstrap_host`,
//! `bootstrap_port` and a random `bootstrap_room`. For a batch each is an array.

use rand::Rng;

use crate::body::{Fields, add, items, quoted};
use crate::defaults::PdRoute;
use crate::error::RouterError;

/// Largest `n` of a chat, which bounds the arrays of its rooms.
const MOST_CHOICES: u64 = 4096;

/// How many rooms a request needs; `None` for one that is not in an array.
///
/// The rules are those of sglang-router: a list of prompts, or `n` above 1 of a chat. The samples
/// of a single prompt of the other routes share one room.
///
/// # Errors
/// 400 if `n` is out of bounds.
pub fn rooms(route: PdRoute, fields: &Fields<'_>) -> Result<Option<usize>, RouterError> {
    match route {
        PdRoute::Chat => match fields.read::<u64>("n") {
            None | Some(0 | 1) => Ok(None),
            Some(n @ 2..=MOST_CHOICES) => Ok(Some(n as usize)),
            Some(n) => Err(RouterError::field(
                "n",
                format!("`n` must be at most {MOST_CHOICES} in prefill/decode mode, got {n}."),
            )),
        },
        PdRoute::Completions => Ok(batch(fields, "prompt")),
        PdRoute::Generate => Ok(batch(fields, "text").or_else(|| batch(fields, "input_ids"))),
    }
}

/// The length of a list of prompts; `None` for one prompt, be it a text or a list of token ids.
fn batch(fields: &Fields<'_>, name: &str) -> Option<usize> {
    let items = items(fields.given(name)?)?;
    let first = items.first()?;
    first.starts_with(['"', '[']).then_some(items.len())
}

/// A random room from 0 to 2^63 - 1.
fn room() -> i64 {
    rand::rng().random_range(0..=i64::MAX)
}

/// One pairing of a request with two workers.
#[derive(Clone, Debug)]
pub struct Bootstrap<'a> {
    pub host: &'a str,
    pub port: Option<u16>,
    pub rooms: Option<usize>,
}

impl Bootstrap<'_> {
    /// Appends the fields, with new rooms, to the inside of an object.
    pub fn write(&self, text: &mut String) {
        let port = self.port.map_or("null".to_owned(), |port| port.to_string());
        let host = quoted(self.host);
        let value = |one: &dyn Fn() -> String| match self.rooms {
            None => one(),
            Some(count) => {
                let each: Vec<String> = (0..count).map(|_| one()).collect();
                format!("[{}]", each.join(","))
            }
        };
        add(text, "bootstrap_host", &value(&|| host.clone()));
        add(text, "bootstrap_port", &value(&|| port.clone()));
        add(text, "bootstrap_room", &value(&|| room().to_string()));
    }
}

/// Appends the fields that only the decode worker gets, where the client gave no others: the ranks
/// are not known here.
pub fn decode_fields(fields: &Fields<'_>, text: &mut String) {
    for name in ["data_parallel_rank", "data_parallel_rank_decode"] {
        if fields.raw(name).is_none() {
            add(text, name, "null");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn count(route: PdRoute, body: &str) -> Option<usize> {
        rooms(route, &Fields::parse(body.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn batches_have_a_room_for_each_prompt() {
        use PdRoute::{Chat, Completions, Generate};
        for (route, body, expected) in [
            (Generate, r#"{"text": "a"}"#, None),
            (Generate, r#"{"text": ["a", "b"]}"#, Some(2)),
            (Generate, r#"{"input_ids": [1, 2, 3]}"#, None),
            (Generate, r#"{"input_ids": [[1], [2], [3]]}"#, Some(3)),
            (Completions, r#"{"prompt": "a", "n": 2}"#, None),
            (Completions, r#"{"prompt": ["a"]}"#, Some(1)),
            (Completions, r#"{"prompt": [1, 2]}"#, None),
            (Completions, r#"{"prompt": [[1], [2]]}"#, Some(2)),
            (Completions, r#"{"prompt": []}"#, None),
            (Chat, r#"{"n": 1}"#, None),
            (Chat, r#"{"n": 3}"#, Some(3)),
            (Chat, r#"{"n": "x"}"#, None),
        ] {
            assert_eq!(count(route, body), expected, "{body}");
        }
        let fields = Fields::parse(br#"{"n": 1000000000}"#).unwrap();
        let error = rooms(PdRoute::Chat, &fields).unwrap_err();
        assert_eq!(error.param, Some("n"));
    }

    #[test]
    fn rooms_are_63_bits_wide_and_new_each_time() {
        let write = |rooms| {
            let mut text = String::new();
            Bootstrap {
                host: "h",
                port: None,
                rooms,
            }
            .write(&mut text);
            serde_json::from_str::<Value>(&format!("{{{text}}}")).unwrap()
        };
        let one = write(None);
        assert_eq!(
            [&one["bootstrap_host"], &one["bootstrap_port"]],
            [&json!("h"), &json!(null)]
        );
        assert!(one["bootstrap_room"].as_i64().unwrap() >= 0);
        let two = write(Some(2));
        assert_eq!(two["bootstrap_host"], json!(["h", "h"]));
        assert_eq!(two["bootstrap_port"], json!([null, null]));
        assert_ne!(two["bootstrap_room"][0], two["bootstrap_room"][1]);
        assert_ne!(one["bootstrap_room"], write(None)["bootstrap_room"]);
    }
}
