//! Reasoning in a model's text: the part between `<think>` and `</think>`, or the messages of a
//! channel.

use crate::channels::At;
use crate::error::{ApiError, out_of_bounds};
use crate::tools::harmony;

/// 400: a request that asks for reasoning, which the server can separate only where it knows how the model
/// marks it. `field` must be one of `others` instead of `given`.
pub fn unknown_marks(field: &str, others: &str, given: &str) -> ApiError {
    let names = Format::ALL.map(Format::name).join(", ");
    let bound = format!(
        "{others}: the server does not know how this model marks its reasoning (start it with \
         --reasoning-parser {names} if the model has such marks)"
    );
    out_of_bounds(field, &bound, given).code("unsupported_parameter")
}

/// How a family of models marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Every answer begins with reasoning, even if the opening mark is not in the text.
    DeepseekR1,
    /// An answer has reasoning if it begins with the mark (Qwen 3, SmolLM3, and most others).
    Qwen3,
    /// As [`Format::Qwen3`], and the rest of the answer may be between marks of its own (Granite 3.3).
    Granite,
    /// Reasoning is on a channel of its own (GPT-OSS).
    Harmony,
}

pub const OPEN: &str = "<think>";
pub const CLOSE: &str = "</think>";
/// The marks that Granite 3.3 has around the rest of an answer.
const OPEN_RESPONSE: &str = "<response>";
const CLOSE_RESPONSE: &str = "</response>";

/// The part that an answer begins with, as far as its prompt tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Reasoning,
    Text,
    /// Reasoning, if the mark comes first.
    Either,
    /// As [`Begin::Either`]; after reasoning, the text may be between Granite's marks.
    EitherThenResponse,
    /// A message of the harmony format, or the rest of one.
    Channels(At),
}

impl Format {
    pub const ALL: [Self; 4] = [Self::DeepseekR1, Self::Qwen3, Self::Granite, Self::Harmony];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeepseekR1 => "deepseek-r1",
            Self::Qwen3 => "qwen3",
            Self::Granite => "granite",
            Self::Harmony => "harmony",
        }
    }

    /// The format whose marks a chat template has, if it has some.
    pub fn detect(template: &str) -> Option<Self> {
        let has = |mark| template.contains(mark);
        if has(harmony::CHANNEL) && has(harmony::MESSAGE) {
            return Some(Self::Harmony);
        }
        if !has(OPEN) && !has(CLOSE) {
            return None;
        }
        match has(OPEN_RESPONSE) {
            true => Some(Self::Granite),
            false => Some(Self::Qwen3),
        }
    }

    /// All marks of the format.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Self::DeepseekR1 | Self::Qwen3 => &[OPEN, CLOSE],
            Self::Granite => &[OPEN, CLOSE, OPEN_RESPONSE, CLOSE_RESPONSE],
            Self::Harmony => &harmony::MARKS,
        }
    }

    /// The part that an answer to `prompt` begins with. `continues`: the prompt ends in the model's own
    /// words, and the answer goes on with them.
    pub fn begin(self, prompt: &str, continues: bool) -> Begin {
        if self == Self::Harmony {
            return Begin::Channels(At::end_of(prompt, continues));
        }
        if continues {
            return match (prompt.rfind(OPEN), prompt.rfind(CLOSE)) {
                (Some(open), close) if close.is_none_or(|close| close < open) => Begin::Reasoning,
                _ => Begin::Text,
            };
        }
        let prompt = prompt.trim_end();
        if prompt.ends_with(OPEN) {
            Begin::Reasoning
        } else if prompt.ends_with(CLOSE) {
            Begin::Text
        } else {
            match self {
                Self::DeepseekR1 => Begin::Reasoning,
                Self::Granite => Begin::EitherThenResponse,
                Self::Qwen3 | Self::Harmony => Begin::Either,
            }
        }
    }
}

/// A part of a model's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Text(String),
}

/// Separates reasoning from the rest while the text arrives. Its parts do not depend on where the
/// text was cut into pieces.
#[derive(Clone, Debug)]
pub struct Splitter {
    state: State,
    /// True if reasoning is given exactly as it is written, with its marks.
    verbatim: bool,
    /// The text after reasoning may be between Granite's marks.
    responds: bool,
    buffer: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// An opening mark may come, which is no part of the reasoning. `needed`: without the mark
    /// there is no reasoning.
    Opening {
        needed: bool,
    },
    /// Inside of the reasoning. `begun`: some of it was given already.
    Reasoning {
        begun: bool,
    },
    /// After the closing mark, in the white space that follows it.
    Closed,
    /// Between Granite's marks.
    Response,
    Text,
}

impl Splitter {
    pub fn new(begin: Begin, verbatim: bool) -> Self {
        let state = match begin {
            Begin::Reasoning => State::Opening { needed: false },
            Begin::Either | Begin::EitherThenResponse => State::Opening { needed: true },
            Begin::Text | Begin::Channels(_) => State::Text,
        };
        Self {
            state,
            verbatim,
            responds: begin == Begin::EitherThenResponse,
            buffer: String::new(),
        }
    }

    /// Takes the next piece of text and gives the parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.buffer.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Ends the text and gives the parts that were held back.
    pub fn finish(&mut self) -> Vec<Part> {
        let rest = std::mem::take(&mut self.buffer);
        let (kept, is_reasoning) = match self.state {
            State::Opening { needed: true } | State::Text => (rest.as_str(), false),
            State::Response => {
                // White space beside the mark is no part of the text.
                let text = rest.trim_end();
                let text = text
                    .strip_suffix(CLOSE_RESPONSE)
                    .map_or(rest.as_str(), str::trim_end);
                (text, false)
            }
            _ if self.verbatim => (rest.as_str(), self.state != State::Closed),
            State::Reasoning { begun: true } => (rest.trim_end(), true),
            State::Opening { needed: false } | State::Reasoning { begun: false } => {
                (rest.trim(), true)
            }
            // Only the beginning of a mark may be held back here.
            State::Closed => (rest.trim_start(), false),
        };
        if kept.is_empty() {
            Vec::new()
        } else if is_reasoning {
            vec![Part::Reasoning(kept.to_owned())]
        } else {
            vec![Part::Text(kept.to_owned())]
        }
    }

    fn take(&mut self, bytes: usize) -> String {
        self.buffer.drain(..bytes).collect()
    }

    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        match self.state {
            State::Opening { needed } => {
                let rest = self.buffer.trim_start();
                let blank = self.buffer.len() - rest.len();
                if rest.starts_with(OPEN) {
                    let mark = self.take(blank + OPEN.len());
                    if self.verbatim {
                        parts.push(Part::Reasoning(mark));
                    }
                    self.state = State::Reasoning { begun: false };
                } else if OPEN.starts_with(rest) {
                    return false;
                } else if needed {
                    self.state = State::Text;
                } else {
                    self.state = State::Reasoning { begun: false };
                }
                true
            }
            State::Reasoning { begun } => {
                let found = self.buffer.find(CLOSE);
                let sure = found.unwrap_or_else(|| {
                    let begun = |n: &usize| self.buffer.ends_with(&CLOSE[..*n]);
                    let held = (1..CLOSE.len()).rev().find(begun).unwrap_or(0);
                    self.buffer.len() - held
                });
                let text = &self.buffer[..sure];
                if self.verbatim {
                    if sure > 0 {
                        let text = self.take(sure);
                        parts.push(Part::Reasoning(text));
                    }
                } else {
                    // White space at both ends is no part of the reasoning. Whether white space is
                    // inside shows only by the text that follows.
                    let start = if begun {
                        0
                    } else {
                        sure - text.trim_start().len()
                    };
                    let end = text.trim_end().len();
                    if end > start {
                        parts.push(Part::Reasoning(text[start..end].to_owned()));
                        self.state = State::Reasoning { begun: true };
                        self.take(end);
                    }
                    if found.is_some() {
                        let blank = self.buffer.find(CLOSE).unwrap_or(0);
                        self.take(blank);
                    }
                }
                if found.is_none() {
                    return false;
                }
                let mark = self.take(CLOSE.len());
                if self.verbatim {
                    parts.push(Part::Reasoning(mark));
                    self.state = State::Text;
                } else {
                    self.state = State::Closed;
                }
                true
            }
            State::Closed => {
                let blank = self.buffer.len() - self.buffer.trim_start().len();
                self.take(blank);
                if self.buffer.is_empty() {
                    return false;
                }
                self.state = State::Text;
                if self.responds && self.buffer.starts_with(OPEN_RESPONSE) {
                    self.take(OPEN_RESPONSE.len());
                    self.state = State::Response;
                } else if self.responds && OPEN_RESPONSE.starts_with(&self.buffer) {
                    self.state = State::Closed;
                    return false;
                }
                true
            }
            State::Response => {
                // The end of the text may come with its mark, and is held back until that is sure.
                let sure = match self.buffer.find(CLOSE_RESPONSE) {
                    Some(at) => {
                        let after = &self.buffer[at + CLOSE_RESPONSE.len()..];
                        match after.trim().is_empty() {
                            true => self.buffer[..at].trim_end().len(),
                            // It was no end.
                            false => at + CLOSE_RESPONSE.len(),
                        }
                    }
                    None => {
                        let begun = |n: &usize| self.buffer.ends_with(&CLOSE_RESPONSE[..*n]);
                        let held = (1..CLOSE_RESPONSE.len()).rev().find(begun).unwrap_or(0);
                        self.buffer[..self.buffer.len() - held].trim_end().len()
                    }
                };
                if sure == 0 {
                    return false;
                }
                let text = self.take(sure);
                parts.push(Part::Text(text));
                true
            }
            State::Text => {
                parts.push(Part::Text(std::mem::take(&mut self.buffer)));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn folded(parts: Vec<Part>) -> (String, String) {
        let (mut reasoning, mut text) = (String::new(), String::new());
        for part in parts {
            match part {
                Part::Reasoning(part) => reasoning.push_str(&part),
                Part::Text(part) => text.push_str(&part),
            }
        }
        (reasoning, text)
    }

    fn split(begin: Begin, verbatim: bool, pieces: &[&str]) -> (String, String) {
        let mut splitter = Splitter::new(begin, verbatim);
        let mut parts: Vec<Part> = pieces.iter().flat_map(|p| splitter.push(p)).collect();
        parts.extend(splitter.finish());
        folded(parts)
    }

    #[test]
    fn reasoning_is_what_is_between_the_marks() {
        let cases = [
            (Begin::Either, "<think>\na b\n</think>\n\nc\n", "a b", "c\n"),
            (
                Begin::Either,
                "c <think>a</think>",
                "",
                "c <think>a</think>",
            ),
            (Begin::Either, " <think></think>c", "", "c"),
            (Begin::Reasoning, "a\n</think>c</think>", "a", "c</think>"),
            (Begin::Reasoning, "<think>a</think>c", "a", "c"),
            (Begin::Reasoning, "a </thin", "a </thin", ""),
            (Begin::Text, "<think>a</think>c", "", "<think>a</think>c"),
            (
                Begin::EitherThenResponse,
                "<think>a</think>\n<response>b </response> c\n</response>\n",
                "a",
                "b </response> c",
            ),
            (
                Begin::EitherThenResponse,
                "<think>a</think><resp",
                "a",
                "<resp",
            ),
            (Begin::EitherThenResponse, "<response>b", "", "<response>b"),
        ];
        for (begin, given, reasoning, text) in cases {
            let expected = (reasoning.to_owned(), text.to_owned());
            assert_eq!(split(begin, false, &[given]), expected, "{given}");
        }
    }

    #[test]
    fn the_end_of_the_prompt_says_what_follows() {
        use Format::{DeepseekR1, Qwen3};
        for (format, prompt, continues, expected) in [
            (Qwen3, "user\n<think>x\nassistant\n", false, Begin::Either),
            (Qwen3, "assistant\n<think>\n", false, Begin::Reasoning),
            (Qwen3, "<think>\n\n</think>\n\n", false, Begin::Text),
            (Qwen3, "assistant\n<think>so", true, Begin::Reasoning),
            (Qwen3, "assistant\n<think>so</think>It", true, Begin::Text),
            (Qwen3, "assistant\nIt", true, Begin::Text),
            (DeepseekR1, "<|Assistant|>", false, Begin::Reasoning),
            (DeepseekR1, "<think>\n</think>", false, Begin::Text),
        ] {
            assert_eq!(format.begin(prompt, continues), expected, "{prompt}");
        }
    }

    #[test]
    fn templates_show_how_they_mark_reasoning() {
        for (template, expected) in [
            (
                "{{ '<|start|>assistant<|channel|>final<|message|>' }}",
                Some(Format::Harmony),
            ),
            ("{{ content.split('</think>')[-1] }}", Some(Format::Qwen3)),
            (
                "Write thoughts between <think> and <response>.",
                Some(Format::Granite),
            ),
            ("{{ messages }}", None),
        ] {
            assert_eq!(Format::detect(template), expected, "{template}");
        }
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives_and_no_text_is_lost(
            words in prop::collection::vec(
                prop::sample::select(vec![
                    "<think>", "</think>", "<", "</thi", "é", "a", " ", "\n", "<response>",
                    "</response>", "</resp",
                ]),
                0..12,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            begin in prop::sample::select(vec![
                Begin::Either, Begin::EitherThenResponse, Begin::Reasoning, Begin::Text,
            ]),
            verbatim in any::<bool>(),
        ) {
            let whole = words.concat();
            let pieces = crate::tools::pieces(&whole, &cuts);
            let given = split(begin, verbatim, &pieces);
            prop_assert_eq!(&given, &split(begin, verbatim, &[&whole]));
            let joined = given.0 + &given.1;
            if verbatim {
                prop_assert_eq!(joined, whole);
            } else {
                // White space beside the marks belongs to neither part.
                let bare = |text: &str| -> String {
                    let marks = [OPEN, CLOSE, OPEN_RESPONSE, CLOSE_RESPONSE];
                    let bare = marks.iter().fold(text.to_owned(), |t, mark| t.replace(mark, ""));
                    bare.split_whitespace().collect()
                };
                prop_assert_eq!(bare(&joined), bare(&whole));
            }
        }
    }
}
