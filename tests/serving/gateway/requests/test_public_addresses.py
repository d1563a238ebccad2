"""Which addresses are public, and which origins `--image-urls` lists."""

from __future__ import annotations

import ipaddress

import httpx
import pytest
from pydantic import ValidationError

from serving.gateway.requests.public_addresses import is_public
from serving.settings.gateway_settings import GatewaySettings


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"),
        *("2002:7f00:1::", "2002:a00:1::1", "2001:0:7f00:1::1", "2001:db8::1", "100::1"),
    ],
)
def test_address_that_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_address(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def test_origins_of_the_flag() -> None:
    settings = GatewaySettings(image_urls="a.example, *.b.example,http://c.example:81,[::1]")
    cases = {
        "https://a.example/x": True,
        "https://A.example:443/x": True,
        "http://a.example/x": False,
        "https://x.a.example/": False,
        "https://x.b.example/": True,
        "https://b.example/": False,
        "https://xb.example/": False,
        "http://c.example:81/": True,
        "http://c.example/": False,
        "https://[::1]/": True,
    }
    for url, expected in cases.items():
        found = any(origin.matches(httpx.URL(url)) for origin in settings.image_urls)
        assert found == expected, url


@pytest.mark.parametrize(
    "wrong", ["*", "https://", "a b", "ftp://a", "user@a", "a/path", "a:123456"]
)
def test_flag_that_is_no_list_of_hosts(wrong: str) -> None:
    with pytest.raises(ValidationError):
        GatewaySettings(image_urls=wrong)
