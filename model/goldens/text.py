"""Tiny tokenizers and chat templates, and what tokenizers and transformers make with them."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import generate_merges

HERE = Path(__file__).parent

CORPUS = [
    "The hearth is warm, and the cat sleeps beside it all evening.",
    "A server answers many requests at once; each token costs a little time.",
    "What is 3 + 4? It is 7. What is 12 + 30? It is 42.",
    "def answer(question):\n    return {'text': question.strip(), 'ok': True}\n",
    "Der Ofen ist heiß, und über dem Feuer hängt ein Kessel. Où est le café ?",
    '{"name": "Ada", "city": "Oslo", "age": 36}',
] * 4

TEXTS = [
    "",
    " ",
    "a",
    "The hearth is warm.",
    " leading and trailing ",
    "two  spaces   three",
    "line\nbreak\r\n\ttab\n\n\n",
    "What is 3 + 4? 1234567",
    "naïve café, heiß, Où",
    "日本語のテキスト",
    "emoji 👩‍👩‍👧‍👦 and 🇳🇴 flags",
    "mixed\u00a0no-break\u200bzero",
    "I'm sure they'll we'd don't IT'S",
    "{'text': question.strip()}",
    "<|im_start|>user\nhi<|im_end|>",
    "<s>begin</s> <unk>",
    "▁mark and Ġ mark",
    "\u0000\u0001 control \u007f",
    "HTTPServer camelCase's ÉCOLE ÀsI'D McDonald'S ǅurǅ 3rd1234a 12.345,6",
    "a/b//c/\n\n  x == y;\r\n\t\treturn  -1  ",
    "नमस्ते दुनिया ١٢٣ Ⅷ ½ it’s",
    "x" * 50,
]
# Pieces of characters, special tokens in the middle, unknown order.
ID_LISTS = [[], [300], [5, 9, 200], [259, 258, 257, 40, 41], [2, 1, 0, 1], [0, 1, 2, 3, 4, 290]]


def byte_level():
    """Byte-level BPE in the manner of Qwen and Llama 3: a splitting pattern with lookahead."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Not special: kept when special tokens are skipped.
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer, {
        "eos_token": "<|im_end|>",
        "pad_token": {"__type": "AddedToken", "content": "<|endoftext|>", "special": True},
        "bos_token": None,
    }


DIGITS_AND_GPT2 = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def cut(pre_tokenizer):
    """Byte-level BPE whose merges know nothing of `pre_tokenizer`, so that wherever it cuts shows."""
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = whole
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    # Every text twice, for merges that end in its middle.
    tokenizer.train_from_iterator(CORPUS + TEXTS * 2, trainer)
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer, {"eos_token": "<|im_end|>", "bos_token": None}


def pieces():
    """SentencePiece's own BPE without a space before the text, as Gemma's, and what it makes."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS + [text for text in TEXTS if "\0" not in text]),
        model_writer=model,
        model_type="bpe",
        vocab_size=640,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_whitespace=False,
        split_digits=True,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def converted(processor):
    """Returns the tokenizer.json that transformers converts these pieces to, as for Gemma."""
    ids = range(processor.vocab_size())
    vocabulary = {processor.id_to_piece(i): i for i in ids}
    scores = {processor.id_to_piece(i): processor.get_score(i) for i in ids}
    model = models.BPE(
        vocabulary, generate_merges(vocabulary, scores), unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    special = [processor.id_to_piece(i) for i in ids if processor.is_control(i) or processor.is_unknown(i)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 2)]
    )
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def make_pieces():
    processor = pieces()
    path = HERE / "tokenizers" / "pieces"
    path.mkdir(parents=True, exist_ok=True)
    tokenizer, config = converted(processor)
    tokenizer.save(str(path / "tokenizer.json"), pretty=False)
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    # In a text of a user SentencePiece sees no special tokens, nor NUL.
    texts = [text for text in TEXTS if "<s>" not in text and "\0" not in text]
    encode = [
        {"text": text, "ids": processor.encode(text), "ids_with_special": [2, *processor.encode(text)]}
        for text in texts
    ]
    cases = {"vocab_size": processor.vocab_size(), "encode": encode, "decode": []}
    (path / "cases.json").write_text(json.dumps(cases) + "\n")
    print(f"tokenizers/pieces: {len(encode)} texts")


def sentencepiece(metaspace):
    """BPE with byte fallback as converted from SentencePiece: Llama 2 (a normalizer that marks
    spaces) or Mistral's later files (the Metaspace pre-tokenizer)."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    strip = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), *strip])
    trainer = trainers.BpeTrainer(
        vocab_size=150, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    # Learned from words, so that merges do not run across spaces.
    words = ["▁" + word for line in CORPUS for word in line.split()]
    tokenizer.normalizer, normalizer = None, tokenizer.normalizer
    tokenizer.pre_tokenizer, pre_tokenizer = None, tokenizer.pre_tokenizer
    tokenizer.train_from_iterator(words, trainer)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer

    # The 256 bytes come after the special tokens, as in the originals.
    file = json.loads(tokenizer.to_str())
    learned = sorted(file["model"]["vocab"].items(), key=lambda item: item[1])
    names = [name for name, _ in learned]
    names[3:3] = [f"<0x{byte:02X}>" for byte in range(256)]
    file["model"]["vocab"] = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer, {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}


def make_tokenizers():
    made = {
        "byte-level": byte_level(),
        "sentencepiece": sentencepiece(metaspace=False),
        "metaspace": sentencepiece(metaspace=True),
        "gpt2": cut(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)),
        "digits": cut(DIGITS_AND_GPT2),
        "o200k": cut(
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(O200K), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
        ),
    }
    for name, (tokenizer, config) in made.items():
        path = HERE / "tokenizers" / name
        path.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(path / "tokenizer.json"), pretty=False)
        (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        encode = [
            {
                "text": text,
                "ids": tokenizer.encode(text, add_special_tokens=False).ids,
                "ids_with_special": tokenizer.encode(text).ids,
            }
            for text in TEXTS
        ]
        lists = [case["ids_with_special"] for case in encode] + ID_LISTS
        decode = [
            {
                "ids": ids,
                "text": tokenizer.decode(ids, skip_special_tokens=False),
                "text_without_special": tokenizer.decode(ids, skip_special_tokens=True),
            }
            for ids in lists
        ]
        cases = {"vocab_size": tokenizer.get_vocab_size(), "encode": encode, "decode": decode}
        (path / "cases.json").write_text(json.dumps(cases) + "\n")
        print(f"tokenizers/{name}: {len(encode)} texts, {len(decode)} id lists")


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Today's weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "e.g. <Zürich> & co."},
                "days": {"type": "integer", "minimum": 1, "default": 1},
                "scale": {"type": "number", "default": 0.5},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {}}}


def message(role, content, **fields):
    return {"role": role, "content": content, **fields}


CALL = {"type": "function", "id": "c1", "function": {"name": "clock", "arguments": {"utc": True}}}
CONVERSATIONS = {
    "one": [message("user", "Hello!")],
    "system": [message("system", " Be brief. "), message("user", "Who are you?\n")],
    "turns": [
        message("user", "What is 3 + 4?"),
        message("assistant", "7"),
        message("user", "And <b>5 & 6</b>? \"quoted\" 日本"),
    ],
    "thought": [
        message("user", "Why?"),
        message("assistant", "<think>\nLet me see.\n</think>\n\nBecause."),
        message("user", "Really?"),
        message("assistant", "Yes.", reasoning="I am sure."),
    ],
    "tool": [
        message("system", "Use tools."),
        message("user", "What time is it?"),
        message("assistant", None, tool_calls=[CALL]),
        message("tool", "12:00", tool_call_id="c1"),
        message("tool", "second", tool_call_id="c2"),
    ],
    "thoughtful tool": [
        message("developer", "Be quick."),
        message("user", "What time is it?"),
        message("assistant", None, tool_calls=[CALL], thinking="I should look."),
        message("tool", "12:00", tool_call_id="c1"),
        message("assistant", "Noon."),
        message("user", "And now?"),
        message("assistant", None, tool_calls=[CALL], thinking="I should look again."),
        message("tool", "12:01", tool_call_id="c2"),
    ],
    "parts": [message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
    "bad order": [message("assistant", "first"), message("assistant", "second")],
    "bad role": [message("user", "x"), message("narrator", "y")],
}
VARIANTS = [
    dict(add_generation_prompt=True),
    dict(add_generation_prompt=False),
    dict(add_generation_prompt=True, tools=[WEATHER, CLOCK]),
    dict(
        add_generation_prompt=True,
        enable_thinking=False,
        date_string="2 May 2026",
        extra=[1, "a"],
        reasoning_effort="high",
        controls={"length": "long"},
        thinking=True,
    ),
]


def make_chat():
    tokenizer, _ = sentencepiece(metaspace=False)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    cases = []
    for path in sorted((HERE / "chat").glob("*.jinja")):
        for name, messages in CONVERSATIONS.items():
            for variant in VARIANTS:
                case = {"template": path.name, "conversation": name, **variant}
                try:
                    case["text"] = fast.apply_chat_template(
                        messages, chat_template=path.read_text(), tokenize=False, **variant
                    )
                except Exception as error:
                    case["error"] = type(error).__name__
                    case["message"] = str(error)
                cases.append(case)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (HERE / "chat" / "cases.json").write_text(f"[\n{lines}\n]\n")
    conversations = json.dumps(CONVERSATIONS, ensure_ascii=False, indent=1)
    (HERE / "chat" / "conversations.json").write_text(conversations + "\n")
    failed = sum("error" in case for case in cases)
    print(f"chat: {len(cases)} cases, {failed} of them refused")


def make():
    make_tokenizers()
    make_pieces()
    make_chat()
