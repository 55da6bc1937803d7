use hearth_engine::output::Detokenize;

use super::*;
use crate::served::ChatPrompt;

const EOS: u32 = 256;
const VOCAB: usize = 257 + MARKS.len();

/// Bytes, an end, and the marks as special tokens.
#[derive(Debug)]
struct Codec;

impl Detokenize for Codec {
    fn decode(&self, ids: &[u32], _: bool) -> String {
        let bytes = ids.iter().flat_map(|id| self.token_bytes(*id)).collect();
        String::from_utf8(bytes).unwrap()
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        match id {
            ..EOS => vec![id as u8],
            EOS => b"</s>".to_vec(),
            _ => MARKS[id as usize - 257].as_bytes().to_vec(),
        }
    }

    fn is_special(&self, id: u32) -> bool {
        id >= EOS
    }
}

impl TextCodec for Codec {
    fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, String> {
        let found = MARKS.iter().enumerate();
        let found =
            found.filter_map(|(i, mark)| Some((text.find(mark)?, 257 + i as u32, mark.len())));
        Ok(match found.min() {
            None => text.bytes().map(u32::from).collect(),
            Some((at, token, length)) => {
                let mut all: Vec<u32> = text[..at].bytes().map(u32::from).collect();
                all.push(token);
                all.extend(self.encode(&text[at + length..], false)?);
                all
            }
        })
    }

    fn encode_literally(&self, text: &str, _: bool) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn max_token_bytes(&self) -> usize {
        16
    }

    fn can_chat(&self) -> bool {
        true
    }

    fn render_chat(&self, _: &ChatPrompt<'_>) -> Result<String, String> {
        Err(String::new())
    }
}

/// Allows one text and then the end.
#[derive(Debug)]
struct Exactly(&'static str);

struct Left(Vec<u32>);

impl AnswerGrammar for Exactly {
    fn answer(&self) -> Box<dyn Answer> {
        Box::new(Left(Codec.encode(self.0, false).unwrap()))
    }
}

impl Answer for Left {
    fn shortest(&mut self) -> Option<usize> {
        Some(self.0.len())
    }
}

impl Constraint for Left {
    fn mask(&mut self) -> Result<TokenMask, String> {
        let mut mask = vec![0; VOCAB.div_ceil(32)];
        allow(&mut mask, self.0.first().copied().unwrap_or(EOS));
        Ok(mask.into())
    }

    fn consume(&mut self, token: u32) -> Result<(), String> {
        match self.0.first() {
            None if token == EOS => Ok(()),
            Some(next) if *next == token => {
                self.0.remove(0);
                Ok(())
            }
            _ => Err(format!("{token}")),
        }
    }

    fn forced(&mut self, limit: usize) -> Vec<u32> {
        self.0.iter().copied().take(limit).collect()
    }

    fn is_complete(&self) -> bool {
        self.0.is_empty()
    }

    fn canceller(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| ())
    }
}

fn grammar(at: At, calls: bool) -> AfterChannels<Exactly> {
    let marks = ChannelMarks::new(&Codec, VOCAB, &[EOS]).unwrap();
    AfterChannels {
        grammar: Exactly(if calls {
            "commentary to=functions.f<|message|>{}"
        } else {
            "{}"
        }),
        marks: Arc::new(marks),
        at,
        calls,
    }
}

/// The bytes of `text` that may be written, with each mask asked for.
fn taken(grammar: &AfterChannels<Exactly>, text: &str) -> String {
    let mut state = grammar.start();
    let tokens = Codec.encode(text, false).unwrap();
    let taken = tokens.iter().take_while(|token| {
        let mask = state.mask().unwrap();
        allows(&mask, **token) && state.consume(**token).is_ok()
    });
    let taken: Vec<u32> = taken.copied().collect();
    Codec.decode(&taken, false)
}

#[test]
fn the_answer_alone_follows_the_grammar() {
    let thought = "<|channel|>analysis<|message|>Is {\"a\" <x> it?<|end|><|start|>assistant";
    let json = "<|channel|>final<|message|>{}</s>";
    let call = "<|channel|>commentary to=functions.f<|message|>{}</s>";
    for (calls, answer, other) in [(false, json, call), (true, call, json)] {
        let grammar = grammar(At::Header, calls);
        for good in [
            answer.to_owned(),
            format!("{thought}{answer}"),
            format!("{thought}{thought}{answer}"),
        ] {
            let mut whole = good.clone();
            whole.truncate(good.len() - "</s>".len());
            assert_eq!(taken(&grammar, &whole), whole);
        }
        assert_eq!(taken(&grammar, other), "<|channel|>");
        assert_eq!(taken(&grammar, "{}"), "");
        let within = "<|channel|>analysis<|message|>so<|channel|>";
        assert_eq!(taken(&grammar, within), "<|channel|>analysis<|message|>so");
    }
}

#[test]
fn a_prompt_that_ends_in_a_message_is_gone_on_with() {
    let end = "<|end|><|start|>assistant<|channel|>";
    let given = format!(" so{end}final<|message|>{{}}");
    assert_eq!(taken(&grammar(At::Analysis, false), &given), given);
    assert_eq!(taken(&grammar(At::Final, false), "{}"), "{}");
    let given = format!("It{end}commentary to=functions.f<|message|>{{}}");
    assert_eq!(taken(&grammar(At::Final, true), &given), given);
}

#[test]
fn an_output_with_few_tokens_left_is_steered_to_its_answer() {
    // With the least, there is no room for reasoning and the beginning of the answer after it.
    for (calls, least) in [(false, 35), (true, 55)] {
        for budget in [least, 70, 200] {
            let mut state = grammar(At::Header, calls).start();
            let mut text = Vec::new();
            for left in (1..=budget).rev() {
                if state.is_complete() {
                    break;
                }
                let mask = state.mask_within(left).unwrap();
                // Reasoning is preferred, and goes on for ever.
                let wished = [u32::from(b'a'), u32::from(b'n')];
                let all = wished.into_iter().chain(0..VOCAB as u32);
                let token = all.into_iter().find(|token| allows(&mask, *token)).unwrap();
                state.consume(token).unwrap();
                text.push(token);
            }
            let text = Codec.decode(&text, false);
            assert!(state.is_complete(), "{budget}: {text}");
            assert_eq!(
                text.contains("analysis"),
                budget > least,
                "{budget}: {text}"
            );
        }
    }
}

#[test]
fn texts_that_are_no_special_tokens_are_no_marks() {
    #[derive(Debug)]
    struct Plain;
    impl Detokenize for Plain {
        fn decode(&self, _: &[u32], _: bool) -> String {
            String::new()
        }
        fn token_bytes(&self, id: u32) -> Vec<u8> {
            vec![id as u8]
        }
        fn is_special(&self, _: u32) -> bool {
            false
        }
    }
    impl TextCodec for Plain {
        fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, String> {
            Ok(text.bytes().map(u32::from).collect())
        }
        fn encode_literally(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
            self.encode(text, add_special)
        }
        fn max_token_bytes(&self) -> usize {
            1
        }
        fn can_chat(&self) -> bool {
            true
        }
        fn render_chat(&self, _: &ChatPrompt<'_>) -> Result<String, String> {
            Err(String::new())
        }
    }
    assert!(ChannelMarks::new(&Plain, 256, &[]).is_none());
}
