"""Tests Ollama's Python client against a running Hearth server, end to end.

    python ollama_client.py http://127.0.0.1:8000 MODEL

The served model has random weights; its tokens are bytes, and its context is 2048 tokens.
"""

import sys
from importlib.metadata import version

import ollama
from running import raises, run

BASE_URL, MODEL = sys.argv[1:3]
client = ollama.Client(host=BASE_URL, timeout=60)

MESSAGES = [{"role": "user", "content": "Hello!"}]
OPTIONS = {"temperature": 0, "num_predict": 24}


def test_models():
    (model,) = client.list().models
    assert model.model == MODEL and model.size > 0, model
    shown = client.show(MODEL)
    assert shown.capabilities == ["completion", "tools"] and shown.modelinfo, shown
    assert [model.model for model in client.ps().models] == [MODEL]


def test_chat():
    answer = client.chat(MODEL, MESSAGES, options=OPTIONS)
    assert answer.done and answer.done_reason == "length", answer
    assert answer.message.role == "assistant" and answer.eval_count == 24, answer
    assert answer.prompt_eval_count > 0 and answer.total_duration > 0, answer
    pieces = list(client.chat(MODEL, MESSAGES, options=OPTIONS, stream=True))
    text = "".join(piece.message.content for piece in pieces)
    assert text == answer.message.content, (text, answer)
    assert len(pieces) > 2 and [p.done for p in pieces][-2:] == [False, True], pieces
    assert client.chat(f"{MODEL}:latest", MESSAGES, options=OPTIONS).message.content == text


def test_generate():
    answer = client.generate(MODEL, "Hello!", options=OPTIONS)
    chat = client.chat(MODEL, MESSAGES, options=OPTIONS)
    assert answer.response == chat.message.content, "a prompt is a message of the user"
    pieces = list(client.generate(MODEL, "Hello!", options=OPTIONS, stream=True))
    assert "".join(piece.response for piece in pieces) == answer.response
    raw = client.generate(MODEL, "Hello!", raw=True, options=OPTIONS)
    assert raw.prompt_eval_count == len("Hello!") and raw.response != answer.response, raw
    system = client.generate(MODEL, "Hello!", system="Be brief.", options=OPTIONS)
    assert system.prompt_eval_count > answer.prompt_eval_count, system


def test_options():
    def text(**options):
        options = {**OPTIONS, **options}
        return client.generate(MODEL, "Hello!", raw=True, options=options)

    whole = text().response
    stopped = text(stop=[whole[4:7]])
    assert (stopped.response, stopped.done_reason) == (whole[: whole.find(whole[4:7])], "stop")
    assert text(temperature=1, seed=7).response == text(temperature=1, seed=7).response
    assert text(temperature=1, seed=7).response != text(temperature=1, seed=8).response
    assert text(num_predict=3).eval_count == 3
    assert text(temperature=2, top_k=1).response == whole


def test_loading_is_nothing_to_do():
    assert client.generate(MODEL).done_reason == "load"
    assert client.chat(MODEL, [], keep_alive="10m").done_reason == "load"


def test_tools():
    def weather(city: str, days: int) -> str:
        """What the weather is.

        Args:
            city: Where.
            days: For how long.
        """
        return f"Rain in {city} for {days} days."

    # The model was not trained on tools, and Ollama's API cannot force a call.
    answer = client.chat(MODEL, MESSAGES, tools=[weather], options=OPTIONS)
    plain = client.chat(MODEL, MESSAGES, options=OPTIONS)
    assert not answer.message.tool_calls and answer.message.content, answer
    assert answer.message.content == plain.message.content, "the template has no place for tools"
    call = ollama.Message.ToolCall(
        function=ollama.Message.ToolCall.Function(name="weather", arguments={"city": "Oslo"})
    )
    messages = MESSAGES + [
        ollama.Message(role="assistant", tool_calls=[call]),
        {"role": "tool", "tool_name": "weather", "content": weather("Oslo", 2)},
    ]
    pieces = list(client.chat(MODEL, messages, tools=[weather], options=OPTIONS, stream=True))
    assert "".join(piece.message.content for piece in pieces), pieces
    assert pieces[-1].prompt_eval_count > plain.prompt_eval_count, pieces[-1]


def test_errors():
    error = raises(ollama.ResponseError, lambda: client.chat("llama3", MESSAGES))
    assert error.status_code == 404 and "llama3" in error.error, error
    for call, words in (
        (lambda: client.chat(MODEL, MESSAGES, options={"temperature": -1}), "between 0 and 2"),
        (lambda: client.chat(MODEL, MESSAGES, tools=[{"type": "function"}]), "tools[0]"),
        (lambda: client.chat(MODEL, MESSAGES, think=True), "`think`"),
        (lambda: client.generate(MODEL, "a" * 5000, raw=True), "context"),
        (lambda: client.generate(MODEL, "a", keep_alive=0), "keep_alive"),
        (lambda: list(client.chat(MODEL, MESSAGES, stream=True, options={"top_p": 0})), "top_p"),
    ):
        error = raises(ollama.ResponseError, call)
        assert error.status_code == 400 and words in error.error, (words, error)


if __name__ == "__main__":
    run(globals(), f"ollama {version('ollama')}")
