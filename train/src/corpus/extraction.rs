//! Extraction to JSON: copy named fields out of a short text.
//!
//! Held out: one name and one city in nine (listed and made-up), and one phrasing in eight.

use serde_json::{Map, Value};

use super::extraction_templates::{
    EVENTS, FIRST_PERSON, Field, OPEN_REQUESTS, OPENINGS, REQUESTS, SALES, follow_ups,
};
use super::names::{self, Gender};
use super::phrasing::Phrase;
use super::rng::Rng;
use super::text::{article, capital, fill, join_and};
use super::words;
use super::{Split, Task, Turn};
struct Person {
    name: String,
    gender: Gender,
    age: u32,
    city: String,
    job: String,
    pet: &'static str,
    food: String,
}

/// The sources of the names in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameSource {
    Any,
    Listed,
    Invented,
}

impl Person {
    fn draw(rng: &mut Rng, split: Split, source: NameSource) -> Self {
        let (mut name, gender) = match source {
            NameSource::Any => names::first(rng, split),
            NameSource::Listed => names::listed_first(rng, split),
            NameSource::Invented => names::invented_first(rng, split),
        };
        let city = match source {
            NameSource::Any => names::city(rng, split),
            NameSource::Listed => names::listed_city(rng, split),
            NameSource::Invented => names::invented_city(rng, split),
        };
        if rng.percent(15) {
            name = format!("{name} {}", names::surname(rng, split));
        }
        let job = if rng.percent(12) {
            names::invented_word(rng, split)
        } else {
            rng.pick(words::JOBS).to_owned()
        };
        let food = if rng.percent(12) {
            names::invented_word(rng, split)
        } else {
            rng.pick(words::FOODS).to_owned()
        };
        Self {
            name,
            gender,
            age: rng.range(1, 99),
            city,
            job,
            pet: rng.pick(words::PETS),
            food,
        }
    }

    fn value(&self, field: Field) -> Value {
        match field {
            Field::Name => self.name.clone().into(),
            Field::Age => self.age.into(),
            Field::City => self.city.clone().into(),
            Field::Job => self.job.clone().into(),
            Field::Pet => self.pet.into(),
            Field::Food => self.food.clone().into(),
        }
    }

    /// A text that states the name and `wanted`, together with all fields that it states.
    fn describe(&self, rng: &mut Rng, wanted: &[Field]) -> (String, Vec<Field>) {
        let first_person = rng.percent(20);
        let openings = if first_person { FIRST_PERSON } else { OPENINGS };
        let (stated, opening) = loop {
            let (stated, opening) = rng.item(openings);
            // An opening may state more fields than are requested (a distractor), but rarely does.
            if stated.iter().all(|f| wanted.contains(f)) || rng.percent(10) {
                break (*stated, *opening);
            }
        };
        let mut stated = [&[Field::Name], stated].concat();
        let mut sentences = vec![opening];
        let mut missing: Vec<Field> = wanted
            .iter()
            .copied()
            .filter(|f| !stated.contains(f))
            .collect();
        rng.shuffle(&mut missing);
        for field in missing {
            sentences.push(rng.pick(follow_ups(field, first_person)));
            stated.push(field);
        }
        let age = self.age.to_string();
        let a_job = format!("{} {}", article(&self.job), self.job);
        let a_pet = format!("{} {}", article(self.pet), self.pet);
        let mut values = vec![
            ("name", self.name.as_str()),
            ("age", age.as_str()),
            ("city", self.city.as_str()),
            ("job", self.job.as_str()),
            ("a_job", a_job.as_str()),
            ("a_pet", a_pet.as_str()),
            ("food", self.food.as_str()),
        ];
        values.extend(self.gender.slots());
        (fill(&sentences.join(" "), &values), stated)
    }
}

/// JSON as Python's `json.dumps` spaces it: `{"name": "Anna", "age": 34}`.
fn to_json(values: &[(&str, Value)]) -> String {
    let map: Map<String, Value> = values
        .iter()
        .map(|(k, v)| ((*k).to_owned(), v.clone()))
        .collect();
    let members: Vec<String> = map
        .iter()
        .map(|(key, value)| format!("{}: {value}", Value::from(key.as_str())))
        .collect();
    format!("{{{}}}", members.join(", "))
}

fn field_list(rng: &mut Rng, keys: &[&str]) -> String {
    let quoted: Vec<String> = keys.iter().map(|key| format!("\"{key}\"")).collect();
    let quoted: Vec<&str> = quoted.iter().map(String::as_str).collect();
    match rng.weighted(&[60, 25, 15]) {
        0 => join_and(keys),
        1 => keys.join(", "),
        _ => join_and(&quoted),
    }
}

fn request(rng: &mut Rng, split: Split, keys: Option<&[&str]>, text: &str) -> String {
    let (templates, fields) = match keys {
        Some(keys) => (REQUESTS, field_list(rng, keys)),
        None => (OPEN_REQUESTS, String::new()),
    };
    loop {
        let phrase = Phrase::draw(rng, split, templates);
        // A closing "Thanks!" would read as a part of the text.
        let text_is_last = phrase.template.ends_with("{text}");
        let text_is_first = phrase.template.starts_with("{text}");
        if (text_is_last && !phrase.after.is_empty())
            || (text_is_first && !phrase.before.is_empty())
        {
            continue;
        }
        return phrase.wrap(&fill(
            phrase.template,
            &[("fields", &fields), ("text", text)],
        ));
    }
}

/// A person's fields; names of `names_from`, phrasing of `phrases`.
pub fn person(rng: &mut Rng, names_from: Split, source: NameSource, phrases: Split) -> Turn {
    let person = Person::draw(rng, names_from, source);
    let mut wanted = if rng.percent(30) {
        vec![Field::Name, Field::Age, Field::City]
    } else {
        let mut all = Field::ALL.to_vec();
        rng.shuffle(&mut all);
        // The common fields come up more often than the rare ones.
        all.sort_by_cached_key(|f| {
            u32::from(matches!(f, Field::Pet | Field::Food)) * rng.range(0, 1)
        });
        all.truncate(1 + rng.weighted(&[12, 34, 40, 14]));
        all
    };
    if rng.percent(50) {
        wanted.sort_by_key(|f| Field::ALL.iter().position(|g| g == f));
    }
    let (text, stated) = person.describe(rng, &wanted);
    let open = rng.percent(8);
    if open {
        wanted = Field::ALL
            .into_iter()
            .filter(|f| stated.contains(f))
            .collect();
    }
    let mut values: Vec<(&str, Value)> =
        wanted.iter().map(|f| (f.key(), person.value(*f))).collect();
    if !open && rng.percent(5) {
        // A field that the text does not state is null.
        let absent: Vec<Field> = Field::ALL
            .into_iter()
            .filter(|f| !stated.contains(f))
            .collect();
        if !absent.is_empty() {
            values.insert(
                rng.below(values.len() + 1),
                (rng.item(&absent).key(), Value::Null),
            );
        }
    }
    let keys: Vec<&str> = values.iter().map(|(k, _)| *k).collect();
    let user = request(rng, phrases, (!open).then_some(&keys), &text);
    Turn {
        task: Task::Extraction,
        user,
        assistant: to_json(&values),
    }
}

/// A sale or an event, so that the keys are not always a person's.
/// A sale or an event, so that the keys are not always a person's.
fn thing(rng: &mut Rng, split: Split) -> Turn {
    let sale = rng.percent(50);
    let template = rng.pick(if sale { SALES } else { EVENTS });
    let (name, _) = names::first(rng, split);
    let city = names::city(rng, split);
    let (colour, item) = (rng.pick(words::COLOURS), rng.pick(words::ITEMS));
    let (event, day) = (rng.pick(words::EVENTS), rng.pick(words::DAYS));
    let (price, hour) = (rng.range(1, 199), rng.range(1, 12));
    let a_colour = format!("{} {colour}", article(colour));
    let a_event = format!("{} {event}", article(event));
    let text = fill(
        template,
        &[
            ("name", &name),
            ("city", &city),
            ("colour", colour),
            ("a_colour", &a_colour),
            ("A_colour", &capital(&a_colour)),
            ("item", item),
            ("price", &price.to_string()),
            ("event", event),
            ("a_event", &a_event),
            ("day", day),
            ("hour", &hour.to_string()),
        ],
    );
    let slots: &[(&str, &str, Value)] = &[
        ("{item}", "item", item.into()),
        ("colour}", "colour", colour.into()),
        ("{price}", "price", price.into()),
        ("event}", "event", event.into()),
        ("{day}", "day", day.into()),
        ("{hour}", "hour", hour.into()),
        ("{name}", "name", name.as_str().into()),
        ("{city}", "city", city.as_str().into()),
    ];
    let mut values: Vec<(&str, Value)> = slots
        .iter()
        .filter(|(slot, ..)| template.contains(slot))
        .map(|(_, key, value)| (*key, value.clone()))
        .collect();
    if rng.percent(50) {
        rng.shuffle(&mut values);
    }
    values.truncate(rng.range(2, 4) as usize);
    let keys: Vec<&str> = values.iter().map(|(k, _)| *k).collect();
    let user = request(rng, split, Some(&keys), &text);
    Turn {
        task: Task::Extraction,
        user,
        assistant: to_json(&values),
    }
}

/// A draw of `split` over all kinds of texts.
pub fn turn(rng: &mut Rng, split: Split) -> Turn {
    if rng.percent(15) {
        thing(rng, split)
    } else {
        person(rng, split, NameSource::Any, split)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_parses_and_its_strings_stand_in_the_prompt() {
        for split in [Split::Train, Split::HeldOut] {
            for i in 0..20_000 {
                let turn = turn(&mut Rng::new(21, i), split);
                let value: Value = serde_json::from_str(&turn.assistant).expect("valid JSON");
                for (key, value) in value.as_object().expect("an object") {
                    let text = value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned);
                    assert!(
                        value.is_null() || turn.user.contains(&text),
                        "{key}: {turn:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn json_is_spaced_as_python_does_it() {
        let values = [
            ("name", "Anna".into()),
            ("age", 34.into()),
            ("city", Value::Null),
        ];
        assert_eq!(
            to_json(&values),
            r#"{"name": "Anna", "age": 34, "city": null}"#
        );
    }
}
