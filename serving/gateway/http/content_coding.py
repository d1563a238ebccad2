"""Bodies in a content coding (RFC 9110, section 8.4), decoded in small pieces as they are read."""

from __future__ import annotations

import asyncio
import zlib

from starlette.types import Message, Receive

from inference.errors import MalformedBody, PayloadTooLarge, UnsupportedMediaType

GZIP, DEFLATE = "gzip", "deflate"
PIECE_BYTES = 65_536
"""Decoded at once: a tenth of a millisecond."""
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15


def decode(receive: Receive, header: str | None, limit: int) -> Receive:
    """`receive` of the decoded body; what it receives is counted by its caller.

    Args:
        header: `Content-Encoding` of the request.
        limit: Of the body as it is sent, in bytes.
    """
    codings = [one for part in (header or "").split(",") if (one := part.strip().lower())]
    codings = [one.removeprefix("x-") for one in codings if one != "identity"]
    if not codings:
        return receive
    if len(codings) > 1 or codings[0] not in (GZIP, DEFLATE):
        return _refusing(", ".join(codings))
    return _Decoder(receive, codings[0], limit).receive


def _refusing(codings: str) -> Receive:
    async def refuse() -> Message:
        named = codings if len(codings) <= 64 and codings.isascii() else "of the request"
        raise UnsupportedMediaType(
            f"the content-encoding {named} is not read: send gzip, deflate or none"
        )

    return refuse


class _Decoder:
    """One body.

    Args:
        receive: Messages with the encoded body.
        coding: gzip, or deflate.
        limit: Of the encoded body, in bytes.
    """

    def __init__(self, receive: Receive, coding: str, limit: int) -> None:
        self._receive = receive
        self._coding = coding
        self._limit = limit
        self._received = 0
        self._rest = b""
        """Received and not decoded yet."""
        self._has_more = True
        self._is_over = False
        self._stream: zlib._Decompress | None = None

    async def receive(self) -> Message:
        """The next piece.

        Raises:
            MalformedBody: not of the coding, or cut.
            PayloadTooLarge: too many encoded bytes.
        """
        if self._is_over:
            return await self._receive()
        while True:
            await asyncio.sleep(0)  # other requests have their turns between pieces
            if self._has_more and len(self._rest) < 2:  # two bytes tell the form of deflate
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._take(message)
                continue
            piece = self._decode()
            self._is_over = not (self._has_more or self._rest or self._is_pending)
            if piece or self._is_over:
                return {"type": "http.request", "body": piece, "more_body": not self._is_over}

    def _take(self, message: Message) -> None:
        part = message.get("body", b"")
        self._received += len(part)
        if self._received > self._limit:
            raise PayloadTooLarge(f"the body has more than {self._limit} bytes: send several")
        self._rest += part
        self._has_more = message.get("more_body", False)

    @property
    def _is_pending(self) -> bool:
        """Whether the stream may hold bytes that it has read and not returned."""
        return self._stream is not None and not self._stream.eof

    def _decode(self) -> bytes:
        if not self._rest and not self._is_pending:
            return b""
        if self._stream is None or self._stream.eof:
            self._stream = zlib.decompressobj(self._bits)
        before = self._rest
        try:
            piece = self._stream.decompress(before, PIECE_BYTES)
        except zlib.error:
            raise MalformedBody(f"the body is not {self._coding}, its content-encoding") from None
        self._rest = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        if self._stream.eof and self._rest and self._coding == DEFLATE:
            raise MalformedBody("the body has bytes behind its end: send one deflate stream")
        if not (piece or self._rest or self._has_more or self._stream.eof):
            raise MalformedBody(f"the body ends before its {self._coding} stream does")
        return piece

    @property
    def _bits(self) -> int:
        """Zlib's parameter: deflate is zlib's form, which some clients leave out."""
        if self._coding == GZIP:
            return _GZIP_BITS
        first = int.from_bytes(self._rest[:2], "big")
        is_zlib = len(self._rest) >= 2 and first >> 8 & 15 == 8 and first % 31 == 0
        return _ZLIB_BITS if is_zlib else _RAW_BITS
