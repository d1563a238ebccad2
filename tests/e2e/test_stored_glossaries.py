"""Stored glossaries through the real stack: a restart, and changes beside requests."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, start_stack, stop_stack
from triptych import Client

pytestmark = pytest.mark.integration

TEXT = "El restaurante tiene buena comida."


@pytest.mark.full
def test_a_restart_keeps_them(repository: Path, tmp_path: Path) -> None:
    for is_first in (True, False):
        stack = start_stack(repository, tmp_path / "serve.log")
        with ExitStack() as ends, Client(stack.url) as client:
            ends.callback(stop_stack, stack)
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
