"""`triptych train caption`, and its files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import VisionEncoderDecoderModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from typer.testing import CliRunner, Result

from examples.scenes.rendering import render
from examples.scenes.scene import caption, scenes
from export.training.captioned_pictures import (
    Caption,
    CaptionedPictures,
    find_captions,
    read_captions,
    read_pictures,
)
from export.training.captions import Captioning, Recipe, score
from export.training.command import app
from inference.errors import SetupError
from tests.export.training.trainings import (
    assert_finished_is_left_alone,
    assert_resumed_is_uninterrupted,
    assert_same_logits,
)

FORMS = {
    "captions.txt": "\ufeffa.png\tone  picture\r\n\nb c.png\t two,\twith a tab\n",
    "captions.TSV": "a.png\tone picture\n\nb c.png\ttwo, with a tab",
    "metadata.csv": '\nfile_name,text\na.png,one picture\n\nb c.png,"two,\nwith a tab"\n'.lstrip(),
    "of.csv": 'caption, image\none picture,a.png\n\n"two, with a tab", b c.png\n',
    "captions.jsonl": '{"image": "a.png", "caption": "one picture"}\n\n'
    '{"text": "two, with a tab", "file_name": "b c.png", "other": 1}\n',
}


@pytest.mark.parametrize(("name", "text"), FORMS.items(), ids=list(FORMS))
def test_each_form_is_read(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8", newline="")
    expected = [Caption(1, "a.png", "one picture"), Caption(3, "b c.png", "two, with a tab")]
    if name.endswith(".csv"):  # behind the header
        expected = [each._replace(line=each.line + 1) for each in expected]
    assert read_captions(file) == expected


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.txt", "a.png\tone\nb.png two\n", "a.txt: line 2 has no tab$"),
        ("a.txt", "a.png\t \n\tone\n", "line 1 has an empty caption; line 2 names no picture$"),
        ("a.txt", "a.png\n" * 9, "line 5 has no tab; and 4 more$"),
        ("a.txt", "", "a.txt has no captions$"),
        ("a.csv", "", r"line 1 must have the columns file_name and text or .*, not \[\]"),
        ("a.csv", "a.png,one\n", "line 1 must have the columns"),
        ("a.csv", "image,caption\na.png\n", "line 2 has 1 fields and the header 2$"),
        ("a.csv", 'image,caption\na,"b\nc"\na.png,one, two\n', "line 4 has 3 fields and the"),
        ("a.csv", 'image,caption\na,"b" c\n', "line 2 is not CSV"),
        ("a.jsonl", '{"image": "a"}\n[]\n', "line 1 lacks the keys.*line 2 lacks the keys"),
        ("a.jsonl", '{"image": "a", "caption": 1}\n', "line 1 lacks the keys"),
        ("a.jsonl", "{\n", "line 1 is not JSON"),
        ("a.xml", "", "a.xml has another suffix than .txt, .tsv, .csv, .jsonl$"),
        ("a.txt", None, "a.txt does not exist$"),
        ("a.txt", b"a\tb\n\xff\tc", "a.txt is not UTF-8: line 2"),
    ],
)
def test_bad_lines_are_numbered(
    tmp_path: Path, name: str, text: str | bytes | None, reason: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SetupError, match=reason):
        read_captions(file)


def test_captions_are_found_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"has none of .*: give one with --captions"):
        find_captions(tmp_path)
    (tmp_path / "metadata.csv").write_text("")
    assert find_captions(tmp_path) == tmp_path / "metadata.csv"
    (tmp_path / "captions.txt").write_text("")
    with pytest.raises(SetupError, match="has several of"):
        find_captions(tmp_path)
    with pytest.raises(SetupError, match="nothing is not a folder"):
        find_captions(tmp_path / "nothing")


COUNT = 40
RECIPE = Recipe(side=32, steps=4, seed=1, pieces=300, held_out=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with a caption each, the first one with two."""
    made = tmp_path_factory.mktemp("pictures")
    lines = []
    for number, scene in enumerate(scenes("train", COUNT, seed=3)):
        name = f"{number}.png"
        render(scene, number).save(made / name)
        lines.append(f"{name}\t{caption(scene)}")
    lines.append("0.png\ta second caption")
    (made / "captions.txt").write_text("\n".join([*lines, "", ""]), encoding="utf-8")
    return made


def run(pictures: Path, output: Path, *options: str) -> Result:
    given = ["caption", "--pictures", str(pictures), "--output", str(output)]
    short = ["--steps", "4", "--pieces", "300", "--held-out", "6", "--side", "32"]
    return CliRunner().invoke(app, [*given, *short, *options])


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output: Path = tmp_path_factory.mktemp("trained") / "my-captioner"
    result = run(folder, output)
    assert result.exit_code == 0, result.output
    assert "40 pictures, 41 captions" in result.output
    assert "6 held-out pictures: BLEU" in result.output
    return output


@pytest.mark.slow
def test_transformers_and_we_compute_the_same_logits(trained: Path) -> None:
    theirs = VisionEncoderDecoderModel.from_pretrained(trained, attn_implementation="eager").eval()
    assert_same_logits(theirs, trained)


@pytest.mark.slow
def test_resumed_training_is_the_uninterrupted_one(
    folder: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = partial(run, folder)
    again = tmp_path / "again"
    assert_resumed_is_uninterrupted(monkeypatch, Captioning, "loss", training, trained, again)


@pytest.mark.slow
def test_finished_training_is_left_alone(folder: Path, trained: Path) -> None:
    assert_finished_is_left_alone(partial(run, folder), trained)


def read(folder: Path) -> CaptionedPictures:
    return read_pictures(folder, read_captions(folder / "captions.txt"), RECIPE.spec)


def test_pictures_are_prepared_as_the_checkpoint_prepares_them(folder: Path) -> None:
    processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
    with Image.open(folder / "5.png") as image:
        wanted = processor(image, return_tensors="np", do_rescale=False, do_normalize=False)
    pixels = read(folder).pixels[5]
    assert np.array_equal(pixels, np.asarray(wanted.pixel_values)[0].transpose(1, 2, 0))


def test_held_out_pictures_keep_all_their_captions(folder: Path) -> None:
    pictures = read(folder)
    kept, held = pictures.split(COUNT, seed=1)
    assert (len(kept.names), len(held.names)) == (1, COUNT - 1)
    assert {*kept.names, *held.names} == set(pictures.names)
    one = (kept if "0.png" in kept.names else held).names.index("0.png")
    assert len((kept if "0.png" in kept.names else held).captions[one]) == 2
    assert pictures.split(5, seed=1)[1].names != pictures.split(5, seed=2)[1].names


def test_any_caption_of_a_picture_is_a_right_one() -> None:
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    held = CaptionedPictures(["a", "b"], pixels, [["one two three four", "1 2 3 4"], ["x"]])
    found = score(lambda pictures: ["1 2 3 4", "y"], held)
    assert (found.exact, found.items) == (50.0, 2)
    assert score(lambda pictures: ["1 2 3 4", "x"], held).bleu > found.bleu


def test_changed_picture_is_another_training(folder: Path) -> None:
    pictures = read(folder)
    changed = pictures.pixels.copy()
    changed[3, 0, 0, 0] ^= 1
    other = CaptionedPictures(pictures.names, changed, pictures.captions)
    assert other.fingerprint != pictures.fingerprint


def test_missing_and_unreadable_pictures_are_named(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "captions.txt").read_text(encoding="utf-8").splitlines()
    file = tmp_path / "captions.tsv"
    file.write_text("\n".join(["lost.png\tone", *lines]), encoding="utf-8")
    with pytest.raises(SetupError, match=r"lacks pictures .*: lost\.png \(line 1\)$"):
        read_pictures(folder, read_captions(file), RECIPE.spec)
    for number in range(30):
        (tmp_path / f"{number}.png").write_bytes((folder / f"{number}.png").read_bytes()[:90])
    file.write_text("\n".join(f"{n}.png\ttext" for n in range(30)), encoding="utf-8")
    with pytest.raises(SetupError, match=r"30 pictures cannot be read: 0\.png: .*and 25 more"):
        read_pictures(tmp_path, read_captions(file), RECIPE.spec)
    file.write_text("1.png\ttext", encoding="utf-8")
    with pytest.raises(SetupError, match="1 pictures have captions; training needs at least 20"):
        read_pictures(tmp_path, read_captions(file), RECIPE.spec)


@pytest.mark.full
def test_trained_checkpoint_is_exported(trained: Path, tmp_path: Path) -> None:
    from export.pipeline.cli import export

    export(str(trained), repository=tmp_path)
    manifest = json.loads((tmp_path / trained.name / "1" / "bundle.json").read_text())
    assert "caption" in manifest["tasks"]
