"""What an engine may hold: apart from the settings of commands, which its process does not load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, model_validator

from inference.errors import SetupError
from triptych.errors import first_fault

if TYPE_CHECKING:
    from inference.engine.scheduler import Capacity


class CapacitySettings(BaseModel):
    """Validated settings; None where unset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_rows: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Concurrent rows of a generator: sequences times beams.",
    )
    max_waiting: int | None = Field(
        default=None, ge=1, description="Sequences queued in a generator's engine, by priority."
    )
    max_prefill_tokens: int | None = Field(
        default=None, ge=1, description="Prompt tokens per step while nothing is decoded."
    )
    max_prefill_tokens_beside: int | None = Field(
        default=None,
        ge=1,
        description="The same while sequences are decoded, which wait for them.",
    )
    state_memory: ByteSize | None = Field(
        default=None,
        ge=1,
        description="Memory for all caches of a generator: 2GiB, 512MiB.",
    )
    prefix_memory: ByteSize | None = Field(
        default=None, ge=0, description="Prefix cache: 256MiB; 0 disables it."
    )

    draft_tokens: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="Tokens that prompt lookup proposes at most; 0 disables it (OpenVINO only).",
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
    def of(cls, given: Mapping[str, object]) -> Self:
        """The settings among a mapping's entries; other entries are ignored.

        Raises:
            SetupError: a value is invalid or out of range; the message names it.
        """
        own = {name: given[name] for name in cls.model_fields if name in given}
        try:
            return cls.model_validate(own)
        except ValidationError as error:
            name, message = first_fault(error)
            value = f"{name} is {own[name]!r}: " if name in own else ""
            raise SetupError(f"{value}{message}") from None

    def parameters(self) -> dict[str, str]:
        """The values that are set, as text for `config.pbtxt`."""
        given = self.model_dump(include=set(CapacitySettings.model_fields), exclude_none=True)
        return {name: str(int(value)) for name, value in given.items()}

    def capacity(self, otherwise: Capacity | None = None) -> Capacity:
        """The engine's capacity.

        Setting one bound on the tokens of a turn moves the others no further than needed.

        Args:
            otherwise: Values of unset fields.
        """
        from inference.engine.scheduler import Capacity  # `triptych serve` has no engine

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
            draft_tokens=base.draft_tokens if self.draft_tokens is None else self.draft_tokens,
        )
