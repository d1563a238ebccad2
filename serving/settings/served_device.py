"""Which device bundles are served on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from inference.errors import DeviceError

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
