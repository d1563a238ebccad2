"""Glossaries on disk: whole files, owners, limits, damage, several writers."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from inference.errors import (
    InternalError,
    InvalidRequest,
    PreconditionFailed,
    SetupError,
    UnknownGlossary,
)
from serving.gateway.requests import glossary_store
from serving.gateway.requests.glossary_store import GlossaryStore
from triptych.glossaries.messages import Glossary


def glossary(name: str = "kitchen", rendering: str = "diner", **terms: str) -> Glossary:
    return Glossary(name=name, terms={"restaurante": rendering, **terms}, source="es")


@pytest.fixture
def store(tmp_path: Path) -> GlossaryStore:
    return GlossaryStore(tmp_path / "glossaries")


def rendering(store: GlossaryStore, owner: str = "alice") -> str:
    stored = store.kept(owner, "kitchen") or store.read(owner, "kitchen")
    found = stored.table.found("restaurante", "restaurante", 0, 11)
    return found.rendering


def test_what_is_put_is_read_by_another_process(store: GlossaryStore, tmp_path: Path) -> None:
    assert not (tmp_path / "glossaries").exists(), "made before it is needed"
    info, _ = store.put("alice", glossary(menu="list of dishes"))
    assert (info.name, info.source, info.target, info.size) == ("kitchen", "es", None, 2)
    other = GlossaryStore(tmp_path / "glossaries")
    assert other.listing("alice") == [info]
    assert other.get("alice", "kitchen")[0] == glossary(menu="list of dishes")
    assert rendering(other) == "diner"
    store.put("alice", glossary(rendering="eatery"))
    assert rendering(other) == "eatery", "kept although the file has changed"
    assert store.delete("alice", "kitchen").size == 1
    with pytest.raises(UnknownGlossary):
        rendering(other)


def test_folders_are_closed_to_other_users(store: GlossaryStore, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store.put("alice", Glossary(name="a", source="es", target="en", terms={"a": "b"}))
    finally:
        os.umask(before)
    folder = tmp_path / "glossaries"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.iterdir())] == [
        *(0o700, 0o700)
    ]


def test_unchanged_glossary_is_read_once(store: GlossaryStore) -> None:
    store.put("alice", glossary())
    assert store.kept("alice", "kitchen") is None
    stored = store.read("alice", "kitchen")
    assert store.kept("alice", "kitchen") is stored


def test_memory_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossary_store, "_KEPT", 2)
    store = GlossaryStore(tmp_path)
    for name in ("a", "b", "c"):
        store.put("alice", glossary(name))
        store.read("alice", name)
    assert store.kept("alice", "a") is None
    assert store.kept("alice", "b")


def test_owners_do_not_share(store: GlossaryStore) -> None:
    store.put("alice", glossary())
    assert store.listing("bob") == []
    for use in (store.get, store.read, store.delete, store.kept):
        with pytest.raises(UnknownGlossary):
            use("bob", "kitchen")
    store.put("bob", glossary(rendering="eatery"))
    assert (rendering(store, "alice"), rendering(store, "bob")) == ("diner", "eatery")


def test_no_owner_leaves_the_folder(store: GlossaryStore, tmp_path: Path) -> None:
    for owner in (".", "..", ".hidden"):
        store.put(owner, glossary())
        assert [info.name for info in store.listing(owner)] == ["kitchen"]
    assert [path.name for path in tmp_path.iterdir()] == ["glossaries"]


def test_terms_have_one_form(store: GlossaryStore) -> None:
    store.put("alice", Glossary(name="a", terms={" cafe\u0301  solo ": " a\n\u2028b\x85"}))
    assert store.get("alice", "a")[0].terms == {"café solo": "a b"}
    store.put("alice", Glossary(name="b", terms={"x": "y", " x": "y "}))
    assert store.get("alice", "b")[0].terms == {"x": "y"}
    for terms in ({"x": "y", " x": "z"}, {"x": " "}, {"\t": "y"}):
        with pytest.raises(InvalidRequest):
            store.put("alice", Glossary(name="c", terms=terms))
    assert [info.name for info in store.listing("alice")] == ["a", "b"]


def test_there_are_limits(store: GlossaryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossary_store, "MAX_GLOSSARIES", 2)
    monkeypatch.setattr(glossary_store, "MAX_CHARACTERS", 30)
    store.put("alice", glossary("a"))
    store.put("alice", glossary("b"))
    with pytest.raises(InvalidRequest, match="at most 2 glossaries"):
        store.put("alice", glossary("c"))
    store.put("alice", glossary("b", rendering="eatery"))
    store.put("bob", glossary("c"))
    with pytest.raises(InvalidRequest, match="terms has 41 characters, at most 30"):
        store.put("alice", glossary("a", rendering="x" * 30))


@pytest.mark.parametrize("content", ["", "{}", "[]\n[]", '{"size": 1}\n{"x"', "\0", "{}\n{}\n"])
def test_damaged_file_is_named_and_may_be_replaced_or_deleted(
    store: GlossaryStore, tmp_path: Path, content: str
) -> None:
    store.put("alice", glossary())
    store.put("alice", glossary("other"))
    (file,) = tmp_path.rglob("kitchen.json")
    file.write_text(content)
    with pytest.raises(InternalError, match="'kitchen' is damaged: put or delete it"):
        store.read("alice", "kitchen")
    assert "other" in [info.name for info in store.listing("alice")]
    store.put("alice", glossary())
    assert rendering(store) == "diner"
    file.write_text(content)
    assert store.delete("alice", "kitchen").name == "kitchen"
    with pytest.raises(UnknownGlossary):
        store.read("alice", "kitchen")


def test_a_file_is_no_folder_and_no_partial_file_is_left(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SetupError, match="is not a folder"):
        GlossaryStore(file)
    store = GlossaryStore(tmp_path / "a")
    store.put("alice", glossary())
    (folder,) = (tmp_path / "a").iterdir()
    (folder / "blocked.json").mkdir()
    with pytest.raises(InternalError, match="cannot write its folder"):
        store.put("alice", glossary("blocked"))
    assert sorted(file.name for file in folder.iterdir()) == ["blocked.json", "kitchen.json"]


def test_writers_and_readers_at_once_see_whole_glossaries(tmp_path: Path) -> None:
    stores = [GlossaryStore(tmp_path / "a") for _ in range(3)]
    stores[0].put("alice", glossary())
    is_done = threading.Event()
    seen: set[int] = set()

    def write(number: int) -> None:
        for turn in range(30):
            terms = {f"term {k}": f"{number} {turn}" for k in range(200)}
            stores[number].put("alice", Glossary(name="kitchen", terms=terms))
            if turn % 5 == number:
                with suppress(UnknownGlossary):
                    stores[number].delete("alice", "kitchen")

    def read(number: int) -> None:
        while not is_done.is_set():
            with suppress(UnknownGlossary):
                found = stores[number].get("alice", "kitchen")[0].terms
                assert len(set(found.values())) == 1
                seen.add(len(found))
                stores[number].read("alice", "kitchen")

    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(read, number) for number in range(2)]
        for writer in [pool.submit(write, number) for number in range(3)]:
            writer.result()
        is_done.set()
        for reader in readers:
            reader.result()
    assert seen <= {1, 200}
    assert 200 in seen
    assert len(list((tmp_path / "a").rglob("*"))) <= 2, "a partial file is left"


def test_writers_at_once_keep_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossary_store, "MAX_GLOSSARIES", 5)
    stores = [GlossaryStore(tmp_path) for _ in range(4)]

    def put(number: int) -> bool:
        try:
            stores[number % 4].put("alice", glossary(f"g{number}"))
        except InvalidRequest:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(40))) == 5
    assert len(stores[0].listing("alice")) == 5


def test_of_writers_that_read_the_same_version_one_writes(tmp_path: Path) -> None:
    stores = [GlossaryStore(tmp_path) for _ in range(4)]
    stores[0].put("alice", glossary())
    _, read = stores[0].get("alice", "kitchen")

    def check(stored: str | None) -> None:
        if stored != read:
            raise PreconditionFailed("changed meanwhile")

    def put(number: int) -> bool:
        try:
            stores[number % 4].put("alice", glossary(rendering=f"r{number}"), check)
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(40))) == 1
    with pytest.raises(PreconditionFailed):
        stores[0].delete("alice", "kitchen", check)
    assert rendering(stores[0]).startswith("r")
