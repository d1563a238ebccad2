"""Settings of the models that Triton serves, and of `triptych serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from serving.settings.capacity import CapacitySettings
from serving.settings.command_settings import CommandSettings, FrontSettings
from serving.settings.served_device import ServedDevice


def _known_device(text: str | None) -> str | None:
    ServedDevice.of(text)
    return text


class ModelSettings(CapacitySettings, CommandSettings):
    """Which models Triton serves, on which device, and how much each generator holds."""

    model_config = SettingsConfigDict(env_ignore_empty=True)

    watch: bool = Field(default=False, description="Serve new versions as they are exported.")
    device: Annotated[str | None, AfterValidator(_known_device)] = Field(
        default=None,
        description="Device of the bundles that are served: cpu, cuda, or cuda:N for one card. "
        "Default: that of each bundle.",
    )
    self_check: bool = Field(
        default=True,
        description="Refuse models that do not compute here what they did at export.",
    )


class ServeSettings(ModelSettings, FrontSettings):
    """What `triptych serve` is started with."""

    glossaries: Path = Field(
        default=Path("glossaries"),
        description="Folder of the glossaries that clients store; made when the first one is.",
    )
