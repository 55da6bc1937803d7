//! The one parser of all formats. Plain text is passed on at once. What may be a call is held back
//! until it is complete; if it turns out to be no call, it is passed on as text.

use std::sync::Arc;

use crate::tools::scan::{Scan, Scanned};
use crate::tools::{Begin, Call, Format, MAX_BLANK, Part};

/// Reads a model's text as it arrives. Its parts do not depend on where the text was cut into
/// pieces.
#[derive(Clone, Debug)]
pub struct Parser {
    format: Format,
    /// The names of the tools of the request. Nothing else can be called.
    tools: Arc<[String]>,
    /// Text that was not passed on yet.
    buffer: String,
    state: State,
    out: Output,
}

#[derive(Clone, Debug)]
enum State {
    /// `fresh`: before this there were only calls and white space.
    Text { fresh: bool },
    /// The buffer begins with the text before a call's body, which begins at `body`.
    Body { body: usize, scan: Scan },
    /// A call has ended. A text that is part of it may follow.
    After,
}

impl Parser {
    pub fn new(format: Format, tools: Arc<[String]>) -> Self {
        Self {
            format,
            tools,
            buffer: String::new(),
            state: State::Text { fresh: true },
            out: Output::default(),
        }
    }

    /// Takes the next piece of text and gives the parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.buffer.push_str(text);
        while self.step() {}
        std::mem::take(&mut self.out.parts)
    }

    /// Ends the text and gives the parts that were held back.
    pub fn finish(&mut self) -> Vec<Part> {
        let rest = std::mem::take(&mut self.buffer);
        let ends_a_call =
            matches!(self.state, State::After) && self.format.trailer().starts_with(rest.trim());
        if !ends_a_call {
            self.out.text(&rest);
        }
        self.out.finish();
        std::mem::take(&mut self.out.parts)
    }

    /// Reads on in the buffer. Gives whether it could, and so should be called again.
    fn step(&mut self) -> bool {
        match &mut self.state {
            State::Text { fresh } => {
                let begin = self.format.begin(&self.buffer, *fresh, &self.tools);
                let (Begin::Text(text) | Begin::At { start: text, .. }) = begin;
                let given: String = self.buffer.drain(..text).collect();
                *fresh &= given.trim().is_empty();
                self.out.text(&given);
                if let Begin::At { start, body } = begin {
                    let body = body - start;
                    let scan = Scan::default();
                    self.state = State::Body { body, scan };
                    return true;
                }
                text > 0 && !self.buffer.is_empty()
            }
            State::Body { body, scan } => {
                let body = *body;
                let end = match scan.advance(&self.buffer[body..], self.format.syntax()) {
                    Scanned::More => return false,
                    Scanned::Broken(at) => {
                        self.give_up(body + at);
                        return true;
                    }
                    Scanned::End(end) => body + end,
                };
                let (lead, text) = self.buffer[..end].split_at(body);
                match self.format.calls(lead, text, &self.tools) {
                    None => self.give_up(end),
                    Some(calls) => {
                        self.buffer.drain(..end);
                        calls.into_iter().for_each(|call| self.out.call(call));
                        self.state = State::After;
                    }
                }
                true
            }
            State::After => {
                let trailer = self.format.trailer();
                let rest = self.buffer.trim_start();
                let blank = self.buffer.len() - rest.len();
                if !trailer.is_empty() && blank <= MAX_BLANK {
                    if trailer.starts_with(rest) && rest.len() < trailer.len() {
                        return false;
                    }
                    if rest.starts_with(trailer) {
                        self.buffer.drain(..blank + trailer.len());
                    }
                }
                self.state = State::Text { fresh: true };
                true
            }
        }
    }

    /// Passes on the first `end` bytes as text, because they are no call.
    fn give_up(&mut self, end: usize) {
        let given: String = self.buffer.drain(..end).collect();
        self.out.text(&given);
        self.state = State::Text { fresh: false };
    }
}

/// The parts to pass on. White space next to a call is left out.
#[derive(Clone, Debug, Default)]
struct Output {
    parts: Vec<Part>,
    /// White space that is passed on only if text follows it.
    blank: String,
    after_call: bool,
}

impl Output {
    fn text(&mut self, text: &str) {
        let kept = text.trim_end().len();
        if kept > 0 {
            let mut given = std::mem::take(&mut self.blank);
            given.push_str(&text[..kept]);
            self.parts.push(Part::Text(given));
            self.after_call = false;
        }
        self.blank.push_str(&text[kept..]);
    }

    fn call(&mut self, call: Call) {
        self.blank.clear();
        self.after_call = true;
        let Call { name, arguments } = call;
        self.parts
            .extend([Part::Call(name), Part::Arguments(arguments)]);
    }

    fn finish(&mut self) {
        let blank = std::mem::take(&mut self.blank);
        if !self.after_call && !blank.is_empty() {
            self.parts.push(Part::Text(blank));
        }
    }
}
