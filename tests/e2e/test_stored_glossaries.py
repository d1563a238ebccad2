"""Stored glossaries through the real stack: clients, command line, restart of the gateway."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, running
from triptych import Client, NotFound
from triptych.cli import run as triptych
from triptych.client.grpc_client import GrpcClient

pytestmark = pytest.mark.integration

TEXT = "El restaurante tiene buena comida."


def test_upload_by_one_way_and_use_by_all(
    client: Client, grpc_client: GrpcClient, stack: Stack, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "terms.csv"
    file.write_text('\ufeffrestaurante,diner\r\n"comida","grub"\r\n', newline="")
    at = ("--url", stack.url)
    pair = ("--source", "es", "--target", "en")
    assert triptych(["glossary", "put", "kitchen", str(file), *pair, *at]) == 0
    assert capsys.readouterr().out == "kitchen: 2 terms\n"
    expected = client.translate(
        TEXT, source="es", glossary={"restaurante": "diner", "comida": "grub"}
    )
    for each in (client, grpc_client):
        assert each.translate(TEXT, glossary_name="kitchen") == expected
        assert [info.name for info in each.glossaries().data] == ["kitchen"]
        assert each.glossary("kitchen").terms == {"restaurante": "diner", "comida": "grub"}
        chunks = each.translate_stream(TEXT, glossary_name="kitchen", source="es")
        assert "diner" in "".join(chunk.text for chunk in chunks)
    assert triptych(["translate", TEXT, "--glossary-name", "kitchen", *at]) == 0
    assert triptych(["glossary", "list", *at]) == 0
    assert triptych(["glossary", "show", "kitchen", *at]) == 0
    translated, listed, *shown = capsys.readouterr().out.splitlines()
    assert translated == expected.data[0].text
    assert listed.startswith("kitchen  es-en  2 terms  ")
    assert shown == ["restaurante\tdiner", "comida\tgrub"]
    assert triptych(["glossary", "delete", "kitchen", *at]) == 0
    for each in (client, grpc_client):
        with pytest.raises(NotFound, match="no glossary of that name"):
            each.translate(TEXT, source="es", glossary_name="kitchen")


@pytest.mark.full
def test_a_restart_keeps_them(repository: Path, tmp_path: Path) -> None:
    for is_first in (True, False):
        with running(repository, tmp_path) as stack, Client(stack.url) as client:
            if is_first:
                client.put_glossary("kitchen", {"restaurante": "diner"}, source="es", target="en")
            assert "diner" in client.translate(TEXT, glossary_name="kitchen").data[0].text


def test_requests_while_it_changes_have_one_whole_version(client: Client, stack: Stack) -> None:
    renderings = ("diner", "eatery")
    client.put_glossary("changing", {"restaurante": "diner"}, source="es", target="en")
    is_done = threading.Event()

    def change() -> None:
        with Client(stack.url) as other:
            turn = 0
            while not is_done.is_set():
                turn += 1
                other.put_glossary("changing", {"restaurante": renderings[turn % 2]})

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(20):
            text = client.translate(TEXT, source="es", glossary_name="changing").data[0].text
            assert sum(rendering in text for rendering in renderings) == 1
    finally:
        is_done.set()
        changing.join()
    client.delete_glossary("changing")
