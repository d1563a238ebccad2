"""A task is one file of the client package: everything else follows from a throw-away `shout`."""

import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.load.payloads import Payloads
from codegen.__main__ import LOCK, ROOT, generate
from codegen.protobuf import read_lock
from tests.clients import fake_gateway
from triptych import cli, tasks
from triptych.client import http_client
from triptych.generated.summaries import SUMMARIES
from triptych.tasks import TASKS

SHOUT = '''\
"""`shout`: texts in capitals."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from triptych.messages import Item, Message, OneOrMany, Response, StreamRequest
from triptych.task import Command, Task


class Speaker(Message):
    """Person who shouts."""

    name: str
    role: str


class Place(Message):
    """A place."""

    name: str
    floor: int


class ShoutRequest(StreamRequest):
    """Request of `shout`.

    Numbers are written out.
    """

    texts: OneOrMany | None = Field(default=None, description="Texts to shout.")
    images: OneOrMany | None = Field(default=None, description="Signs to shout.")
    mood: str = Field(description="Mood of the speaker.")
    marks: Annotated[int, Field(ge=0, le=9)] | None = Field(
        default=None, description="Number of exclamation marks."
    )
    is_polite: bool = Field(default=True, description="Say please.")
    speakers: list[Speaker] | None = Field(default=None, description="Speakers in order.")
    weights: dict[str, float] | None = Field(default=None, description="Loudness by word.")
    place: Place | None = Field(default=None, description="Where it is heard.")


class Shout(Item):
    """One text in capitals."""

    vector: list[float] | None = None
    label: str | None = None


class ShoutResponse(Response[Shout]):
    """Response of `shout`."""


def render(
    item: Shout,
    name: str | None,
    digits: Annotated[int, Field(ge=1, description="Digits after the point.")] = 1,
) -> Iterator[str]:
    yield f"{item.label}: " + " ".join(f"{value:.{digits}f}" for value in item.vector or ())


def npy(items: Sequence[Shout], images: Sequence[bytes | Path]) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.array([item.vector for item in items], dtype=np.float32))
    return file.getvalue()


TASK = Task(
    name="shout-out",
    summary="Write texts in capitals.",
    request=ShoutRequest,
    response=ShoutResponse,
    inputs=("texts", "images"),
    not_streamed=("marks",),
    command=Command(
        examples=('triptych shout-out "Hello." --mood calm', "triptych shout-out -f a.txt"),
        short={"marks": "x"},
        render=render,
        formats={".npy": npy},
    ),
    sample={"texts": ["{sentence} Please."], "mood": "calm"},
)
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the task's file, on the path of `triptych.tasks`."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "shout_out.py").write_text(SHOUT, encoding="utf-8")
    tasks.__path__.append(str(folder))
    before = dict(TASKS)
    TASKS.update(tasks.discover())
    fake_gateway.ITEMS["/v1/shout-out"] = shouted
    yield folder
    tasks.__path__.remove(str(folder))
    TASKS.clear()
    TASKS.update(before)
    del fake_gateway.ITEMS["/v1/shout-out"], sys.modules["triptych.tasks.shout_out"]


def shouted(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Two numbers per input; the received fields as the label."""
    fields = {name: body[name] for name in sorted(body) if name not in ("texts", "images")}
    inputs = body.get("texts") or body["images"]
    error = {"error": {"type": "too_long", "message": "too long"}}
    label = json.dumps(fields)
    return [
        error if text == "bad" else {"vector": [len(text), 0.5], "label": label, "text": text}
        for text in inputs
    ]


@pytest.fixture(scope="module")
def generated(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("generated")
    generate(output, TASKS)
    return output


@pytest.fixture
def run(
    package: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs a command against a fake gateway; returns exit code, stdout and stderr."""
    with fake_gateway.fake_gateway() as url:
        monkeypatch.setenv("TRIPTYCH_URL", url)

        def run(*arguments: object) -> tuple[int, str, str]:
            code = cli.run([str(argument) for argument in arguments])
            sys.stdout.flush()
            return code, *capfd.readouterr()

        yield run


def test_proto_has_its_messages_and_methods(generated: Path) -> None:
    text = (generated / "clients/triptych/triptych.proto").read_text()
    assert "  // Write texts in capitals.\n  rpc ShoutOut(ShoutRequest) returns" in text
    assert "rpc ShoutOutStream(ShoutRequest) returns (stream Chunk);" in text
    body = text.split("message ShoutRequest {")[1].split("}")[0]
    assert re.findall(r"^  (\w.* = \d+);$", body, re.M) == [
        "repeated string texts = 1",
        "repeated bytes images = 2",
        "string mood = 3",
        "optional int32 marks = 4",
        "optional bool is_polite = 5",
        "repeated Speaker speakers = 6",
        "map<string, double> weights = 7",
        "optional Place place = 8",
        "optional string model = 9",
        "optional bool stream = 10",
    ]
    assert (
        "class ShoutRequest(_message.Message)"
        in (generated / "clients/triptych/triptych_pb2.pyi").read_text()
    )


def test_locked_numbers_of_other_messages_stay(generated: Path) -> None:
    before, after = read_lock(ROOT / LOCK), read_lock(generated / LOCK)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == set(
        "ShoutRequest Shout ShoutResponse Speaker Place".split()
    )


def test_only_generated_files_differ(generated: Path) -> None:
    """What a commit that adds the task touches beside the task's own file."""
    changed = {
        str(path.relative_to(generated))
        for path in generated.rglob("*")
        if path.is_file() and path.read_text() != (ROOT / path.relative_to(generated)).read_text()
    }
    assert changed == {
        "clients/triptych/generated/methods.py",
        "clients/triptych/generated/summaries.py",
        "clients/codegen/proto.lock.json",
        "clients/triptych/triptych.proto",
        "clients/triptych/triptych_pb2.py",
        "clients/triptych/triptych_pb2.pyi",
    }


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("new_methods", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_clients_get_typed_methods(generated: Path) -> None:
    methods = loaded(generated / "clients/triptych/generated/methods.py")
    for kind in (methods.BlockingMethods, methods.AwaitableMethods):
        signature = inspect.signature(kind.shout_out)
        assert [str(each) for each in signature.parameters.values()] == [
            "self",
            "texts: 'str | Iterable[str] | None' = None",
            "mood: 'str'",
            "images: 'Image | Iterable[Image] | None' = None",
            "marks: 'int | None' = None",
            "is_polite: 'bool' = True",
            "speakers: 'Iterable[tuple[str, str]] | None' = None",
            "weights: 'Mapping[str, float] | None' = None",
            "place: 'tuple[str, int] | None' = None",
            "model: 'str | None' = None",
        ]
        assert signature.parameters["texts"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert signature.parameters["mood"].kind is inspect.Parameter.KEYWORD_ONLY
        assert str(signature.return_annotation) == "ShoutResponse"
        assert "    speakers: Speakers in order. Each is (name, role)." in kind.shout_out.__doc__
    assert inspect.iscoroutinefunction(methods.AwaitableMethods.shout_out)
    stream = inspect.signature(methods.BlockingMethods.shout_out_stream).parameters
    assert "marks" not in stream
    assert "speakers" in stream


def test_client_with_these_methods_reaches_the_gateway(generated: Path, run: object) -> None:
    methods = loaded(generated / "clients/triptych/generated/methods.py")

    class Client(http_client.Client, methods.BlockingMethods):
        """Today's client with the new methods."""

    with fake_gateway.fake_gateway() as url, Client(url) as new:
        items = new.shout_out(["a", "bc"], mood="calm", speakers=[("Ann", "chair")]).data
    assert [item.vector for item in items] == [[1.0, 0.5], [2.0, 0.5]]
    assert json.loads(items[0].label)["speakers"] == [{"name": "Ann", "role": "chair"}]


def test_load_profile_fills_its_sample(package: Path, tmp_path: Path) -> None:
    payloads = Payloads(["shout-out"], 0, tmp_path)
    drawn = [json.loads(payloads.draw().body) for _ in range(50)]
    assert payloads.draw().path == "/v1/shout-out"
    texts = {body["texts"][0] for body in drawn}
    assert len(texts) > 30
    assert all(text.endswith(" Please.") and "{" not in text for text in texts)


def test_summary_is_generated(generated: Path) -> None:
    module = loaded(generated / "clients/triptych/generated/summaries.py")
    assert {**SUMMARIES, "shout-out": "Write texts in capitals."} == module.SUMMARIES


class TestCommand:
    def test_prints_what_its_render_function_yields(self, run: Any) -> None:
        assert run("shout-out", "ab", "--mood", "calm", "--digits", 2) == (
            0,
            '{"is_polite": true, "mood": "calm"}: 2.00 0.50\n',
            "",
        )

    def test_sends_every_kind_of_flag(self, run: Any) -> None:
        flags = "--mood m -x 3 --no-is-polite --weights a=1.5 --weights b=c=2 --model q".split()
        _, out, _ = run(
            *("shout-out", "ab", *flags, "--speaker", "Ann => the chair"),
            *("--place", "Lobby => 2", "--json"),
        )
        (item,) = json.loads(out)["data"]
        assert json.loads(item["label"]) == {
            "mood": "m",
            "marks": 3,
            "is_polite": False,
            "weights": {"a": 1.5, "b=c": 2.0},
            "model": "q",
            "speakers": [{"name": "Ann", "role": "the chair"}],
            "place": {"name": "Lobby", "floor": 2},
        }

    @pytest.mark.parametrize("flag", ["--image", "--images"])
    def test_takes_either_input(self, run: Any, tmp_path: Path, flag: str) -> None:
        image = tmp_path / "a.png"
        image.write_bytes(b"123")
        code, out, _ = run("shout-out", flag, image, "--mood", "m")
        assert (code, out.split(": ")[-1]) == (0, "4.0 0.5\n")  # base64

    def test_writes_json_lines_for_a_file_and_resumes(self, run: Any, tmp_path: Path) -> None:
        source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
        source.write_text("a\n\nbc\n")
        target.write_text("kept\n")
        command = ("shout-out", "-f", source, "-o", target, "--mood", "m", "--batch-size", 1)
        assert run(*command) == (0, "", "")
        kept, blank, last = target.read_text().splitlines()
        assert (kept, blank) == ("kept", "")
        assert json.loads(last)["vector"] == [2.0, 0.5]

    def test_writes_a_format_of_its_own(self, run: Any, tmp_path: Path) -> None:
        source, target = tmp_path / "in.txt", tmp_path / "out.npy"
        source.write_text("a\nbc\nd\n")
        assert run(
            *("shout-out", "-f", source, "-o", target, "--mood", "m", "--batch-size", 2)
        ) == (0, "", "")
        assert np.load(target).tolist() == [[1, 0.5], [2, 0.5], [1, 0.5]]
        assert run("shout-out", "abc", "-o", target, "--mood", "m") == (0, "", "")
        assert np.load(target).tolist() == [[3, 0.5]]
        assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.npy"}

    @pytest.mark.parametrize("content", ["a\nbad\n", "a\n\nb\n"])
    def test_incomplete_format_leaves_the_file_alone(
        self, run: Any, tmp_path: Path, content: str
    ) -> None:
        source, target = tmp_path / "in.txt", tmp_path / "out.npy"
        source.write_text(content)
        target.write_bytes(b"before")
        code, _, err = run("shout-out", "-f", source, "-o", target, "--mood", "m")
        assert (code, "line 2" in err) == (1, True)
        code, _, err = run("shout-out", "a", "bad", "-o", target, "--mood", "m")
        assert (code, err.startswith("triptych: item 2: ")) == (1, True)
        assert target.read_bytes() == b"before"

    def test_has_help_from_the_declaration(self, run: Any) -> None:
        code, out, _ = run("shout-out", "--help")
        text = " ".join(out.split())
        assert code == 0
        for part in (
            "Write texts in capitals.",
            "triptych shout-out -f a.txt",
            "Numbers are written out.",
            "-x, --marks",
            "Number of exclamation marks. [0<=x<=9]",
            "--is-polite / --no-is-polite",
            "Say please. [default: true]",
            '--speaker "name => role"',
            "Digits after the point.",
            "Written whole as .npy, from a file without blank lines.",
            "--stream",
        ):
            assert part in text

    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            ([], "give either TEXT, --image or --file"),
            (["a", "--image", "b.png"], "give either TEXT, --image or --file"),
            (["a"], "no mood: give --mood"),
            (["a", "--mood", "m", "-o", "out.txt"], "--output needs --file or a name in .npy"),
            (["-f", "-", "--keep-going", "-o", "o.npy"], "--keep-going cannot leave a gap"),
            (["a", "--mood", "m", "--weights", "a"], "--weights is NAME=VALUE, not 'a'"),
            (["a", "--mood", "m", "--weights", "a=b"], "--weights is NAME=VALUE, not 'a=b'"),
            (["a", "--mood", "m", "--speaker", "a"], "--speaker is \"name => role\", not 'a'"),
            (["a", "--mood", "m", "--place", "a => b"], '--place is "name => floor", not'),
            (["a", "--mood", "m", "-x", "2", "--stream"], "--marks and --stream exclude"),
            (["a", "--mood", "m", "-x", "10"], "Invalid value for '--marks'"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_mistake_is_one_clear_line(self, run: Any, arguments: list[str], part: str) -> None:
        code, out, err = run("shout-out", *arguments)
        assert (code != 0, out) == (True, "")
        assert err.count("\n") == 1
        assert part in err
