"""OpenAI's client selects adapters by `model`. Arguments: the base URL and the names of adapters."""

import sys

import openai

base, *adapters = sys.argv[1:]
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)

models = {model.id: model for model in client.models.list()}
assert set(adapters) < set(models), models
parent = next(id for id in models if id not in adapters)
assert all(models[name].parent == parent for name in adapters), models
assert models[parent].parent is None, models


def said(model, **fields):
    answer = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=24, temperature=0, logprobs=1, **fields
    )
    assert answer.model == model, answer
    return answer.choices[0].logprobs.tokens


texts = {name: said(name) for name in [parent, *adapters]}
assert len({tuple(text) for text in texts.values()}) == len(texts), texts
streamed = client.completions.create(
    model=adapters[0], prompt="Once upon a time", max_tokens=24, temperature=0, stream=True
)
assert {chunk.model for chunk in streamed} == {adapters[0]}
assert said(parent, extra_body={"lora": []}) == texts[parent]
try:
    said("nobody")
    raise SystemExit("an unknown model was served")
except openai.NotFoundError as error:
    assert error.param == "model", error
try:
    client.completions.create(model=parent, prompt="x", extra_body={"lora_path": "nobody"})
    raise SystemExit("an unknown adapter was served")
except openai.BadRequestError as error:
    assert error.param == "lora_path", error
