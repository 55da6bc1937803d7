//! Couplets. Each rhyme has first lines, which tell about the hero, and second lines.

use super::Hero;
use crate::corpus::rng::Rng;
use crate::corpus::text::{article, capital, fill};
use crate::corpus::words;

struct Rhyme {
    /// With `{h}`, who it is about.
    firsts: &'static [&'static str],
    seconds: &'static [&'static str],
}

/// All last words of one rhyme sound alike.
const RHYMES: &[Rhyme] = &[
    Rhyme {
        firsts: &[
            "{h} lived beside the sea,",
            "{h} sat below a tree,",
            "{h} liked to drink some tea,",
        ],
        seconds: &[
            "and had a friend, a bumblebee.",
            "and felt as happy as can be.",
            "and sang a song for you and me.",
            "and jumped and danced, for {he} was free.",
        ],
    },
    Rhyme {
        firsts: &[
            "{h} went out one day,",
            "{h} loved to run and play,",
            "{h} once lost the way,",
        ],
        seconds: &[
            "and fell asleep upon the hay.",
            "and sang and danced till end of May.",
            "and met a friend who liked to stay.",
            "and chased the clouds so dark and grey.",
        ],
    },
    Rhyme {
        firsts: &[
            "{h} woke up at night,",
            "{h} had a yellow kite,",
            "{h} saw a little light,",
        ],
        seconds: &[
            "and all the stars were big and bright.",
            "and oh, it was a lovely sight!",
            "and held the string so very tight.",
            "and hugged the moon with all {his} might.",
        ],
    },
    Rhyme {
        firsts: &[
            "{h} climbed up a hill,",
            "{h} lived inside a mill,",
            "{h} could not sit still,",
        ],
        seconds: &[
            "and if you look, {he} sits there still.",
            "and ate some cake and got {his} fill.",
            "and rolled back down it for the thrill.",
        ],
    },
    Rhyme {
        firsts: &[
            "{h} built a little house,",
            "{h} had a tiny house,",
            "{h} found an empty house,",
        ],
        seconds: &[
            "and shared it with a small grey mouse.",
            "and hid the cheese from every mouse.",
            "and was as quiet as a mouse.",
        ],
    },
    Rhyme {
        firsts: &[
            "{h} walked out in the snow,",
            "{h} had no place to go,",
            "{h} was a little slow,",
        ],
        seconds: &[
            "and saw the moon begin to glow.",
            "and watched the little flowers grow.",
            "and that is all we need to know.",
        ],
    },
    Rhyme {
        firsts: &[
            "{h} danced out in the rain,",
            "{h} took a little train,",
            "{h} flew a little plane,",
        ],
        seconds: &[
            "and then {he} did it all again.",
            "and waved through every window pane.",
            "and ran along the muddy lane.",
        ],
    },
    Rhyme {
        firsts: &[
            "{h} sang a happy song,",
            "{h} was not very strong,",
            "{h} slept the whole night long,",
        ],
        seconds: &[
            "and all the birds would sing along.",
            "and nothing that {he} did went wrong.",
            "and walked and whistled all day long.",
        ],
    },
    Rhyme {
        firsts: &[
            "{h} looked up at the moon,",
            "{h} ate soup with a spoon,",
            "{h} slept until noon,",
        ],
        seconds: &[
            "and hummed a very pretty tune.",
            "and knew that spring would come back soon.",
            "and dreamt about a red balloon.",
        ],
    },
    Rhyme {
        firsts: &[
            "{h} swam across the lake,",
            "{h} went out to bake a cake,",
            "{h} stayed all night awake,",
        ],
        seconds: &[
            "and ate a piece of apple cake.",
            "and saw the ducks upon the lake.",
            "and oh, the jokes that {he} would make!",
        ],
    },
];

/// The words that begin the third line and name its subject.
const AGAIN: &[&str] = &["Then {he}", "And {N}", "The {k}"];

/// Two couplets with different rhymes.
pub(super) fn answer(rng: &mut Rng, hero: &Hero) -> String {
    let name = hero.name.as_deref().unwrap_or_default();
    let quality = rng.pick(words::TRAITS);
    let named = format!("{} {quality} {} named {name}", article(quality), hero.kind);
    let mut known = vec![("N", name), ("k", hero.kind)];
    known.extend(hero.slots());
    let again = fill(rng.pick(AGAIN), &known);
    let first = rng.below(RHYMES.len());
    let second = (first + 1 + rng.below(RHYMES.len() - 1)) % RHYMES.len();
    let mut lines = Vec::with_capacity(4);
    for (rhyme, who) in [(first, capital(&named)), (second, again)] {
        let Rhyme { firsts, seconds } = &RHYMES[rhyme];
        let first = rng.pick(firsts);
        // The same word twice is no rhyme.
        let second = loop {
            let second = rng.pick(seconds);
            if last_word(second) != last_word(first) {
                break second;
            }
        };
        let values = [&known[..], &[("h", &who)]].concat();
        lines.extend([first, second].map(|line| fill(line, &values)));
    }
    lines.join("\n")
}

/// True if `text` has four lines in two rhymes.
pub(super) fn rhymes(text: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let rhyme = |line: &str| {
        let ends = |rhyme: &Rhyme| {
            let mut lines = rhyme.firsts.iter().chain(rhyme.seconds);
            lines.any(|other| last_word(other) == last_word(line))
        };
        RHYMES.iter().position(ends)
    };
    lines.len() == 4
        && lines.chunks(2).all(|pair| {
            rhyme(pair[0]).is_some()
                && rhyme(pair[0]) == rhyme(pair[1])
                && last_word(pair[0]) != last_word(pair[1])
        })
}

fn last_word(line: &str) -> &str {
    let last = line.split_whitespace().last().unwrap_or_default();
    last.trim_end_matches(|c: char| !c.is_alphabetic())
}
