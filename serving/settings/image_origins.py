"""Origins that images may be fetched from, as an operator lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

_ORIGIN = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<any>\*\.)?"
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
_PORTS = {"https": 443, "http": 80}


class AnyUrl(Protocol):
    """A parsed URL."""

    @property
    def scheme(self) -> str:
        """`https`."""
        ...

    @property
    def host(self) -> str:
        """Without brackets, in lower case."""
        ...

    @property
    def port(self) -> int | None:
        """None: the scheme's."""
        ...


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

    def matches(self, url: AnyUrl) -> bool:
        """Whether a URL is of this origin."""
        host = url.host.lower()
        is_host = host.endswith(f".{self.host}") if self.has_subdomains else host == self.host
        is_port = (url.port or _PORTS.get(url.scheme)) == self.port
        return url.scheme == self.scheme and is_port and is_host
