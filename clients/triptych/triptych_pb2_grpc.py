"""The stub of `triptych.v1.Triptych`, made of the service's descriptor when it is called for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass

from triptych.triptych_pb2 import DESCRIPTOR

_SERVICE = DESCRIPTOR.services_by_name["Triptych"]


class TriptychStub:
    """A callable for each method, with the method's name, as grpcio-tools would generate it.

    Args:
        channel: Of `grpc` or of `grpc.aio`.
    """

    def __init__(self, channel: Any) -> None:
        for method in _SERVICE.methods:
            begin = channel.unary_stream if method.server_streaming else channel.unary_unary
            call = begin(
                f"/{_SERVICE.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
                _registered_method=True,
            )
            setattr(self, method.name, call)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
