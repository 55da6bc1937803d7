"""Imitates the HTTP side of vLLM and SGLang with a model that answers at once or at a fixed beat: FastAPI
on uvicorn, in one process, with one chunk in OpenAI's format for each token.

    python fastapi_instant.py PORT [BEAT_MS]
"""

import asyncio
import json
import sys
import time
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

BEAT = float(sys.argv[2]) / 1e3 if len(sys.argv) > 2 else 0.0


class Beat:
    """A step of the model, which gives every stream its next token."""

    def __init__(self):
        self.event = asyncio.Event()

    async def run(self):
        beats = 0
        start = time.monotonic()
        while True:
            beats = max(beats, int((time.monotonic() - start) / BEAT)) + 1
            await asyncio.sleep(start + beats * BEAT - time.monotonic())
            self.event, past = asyncio.Event(), self.event
            past.set()

    async def token(self):
        # Awaiting lets other streams run between two tokens, as the queue of a real engine does.
        await (self.event.wait() if BEAT else asyncio.sleep(0))


@asynccontextmanager
async def lifespan(app):
    app.state.beat = Beat()
    if BEAT:
        app.state.task = asyncio.create_task(app.state.beat.run())
    yield


app = FastAPI(lifespan=lifespan)


@app.get("/v1/models")
async def models():
    return {"object": "list", "data": [{"id": "instant", "object": "model"}]}


@app.post("/v1/completions")
async def completions(request: Request):
    asked = await request.json()
    head = {"id": "cmpl-instant", "object": "text_completion", "created": int(time.time()),
            "model": "instant", "system_fingerprint": "instant"}

    def chunk(choices, usage=None):
        return f"data: {json.dumps(head | {'choices': choices, 'usage': usage})}\n\n"

    async def stream():
        for _ in range(asked["max_tokens"]):
            await app.state.beat.token()
            yield chunk([{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}])
        yield chunk([{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}])
        prompt, output = len(asked["prompt"]), asked["max_tokens"]
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        yield chunk([], usage)
        yield "data: [DONE]\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
