//! Short stories of five to ten sentences, and requests for them.

use super::names::{self, Gender};
use super::phrasing::{Phrase, casual};
use super::plots::{ENDINGS, HABITS, MORALS, OBJECTS, OPENINGS, PLOTS, SNACKS};
use super::rng::Rng;
use super::text::{article, capital, fill};
use super::words;
use super::{Split, Task, Turn};

const ASK: &[&str] = &[
    "Tell me a {length}story{about}.",
    "Tell me a {length}story{about}.",
    "Tell a {length}story{about}.",
    "Can you tell me a {length}story{about}?",
    "Could you tell me a {length}story{about}?",
    "Write a {length}story{about}.",
    "Write me a {length}story{about}.",
    "I want to hear a {length}story{about}.",
    "I would like a {length}story{about}.",
    "Make up a {length}story{about}.",
    "Do you know a {length}story{about}?",
    "A {length}story{about}, please.",
];
/// Requests that only make sense after a story.
const ANOTHER: &[&str] = &[
    "Another one, please.",
    "Tell me another story.",
    "Another story!",
    "One more story, please.",
];

/// The properties of a story that a request asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    pub kind: Option<&'static str>,
    pub name: Option<(String, Gender)>,
    pub place: Option<usize>,
    quality: Option<&'static str>,
}

impl Wish {
    pub fn draw(rng: &mut Rng, split: Split) -> Self {
        if rng.percent(30) {
            return Self::default();
        }
        let kind = rng.percent(85).then(|| kind(rng));
        let wants_name = rng.percent(if kind.is_some() { 35 } else { 80 });
        let name = wants_name.then(|| name_for(rng, kind, split));
        Self {
            kind,
            name,
            place: rng.percent(30).then(|| rng.below(words::PLACES.len())),
            quality: (kind.is_some() && rng.percent(25)).then(|| rng.pick(words::TRAITS)),
        }
    }

    /// " about a brave fox named Mia in a forest", or nothing.
    fn text(&self, rng: &mut Rng) -> String {
        let place = self.place.map_or("", |i| words::PLACES[i].0);
        let who = match (self.kind, &self.name) {
            (Some(kind), name) => {
                let noun = self
                    .quality
                    .map_or(kind.to_owned(), |q| format!("{q} {kind}"));
                let named = rng.pick(&[" named ", " called "]);
                let name = name
                    .as_ref()
                    .map_or(String::new(), |(n, _)| format!("{named}{n}"));
                format!("{} {noun}{name}", article(&noun))
            }
            (None, Some((name, _))) => name.clone(),
            (None, None) => String::new(),
        };
        match (who.is_empty(), place.is_empty()) {
            (true, true) => String::new(),
            (true, false) => format!(" that happens {place}"),
            (false, true) => format!(" about {who}"),
            (false, false) if rng.percent(50) => format!(" about {who} {place}"),
            (false, false) => format!(" about {who} who lives {place}"),
        }
    }
}

pub(super) fn kind(rng: &mut Rng) -> &'static str {
    match rng.below(10) {
        0 => "girl",
        1 => "boy",
        _ => rng.pick(words::ANIMALS),
    }
}

fn name_for(rng: &mut Rng, kind: Option<&str>, split: Split) -> (String, Gender) {
    let wanted = match kind {
        Some("girl" | "hen") => Some(Gender::She),
        Some("boy") => Some(Gender::He),
        _ => None,
    };
    loop {
        let (name, gender) = names::first(rng, split);
        if wanted.is_none_or(|w| w == gender) {
            return (name, gender);
        }
    }
}

/// A name that the story chooses itself: always a listed one of the training split.
pub(super) fn own_name(rng: &mut Rng, kind: &str) -> (String, Gender) {
    loop {
        let (name, gender) = names::listed_first(rng, Split::Train);
        let fits = match kind {
            "girl" | "hen" => gender == Gender::She,
            "boy" => gender == Gender::He,
            _ => true,
        };
        if fits {
            return (name, gender);
        }
    }
}

/// A story that grants `wish`.
pub fn tell(rng: &mut Rng, wish: &Wish) -> String {
    let kind = wish.kind.unwrap_or_else(|| kind(rng));
    let (name, gender) = wish.name.clone().unwrap_or_else(|| own_name(rng, kind));
    let quality = wish.quality.unwrap_or_else(|| rng.pick(words::TRAITS));
    let place = words::PLACES[wish.place.unwrap_or_else(|| rng.below(words::PLACES.len()))].1;
    let helper = loop {
        let helper = rng.pick(words::ANIMALS);
        if helper != kind {
            break helper;
        }
    };
    let object = rng.pick(OBJECTS);
    let a_helper = format!("{} {helper}", article(helper));
    let the_helper = format!("the {helper}");
    let a_quality = format!("{} {quality}", article(quality));
    let a_object = format!("{} {object}", article(object));
    let (place_start, helper_start) = (capital(place), capital(&the_helper));
    let a_helper_start = capital(&a_helper);
    let mut values = vec![
        ("N", name.as_str()),
        ("k", kind),
        ("a_t", a_quality.as_str()),
        ("p", place),
        ("P", place_start.as_str()),
        ("h", the_helper.as_str()),
        ("H", helper_start.as_str()),
        ("a_h", a_helper.as_str()),
        ("A_h", a_helper_start.as_str()),
        ("him_h", the_helper.as_str()),
        ("o", object),
        ("a_o", a_object.as_str()),
        ("f", rng.pick(SNACKS)),
    ];
    values.extend(gender.slots());

    let mut sentences = vec![rng.pick(OPENINGS), rng.pick(HABITS)];
    sentences.extend(rng.item(PLOTS).iter().map(|beat| rng.pick(beat)));
    sentences.push(rng.pick(ENDINGS));
    if rng.percent(20) {
        sentences.push(rng.pick(MORALS));
    }
    sentences.retain(|s| !s.is_empty());
    introduce_helper_once(&fill(&sentences.join(" "), &values), &a_helper, &the_helper)
}

/// The helper is "an owl" where it first appears and "the owl" from then on, whichever of the
/// alternative sentences were drawn.
fn introduce_helper_once(text: &str, a_helper: &str, the_helper: &str) -> String {
    let mut seen = false;
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let forms = [
        a_helper.to_owned(),
        the_helper.to_owned(),
        capital(a_helper),
        capital(the_helper),
    ];
    loop {
        let next = forms
            .iter()
            .filter_map(|f| find_word(rest, f).map(|at| (at, f)))
            .min();
        let Some((at, form)) = next else { break };
        out.push_str(&rest[..at]);
        let article = if seen { the_helper } else { a_helper };
        let upper = form.starts_with(char::is_uppercase);
        out.push_str(&if upper {
            capital(article)
        } else {
            article.to_owned()
        });
        seen = true;
        rest = &rest[at + form.len()..];
    }
    out.push_str(rest);
    out
}

/// The position of `word` in `text` as a whole word.
fn find_word(text: &str, word: &str) -> Option<usize> {
    text.match_indices(word).map(|(at, _)| at).find(|&at| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

/// A request with its wish, and a story that grants it.
pub fn request(rng: &mut Rng, split: Split) -> (Turn, Wish) {
    let wish = Wish::draw(rng, split);
    let phrase = Phrase::draw(rng, split, ASK);
    let length = rng.pick(&["", "", "", "short ", "little ", "bedtime ", "new "]);
    let about = wish.text(rng);
    let mut user = phrase.wrap(&fill(
        phrase.template,
        &[("length", length), ("about", &about)],
    ));
    if rng.percent(15) {
        user = casual(&user);
    }
    (
        Turn {
            task: Task::Story,
            user,
            assistant: tell(rng, &wish),
        },
        wish,
    )
}

pub fn turn(rng: &mut Rng, split: Split) -> Turn {
    request(rng, split).0
}

/// A request for one more story, after an earlier one.
pub fn another(rng: &mut Rng) -> Turn {
    Turn {
        task: Task::Story,
        user: rng.pick(ANOTHER).to_owned(),
        assistant: tell(rng, &Wish::default()),
    }
}

/// How many sentences end in `text`.
pub fn sentences(text: &str) -> usize {
    let closes = |c: char| matches!(c, '.' | '!' | '?' | '"');
    text.split_whitespace()
        .filter(|word| word.ends_with(closes))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stories_name_the_hero_and_place_that_were_wished_for() {
        for i in 0..5_000 {
            let (turn, wish) = request(&mut Rng::new(31, i), Split::Train);
            if let Some((name, _)) = &wish.name {
                assert!(turn.assistant.contains(name.as_str()), "{turn:?}");
            }
            if let Some(kind) = wish.kind {
                assert!(turn.assistant.contains(kind), "{turn:?}");
            }
            if let Some(place) = wish.place {
                let place = words::PLACES[place].1;
                let text = turn.assistant.to_lowercase();
                assert!(text.contains(place), "{turn:?}");
            }
        }
    }

    #[test]
    fn a_helper_is_introduced_before_it_is_known() {
        let text = introduce_helper_once(
            "It was an owl. An owl sang. The owl slept.",
            "an owl",
            "the owl",
        );
        assert_eq!(text, "It was an owl. The owl sang. The owl slept.");
        let text = introduce_helper_once("From then on the owl sang.", "an owl", "the owl");
        assert_eq!(text, "From then on an owl sang.");
        let text = introduce_helper_once("The catfish met the cat.", "a cat", "the cat");
        assert_eq!(text, "The catfish met a cat.");
    }

    #[test]
    fn stories_have_five_to_eighteen_sentence_ends() {
        for i in 0..5_000 {
            let turn = turn(&mut Rng::new(32, i), Split::Train);
            let count = sentences(&turn.assistant);
            assert!((5..=18).contains(&count), "{count}: {}", turn.assistant);
        }
    }
}
