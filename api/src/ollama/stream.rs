//! Ollama's answers: JSON objects, one to a line. The last one has the token counts and times.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::generate::{Finish, Update};
use crate::reader::{Part, Reader, Said};
use crate::respond::{ChunkFormat, json as written};
use crate::tally::Tally;
use crate::tool_plan::Reading;
use crate::tools::Call;

pub const CONTENT_TYPE: &str = "application/x-ndjson";

/// The key under which a route puts the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// `/api/chat`: in a message of the assistant.
    Message,
    /// `/api/generate`: in `response`.
    Response,
}

/// Writes the objects of one answer.
pub struct Lines {
    model: String,
    place: Place,
    /// None where the answer is plain text and nothing else.
    reader: Option<Reader>,
    /// The last call, whose arguments may not be complete yet.
    call: Option<Call>,
}

impl Lines {
    pub fn new(model: String, place: Place, reading: &Reading) -> Self {
        Self {
            model,
            place,
            reader: reading.reader(),
            call: None,
        }
    }

    fn line(&self, said: Said, done: bool) -> Value {
        let Said {
            reasoning,
            text,
            calls,
        } = said;
        let mut line = json!({"model": self.model, "created_at": timestamp(SystemTime::now())});
        match self.place {
            Place::Message => {
                let mut message = json!({"role": "assistant", "content": text});
                if !reasoning.is_empty() {
                    message["thinking"] = reasoning.into();
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.into_iter().map(written_call).collect();
                }
                line["message"] = message;
            }
            Place::Response => {
                line["response"] = text.into();
                if !reasoning.is_empty() {
                    line["thinking"] = reasoning.into();
                }
            }
        }
        line["done"] = done.into();
        line
    }

    /// The parts put together, without the last call, which may not be complete yet.
    fn said(&mut self, parts: Vec<Part>) -> Said {
        let mut said = Said::default();
        for part in parts {
            if !matches!(part, Part::Arguments(_)) {
                said.calls.extend(self.call.take());
            }
            match part {
                Part::Text(text) => said.text.push_str(&text),
                Part::Reasoning(text) => said.reasoning.push_str(&text),
                Part::Call(name) => {
                    let arguments = String::new();
                    self.call = Some(Call { name, arguments });
                }
                Part::Arguments(json) => {
                    if let Some(call) = &mut self.call {
                        call.arguments.push_str(&json);
                    }
                }
            }
        }
        said
    }

    fn push(&mut self, text: String) -> Said {
        match &mut self.reader {
            Some(reader) => {
                let parts = reader.push(text);
                self.said(parts)
            }
            None => Said {
                text,
                ..Said::default()
            },
        }
    }

    /// The parts that were held back.
    fn rest(&mut self) -> Said {
        let reader = self.reader.take();
        let parts = reader.map_or(Vec::new(), |mut reader| reader.finish());
        let mut said = self.said(parts);
        said.calls.extend(self.call.take());
        said
    }

    /// The object of an answer that is no stream.
    pub fn whole(&mut self, text: &str, finish: &Finish, tally: &Tally) -> Value {
        let mut said = self.push(text.to_owned());
        let rest = self.rest();
        said.reasoning.push_str(&rest.reasoning);
        said.text.push_str(&rest.text);
        said.calls.extend(rest.calls);
        self.last(said, finish, tally)
    }

    /// The last object of a stream.
    fn last(&self, said: Said, finish: &Finish, tally: &Tally) -> Value {
        let mut line = self.line(said, true);
        let (counts, total) = (tally.counts(0), tally.elapsed());
        let prompt = tally.first_text_after().unwrap_or(total);
        line["done_reason"] = finish.reason.into();
        line["total_duration"] = nanoseconds(total);
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = counts.prompt.into();
        line["prompt_eval_duration"] = nanoseconds(prompt);
        line["eval_count"] = counts.completion.into();
        line["eval_duration"] = nanoseconds(total.saturating_sub(prompt));
        line
    }

    /// The answer to a request without a prompt: the model is loaded.
    pub fn loaded(&self) -> Value {
        let mut line = self.line(Said::default(), true);
        line["done_reason"] = "load".into();
        line
    }
}

fn written_call(call: Call) -> Value {
    let arguments = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({"function": {"name": call.name, "arguments": arguments}})
}

fn nanoseconds(time: Duration) -> Value {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into()
}

fn push(line: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(&written(line));
    out.push(b'\n');
}

impl ChunkFormat for Lines {
    fn update(&mut self, _index: usize, update: Update, tally: &Tally, out: &mut Vec<u8>) {
        match update {
            Update::Text(piece) if !piece.text.is_empty() => {
                let said = self.push(piece.text);
                if said != Said::default() {
                    push(&self.line(said, false), out);
                }
            }
            Update::Finished(finish) => {
                let rest = self.rest();
                if rest != Said::default() {
                    push(&self.line(rest, false), out);
                }
                push(&self.last(Said::default(), &finish, tally), out);
            }
            _ => {}
        }
    }

    fn close(&mut self, _tally: &Tally, _out: &mut Vec<u8>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        push(&Dialect::Ollama.body(error), out);
    }

    fn end_mark(&self) -> &'static [u8] {
        b""
    }

    fn content_type(&self) -> &'static str {
        CONTENT_TYPE
    }
}

/// `time` in the form of RFC 3339, in UTC.
pub fn timestamp(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let (seconds, micros) = (since.as_secs(), since.subsec_micros());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The date `days` after 1970-01-01, by Howard Hinnant's `civil_from_days`. Its years begin in March,
/// so that the leap day is the last day of a year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_has_them() {
        let at = |seconds, micros| {
            let since = Duration::from_secs(seconds) + Duration::from_micros(micros);
            timestamp(SystemTime::UNIX_EPOCH + since)
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_827_696, 5), "2000-02-29T12:34:56.000005Z");
        assert_eq!(at(1_763_693_999, 999_999), "2025-11-21T02:59:59.999999Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
    }
}
