//! Damages JSON at random: one value somewhere in it becomes something odd.

use serde_json::{Value, json};

use super::mutate::Random;

fn odd(random: &mut Random) -> Value {
    match random.below(16) {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!(1e308),
        3 => json!(u64::MAX),
        4 => json!(""),
        5 => json!("a".repeat(1 + random.below(5000))),
        6 => json!([]),
        7 => json!({}),
        8 => json!([[[[[[]]]]]]),
        9 => json!(true),
        10 => json!("\u{0}\u{fdd0}<|im_end|>\u{202e}"),
        11 => json!({"$ref": "#"}),
        12 => json!("(a|b)*(a|b)*(a|b)*c{1,1000}"),
        13 => json!(4294967295u32),
        14 => json!(random.below(300)),
        _ => json!(0.5),
    }
}

/// Changes one value somewhere in `value`.
pub fn change(value: &mut Value, random: &mut Random) {
    match value {
        Value::Array(list) if !list.is_empty() && random.below(5) > 0 => {
            let at = random.below(list.len());
            match random.below(8) {
                0 => {
                    let copy = list[at].clone();
                    list.extend(vec![copy; random.below(40)]);
                }
                1 => drop(list.remove(at)),
                _ => change(&mut list[at], random),
            }
        }
        Value::Object(fields) if !fields.is_empty() && random.below(6) > 0 => {
            let at = random.below(fields.len());
            let name = fields.keys().nth(at).cloned().unwrap_or_default();
            match random.below(10) {
                0 => drop(fields.remove(&name)),
                1 => {
                    let moved = fields.remove(&name).unwrap_or_default();
                    fields.insert(format!("{name}x"), moved);
                }
                _ => {
                    if let Some(inner) = fields.get_mut(&name) {
                        change(inner, random);
                    }
                }
            }
        }
        other => *other = odd(random),
    }
}

/// A damaged copy of `value` as text, which is not always JSON any more.
pub fn damaged(value: &Value, random: &mut Random) -> Vec<u8> {
    let mut value = value.clone();
    for _ in 0..=random.below(2) {
        change(&mut value, random);
    }
    let mut bytes = value.to_string().into_bytes();
    if random.below(4) == 0 {
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.word() as u8,
                1 => bytes.truncate(at + 1),
                _ => bytes.insert(at, b"{}[]\",:\\0-"[random.below(10)]),
            }
        }
    }
    bytes
}
