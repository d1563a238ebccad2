"""The python-based `onnxruntime` backend in a real Triton, over hand-written graphs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import InferenceServerClient as Client
from tritonclient.utils import InferenceServerException

from inference.errors import SetupError
from serving.triton.server import TritonServer
from tests.inference.tiny_models import parse_graph, publish
from tests.serving.triton.tiny import brief_server, settings, wait_until

pytestmark = pytest.mark.integration

ONE_INSTANCE = 'backend: "onnxruntime" instance_group [{kind: KIND_CPU count: 1}]'
# A batch starts as soon as four rows wait, so that four requests share one `execute`.
FOUR_TOGETHER = "dynamic_batching {preferred_batch_size: [4] max_queue_delay_microseconds: 5000000}"
FAILED = r"internal: the request failed: the log of the model has the cause, id (\w{8})$"
SMALL = "parameters {key: 'intra_op_thread_count' value {string_value: '1'}}"


def config(*tensors: str, max_batch_size: int = 0, more: str = "") -> str:
    return f"{ONE_INSTANCE} {SMALL} max_batch_size: {max_batch_size} {' '.join(tensors)} {more}"


def tensor(kind: str, name: str, data_type: str, dims: str, more: str = "") -> str:
    return f"{kind} [{{name: '{name}' data_type: TYPE_{data_type} dims: {dims} {more}}}]"


def parameter(name: str, value: str) -> str:
    return f"parameters {{key: '{name}' value {{string_value: '{value}'}}}}"


def sums() -> onnx.ModelProto:
    """Two outputs over (B, N): double = x + x and square = x · x."""
    return parse_graph(
        "(float[B, N] x) => (float[B, N] double, float[B, N] square)"
        "{ double = Add(x, x) square = Mul(x, x) }"
    )


SUMS = (
    tensor("input", "x", "FP32", "[-1]"),
    tensor("output", "double", "FP32", "[-1]"),
    tensor("output", "square", "FP32", "[-1]"),
)


def publish_sums(repository: Path) -> None:
    publish(repository, "sums", sums(), config(*SUMS, max_batch_size=8))


def publish_lottery(repository: Path) -> None:
    """Every row of one run gets the same random number, and another run another one."""
    lottery = parse_graph(
        "(float[B, 1] x) => (float[B, 1] drawn)"
        "{ number = RandomUniform <shape = [1, 1]> () drawn = Mul(x, number) }"
    )
    tensors = tensor("input", "x", "FP32", "[1]"), tensor("output", "drawn", "FP32", "[1]")
    publish(repository, "lottery", lottery, config(*tensors, max_batch_size=4, more=FOUR_TOGETHER))


def publish_lookup(repository: Path) -> None:
    """Entry `index` of a table of ten numbers; another index fails in the run."""
    text = "(int64[B, N] index) => (float[B, N] entry) { entry = Gather(table, index) }"
    lookup = parse_graph(text, {"table": np.arange(10, dtype=np.float32)})
    tensors = tensor("input", "index", "INT64", "[-1]"), tensor("output", "entry", "FP32", "[-1]")
    publish(repository, "lookup", lookup, config(*tensors, max_batch_size=4, more=FOUR_TOGETHER))


def publish_brightness(repository: Path) -> None:
    """The mean of uint8 pixels, one scalar a picture."""
    brightness = parse_graph(
        "(uint8[B, 4, 4, 3] pixels) => (float[B] mean) { bright = Cast <to = 1> (pixels)"
        "mean = ReduceMean <axes = [1, 2, 3], keepdims = 0> (bright) }"
    )
    tensors = (
        tensor("input", "pixels", "UINT8", "[4, 4, 3]"),
        tensor("output", "mean", "FP32", "[1]", "reshape {shape: []}"),
    )
    publish(repository, "brightness", brightness, config(*tensors, max_batch_size=4))


def publish_forked(repository: Path) -> None:
    """From one input, `plain` and `entry`; the latter fails for an index beyond the table.

    The table is a constant that only a subgraph reads.
    """
    branch = "branch () => (float[B, 1] found) { found = Gather(table, index) }"
    forked = parse_graph(
        "(int64[B, 1] index) => (float[B, 1] plain, float[B, 1] entry) {"
        f"entry = If <then_branch = {branch}, else_branch = {branch}> (true)"
        "plain = Cast <to = 1> (index)"
        "}",
        {"table": np.arange(10, dtype=np.float32) * 10, "true": np.array(True)},
    )
    tensors = (
        tensor("input", "index", "INT64", "[1]"),
        tensor("output", "plain", "FP32", "[1]"),
        tensor("output", "entry", "FP32", "[1]"),
    )
    publish(repository, "forked", forked, config(*tensors, max_batch_size=4))
    publish(repository, "unforked", forked, config(tensors[0], tensors[1], max_batch_size=4))


def publish_bytes(repository: Path) -> None:
    """How many texts are equal to the other ones."""
    text = "(string[B, N] a, string[B, N] b) => (bool[B, N] same) { same = Equal(a, b) }"
    tensors = (
        tensor("input", "a", "STRING", "[-1]"),
        tensor("input", "b", "STRING", "[-1]"),
        tensor("output", "same", "BOOL", "[-1]"),
    )
    equal = parse_graph(text, opset=19)
    publish(repository, "bytes", equal, config(*tensors, max_batch_size=4))


def product(kind: str) -> onnx.ModelProto:
    """The matrix product of `int64` or `float`, without a batch dimension."""
    return parse_graph(
        f"({kind}[M, K] a, {kind}[K, N] b) => ({kind}[M, N] c) {{ c = MatMul(a, b) }}"
    )


def product_tensors(data_type: str) -> tuple[str, ...]:
    kinds = {"a": "input", "b": "input", "c": "output"}
    return tuple(tensor(kind, name, data_type, "[-1, -1]") for name, kind in kinds.items())


def publish_product(repository: Path) -> None:
    publish(repository, "product", product("int64"), config(*product_tensors("INT64")))


def publish_echo(repository: Path) -> None:
    echo = parse_graph("(string[B, N] text) => (string[B, N] same) { same = Identity(text) }")
    tensors = tensor("input", "text", "STRING", "[-1]"), tensor("output", "same", "STRING", "[-1]")
    publish(repository, "echo", echo, config(*tensors, max_batch_size=4))


PUBLISHERS = (
    *(publish_sums, publish_lottery, publish_lookup, publish_brightness),
    *(publish_forked, publish_bytes, publish_product, publish_echo),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("repository")
    for publish_model in PUBLISHERS:
        publish_model(repository)
    with brief_server(settings(repository)) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.grpc_address) as connected:
        yield connected


DATA_TYPES = {"f4": "FP32", "i8": "INT64", "i4": "INT32", "u1": "UINT8", "O": "BYTES"}


def wired(name: str, array: np.ndarray[Any, Any]) -> triton.InferInput:
    kind = "O" if array.dtype == np.object_ else array.dtype.str[1:]
    made = triton.InferInput(name, list(array.shape), DATA_TYPES[kind])
    made.set_data_from_numpy(array)
    return made


def infer(
    client: Client,
    model: str,
    outputs: list[str] | None = None,
    **arrays: np.ndarray[Any, Any],
) -> triton.InferResult:
    inputs = [wired(name, array) for name, array in arrays.items()]
    requested = [triton.InferRequestedOutput(name) for name in outputs] if outputs else None
    return client.infer(model, inputs, outputs=requested, client_timeout=30)


def infer_together(
    client: Client, model: str, name: str, arrays: list[np.ndarray[Any, Any]]
) -> list[triton.InferResult | InferenceServerException]:
    """One request for each array, in flight at once; errors are returned."""
    futures: list[Future[Any]] = [Future() for _ in arrays]

    def deliver_to(future: Future[Any]) -> Any:
        return lambda result, error: future.set_result(error or result)

    for array, future in zip(arrays, futures, strict=True):
        client.async_infer(model, [wired(name, array)], deliver_to(future), client_timeout=30)
    return [future.result(30) for future in futures]


def fours(client: Client, model: str) -> int:
    """How many times Triton has called the backend with four rows."""
    [statistics] = client.get_inference_statistics(model).model_stats
    return sum(s.compute_infer.count for s in statistics.batch_stats if s.batch_size == 4)


def assert_were_together(client: Client, model: str, before: int) -> None:
    """Triton updates its counter shortly after the responses."""
    deadline = time.monotonic() + 5
    while fours(client, model) == before:
        assert time.monotonic() < deadline, "the four requests were not one batch"
        time.sleep(0.01)


def floats(*rows: list[float]) -> np.ndarray[Any, Any]:
    return np.array(rows, dtype=np.float32)


def test_batched_request_is_answered_row_by_row(client: Client) -> None:
    x = floats([1, -2, 3], [4, 5, 0.5])
    answer = infer(client, "sums", x=x)
    np.testing.assert_array_equal(answer.as_numpy("double"), x + x)
    np.testing.assert_array_equal(answer.as_numpy("square"), x * x)


def test_only_requested_outputs_are_returned(client: Client) -> None:
    x = floats([3, 4])
    answer = infer(client, "sums", ["square"], x=x)
    assert answer.as_numpy("double") is None
    np.testing.assert_array_equal(answer.as_numpy("square"), x * x)


def test_outputs_that_are_not_requested_are_not_computed(client: Client) -> None:
    beyond, inside = np.array([[99]]), np.array([[3]])
    assert infer(client, "forked", ["plain"], index=beyond).as_numpy("plain").item() == 99
    assert infer(client, "unforked", index=beyond).as_numpy("plain").item() == 99
    assert infer(client, "forked", ["entry"], index=inside).as_numpy("entry").item() == 30
    assert infer(client, "forked", index=inside).as_numpy("entry").item() == 30
    for outputs in (None, ["entry"], ["plain", "entry"]):
        with pytest.raises(InferenceServerException, match=FAILED):
            infer(client, "forked", outputs, index=beyond)


def test_unbatched_integers_keep_their_type(client: Client) -> None:
    a = np.array([[2**40, 1], [0, -3]])
    answer = infer(client, "product", a=a, b=a).as_numpy("c")
    assert answer.dtype == np.int64
    np.testing.assert_array_equal(answer, a @ a)


def test_pixels_are_bytes_and_the_result_a_scalar(client: Client) -> None:
    pixels = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3) + 150
    answer = infer(client, "brightness", pixels=pixels).as_numpy("mean")
    assert answer.shape == (2, 1)
    np.testing.assert_allclose(answer[:, 0], pixels.reshape(2, -1).mean(1), rtol=1e-6)


def test_strings_survive_the_round_trip(client: Client) -> None:
    text = np.array([["añil".encode(), b""], [b"x", "東京".encode()]], dtype=np.object_)
    answer = infer(client, "echo", text=text).as_numpy("same")
    assert answer.tolist() == text.tolist()


def test_strings_that_are_not_utf_8_are_accepted(client: Client) -> None:
    a = np.array([[b"\xff\xfe", b"ok", b"\xff"]], dtype=np.object_)
    b = np.array([[b"\xff\xfe", b"ok", b"\xfe"]], dtype=np.object_)
    assert infer(client, "bytes", a=a, b=b).as_numpy("same").tolist() == [[True, True, False]]


def test_output_that_is_not_utf_8_is_an_error(client: Client) -> None:
    """ONNX Runtime's Python interface has no other form for it."""
    text = np.array([[b"\xff\xfe"]], dtype=np.object_)
    with pytest.raises(InferenceServerException, match=FAILED):
        infer(client, "echo", text=text)


def test_zero_size_dimension_is_served(client: Client) -> None:
    answer = infer(client, "sums", x=np.zeros((2, 0), np.float32))
    assert answer.as_numpy("double").shape == (2, 0)
    inner = infer(client, "product", a=np.zeros((2, 0), np.int64), b=np.zeros((0, 3), np.int64))
    np.testing.assert_array_equal(inner.as_numpy("c"), np.zeros((2, 3), np.int64))


def test_requests_of_one_batch_share_one_run(client: Client) -> None:
    before = fours(client, "lottery")
    one = floats([1])
    drawn = [r.as_numpy("drawn").item() for r in infer_together(client, "lottery", "x", [one] * 4)]
    assert_were_together(client, "lottery", before)
    assert len(set(drawn)) == 1, "each row drew its own number, so each had its own run"
    again = infer(client, "lottery", x=np.ones((4, 1), np.float32)).as_numpy("drawn")
    assert again[0, 0] != drawn[0], "the number never changes, so this test proves nothing"


def test_failing_request_does_not_fail_its_batch(client: Client) -> None:
    before = fours(client, "lookup")
    indices = [np.array([[i, i]]) for i in (1, 99, 3, 4)]
    answers = infer_together(client, "lookup", "index", indices)
    assert_were_together(client, "lookup", before)
    assert isinstance(answers[1], InferenceServerException)
    assert re.search(FAILED, str(answers[1]))
    for index in (0, 2, 3):
        np.testing.assert_array_equal(answers[index].as_numpy("entry"), indices[index])


def test_wrong_data_type_names_both(client: Client) -> None:
    with pytest.raises(InferenceServerException, match=r"'INT64'.*'FP32'"):
        infer(client, "sums", x=np.array([[1, 2]]))


def test_wrong_shape_is_refused(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'pixels'"):
        infer(client, "brightness", pixels=np.zeros((1, 4, 5, 3), np.uint8))


def test_shapes_that_only_the_graph_refuses_fail_one_request(client: Client) -> None:
    with pytest.raises(InferenceServerException, match=FAILED):
        infer(client, "product", a=np.ones((2, 3), np.int64), b=np.ones((2, 3), np.int64))
    answer = infer(client, "product", a=np.ones((1, 3), np.int64), b=np.ones((3, 1), np.int64))
    assert answer.as_numpy("c").item() == 3


def test_missing_and_unknown_inputs_are_refused(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="expected 2 inputs"):
        infer(client, "product", a=np.ones((1, 1), np.int64))
    with pytest.raises(InferenceServerException, match="unexpected inference input"):
        infer(client, "sums", y=floats([1]))


def test_larger_batch_than_configured_is_refused(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="must be <= 8"):
        infer(client, "sums", x=np.zeros((9, 1), np.float32))


def test_large_tensors_outgrow_the_first_shared_memory(client: Client) -> None:
    x = np.random.default_rng(0).standard_normal((8, 400_000), dtype=np.float32)
    np.testing.assert_array_equal(infer(client, "sums", ["double"], x=x).as_numpy("double"), x + x)


def test_configuration_is_refused_in_one_line(server: TritonServer) -> None:
    """`test_graph_configurations` has every refusal."""
    wrong = config(tensor("input", "x", "INT32", "[-1]"), SUMS[1], max_batch_size=8)
    publish(server.settings.repository, "wrong", sums(), wrong)
    with pytest.raises(SetupError) as refused:
        server.load("wrong")
    message = refused.value.message
    assert "InvalidArgument: unable to load model 'wrong'" in message
    assert "configuration expects datatype TYPE_INT32 for input 'x'" in message
    assert "\n" not in message
    assert ".py(" not in message, "a traceback"


def test_configuration_may_fix_a_dynamic_dimension(server: TritonServer, client: Client) -> None:
    fixed = config(tensor("input", "x", "FP32", "[2]"), SUMS[1], max_batch_size=8)
    publish(server.settings.repository, "narrow", sums(), fixed)
    server.load("narrow")
    assert infer(client, "narrow", x=floats([1, 2])).as_numpy("double").tolist() == [[2, 4]]
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'x'"):
        infer(client, "narrow", x=floats([1, 2, 3]))


def test_failed_requests_are_counted(server: TritonServer, client: Client) -> None:
    def failures() -> float:
        status = server.status()
        return status.engines["product"].figures["failures"]

    before = failures()
    for _ in range(3):
        with pytest.raises(InferenceServerException, match=FAILED):
            infer(client, "product", a=np.ones((2, 3), np.int64), b=np.ones((2, 3), np.int64))
    deadline = time.monotonic() + 20
    while failures() < before + 3:
        assert time.monotonic() < deadline, "the failures are not reported"
        time.sleep(0.05)


def test_text_of_an_exception_is_logged_and_not_sent(
    server: TritonServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InferenceServerException, match=FAILED) as caught:
        infer(client, "lookup", index=np.array([[98765, 1]]))
    found = re.search(FAILED, str(caught.value))
    assert found is not None
    wait_until(lambda: f"id={found[1]}" in caplog.text)
    [line] = [each for each in caplog.messages if f"id={found[1]}" in each]
    assert "Gather" in line
    assert "98765" in line


def test_damaged_graph_is_refused_in_one_line(server: TritonServer) -> None:
    folder = publish(server.settings.repository, "damaged", None, config(*SUMS, max_batch_size=8))
    (folder / "model.onnx").write_bytes(b"not a graph")
    reason = r"Triton cannot load 'damaged'.*: onnx runtime error 7: .*model.onnx"
    with pytest.raises(SetupError, match=reason) as refused:
        server.load("damaged")
    assert "\n" not in refused.value.message
