"""Settings of Triton, its models and their engines.

Each field is a flag of `triptych serve` and `triptych triton` (`--max-rows`), an environment
variable (`TRIPTYCH_MAX_ROWS`) and a parameter in a model's `config.pbtxt` (`max_rows`). The
command line applies to all generators and overrides their files; unset values are the engine's
defaults.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from inference.errors import DeviceError
from serving.settings.capacity_settings import CapacitySettings
from serving.settings.command_settings import (
    CommandSettings,
    FrontSettings,
    GracePeriod,
    JsonOutput,
    Port,
)

if TYPE_CHECKING:
    from inference.bundle.manifest import Bundle


GPU = Path("/dev/nvidiactl")
"""There on every Linux machine, and in every container, that can use an NVIDIA GPU."""


@dataclass(frozen=True)
class ServedDevice:
    """What `--device` selects. A bundle is for one device, so this refuses, or chooses a card.

    Attributes:
        serves_cuda: Whether bundles for CUDA are served.
        is_required: Whether there must be a card, or the server does not start.
        card: The card of CUDA bundles; None: what their configurations say, every card.
    """

    serves_cuda: bool = True
    is_required: bool = False
    card: int | None = None

    @classmethod
    def of(cls, text: str | None) -> Self:
        """The device that a flag names: `cpu`, `cuda`, `cuda:N`; None: that of each bundle.

        Raises:
            ValueError: it is none of these.
        """
        if text is None:
            return cls()
        kind, colon, number = text.partition(":")
        if kind == "cpu" and not colon:
            return cls(serves_cuda=False)
        if kind != "cuda" or (colon and not number.isdecimal()):
            raise ValueError(f"{text!r} is no device: supported are cpu, cuda and cuda:N")
        return cls(is_required=True, card=int(number) if colon else None)

    def check(self) -> None:
        """Refuse to start without the card that was asked for.

        Raises:
            DeviceError: names what is missing.
        """
        if self.is_required:
            from inference.engine.runners.cuda.installation import check_card

            check_card(self.card or 0)

    def require(self, bundle: Bundle) -> None:
        """Refuse a bundle whose graphs are for a device that is not there, or not to be used.

        Raises:
            DeviceError: names the device, and what to do.
        """
        manifest = bundle.manifest
        if manifest.device != "cuda":
            return
        described = f"{manifest.name} version {bundle.version} is for CUDA ({manifest.precision})"
        if not self.serves_cuda:
            raise DeviceError(f"{described}, and --device is cpu: export it with --device cpu")
        if not GPU.exists():
            raise DeviceError(
                f"{described}, and this machine has no GPU ({GPU} is missing): serve it where "
                "there is one, or export it with --device cpu"
            )


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
        default=True, description="Refuse models that do not compute here what they did at export."
    )


class ServeSettings(ModelSettings, FrontSettings):
    """What `triptych serve` is started with."""

    glossaries: Path = Field(
        default=Path("glossaries"),
        description="Folder of the glossaries that clients store; made when the first one is.",
    )


class TritonSettings(ModelSettings):
    """Settings of one Triton server and of its supervisor; HTTP has a private socket, no port."""

    without_variable: ClassVar[frozenset[str]] = frozenset({"host", "grpc_port", "metrics_port"})
    """The gateway's variables have these names."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of gRPC and metrics; never a public one.",
    )
    grpc_port: Port = Field(default=8001, description="0 takes any free port.")
    metrics_port: Port = Field(default=8002, description="0 takes any free port.")
    program: Path | None = Field(
        default_factory=lambda: os.environ.get("TRITONSERVER") or None, validate_default=True
    )
    """The `tritonserver` to run; None: the one on PATH, else the one in the PyPI wheel."""
    graceful_termination_timeout: GracePeriod = 30.0
    stuck_after: float = Field(
        default=30.0,
        ge=1,
        le=3600,
        allow_inf_nan=False,
        description="Seconds without a heartbeat after which a model, or an unresponsive server, "
        "is restarted; longer than the longest prefill.",
    )
    retire_after: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that the old version stays loaded after a switch, for requests that a "
        "gateway has prepared for it: not less than its --request-timeout. At least 2.",
    )
    state: Path | None = Field(
        default=None,
        description="File that records the served versions. Default: served.json in the "
        "repository.",
    )
    plans: Path | None = Field(
        default=None,
        description="Folder of TensorRT's plans, built if missing. Default: beside the repository.",
    )
    json_output: JsonOutput = False

    @property
    def served_device(self) -> ServedDevice:
        """The device of the bundles that are served."""
        return ServedDevice.of(self.device)
