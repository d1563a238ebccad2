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
        images = self._images(feeds, tokens)
        spans = [
            Span(int(p), columns, table, *read)
            for p, table, read in zip(past, tables, images, strict=True)
        ]
        call.run(tokens.reshape(-1), spans, np.arange(rows) * columns + last)
        logits = graph.output(Role.LOGITS)
        assert logits is not None
        outputs = {logits.name: call.outputs()[0].copy()}
        for cache, state in zip(caches, states, strict=True):
            outputs[str(state.step_output)] = cache[np.array(tables)]
        outputs |= self._counts(feeds, tokens, last)
        decoder.release(call)
        for table in tables:
            decoder.memory.pool.release(table)
        return outputs

    def _images(self, feeds: Feeds, tokens: Array) -> list[tuple[Any, ...]]:
        """What each row reads of its sequence's images, as a span of the decoder takes it."""
        from inference.engine.runners.openvino.prompt_images import ImageRows, no_rows, places_of

        manifest = self._bundle.manifest
        if manifest.images is None:
            return [()] * len(tokens)
        (seen,) = (feeds[e.step_input] for e in manifest.states if e.counted_token is not None)
        source = manifest.graphs["step"].input(Role.SOURCE)
        assert source is not None
        counts, width = feeds[source.name], len(tokens) // len(feeds[source.name])
        token_id, found = manifest.images.token_id, []
        for row, (before, new) in enumerate(zip(seen[:, 0], tokens, strict=True)):
            held = {name: feeds[name][row // width] for name in no_rows(manifest)}
            rows = {name: value[: counts[row // width]] for name, value in held.items()}
            past = np.full(before, token_id)  # image tokens of earlier calls, whatever lay between
            read = ImageRows(
                np.concatenate([past, new]), token_id, rows, places=places_of(manifest)
            )
            span = len(past), len(past) + len(new)
            found.append((read.of(*span), read.shifts(*span)))
        return found

    def _counts(self, feeds: Feeds, tokens: Array, last: Array) -> dict[str, Array]:
        """The states that count image tokens, behind a call; this runner has no such outputs."""
        states = [e for e in self._bundle.manifest.states if e.counted_token is not None]
        is_read = np.arange(tokens.shape[1]) <= last[:, None]
        return {
            str(each.step_output): feeds[each.step_input]
            + np.sum((tokens == each.counted_token) & is_read, axis=1, keepdims=True)
            for each in states
        }
