"""Triton's model control over HTTP: load one version by name, read what is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from serving.errors import BundleError, SetupError


class ModelControl:
    """The control calls of one server.

    Args:
        address: `host:port` of Triton's HTTP endpoint.
        timeout_s: Longest wait for one answer; loading a model is one.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        self._http = httpx.Client(base_url=f"http://{address}", timeout=timeout_s, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def is_live(self) -> bool:
        """Whether the server answers."""
        try:
            return self._http.get("/v2/health/live", timeout=2.0).is_success
        except httpx.HTTPError:
            return False

    def load(self, model: str, config: dict[str, Any]) -> None:
        """Load a model, or replace it by what the configuration says; returns when it is done.

        Raises:
            SetupError: Triton refused, with Triton's own words.
        """
        parameters = {"parameters": {"config": json.dumps(config)}}
        try:
            answer = self._http.post(f"/v2/repository/models/{model}/load", json=parameters)
        except httpx.HTTPError as error:
            raise SetupError(
                f"Triton gave no answer while loading {model!r}: {type(error).__name__}"
            ) from error
        if answer.is_error:
            raise SetupError(f"Triton cannot load {model!r}: {_reason(answer)}")

    def version(self, model: str) -> int | None:
        """The version that answers, None where the model is not loaded."""
        try:
            answer = self._http.get(f"/v2/models/{model}")
        except httpx.HTTPError:
            return None
        if answer.is_error:
            return None
        return max((int(version) for version in answer.json().get("versions", ())), default=None)


def model_config(model_folder: Path, version: int, incarnation: int = 0) -> dict[str, Any]:
    """A model's `config.pbtxt`, narrowed to one version, as Triton's load request wants it.

    Triton's own choice is the largest number, complete or not. The incarnation (how often the model
    was healed) goes into an unused parameter: Triton ignores a load of what it believes to be
    loaded unchanged, even when the process behind it is dead. Clients can read it there: a stream
    that began under an earlier one will never be answered.

    Raises:
        BundleError: the file is missing or is not a model configuration.
    """
    path = model_folder / "config.pbtxt"
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), config)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    except text_format.ParseError as error:
        raise BundleError(f"{path} is not a model configuration: {error}") from error
    config.version_policy.specific.versions[:] = [version]
    config.parameters["incarnation"].string_value = str(incarnation)
    fields: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return fields


def _reason(answer: httpx.Response) -> str:
    """Triton's error, on one line."""
    try:
        reason = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        reason = f"HTTP {answer.status_code}"
    return " ".join(str(reason).split()).removesuffix(";")
