"""A gateway of a few lines, over real HTTP, that repeats its requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from PIL import Image

from tests.collector import handled_by
from tests.pictures import encoded

Json = dict[str, Any]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        model = {
            "id": "opus",
            "version": 2,
            "architecture": "marian",
            "tasks": ["translate"],
            "languages": [["es", "en"]],
            "precision": "fp32",
            "default": True,
        }
        self._answer(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "unknown" in str(body.get("model")):
            error = {"type": "unknown_model", "message": "no model of that name"}
            return self._answer(404, {"error": error})
        data = [{"index": i, **item} for i, item in enumerate(ITEMS[self.path](body))]
        if body.get("stream"):
            return self._stream(data, body)
        return self._answer(200, {"model": "m", "data": data})

    def _stream(self, items: list[Json], body: Json) -> None:
        """Letter by letter, the last item first; "break" ends it in the middle."""
        events: list[str] = []
        for item in reversed(items):
            index = item["index"]
            if error := item.get("error"):
                events.append(json.dumps({"index": index, "error": error}))
                continue
            events += [json.dumps({"index": index, "text": letter}) for letter in item["text"]]
            reason = item.get("finish_reason", "stop")
            events.append(json.dumps({"index": index, "text": "", "finish_reason": reason}))
        lines = "".join(f"data: {event}\n\n" for event in events)
        if "break" in str(body):
            lines += 'event: error\ndata: {"error": {"type": "unavailable", "message": "gone"}}\n\n'
        else:
            lines += "data: [DONE]\n\n"
        self._answer(200, lines, "text/event-stream; charset=utf-8")

    def _answer(self, status: int, body: Json | str, kind: str = "application/json") -> None:
        payload = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(payload)))
        self.send_header("x-request-id", "r-1")
        self.end_headers()
        self.wfile.write(payload)


def _texts(body: Json) -> list[Json]:
    too_long = {"error": {"type": "too_long", "message": "too long"}}
    return [
        too_long if text == "bad" else {"text": text.upper(), "score": -1.0, **_reason(text)}
        for text in body["texts"]
    ]


def _reason(text: str) -> Json:
    return {"finish_reason": "length"} if text == "cut" else {}


def _captions(body: Json) -> list[Json]:
    sizes = [len(base64.b64decode(image)) for image in body["images"]]
    return [{"text": f"{size} bytes", "score": 0.0} for size in sizes]


def _labels(body: Json) -> list[Json]:
    labels = [{"label": label, "score": 0.5, "cosine": 0.25} for label in body["labels"]]
    return [{"labels": labels} for _ in body.get("frame_counts", body["images"])]


def _continuations(body: Json) -> list[Json]:
    shots = "".join(f"{e['input']}={e['output']} " for e in body.get("examples", ()))
    head = body.get("instruction", "")
    return [
        {
            "text": f"{head}{shots}{prompt.upper()}",
            "finish_reason": "stop",
            **({"alternatives": ALTERNATIVES[: body["n"]]} if "n" in body else {}),
        }
        for prompt in body["prompts"]
    ]


def _classes(body: Json) -> list[Json]:
    """The inputs as labels, the fields beside them too; of texts with images, the longer list."""
    given = (name for name in ("images", "texts", "pairs") if body.get(name))
    name = max(given, key=lambda each: len(body[each]))
    beside = {key: value for key, value in body.items() if key != name}
    return [
        {"labels": [{"label": json.dumps(item), "score": 0.5}, {"label": str(beside), "score": 0}]}
        for item in body[name]
    ]


def _boxes(body: Json) -> list[Json]:
    """The first label, or anything, on the lower right quarter of a picture of 8 x 6 pixels."""
    corners = {"x_min": 4.0, "y_min": 3.0, "x_max": 8.0, "y_max": 6.0}
    label = body["labels"][0] if "labels" in body else "anything"
    box = {"label": label, "score": 0.5, **corners}
    return [{"boxes": [box], "width": 8, "height": 6} for _ in body["images"]]


def _masks(body: Json) -> list[Json]:
    entry = {"token": " red", "token_id": 7, "score": 0.75}
    return [
        {"masks": [[{**entry, "text": text.replace("[MASK]", "red")}]] * text.count("[MASK]")}
        for text in body["texts"]
    ]


def _tags(body: Json) -> list[Json]:
    """The first word of each text."""
    words = [text.split()[0] for text in body["texts"]]
    return [
        {"tokens": [{"text": w, "start": 0, "end": len(w), "label": "PER", "score": 0.5}]}
        for w in words
    ]


def _vectors(body: Json) -> list[Json]:
    """Lengths of the texts; those of more than two words are cut."""
    cuts = [len(text) - 3 if len(text.split()) > 2 else 0 for text in body["texts"]]
    how = [{"truncated_characters": cut} if cut and body["truncate"] else {} for cut in cuts]
    return [
        {"embedding": [float(len(text))], **one}
        for text, one in zip(body["texts"], how, strict=True)
    ]


def _ranks(body: Json) -> list[Json]:
    """In reverse order, and one that failed."""
    results: list[Json] = [
        {"index": i, "score": float(i), **({"text": text} if body["return_documents"] else {})}
        for i, text in reversed(list(enumerate(body["documents"])))
    ]
    results.append({"index": 9, "error": {"type": "too_long", "message": "too long"}})
    return [{"results": results} for _ in body["query"]]


def _answers(body: Json) -> list[Json]:
    """The first word of each passage, and that there is none where a threshold is given."""
    words = [passage.split()[0] for passage in body["passages"]]
    found: list[Json] = [
        {"text": word, "score": 0.5, "start": 0, "end": len(word), "passage": place}
        for place, word in enumerate(words)
    ]
    null = [{"text": "", "score": 0.25, "start": 0, "end": 0}] if "null_threshold" in body else []
    return [{"answers": found[: body["n"]] + null, "null_score": 0.25} for _ in body["question"]]


def _masks_of_labels(body: Json) -> list[Json]:
    """Of one pixel, of half a probability."""
    png = encoded(Image.new("L", (1, 1), 128))
    mask = {"mean_probability": 0.5, "max_probability": 0.5, "mask": base64.b64encode(png).decode()}
    sizes = {"width": 8, "height": 6, "mask_width": 1, "mask_height": 1}
    masks = [{**mask, "label": label} for label in body["labels"]]
    return [{"masks": masks, **sizes} for _ in body["images"]]


ALTERNATIVES = [
    {"text": "one", "finish_reason": "stop", "score": -0.5},
    {"text": "two", "finish_reason": "length"},
]
ITEMS = {
    "/v1/translate": _texts,
    "/v1/caption": _captions,
    "/v1/zero-shot": _labels,
    "/v1/detect": _boxes,
    "/v1/segment": _masks_of_labels,
    "/v1/generate": _continuations,
    "/v1/classify": _classes,
    "/v1/fill-mask": _masks,
    "/v1/tag": _tags,
    "/v1/rerank": _ranks,
    "/v1/answer": _answers,
    "/v1/embed": _vectors,
}


@contextmanager
def fake_gateway() -> Iterator[str]:
    """The URL of a gateway that lives as long as the block."""
    with handled_by(_Handler) as url:
        yield url
