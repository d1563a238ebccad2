"""A bundle that answers tasks' calls in this process, without Triton and gateway (D107).

Tasks, tokenizers, engine and graphs are those of serving, opened as its backends open them, so
results equal the served ones.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeAlias

from inference.bundle.manifest import Bundle
from inference.engine import codec
from inference.engine.engine import Engine
from inference.engine.request import Cancelled, EngineRequest, Event, Failed
from inference.engine.runner_factory import SPARE_BYTES, bundle_validator, check_memory, make_runner
from inference.engine.runners.protocol import Runner
from inference.engine.scheduler import Capacity
from inference.engine.sequence import SequenceState
from inference.errors import InternalError, Overloaded, ServingError, SetupError
from inference.generation import Finished, TokenChunk
from inference.load_check import LoadCheck
from inference.stateless.sessions import Sessions, graph_file
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import (
    Array,
    Call,
    GenerateCall,
    InferCall,
    Outcome,
    ended_early,
)
from serving.load_model import load_model
from serving.model_config import as_loaded, read_config

Infer: TypeAlias = Callable[[Collection[str], Mapping[str, Array]], Mapping[str, Array]]
"""Names of outputs, inputs of a graph by name → at least these outputs, by name."""


class LocalModel:
    """One bundle with everything that its calls need. Thread-safe.

    Args:
        bundle: For its manifest and tokenizer.
        runner: Runs the calls of a generator, whose engine is closed with this object; None for a
            stateless bundle.
        graphs: Triton model → what runs its calls; empty for generators.
        capacity: Of the engine.
    """

    def __init__(
        self,
        bundle: Bundle,
        runner: Runner | None,
        graphs: Mapping[str, Infer],
        capacity: Capacity | None = None,
    ) -> None:
        self.model: LoadedModel = load_model(bundle)
        self._graphs = graphs
        self._one_at_a_time = threading.Lock()
        self._engine: Engine | None = None
        if runner is not None:
            self._engine = Engine(runner, bundle_validator(bundle), capacity)
            weakref.finalize(self, self._engine.close)

    def answer(self, calls: Sequence[Call]) -> list[Outcome]:
        """One outcome a call, in order; generator calls are decoded together."""
        return [future.result() for future in map(self.submit, calls)]

    def submit(self, call: Call) -> Future[Outcome]:
        """The outcome of a call: of a generator later, while further calls are submitted.

        Blocks while the engine's queue is full, or while a stateless graph runs.
        """
        future: Future[Outcome] = Future()
        try:
            if isinstance(call, GenerateCall):
                self._generate(call, future)
            else:
                future.set_result(self._infer(call))
        except ServingError as error:
            future.set_result(error)
        return future

    def generate(self, request: EngineRequest) -> Finished:
        """The result of one request of a generator; blocks."""
        assert self._engine is not None
        return self._engine.generate(request)

    def _infer(self, call: InferCall) -> Outcome:
        with self._one_at_a_time:
            found = self._graphs[call.model](call.outputs, call.inputs)
        return {role: found[name] for name, role in call.outputs.items()}

    def _generate(self, call: GenerateCall, future: Future[Outcome]) -> None:
        """Submit a sequence, which a stop string may end early.

        Raises:
            ServingError: the model cannot serve it, or the engine is closed.
        """
        text = call.read() if call.read else None
        options = call.options if text is None else call.options.model_copy(update={"stream": True})
        request = codec.decode_request(
            codec.encode_request(call.inputs, options), self.model.generation
        )
        sequence: SequenceState | None = None

        def listen(event: Event) -> None:
            if future.done():
                return
            if not isinstance(event, TokenChunk):
                future.set_result(_outcome(event))
            elif text is not None:
                text.add(event)
                if text.is_stopped:
                    future.set_result(ended_early(call, text))
                    if sequence is not None:
                        sequence.cancel()

        assert self._engine is not None
        while sequence is None:
            self._engine.wait_for_capacity()
            with contextlib.suppress(Overloaded):  # another thread has taken the place
                sequence = self._engine.submit(request, listen)
        if future.done():
            sequence.cancel()


def open_local_model(
    repository: Path, bundle: Bundle, *, threads: int, capacity: Capacity | None = None
) -> LocalModel:
    """A bundle for the CPU with its runner or its sessions, as its backend opens and checks them.

    Raises:
        SetupError: it is for another device, or its runtime is not installed.
        BundleError: it cannot be opened, or computes something else.
        InvalidArgument: a graph cannot be loaded.
    """
    manifest = bundle.manifest
    if manifest.device != "cpu" or manifest.runtime == "tensorrt":
        raise SetupError(f"{manifest.name} is for a GPU: export it with --device cpu")
    capacity = capacity or Capacity()

    def check_of(model: str) -> LoadCheck:
        folder = repository / model / str(bundle.version)
        return LoadCheck(folder, f"{model} version {folder.name}")

    if manifest.generator is not None:
        spare_bytes = min(SPARE_BYTES, capacity.state_bytes)
        with check_of(manifest.generator) as check:
            runner = make_runner(bundle, threads=threads, spare_bytes=spare_bytes)
            check_memory(runner, manifest, capacity)
            found = LocalModel(bundle, runner, {}, capacity)
            if check.has_outputs:
                check.compare_tokens(found.generate, found.model.generation)
        return found
    graphs: dict[str, Infer] = {}
    for key, part in manifest.parts.items():
        names = [port.name for port in manifest.graphs[key].outputs]
        with check_of(part) as check:
            graphs[part] = _open_graph(repository / part, bundle, threads)
            if check.has_outputs:
                check.compare_outputs(graphs[part], names)
    return LocalModel(bundle, None, graphs)


def _open_graph(model_folder: Path, bundle: Bundle, threads: int) -> Infer:
    """A stateless graph, as its backend opens it."""
    message = read_config(model_folder, bundle.version)
    message.parameters["intra_op_thread_count"].string_value = str(threads)
    config = as_loaded(message)
    file = graph_file(model_folder / str(bundle.version), config)
    if bundle.manifest.runtime == "openvino":
        try:
            from inference.stateless.compiled_graphs import CompiledGraphs
        except ImportError as error:
            raise SetupError(
                f"{bundle.manifest.name} is for OpenVINO: pip install 'triptych[openvino-runtime]'"
            ) from error
        return _report_errors(CompiledGraphs(file, config))
    from inference.stateless.graph_sessions import GraphSessions

    return _report_errors(GraphSessions(file, config))


def _report_errors(sessions: Sessions) -> Infer:
    """What runs a graph; its runtime's errors become ours."""

    def infer(outputs: Collection[str], inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        try:
            return sessions.run(outputs, inputs)
        except Exception as error:  # the runtimes' errors share no base
            raise InternalError(sessions.error_text(error)) from error

    return infer


def _outcome(event: Event) -> Outcome:
    """The outcome of a call, given its sequence's last event."""
    if isinstance(event, Failed):
        error = event.error
        return error if isinstance(error, ServingError) else InternalError(str(error))
    assert not isinstance(event, Cancelled | TokenChunk), "only a sequence that has ended is"
    return event
