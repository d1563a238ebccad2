"""Files to be translated, of unusual shapes, and images that are slow or large to decode."""

from __future__ import annotations

import base64
import io
import random
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from functools import cache

from PIL import Image

from tests.attack.attack import Request, requests
from tests.fuzz.cases import PICTURE
from tests.pictures import encoded

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


_MODEL = "example-vit"
_SIDE = 7000


def _classify(data: bytes, **others: object) -> Request:
    text = base64.b64encode(data).decode()
    return Request.of("/v1/classify", {"images": [text], "model": _MODEL}, **others)


def _small() -> Request:
    return _classify(PICTURE)


def progressive_jpeg(side: int, scans: int) -> bytes:
    """A grey JPEG whose scans have no coefficients: 60 bytes each, and all blocks to be passed."""
    runs = (side // 8 + 1) ** 2 // 32_767 + 1
    bits = ("0" + "1" * 14) * runs  # end of band for 32,767 blocks
    bits += "1" * (-len(bits) % 8)
    packed = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    frame = _segment(0xC2, struct.pack(">BHHB3B", 8, side, side, 1, 1, 0x11, 0))
    tables = _segment(0xDB, b"\0" + b"\1" * 64)
    tables += _segment(0xC4, b"\x10" + bytes([1] + [0] * 15) + b"\xe0")
    scan = _segment(0xDA, bytes((1, 1, 0, 1, 63, 0))) + packed
    return b"\xff\xd8" + tables + frame + scan * scans + b"\xff\xd9"


def _segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def png(width: int, height: int, colour: int, *chunks: bytes, is_interlaced: bool = False) -> bytes:
    """A black PNG of so many pixels, with further chunks."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    if is_interlaced:
        passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4))
        passes += ((1, 0, 2, 2), (0, 1, 1, 2))
        sizes = [(-(-(width - x) // w), -(-(height - y) // h)) for x, y, w, h in passes]
    else:
        sizes = [(width, height)]
    size = sum(rows * (1 + columns * channels) for columns, rows in sizes)
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, int(is_interlaced))
    parts = [b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", header), *chunks]
    if colour == 3:
        parts.append(_chunk(b"PLTE", bytes(768)))
    parts += [_chunk(b"IDAT", _zeros(size)), _chunk(b"IEND", b"")]
    return b"".join(parts)


@cache
def _zeros(size: int) -> bytes:
    packer, piece = zlib.compressobj(1), bytes(1_000_000)
    packed = [packer.compress(piece) for _ in range(size // len(piece))]
    packed += [packer.compress(bytes(size % len(piece))), packer.flush()]
    return b"".join(packed)


def _chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)


@requests(
    "jpeg-scans",
    "3 progressive JPEG files of 7000 x 7000 with 10,000 scans, beside small images",
    finding=3,
    seconds=10,
    is_short=True,
)
def _scans(_: random.Random) -> list[Request]:
    slow = _classify(progressive_jpeg(_SIDE, 10_000))
    return [slow, slow, slow, *[_small()] * 4]


@requests(
    "jpeg-scans-allowed", "4 progressive JPEG files of 7000 x 7000 with 100 scans", seconds=10
)
def _allowed_scans(_: random.Random) -> list[Request]:
    return [_classify(progressive_jpeg(_SIDE, 100))] * 4 + [_small()] * 4


@requests("jpeg-scans-hidden", "JPEG scans after comments, in MPO, in TIFF, and twice the start")
def _hidden_scans(_: random.Random) -> list[Request]:
    file = progressive_jpeg(3000, 10_000)
    comment = _segment(0xFE, b"\xff\xda" * 30_000)
    tiff_tags = (
        (256, 3, 3000), (257, 3, 3000), (258, 3, 8), (259, 3, 7), (262, 3, 1), (273, 4, 200),
        (277, 3, 1), (278, 3, 3000), (279, 4, len(file)),
    )  # fmt: skip
    directory = struct.pack("<H", len(tiff_tags)) + b"".join(
        struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tiff_tags
    )
    tiff = (b"II*\0\x08\0\0\0" + directory + bytes(4)).ljust(200, b"\0") + file
    app = _segment(0xE1, b"Exif\0\0" + file[:60_000])
    return [
        _classify(file[:2] + comment * 20 + file[2:]),
        _classify(tiff),
        _classify(file[:2] + app + file[2:]),
        _classify(file[:2] + b"\xff" * 1_000_000 + file[2:]),
        _classify(file[:-2] + b"\xff\xd0" * 10 + file[200:]),
        _classify(file.replace(b"\xff\xda", b"\xff\xff\xff\xda")),
    ]


@requests(
    "png-transparent", "4 PNG files of 50 megapixels with transparency", finding=20, seconds=12
)
def _transparent(_: random.Random) -> list[Request]:
    return [_classify(png(7071, 7071, 6))] * 4 + [_small()]


@requests("png-interlaced", "4 interlaced PNG files of 49 megapixels", seconds=12)
def _interlaced(_: random.Random) -> list[Request]:
    return [
        *[_classify(png(_SIDE, _SIDE, 2, is_interlaced=True))] * 2,
        *[_classify(png(_SIDE, _SIDE, 6, is_interlaced=True))] * 2,
        _small(),
    ]


@requests("png-chunks", "PNG files with text and profiles that unpack to 2 GB, or 700,000 chunks")
def _chunks(_: random.Random) -> list[Request]:
    bomb = _zeros(1_000_000_000)
    return [
        _classify(png(8, 8, 2, _chunk(b"zTXt", b"a\0\0" + bomb))),
        _classify(png(8, 8, 2, _chunk(b"iTXt", b"a\0\1\0\0\0" + bomb))),
        _classify(png(8, 8, 2, _chunk(b"iCCP", b"a\0\0" + bomb))),
        _classify(png(8, 8, 2, _chunk(b"tEXt", b"a\0" + b"x" * 14_000_000))),
        _classify(png(8, 8, 2, _chunk(b"tEXt", b"a\0b") * 700_000)),
        _classify(png(8, 8, 2, _chunk(b"eXIf", b"II*\0\x08\0\0\0" + b"\xff" * 1_000_000))),
        _classify(png(7071, 7071, 6, _chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)))),
        _classify(png(16_384, 3000, 2)[:-1000]),
    ]


@requests("frames", "GIF, WebP, AVIF, TIFF and APNG files of many frames", at_once=2)
def _frames(_: random.Random) -> list[Request]:
    frames = [Image.new("RGB", (600, 600), (n * 37 % 256, n * 91 % 256, 0)) for n in range(40)]
    made = []
    for name in ("GIF", "WEBP", "TIFF", "PNG", "AVIF"):
        every = encoded(frames[0], name, save_all=True, append_images=frames[1:])
        made.append(_classify(every))
    content = encoded(Image.new("P", (16, 16)), "GIF")
    block = content[content.index(b",") : -1]
    made.append(_classify(content[:-1] + block * 300_000 + b";"))
    made.append(_classify(_directories(100_000)))
    return made


def _directories(count: int) -> bytes:
    """A TIFF file whose directories are in a row, the last one before the first."""
    directory = struct.pack("<HHHIII", 1, 256, 3, 1, 9, 0)
    size = len(directory)
    rows = [directory[:-4] + struct.pack("<I", 8 + size * (n + 1)) for n in range(count)]
    rows[-1] = directory[:-4] + struct.pack("<I", 8)
    return b"II*\0\x08\0\0\0" + b"".join(rows)


@requests("formats", "large images in each other format, and files of formats that are not read")
def _formats(_: random.Random) -> list[Request]:
    made = []
    large = Image.new("RGB", (6000, 6000))
    for name, options in (
        ("WEBP", {"quality": 1, "method": 0}),
        ("BMP", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
        ("TIFF", {"compression": "zstd"}),
    ):
        picture = large.resize((2000, 2000)) if name == "BMP" else large
        made.append(_classify(encoded(picture, name, **options)))
    made += [
        _classify(data)
        for data in (
            b"P6 7000 7000 255\n" + bytes(14_000_000),
            b"P1 7000 7000\n" + b"1 " * 7_000_000,
            b"P3 3000 3000 65535\n" + b"#a\n" * 4_000_000,
            b"P6" + b"0" * 14_000_000,
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n{} loop\n",
            b"<svg xmlns='http://www.w3.org/2000/svg' width='99999' height='99999'/>",
            b"8BPS\0\1" + b"\xff" * 1000,
            b"\0\0\1\0\xff\xff" + bytes(2_000_000),
            b"BM" + b"\xff" * 100_000,
            b"RIFF\xff\xff\xff\xffWEBPVP8X" + b"\xff" * 100_000,
            bytes(14_000_000),
        )
    ]
    return made


@requests("images-many", "32 images of 1.5 megapixels in a request, 8 requests", seconds=12)
def _many(_: random.Random) -> list[Request]:
    text = base64.b64encode(png(1250, 1250, 6)).decode()
    return [Request.of("/v1/classify", {"images": [text] * 32, "model": _MODEL})] * 8


@requests("labels-many", "1000 labels for 32 images, and 100,000 labels", seconds=10)
def _labels(_: random.Random) -> list[Request]:
    image = base64.b64encode(PICTURE).decode()
    images, labels = [image] * 32, [f"a {n}" for n in range(100_000)]
    return [
        Request.of("/v1/zero-shot", {"images": images, "labels": labels[:1000]}),
        Request.of("/v1/zero-shot", {"images": image, "labels": labels}),
        Request.of("/v1/zero-shot", {"images": image, "labels": ["red " * 70] * 1000}),
        Request.of("/v1/embed", {"images": images, "model": "example-clip"}),
        Request.of("/v1/classify", {"images": images, "model": _MODEL, "return_attention": True}),
        Request.of("/v1/caption", {"images": images, "num_beams": 16, "alternatives": 16}),
    ]


@requests("base64", "base64 of 14 MB of spaces, line breaks, padding, and odd data URIs", at_once=2)
def _base64(_: random.Random) -> list[Request]:
    image = base64.b64encode(PICTURE).decode()
    size = 14_000_000
    texts = (
        " " * size, "\n".join([image] * 3) + "\n" * size, "=" * size, "A" * size, "!" * size,
        "data:" + "a/" * (size // 2) + ";base64," + image, "data:image/png;" + "a=b;" * (size // 4),
        "data:image/png," + "%41" * (size // 3), "-_" * (size // 2), image[:-1] + "=" * 1000,
    )  # fmt: skip
    return [Request.of("/v1/classify", {"images": text, "model": _MODEL}) for text in texts]


@requests("image-urls", "60 URLs of images that lead inside, or nowhere", at_once=8)
def _urls(_: random.Random) -> list[Request]:
    urls = (
        "file:///etc/passwd", "http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:8001/",
        "http://[::1]/", "http://0/", "http://2130706433/", "http://0x7f.1/", "https://a@127.0.0.1/",
        "gopher://127.0.0.1/", "http://localhost#@a.example/", "//127.0.0.1/", "http:\\\\127.0.0.1",
        "http://" + "a" * 1_000_000, "https://a.example/" + "../" * 1_000_000, "http://a\r\nb: c/",
    )  # fmt: skip
    return [
        Request.of("/v1/classify", {"images": url, "model": _MODEL})
        for url in urls
        for _ in range(4)
    ]
