"""Documents that are ZIP archives: read within limits, written with some files replaced."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping

from serving.documents.limits import MAX_ENTRIES, MAX_UNPACKED_BYTES, MAX_XML_BYTES
from serving.errors import InvalidRequest, PayloadTooLarge

_ENCRYPTED = 0x1


class Archive:
    """An archive in memory.

    Args:
        content: Its bytes.

    Raises:
        InvalidRequest: not an archive, a damaged or an encrypted one.
        PayloadTooLarge: it would unpack to more than the limit, or has too many files.
    """

    def __init__(self, content: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(content))
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
            raise InvalidRequest("file is damaged, or of another kind than its name says") from None
        entries = self._zip.infolist()
        if len(entries) > MAX_ENTRIES:
            raise PayloadTooLarge(f"file contains more than {MAX_ENTRIES} files")
        if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
            raise PayloadTooLarge(f"file unpacks to more than {MAX_UNPACKED_BYTES} bytes")
        if any(entry.flag_bits & _ENCRYPTED for entry in entries):
            raise InvalidRequest("file is encrypted: remove its password")
        self.names = [entry.filename for entry in entries]
        if len(set(self.names)) < len(self.names):
            raise InvalidRequest("file is damaged: it contains two files of one name")
        self._parsed_bytes = 0

    def read(self, name: str) -> bytes:
        """A file that is going to be parsed.

        Raises:
            InvalidRequest: there is none, or it is damaged.
            PayloadTooLarge: it and those read before are larger than the limit.
        """
        if name not in self.names:
            raise InvalidRequest(f"file is damaged: it has no {name}")
        self._parsed_bytes += self._zip.getinfo(name).file_size
        if self._parsed_bytes > MAX_XML_BYTES:
            raise PayloadTooLarge(f"file has more than {MAX_XML_BYTES} bytes of text and markup")
        return self._content(self._zip.getinfo(name))

    def written(self, replaced: Mapping[str, bytes]) -> bytes:
        """The archive with some files replaced; order and compression stay.

        Raises:
            InvalidRequest: a file is damaged.
        """
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w") as archive:
            for entry in self._zip.infolist():
                content = replaced.get(entry.filename)
                kept = zipfile.ZipInfo(entry.filename, entry.date_time)
                kept.compress_type, kept.external_attr = entry.compress_type, entry.external_attr
                archive.writestr(kept, self._content(entry) if content is None else content)
        return target.getvalue()

    def _content(self, entry: zipfile.ZipInfo) -> bytes:
        try:
            with self._zip.open(entry) as file:
                content = file.read(entry.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError):
            raise InvalidRequest("file is damaged: a part of it cannot be unpacked") from None
        if len(content) != entry.file_size:
            raise InvalidRequest("file is damaged: a part of it has another size than it says")
        return content
