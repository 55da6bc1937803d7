//! Expressions: what a program adds to a state.

use schemars::JsonSchema;
use serde_json::Value as Json;

use crate::lang::choices::ChoiceMethod;
use crate::lang::op::{Generation, Selection};
use crate::lang::read::Var;
use crate::lang::sampling::{Format, Sampling};

/// A part of an expression.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Text(String),
    Var(Var),
    Generate(Box<Generate>),
    Select(Select),
    Image(String),
}

/// Texts, variables and generations, one after another. Made of each of them by `into`, and of
/// several by a list.
#[derive(Clone, Debug, Default)]
pub struct Expr(pub(crate) Vec<Item>);

impl From<&str> for Expr {
    fn from(text: &str) -> Self {
        Self(vec![Item::Text(text.to_owned())])
    }
}

impl From<String> for Expr {
    fn from(text: String) -> Self {
        Self(vec![Item::Text(text)])
    }
}

impl From<&String> for Expr {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Var> for Expr {
    fn from(var: Var) -> Self {
        Self(vec![Item::Var(var)])
    }
}

impl From<&Var> for Expr {
    fn from(var: &Var) -> Self {
        var.clone().into()
    }
}

impl From<Generate> for Expr {
    fn from(generate: Generate) -> Self {
        match generate.choices {
            Some((choices, method)) => select(&generate.statement.name, choices)
                .method(method)
                .into(),
            None => Self(vec![Item::Generate(Box::new(generate))]),
        }
    }
}

impl From<Select> for Expr {
    fn from(select: Select) -> Self {
        Self(vec![Item::Select(select)])
    }
}

impl<const N: usize> From<[Expr; N]> for Expr {
    fn from(parts: [Expr; N]) -> Self {
        Self(parts.into_iter().flat_map(|part| part.0).collect())
    }
}

impl From<Vec<Expr>> for Expr {
    fn from(parts: Vec<Expr>) -> Self {
        Self(parts.into_iter().flat_map(|part| part.0).collect())
    }
}

/// `a + b` is both, one after the other.
impl<E: Into<Expr>> std::ops::Add<E> for Expr {
    type Output = Expr;
    fn add(mut self, other: E) -> Expr {
        self.0.extend(other.into().0);
        self
    }
}

/// An image. No back end takes one: the statement fails with
/// [`Error::Unsupported`](crate::lang::Error::Unsupported).
pub fn image(path: &str) -> Expr {
    Expr(vec![Item::Image(path.to_owned())])
}

/// A text that is the same for all inputs of a program, in [`unordered`].
pub fn constant(text: &str) -> (bool, Expr) {
    (true, text.into())
}

/// A text or a variable that differs between the inputs of a program, in [`unordered`].
pub fn varying(part: impl Into<Expr>) -> (bool, Expr) {
    (false, part.into())
}

/// Parts whose order does not matter to the program: the constant ones are put first, so that all
/// inputs have a longer prefix in common. Among themselves both kinds keep their order.
pub fn unordered(parts: impl IntoIterator<Item = (bool, Expr)>) -> Expr {
    let parts = parts.into_iter();
    let (constant, varying): (Vec<_>, Vec<_>) = parts.partition(|(is_constant, _)| *is_constant);
    let parts = constant.into_iter().chain(varying);
    Expr(parts.flat_map(|(_, part)| part.0).collect())
}

/// A generation into a variable; see [`generate`].
#[derive(Clone, Debug)]
pub struct Generate {
    pub(crate) statement: Generation,
    choices: Option<(Vec<String>, ChoiceMethod)>,
}

/// Generates text, adds it to the state, and makes it the value of the variable `name`.
pub fn generate(name: &str) -> Generate {
    Generate {
        statement: Generation {
            name: name.to_owned(),
            ..Generation::default()
        },
        choices: None,
    }
}

impl From<Generation> for Generate {
    fn from(statement: Generation) -> Self {
        Self {
            statement,
            choices: None,
        }
    }
}

/// Generates an integer in decimal digits, which [`get`](crate::lang::State::get) reads as an `i64`.
pub fn gen_int(name: &str) -> Generate {
    // 18 digits always fit into 64 bits.
    generate(name).regex("(0|-?[1-9][0-9]{0,17})")
}

/// Generates a string in double quotes, which [`get`](crate::lang::State::get) reads as a `String`
/// without them.
pub fn gen_string(name: &str) -> Generate {
    generate(name).regex(r#""[^"\\\x00-\x1f]*""#)
}

/// A method that sets one field of the sampling options.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, value: $kind) -> Self {
            self.statement.sampling.$name = Some(value);
            self
        }
    )*};
}

impl Generate {
    options! {
        /// Most output tokens.
        max_tokens: u32,
        /// Tokens before which nothing ends the output.
        min_tokens: u32,
        /// 0 is greedy.
        temperature: f64,
        top_p: f64,
        top_k: i64,
        min_p: f64,
        frequency_penalty: f64,
        presence_penalty: f64,
        repetition_penalty: f64,
        /// Go on after the token that ends a text.
        ignore_eos: bool,
        seed: i64,
    }

    /// Ends the output at `text`, which does not become part of it. Each call adds one.
    #[must_use]
    pub fn stop(mut self, text: &str) -> Self {
        self.statement.sampling.stop.push(text.to_owned());
        self
    }

    /// Ends the output at a token. Each call adds one.
    #[must_use]
    pub fn stop_token_id(mut self, id: u32) -> Self {
        self.statement.sampling.stop_token_ids.push(id);
        self
    }

    /// Ends the output where a regular expression matches. Each call adds one.
    #[must_use]
    pub fn stop_regex(mut self, pattern: &str) -> Self {
        self.statement.sampling.stop_regex.push(pattern.to_owned());
        self
    }

    /// Generates `n` outputs, each a sample of its own. The variable is the list of their texts
    /// ([`Var::texts`]), and the state goes on after the first one. Such a generation is not streamed.
    #[must_use]
    pub fn n(mut self, n: u32) -> Self {
        self.statement.n = Some(n);
        self
    }

    /// Has the log-probabilities of the output's tokens in [`Meta::outputs`](crate::lang::Meta::outputs),
    /// each with the `top` most likely tokens at its place. Such a generation is not streamed.
    #[must_use]
    pub fn logprobs(mut self, top: u32) -> Self {
        self.statement.logprobs = Some(top);
        self
    }

    /// Sets all sampling options at once.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.statement.sampling = sampling;
        self
    }

    /// The output matches a regular expression as a whole.
    #[must_use]
    pub fn regex(mut self, pattern: &str) -> Self {
        self.statement.format = Format {
            regex: Some(pattern.to_owned()),
            json_schema: None,
        };
        self
    }

    /// The output is JSON that a schema allows.
    #[must_use]
    pub fn json_schema(mut self, schema: Json) -> Self {
        self.statement.format = Format {
            regex: None,
            json_schema: Some(schema),
        };
        self
    }

    /// The output is JSON of a `T`, by the schema that `T` derives; read it with
    /// [`get`](crate::lang::State::get).
    #[must_use]
    pub fn json_of<T: JsonSchema>(self) -> Self {
        self.json_schema(schemars::schema_for!(T).to_value())
    }

    /// The output is the most likely of `choices`; the same as [`select`].
    #[must_use]
    pub fn choices(mut self, choices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let choices = choices.into_iter().map(Into::into).collect();
        self.choices = Some((choices, ChoiceMethod::default()));
        self
    }
}

/// The most likely of some texts; see [`select`].
#[derive(Clone, Debug)]
pub struct Select(pub(crate) Selection);

/// Adds the most likely of `choices` to the state, and makes it the value of the variable `name`.
/// All choices are compared with one request.
pub fn select(name: &str, choices: impl IntoIterator<Item = impl Into<String>>) -> Select {
    Select(Selection {
        name: name.to_owned(),
        choices: choices.into_iter().map(Into::into).collect(),
        method: ChoiceMethod::default(),
    })
}

impl Select {
    /// Compares by another method.
    #[must_use]
    pub fn method(mut self, method: ChoiceMethod) -> Self {
        self.0.method = method;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_parts_go_first_and_keep_their_order() {
        let expr = unordered([
            varying("q"),
            constant("a"),
            varying("r".to_owned()),
            constant("b"),
        ]);
        let texts = expr.0.iter().map(|item| match item {
            Item::Text(text) => text.as_str(),
            _ => "?",
        });
        assert_eq!(texts.collect::<String>(), "abqr");
    }

    #[test]
    fn the_later_format_replaces_the_earlier_one_and_choices_are_a_selection() {
        let both = generate("x").regex("a").json_schema(serde_json::json!({}));
        assert_eq!(both.statement.format.regex, None);
        let expr: Expr = generate("x").choices(["a", "b"]).into();
        assert!(matches!(&expr.0[..], [Item::Select(Select(s))] if s.choices == ["a", "b"]));
    }
}
