"""Tests Anthropic's Python client against a running Hearth server, end to end.

    python anthropic_client.py http://127.0.0.1:8000 MODEL

The served model has random weights; its tokens are bytes, and its context is 2048 tokens.
"""

import asyncio
import json
import sys

import anthropic
from running import raises, run

BASE_URL, MODEL = sys.argv[1:3]
client = anthropic.Anthropic(base_url=BASE_URL, api_key="none", max_retries=0, timeout=60)

MESSAGES = [{"role": "user", "content": "Hello!"}]


# The API has this field, but the current client has no argument for it.
GREEDY = {"temperature": 0}


def create(**options):
    options = {"messages": MESSAGES, "max_tokens": 24, "extra_body": GREEDY, **options}
    return client.messages.create(model=MODEL, **options)


def stream(**options):
    options = {"messages": MESSAGES, "max_tokens": 24, "extra_body": GREEDY, **options}
    return client.messages.stream(model=MODEL, **options)


def text_of(message):
    return "".join(block.text for block in message.content)


def test_a_message():
    message = create()
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL), message
    assert message.id.startswith("msg_") and message.stop_reason == "max_tokens", message
    assert [block.type for block in message.content] == ["text"], message
    assert message.usage.output_tokens == 24, message.usage
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
    assert text_of(create(messages=parts)) == text_of(message)


def test_a_message_streamed():
    whole = text_of(create())
    with stream() as events:
        pieces = list(events.text_stream)
        final = events.get_final_message()
    # The client assembles the events as Anthropic defines them.
    assert "".join(pieces) == whole == text_of(final), (pieces, whole)
    assert len(pieces) > 2, "it came in one piece"
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 24, final
    kinds = [event.type for event in create(stream=True)]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds


def test_system_and_usage():
    count = client.messages.count_tokens
    plain = count(model=MODEL, messages=MESSAGES).input_tokens
    system = count(model=MODEL, messages=MESSAGES, system="Be brief.").input_tokens
    assert system > plain > 0, (system, plain)
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    assert count(model=MODEL, messages=MESSAGES, system=blocks).input_tokens == system
    long = [{"role": "user", "content": "What is said once need not be read twice. " * 5}]
    create(messages=long, system="Be brief.")
    usage = create(messages=long, system="Be brief.").usage
    # The last prompt token is always computed, because its logits are needed.
    assert usage.input_tokens == 1 and usage.cache_read_input_tokens > 200, usage


def test_stop_sequences():
    whole = text_of(create())
    stop = whole[5:8]
    message = create(stop_sequences=["~~~~", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop), message
    assert text_of(message) == whole[: whole.find(stop)], (message, whole)
    with stream(stop_sequences=[stop]) as events:
        final = events.get_final_message()
    assert (text_of(final), final.stop_sequence) == (text_of(message), stop), final
    sampled = create(extra_body={"temperature": 1, "top_k": 40, "top_p": 0.95})
    assert sampled.usage.output_tokens <= 24, sampled


def test_json_of_a_schema():
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}
    output = {"format": {"type": "json_schema", "schema": schema}}
    message = create(output_config=output, max_tokens=200)
    assert message.stop_reason == "end_turn", message
    assert type(json.loads(text_of(message))["ok"]) is bool, message


def test_the_answer_may_be_begun():
    messages = MESSAGES + [{"role": "assistant", "content": "Well,"}]
    plain = client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    begun = client.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    assert begun == plain + len("Well,"), (begun, plain)
    assert not text_of(create(messages=messages)).startswith("Well,")


SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["city"],
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
}
TOOLS = [{"name": "weather", "description": "d", "input_schema": SCHEMA}]


def test_tools():
    # The model was not trained on tools: the grammar makes it call them.
    must = {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    must = {**must, "max_tokens": 200}
    message = create(**must)
    (use,) = message.content
    assert (use.type, use.name, message.stop_reason) == ("tool_use", "weather", "tool_use")
    assert use.id.startswith("toolu_") and use.input["city"] in ("Oslo", "Rome"), use
    with client.messages.stream(
        model=MODEL, messages=MESSAGES, extra_body=GREEDY, **must
    ) as stream:
        events = [event.type for event in stream]
        (streamed,) = stream.get_final_message().content
    assert (streamed.name, streamed.input) == (use.name, use.input), streamed
    assert "input_json" in events, events
    messages = MESSAGES + [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": use.id, "content": "Rain."}]},
    ]
    answer = create(messages=messages, tools=TOOLS)
    assert text_of(answer) and answer.stop_reason == "max_tokens", answer
    counted = client.messages.count_tokens(model=MODEL, messages=messages, tools=TOOLS)
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, counted


def test_errors():
    error = raises(anthropic.NotFoundError, lambda: client.messages.create(
        model="claude", messages=MESSAGES, max_tokens=1))
    assert error.body["error"]["type"] == "not_found_error", error.body
    for options, words in (
        ({"max_tokens": 0}, "at least 1"),
        ({"extra_body": {"temperature": 3}}, "between 0 and 2"),
        ({"messages": []}, "at least 1 message"),
        ({"stop_sequences": [""]}, "0 bytes"),
        ({"max_tokens": 99999}, "context"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "`tools[0].name`"),
        ({"extra_body": {"tool_choice": {"type": "any"}}}, "without `tools`"),
        ({"extra_body": {"colour": 1}}, "colour"),
    ):
        error = raises(anthropic.BadRequestError, lambda: create(**options))
        assert error.body["type"] == "error", error.body
        assert error.body["error"]["type"] == "invalid_request_error", error.body
        assert words in error.body["error"]["message"], (words, error.body)
    # An invalid request is answered with an error status, not with an event in a stream.
    raises(anthropic.BadRequestError, lambda: create(stream=True, extra_body={"top_p": 0}))


def test_sixteen_at_once():
    async def all_at_once():
        async with anthropic.AsyncAnthropic(
            base_url=BASE_URL, api_key="none", max_retries=0
        ) as several:
            async def one(number):
                message = await several.messages.create(
                    model=MODEL, max_tokens=16, extra_body=GREEDY,
                    messages=[{"role": "user", "content": f"Number {number}"}],
                )
                return text_of(message)

            return await asyncio.gather(*map(one, range(16)))

    texts = asyncio.run(all_at_once())
    alone = create(messages=[{"role": "user", "content": "Number 7"}], max_tokens=16)
    assert texts[7] == text_of(alone), "alone and in company differ"


if __name__ == "__main__":
    run(globals(), f"anthropic {anthropic.__version__}")
