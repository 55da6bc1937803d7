//! Streamed text against the text decoded at once, for the two families of tokenizers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hearth_engine::output::{
    Detokenize, IncrementalDecoder, TextDelta, TextOptions, TextStream, token_text,
};
use proptest::prelude::*;

/// The first id that is not a single byte, in both tokenizers.
const PIECES: u32 = 256;
const SPECIAL: u32 = 900;
/// An id that is in the model's vocabulary but not in the tokenizer's.
const UNKNOWN: u32 = 999;

/// Byte-level BPE: a token is bytes, which need not be characters.
#[derive(Default)]
struct ByteLevel {
    decoded_ids: AtomicUsize,
}

const BYTE_PIECES: [&[u8]; 9] = [
    b"Hello",
    b" world",
    b"\n",
    "é".as_bytes(),
    b"a\xe2\x82",
    b"\xac b",
    b"\xf0\x9f",
    b"\x98\x80",
    "\u{fffd}".as_bytes(),
];

impl Detokenize for ByteLevel {
    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.decoded_ids.fetch_add(ids.len(), Ordering::Relaxed);
        let kept = ids
            .iter()
            .filter(|id| !(skip_special && self.is_special(**id)));
        let bytes: Vec<u8> = kept.flat_map(|&id| self.token_bytes(id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        match id {
            SPECIAL => b"<|end|>".to_vec(),
            0..PIECES => vec![id as u8],
            _ => BYTE_PIECES
                .get((id - PIECES) as usize)
                .map_or_else(Vec::new, |p| p.to_vec()),
        }
    }

    fn is_special(&self, id: u32) -> bool {
        id == SPECIAL
    }
}

/// SentencePiece with byte fallback, as in Llama 2 and Mistral: "▁" is a space, the first of which
/// is dropped, and a run of byte tokens is decoded together or not at all.
struct SentencePiece;

const TEXT_PIECES: [&str; 7] = ["▁Hello", "▁world", "▁", "a", "▁a", "é", "\n"];

impl Detokenize for SentencePiece {
    fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let kept = ids
            .iter()
            .copied()
            .filter(|&id| !(skip_special && self.is_special(id)));
        let (mut text, mut run) = (String::new(), Vec::new());
        let end_run = |run: &mut Vec<u8>, text: &mut String| {
            match std::str::from_utf8(run) {
                Ok(valid) => *text += valid,
                Err(_) => text.extend(run.iter().map(|_| '\u{fffd}')),
            }
            run.clear();
        };
        for id in kept.filter(|&id| id != UNKNOWN) {
            if id < PIECES {
                run.push(id as u8);
            } else {
                end_run(&mut run, &mut text);
                text += &String::from_utf8(self.token_bytes(id)).expect("pieces are text");
            }
        }
        end_run(&mut run, &mut text);
        text.strip_prefix(' ').map(str::to_owned).unwrap_or(text)
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        match id {
            SPECIAL => b"</s>".to_vec(),
            UNKNOWN => Vec::new(),
            0..PIECES => vec![id as u8],
            _ => TEXT_PIECES[(id - PIECES) as usize]
                .replace('▁', " ")
                .into_bytes(),
        }
    }

    fn is_special(&self, id: u32) -> bool {
        id == SPECIAL
    }
}

fn streamed(tokenizer: Arc<dyn Detokenize>, prompt: &[u32], ids: &[u32]) -> (Vec<String>, String) {
    let mut decoder = IncrementalDecoder::new(tokenizer, true, prompt);
    let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id)).collect();
    pieces.push(decoder.finish());
    let text = pieces.concat();
    (pieces, text)
}

fn bytes_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn a_character_is_returned_when_its_last_byte_has_arrived() {
    for tokenizer in [
        Arc::new(ByteLevel::default()) as Arc<dyn Detokenize>,
        Arc::new(SentencePiece),
    ] {
        let (pieces, _) = streamed(tokenizer, &[], &bytes_of("é€😀!"));
        assert_eq!(pieces, ["", "é", "", "", "€", "", "", "", "😀", "!", ""]);
    }
}

#[test]
fn the_tail_is_flushed_with_a_replacement_for_an_unfinished_character() {
    let (pieces, _) = streamed(
        Arc::new(ByteLevel::default()),
        &[],
        &[b'a'.into(), 0xe2, 0x82],
    );
    assert_eq!(pieces, ["a", "", "", "\u{fffd}"]);
}

#[test]
fn the_first_token_keeps_its_space_after_a_prompt_and_loses_it_without() {
    let (hello, world) = (PIECES, PIECES + 1);
    let text = |prompt: &[u32]| streamed(Arc::new(SentencePiece), prompt, &[world, hello]).1;
    assert_eq!(text(&[]), "world Hello");
    assert_eq!(text(&[hello]), " world Hello");
    assert_eq!(text(&[hello, SPECIAL]), " world Hello");
}

#[test]
fn a_token_without_text_does_not_cost_the_next_one_its_space() {
    let ids = [PIECES, UNKNOWN, PIECES + 1, UNKNOWN, UNKNOWN, PIECES + 4];
    assert_eq!(
        streamed(Arc::new(SentencePiece), &[], &ids).1,
        "Hello world a"
    );
}

#[test]
fn a_prompt_that_ends_in_byte_tokens_does_not_break_the_output() {
    // Any number of last tokens of the prompt begins within a character.
    for prompt in ["😀😀😀", "€€€€", "a😀€é"] {
        let (_, text) = streamed(Arc::new(SentencePiece), &bytes_of(prompt), &bytes_of("😀é"));
        assert_eq!(text, "😀é");
    }
}

#[test]
fn a_run_of_bytes_that_becomes_invalid_does_not_take_back_returned_text() {
    let ids = [&bytes_of("é")[..], &[0xff], &[PIECES + 1]].concat();
    let (pieces, _) = streamed(Arc::new(SentencePiece), &[], &ids);
    assert_eq!(pieces, ["", "é", "", "\u{fffd} world", ""]);
}

#[test]
fn each_token_of_an_endless_run_of_unfinished_characters_decodes_a_bounded_window() {
    const TOKENS: usize = 20_000;
    for id in [0x80, 0xe2, 0xff, PIECES + 4, PIECES + 6, UNKNOWN] {
        let tokenizer = Arc::new(ByteLevel::default());
        let ids = vec![id; TOKENS];
        let (_, text) = streamed(tokenizer.clone(), &[], &ids);
        assert!(tokenizer.decoded_ids.load(Ordering::Relaxed) < 128 * TOKENS);
        assert_eq!(text, tokenizer.decode(&ids, true));
    }
    let stuck = [vec![0xe2], vec![UNKNOWN; TOKENS], vec![b'a'.into()]].concat();
    let tokenizer = Arc::new(ByteLevel::default());
    assert_eq!(streamed(tokenizer.clone(), &[], &stuck).1, "\u{fffd}a");
    assert!(tokenizer.decoded_ids.load(Ordering::Relaxed) < 128 * TOKENS);
}

#[test]
fn tokens_are_reported_with_the_delta_that_holds_their_text() {
    let options = TextOptions {
        stop: vec!["lo w".into()],
        ..TextOptions::default()
    };
    let mut stream = TextStream::new(Arc::new(ByteLevel::default()), &[], &options);
    let delta = |text: &str, tokens| TextDelta {
        text: text.into(),
        tokens,
        stop: None,
    };
    assert_eq!(stream.push(0xc3), delta("", 0));
    assert_eq!(stream.offset(), 0);
    assert_eq!(stream.push(0xa9), delta("é", 2));
    assert_eq!(stream.offset(), 1);
    // "lo" may begin the stop string, so "Hello" is not completely returned yet.
    assert_eq!(stream.push(PIECES), delta("Hel", 0));
    assert_eq!(stream.offset(), 6);
    let stop = TextDelta {
        text: String::new(),
        tokens: 2,
        stop: Some("lo w".into()),
    };
    assert_eq!(stream.push(PIECES + 1), stop);
    assert_eq!(stream.push(PIECES), TextDelta::default());
    assert_eq!(stream.finish(), TextDelta::default());
    assert_eq!(stream.tokens(), 4);
}

#[test]
fn the_text_of_min_tokens_cannot_be_stopped() {
    let options = TextOptions {
        stop: vec!["Hello".into()],
        min_tokens: 1,
        ..TextOptions::default()
    };
    let mut stream = TextStream::new(Arc::new(ByteLevel::default()), &[], &options);
    assert_eq!(stream.push(PIECES).text, "Hello");
    assert_eq!(stream.push(PIECES).stop.as_deref(), Some("Hello"));
}

#[test]
fn special_tokens_are_text_only_when_asked_for() {
    let text = |skip_special| {
        let options = TextOptions {
            skip_special,
            ..TextOptions::default()
        };
        let mut stream = TextStream::new(Arc::new(ByteLevel::default()), &[], &options);
        let deltas = [stream.push(PIECES), stream.push(SPECIAL), stream.finish()];
        assert_eq!(deltas.iter().map(|delta| delta.tokens).sum::<usize>(), 2);
        deltas.map(|delta| delta.text).concat()
    };
    assert_eq!(text(true), "Hello");
    assert_eq!(text(false), "Hello<|end|>");
}

#[test]
fn a_part_of_a_character_is_shown_as_bytes() {
    let tokenizer = ByteLevel::default();
    assert_eq!(
        token_text(&tokenizer, PIECES + 1),
        (" world".into(), b" world".to_vec())
    );
    let (text, bytes) = token_text(&tokenizer, PIECES + 4);
    assert_eq!(
        (text.as_str(), bytes.as_slice()),
        (r"bytes:\x61\xe2\x82", &b"a\xe2\x82"[..])
    );
}

/// Byte-level tokens in any order: valid text, parts of characters, and invalid bytes.
fn byte_level_ids(most: usize) -> impl Strategy<Value = Vec<u32>> {
    let id = prop_oneof![
        6 => PIECES..PIECES + BYTE_PIECES.len() as u32,
        2 => prop::sample::select(vec![0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80, 0xff]),
        2 => 0u32..128,
        1 => Just(SPECIAL),
        1 => Just(UNKNOWN),
    ];
    prop::collection::vec(id, 0..most)
}

/// SentencePiece tokens whose runs of bytes are text.
fn sentence_piece_ids() -> impl Strategy<Value = Vec<u32>> {
    let ids = prop_oneof![
        4 => (PIECES..PIECES + TEXT_PIECES.len() as u32).prop_map(|id| vec![id]),
        3 => prop::sample::select(vec!["é", "€", "😀", "x", "\u{fffd}"]).prop_map(bytes_of),
        1 => Just(vec![SPECIAL]),
        1 => Just(vec![UNKNOWN]),
    ];
    prop::collection::vec(ids, 0..60).prop_map(|ids| ids.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn streamed_byte_level_text_equals_decoding_at_once(
        ids in byte_level_ids(60),
        prompt in "[a-zé😀]{0,8}",
    ) {
        let tokenizer = Arc::new(ByteLevel::default());
        let (_, text) = streamed(tokenizer.clone(), &bytes_of(&prompt), &ids);
        prop_assert_eq!(text, tokenizer.decode(&ids, true));
    }

    #[test]
    fn streamed_sentence_piece_text_equals_decoding_at_once(
        ids in sentence_piece_ids(),
        prompt in sentence_piece_ids(),
    ) {
        let (_, text) = streamed(Arc::new(SentencePiece), &[], &ids);
        prop_assert_eq!(text, SentencePiece.decode(&ids, true));

        let (_, text) = streamed(Arc::new(SentencePiece), &prompt, &ids);
        let whole = SentencePiece.decode(&[prompt.clone(), ids].concat(), true);
        prop_assert_eq!(SentencePiece.decode(&prompt, true) + &text, whole);
    }

    #[test]
    fn invalid_sentence_piece_bytes_affect_no_other_text(
        ids in prop::collection::vec(prop_oneof![
            2 => 0x80u32..0x100,
            1 => (PIECES..PIECES + 5).boxed(),
        ], 0..80),
    ) {
        let ascii = |text: &str| text.chars().filter(char::is_ascii).collect::<String>();
        let (_, text) = streamed(Arc::new(SentencePiece), &[], &ids);
        prop_assert_eq!(ascii(&text), ascii(&SentencePiece.decode(&ids, true)));
    }

    #[test]
    fn stop_strings_cut_the_stream_as_they_cut_the_whole_text(
        ids in byte_level_ids(30),
        stops in prop::collection::vec(
            prop::sample::select(vec!["lo w", "Hello", "ld\n", "é", "😀", "€ b", "dH", "\n\n"])
                .prop_map(str::to_owned),
            1..3,
        ),
        include: bool,
    ) {
        let tokenizer = Arc::new(ByteLevel::default());
        let whole = tokenizer.decode(&ids, true);
        let options =
            TextOptions { stop: stops.clone(), include_stop: include, ..TextOptions::default() };
        let mut stream = TextStream::new(tokenizer.clone(), &[], &options);
        let mut deltas = Vec::new();
        let mut reported = 0;
        let mut given = String::new();
        for &id in &ids {
            let delta = stream.push(id);
            given += &delta.text;
            reported += delta.tokens;
            if delta.stop.is_none() && deltas.iter().all(|d: &TextDelta| d.stop.is_none()) {
                // All text of the reported tokens has been returned.
                let spelled = tokenizer.decode(&ids[..reported], true);
                let finished = spelled.trim_end_matches(char::REPLACEMENT_CHARACTER);
                prop_assert!(given.starts_with(finished));
            }
            deltas.push(delta);
        }
        deltas.push(stream.finish());
        given += &deltas[deltas.len() - 1].text;

        let found = deltas.iter().find_map(|delta| delta.stop.clone());
        let first_end = stops.iter().filter_map(|s| whole.find(s.as_str()).map(|at| at + s.len()));
        match (first_end.min(), &found) {
            (None, None) => prop_assert_eq!(given, whole),
            (Some(end), Some(stop)) => {
                let cut = if include { end } else { end - stop.len() };
                prop_assert_eq!(given, &whole[..cut]);
            }
            other => prop_assert!(false, "one found a stop string, one did not: {:?}", other),
        }
        let reported: usize = deltas.iter().map(|delta| delta.tokens).sum();
        prop_assert_eq!(reported, stream.tokens());
    }
}
