//! The text of a state: one text, or the messages of a conversation.

use crate::lang::backend::Prompt;
use crate::lang::error::Error;
use crate::message::{Message, Role};

/// The text of a state so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    segments: Vec<Segment>,
    /// True if the last segment is a message that has not ended.
    open: bool,
}

/// A text without a role, which is then the only segment, or a message.
#[derive(Clone, Debug, PartialEq)]
struct Segment {
    role: Option<Role>,
    text: String,
}

/// A place in a context, at which a fork begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    segments: usize,
    /// Bytes of the last segment.
    bytes: usize,
    /// Bytes of all segments.
    before: usize,
}

impl Place {
    /// The bytes of the text before the place.
    pub fn bytes_before(&self) -> usize {
        self.before
    }
}

impl Context {
    /// Begins a message.
    ///
    /// # Errors
    /// Another message is open, or there is text without a role.
    pub fn begin(&mut self, role: Role) -> Result<(), Error> {
        if self.open {
            let message = "a message cannot begin inside of another message";
            return Err(Error::Misuse(message.to_owned()));
        }
        if self.segments.iter().any(|segment| segment.role.is_none()) {
            let message = "a message cannot follow a text without a role";
            return Err(Error::Misuse(message.to_owned()));
        }
        self.segments.push(Segment {
            role: Some(role),
            text: String::new(),
        });
        self.open = true;
        Ok(())
    }

    /// Ends the open message.
    ///
    /// # Errors
    /// No message is open.
    pub fn end(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.open, false) {
            true => Ok(()),
            false => Err(Error::Misuse("there is no message to end".to_owned())),
        }
    }

    /// Adds text to the open message, or to the text without roles.
    ///
    /// # Errors
    /// There are messages, and none of them is open.
    pub fn push(&mut self, text: &str) -> Result<(), Error> {
        if text.is_empty() {
            return Ok(());
        }
        if self.segments.is_empty() {
            self.segments.push(Segment {
                role: None,
                text: String::new(),
            });
        }
        match self.segments.last_mut() {
            Some(last) if self.open || last.role.is_none() => {
                last.text.push_str(text);
                Ok(())
            }
            _ => {
                let message = "in a conversation, text must be inside of a role";
                Err(Error::Misuse(message.to_owned()))
            }
        }
    }

    /// The text or the messages that a generation at this point continues.
    ///
    /// # Errors
    /// The point is in a conversation, outside of an assistant's message.
    pub fn prompt(&self) -> Result<Prompt, Error> {
        match self.segments.last() {
            Some(Segment {
                role: Some(role), ..
            }) if !self.open || *role != Role::Assistant => {
                let message =
                    "in a conversation, text is generated inside of the assistant's role only";
                Err(Error::Misuse(message.to_owned()))
            }
            _ => Ok(self.whole()),
        }
    }

    /// All of it as a prompt, without an open message that is still empty.
    pub fn whole(&self) -> Prompt {
        match self.segments.first() {
            None | Some(Segment { role: None, .. }) => Prompt::Text(self.text()),
            Some(_) => {
                let mut messages = self.messages();
                if self.open && messages.last().is_some_and(|last| last.content.is_empty()) {
                    messages.pop();
                }
                Prompt::Chat(messages)
            }
        }
    }

    /// The text without roles, or the texts of all messages one after another.
    pub fn text(&self) -> String {
        let texts = self.segments.iter();
        texts.map(|segment| segment.text.as_str()).collect()
    }

    /// The messages; empty where there is a text without roles.
    pub fn messages(&self) -> Vec<Message> {
        let each = self.segments.iter().filter_map(|segment| {
            Some(Message {
                role: segment.role?,
                content: segment.text.clone(),
            })
        });
        each.collect()
    }

    /// The length of the text.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.text.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.segments.iter().all(|segment| segment.text.is_empty())
    }

    /// The end of the text so far.
    pub fn place(&self) -> Place {
        Place {
            segments: self.segments.len(),
            bytes: self.segments.last().map_or(0, |last| last.text.len()),
            before: self.bytes(),
        }
    }

    /// The text after `place`, which is a place of this context.
    pub fn text_after(&self, place: Place) -> String {
        let before = place.segments.saturating_sub(1);
        let mut rest = self.segments.iter().skip(before);
        let mut text = String::new();
        if place.segments > 0
            && let Some(first) = rest.next()
        {
            text.push_str(first.text.get(place.bytes..).unwrap_or_default());
        }
        rest.for_each(|segment| text.push_str(&segment.text));
        text
    }

    /// Appends what `other`, which began as a copy of this context, has after `place`.
    ///
    /// # Errors
    /// Texts and messages would be mixed.
    pub fn append(&mut self, other: &Self, place: Place) -> Result<(), Error> {
        let mut rest = other.segments.iter().skip(place.segments.saturating_sub(1));
        if place.segments > 0
            && let Some(first) = rest.next()
        {
            self.push(first.text.get(place.bytes..).unwrap_or_default())?;
        }
        for segment in rest {
            match segment.role {
                None => self.push(&segment.text)?,
                Some(role) => {
                    // The fork ended the message in which it began.
                    self.open = false;
                    self.begin(role)?;
                    self.push(&segment.text)?;
                }
            }
        }
        self.open = other.open && self.segments.last().is_some_and(|last| last.role.is_some());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_continued_and_messages_only_in_the_assistants_role() {
        let mut text = Context::default();
        text.push("a").unwrap();
        text.push("b").unwrap();
        assert_eq!(text.prompt(), Ok(Prompt::Text("ab".to_owned())));
        assert!(text.begin(Role::User).is_err());

        let mut chat = Context::default();
        chat.begin(Role::User).unwrap();
        chat.push("hi").unwrap();
        assert!(chat.prompt().is_err() && chat.begin(Role::User).is_err());
        chat.end().unwrap();
        assert!(chat.push("lost").is_err() && chat.prompt().is_err());
        chat.begin(Role::Assistant).unwrap();
        let user = Message {
            role: Role::User,
            content: "hi".to_owned(),
        };
        assert_eq!(chat.prompt(), Ok(Prompt::Chat(vec![user])));
        assert_eq!(chat.text(), "hi");
    }

    #[test]
    fn the_rest_of_a_fork_is_appended_and_not_what_it_had_before() {
        let mut parent = Context::default();
        parent.push("list:").unwrap();
        let place = parent.place();
        let mut one = parent.clone();
        one.push(" a").unwrap();
        let mut two = parent.clone();
        two.push(" b").unwrap();
        parent.append(&one, place).unwrap();
        parent.append(&two, place).unwrap();
        assert_eq!(parent.text(), "list: a b");
        assert_eq!(two.text_after(place), " b");

        let mut chat = Context::default();
        let start = chat.place();
        let mut fork = chat.clone();
        fork.begin(Role::User).unwrap();
        fork.push("q").unwrap();
        fork.end().unwrap();
        chat.append(&fork, start).unwrap();
        chat.append(&fork, start).unwrap();
        assert_eq!(chat.messages().len(), 2);
        assert_eq!(chat.text_after(start), "qq");
        assert!(chat.push("x").is_err());
    }
}
