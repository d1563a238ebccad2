"""Types of the clients' methods, as a type checker sees them in a user's program."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """\
from pathlib import Path
import triptych

def blocking(client: triptych.Client | triptych.GrpcClient) -> None:
    reveal_type(client.translate(["a", "b"], source="es", num_beams=4))
    reveal_type(client.caption(Path("a.png")).data[0].text)
    reveal_type(client.zero_shot([b"png"], ["x", "y"]).data)
    reveal_type(next(client.generate_stream("a", examples=[("a", "b")], stop="x")))
    client.generate_stream("a").close()
    reveal_type(client.models())

async def awaiting(client: triptych.AsyncClient | triptych.AsyncGrpcClient) -> None:
    reveal_type(await client.generate("a", logit_bias={5: 1.0}))
    async for chunk in client.caption_stream("a.png"):
        reveal_type(chunk.text)

def mistakes(client: triptych.Client) -> None:
    client.translate("a", num_beams="4")
    client.translate("a", beams=4)
    client.translate("a", "es")
    client.generate_stream("a", n=2)
    client.zero_shot("a.png")
"""
REVEALED = [
    "triptych.tasks.translate.TranslateResponse",
    "str | None",
    "list[triptych.tasks.zero_shot.Classification]",
    "triptych.messages.Chunk",
    "triptych.messages.ModelList",
    "triptych.tasks.generate.GenerateResponse",
    "str",
]
REFUSED = [
    (18, 'incompatible type "str"; expected "int | None"'),
    (19, 'Unexpected keyword argument "beams"'),
    (20, "Too many positional arguments"),
    (21, 'Unexpected keyword argument "n"'),
    (22, 'Missing positional argument "labels"'),
]


@pytest.mark.slow
def test_types_are_visible_and_mistakes_are_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            *("--strict", "--no-error-summary", "--cache-dir", ".mypy_cache/typing"),
            str(program),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = result.stdout.splitlines()
    revealed = [line.split('"')[1] for line in lines if "Revealed type" in line]
    assert revealed == REVEALED, result.stdout
    refused = [line for line in lines if ": error: " in line]
    assert len(refused) == len(REFUSED), result.stdout
    for line, (number, part) in zip(refused, REFUSED, strict=True):
        assert f":{number}: " in line
        assert part in line
