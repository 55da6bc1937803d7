//! Reads an answer that follows a grammar of [`Layout`]. Where each part begins is certain, so that
//! arguments are given while they arrive.

use std::sync::Arc;

use crate::tools::scan::{Scan, Scanned, Syntax};
use crate::tools::{Layout, Parser, Part};

/// Reads such an answer as it arrives. Its parts do not depend on where the text was cut into
/// pieces.
#[derive(Clone, Debug)]
pub struct Forced {
    layout: Layout,
    tools: Arc<[String]>,
    buffer: String,
    state: State,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum State {
    /// Before the first or a later call.
    Head {
        first: bool,
    },
    Arguments(Scan),
    Tail,
    /// The text does not follow the grammar, because a stop string cut it.
    Other,
}

impl Forced {
    pub fn new(layout: Layout, tools: Arc<[String]>) -> Self {
        Self {
            layout,
            tools,
            buffer: String::new(),
            state: State::Head { first: true },
            parts: Vec::new(),
        }
    }

    /// A parser of the same calls that does not rely on the grammar.
    pub fn into_parser(self) -> Parser {
        Parser::new(self.layout.format(), self.tools)
    }

    /// Takes the next piece of text and gives the parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.buffer.push_str(text);
        while self.step() {}
        std::mem::take(&mut self.parts)
    }

    /// Ends the text and gives the parts that were held back.
    pub fn finish(&mut self) -> Vec<Part> {
        let rest = std::mem::take(&mut self.buffer);
        let is_syntax = match self.state {
            State::Head { first } => !first && self.layout.closing.starts_with(&rest),
            State::Tail => true,
            State::Arguments(_) | State::Other => false,
        };
        if !is_syntax && !rest.is_empty() {
            self.parts.push(Part::Text(rest));
        }
        std::mem::take(&mut self.parts)
    }

    fn step(&mut self) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        match &mut self.state {
            State::Head { first } => {
                let lead = match first {
                    true => self.layout.opening,
                    false => self.layout.between,
                };
                let mut begun = !*first && self.layout.closing.starts_with(&self.buffer);
                for tool in self.tools.iter() {
                    let head = format!("{lead}{}", self.layout.head(tool));
                    if self.buffer.starts_with(&head) {
                        self.buffer.drain(..head.len());
                        self.parts.push(Part::Call(tool.clone()));
                        self.state = State::Arguments(Scan::default());
                        return true;
                    }
                    begun |= head.starts_with(&self.buffer);
                }
                if !begun {
                    self.state = State::Other;
                }
                !begun
            }
            State::Arguments(scan) => {
                let (given, next) = match scan.advance(&self.buffer, Syntax::Json) {
                    Scanned::More => (self.buffer.len(), None),
                    Scanned::End(end) => (end, Some(State::Tail)),
                    Scanned::Broken(at) => (at, Some(State::Other)),
                };
                if next.is_none() {
                    scan.forget(given);
                }
                let arguments = self.buffer.drain(..given).collect();
                self.parts.push(Part::Arguments(arguments));
                let Some(next) = next else {
                    return false;
                };
                self.state = next;
                true
            }
            State::Tail => {
                let tail = self.layout.tail;
                if self.buffer.starts_with(tail) {
                    self.buffer.drain(..tail.len());
                    self.state = State::Head { first: false };
                    return true;
                }
                let begun = tail.starts_with(&self.buffer);
                if !begun {
                    self.state = State::Other;
                }
                !begun
            }
            State::Other => {
                let text = std::mem::take(&mut self.buffer);
                self.parts.push(Part::Text(text));
                false
            }
        }
    }
}
