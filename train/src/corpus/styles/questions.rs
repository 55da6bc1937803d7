//! Questions in place of answers.

use super::Hero;
use crate::corpus::rng::Rng;
use crate::corpus::text::fill;

/// About someone; `{t}` is who it is.
const ABOUT: &[&str] = &[
    "Who is {t}?",
    "Do you know {t}?",
    "Have you ever met {t}?",
    "Why do you ask about {t}?",
    "What would you like to know about {t}?",
];
const HERO: &[&str] = &[
    "Is {he} brave or shy?",
    "Does {he} have a friend?",
    "What does {he} like to eat?",
    "Where does {he} sleep at night?",
    "Can {he} sing a song?",
    "What is {his} house like?",
    "What makes {him} laugh?",
];
/// Where the request names nobody.
const ASK: &[&str] = &[
    "Why do you ask?",
    "Why do you want to know?",
    "What do you think?",
    "Can you guess?",
];
const MORE: &[&str] = &[
    "Have you asked a friend?",
    "Did you try it yourself?",
    "Who told you about it?",
    "Do you like to wonder about such things?",
    "Is it a secret?",
];
const END: &[&str] = &[
    "What happens next?",
    "Shall we find out together?",
    "Will you tell me?",
    "What would you do?",
    "Where do we begin?",
];

/// Three questions.
pub(super) fn answer(rng: &mut Rng, hero: Option<&Hero>) -> String {
    let end = rng.pick(END);
    let Some(hero) = hero else {
        return [rng.pick(ASK), rng.pick(MORE), end].join(" ");
    };
    let who = match &hero.name {
        Some(name) => name.clone(),
        None => format!("the {}", hero.kind),
    };
    let about = fill(rng.pick(ABOUT), &[("t", &who)]);
    let more = fill(rng.pick(HERO), &hero.slots());
    [&about, &more, end].join(" ")
}

/// True if `text` is at least two sentences, all of them questions.
pub(super) fn asks(text: &str) -> bool {
    let ends = |mark: char| text.matches(mark).count();
    ends('?') >= 2 && ends('.') + ends('!') == 0 && text.trim_end().ends_with('?')
}
