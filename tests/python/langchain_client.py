"""Tests LangChain's client of OpenAI's API against a running Hearth server, end to end.

    python langchain_client.py http://127.0.0.1:8000/v1 MODEL

The served model has random weights; its tokens are bytes, and its context is 2048 tokens.
"""

import asyncio
import sys
from importlib.metadata import version

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel
from running import run

BASE_URL, MODEL = sys.argv[1:3]
COMMON = {"base_url": BASE_URL, "model": MODEL, "api_key": "none", "temperature": 0, "max_retries": 0}
MESSAGES = [SystemMessage("Be brief."), HumanMessage("Hello!")]


def chat(**settings):
    return ChatOpenAI(**(COMMON | {"max_tokens": 8} | settings))


def test_invoke_and_stream():
    whole = chat().invoke(MESSAGES)
    assert isinstance(whole, AIMessage) and whole.response_metadata["finish_reason"] == "length"
    assert whole.usage_metadata["output_tokens"] == 8, whole
    chunks = list(chat(stream_usage=True).stream(MESSAGES))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 8


def test_batch_and_async():
    whole = chat().invoke(MESSAGES).content
    assert [answer.content for answer in chat().batch([MESSAGES] * 4)] == [whole] * 4

    async def streamed():
        return "".join([chunk.content async for chunk in chat().astream(MESSAGES)])

    assert asyncio.run(streamed()) == whole


def test_chain():
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{word}")])
    assert (prompt | chat()).invoke({"word": "Hello!"}).content == chat().invoke(MESSAGES).content


def test_structured_output():
    class Answer(BaseModel):
        sure: bool
        size: bool

    answer = chat(max_tokens=256).with_structured_output(Answer, method="json_schema").invoke(MESSAGES)
    assert isinstance(answer, Answer), answer


def test_responses():
    model = chat(use_responses_api=True)
    first = model.invoke(MESSAGES)
    assert first.text == chat().invoke(MESSAGES).content, first
    chunks = list(model.stream(MESSAGES))
    assert "".join(chunk.text for chunk in chunks) == first.text
    more = chat(use_responses_api=True, use_previous_response_id=True)
    second = more.invoke([*MESSAGES, first, HumanMessage("Go on.")])
    said = chat().invoke([HumanMessage("Hello!"), first, HumanMessage("Go on.")])
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"], (second, said)


def test_completion():
    text = OpenAI(**(COMMON | {"max_tokens": 12})).invoke("Once")
    assert text == "".join(OpenAI(**(COMMON | {"max_tokens": 12})).stream("Once"))


if __name__ == "__main__":
    run(globals(), f"langchain-openai {version('langchain-openai')}")
