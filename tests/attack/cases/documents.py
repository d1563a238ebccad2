"""Files to be translated: archives, XML, subtitles and pages of unusual shapes."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable

from tests.attack.attack import Request, requests

_TYPES = (
    b'<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/'
    b'content-types"><Default Extension="xml" ContentType="application/xml"/></Types>'
)
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_OFFICE = "urn:oasis:names:tc:opendocument:xmlns"


def _translate_file(name: str, content: bytes, **others: object) -> Request:
    fields = "".join(
        f'--b\r\ncontent-disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in (("source", "es"), ("target", "en"))
    )
    head = f'--b\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = fields.encode() + head.encode() + content + b"\r\n--b--\r\n"
    return Request("/translate_file", body, kind="multipart/form-data; boundary=b", **others)


def archive(files: Iterable[tuple[str, bytes]], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file."""
    sink = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(sink, "w", kind) as made:
        warnings.simplefilter("ignore")  # of equal names, which are meant
        for name, content in files:
            made.writestr(zipfile.ZipInfo(name), content, kind)  # without the time
    return sink.getvalue()


def docx(*paragraphs: bytes, extra: Iterable[tuple[str, bytes]] = (), kind: int = 8) -> bytes:
    """A Word file whose body has this XML."""
    body = b'<w:document xmlns:w="%s"><w:body>%s</w:body></w:document>'
    document = body % (_WORD.encode(), b"".join(paragraphs))
    files = (("[Content_Types].xml", _TYPES), ("word/document.xml", document), *extra)
    return archive(files, kind)


def odt(content: bytes) -> bytes:
    """A text of OpenDocument whose body has this XML."""
    body = (
        f'<office:document-content xmlns:office="{_OFFICE}:office:1.0" '
        f'xmlns:text="{_OFFICE}:text:1.0"><office:body><office:text>'
    ).encode()
    end = b"</office:text></office:body></office:document-content>"
    kind = b"application/vnd.oasis.opendocument.text"
    return archive((("mimetype", kind), ("content.xml", body + content + end)))


_PARAGRAPH = b"<w:p><w:r><w:t>Hola.</w:t></w:r></w:p>"


@requests(
    "archives-packed",
    "small Word files with 96 MB in bzip2, LZMA and deflate",
    finding=11,
    seconds=12,
    at_once=2,
    is_short=True,
)
def _packed(_: random.Random) -> list[Request]:
    pattern = bytes(96_000_000)
    kinds = (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED)
    return [
        _translate_file("a.docx", docx(_PARAGRAPH, extra=[("media/a", pattern)], kind=kind))
        for kind in kinds
    ]


@requests("archives-damaged", "archives with damaged entries of each compression", finding=12)
def _damaged(rng: random.Random) -> list[Request]:
    made = []
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        content = docx(_PARAGRAPH * 50, extra=[("media/a", rng.randbytes(5000))], kind=kind)
        for _ in range(12):
            changed = bytearray(content)
            for _ in range(3):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            made.append(_translate_file("a.docx", bytes(changed)))
    return made


@requests("archives-many", "archives of 60,000 entries, of overlapping ones, with odd names")
def _entries(_: random.Random) -> list[Request]:
    many = archive((f"word/{n}.xml", b"") for n in range(60_000))
    names = (
        "../../../../tmp/attacked",
        "/etc/attacked",
        "word\\..\\a",
        "a" * 60_000,
        "a\0b",
        "word/",
    )
    odd = docx(_PARAGRAPH, extra=[(name, b"x") for name in names])
    return [
        _translate_file("a.docx", many),
        _translate_file("a.docx", odd),
        _translate_file("a.docx", _overlapping(4000)),
        _translate_file("a.epub", archive((f"{n}.xhtml", b"<p>a</p>") for n in range(4900))),
        _translate_file("a.docx", docx(_PARAGRAPH, extra=[("word/document.xml", b"<a/>")] * 50)),
    ]


def _overlapping(count: int) -> bytes:
    """A zip whose entries all point to one packed part of 10 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(bytes(10_000_000)) + packer.flush()
    sizes = (zlib.crc32(bytes(10_000_000)), len(packed), 10_000_000)
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 8, 0, 0, *sizes, 1, 0) + b"a"
    rows = []
    for number in range(count):
        name = f"word/{number}.xml".encode()
        fields = (0x02014B50, 20, 20, 0, 8, 0, 0, *sizes, len(name), 0, 0, 0, 0, 0, 0)
        rows.append(struct.pack("<IHHHHHHIIIHHHHHII", *fields) + name)
    central = b"".join(rows)
    end = (0x06054B50, 0, 0, count, count, len(central), len(local) + len(packed), 0)
    return local + packed + central + struct.pack("<IHHHHIIH", *end)


@requests("xml", "XML in a Word file: deep, wide, entities, long attributes and names", at_once=2)
def _xml(_: random.Random) -> list[Request]:
    size = 9_000_000
    entity = b'<!DOCTYPE a [<!ENTITY a "%s">%s]>' % (
        b"hola" * 100,
        b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a;" * 10) for n in range(10)),
    )
    shapes = (
        b"<w:p>" * 200_000,
        b"<w:p>" * 200_000 + b"</w:p>" * 200_000,
        _PARAGRAPH * 9_999,
        _PARAGRAPH * 200_000,
        b"<w:p>" + b"<w:r><w:t>a</w:t></w:r>" * 100_000 + b"</w:p>",
        b"<w:p>" + b"<w:r><w:t>a</w:t></w:r>" * 4_900 + b"</w:p>",
        b'<w:p w:a="' + b"a" * size + b'"/>',
        b"<w:p " + b" ".join(b'w:a%d=""' % n for n in range(500_000)) + b"/>",
        b"<w:p " + b" ".join(b'xmlns:a%d="b"' % n for n in range(300_000)) + b"/>",
        b"<" + b"a" * size + b"/>",
        b"<!--" + b"-" * size,
        b"<w:p>&#" + b"0" * size + b";</w:p>",
        b"<w:p><w:r><w:t>" + b"a" * size + b"</w:t></w:r></w:p>",
    )
    files = [docx(shape) for shape in shapes]
    files.append(
        archive((("[Content_Types].xml", _TYPES), ("word/document.xml", entity + b"<a>&a9;</a>")))
    )
    return [_translate_file("a.docx", file) for file in files]


@requests("odt-numbers", "numbers of 5,000 and 5 million digits in OpenDocument", finding=12)
def _odt(_: random.Random) -> list[Request]:
    digits = (b"9" * 5000, b"9" * 5_000_000, b"100000000", b"-5", b"1e9", "٩".encode() * 2000)
    return [
        _translate_file("a.odt", odt(b"<text:p>a<text:%s text:c='%s'/>b</text:p>" % (tag, number)))
        for number in digits
        for tag in (b"s", b"tab")
    ]


@requests("subtitles", "subtitles of 18 MB", finding=6, seconds=10, at_once=2)
def _subtitles(_: random.Random) -> list[Request]:
    cue = "{n}\n00:00:01,000 --> 00:00:02,000\nHola.\n\n"
    many = "".join(cue.format(n=n) for n in range(380_000)).encode()
    return [
        _translate_file("a.srt", many),
        _translate_file("a.srt", many[:450_000]),
        _translate_file("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\n" + b"a\n" * 9_000_000),
        _translate_file("a.srt", b"\n" * 19_000_000),
        _translate_file("a.srt", b"-->" * 6_000_000),
        _translate_file("a.srt", b"1\n00:00:01,000 --> " + b" " * 18_000_000),
    ]


@requests("files-plain", "texts and pages of 19 MB as files", seconds=10, at_once=2)
def _plain(_: random.Random) -> list[Request]:
    return [
        _translate_file("a.txt", b"hola " * 3_800_000),
        _translate_file("a.txt", b"a. " * 6_000_000),
        _translate_file("a.txt", b"Hola.\n\n" * 9_900),
        _translate_file("a.txt", b"\xff\xfe" + b"a\0b" * 19_000_000),
        _translate_file("a.html", b"<p>hola <b>b</b></p>" * 9_900),
        _translate_file("a.html", b"<p>" + b"hola <b>mundo</b> " * 500_000 + b"</p>"),
        _translate_file("a.html", b"<meta " + b"charset " * 2_000_000),
        _translate_file("a." + "x" * 5_000_000, b"hola"),
        _translate_file("a.pdf", b"%PDF-1.7" + b"\n" * 19_000_000),
    ]
