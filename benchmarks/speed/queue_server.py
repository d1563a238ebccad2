"""CTranslate2 as its users serve it: FastAPI, a queue, and batches of what waits.

`python -m benchmarks.speed.queue_server FOLDER BUNDLE PORT THREADS`
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ctranslate2
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.speed.systems import words
from inference.bundle.reader import open_bundle
from inference.processing.tokenizer_kinds import load_tokenizer

MOST = 32
"""Texts of a batch."""


class Question(BaseModel):
    """A text, and the tokens after which its translation ends, as a model's own end would."""

    texts: list[str]
    max_new_tokens: int


class Queue:
    """Decodes what waits, at most `MOST` texts, in a thread of its own."""

    def __init__(self, translator: Any) -> None:
        self._translator = translator
        self._inbox: SimpleQueue[tuple[list[str], int, asyncio.Future[int]]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def put(self, source: list[str], new_tokens: int) -> asyncio.Future[int]:
        """Queues a text; its number of tokens, once they are decoded."""
        future = asyncio.get_running_loop().create_future()
        self._inbox.put((source, new_tokens, future))
        return future

    def _work(self) -> None:
        while True:
            batch = [self._inbox.get()]
            while len(batch) < MOST and not self._inbox.empty():
                batch.append(self._inbox.get())
            sources, lengths, futures = zip(*batch, strict=True)
            for count, future in zip(self._decode(sources, lengths), futures, strict=True):
                future.get_loop().call_soon_threadsafe(future.set_result, count)

    def _decode(self, sources: Sequence[list[str]], lengths: Sequence[int]) -> list[int]:
        """Tokens of each text's translation, which ends at its own length."""
        seen = [0] * len(lengths)

        def is_over(step: Any) -> bool:
            seen[step.batch_id] += 1
            return seen[step.batch_id] >= lengths[step.batch_id]

        results = self._translator.translate_batch(
            list(sources), beam_size=1, max_batch_size=0, callback=is_over,
            max_decoding_length=max(lengths), min_decoding_length=max(lengths),
        )  # fmt: skip
        return [len(result.hypotheses[0]) for result in results]


def make_app(folder: str, bundle: Path, threads: int) -> FastAPI:
    """The server: `POST /translate`."""
    tokenizer = load_tokenizer(open_bundle(bundle))
    assert tokenizer is not None
    queue = Queue(
        ctranslate2.Translator(folder, compute_type="int8_float32", intra_threads=threads)
    )
    app = FastAPI()

    @app.post("/translate")
    async def translate(question: Question) -> dict[str, Any]:
        [text] = question.texts
        source = words(tuple(tokenizer.encode(text)))
        return {"completion_tokens": await queue.put(source, question.max_new_tokens)}

    return app


if __name__ == "__main__":
    FOLDER, BUNDLE, PORT, THREADS = sys.argv[1:]
    served = make_app(FOLDER, Path(BUNDLE), int(THREADS))
    uvicorn.run(served, host="127.0.0.1", port=int(PORT), log_level="warning")
