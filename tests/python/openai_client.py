"""OpenAI's Python client against a running Hearth server, end to end.

    python openai_client.py http://127.0.0.1:8000/v1 MODEL

The served model is random, its tokens are bytes, its context 2048 tokens.
"""

import asyncio
import json
import sys
import time
from typing import Literal

import openai
import pydantic
from pydantic import BaseModel
from running import raises, run

BASE_URL, MODEL = sys.argv[1:3]
client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=60)

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
PROMPT = "Once upon a time"
# The model is random: without this most of its bytes would be halves of characters.
PRINTABLE = {str(token): -100 for token in range(256) if not 32 <= token < 127}


def chat(**options):
    options = {"messages": MESSAGES, "temperature": 0, "max_tokens": 24, **options}
    return client.chat.completions.create(model=MODEL, logit_bias=PRINTABLE, **options)


def complete(**options):
    options = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24, **options}
    return client.completions.create(model=MODEL, logit_bias=PRINTABLE, **options)


def test_models():
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL], models
    model = client.models.retrieve(MODEL)
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "hearth"), model


def test_chat():
    answer = chat()
    assert answer.object == "chat.completion" and answer.model == MODEL, answer
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.finish_reason == "length", choice
    assert len(choice.message.content) == 24, choice
    usage = answer.usage
    assert usage.completion_tokens == 24, usage
    assert usage.total_tokens == usage.prompt_tokens + 24, usage
    newer = chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=24)
    assert newer.choices[0].message.content == choice.message.content, newer
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
    text = [{"role": "user", "content": "Hello!"}]
    as_parts, as_text = chat(messages=parts), chat(messages=text)
    assert as_parts.choices[0].message.content == as_text.choices[0].message.content


def test_chat_streamed():
    whole = chat().choices[0].message.content
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole, (text, whole)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == "length" and not any(reasons[:-1]), reasons
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24, chunks[-1]
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1
    assert len(chunks) > 6, "it came in one piece"
    assert all(c.usage is None for c in chat(stream=True)), "usage that nobody asked for"


def test_completions():
    answer = complete()
    assert answer.object == "text_completion" and answer.model == MODEL, answer
    (choice,) = answer.choices
    assert len(choice.text) == 24 and choice.finish_reason == "length", choice
    assert answer.usage.prompt_tokens == len(PROMPT), answer.usage
    assert complete(max_tokens=1).usage.completion_tokens == 1
    assert complete(max_tokens=openai.NOT_GIVEN).usage.completion_tokens == 16
    echoed = complete(echo=True).choices[0].text
    assert echoed == PROMPT + choice.text, echoed


def test_completions_streamed():
    whole = complete().choices[0].text
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole
    assert chunks[-1].usage.completion_tokens == 24, chunks[-1]
    assert chunks[-2].choices[0].finish_reason == "length", chunks[-2]
    echoed = "".join(c.choices[0].text for c in complete(stream=True, echo=True) if c.choices)
    assert echoed == PROMPT + whole, echoed


def test_prompts_as_lists_and_token_ids():
    one = complete().choices[0].text
    other = complete(prompt="A").choices[0].text
    answer = complete(prompt=[PROMPT, "A"])
    assert [c.text for c in answer.choices] == [one, other], answer
    assert [c.index for c in answer.choices] == [0, 1], answer
    assert answer.usage.prompt_tokens == len(PROMPT) + 1, answer.usage
    ids = list(PROMPT.encode())
    assert complete(prompt=ids).choices[0].text == one
    answer = complete(prompt=[ids, [65]])
    assert [c.text for c in answer.choices] == [one, other], answer


def test_three_choices():
    answer = chat(n=3, temperature=1, seed=5)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2], answer
    assert len(set(texts)) == 3, texts
    assert answer.usage.completion_tokens == 72, answer.usage
    streamed = ["", "", ""]
    for chunk in chat(n=3, temperature=1, seed=5, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts, (streamed, texts)
    answer = complete(n=3, temperature=1, seed=5)
    assert len({choice.text for choice in answer.choices}) == 3, answer
    answer = complete(n=2, prompt=["A", "B"])
    texts = [choice.text for choice in answer.choices]
    assert len(texts) == 4 and texts[0] == texts[1] and texts[2] == texts[3], texts


def text_of_stream(chunks):
    text = ""
    for chunk in chunks:
        for choice in chunk.choices:
            text += (choice.delta.content or "") if hasattr(choice, "delta") else choice.text
            yield text, choice.finish_reason


def check_stop(whole, stop, answer, stream):
    stops = [stop] if isinstance(stop, str) else stop
    expected = whole[: min(whole.find(s) for s in stops if s in whole)]
    choice = answer.choices[0]
    text = choice.message.content if hasattr(choice, "message") else choice.text
    assert (text, choice.finish_reason) == (expected, "stop"), (text, expected, choice)
    seen = list(text_of_stream(stream))
    assert seen[-1] == (expected, "stop"), (seen[-1], expected)
    # Nothing of a stop string is ever shown and taken back.
    assert all(expected.startswith(text) for text, _ in seen), seen


def test_stop_strings_never_leak():
    # Sampled, so that the text does not repeat itself.
    for create in (chat, complete):
        options = dict(temperature=1, seed=11, max_tokens=40)
        choice = create(**options).choices[0]
        whole = choice.message.content if create is chat else choice.text
        for stop in (whole[10], whole[7:10], whole[5:25], ["~~~~", whole[12:15], whole[20:24]]):
            if (stop if isinstance(stop, str) else stop[1]) == "":
                continue
            answer = create(stop=stop, **options)
            check_stop(whole, stop, answer, create(stop=stop, stream=True, **options))
        # One that begins like the text and goes on otherwise holds nothing back for good.
        other = "|" if whole[13] != "|" else "}"
        never = whole[10:13] + other * 3
        assert never not in whole
        choice = create(stop=[never], **options).choices[0]
        assert (choice.message.content if create is chat else choice.text) == whole
        text, reason = list(text_of_stream(create(stop=never, stream=True, **options)))[-1]
        assert (text, reason) == (whole, "length"), (text, whole)


def test_chat_logprobs():
    answer = chat(logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == 24, content
    assert "".join(t.token for t in content) == answer.choices[0].message.content
    for token in content:
        assert token.logprob <= 0 and bytes(token.bytes).decode() == token.token, token
        assert len(token.top_logprobs) == 3, token
        likely = [t.logprob for t in token.top_logprobs]
        assert likely == sorted(likely, reverse=True), likely
    assert chat().choices[0].logprobs is None
    assert chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    streamed = []
    for chunk in chat(logprobs=True, top_logprobs=3, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [t.token for t in streamed] == [t.token for t in content]


def test_completion_logprobs():
    answer = complete(logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert "".join(logprobs.tokens) == answer.choices[0].text, logprobs
    assert logprobs.text_offset == list(range(24)), logprobs.text_offset
    assert len(logprobs.token_logprobs) == 24 and max(logprobs.token_logprobs) <= 0
    assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs))
    # The score of a given text: nothing generated, everything measured.
    scored = client.completions.create(model=MODEL, prompt="abc", echo=True, logprobs=0, max_tokens=0)
    logprobs = scored.choices[0].logprobs
    assert logprobs.tokens == ["a", "b", "c"] and logprobs.token_logprobs[0] is None, logprobs
    assert all(value < 0 for value in logprobs.token_logprobs[1:]), logprobs


def test_seed():
    def text(seed):
        return complete(temperature=1, seed=seed).choices[0].text

    assert text(7) == text(7)
    assert text(7) != text(8)
    first, second = (chat(temperature=1, seed=7).choices[0].message.content for _ in range(2))
    assert first == second
    fingerprints = {chat(seed=7).system_fingerprint, complete(seed=7).system_fingerprint}
    assert len(fingerprints) == 1 and None not in fingerprints, fingerprints


def test_cached_tokens():
    messages = [{"role": "user", "content": "What is said once need not be read twice. " * 5}]
    first, second = chat(messages=messages), chat(messages=messages)
    assert second.choices[0].message.content == first.choices[0].message.content
    cached = second.usage.prompt_tokens_details.cached_tokens
    # The last token is always computed: its logits are wanted.
    assert cached == second.usage.prompt_tokens - 1, second.usage
    assert first.usage.prompt_tokens_details.cached_tokens < cached, first.usage
    assert complete(prompt="Twice " * 40).usage.prompt_tokens_details.cached_tokens == 0
    assert complete(prompt="Twice " * 40).usage.prompt_tokens_details.cached_tokens == 239
    salted = chat(messages=messages, extra_body={"cache_salt": "mine"})
    assert salted.usage.prompt_tokens_details.cached_tokens == 0, salted.usage


def test_sampling_options():
    greedy = complete().choices[0].text
    # One candidate only: the seed does not matter.
    for options in ({"top_k": 1}, {"min_p": 1.0}):
        assert complete(temperature=2, extra_body=options).choices[0].text == greedy, options
    assert complete(temperature=2, top_p=1e-6).choices[0].text == greedy
    penalised = complete(frequency_penalty=2, presence_penalty=2, max_tokens=60).choices[0].text
    assert len(set(penalised)) > len(set(complete(max_tokens=60).choices[0].text))
    stop = complete(extra_body={"stop_token_ids": [ord(greedy[3])]}).choices[0]
    assert stop.finish_reason == "stop" and stop.text == greedy[: greedy.index(greedy[3])], stop


def test_errors():
    error = raises(
        openai.NotFoundError,
        lambda: client.chat.completions.create(model="gpt-4", messages=MESSAGES),
    )
    assert (error.status_code, error.code, error.param) == (404, "model_not_found", "model"), error
    raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-4"))
    raises(openai.NotFoundError, lambda: client.moderations.create(model=MODEL, input="a"))
    for param, value, bound in (
        ("temperature", 3, "between 0 and 2"),
        ("top_p", 0, "above 0 and at most 1"),
        ("n", 0, "between 1 and 128"),
        ("max_tokens", -1, "at least 1"),
        ("presence_penalty", 9, "between -2 and 2"),
        ("stop", [""], "between 1 and"),
        ("messages", [], "at least 1 message"),
    ):
        error = raises(openai.BadRequestError, lambda: chat(**{param: value}))
        assert error.param.startswith(param) and error.type == "invalid_request_error", error
        assert param in error.message and bound in error.message, error.message
    error = raises(openai.BadRequestError, lambda: complete(prompt="a" * 5000))
    assert (error.code, error.param) == ("context_length_exceeded", "prompt"), error
    error = raises(openai.BadRequestError, lambda: complete(extra_body={"tempreature": 1}))
    assert (error.code, error.param) == ("unknown_parameter", "tempreature"), error
    error = raises(openai.BadRequestError, lambda: complete(prompt=[1, 2, 256]))
    assert error.param == "prompt", error
    # Errors come before the stream, not in it.
    raises(openai.BadRequestError, lambda: chat(stream=True, temperature=-1))
    nobody = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0)
    raises(openai.APIConnectionError, lambda: nobody.models.list())


def test_embeddings():
    texts = ["Once upon a time", "there was", "Once upon a time"]
    # The client asks for base64 and decodes it, unless told otherwise.
    decoded = client.embeddings.create(model=MODEL, input=texts)
    floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    first, other, again = (item.embedding for item in decoded.data)
    assert first == again != other, decoded
    for ours, theirs in zip(decoded.data, floats.data):
        assert max(abs(a - b) for a, b in zip(ours.embedding, theirs.embedding)) < 1e-6, floats
        assert abs(sum(x * x for x in theirs.embedding) - 1) < 1e-5, theirs
    assert decoded.usage.prompt_tokens == decoded.usage.total_tokens > 0, decoded.usage
    # A neighbour in the batch changes nothing.
    alone = client.embeddings.create(model=MODEL, input=texts[1], dimensions=4)
    cut = client.embeddings.create(model=MODEL, input=texts, dimensions=4).data[1]
    assert alone.data[0].embedding == cut.embedding and len(cut.embedding) == 4, alone


def test_a_stream_may_be_left():
    stream = chat(stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
    for number, _ in enumerate(stream):
        if number == 3:
            break
    stream.close()
    assert chat().usage.completion_tokens == 24


SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["city", "days"],
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "d", "parameters": SCHEMA, "strict": True},
    }
    for name in ("weather", "news")
]


def called(call):
    """The name of a call that follows its schema."""
    assert call.type == "function" and call.id.startswith("call_"), call
    arguments = json.loads(call.function.arguments)
    assert sorted(arguments) == ["city", "days"], arguments
    assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9, arguments
    return call.function.name


def test_tools():
    # The model knows nothing of tools: the grammar has it call them.
    must = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    must = {**must, "max_tokens": 200}
    for seed in range(8):
        choice = chat(**must, temperature=1, seed=seed).choices[0]
        (call,) = choice.message.tool_calls
        assert called(call) in ("weather", "news"), call
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None), choice
    named = {"type": "function", "function": {"name": "news"}}
    named = chat(tools=TOOLS, tool_choice=named, max_tokens=200).choices[0].message
    assert [called(call) for call in named.tool_calls] == ["news"], named
    chunks = list(chat(**must, stream=True, extra_body={"jump_forward": False}))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].id and deltas[0].function.name, deltas
    assert len(deltas) > 3 and not any(call.id for call in deltas[1:]), deltas
    streamed = "".join(call.function.arguments for call in deltas)
    (call,) = chat(**must).choices[0].message.tool_calls
    assert streamed == call.function.arguments, (streamed, call)
    assert chunks[-1].choices[0].finish_reason == "tool_calls", chunks[-1]
    # A whole turn: the call, its answer, and what the model says to it.
    messages = MESSAGES + [named.model_dump(exclude_none=True)]
    messages.append({"role": "tool", "tool_call_id": named.tool_calls[0].id, "content": "Rain."})
    answer = chat(messages=messages, tools=TOOLS).choices[0]
    assert answer.finish_reason == "length" and answer.message.tool_calls is None, answer
    without = chat(messages=MESSAGES).usage.prompt_tokens
    assert chat(messages=messages).usage.prompt_tokens > without


def test_tools_by_the_streaming_helper():
    class Weather(pydantic.BaseModel):
        city: Literal["Oslo", "Rome"]
        days: Literal[1, 2, 3]

    tool = openai.pydantic_function_tool(Weather)
    options = {
        "model": MODEL, "messages": MESSAGES, "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": False, "max_tokens": 200, "temperature": 0,
    }
    parsed = client.chat.completions.parse(**options).choices[0].message.tool_calls[0]
    assert isinstance(parsed.function.parsed_arguments, Weather), parsed
    with client.chat.completions.stream(**options) as stream:
        kinds = [event.type for event in stream]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert call.function.parsed_arguments == parsed.function.parsed_arguments, call
    assert "tool_calls.function.arguments.delta" in kinds, kinds
    assert "tool_calls.function.arguments.done" in kinds, kinds


def test_tools_that_cannot_be():
    for options, words in (
        ({"tool_choice": "required"}, "without `tools`"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "`response_format`"),
        ({"tools": TOOLS, "tool_choice": "all"}, "tool_choice"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ):
        error = raises(openai.BadRequestError, lambda: chat(**options))
        assert words in error.message, (words, error)


def test_thirty_two_at_once():
    async def all_at_once():
        async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0) as several:

            async def whole(seed):
                answer = await several.chat.completions.create(
                    model=MODEL, messages=MESSAGES, max_tokens=24, seed=seed, temperature=1,
                    logit_bias=PRINTABLE,
                )
                return answer.choices[0].message.content

            async def streamed(seed):
                text = ""
                stream = await several.chat.completions.create(
                    model=MODEL, messages=MESSAGES, max_tokens=24, seed=seed, temperature=1,
                    logit_bias=PRINTABLE, stream=True,
                )
                async for chunk in stream:
                    text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                return text

            seeds = range(16)
            return await asyncio.gather(*map(whole, seeds), *map(streamed, seeds))

    texts = asyncio.run(all_at_once())
    assert texts[:16] == texts[16:], "streamed and whole differ"
    assert len(set(texts)) == 16, texts
    alone = [chat(temperature=1, seed=seed).choices[0].message.content for seed in (0, 15)]
    assert alone == [texts[0], texts[15]], "alone and in company differ"


def test_seed_comes_back():
    assert chat(seed=7).seed == 7
    assert complete(seed=-7).seed == -7
    assert not hasattr(chat(), "seed")
    assert all(chunk.seed == 7 for chunk in chat(seed=7, stream=True))


def test_responses():
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 8}
    first = client.responses.create(input="Hello!", instructions="Be brief.", **asked)
    assert first.status == "incomplete" and first.incomplete_details.reason == "max_output_tokens"
    assert first.output_text and first.usage.output_tokens == 8, first
    same = client.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=8,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
    )
    assert first.output_text == same.choices[0].message.content
    kept = client.responses.retrieve(first.id)
    assert kept.to_dict() == first.to_dict(), kept
    second = client.responses.create(input="Go on.", previous_response_id=first.id, **asked)
    assert second.previous_response_id == first.id and second.instructions is None
    assert client.responses.delete(first.id) is None
    raises(openai.NotFoundError, lambda: client.responses.retrieve(first.id))
    again = lambda: client.responses.create(input="x", previous_response_id=first.id, **asked)
    raises(openai.NotFoundError, again)


def test_responses_stream():
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 16, "input": "Hello!"}
    whole = client.responses.create(**asked, store=False)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(whole.id))
    with client.responses.stream(**asked) as stream:
        kinds, text = [], ""
        for event in stream:
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        # `get_final_response` knows no end but `response.completed`.
        final = event.response
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added",
    ], kinds
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.incomplete",
    ], kinds
    assert text == final.output_text == whole.output_text, (text, final, whole)
    assert client.responses.retrieve(final.id).output_text == text
    numbers = [event.sequence_number for event in client.responses.create(**asked, stream=True)]
    assert numbers == list(range(len(numbers))), numbers


def test_responses_parse():
    class Answer(BaseModel):
        sure: bool

    parsed = client.responses.parse(
        model=MODEL, input="Hello!", temperature=0, max_output_tokens=64, text_format=Answer
    )
    assert isinstance(parsed.output_parsed, Answer), parsed


def test_responses_background():
    asked = {"model": MODEL, "input": "Hello!", "background": True}
    done = client.responses.create(**asked, max_output_tokens=4)
    assert done.status == "in_progress" and done.output_text == "", done
    deadline = time.monotonic() + 30
    while done.status == "in_progress" and time.monotonic() < deadline:
        time.sleep(0.02)
        done = client.responses.retrieve(done.id)
    assert done.status in ("completed", "incomplete") and done.usage.output_tokens > 0, done
    assert client.responses.cancel(done.id).to_dict() == done.to_dict(), "what is done stays as it is"


if __name__ == "__main__":
    run(globals(), f"openai {openai.__version__}")
