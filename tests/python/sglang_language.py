"""Runs programs of SGLang's own front-end language, `sglang.lang` of the wheel on PyPI, on a running Hearth server.

    python sglang_language.py http://127.0.0.1:8000 MODEL

The wheel is unpacked without its dependencies into the folder `sglang` of the Python environment (test.sh does it).
Its package's `__init__` and `sglang.srt` need torch, and IPython is for notebooks: stand-ins take their places. The
language itself is the published one. The served model has random weights; its tokens are bytes, and its context is
2048 tokens.
"""

import asyncio
import json
import re
import sys
import types
from pathlib import Path

from running import run

BASE_URL, MODEL = sys.argv[1:3]
WHEEL = Path(sys.prefix) / "sglang"


def stand_in(name, **members):
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    return module


class Settings:
    """Answers each question about SGLang's environment variables with no."""

    def __getattr__(self, name):
        return types.SimpleNamespace(get=lambda: False)


stand_in("sglang").__path__ = [str(WHEEL / "sglang")]
stand_in("sglang.srt").__path__ = []
stand_in("sglang.srt.environ", envs=Settings())
stand_in("IPython")
stand_in("IPython.display", HTML=None, display=None)

from sglang.lang import api as sgl  # noqa: E402
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint  # noqa: E402
from sglang.lang.ir import REGEX_FLOAT, REGEX_INT  # noqa: E402

ENDPOINT = RuntimeEndpoint(BASE_URL, chat_template_name="chatml")
sgl.set_default_backend(ENDPOINT)


@sgl.function
def answered(s, question):
    s += "Questions with answers.\nQ: " + question + "\nA:"
    s += sgl.gen("answer", max_tokens=12, temperature=0)


def test_the_server_names_its_model():
    assert Path(ENDPOINT.get_model_name()).name == MODEL, ENDPOINT.get_model_name()
    assert sgl.get_server_info()["version"]


def test_a_generation_is_the_servers_own():
    state = answered.run(question="one?")
    prompt = "Questions with answers.\nQ: one?\nA:"
    assert state.text() == prompt + state["answer"]
    assert state.get_meta_info("answer")["completion_tokens"] == 12
    assert state["answer"] == answered.run(question="one?")["answer"]


def test_a_batch_gives_what_single_runs_give():
    questions = [f"number {number}?" for number in range(24)]
    alone = [answered.run(question=question)["answer"] for question in questions]
    batch = answered.run_batch([{"question": question} for question in questions], num_threads=8)
    assert [state["answer"] for state in batch] == alone
    assert len(set(alone)) > 1
    later = answered.run_batch(
        [{"question": question} for question in questions], num_threads=4, generator_style=True
    )
    assert [state["answer"] for state in later] == alone


def test_forks_share_their_prefix_and_join():
    @sgl.function
    def tips(s):
        s += "Tips to stay healthy, each in one paragraph. " * 4
        forks = s.fork(3)
        for number, fork in enumerate(forks):
            fork += f"Tip {number}:" + sgl.gen("tip", max_tokens=8, temperature=0)
        forks.join()
        s += "In short:" + sgl.gen("summary", max_tokens=8, temperature=0)

    state = tips.run()
    assert len(state["tip"]) == 3, state["tip"]
    assert state.text().endswith("In short:" + state["summary"])

    @sgl.function
    def tip(s, number):
        s += "Tips to stay healthy, each in one paragraph. " * 4
        s += f"Tip {number}:" + sgl.gen("tip", max_tokens=8, temperature=0)

    assert state["tip"] == [tip.run(number=number)["tip"] for number in range(3)]
    cached = tip.run(number=1).get_meta_info("tip")["cached_tokens"]
    assert cached >= 180, cached


def test_select_takes_the_likeliest_choice():
    choices = [" blue", " green", " a colour that nobody has seen"]

    # The two other methods fail at SGLang's own server as well: they compute with the null that comes first, and
    # expect log-probabilities of a prompt that they do not ask for.
    @sgl.function
    def chosen(s):
        s += "The sky is" + sgl.select("colour", choices)

    state = chosen.run()
    assert state["colour"] in choices, (state["colour"], state.error())
    means = state.get_meta_info("colour")["normalized_prompt_logprobs"]
    assert len(means) == 3 and all(mean < 0 for mean in means), means
    assert state["colour"] == choices[means.index(max(means))]


def test_choices_of_gen_are_a_select():
    @sgl.function
    def chosen(s):
        s += "Yes or no?" + sgl.gen("answer", choices=["yes", "no"])

    assert chosen.run()["answer"] in ("yes", "no")


def test_regular_expressions_types_and_schemas_hold():
    number = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "object", "properties": {"n": number}, "required": ["n"], "additionalProperties": False}
    # Not \d: the server's Unicode has digits that an older Python does not know.
    address = r"((25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}[0-9]"

    @sgl.function
    def constrained(s):
        s += "address" + sgl.gen("address", max_tokens=30, regex=address)
        s += "hours" + sgl.gen_int("hours", max_tokens=4)
        s += "size" + sgl.gen("size", dtype=float, max_tokens=6)
        s += "record" + sgl.gen("record", max_tokens=64, json_schema=json.dumps(schema), temperature=0)

    state = constrained.run(temperature=0.8)
    assert re.fullmatch(address, state["address"]), state["address"]
    assert re.fullmatch(REGEX_INT + "|[-+]", state["hours"]), state["hours"]
    assert re.match(REGEX_FLOAT + r"|[-+]?[0-9]*\.?", state["size"]), state["size"]
    assert json.loads(state["record"])["n"] <= 9


def test_roles_make_messages():
    @sgl.function
    def talk(s):
        s += sgl.system("You are helpful.")
        s += sgl.user("Hello!")
        s += sgl.assistant(sgl.gen("first", max_tokens=6, temperature=0))
        with s.user():
            s += "Once more."
        with s.assistant():
            s += sgl.gen("second", max_tokens=6, temperature=0)

    state = talk.run()
    messages = state.messages()
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[2]["content"] == state["first"] and messages[4]["content"] == state["second"]


def test_scopes_and_copies():
    @sgl.function
    def scoped(s):
        with s.var_scope("all"):
            s += "{" + sgl.gen("inner", max_tokens=4, temperature=0) + "}"

    state = scoped.run()
    assert state["all"] == "{" + state["inner"] + "}"


def test_streams_give_the_text_piece_by_piece():
    whole = answered.run(question="stream?")
    state = answered.run(question="stream?", stream=True)
    pieces = list(state.text_iter())
    assert "".join(pieces) == whole.text() and len(pieces) > 1, pieces
    state = answered.run(question="stream?", stream=True)
    assert "".join(state.text_iter("answer")) == whole["answer"]

    async def collected():
        state = answered.run(question="stream?", stream=True)
        return [piece async for piece in state.text_async_iter("answer")]

    assert "".join(asyncio.run(collected())) == whole["answer"]


def test_sampling_fields_are_honoured():
    @sgl.function
    def sampled(s):
        s += "Once" + sgl.gen("text", max_tokens=40, temperature=1.0, top_p=0.9, top_k=50, stop=["e", "\n"])

    text = sampled.run()["text"]
    assert "e" not in text and "\n" not in text, text


def test_log_probabilities_come_with_the_text():
    @sgl.function
    def scored(s):
        s += "Once upon" + sgl.gen(
            "text", max_tokens=5, temperature=0, return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True
        )

    state = scored.run()
    meta = state.get_meta_info("text")
    assert len(meta["output_token_logprobs"]) == 5
    assert all(len(top) == 2 for top in meta["output_top_logprobs"])
    assert all(logprob < 0 and isinstance(text, str) for logprob, _, text in meta["output_token_logprobs"])


def test_an_error_of_the_server_is_the_states_error():
    @sgl.function
    def wrong(s):
        s += "Once" + sgl.gen("text", max_tokens=5, top_p=7.0)

    state = wrong.run()
    state.sync()
    assert "top_p" in str(state.error()), state.error()


def test_the_cache_is_flushed():
    assert answered.run(question="flush?")["answer"]
    sgl.flush_cache()
    meta = answered.run(question="flush?").get_meta_info("answer")
    assert meta["cached_tokens"] == 0, meta


run(globals(), "sglang.lang")
