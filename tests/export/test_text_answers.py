"""Text-to-text bundles answer as tokenizer, `generate` and decoding of `transformers` do.

Exported by the command's own function; task, tokenizer and engine are those that serve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from export.pipeline.cli import export
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.tasks import TASKS
from serving.load_model import load_model
from tests.export.checkpoint.text_folders import SENTENCES, write

pytestmark = pytest.mark.slow

TEXTS = SENTENCES[:4]
NEW_TOKENS = 20
WORDS = "translate English to German: "
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("translate", {"source": "en", "target": "de"}),
    "mbart-50": ("translate", {"source": "de", "target": "fra"}),
    "nllb": ("translate", {"source": "deu", "target": "fr"}),
    "m2m100": ("translate", {"source": "deu", "target": "fr"}),
    "seamless": ("translate", {"source": "de", "target": "fr"}),
    "fsmt-en-de": ("translate", {}),
    "bart": ("generate", {}),
    "pegasus": ("generate", {}),
    **dict.fromkeys(("umt5", "longt5", "pegasus_x", "blenderbot", "bert2bert"), ("generate", {})),
    **dict.fromkeys(("led", "switch_transformers", "t5gemma"), ("generate", {})),
}
"""Kind → task, and the languages in spellings that `transformers` does not take."""
OWN = {
    "mbart-50": ("de_DE", "fr_XX"),
    "nllb": ("deu_Latn", "fra_Latn"),
    "m2m100": ("de", "__fr__"),
    "seamless": ("deu", "__fra__"),
}
"""Kind → source in the tokenizer's spelling, and the target's token."""
EVERY = [pytest.param(kind, marks=() if kind == "t5" else pytest.mark.full) for kind in REQUESTS]


@pytest.mark.parametrize("kind", EVERY)
def test_bundle_answers_as_transformers(kind: str, tmp_path: Path) -> None:
    tokenizer, model = write(kind, tmp_path / kind)
    bundle = _exported(kind, tmp_path)
    for num_beams in (1, 3):
        wanted = [_wanted(kind, tokenizer, model, text, num_beams) for text in TEXTS]
        assert len(set(wanted)) > 2
        assert _answers(bundle, kind, num_beams) == wanted


@pytest.mark.full
def test_repeated_language_token_is_an_empty_text_as_in_transformers(tmp_path: Path) -> None:
    """What an NLLB of full size with random weights generates (`benchmarks/full_size`)."""
    tokenizer, model = write("nllb", tmp_path / "nllb")
    language = tokenizer.convert_tokens_to_ids(OWN["nllb"][1])
    with torch.no_grad():
        model.model.shared.weight[language] *= 100
    model.save_pretrained(tmp_path / "nllb")
    bundle = _exported("nllb", tmp_path)
    for num_beams in (1, 3):
        assert {_wanted("nllb", tokenizer, model, text, num_beams) for text in TEXTS} == {""}
        assert set(_answers(bundle, "nllb", num_beams)) == {""}


def _exported(kind: str, folder: Path) -> Bundle:
    """The bundle of a folder that `write` has made."""
    export(str(folder / kind), repository=folder / "repository")
    return newest_bundle(folder / "repository", kind)


def _wanted(kind: str, tokenizer: Any, model: Any, text: str, num_beams: int) -> str:
    forced = {}
    if kind in OWN:
        tokenizer.src_lang, target = OWN[kind]
        forced["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids(target)
    inputs = tokenizer(WORDS + text if kind == "t5" else text, return_tensors="pt")
    with torch.no_grad():
        (found,) = model.generate(
            **inputs, num_beams=num_beams, max_length=NEW_TOKENS + 1, **forced
        )
    return str(tokenizer.decode(found, skip_special_tokens=True))


def _answers(bundle: Bundle, kind: str, num_beams: int) -> list[str]:
    name, asked = REQUESTS[kind]
    task, model = TASKS[name], load_model(bundle)
    field = task.declaration.inputs
    fields = {field: TEXTS, "num_beams": num_beams, **asked}
    request = task.declaration.request.model_validate(fields)
    plan = task.prepare(request, (), model)
    limited = model.generation.model_copy(update={"max_new_tokens": NEW_TOKENS})
    requests = [
        EngineRequest(limited.with_overrides(call.options), source_ids=call.inputs["source_ids"])
        for call in plan.calls
    ]
    return [item.text for item in plan.finish(decode(OrtRunner(bundle, threads=1), requests)).data]
