//! A chat as a stream of chunks: the role, the parts of the answer, its finish reason, and the
//! token counts if the request asks for them.

use crate::generate::{PieceToken, Update};
use crate::openai::chunk::ChunkWriter;
use crate::openai::logprobs;
use crate::openai::response::{ChatChunkChoice, Delta, FunctionDelta, ToolCallDelta};
use crate::reader::{Part, Reader};
use crate::respond::ChunkFormat;
use crate::served::Served;
use crate::tally::Tally;
use crate::tool_plan::{Reading, call_id};

/// The prefix of the ids of calls.
pub const CALL_PREFIX: &str = "call_";

/// OpenAI's finish reason: an answer with calls stops for the reason `tool_calls`.
pub fn finish_reason(reason: &'static str, calls: bool) -> &'static str {
    match reason {
        "stop" if calls => "tool_calls",
        reason => reason,
    }
}

pub struct ChatChunks {
    chunks: ChunkWriter,
    served: Served,
    logprobs: bool,
    choices: Vec<Choice>,
}

/// The state of one choice.
struct Choice {
    /// True if its role was sent.
    opened: bool,
    /// None where the answer is plain text and nothing else.
    reader: Option<Reader>,
    calls: usize,
    /// Tokens whose log-probabilities are sent with the next chunk.
    tokens: Vec<PieceToken>,
}

impl ChatChunks {
    pub fn new(
        chunks: ChunkWriter,
        served: Served,
        logprobs: bool,
        choices: usize,
        reading: &Reading,
    ) -> Self {
        let choice = || Choice {
            opened: false,
            reader: reading.reader(),
            calls: 0,
            tokens: Vec::new(),
        };
        Self {
            chunks,
            served,
            logprobs,
            choices: (0..choices).map(|_| choice()).collect(),
        }
    }

    fn open(&mut self, index: usize, tally: &Tally, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.choices[index].opened, true) {
            let delta = Delta {
                role: Some("assistant"),
                content: Some(String::new()),
                ..Delta::default()
            };
            self.chunks.push(&chunk_choice(index, delta), tally, out);
        }
    }

    /// Writes the chunk of a part, with the log-probabilities that wait for a chunk.
    fn push_part(&mut self, index: usize, part: Part, tally: &Tally, out: &mut Vec<u8>) {
        let delta = self.delta(index, part);
        self.push_delta(index, delta, tally, out);
    }

    fn push_delta(&mut self, index: usize, delta: Delta, tally: &Tally, out: &mut Vec<u8>) {
        let tokens = std::mem::take(&mut self.choices[index].tokens);
        let logprobs = self
            .logprobs
            .then(|| logprobs::chat(&*self.served.text, &tokens));
        let choice = ChatChunkChoice {
            logprobs,
            ..chunk_choice(index, delta)
        };
        self.chunks.push(&choice, tally, out);
    }

    fn delta(&mut self, index: usize, part: Part) -> Delta {
        let choice = &mut self.choices[index];
        let call = |call: ToolCallDelta| Delta {
            tool_calls: Some([call]),
            ..Delta::default()
        };
        match part {
            Part::Text(text) => Delta {
                content: Some(text),
                ..Delta::default()
            },
            Part::Reasoning(text) => Delta {
                reasoning_content: Some(text),
                ..Delta::default()
            },
            Part::Call(name) => {
                choice.calls += 1;
                call(ToolCallDelta {
                    index: choice.calls - 1,
                    id: Some(call_id(&self.served, CALL_PREFIX)),
                    r#type: Some("function"),
                    function: FunctionDelta {
                        name: Some(name),
                        arguments: String::new(),
                    },
                })
            }
            Part::Arguments(arguments) => call(ToolCallDelta {
                index: choice.calls.saturating_sub(1),
                function: FunctionDelta {
                    name: None,
                    arguments,
                },
                ..ToolCallDelta::default()
            }),
        }
    }
}

fn chunk_choice(index: usize, delta: Delta) -> ChatChunkChoice {
    ChatChunkChoice {
        index,
        delta,
        logprobs: None,
        finish_reason: None,
        matched_stop: None,
    }
}

impl ChunkFormat for ChatChunks {
    fn update(&mut self, index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>) {
        match update {
            Update::Text(piece) => {
                self.open(index, tally, out);
                let choice = &mut self.choices[index];
                choice.tokens.extend(piece.tokens);
                let parts = match &mut choice.reader {
                    Some(reader) => reader.push(piece.text),
                    None => vec![Part::Text(piece.text)],
                };
                for part in parts {
                    self.push_part(index, part, tally, out);
                }
            }
            Update::Finished(finish) => {
                self.open(index, tally, out);
                let reader = self.choices[index].reader.take();
                for part in reader.map_or(Vec::new(), |mut reader| reader.finish()) {
                    self.push_part(index, part, tally, out);
                }
                if !self.choices[index].tokens.is_empty() {
                    // The log-probabilities of marks, which belong to no part.
                    self.push_delta(index, Delta::default(), tally, out);
                }
                let calls = self.choices[index].calls > 0;
                let choice = ChatChunkChoice {
                    finish_reason: Some(finish_reason(finish.reason, calls)),
                    matched_stop: finish.matched,
                    ..chunk_choice(index, Delta::default())
                };
                self.chunks.push(&choice, tally, out);
            }
            _ => {}
        }
    }

    fn close(&mut self, tally: &Tally, out: &mut Vec<u8>) {
        self.chunks.push_usage(tally, out);
    }
}
