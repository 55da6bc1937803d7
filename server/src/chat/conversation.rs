//! The messages of a conversation.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use hearth_client::{Message, Role};

/// The messages of the conversation so far.
#[derive(Debug, Default)]
pub struct Conversation {
    pub messages: Vec<Message>,
    /// Number of system messages at the start: 0 or 1.
    system: usize,
}

impl Conversation {
    pub fn new(system: Option<&str>) -> Self {
        let message = |content: &str| Message {
            role: Role::System,
            content: content.to_owned(),
        };
        let messages: Vec<Message> = system.map(message).into_iter().collect();
        Self {
            system: messages.len(),
            messages,
        }
    }

    /// Adds a message of the user.
    pub fn say(&mut self, text: &str) {
        self.messages.push(Message {
            role: Role::User,
            content: text.to_owned(),
        });
    }

    /// Adds an answer of the model.
    pub fn hear(&mut self, text: String) {
        self.messages.push(Message {
            role: Role::Assistant,
            content: text,
        });
    }

    /// Removes the last message, which was not answered.
    pub fn unsay(&mut self) {
        self.messages.pop();
    }

    /// Removes the last answer. Returns whether there was one.
    pub fn take_back_answer(&mut self) -> bool {
        let is_answer = |message: &mut Message| message.role == Role::Assistant;
        self.messages.pop_if(is_answer).is_some()
    }

    /// Begins anew with a system message, or without one if `text` is empty.
    pub fn set_system(&mut self, text: &str) {
        *self = Self::new(Some(text).filter(|text| !text.is_empty()));
    }

    /// Removes all messages but the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(self.system);
    }

    /// Writes the conversation to a new file: as JSON if its name ends in `.json`, else as
    /// Markdown.
    ///
    /// # Errors
    /// The file exists already, or cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = match path.extension().is_some_and(|end| end == "json") {
            true => serde_json::to_string_pretty(&self.messages)? + "\n",
            false => self.markdown(),
        };
        let file = File::create_new(path);
        let mut file = file.with_context(|| format!("cannot create {}", path.display()))?;
        file.write_all(text.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        for Message { role, content } in &self.messages {
            let name = match role {
                Role::System => "System",
                Role::User => "You",
                Role::Assistant => "Model",
            };
            // A write to a string does not fail.
            let _ = writeln!(text, "### {name}\n\n{content}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_keeps_the_system_message_and_unsay_removes_the_last_one() {
        let mut conversation = Conversation::new(Some("Be brief."));
        conversation.say("one");
        conversation.hear("two".to_owned());
        conversation.say("three");
        conversation.unsay();
        assert_eq!(conversation.messages.len(), 3);
        assert!(conversation.take_back_answer() && !conversation.take_back_answer());
        conversation.clear();
        assert_eq!(conversation.messages.len(), 1);
        assert_eq!(conversation.messages[0].role, Role::System);
        conversation.set_system("");
        assert!(conversation.messages.is_empty());
        let mut plain = Conversation::new(None);
        plain.say("one");
        plain.clear();
        assert!(plain.messages.is_empty());
    }
}
