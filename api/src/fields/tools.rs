//! The JSON of tools and of tool calls in requests.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::capped::{MAX_VALUES, counted};
use crate::fields::schema::MAX_SCHEMA_VALUES;
use crate::fields::wire::Object;
use crate::tool_plan::{Choice, Tool};
use crate::tools::{Signature, is_name};

/// Most tools of one request (OpenAI's bound), and most characters of a name.
const MAX_TOOLS: usize = 128;
const MAX_NAME: usize = 128;

/// A list of tools. If it has more than [`MAX_SCHEMA_VALUES`] values, only the first are kept.
#[derive(Debug)]
pub struct GivenTools {
    list: Vec<Value>,
    values: usize,
}

impl<'de> Deserialize<'de> for GivenTools {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match counted(deserializer, MAX_SCHEMA_VALUES)? {
            (Value::Array(list), values) => Ok(Self { list, values }),
            _ => Err(de::Error::custom("invalid type, expected a list")),
        }
    }
}

/// How the object of a tool is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`
    OpenAi,
    /// `{"name", "description", "input_schema", "strict"}`
    Anthropic,
    /// `{"type": "function", "name", "description", "parameters", "strict"}`
    Responses,
}

impl GivenTools {
    /// The tools, each checked.
    ///
    /// # Errors
    /// 400 with field, bound and value.
    pub fn check(self, spelling: Spelling) -> Result<Vec<Tool>, ApiError> {
        if self.values > MAX_SCHEMA_VALUES {
            let bound = format!("at most {MAX_SCHEMA_VALUES} values in all");
            return Err(out_of_bounds("tools", &bound, self.values));
        }
        if self.list.len() > MAX_TOOLS {
            let bound = format!("at most {MAX_TOOLS} tools");
            return Err(out_of_bounds("tools", &bound, self.list.len()));
        }
        let mut tools: Vec<Tool> = Vec::new();
        for (index, value) in self.list.into_iter().enumerate() {
            // OpenAI's own servers run it. Coding agents offer it to every server; here the model is
            // not told of it.
            if spelling == Spelling::Responses && value["type"] == "web_search" {
                continue;
            }
            let fields = Fields::new(value, format!("tools[{index}]"))?;
            let tool = match spelling {
                Spelling::OpenAi => openai(fields)?,
                Spelling::Anthropic => anthropic(fields)?,
                Spelling::Responses => responses(fields)?,
            };
            let name = &tool.signature.name;
            if tools.iter().any(|other| other.signature.name == *name) {
                let bound = "a list that has each name once";
                return Err(out_of_bounds("tools", bound, format!("{name:?} twice")));
            }
            tools.push(tool);
        }
        Ok(tools)
    }
}

/// Takes the type of a tool: the client runs functions, and OpenAI's own servers the others.
fn take_function_type(fields: &mut Fields) -> Result<(), ApiError> {
    let kind = fields.text("type")?;
    if kind.as_deref() != Some("function") {
        let given = kind.map_or("none".to_owned(), |kind| format!("{kind:?}"));
        return Err(out_of_bounds(&fields.at("type"), "function", given));
    }
    Ok(())
}

fn responses(mut fields: Fields) -> Result<Tool, ApiError> {
    take_function_type(&mut fields)?;
    tool(fields, "parameters")
}

fn openai(mut fields: Fields) -> Result<Tool, ApiError> {
    take_function_type(&mut fields)?;
    let path = fields.at("function");
    let Some(function) = fields.take("function") else {
        return Err(out_of_bounds(&path, "an object", "none"));
    };
    fields.end()?;
    tool(Fields::new(function, path)?, "parameters")
}

fn anthropic(mut fields: Fields) -> Result<Tool, ApiError> {
    let kind = fields.text("type")?;
    if let Some(kind) = kind.filter(|kind| kind != "custom") {
        // Tools of other types are run by Anthropic's own servers.
        return Err(out_of_bounds(
            &fields.at("type"),
            "left out or custom",
            format!("{kind:?}"),
        ));
    }
    // It has no effect, because every prefix is cached anyway.
    fields.take("cache_control");
    // It has no effect either: arguments are always sent while they are written.
    if fields
        .take("eager_input_streaming")
        .is_some_and(|given| !given.is_boolean())
    {
        let field = fields.at("eager_input_streaming");
        return Err(wrong_type(&field, "a boolean"));
    }
    tool(fields, "input_schema")
}

fn tool(mut fields: Fields, schema_key: &str) -> Result<Tool, ApiError> {
    let name = fields.text("name")?.unwrap_or_default();
    if !(1..=MAX_NAME).contains(&name.len()) || !name.chars().all(is_name) {
        let bound = format!("1 to {MAX_NAME} letters, digits, `_`, `-` and `.`");
        let given: String = name.chars().take(40).collect();
        return Err(out_of_bounds(
            &fields.at("name"),
            &bound,
            format!("{given:?}"),
        ));
    }
    let description = fields.text("description")?;
    let strict = match fields.take("strict") {
        None => false,
        Some(Value::Bool(strict)) => strict,
        Some(_) => return Err(wrong_type(&fields.at("strict"), "a boolean")),
    };
    let field = fields.at(schema_key);
    let schema = match fields.take(schema_key) {
        None => json!({"type": "object", "properties": {}}),
        Some(schema @ Value::Object(_)) => schema,
        Some(_) => return Err(wrong_type(&field, "a JSON Schema (an object)")),
    };
    fields.end()?;
    // The order of keys that models have seen in training.
    let mut function = json!({ "name": name });
    if let Some(description) = description {
        function["description"] = description.into();
    }
    function["parameters"] = schema.clone();
    Ok(Tool {
        json: json!({"type": "function", "function": function}),
        strict,
        signature: Signature {
            name,
            schema,
            field,
        },
    })
}

fn wrong_type(field: &str, expected: &str) -> ApiError {
    ApiError::field(
        field,
        format!("`{field}`: invalid type, expected {expected}"),
    )
}

/// The fields of an object that were not taken yet, and the object's path.
struct Fields {
    map: Map<String, Value>,
    path: String,
}

impl Fields {
    fn new(value: Value, path: String) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            _ => Err(wrong_type(&path, "an object")),
        }
    }

    fn at(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    /// Takes out the field `key`; `null` is the same as absent.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.map.shift_remove(key).filter(|value| !value.is_null())
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, ApiError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong_type(&self.at(key), "a string")),
        }
    }

    /// Checks that every field was taken: the rest is unknown.
    fn end(self) -> Result<(), ApiError> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(key) => {
                let path = self.at(key);
                let message = format!(
                    "`{path}` is not a field this server knows; nothing is ignored silently"
                );
                Err(ApiError::field(path, message).code("unknown_parameter"))
            }
        }
    }
}

/// OpenAI's `tool_choice`. `FLAT`: as `/v1/responses` spells a function, `{"type", "name"}`; chats
/// spell it `{"type", "function": {"name"}}`.
#[derive(Debug)]
pub struct ToolChoice<const FLAT: bool = false>(pub Choice);

impl<'de, const FLAT: bool> Deserialize<'de> for ToolChoice<FLAT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Named {
            r#type: String,
            function: Option<Object<Name>>,
            name: Option<String>,
        }
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Name {
            name: String,
        }
        struct Choices<const FLAT: bool>;
        impl<'de, const FLAT: bool> Visitor<'de> for Choices<FLAT> {
            type Value = ToolChoice<FLAT>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("auto, none, required or a function's name in an object")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                match text {
                    "auto" => Ok(ToolChoice(Choice::Auto)),
                    "none" => Ok(ToolChoice(Choice::None)),
                    "required" => Ok(ToolChoice(Choice::Required)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let named = Named::deserialize(MapAccessDeserializer::new(map))?;
                if named.r#type != "function" {
                    return Err(de::Error::custom("its type must be function"));
                }
                let (key, name, other) = match FLAT {
                    true => ("name", named.name, named.function.is_some()),
                    false => {
                        let name = named.function.map(|function| function.0.name);
                        ("function", name, named.name.is_some())
                    }
                };
                match name {
                    Some(name) if !other => Ok(ToolChoice(Choice::Named(name))),
                    None => Err(de::Error::missing_field(key)),
                    Some(_) => Err(de::Error::custom(format!(
                        "it must have the fields type and {key} only"
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Choices::<FLAT>)
    }
}

/// A tool call in an assistant's message.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenCall {
    id: Option<String>,
    r#type: Option<String>,
    function: Object<GivenFunction>,
    /// The call's position in a stream, which some clients copy.
    #[expect(dead_code, reason = "checked for its type, and that is all")]
    index: Option<i64>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenFunction {
    name: String,
    arguments: Option<Arguments>,
    /// A key that Ollama's client copies.
    #[expect(dead_code, reason = "checked for its type, and that is all")]
    index: Option<i64>,
}

impl GivenCall {
    /// The call as the chat template sees it.
    ///
    /// # Errors
    /// 400 for a call that is not of a function.
    pub fn template(&self, path: &str) -> Result<Value, ApiError> {
        if let Some(kind) = self.r#type.as_deref().filter(|kind| *kind != "function") {
            let field = format!("{path}.type");
            return Err(out_of_bounds(&field, "function", format!("{kind:?}")));
        }
        let GivenFunction {
            name, arguments, ..
        } = &*self.function;
        let arguments = arguments.as_ref().map_or("{}", |given| given.0.as_str());
        let mut call = json!({
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        });
        if let Some(id) = &self.id {
            call["id"] = id.as_str().into();
        }
        Ok(call)
    }
}

/// A call's arguments: JSON in a string (OpenAI), or an object (Ollama), of at most [`MAX_VALUES`]
/// values.
#[derive(Debug)]
pub struct Arguments(pub String);

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bounded = |values| match values {
            ..=MAX_VALUES => Ok(()),
            _ => {
                let bound = format!("must be at most {MAX_VALUES} values in all, got {values}");
                Err(de::Error::custom(bound))
            }
        };
        match counted(deserializer, MAX_VALUES)? {
            (Value::String(text), _) => {
                // Templates get an object where the string has one.
                let mut json = serde_json::Deserializer::from_str(&text);
                if let Ok((_, values)) = counted(&mut json, 0) {
                    bounded(values)?;
                }
                Ok(Self(text))
            }
            (object @ Value::Object(_), values) => {
                bounded(values)?;
                Ok(Self(object.to_string()))
            }
            _ => Err(de::Error::custom(
                "invalid type, expected a string of JSON or an object",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_str, from_value};

    fn check(tools: Value) -> Result<Vec<Tool>, ApiError> {
        let given: GivenTools = from_value(tools).unwrap();
        given.check(Spelling::OpenAi)
    }

    #[test]
    fn both_spellings_of_a_tool_are_the_same_to_the_model() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let openai = check(json!([{"type": "function", "function":
            {"name": "f", "description": "d", "parameters": schema, "strict": true}}]));
        let given: GivenTools = from_value(
            json!([{"name": "f", "description": "d", "input_schema": schema, "strict": true}]),
        )
        .unwrap();
        let (openai, anthropic) = (openai.unwrap(), given.check(Spelling::Anthropic).unwrap());
        assert_eq!(openai[0].json, anthropic[0].json);
        assert!(openai[0].strict && anthropic[0].strict);
        assert_eq!(openai[0].signature.field, "tools[0].function.parameters");
        assert_eq!(anthropic[0].signature.field, "tools[0].input_schema");
    }

    #[test]
    fn a_wrong_tool_is_refused_at_its_field() {
        let function = |function: Value| json!([{"type": "function", "function": function}]);
        for (tools, param) in [
            (json!([1]), "tools[0]"),
            (json!([{"type": "retrieval"}]), "tools[0].type"),
            (json!([{"type": "function"}]), "tools[0].function"),
            (function(json!({})), "tools[0].function.name"),
            (function(json!({"name": "a b"})), "tools[0].function.name"),
            (
                function(json!({"name": "a", "strict": 1})),
                "tools[0].function.strict",
            ),
            (
                function(json!({"name": "a", "parameters": []})),
                "tools[0].function.parameters",
            ),
            (
                function(json!({"name": "a", "colour": 1})),
                "tools[0].function.colour",
            ),
        ] {
            let error = check(tools.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{tools}");
        }
        let tool = json!({"type": "function", "function": {"name": "a"}});
        assert!(check(json!([tool, tool])).is_err());
        assert!(check(vec![tool; 129].into()).is_err());
    }

    #[test]
    fn arguments_are_bounded_in_either_spelling() {
        let text = |json: &str| from_str::<Arguments>(json).map(|arguments| arguments.0);
        assert_eq!(text(r#""{\"a\": 1.0}""#).unwrap(), r#"{"a": 1.0}"#);
        assert_eq!(text(r#"{"a":1}"#).unwrap(), r#"{"a":1}"#);
        assert_eq!(text(r#""no json""#).unwrap(), "no json");
        let many = json!({"a": vec![0; MAX_VALUES]}).to_string();
        assert!(text(&many).is_err());
        assert!(text(&Value::from(many).to_string()).is_err());
        assert!(text("[1]").is_err());
    }
}
