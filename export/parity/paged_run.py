"""A generator's graphs in OpenVINO, with the caches of rows in blocks, as they will be served."""

from __future__ import annotations

from typing import Any

import numpy as np

from export.parity.compiled_run import missing_package
from export.parity.parity_inputs import Array, Feeds
from export.precision import Precision
from inference.bundle.manifest import Bundle, Growth, Role
from inference.errors import SetupError


class PagedRun:
    """A `Run` over the decoder that serves the bundle; it is compiled at the first call.

    APPEND states are returned as (rows, blocks, …), the blocks as they lie in memory, and are taken
    back in that form; zeros of any form are no past.

    Args:
        precision: That of the files.
    """

    def __init__(self, bundle: Bundle, precision: Precision) -> None:
        manifest = bundle.manifest.model_copy(update={"precision": precision.value})
        self._bundle = Bundle(bundle.folder, manifest)
        self._decoder: Any = None

    def __call__(self, key: str, feeds: Feeds) -> dict[str, Array]:
        """Outputs of one graph.

        Raises:
            SetupError: OpenVINO is not installed.
        """
        if self._decoder is None:
            self._decoder = self._compile()
        if key != "step":
            found = self._decoder.run(key, feeds)
            return {name: value.copy() for name, value in found.items()}
        return self._step(feeds)

    def close(self) -> None:
        """Unloads all graphs; the next call loads them again."""
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = None

    def _compile(self) -> Any:
        try:
            from inference.engine.runners.openvino.compiled_decoder import CompiledDecoder
        except ImportError as error:
            raise SetupError(missing_package("openvino")) from error
        return CompiledDecoder(self._bundle, threads=2, spare_bytes=0)

    def _step(self, feeds: Feeds) -> dict[str, Array]:
        """One call of `step`: (R, T) tokens, right-padded, each row behind its own past."""
        from inference.engine.runners.openvino.decoder_call import Span

        decoder, manifest = self._decoder, self._bundle.manifest
        graph = manifest.graphs["step"]
        tokens, lengths, last = (
            feeds[port.name]
            for role in (Role.TOKENS, Role.LENGTHS, Role.LAST)
            if (port := graph.input(role)) is not None
        )
        rows, columns = tokens.shape
        past = lengths - last - 1
        needed = decoder.memory.pool.blocks_of(int(past.max()) + columns)
        tables = [decoder.memory.pool.allocate(needed) for _ in range(rows)]
        caches = list(decoder.memory.tensors().values())
        states = [each for each in manifest.states if each.growth is Growth.APPEND]
        for cache, state in zip(caches, states, strict=True):
            held = feeds[state.step_input]
            if held.ndim == cache.ndim + 1:
                for table, blocks in zip(tables, held, strict=True):
                    cache[table[: len(blocks)]] = blocks[:needed]
        call = decoder.call()
        call.bind({name: feeds[name] for name in decoder.source_inputs})
        spans = [Span(int(p), columns, table) for p, table in zip(past, tables, strict=True)]
        sources = [feeds[name] for name in decoder.source_inputs]
        sequences = len(sources[0]) if sources else 1
        call.run(tokens.reshape(-1), spans, np.arange(rows) * columns + last, sequences)
        logits = graph.output(Role.LOGITS)
        assert logits is not None
        outputs = {logits.name: call.outputs()[0].copy()}
        for cache, state in zip(caches, states, strict=True):
            outputs[str(state.step_output)] = cache[np.array(tables)]
        decoder.release(call)
        for table in tables:
            decoder.memory.pool.release(table)
        return outputs
