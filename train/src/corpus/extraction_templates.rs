//! The sentences of extraction: texts that state fields, and requests for them.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    Name,
    Age,
    City,
    Job,
    Pet,
    Food,
}

impl Field {
    pub const ALL: [Self; 6] = [
        Self::Name,
        Self::Age,
        Self::City,
        Self::Job,
        Self::Pet,
        Self::Food,
    ];

    pub fn key(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Age => "age",
            Self::City => "city",
            Self::Job => "job",
            Self::Pet => "pet",
            Self::Food => "food",
        }
    }
}

/// Opening sentences with the fields that they state besides the name.
pub const OPENINGS: &[(&[Field], &str)] = &[
    (
        &[Field::Age, Field::City],
        "{name} is {age} years old and lives in {city}.",
    ),
    (
        &[Field::Age, Field::City],
        "{name} is {age} years old and comes from {city}.",
    ),
    (
        &[Field::Age, Field::City],
        "{name} lives in {city} and is {age} years old.",
    ),
    (
        &[Field::Age, Field::City],
        "{name} is {age} and lives in {city}.",
    ),
    (
        &[Field::Age, Field::City],
        "{name}, {age}, lives in {city}.",
    ),
    (&[Field::Age, Field::City], "{name} ({age}) is from {city}."),
    (
        &[Field::Age, Field::City],
        "In {city} lives {name}, who is {age} years old.",
    ),
    (
        &[Field::Age, Field::City],
        "{age}-year-old {name} lives in {city}.",
    ),
    (
        &[Field::Age, Field::City],
        "This is {name} from {city}, {age} years old.",
    ),
    (
        &[Field::Age, Field::Job],
        "{name} is a {age}-year-old {job}.",
    ),
    (
        &[Field::Age, Field::Job],
        "{name} is {age} and works as {a_job}.",
    ),
    (&[Field::Job, Field::City], "{name} is {a_job} in {city}."),
    (
        &[Field::Job, Field::City],
        "{name} works as {a_job} in {city}.",
    ),
    (
        &[Field::Job, Field::City],
        "The {job} {name} lives in {city}.",
    ),
    (
        &[Field::Age, Field::Job, Field::City],
        "{name} is a {age}-year-old {job} from {city}.",
    ),
    (
        &[Field::Age, Field::Job, Field::City],
        "{name}, {a_job} from {city}, is {age} years old.",
    ),
    (&[Field::City], "{name} lives in {city}."),
    (&[Field::City], "{name} comes from {city}."),
    (&[Field::City], "{name} moved to {city} last year."),
    (&[Field::Age], "{name} is {age} years old."),
    (&[Field::Age], "{name} turned {age} this week."),
    (&[Field::Job], "{name} works as {a_job}."),
    (&[Field::Pet], "{name} has {a_pet}."),
    (&[Field::Food], "{name} likes to eat {food}."),
];
pub const FIRST_PERSON: &[(&[Field], &str)] = &[
    (
        &[Field::Age, Field::City],
        "My name is {name}. I am {age} years old and I live in {city}.",
    ),
    (
        &[Field::Age, Field::City],
        "I am {name}, I am {age} and I come from {city}.",
    ),
    (
        &[Field::Job, Field::City],
        "Hello, I am {name}. I work as {a_job} in {city}.",
    ),
    (&[], "My name is {name}."),
    (&[], "I am {name}."),
];

pub fn follow_ups(field: Field, first_person: bool) -> &'static [&'static str] {
    match (field, first_person) {
        (Field::Name, _) => &[],
        (Field::Age, false) => &["{He} is {age} years old.", "{He} is {age}."],
        (Field::Age, true) => &["I am {age} years old.", "I am {age}."],
        (Field::City, false) => &[
            "{He} lives in {city}.",
            "{He} comes from {city}.",
            "{His} home is {city}.",
        ],
        (Field::City, true) => &[
            "I live in {city}.",
            "I come from {city}.",
            "My home is {city}.",
        ],
        (Field::Job, false) => &["{He} works as {a_job}.", "{He} is {a_job}."],
        (Field::Job, true) => &["I work as {a_job}.", "I am {a_job}."],
        (Field::Pet, false) => &["{He} has {a_pet}.", "{He} lives with {a_pet}."],
        (Field::Pet, true) => &["I have {a_pet}.", "I live with {a_pet}."],
        (Field::Food, false) => &["{He} likes {food}.", "{His} favourite food is {food}."],
        (Field::Food, true) => &["I like {food}.", "My favourite food is {food}."],
    }
}

pub const REQUESTS: &[&str] = &[
    "Extract the {fields} as JSON: {text}",
    "Extract the {fields} as JSON: {text}",
    "Extract {fields} as JSON: {text}",
    "Extract the {fields} from this text as JSON: {text}",
    "Extract the {fields} from the following text and answer in JSON.\n\n{text}",
    "Give me the {fields} as JSON: {text}",
    "Give me the {fields} as JSON. Text: {text}",
    "Return the {fields} as JSON: {text}",
    "Return a JSON object with {fields}: {text}",
    "Return JSON with the keys {fields}.\n{text}",
    "Find the {fields} in this text and write JSON: {text}",
    "Turn this into JSON with {fields}: {text}",
    "Convert to JSON ({fields}): {text}",
    "Read the text and write the {fields} as JSON.\nText: {text}",
    "What are the {fields}? Answer in JSON. {text}",
    "{text}\nExtract the {fields} as JSON.",
    "{text} Give me the {fields} as JSON.",
];
pub const OPEN_REQUESTS: &[&str] = &[
    "Extract as JSON: {text}",
    "Turn this into JSON: {text}",
    "Convert this to JSON: {text}",
];

pub const SALES: &[&str] = &[
    "The {colour} {item} costs {price} euros.",
    "{A_colour} {item} for {price} euros is for sale in {city}.",
    "{name} bought {a_colour} {item} for {price} euros.",
    "{name} sells {a_colour} {item}. It costs {price} euros.",
];
pub const EVENTS: &[&str] = &[
    "The {event} with {name} is on {day} at {hour}.",
    "{name} has {a_event} in {city} on {day} at {hour}.",
    "On {day} there is {a_event} in {city}. It starts at {hour}.",
    "The {event} in {city} starts on {day} at {hour}.",
];
