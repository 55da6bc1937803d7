//! Cuts a model's text into the parts of an answer: reasoning, plain text and tool calls.
//!
//! **Architecture Invariant.** The parts do not depend on how the text was cut into pieces: put
//! together, a stream says the same as the whole answer.

use std::sync::Arc;

use crate::reasoning::{self, Splitter};
use crate::tools::{self, Call, Forced, Format, Layout, Parser};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Text(String),
    /// A call begins, of the tool with this name.
    Call(String),
    /// The next piece of the JSON of its arguments.
    Arguments(String),
}

impl From<tools::Part> for Part {
    fn from(part: tools::Part) -> Self {
        match part {
            tools::Part::Text(text) => Self::Text(text),
            tools::Part::Call(name) => Self::Call(name),
            tools::Part::Arguments(json) => Self::Arguments(json),
        }
    }
}

/// How tool calls are found in a text.
#[derive(Clone, Debug, Default)]
pub enum Calls {
    /// The text has none.
    #[default]
    None,
    /// The text may have some between other text.
    Parsed(Parser),
    /// A grammar makes the model write calls and nothing else.
    Forced(Forced),
}

impl Calls {
    /// For a model that may call `tools`.
    pub fn parsed(format: Format, tools: Arc<[String]>) -> Self {
        Self::Parsed(Parser::new(format, tools))
    }

    /// For a model that a grammar makes call `tools`.
    pub fn forced(layout: Layout, tools: Arc<[String]>) -> Self {
        match layout.format() {
            // Arguments of this format can be written as JSON only once they are complete.
            format @ Format::Pythonic => Self::parsed(format, tools),
            Format::Hermes | Format::Llama3 | Format::Mistral => {
                Self::Forced(Forced::new(layout, tools))
            }
        }
    }

    /// The same, but each call is given only when it is complete.
    #[must_use]
    pub fn whole(self) -> Self {
        match self {
            Self::Forced(forced) => Self::Parsed(forced.into_parser()),
            calls => calls,
        }
    }

    fn push(&mut self, text: String) -> Vec<Part> {
        let parts = match self {
            Self::None => return vec![Part::Text(text)],
            Self::Parsed(parser) => parser.push(&text),
            Self::Forced(forced) => forced.push(&text),
        };
        parts.into_iter().map(Part::from).collect()
    }

    fn finish(&mut self) -> Vec<Part> {
        let parts = match self {
            Self::None => Vec::new(),
            Self::Parsed(parser) => parser.finish(),
            Self::Forced(forced) => forced.finish(),
        };
        parts.into_iter().map(Part::from).collect()
    }
}

/// Where reasoning goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reasoning {
    /// Into parts of its own: as it comes if `streamed`, else in one part when it has ended.
    Apart { streamed: bool },
    /// It stays in the text, with its marks.
    InText,
}

/// Reads one answer.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    reasoning: Option<(Splitter, Reasoning)>,
    calls: Calls,
    /// Reasoning so far, where it is given in one part when it has ended.
    kept: String,
}

impl Reader {
    /// `reasoning` is none where reasoning is not looked for.
    pub fn new(reasoning: Option<(reasoning::Begin, Reasoning)>, calls: Calls) -> Self {
        let reasoning = reasoning.map(|(begin, reasoning)| {
            let verbatim = reasoning == Reasoning::InText;
            (Splitter::new(begin, verbatim), reasoning)
        });
        Self {
            reasoning,
            calls,
            kept: String::new(),
        }
    }

    /// Takes the next piece of text and gives the parts that are certain now.
    pub fn push(&mut self, text: String) -> Vec<Part> {
        let Some((splitter, mode)) = &mut self.reasoning else {
            return self.calls.push(text);
        };
        let (parts, mode) = (splitter.push(&text), *mode);
        self.given(parts, mode)
    }

    /// Ends the text and gives the parts that were held back.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        if let Some((splitter, mode)) = &mut self.reasoning {
            let (rest, mode) = (splitter.finish(), *mode);
            parts = self.given(rest, mode);
        }
        parts.extend(self.calls.finish());
        let kept = std::mem::take(&mut self.kept);
        if !kept.is_empty() {
            parts.insert(0, Part::Reasoning(kept));
        }
        parts
    }

    fn given(&mut self, parts: Vec<reasoning::Part>, mode: Reasoning) -> Vec<Part> {
        let mut given = Vec::new();
        for part in parts {
            match (part, mode) {
                (reasoning::Part::Reasoning(text), Reasoning::InText) => {
                    given.push(Part::Text(text));
                }
                (reasoning::Part::Reasoning(text), Reasoning::Apart { streamed: true }) => {
                    given.push(Part::Reasoning(text));
                }
                (reasoning::Part::Reasoning(text), Reasoning::Apart { streamed: false }) => {
                    self.kept.push_str(&text);
                }
                (reasoning::Part::Text(text), _) => {
                    let kept = std::mem::take(&mut self.kept);
                    if !kept.is_empty() {
                        given.push(Part::Reasoning(kept));
                    }
                    given.extend(self.calls.push(text));
                }
            }
        }
        given
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<Call>,
}

impl Said {
    /// Reads the whole of `text` with `reader`.
    pub fn read(mut reader: Reader, text: String) -> Self {
        let mut parts = reader.push(text);
        parts.extend(reader.finish());
        Self::of(parts)
    }

    fn of(parts: Vec<Part>) -> Self {
        let mut said = Self::default();
        for part in parts {
            match part {
                Part::Reasoning(text) => said.reasoning.push_str(&text),
                Part::Text(text) => said.text.push_str(&text),
                Part::Call(name) => said.calls.push(Call {
                    name,
                    arguments: String::new(),
                }),
                Part::Arguments(json) => {
                    if let Some(call) = said.calls.last_mut() {
                        call.arguments.push_str(&json);
                    }
                }
            }
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reasoning::Begin;
    use proptest::prelude::*;

    fn reader(mode: Reasoning) -> Reader {
        let tools: Arc<[String]> = ["f".to_owned()].into();
        let calls = Calls::parsed(Format::Hermes, tools);
        Reader::new(Some((Begin::Either, mode)), calls)
    }

    const TEXT: &str = "<think>\nI call <tool_call>{\"name\": \"f\"}</tool_call>?\n</think>\n\n\
                        Yes. <tool_call>{\"name\": \"f\"}</tool_call>";

    #[test]
    fn what_is_called_in_reasoning_is_no_call() {
        let said = Said::read(reader(Reasoning::Apart { streamed: true }), TEXT.to_owned());
        let thought = "I call <tool_call>{\"name\": \"f\"}</tool_call>?";
        assert_eq!(said.reasoning, thought);
        assert_eq!((said.text.as_str(), said.calls.len()), ("Yes.", 1));
        let said = Said::read(reader(Reasoning::InText), TEXT.to_owned());
        assert_eq!(said.text, format!("<think>\n{thought}\n</think>\n\nYes."));
        assert_eq!((said.reasoning.as_str(), said.calls.len()), ("", 1));
    }

    #[test]
    fn reasoning_that_is_not_streamed_comes_at_once_and_first() {
        let mut reader = reader(Reasoning::Apart { streamed: false });
        let mut parts = Vec::new();
        for c in TEXT.chars() {
            parts.extend(reader.push(c.to_string()));
        }
        parts.extend(reader.finish());
        assert!(matches!(parts[0], Part::Reasoning(_)));
        let reasoning = parts.iter().filter(|p| matches!(p, Part::Reasoning(_)));
        assert_eq!(reasoning.count(), 1);
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            end in any::<prop::sample::Index>(),
            mode in prop::sample::select(vec![
                Reasoning::InText,
                Reasoning::Apart { streamed: true },
                Reasoning::Apart { streamed: false },
            ]),
        ) {
            let text = &TEXT[..end.index(TEXT.len() + 1)];
            let mut streaming = reader(mode);
            let mut parts = Vec::new();
            for piece in tools::pieces(text, &cuts) {
                parts.extend(streaming.push(piece.to_owned()));
            }
            parts.extend(streaming.finish());
            prop_assert_eq!(Said::of(parts), Said::read(reader(mode), text.to_owned()));
        }
    }
}
