"""Authorisation by one shared key, for every protocol."""

from __future__ import annotations

import hmac

from pydantic import SecretStr

from serving.errors import Unauthorized


def check_key(authorization: str | None, key: SecretStr | None) -> None:
    """Compare `Bearer KEY` with the gateway's key, if it has one, in constant time.

    Raises:
        Unauthorized: no key, or another.
    """
    if key is None:
        return
    scheme, _, given = (authorization or "").partition(" ")
    is_right = hmac.compare_digest(given.strip().encode(), key.get_secret_value().encode())
    if scheme.lower() != "bearer" or not is_right:
        raise Unauthorized("no key, or the wrong one: send Authorization: Bearer KEY")
