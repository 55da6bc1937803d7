//! Answers in GPT-OSS's harmony format: messages, each on a channel. `analysis` is reasoning, `final`
//! is the text, and a message to a function on `commentary` is a call
//! (`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>`).

use std::sync::Arc;

use crate::tools::Call;
use crate::tools::harmony::{
    self, CALL, CHANNEL, CONSTRAIN, END, FUNCTIONS, MESSAGE, RETURN, START,
};

/// Longest beginning of a message, in bytes. It is held back until it is complete.
const MAX_HEADER: usize = 1 << 10;

/// The place in a message where an answer goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// Before the channel: the prompt ends with the author.
    #[default]
    Header,
    Analysis,
    Final,
}

impl At {
    /// The place at the end of `prompt`. `continues`: it ends in the model's own words.
    pub fn end_of(prompt: &str, continues: bool) -> Self {
        if !continues {
            return Self::Header;
        }
        let channel = prompt
            .rfind(CHANNEL)
            .map(|at| &prompt[at + CHANNEL.len()..]);
        match channel.is_some_and(|rest| rest.starts_with("analysis")) {
            true => Self::Analysis,
            false => Self::Final,
        }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Text(String),
    Call(Call),
}

/// Reads such an answer as it arrives. Its parts do not depend on where the text was cut into
/// pieces.
#[derive(Clone, Debug)]
pub struct Channels {
    tools: Arc<[String]>,
    /// Reasoning is given exactly as it is written, with its marks.
    verbatim: bool,
    buffer: String,
    state: State,
    /// A message of reasoning, or of text, was given before: the next one begins on a new line.
    reasoned: bool,
    spoke: bool,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Header,
    Analysis,
    Text,
    /// The text of a call of `name`; `header` is how the message began. The first `searched` bytes of the
    /// buffer have no mark that ends it.
    Call {
        header: String,
        name: String,
        searched: usize,
    },
}

/// The beginning of a message.
enum Header<'a> {
    Analysis,
    Text,
    Call(&'a str),
}

impl<'a> Header<'a> {
    /// `text` is everything before the mark of the message's text.
    fn read(text: &'a str) -> Self {
        let (author, channel) = text.split_once(CHANNEL).unwrap_or((text, ""));
        let channel_name = channel.split([' ', '<']).next().unwrap_or_default();
        // The recipient may also be named before the channel.
        let recipient = [author, channel].into_iter().find_map(|part| {
            let (_, after) = part.split_once("to=")?;
            after.split([' ', '<']).next()
        });
        match (
            recipient.and_then(|name| name.strip_prefix(FUNCTIONS)),
            channel_name,
        ) {
            (Some(name), _) => Self::Call(name),
            (None, "analysis") => Self::Analysis,
            // Other tools than functions are the model's own, and the user is not meant.
            (None, "commentary") if recipient.is_some() => Self::Analysis,
            (None, _) => Self::Text,
        }
    }
}

/// The texts that a message may begin with. The last is how a call that a grammar forces begins where the
/// marks are no special tokens.
const BEGINS: [&str; 4] = [START, CHANNEL, " to=", "commentary to="];

/// True if `text` is the beginning of a message up to the mark of its text.
fn is_header(text: &str) -> bool {
    text.len() <= MAX_HEADER && BEGINS.iter().any(|begin| text.starts_with(begin)) && fits(text)
}

/// True if `text` may become the beginning of a message.
fn may_become_header(text: &str) -> bool {
    let begun = |begin: &&str| text.starts_with(*begin) || begin.starts_with(text);
    text.len() < MAX_HEADER + MESSAGE.len() && BEGINS.iter().any(begun) && fits(text)
}

/// True if `text` has no mark that ends a message, and each other mark once.
fn fits(text: &str) -> bool {
    let rest = text.strip_prefix(START).unwrap_or(text);
    ![START, END, CALL, RETURN]
        .iter()
        .any(|mark| rest.contains(mark))
        && rest.matches(CHANNEL).count() <= 1
        && rest.matches(CONSTRAIN).count() <= 1
}

/// The marks that end a message's text: its own ends, and the beginnings of another message.
const ENDS: [&str; 5] = [END, CALL, RETURN, START, CHANNEL];

/// The place of the first mark that ends a message's text, and the mark. The mark is empty where the text
/// ends with the beginning of another message, which is read later.
fn end_of_body(text: &str) -> Option<(usize, &'static str)> {
    let found = ENDS
        .iter()
        .filter_map(|mark| Some((text.find(mark)?, *mark)));
    found.min().map(|(at, mark)| match mark {
        START | CHANNEL => (at, ""),
        mark => (at, mark),
    })
}

impl Channels {
    /// `tools` are the names of the functions that may be called.
    pub fn new(at: At, tools: Arc<[String]>, verbatim: bool) -> Self {
        Self {
            tools,
            verbatim,
            buffer: String::new(),
            state: match at {
                At::Header => State::Header,
                At::Analysis => State::Analysis,
                At::Final => State::Text,
            },
            reasoned: false,
            spoke: false,
            parts: Vec::new(),
        }
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
        match std::mem::replace(&mut self.state, State::Header) {
            // The beginning of a message says nothing, unless it names a function.
            State::Header if rest.starts_with('<') && !rest.contains("to=") => {}
            State::Header | State::Text => self.text(&rest),
            State::Analysis => self.reasoning(&rest),
            State::Call { header, name, .. } => self.call(&header, &name, &rest, ""),
        }
        std::mem::take(&mut self.parts)
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.spoke = true;
            self.parts.push(Part::Text(text.to_owned()));
        }
    }

    fn reasoning(&mut self, text: &str) {
        if !text.is_empty() {
            self.reasoned = true;
            self.parts.push(Part::Reasoning(text.to_owned()));
        }
    }

    /// Gives a call, or the text as it was written if it is none.
    fn call(&mut self, header: &str, name: &str, body: &str, end: &str) {
        match harmony::call(name, body, &self.tools) {
            Some(call) => self.parts.push(Part::Call(call)),
            None => self.text(&format!("{header}{body}{end}")),
        }
    }

    /// Reads on in the buffer. Gives whether it could, and so should be called again.
    fn step(&mut self) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        match &self.state {
            State::Header => self.step_header(),
            State::Analysis | State::Text => self.step_body(),
            State::Call { .. } => self.step_call(),
        }
    }

    fn step_header(&mut self) -> bool {
        let Some(end) = self.buffer.find(MESSAGE) else {
            return !may_become_header(&self.buffer) && self.give_up();
        };
        if !is_header(&self.buffer[..end]) {
            return self.give_up();
        }
        let header: String = self.buffer.drain(..end + MESSAGE.len()).collect();
        match Header::read(&header[..end]) {
            Header::Analysis => {
                match (self.verbatim, self.reasoned) {
                    (true, _) => self.reasoning(&header),
                    (false, true) => self.reasoning("\n"),
                    (false, false) => {}
                }
                self.state = State::Analysis;
            }
            Header::Text => {
                if self.spoke {
                    self.text("\n");
                }
                self.state = State::Text;
            }
            Header::Call(name) => {
                let name = name.to_owned();
                let searched = 0;
                self.state = State::Call {
                    header,
                    name,
                    searched,
                };
            }
        }
        true
    }

    /// Goes on in text where no message begins. A mark of a beginning is text then.
    fn give_up(&mut self) -> bool {
        let marks = [START, CHANNEL];
        if let Some(mark) = marks
            .into_iter()
            .find(|mark| self.buffer.starts_with(*mark))
        {
            self.buffer.drain(..mark.len());
            self.text(mark);
        }
        self.state = State::Text;
        true
    }

    fn step_body(&mut self) -> bool {
        let (sure, mark, ended) = match end_of_body(&self.buffer) {
            Some((at, mark)) => (at, mark, true),
            None => {
                let held = ENDS.iter().filter_map(|mark| {
                    let begun = |n: &usize| self.buffer.ends_with(&mark[..*n]);
                    (1..mark.len()).rev().find(begun)
                });
                (self.buffer.len() - held.max().unwrap_or(0), "", false)
            }
        };
        let text: String = self.buffer.drain(..sure).collect();
        let in_analysis = self.state == State::Analysis;
        match in_analysis {
            true => self.reasoning(&text),
            false => self.text(&text),
        }
        if ended {
            self.buffer.drain(..mark.len());
            if in_analysis && self.verbatim {
                self.reasoning(mark);
            }
            self.state = State::Header;
        }
        ended
    }

    fn step_call(&mut self) -> bool {
        let State::Call { searched, .. } = &mut self.state else {
            return false;
        };
        // A mark may have begun before, which is shorter than the longest of all.
        let from = searched.saturating_sub(CHANNEL.len());
        let from = self.buffer.floor_char_boundary(from);
        let Some((at, mark)) = end_of_body(&self.buffer[from..]) else {
            *searched = self.buffer.len();
            return false;
        };
        let at = from + at;
        let body: String = self.buffer.drain(..at).collect();
        self.buffer.drain(..mark.len());
        if let State::Call { header, name, .. } = std::mem::replace(&mut self.state, State::Header)
        {
            self.call(&header, &name, &body, mark);
        }
        true
    }
}

#[cfg(test)]
mod tests;
