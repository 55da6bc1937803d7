//! The facts, and the wordings of questions about them.

pub const CAPITALS: &[(&str, &str)] = &[
    ("France", "Paris"),
    ("Germany", "Berlin"),
    ("Italy", "Rome"),
    ("Spain", "Madrid"),
    ("Portugal", "Lisbon"),
    ("Norway", "Oslo"),
    ("Sweden", "Stockholm"),
    ("Denmark", "Copenhagen"),
    ("Finland", "Helsinki"),
    ("Poland", "Warsaw"),
    ("Austria", "Vienna"),
    ("Switzerland", "Bern"),
    ("Greece", "Athens"),
    ("Ireland", "Dublin"),
    ("Belgium", "Brussels"),
    ("Hungary", "Budapest"),
    ("England", "London"),
    ("Egypt", "Cairo"),
    ("Kenya", "Nairobi"),
    ("Japan", "Tokyo"),
    ("China", "Beijing"),
    ("India", "Delhi"),
    ("Thailand", "Bangkok"),
    ("Canada", "Ottawa"),
    ("Mexico", "Mexico City"),
    ("Peru", "Lima"),
    ("Cuba", "Havana"),
];
pub const THING_COLOURS: &[(&str, &str, &str)] = &[
    ("the sky", "is", "blue"),
    ("grass", "is", "green"),
    ("snow", "is", "white"),
    ("blood", "is", "red"),
    ("coal", "is", "black"),
    ("a banana", "is", "yellow"),
    ("the sun", "is", "yellow"),
    ("a carrot", "is", "orange"),
    ("chocolate", "is", "brown"),
    ("an elephant", "is", "grey"),
    ("a flamingo", "is", "pink"),
    ("a lemon", "is", "yellow"),
    ("milk", "is", "white"),
    ("a frog", "is", "green"),
    ("a tomato", "is", "red"),
    ("the sea", "is", "blue"),
];
pub const SOUNDS: &[(&str, &str)] = &[
    ("cat", "meow"),
    ("dog", "woof"),
    ("cow", "moo"),
    ("duck", "quack"),
    ("sheep", "baa"),
    ("pig", "oink"),
    ("owl", "hoot"),
    ("bee", "buzz"),
    ("lion", "roar"),
    ("frog", "croak"),
    ("horse", "neigh"),
    ("mouse", "squeak"),
];
pub const LEGS: &[(&str, &str)] = &[
    ("dog", "four legs"),
    ("cat", "four legs"),
    ("horse", "four legs"),
    ("bird", "two legs"),
    ("spider", "eight legs"),
    ("bee", "six legs"),
    ("ant", "six legs"),
    ("snake", "no legs"),
    ("fish", "no legs"),
    ("person", "two legs"),
    ("chicken", "two legs"),
];
pub const BABIES: &[(&str, &str)] = &[
    ("dog", "puppy"),
    ("cat", "kitten"),
    ("cow", "calf"),
    ("sheep", "lamb"),
    ("horse", "foal"),
    ("duck", "duckling"),
    ("bear", "cub"),
    ("pig", "piglet"),
    ("hen", "chick"),
    ("frog", "tadpole"),
];
pub const OPPOSITES: &[(&str, &str)] = &[
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("day", "night"),
    ("up", "down"),
    ("happy", "sad"),
    ("old", "new"),
    ("light", "dark"),
    ("open", "closed"),
    ("full", "empty"),
    ("long", "short"),
    ("loud", "quiet"),
    ("wet", "dry"),
    ("left", "right"),
    ("early", "late"),
    ("hard", "soft"),
];
pub const SINGLE: &[(&[&str], &str)] = &[
    (
        &[
            "How many days are in a week?",
            "How many days does a week have?",
        ],
        "A week has seven days.",
    ),
    (
        &[
            "How many months are in a year?",
            "How many months does a year have?",
        ],
        "A year has twelve months.",
    ),
    (
        &[
            "How many hours are in a day?",
            "How many hours does a day have?",
        ],
        "A day has 24 hours.",
    ),
    (
        &[
            "How many minutes are in an hour?",
            "How many minutes does an hour have?",
        ],
        "An hour has 60 minutes.",
    ),
    (
        &["What are the seasons?", "Name the four seasons."],
        "The four seasons are spring, summer, autumn and winter.",
    ),
    (
        &[
            "Name the days of the week.",
            "What are the days of the week?",
        ],
        "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    (
        &["What is ice?", "What is ice made of?"],
        "Ice is frozen water.",
    ),
    (
        &["What do bees make?", "What does a bee make?"],
        "Bees make honey.",
    ),
    (
        &["What do cows give us?", "What does a cow give us?"],
        "Cows give us milk.",
    ),
    (
        &["Where do fish live?", "Where does a fish live?"],
        "Fish live in water.",
    ),
    (
        &["Where do birds live?", "Where does a bird live?"],
        "Birds live in nests.",
    ),
    (
        &["When does the sun rise?", "When does the sun come up?"],
        "The sun rises in the morning.",
    ),
    (
        &["When can we see the stars?", "When do the stars shine?"],
        "We can see the stars at night.",
    ),
    (
        &["What is the largest animal?", "What is the biggest animal?"],
        "The largest animal is the blue whale.",
    ),
    (
        &[
            "What is the tallest animal?",
            "Which animal is the tallest?",
        ],
        "The tallest animal is the giraffe.",
    ),
    (
        &[
            "What are the three primary colours?",
            "Name the primary colours.",
        ],
        "The primary colours are red, yellow and blue.",
    ),
    (
        &[
            "What do you get if you mix blue and yellow?",
            "What colour do blue and yellow make?",
        ],
        "Blue and yellow make green.",
    ),
    (
        &[
            "What do you get if you mix red and yellow?",
            "What colour do red and yellow make?",
        ],
        "Red and yellow make orange.",
    ),
    (
        &[
            "What do you get if you mix red and blue?",
            "What colour do red and blue make?",
        ],
        "Red and blue make purple.",
    ),
];

pub const ASK_CAPITAL: &[&str] = &[
    "What is the capital of {x}?",
    "What is the capital of {x}?",
    "What's the capital of {x}?",
    "Which city is the capital of {x}?",
    "Tell me the capital of {x}.",
    "Name the capital of {x}.",
    "Do you know the capital of {x}?",
];
pub const ASK_COLOUR: &[&str] = &[
    "What colour is {x}?",
    "What color is {x}?",
    "Which colour does {x} have?",
    "Tell me the colour of {x}.",
    "What is the colour of {x}?",
];
pub const ASK_SOUND: &[&str] = &[
    "What sound does {x} make?",
    "What does {x} say?",
    "Which sound does {x} make?",
    "Tell me the sound of {x}.",
];
pub const ASK_LEGS: &[&str] = &[
    "How many legs does {x} have?",
    "How many legs has {x}?",
    "Tell me how many legs {x} has.",
];
pub const ASK_BABY: &[&str] = &[
    "What is a baby {x} called?",
    "What do you call a baby {x}?",
    "What is the name of a baby {x}?",
];
pub const ASK_OPPOSITE: &[&str] = &[
    "What is the opposite of {x}?",
    "What's the opposite of {x}?",
    "Tell me the opposite of {x}.",
    "Which word is the opposite of {x}?",
];
pub const ASK_AFTER: &[&str] = &[
    "What comes after {x}?",
    "Which {kind} comes after {x}?",
    "What {kind} comes after {x}?",
];
pub const ASK_BEFORE: &[&str] = &[
    "What comes before {x}?",
    "Which {kind} comes before {x}?",
    "What {kind} comes before {x}?",
];
pub const ASK_COUNT: &[&str] = &[
    "Count from {x} to {y}.",
    "Can you count from {x} to {y}?",
    "Please count from {x} to {y}.",
];
pub const ASK_LARGER: &[&str] = &[
    "Which is bigger, {x} or {y}?",
    "Which number is larger, {x} or {y}?",
    "What is more, {x} or {y}?",
];
