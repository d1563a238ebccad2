"""llama.cpp, through `llama-cpp-python`, for decoders of prompts; its files are made here.

It is no dependency of ours: where the library or its writer of files (`gguf`) is missing, `missing`
returns why (the README has the commands). Tensors are renamed by gguf's own table.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.work import Clock, Timing, Work

RUNTIME = "llama.cpp"
SEQUENCES = 32
"""At once, at most."""
POSITIONS = 128
"""Of each."""
_KINDS = {"q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "q4_k_m": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}
_BATCH_TOKENS = 2048


def missing(*_: Any) -> str | None:
    """What it lacks; None if nothing."""
    for library in ("llama_cpp", "gguf"):
        if importlib.util.find_spec(library) is None:
            return f"{library} is not installed"
    return None


def gguf_file(checkpoint: Path, precision: str, cache: Path) -> Path:
    """A checkpoint of Qwen2 or Llama as llama.cpp reads it, quantised by llama.cpp itself."""
    file = cache / RUNTIME / f"{checkpoint.name}-{precision}.gguf"
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    if precision == "fp32":
        _write(checkpoint, partial)
    else:
        _quantise(gguf_file(checkpoint, "fp32", cache), partial, _KINDS[precision])
    return partial.rename(file)


def pair_halves(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """(heads · D, E) with the halves of each D in turn: llama.cpp rotates neighbours in Llama."""
    halves = weights.reshape(heads, 2, -1, weights.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))


def _write(checkpoint: Path, file: Path) -> None:
    """Writes float32 and no vocabulary: systems are given ids."""
    import gguf
    from safetensors.torch import load_file

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    kind, layers, heads = (
        config["model_type"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
    )
    architecture = {"qwen2": gguf.MODEL_ARCH.QWEN2, "llama": gguf.MODEL_ARCH.LLAMA}[kind]
    writer = gguf.GGUFWriter(file, kind)
    rotation = config.get("rope_parameters") or config
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rotation["rope_theta"])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(architecture, layers)
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        value = tensor.float().numpy()
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else config["num_key_value_heads"]
            value = pair_halves(value, count)
        writer.add_tensor(found, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quantise(source: Path, file: Path, kind: str) -> None:
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread = getattr(llama_cpp, kind), 2
    failed = llama_cpp.llama_model_quantize(
        str(source).encode(), str(file).encode(), ctypes.byref(parameters)
    )
    if failed:
        raise RuntimeError(f"llama.cpp did not quantise {source}")


class LlamaCpp:
    """All prompts in one call, then one call a step for all sequences, as its server decodes."""

    def __init__(self, name: str, precision: str, cache: Path, threads: int) -> None:
        import llama_cpp

        self._library = llama_cpp
        llama_cpp.llama_backend_init()
        file = gguf_file(cache / "checkpoints" / name, precision, cache)
        self._model = llama_cpp.llama_model_load_from_file(
            str(file).encode(), llama_cpp.llama_model_default_params()
        )
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_seq_max = SEQUENCES * POSITIONS, SEQUENCES
        options.n_batch = _BATCH_TOKENS
        options.n_threads = options.n_threads_batch = threads
        if not self._model:
            raise RuntimeError(f"llama.cpp did not load {file}")
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)

    def run(self, work: Work) -> Timing:
        assert work.beams == 1
        assert work.is_forced
        timing = Timing(answers=[[] for _ in work.items])
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        started_s = time.perf_counter()
        clock = Clock(len(work.items), started_s)
        entries = [
            (token, position, sequence, position + 1 == len(item.prompt))
            for sequence, item in enumerate(work.items)
            for position, token in enumerate(item.prompt)
        ]
        for step in range(work.new_tokens):
            tokens = self._decode(entries)
            now_s = time.perf_counter()
            for index, (answer, token) in enumerate(zip(timing.answers, tokens, strict=True)):
                answer.append(token)
                clock.record(index, now_s)
            entries = [
                (token, len(item.prompt) + step, sequence, True)
                for sequence, (item, token) in enumerate(zip(work.items, tokens, strict=True))
            ]
        timing.seconds = time.perf_counter() - started_s
        timing.tokens = sum(map(len, timing.answers))
        clock.fill(timing)
        return timing

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> list[int]:
        """The likeliest next token of each sequence.

        Args:
            entries: Token, position, sequence, and whether its logits are wanted.
        """
        found: list[int] = []
        batch = self._batch
        for first in range(0, len(entries), _BATCH_TOKENS):
            part = entries[first : first + _BATCH_TOKENS]
            batch.n_tokens = len(part)
            for place, (token, position, sequence, is_wanted) in enumerate(part):
                batch.token[place], batch.pos[place] = token, position
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
                batch.logits[place] = is_wanted
            if self._library.llama_decode(self._context, batch):
                raise RuntimeError("llama.cpp did not decode a batch")
            wanted = sum(is_wanted for *_, is_wanted in part)
            if wanted:
                pointer = self._library.llama_get_logits(self._context)
                logits = np.ctypeslib.as_array(pointer, (wanted, self._vocabulary_size))
                found += logits.argmax(axis=1).tolist()
        return found
