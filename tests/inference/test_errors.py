"""The error tree and its drawing."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from inference import errors


def leaf_errors(kind: type[errors.ServingError]) -> Iterator[type[errors.ServingError]]:
    for child in kind.__subclasses__():
        yield child
        yield from leaf_errors(child)


REQUEST_ERRORS = [
    kind for kind in leaf_errors(errors.ServingError) if not issubclass(kind, errors.SetupError)
]


def test_the_drawing_shows_every_error_with_its_statuses() -> None:
    drawn = {
        cells[0]: cells[1:]
        for line in (errors.__doc__ or "").splitlines()
        if (cells := line.strip("│├└─ ").split()) and len(cells) == 4
    }
    actual = {
        kind.__name__: [str(kind.http_status), kind.grpc_status, kind.wire]
        for kind in REQUEST_ERRORS
    }
    assert {name: drawn.get(name) for name in actual} == actual


def test_wire_names_are_unique() -> None:
    names = [kind.wire for kind in leaf_errors(errors.ServingError)]
    assert len(names) == len(set(names))


def test_grpc_statuses_exist() -> None:
    assert all(hasattr(grpc.StatusCode, kind.grpc_status) for kind in REQUEST_ERRORS)
