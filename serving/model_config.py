"""`config.pbtxt`: a model's configuration on disk, and as Triton passes it to a backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from inference.errors import BundleError

CONFIG = "config.pbtxt"
LEFT_OUT = 2**31 - 1
"""The version of a bundle that a supervisor tries, in vain, to show that no version of it loads.

Of a model that is not served, Triton shows clients over gRPC only which versions were tried.
"""


def read_config(model_folder: Path, version: int) -> Any:
    """A version's configuration, as Triton's message: its own file, or that of all versions.

    Raises:
        BundleError: the file is missing or is not a model configuration.
    """
    path = model_folder / str(version) / CONFIG
    if not path.exists():
        path = model_folder / CONFIG
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), config)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    except text_format.ParseError as error:
        raise BundleError(f"{path} is not a model configuration: {error}") from error
    return config


def as_loaded(config: Any) -> dict[str, Any]:
    """A configuration as Triton passes it to a backend: what has no value has its default."""
    fields: dict[str, Any] = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields
