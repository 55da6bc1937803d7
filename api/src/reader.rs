//! Cuts a model's text into the parts of an answer: reasoning, plain text and tool calls.
//!
//! **Architecture Invariant.** The parts do not depend on how the text was cut into pieces: put
//! together, a stream says the same as the whole answer.

use std::sync::Arc;

use crate::channels::{self, At, Channels};
use crate::reasoning::{self, Begin, Splitter};
use crate::tools::{self, Call, Forced, Format, Layout, Parser};

/// Longer texts are read in pieces of this size. Each mark that is found in the text moves all of it that
/// is not read yet, which would take time quadratic in the length of a whole answer.
const PIECE_BYTES: usize = 4 << 10;

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
    /// They are messages to functions of these names, in the harmony format.
    Messages(Arc<[String]>),
}

impl Calls {
    /// For a model that may call `tools`.
    pub fn parsed(format: Format, tools: Arc<[String]>) -> Self {
        match format {
            Format::Harmony => Self::Messages(tools),
            format => Self::Parsed(Parser::new(format, tools)),
        }
    }

    /// For a model that a grammar makes call `tools`.
    pub fn forced(layout: Layout, tools: Arc<[String]>) -> Self {
        match layout.format() {
            // Arguments of Python can be written as JSON only once they are complete, and messages
            // are cut apart in one place.
            format @ (Format::Pythonic | Format::Harmony) => Self::parsed(format, tools),
            _ => Self::Forced(Forced::new(layout, tools)),
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
            Self::None | Self::Messages(_) => return vec![Part::Text(text)],
            Self::Parsed(parser) => parser.push(&text),
            Self::Forced(forced) => forced.push(&text),
        };
        parts.into_iter().map(Part::from).collect()
    }

    fn finish(&mut self) -> Vec<Part> {
        let parts = match self {
            Self::None | Self::Messages(_) => Vec::new(),
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

/// How reasoning is told from the rest.
#[derive(Clone, Debug)]
enum Split {
    ByMarks(Splitter),
    /// Calls are found as well.
    ByChannels(Channels),
}

impl From<reasoning::Part> for channels::Part {
    fn from(part: reasoning::Part) -> Self {
        match part {
            reasoning::Part::Reasoning(text) => Self::Reasoning(text),
            reasoning::Part::Text(text) => Self::Text(text),
        }
    }
}

impl Split {
    fn push(&mut self, text: &str) -> Vec<channels::Part> {
        match self {
            Self::ByMarks(splitter) => splitter.push(text).into_iter().map(Into::into).collect(),
            Self::ByChannels(channels) => channels.push(text),
        }
    }

    fn finish(&mut self) -> Vec<channels::Part> {
        match self {
            Self::ByMarks(splitter) => splitter.finish().into_iter().map(Into::into).collect(),
            Self::ByChannels(channels) => channels.finish(),
        }
    }
}

/// Reads one answer.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    reasoning: Option<(Split, Reasoning)>,
    calls: Calls,
    /// Reasoning so far, where it is given in one part when it has ended.
    kept: String,
}

impl Reader {
    /// `reasoning` is none where reasoning is not looked for.
    pub fn new(reasoning: Option<(Begin, Reasoning)>, calls: Calls) -> Self {
        let reasoning = match (reasoning, &calls) {
            // Without the channels there are no calls to find.
            (None, Calls::Messages(_)) => Some((Begin::Channels(At::Header), Reasoning::InText)),
            (reasoning, _) => reasoning,
        };
        let reasoning = reasoning.map(|(begin, reasoning)| {
            let verbatim = reasoning == Reasoning::InText;
            let split = match (begin, &calls) {
                (Begin::Channels(at), Calls::Messages(tools)) => {
                    Split::ByChannels(Channels::new(at, Arc::clone(tools), verbatim))
                }
                (Begin::Channels(at), _) => {
                    Split::ByChannels(Channels::new(at, Arc::new([]), verbatim))
                }
                (begin, _) => Split::ByMarks(Splitter::new(begin, verbatim)),
            };
            (split, reasoning)
        });
        Self {
            reasoning,
            calls,
            kept: String::new(),
        }
    }

    /// Takes the next piece of text and gives the parts that are certain now.
    pub fn push(&mut self, text: String) -> Vec<Part> {
        if text.len() <= PIECE_BYTES {
            return self.push_piece(text);
        }
        let (mut parts, mut rest) = (Vec::new(), text.as_str());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            parts.extend(self.push_piece(piece.to_owned()));
            rest = after;
        }
        parts
    }

    fn push_piece(&mut self, text: String) -> Vec<Part> {
        let Some((split, mode)) = &mut self.reasoning else {
            return self.calls.push(text);
        };
        let (parts, mode) = (split.push(&text), *mode);
        self.given(parts, mode)
    }

    /// Ends the text and gives the parts that were held back.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        if let Some((split, mode)) = &mut self.reasoning {
            let (rest, mode) = (split.finish(), *mode);
            parts = self.given(rest, mode);
        }
        parts.extend(self.calls.finish());
        let kept = std::mem::take(&mut self.kept);
        if !kept.is_empty() {
            parts.insert(0, Part::Reasoning(kept));
        }
        parts
    }

    fn given(&mut self, parts: Vec<channels::Part>, mode: Reasoning) -> Vec<Part> {
        let mut given = Vec::new();
        for part in parts {
            let part = match (part, mode) {
                (channels::Part::Reasoning(text), Reasoning::InText) => {
                    given.push(Part::Text(text));
                    continue;
                }
                (channels::Part::Reasoning(text), Reasoning::Apart { streamed: true }) => {
                    given.push(Part::Reasoning(text));
                    continue;
                }
                (channels::Part::Reasoning(text), Reasoning::Apart { streamed: false }) => {
                    self.kept.push_str(&text);
                    continue;
                }
                (part, _) => part,
            };
            let kept = std::mem::take(&mut self.kept);
            if !kept.is_empty() {
                given.push(Part::Reasoning(kept));
            }
            match part {
                channels::Part::Call(Call { name, arguments }) => {
                    given.extend([Part::Call(name), Part::Arguments(arguments)]);
                }
                channels::Part::Text(text) => given.extend(self.calls.push(text)),
                channels::Part::Reasoning(_) => {}
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
    fn messages_are_read_with_and_without_their_reasoning() {
        let text = "<|channel|>analysis<|message|>f?<|end|><|start|>assistant<|channel|>commentary \
                    to=functions.f<|message|>{\"a\": 1}";
        let tools: Arc<[String]> = ["f".to_owned()].into();
        let calls = Calls::parsed(Format::Harmony, tools);
        let begin = Begin::Channels(At::Header);
        let apart = Some((begin, Reasoning::Apart { streamed: true }));
        let said = Said::read(Reader::new(apart, calls.clone()), text.to_owned());
        assert_eq!((said.reasoning.as_str(), said.text.as_str()), ("f?", ""));
        assert_eq!(said.calls[0].arguments, "{\"a\": 1}");
        let said = Said::read(Reader::new(None, calls), text.to_owned());
        assert_eq!(said.text, "<|channel|>analysis<|message|>f?<|end|>");
        assert_eq!(said.calls.len(), 1);
    }

    #[test]
    fn a_long_text_gives_what_its_letters_give() {
        let calls =
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"ä\"}}</tool_call>".repeat(500);
        let text = format!("{TEXT}{calls}");
        assert!(text.len() > 4 * PIECE_BYTES);
        let mode = Reasoning::Apart { streamed: true };
        let mut letters = reader(mode);
        let mut parts = Vec::new();
        for letter in text.chars() {
            parts.extend(letters.push(letter.to_string()));
        }
        parts.extend(letters.finish());
        let said = Said::read(reader(mode), text);
        assert_eq!(said.calls.len(), 501);
        assert_eq!(Said::of(parts), said);
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
