"""API keys: which callers are served, under which names they are logged, and their limits.

A file holds names and hashes, not keys. Keys are long random strings, so one SHA-256 is enough: it
cannot be reversed by guessing, and looking it up takes the same time for every wrong key.
"""

from __future__ import annotations

import hashlib
import logging
import time
import tomllib
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from inference.errors import SetupError, Unauthorized
from triptych.errors import first_fault

log = logging.getLogger(__name__)

SINGLE = "default"
"""Name of the key that is given as a setting."""
_RELOAD_S = 1.0
"""Between two looks at the file."""


Resource: TypeAlias = Literal["requests", "tokens", "pixels", "bytes"]


class ApiKey(BaseModel):
    """One entry of the file: a key's hash and its limits; without one, the gateway's apply."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    max_concurrent_tokens: int | None = Field(default=None, ge=1)
    max_concurrent_pixels: int | None = Field(default=None, ge=1)
    max_concurrent_bytes: int | None = Field(default=None, ge=1)

    def limit(self, resource: Resource) -> int | None:
        """The most of a resource that the key's requests may use at once, if that is limited."""
        limit: int | None = getattr(self, f"max_concurrent_{resource}")
        return limit


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[ApiKey] = Field(min_length=1)


KEY: ContextVar[ApiKey | None] = ContextVar("key", default=None)
"""The key of the request that the current task serves, once it has been checked."""


def key_name() -> str | None:
    """The name of that key, if there is one."""
    key = KEY.get()
    return key.name if key is not None else None


class Keys:
    """The keys of a gateway.

    Args:
        single: A key without limits of its own.
        file: A TOML file with a table `[[keys]]` for each key. It is read again when it has
            changed; a file that cannot be read then is logged, and the keys stay as they were.
        clock: Seconds.

    Raises:
        SetupError: the file cannot be read.
    """

    def __init__(
        self,
        single: SecretStr | None = None,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._clock = clock
        self._single = {}
        if single is not None:
            digest = _digest(single.get_secret_value())
            self._single = {digest: ApiKey(name=SINGLE, sha256=digest)}
        self._signature = _signature(file)
        self._by_digest = self._single | (_read(file) if file else {})
        self._looked_s = clock()

    @property
    def are_required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._by_digest)

    def check_header(self, authorization: str | None) -> None:
        """Find the key of `Authorization: Bearer KEY`; it becomes `KEY` of the current context.

        Raises:
            Unauthorized: there is none, or an unknown one.
        """
        self.check(bearer(authorization))

    def check(self, *given: str) -> None:
        """The same for keys that came in several places; one known key is enough."""
        if not self.are_required:
            return
        self._reload()
        for one in given:
            if one and (found := self._by_digest.get(_digest(one))):
                KEY.set(found)
                return
        raise Unauthorized("no key, or the wrong one: send Authorization: Bearer KEY")

    def _reload(self) -> None:
        if self._file is None or self._clock() - self._looked_s < _RELOAD_S:
            return
        self._looked_s = self._clock()
        signature = _signature(self._file)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._by_digest = self._single | _read(self._file)
        except SetupError as error:
            log.error("the keys stay as they were: %s", error.message)
            return
        log.info("keys read again", extra={"keys": len(self._by_digest)})


def bearer(authorization: str | None) -> str:
    """The key of an `Authorization` header; empty if it has none."""
    scheme, _, given = (authorization or "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _signature(file: Path | None) -> tuple[int, ...]:
    try:
        found = file.stat() if file else None
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found else ()


def _read(file: Path) -> dict[str, ApiKey]:
    try:
        fields = tomllib.loads(file.read_text(encoding="utf-8"))
        keys = _File.model_validate(fields).keys
    except OSError as error:
        raise SetupError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} is not TOML: {error}") from None
    except ValidationError as error:
        where, message = first_fault(error)
        raise SetupError(f"{file}: {where}: {message} (triptych key makes entries)") from None
    by_digest = {key.sha256: key for key in keys}
    names = {key.name for key in keys} | {SINGLE}
    if len(by_digest) < len(keys) or len(names) <= len(keys):
        raise SetupError(f"{file}: two keys have one name or one hash, or one is named {SINGLE!r}")
    return by_digest
