//! The fields with which a router pairs a prefill server with a decode server (SGLang's
//! prefill/decode disaggregation). Both servers get the same request, and find each other by a room
//! number on a host that both know.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::error::{ApiError, out_of_bounds};
use crate::fields::each::Each;

/// Rooms are random numbers of 63 bits, which every language's integers can hold.
pub const MAX_ROOM: u64 = i64::MAX as u64;

/// A host name in DNS has at most 253 bytes, and addresses have fewer.
const MAX_HOST_BYTES: usize = 253;

/// Where the prefill server and the decode server of one sequence meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The host of the prefill server's bootstrap service.
    pub host: String,
    /// Its port; `None` where the router does not know it.
    pub port: Option<u16>,
    /// Between 0 and [`MAX_ROOM`].
    pub room: u64,
}

/// A whole number or null. It is wider than any bound, so that a value out of bounds is answered
/// with its field, the bound and the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeNumber(Option<i128>);

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Wholes;
        impl Visitor<'_> for Wholes {
            type Value = WholeNumber;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number below 2^64 or null")
            }
            fn visit_unit<E: Error>(self) -> Result<WholeNumber, E> {
                Ok(WholeNumber(None))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<WholeNumber, E> {
                Ok(WholeNumber(Some(value.into())))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<WholeNumber, E> {
                Ok(WholeNumber(Some(value.into())))
            }
        }
        deserializer.deserialize_any(Wholes)
    }
}

/// The fields as a request has them; `null` is the same as absent.
#[derive(Debug, Default)]
pub struct Disaggregation {
    pub bootstrap_host: Option<Each<String>>,
    pub bootstrap_port: Option<Each<WholeNumber>>,
    pub bootstrap_room: Option<Each<WholeNumber>>,
    pub data_parallel_rank: Option<i64>,
    pub data_parallel_rank_decode: Option<i64>,
    /// SGLang's newer names of the two ranks.
    pub routed_dp_rank: Option<i64>,
    pub disagg_prefill_dp_rank: Option<i64>,
}

impl Disaggregation {
    /// The room of each sequence, or no rooms where the request names none. There are `copies`
    /// sequences for each of `prompts` prompts; sequence `p * copies + c` is copy `c` of prompt `p`.
    ///
    /// A list has a value for each sequence, or for each prompt. One value is for all of them, but
    /// a room has one sequence: where several sequences have one room number, the number counts up
    /// from one to the next, on both servers alike. Routers send lists for some batches and one
    /// number for others.
    ///
    /// # Errors
    /// 400 with field, bound and value: for a room without a host, a host without a room, a list of
    /// another length, and for numbers out of bounds.
    pub fn rooms(self, prompts: usize, copies: usize) -> Result<Vec<Room>, ApiError> {
        for (field, rank) in [
            ("data_parallel_rank", self.data_parallel_rank),
            ("data_parallel_rank_decode", self.data_parallel_rank_decode),
            ("routed_dp_rank", self.routed_dp_rank),
            ("disagg_prefill_dp_rank", self.disagg_prefill_dp_rank),
        ] {
            if let Some(rank) = rank.filter(|&rank| rank != 0) {
                return Err(out_of_bounds(field, "null or 0, the only rank here", rank));
            }
        }
        let needed = |field: &str, beside: &str| {
            let message = format!("`{field}` must be given where `{beside}` is");
            Err(ApiError::field(field, message))
        };
        let (hosts, rooms) = match (self.bootstrap_host, self.bootstrap_room) {
            (Some(hosts), Some(rooms)) => (hosts, rooms),
            (Some(_), None) => return needed("bootstrap_room", "bootstrap_host"),
            (None, Some(_)) => return needed("bootstrap_host", "bootstrap_room"),
            (None, None) if self.bootstrap_port.is_some() => {
                return needed("bootstrap_host", "bootstrap_port");
            }
            (None, None) => return Ok(Vec::new()),
        };
        let ports = self.bootstrap_port.unwrap_or(Each::All(WholeNumber(None)));
        let hosts = spread("bootstrap_host", hosts, prompts, copies)?;
        let ports = spread("bootstrap_port", ports, prompts, copies)?;
        let rooms = spread("bootstrap_room", rooms, prompts, copies)?;
        let each = hosts.into_iter().zip(ports).zip(rooms);
        let rooms: Vec<Room> = each
            .map(|(((host, _), (port, _)), (room, nth))| {
                Ok(Room {
                    host: checked_host(host)?,
                    port: checked_port(port)?,
                    room: checked_room(room)?.wrapping_add(nth) & MAX_ROOM,
                })
            })
            .collect::<Result<_, ApiError>>()?;
        debug_assert_eq!(rooms.len(), prompts * copies);
        Ok(rooms)
    }
}

/// The value for each sequence, and which of the sequences with this value it is, from 0.
fn spread<T: Clone>(
    field: &str,
    given: Each<T>,
    prompts: usize,
    copies: usize,
) -> Result<Vec<(T, u64)>, ApiError> {
    let sequences = prompts.saturating_mul(copies);
    let list = match given {
        Each::All(value) => {
            return Ok((0..sequences as u64)
                .map(|nth| (value.clone(), nth))
                .collect());
        }
        Each::One(list) => list,
    };
    // A list that is longer than any batch is not kept to its end.
    if list.given != list.items.len() || ![prompts, sequences].contains(&list.given) {
        let bound = match copies {
            1 => format!("one value, or a list of one for each of {prompts} prompts"),
            _ => format!(
                "one value, or a list of one for each of {sequences} sequences or of {prompts} \
                 prompts"
            ),
        };
        let given = format!("a list of {}", list.given);
        return Err(out_of_bounds(field, &bound, given));
    }
    let each = (sequences / list.items.len().max(1)) as u64;
    let values = list.items.into_iter();
    Ok(values
        .flat_map(|value| (0..each).map(move |nth| (value.clone(), nth)))
        .collect())
}

fn checked_host(host: String) -> Result<String, ApiError> {
    if (1..=MAX_HOST_BYTES).contains(&host.len()) {
        return Ok(host);
    }
    let bound = format!("between 1 and {MAX_HOST_BYTES} bytes long");
    let given = format!("{} bytes", host.len());
    Err(out_of_bounds("bootstrap_host", &bound, given))
}

fn checked_port(WholeNumber(port): WholeNumber) -> Result<Option<u16>, ApiError> {
    let Some(port) = port else { return Ok(None) };
    let checked = u16::try_from(port);
    let refused = |_| out_of_bounds("bootstrap_port", "null or between 0 and 65535", port);
    checked.map(Some).map_err(refused)
}

fn checked_room(WholeNumber(room): WholeNumber) -> Result<u64, ApiError> {
    let checked = room.and_then(|room| u64::try_from(room).ok());
    checked.filter(|&room| room <= MAX_ROOM).ok_or_else(|| {
        let bound = format!("between 0 and {MAX_ROOM}");
        let given = room.map_or("null".to_owned(), |room| room.to_string());
        out_of_bounds("bootstrap_room", &bound, given)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::{Value, json};

    #[derive(Deserialize)]
    struct Fields {
        host: Option<Each<String>>,
        port: Option<Each<WholeNumber>>,
        room: Option<Each<WholeNumber>>,
        rank: Option<i64>,
    }

    fn rooms(body: Value, prompts: usize, copies: usize) -> Result<Vec<Room>, ApiError> {
        let fields: Fields = serde_json::from_value(body).unwrap();
        let given = Disaggregation {
            bootstrap_host: fields.host,
            bootstrap_port: fields.port,
            bootstrap_room: fields.room,
            data_parallel_rank_decode: fields.rank,
            ..Disaggregation::default()
        };
        given.rooms(prompts, copies)
    }

    fn numbers(body: Value, prompts: usize, copies: usize) -> Vec<u64> {
        let rooms = rooms(body, prompts, copies).unwrap();
        rooms.iter().map(|room| room.room).collect()
    }

    #[test]
    fn one_sequence_has_the_room_of_the_request() {
        let room = Room {
            host: "10.0.0.1".to_owned(),
            port: Some(8998),
            room: MAX_ROOM,
        };
        let body = json!({"host": "10.0.0.1", "port": 8998, "room": MAX_ROOM, "rank": 0});
        assert_eq!(rooms(body, 1, 1).unwrap(), std::slice::from_ref(&room));
        let body = json!({"host": ["10.0.0.1"], "port": [8998], "room": [MAX_ROOM]});
        assert_eq!(rooms(body, 1, 1).unwrap(), std::slice::from_ref(&room));
        for port in [json!(null), json!([null])] {
            let body = json!({"host": "10.0.0.1", "port": port, "room": MAX_ROOM});
            let expected = Room {
                port: None,
                ..room.clone()
            };
            assert_eq!(rooms(body, 1, 1).unwrap(), [expected]);
        }
        assert_eq!(rooms(json!({"rank": null}), 1, 1).unwrap(), []);
    }

    #[test]
    fn several_sequences_never_share_a_room() {
        let with = |room| json!({"host": "h", "room": room});
        assert_eq!(numbers(with(json!(7)), 1, 3), [7, 8, 9]);
        assert_eq!(numbers(with(json!(7)), 2, 2), [7, 8, 9, 10]);
        assert_eq!(numbers(with(json!(MAX_ROOM)), 1, 2), [MAX_ROOM, 0]);
        assert_eq!(numbers(with(json!([7, 70])), 2, 1), [7, 70]);
        assert_eq!(numbers(with(json!([7, 70])), 1, 2), [7, 70]);
        assert_eq!(numbers(with(json!([7, 70])), 2, 2), [7, 8, 70, 71]);
        assert_eq!(numbers(with(json!([1, 2, 30, 40])), 2, 2), [1, 2, 30, 40]);
        let body = json!({"host": ["a", "b"], "port": [1, null], "room": [1, 2]});
        let rooms = rooms(body, 2, 1).unwrap();
        assert_eq!((&*rooms[0].host, rooms[0].port), ("a", Some(1)));
        assert_eq!((&*rooms[1].host, rooms[1].port), ("b", None));
    }

    #[test]
    fn what_is_missing_or_out_of_bounds_is_named() {
        for (body, field, says) in [
            (
                json!({"room": 1}),
                "bootstrap_host",
                "must be given where `bootstrap_room` is",
            ),
            (
                json!({"port": 1}),
                "bootstrap_host",
                "must be given where `bootstrap_port` is",
            ),
            (
                json!({"host": "h"}),
                "bootstrap_room",
                "must be given where `bootstrap_host` is",
            ),
            (
                json!({"host": "", "room": 1}),
                "bootstrap_host",
                "between 1 and 253 bytes long, got 0",
            ),
            (
                json!({"host": "h", "room": -1}),
                "bootstrap_room",
                "9223372036854775807, got -1",
            ),
            (
                json!({"host": "h", "room": MAX_ROOM + 1}),
                "bootstrap_room",
                "got 9223372036854775808",
            ),
            (
                json!({"host": "h", "room": [null]}),
                "bootstrap_room",
                "got null",
            ),
            (
                json!({"host": "h", "room": [1, 2]}),
                "bootstrap_room",
                "1 prompts, got a list of 2",
            ),
            (
                json!({"host": [], "room": 1}),
                "bootstrap_host",
                "got a list of 0",
            ),
            (
                json!({"host": "h", "room": 1, "port": 65536}),
                "bootstrap_port",
                "between 0 and 65535, got 65536",
            ),
            (
                json!({"rank": 1}),
                "data_parallel_rank_decode",
                "null or 0, the only rank here, got 1",
            ),
        ] {
            let error = rooms(body.clone(), 1, 1).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(field), "{body}: {error}");
            assert!(error.message.contains(says), "{body}: {error}");
        }
        let error = serde_json::from_str::<WholeNumber>("1.5")
            .unwrap_err()
            .to_string();
        assert!(error.contains("expected a whole number"), "{error}");
    }
}
