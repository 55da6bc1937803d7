"""The tiny models of model/goldens/gguf with a tokenizer, and both programs' commands to serve them in f32. The scripts
beside it import it; it needs the packages gguf and numpy."""

import os
from pathlib import Path

import gguf
import numpy
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

import answers
from random_gguf import byte_texts

LENGTH, PROMPTS, PROMPT = 64, 24, 24
# Bytes of ASCII that can be seen.
ASCII = 94
Value = gguf.GGUFValueType
GOLDENS = Path(__file__).parent.parent / "model/goldens"
# Keys of what llama.cpp computes otherwise than transformers: Phi-3 without its window, and GPT-OSS with rounded ends of
# YaRN's ramp. Copies lack them.
OTHERWISE = ["phi3.attention.sliding_window", "gpt-oss.rope.scaling.type", "gpt-oss.rope.scaling.factor"]


class Tiny:
    """A copy in `folder` of a golden model, with tokens that are ASCII characters and words. The last one ends a text.

    Other bytes are no tokens, because llama-server does not tell those that are no whole characters.
    """

    def __init__(self, name, folder):
        self.path = os.path.join(folder, f"{name}.gguf")
        self.reader = gguf.GGUFReader(GOLDENS / "gguf" / f"{name}.gguf")
        self.architecture = self.reader.get_field("general.architecture").contents()
        [table] = [tensor for tensor in self.reader.tensors if tensor.name == "token_embd.weight"]
        self.vocabulary = int(table.shape[1])
        self.end = self.vocabulary - 1
        words = [f"<{token}>" for token in range(self.vocabulary - 2)]
        words[:ASCII] = byte_texts()[:ASCII]
        tokens = [*words, "\u0120\u0120", "<end>"]
        new = {
            "tokenizer.ggml.model": MetadataDetails(Value.STRING, "gpt2"),
            "tokenizer.ggml.pre": MetadataDetails(Value.STRING, "gpt-2"),
            "tokenizer.ggml.tokens": MetadataDetails(Value.ARRAY, tokens),
            "tokenizer.ggml.token_type": MetadataDetails(Value.ARRAY, [1] * self.end + [3]),
            "tokenizer.ggml.merges": MetadataDetails(Value.ARRAY, ["\u0120 \u0120"]),
            "tokenizer.ggml.bos_token_id": MetadataDetails(Value.UINT32, self.end),
            "tokenizer.ggml.eos_token_id": MetadataDetails(Value.UINT32, self.end),
            "tokenizer.ggml.add_bos_token": MetadataDetails(Value.BOOL, False),
        }
        left_out = ["tokenizer.ggml.model", f"{self.architecture}.vocab_size", *OTHERWISE]
        writer = gguf.GGUFWriter(self.path, self.architecture)
        copy_with_new_metadata(self.reader, writer, new, left_out)

    def prompts(self):
        random = numpy.random.default_rng(7)
        return [random.integers(0, self.vocabulary - 2, PROMPT).tolist() for _ in range(PROMPTS)]

    def of_llama(self, *flags):
        """Returns llama-server's answers."""
        command = [os.environ["LLAMA_SERVER"], "-m", self.path, "-c", "128", "-np", "1", "-fa", "off", "-t", "1"]
        command += ["-ctk", "f32", "-ctv", "f32", "--port", str(answers.PORT), "--no-webui", *flags]
        return answers.served(command, "/health", answers.llama(LENGTH), self.prompts())

    def of_hearth(self, *flags, adapter=None):
        """Returns Hearth's answers, those of an adapter if there is a name."""
        command = [os.environ.get("HEARTH_BIN", "target/release/hearth"), "serve", "--model", self.path]
        command += ["--device", "cpu", "--dtype", "f32", "--port", str(answers.PORT), *flags]
        return answers.served(command, "/ready", answers.hearth(LENGTH, adapter), self.prompts())
