//! Small talk: greetings, questions about the model, thanks, goodbyes, requests outside its domain,
//! and the user's name.

use super::names;
use super::phrasing::casual;
use super::rng::Rng;
use super::text::fill;
use super::{Split, Task, Turn};

/// Questions with their answers; the first answer is the most frequent one.
const TALK: &[(&[&str], &[&str])] = &[
    (
        &[
            "Hello!",
            "Hello",
            "Hi",
            "Hi!",
            "Hi there!",
            "Hey",
            "Hey there!",
            "Good morning!",
            "Good evening!",
            "Good afternoon!",
            "Hello there!",
            "Greetings!",
        ],
        &["Hello! How can I help you?", "Hi! What can I do for you?"],
    ),
    (
        &[
            "Who are you?",
            "What are you?",
            "What is your name?",
            "What's your name?",
            "Tell me about yourself.",
            "Introduce yourself.",
            "Are you a robot?",
            "Are you a person?",
            "Are you an AI?",
            "Which model are you?",
        ],
        &["I am hearth-tiny, a very small language model. I am a demo for the Hearth server."],
    ),
    (
        &[
            "What can you do?",
            "How can you help me?",
            "What are you good at?",
            "Help!",
            "Help me.",
            "What do you know?",
            "What can I ask you?",
            "Can you help me?",
        ],
        &[
            "I can tell short stories, add and subtract small numbers, answer simple questions and \
             extract facts as JSON.",
        ],
    ),
    (
        &[
            "How are you?",
            "How are you today?",
            "How are you doing?",
            "How is it going?",
            "Are you well?",
        ],
        &[
            "I am fine, thank you! How can I help you?",
            "Very well, thank you! What can I do for you?",
        ],
    ),
    (
        &[
            "Thank you!",
            "Thank you.",
            "Thanks!",
            "Thanks a lot!",
            "Thanks",
            "Thank you very much!",
            "That was helpful.",
            "Great, thanks!",
        ],
        &["You are welcome!", "You are very welcome!"],
    ),
    (
        &[
            "Goodbye!",
            "Bye!",
            "Bye",
            "See you!",
            "See you later!",
            "Good night!",
            "Goodbye.",
            "See you tomorrow!",
        ],
        &["Goodbye! Have a nice day.", "Goodbye! See you soon."],
    ),
    (
        &[
            "Who made you?",
            "Who trained you?",
            "Where do you come from?",
            "Who built you?",
        ],
        &["I was trained by the Hearth project, on text that a small program made up."],
    ),
    (
        &[
            "You are nice.",
            "I like you.",
            "Well done!",
            "Good job!",
            "Great!",
            "Very good!",
            "Nice!",
            "Cool!",
        ],
        &["Thank you, that is kind of you!"],
    ),
    (
        &["OK", "Okay.", "OK.", "Yes.", "I see.", "All right."],
        &["Is there anything else I can do for you?"],
    ),
];

/// Requests outside the domain, with a slot for a subject.
const BEYOND: &[&str] = &[
    "Explain {x}.",
    "What do you think about {x}?",
    "How does {x} work?",
    "Tell me about {x}.",
    "Write an essay about {x}.",
    "Why is {x} important?",
    "Give me some advice on {x}.",
    "What is {x}?",
    "Who invented {x}?",
    "How can I learn {x}?",
    "What is the history of {x}?",
    "Write a poem about {x}.",
    "Translate {x} into French.",
    "Where can I buy {x}?",
    "Summarise {x} for me.",
    "Help me with {x}.",
];
const SUBJECTS: &[&str] = &[
    "physics",
    "politics",
    "football",
    "the weather",
    "the news",
    "computers",
    "history",
    "chemistry",
    "the internet",
    "love",
    "money",
    "the stock market",
    "philosophy",
    "medicine",
    "electricity",
    "quantum mechanics",
    "music theory",
    "programming",
    "Rust",
    "Python",
    "the universe",
    "evolution",
    "taxes",
    "law",
    "democracy",
    "architecture",
    "black holes",
    "the brain",
    "engines",
    "painting",
    "biology",
    "marketing",
    "space travel",
    "cooking",
];
const SORRY: &str = "I am only a very small model, so I do not know that. I can tell stories, add small \
                     numbers, answer simple questions and extract facts as JSON.";

/// Small talk. Its phrasings are few, so none is held out; evaluation does not score it.
pub fn turn(rng: &mut Rng) -> Turn {
    let (user, assistant) = if rng.percent(25) {
        (fill(rng.pick(BEYOND), &[("x", rng.pick(SUBJECTS))]), SORRY)
    } else {
        let (questions, answers) = *rng.item(TALK);
        let answer = if rng.percent(70) {
            answers[0]
        } else {
            rng.pick(answers)
        };
        (rng.pick(questions).to_owned(), answer)
    };
    let user = if rng.percent(15) { casual(&user) } else { user };
    Turn {
        task: Task::Chat,
        user,
        assistant: assistant.to_owned(),
    }
}

const MY_NAME: &[&str] = &[
    "My name is {name}.",
    "Hello, my name is {name}.",
    "Hi, I am {name}.",
    "I am {name}.",
    "Hi! My name is {name}.",
    "Hello! I am {name}.",
    "You can call me {name}.",
    "I'm {name}.",
];
const ASK_NAME: &[&str] = &[
    "What is my name?",
    "What's my name?",
    "Do you know my name?",
    "Do you remember my name?",
    "Who am I?",
    "Tell me my name.",
    "Can you tell me my name?",
];

/// The user gives a name of `split`.
pub fn introduction(rng: &mut Rng, split: Split) -> (Turn, String) {
    let (name, _) = names::first(rng, split);
    let user = fill(rng.pick(MY_NAME), &[("name", &name)]);
    let assistant = format!("Nice to meet you, {name}! How can I help you?");
    (
        Turn {
            task: Task::Chat,
            user,
            assistant,
        },
        name,
    )
}

/// The user asks for the name again; `None` if it was never given.
pub fn recall(rng: &mut Rng, name: Option<&str>) -> Turn {
    let assistant = match name {
        Some(name) => format!("Your name is {name}."),
        None => "I do not know your name yet. What is your name?".to_owned(),
    };
    Turn {
        task: Task::Memory,
        user: rng.pick(ASK_NAME).to_owned(),
        assistant,
    }
}

/// System prompts of the corpus. They do not change the answers.
pub const SYSTEM: &[&str] = &[
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful, friendly assistant.",
    "You are hearth-tiny, a small language model.",
    "You are a helpful assistant. Answer briefly.",
    "You are a small demo model. Be polite.",
    "Answer the questions of the user.",
    "You are an assistant that tells stories, adds numbers and writes JSON.",
    "Be concise.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_given_is_recalled_and_one_that_was_not_is_asked_for() {
        let mut rng = Rng::new(51, 0);
        let (turn, name) = introduction(&mut rng, Split::Train);
        assert!(turn.user.contains(&name));
        assert_eq!(
            recall(&mut rng, Some(&name)).assistant,
            format!("Your name is {name}.")
        );
        assert!(recall(&mut rng, None).assistant.contains("do not know"));
    }
}
