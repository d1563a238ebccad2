"""How much a generator's engine holds at once, as an operator says it.

Each field is a flag of `triptych serve` and `triptych triton` (`--max-rows`), an environment
variable (`TRIPTYCH_MAX_ROWS`) and a parameter in a model's `config.pbtxt` (`max_rows`). What is
said on the command line holds for all generators and goes before their files; what nobody says is
the engine's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, model_validator

from serving.engine.scheduler import Capacity
from serving.errors import SetupError


class CapacitySettings(BaseModel):
    """What was said, validated; None where nothing was."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_rows: int | None = Field(
        default=None, ge=1, le=4096, description="Live rows of a generator: sequences x beams."
    )
    max_waiting: int | None = Field(
        default=None, ge=1, description="Sequences in an engine that wait for rows, by priority."
    )
    max_prefill_tokens: int | None = Field(
        default=None, ge=1, description="Prompt tokens read at once while nothing is decoded."
    )
    max_prefill_tokens_beside: int | None = Field(
        default=None, ge=1, description="The same beside running streams, which wait for it."
    )
    state_memory: ByteSize | None = Field(
        default=None, ge=1, description="All caches of a generator, such as 2GiB or 512MiB."
    )
    prefix_memory: ByteSize | None = Field(
        default=None, ge=0, description="Stored beginnings of prompts; 0 stores none."
    )

    @model_validator(mode="after")
    def _beside_is_the_smaller(self) -> Self:
        alone, beside = self.max_prefill_tokens, self.max_prefill_tokens_beside
        if alone is not None and beside is not None and beside > alone:
            raise ValueError(
                f"max_prefill_tokens_beside ({beside}) must not exceed max_prefill_tokens ({alone})"
            )
        return self

    @classmethod
    def of(cls, said: Mapping[str, object]) -> Self:
        """The settings among a mapping's entries; other entries are somebody else's.

        Raises:
            SetupError: a value is out of range, or none at all; its name is in the message.
        """
        own = {name: said[name] for name in cls.model_fields if name in said}
        try:
            return cls.model_validate(own)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(map(str, first["loc"]))
            value = f"{name} is {own[name]!r}: " if name in own else ""
            raise SetupError(f"{value}{first['msg'].removeprefix('Value error, ')}") from None

    def parameters(self) -> dict[str, str]:
        """What was said, as text for `config.pbtxt`."""
        said = self.model_dump(exclude_none=True)
        return {name: str(int(value)) for name, value in said.items()}

    def capacity(self, otherwise: Capacity | None = None) -> Capacity:
        """The engine's capacity.

        Who names one bound on the tokens of a turn moves the others no further than needed.

        Args:
            otherwise: What holds where nothing was said.
        """
        base = otherwise or Capacity()
        alone, beside = self.max_prefill_tokens, self.max_prefill_tokens_beside
        beside = beside or min(base.prefill_tokens_beside, alone or base.prefill_tokens)
        return replace(
            base,
            rows=self.max_rows or base.rows,
            waiting=self.max_waiting or base.waiting,
            prefill_tokens=alone or max(base.prefill_tokens, beside),
            prefill_tokens_beside=beside,
            chunk_tokens=min(base.chunk_tokens, beside),
            state_bytes=self.state_memory or base.state_bytes,
            prefix_bytes=base.prefix_bytes if self.prefix_memory is None else self.prefix_memory,
        )
