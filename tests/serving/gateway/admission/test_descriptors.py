"""The connections that a gateway holds follow from the limit on open files."""

import resource
import subprocess
import sys

import pytest

from inference.errors import SetupError
from serving.gateway.admission.descriptors import OWN, divided


@pytest.mark.parametrize("limit", [300, 1024, 20_000, 65_536])
@pytest.mark.parametrize("given", [None, 16])
def test_own_files_are_never_left_to_clients(limit: int, given: int | None) -> None:
    found = divided(limit, given)
    assert found.http_connections + found.grpc_connections + OWN <= limit
    assert min(found.http_connections, found.grpc_connections) >= 16
    if given:
        assert found.http_connections == given


@pytest.mark.parametrize(("limit", "given"), [(256, None), (1024, 5000), (64, 16)])
def test_limit_that_is_too_low_is_named(limit: int, given: int | None) -> None:
    with pytest.raises(SetupError, match=f"at most {limit} files .*ulimit -n"):
        divided(limit, given)


def test_soft_limit_is_raised_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = (
        "import resource; from serving.gateway.admission.descriptors import raise_limit\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "limit = raise_limit()\n"
        "assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0], limit\n"
        "assert limit == (65536 if hard == resource.RLIM_INFINITY else min(hard, 65536))\n"
    )
    assert hard != 64
    subprocess.run([sys.executable, "-c", program], check=True)
