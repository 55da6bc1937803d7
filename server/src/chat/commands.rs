//! The lines that begin with a slash.

use std::path::PathBuf;

use hearth_client::ChatOptions;

use crate::wrap::wrapped;

const COMMANDS: [(&str, &str); 8] = [
    ("/help", "lists the commands"),
    (
        "/system TEXT",
        "begins anew with this system message; without TEXT, with none",
    ),
    ("/clear", "forgets the conversation"),
    ("/regenerate", "gives the last answer again"),
    (
        "/set NAME VALUE",
        "sets temperature, top_p, top_k, min_p, max_tokens or seed; `default` unsets it",
    ),
    ("/set", "shows what is set"),
    (
        "/save FILE",
        "writes the conversation to a new file, as JSON if it ends in .json",
    ),
    ("/quit", "ends the chat, as Ctrl-D does"),
];

const KEYS: &str = "A line that ends in a backslash goes on in the next one. Lines between two lines of \
                    \"\"\" are one message, and so is a text that is pasted; Alt-Enter begins a line, too. \
                    Ctrl-C stops an answer. The arrow keys bring earlier lines back, and Ctrl-R searches \
                    them: type a part of one, Ctrl-R again for an older one, Enter to send it, an arrow key \
                    to edit it, Ctrl-G to leave.";

/// The commands and keys, in lines of a terminal of `columns`.
pub fn help(columns: usize) -> String {
    // A line that fills a terminal makes an empty one below it.
    let columns = columns.saturating_sub(1);
    // The column of the explanations; a narrow terminal has them below the commands.
    let indent = if columns >= 59 { 20 } else { 4 };
    let mut text = String::new();
    for (command, explanation) in COMMANDS {
        let mut line = format!("{command:<indent$}{explanation}");
        if command.len() >= indent {
            text += &format!("{command}\n");
            line = format!("{:indent$}{explanation}", "");
        }
        text += &wrapped(&line, indent, columns);
    }
    text.push('\n');
    text += wrapped(KEYS, 0, columns).trim_end();
    text
}

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Help,
    Quit,
    Clear,
    Regenerate,
    System(String),
    Save(PathBuf),
    Set(Setting),
    ShowSettings,
}

/// A new value of a sampling field; `None` for the model's own.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    Temperature(Option<f64>),
    TopP(Option<f64>),
    TopK(Option<i64>),
    MinP(Option<f64>),
    MaxTokens(Option<usize>),
    Seed(Option<u64>),
}

const FIELDS: &str = "temperature, top_p, top_k, min_p, max_tokens and seed";

impl Command {
    /// The command in a line; `None` for a message.
    ///
    /// # Errors
    /// A command that does not exist, or whose argument cannot be read.
    pub fn parse(line: &str) -> Result<Option<Self>, String> {
        let Some(line) = line.trim().strip_prefix('/') else {
            return Ok(None);
        };
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let command = match name {
            "help" | "?" => Self::Help,
            "quit" | "exit" | "bye" => Self::Quit,
            "clear" => Self::Clear,
            "regenerate" => Self::Regenerate,
            "system" => Self::System(rest.to_owned()),
            "save" if rest.is_empty() => return Err("/save needs the name of a file".to_owned()),
            "save" => Self::Save(rest.into()),
            "set" if rest.is_empty() => Self::ShowSettings,
            "set" => Self::Set(Setting::parse(rest)?),
            _ => return Err(format!("there is no command /{name}; /help lists them")),
        };
        Ok(Some(command))
    }
}

impl Setting {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once(|c: char| c.is_whitespace() || c == '=')
            .unwrap_or((text, ""));
        let value = value.trim();
        Ok(match name {
            "temperature" => Self::Temperature(read(name, value)?),
            "top_p" => Self::TopP(read(name, value)?),
            "top_k" => Self::TopK(read(name, value)?),
            "min_p" => Self::MinP(read(name, value)?),
            "max_tokens" => Self::MaxTokens(read(name, value)?),
            "seed" => Self::Seed(read(name, value)?),
            _ => return Err(format!("`{name}` cannot be set; {FIELDS} can")),
        })
    }

    pub fn apply(self, options: &mut ChatOptions) {
        match self {
            Self::Temperature(value) => options.temperature = value,
            Self::TopP(value) => options.top_p = value,
            Self::TopK(value) => options.top_k = value,
            Self::MinP(value) => options.min_p = value,
            Self::MaxTokens(value) => options.max_tokens = value,
            Self::Seed(value) => options.seed = value,
        }
    }
}

fn read<T: std::str::FromStr>(name: &str, value: &str) -> Result<Option<T>, String> {
    match value {
        "default" => Ok(None),
        value => value
            .parse()
            .map(Some)
            .map_err(|_| format!("`{name}` must be a number or `default`, not {value:?}")),
    }
}

/// The settings as text for a person.
pub fn settings(options: &ChatOptions) -> String {
    let set = serde_json::json!(options);
    let set = set.as_object().into_iter().flatten();
    let set: Vec<String> = set.map(|(name, value)| format!("{name} {value}")).collect();
    match set.is_empty() {
        true => "The model's own settings are used.".to_owned(),
        false => set.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_wrapped_between_words() {
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for columns in [30, 60, 80, 200] {
            let text = help(columns);
            assert!(text.lines().all(|line| line.len() < columns), "{text}");
            assert_eq!(words(&text), words(&help(200)));
        }
        assert!(help(80).contains("/set NAME VALUE     sets temperature"));
    }

    #[test]
    fn commands_are_read_with_their_arguments_and_messages_are_none() {
        let parse = |line| Command::parse(line).unwrap();
        assert_eq!(parse("hello"), None);
        assert_eq!(parse(" /help "), Some(Command::Help));
        let system = Command::System("Be brief.".to_owned());
        assert_eq!(parse("/system Be brief."), Some(system));
        let set = Command::Set(Setting::Temperature(Some(0.5)));
        assert_eq!(parse("/set temperature 0.5"), Some(set));
        let unset = Command::Set(Setting::Seed(None));
        assert_eq!(parse("/set seed default"), Some(unset));
        for (line, words) in [
            ("/sav", "no command /sav"),
            ("/save", "needs the name"),
            ("/set x 1", "`x` cannot be set"),
            ("/set top_k 0.5", "`top_k` must be a number"),
        ] {
            let error = Command::parse(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn settings_are_applied_and_told() {
        let mut options = ChatOptions::default();
        assert!(settings(&options).contains("own"));
        Setting::TopK(Some(5)).apply(&mut options);
        assert_eq!(settings(&options), "top_k 5");
        Setting::Temperature(Some(0.1)).apply(&mut options);
        assert_eq!(settings(&options), "temperature 0.1, top_k 5");
        Setting::Temperature(None).apply(&mut options);
        Setting::TopK(None).apply(&mut options);
        assert_eq!(options, ChatOptions::default());
    }
}
