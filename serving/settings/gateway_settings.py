"""Addresses and limits of the gateway."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field, HttpUrl, IPvAnyNetwork, SecretStr, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from inference.process_limits import usable_cores
from inference.processing.image import PILLOW_MAX_PIXELS, ImageLimits
from serving.settings.command_settings import FrontSettings, GracePeriod, JsonOutput
from triptych.messages import MAX_BEAMS, MAX_STOPS

if TYPE_CHECKING:
    import httpx

    from inference.tasks.shared.loaded_model import TaskLimits

_ORIGIN = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<any>\*\.)?"
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True)
class ImageOrigin:
    """A scheme, a host or all below a domain, and a port."""

    scheme: str
    host: str
    port: int
    has_subdomains: bool

    @classmethod
    def parse(cls, text: str) -> ImageOrigin:
        """`HOST`, `*.DOMAIN`, `https://HOST:PORT`, `http://HOST`; without a scheme it is https.

        Raises:
            ValueError: something else.
        """
        match = _ORIGIN.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a host: give HOST, *.DOMAIN or https://HOST:PORT, comma-separated"
            )
        scheme = match["scheme"] or "https"
        port = int(match["port"] or _PORTS[scheme])
        return cls(scheme, match["host"].lower().strip("[]"), port, match["any"] is not None)

    def matches(self, url: httpx.URL) -> bool:
        """Whether a URL is of this origin."""
        host = url.host.lower()
        is_host = host.endswith(f".{self.host}") if self.has_subdomains else host == self.host
        is_port = (url.port or _PORTS.get(url.scheme)) == self.port
        return url.scheme == self.scheme and is_port and is_host


DialectName = Literal["openai", "huggingface", "tgi", "tei", "libretranslate", "openinference"]
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")
"""HOST:PORT; gRPC's own URIs (`dns://…`, `unix:…`) are taken too."""
Names = Annotated[tuple[str, ...], NoDecode]
"""Comma-separated."""
Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
DIALECTS: tuple[DialectName, ...] = get_args(DialectName)


class GatewaySettings(FrontSettings):
    """What `triptych gateway` is started with; names follow text-generation-inference."""

    triton: Names = Field(
        default=("127.0.0.1:8001",),
        min_length=1,
        description="Triton's gRPC address; of several, comma-separated: HOST:PORT. A name with "
        "several addresses is several Tritons; it is looked up again every second.",
    )
    triton_metrics: Names = Field(
        default=(),
        description="Triton's metrics address; its heartbeats show which models are alive. Of "
        "several, one for each of --triton, in the same order.",
    )
    state: Path | None = Field(
        default=None,
        description="File in which triptych triton --state records what is served, and why a model "
        "is not. Default: served.json in the repository.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="Key required of every request but probes and the page.",
    )
    api_keys: Path | None = Field(
        default=None,
        description="TOML file with the hashes of several keys and their limits, read again when "
        "it changes (triptych key makes entries).",
    )
    limits_store: SecretStr | None = Field(
        default=None,
        description="Redis or Valkey server in which several gateways count, so that limits of "
        "--api-keys hold for all of them together: redis://HOST:PORT, rediss:// with TLS. Needs "
        "'triptych[redis]'.",
    )
    cors_allow_origin: Names = Field(
        default=(), description="Origins allowed to browsers, comma-separated."
    )
    public_url: HttpUrl | None = Field(
        default=None,
        description="Address at which a proxy publishes the gateway, with the path that it "
        "removes; for links in responses. Default: what each request was sent to.",
    )
    allowed_hosts: Names = Field(
        default=(),
        description="Names under which the gateway may be requested while it listens on loopback "
        "or needs no key, comma-separated: HOST or *.DOMAIN. Addresses, localhost, names without "
        "dots and that of --public-url always may.",
    )
    dialects: Annotated[tuple[DialectName, ...], NoDecode] = Field(
        default=DIALECTS,
        description="APIs of other services that are served beside Triptych's own, "
        f"comma-separated, of {', '.join(DIALECTS)}; paths of the others are 404. Empty: none.",
    )
    page: bool = Field(default=True, description="Serve a page for browsers at /.")
    max_concurrent_requests: int = Field(
        default=128, ge=1, description="Concurrent requests; more get 429."
    )
    max_concurrent_tokens: int = Field(
        default=262_144, ge=1, description="Input tokens of all concurrent requests; more get 429."
    )
    max_concurrent_pixels: int = Field(
        default=500_000_000,
        ge=1,
        description="Pixels of the images of all concurrent requests; more get 429.",
    )
    max_concurrent_bytes: int = Field(
        default=268_435_456,
        ge=1,
        description="Bytes of the bodies of all concurrent requests, the first 64 KB of each "
        "excepted; more get 429.",
    )
    max_connections: int | None = Field(
        default=None,
        ge=16,
        le=1_000_000,
        description="Open HTTP connections of each worker; a further one replaces one that waits "
        "for its client. Default: 2048, or what the limit on open files leaves.",
    )
    max_concurrent_sequences: int = Field(
        default=64,
        ge=1,
        le=256,
        description="Concurrent sequences at Triton; others wait for their turn.",
    )
    max_calls_per_model: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Concurrent calls to one stateless model; others wait and are joined. "
        "Default: one more than it has instances.",
    )
    max_batch_tokens: int = Field(
        default=1024,
        ge=1,
        description="Tokens of a joined call to a stateless model, padding included.",
    )
    max_input_tokens: int = Field(
        default=4096, ge=1, description="Tokens of one text; a model's own limit is tighter."
    )
    max_client_batch_size: int = Field(
        default=32, ge=1, le=1024, description="Texts or images in one request."
    )
    max_best_of: int = Field(
        default=MAX_BEAMS, ge=1, le=MAX_BEAMS, description="Sequences generated for one prompt."
    )
    max_stop_sequences: int = Field(
        default=4, ge=1, le=MAX_STOPS, description="Stop strings of one request."
    )
    max_prompt_images: int = Field(
        default=16, ge=1, le=1024, description="Images between the words of one prompt."
    )
    payload_limit: int = Field(
        default=20_000_000, ge=1024, description="Maximum size of a request's body, in bytes."
    )
    max_image_pixels: int = Field(
        default=50_000_000,
        ge=1,
        le=PILLOW_MAX_PIXELS,
        description="Maximum number of pixels of one image.",
    )
    work_processes: int | None = Field(
        default=None,
        ge=2,
        le=256,
        description="Processes that decode images and read documents, of all workers together, "
        "but at least two of each. Default: one more than there are cores.",
    )
    work_memory: int = Field(
        default=1_500_000_000,
        ge=100_000_000,
        description="Memory of one of these processes beside what it starts with, in bytes.",
    )
    image_urls: Annotated[tuple[ImageOrigin, ...], NoDecode] = Field(
        default=(),
        description="Hosts that images may be fetched from, comma-separated: HOST or *.DOMAIN "
        "(https), http://HOST:PORT. Default: images are not fetched.",
    )
    image_url_networks: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field(
        default=(),
        description="Networks beside the public internet that those hosts may have addresses in, "
        "comma-separated: 10.1.0.0/16.",
    )
    image_url_timeout: Seconds = Field(
        default=10.0,
        description="Time limit of fetching one image, redirects included, in seconds.",
    )
    request_timeout: Seconds = Field(
        default=60.0, description="Time limit of one request, in seconds."
    )
    recovery_timeout: float | None = Field(
        default=None,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Longest time for which requests wait for a model whose process has ended, in "
        "seconds; they then go on where they were. 0: they fail at once. Default: all the time "
        "that they have.",
    )
    read_timeout: Seconds = Field(
        default=20.0,
        description="Time limit of a request's header, and of each 1000 bytes a second of its "
        "body, in seconds.",
    )
    write_timeout: Seconds = Field(
        default=30.0,
        description="Time in which a client must go on reading a response, in seconds.",
    )
    graceful_termination_timeout: GracePeriod = 30.0
    json_output: JsonOutput = False

    @field_validator("image_urls", mode="before")
    @classmethod
    def _origins(cls, value: object) -> object:
        return tuple(map(ImageOrigin.parse, _parts(value))) if isinstance(value, str) else value

    @field_validator(
        *("allowed_hosts", "cors_allow_origin", "dialects", "image_url_networks"),
        *("triton", "triton_metrics"),
        mode="before",
    )
    @classmethod
    def _split(cls, value: object) -> object:
        return _parts(value) if isinstance(value, str) else value

    @field_validator("triton", "triton_metrics")
    @classmethod
    def _have_ports(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if "://" not in each and not each.startswith("unix:") and not _ADDRESS.fullmatch(each):
                raise ValueError(f"{each!r} is no address: give HOST:PORT, comma-separated")
        if len(set(value)) < len(value):
            raise ValueError("an address is given twice")
        return value

    @field_validator("limits_store")
    @classmethod
    def _is_redis(cls, value: SecretStr | None) -> SecretStr | None:
        if value and not value.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("give redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH")
        return value

    @field_validator("triton_metrics")
    @classmethod
    def _one_for_each(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and len(value) != len(info.data.get("triton", value)):
            raise ValueError("give one address for each of --triton, in the same order")
        return value

    @property
    def own_processes(self) -> int:
        """Of this worker, for work that cannot be cancelled."""
        wanted = self.work_processes or usable_cores() + 1
        return max(2, -(-wanted // self.workers))

    @property
    def task_limits(self) -> TaskLimits:
        """The limits that tasks check."""
        # Imported here: it loads all tasks, which `triptych gateway --help` does not need.
        from inference.tasks.shared.loaded_model import TaskLimits

        return TaskLimits(
            max_input_tokens=self.max_input_tokens,
            max_client_batch_size=self.max_client_batch_size,
            max_best_of=self.max_best_of,
            max_stop_sequences=self.max_stop_sequences,
            max_prompt_images=self.max_prompt_images,
            image=ImageLimits(max_pixels=self.max_image_pixels),
        )


def _parts(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())
