"""Bodies and texts of unusual shapes, up to the limit of each."""

from __future__ import annotations

import gzip
import random

from tests.attack.attack import Request, requests

_BOUNDARY = "b"
_MULTIPART = f"multipart/form-data; boundary={_BOUNDARY}"
_FORM = "application/x-www-form-urlencoded"
_SIZE = 19_000_000
_KEYED = ("/v1/translate", "/v1/embeddings", "/hf/translate/example-es-en", "/translate")


@requests("json-zeros", "lists of 9 million zeros in 4 APIs", at_once=2, is_short=True)
def _zeros(_: random.Random) -> list[Request]:
    zeros = b"[" + b"0," * (_SIZE // 2) + b"0]"
    fields = (b"texts", b"input", b"inputs", b"q")
    return [
        Request(path, b'{"%s": %s}' % (field, zeros))
        for path, field in zip(_KEYED, fields, strict=True)
    ]


@requests("json-texts-many", "lists of 4 million texts and of 3 million objects", at_once=2)
def _many(_: random.Random) -> list[Request]:
    texts = b'["a"' + b',"a"' * 4_000_000 + b"]"
    objects = b"[{}" + b",{}" * 6_000_000 + b"]"
    return [
        Request("/v1/translate", b'{"texts": %s}' % texts),
        Request("/v1/embeddings", b'{"input": %s}' % texts),
        Request("/embed", b'{"inputs": %s}' % texts),
        Request("/rerank", b'{"query": "a", "texts": %s}' % texts),
        Request("/v1/generate", b'{"prompts": "a", "examples": %s}' % objects),
        Request("/v1/chat/completions", b'{"model": "example-gpt", "messages": %s}' % objects),
        Request("/v1/zero-shot", b'{"images": "a", "labels": %s}' % texts),
    ]


@requests(
    "json-keys", "objects of 1.5 million keys, of one key 1.5 million times, of 19 MB", at_once=2
)
def _keys(_: random.Random) -> list[Request]:
    distinct = b",".join(b'"k%d":0' % n for n in range(1_500_000))
    return [
        Request("/v1/translate", b"{%s}" % distinct),
        Request("/v1/translate", b'{"texts": "a", "glossary": {%s}}' % distinct),
        Request("/v1/generate", b'{"prompts": "a", "logit_bias": {%s}}' % distinct),
        Request("/translate", b"{%s}" % b",".join([b'"q":"a"'] * 1_500_000)),
        Request("/v1/translate", b'{"%s": 1}' % (b"k" * _SIZE)),
    ]


@requests("json-deep", "brackets 9 million deep, open and closed", at_once=2)
def _deep(_: random.Random) -> list[Request]:
    half = _SIZE // 2
    return [
        Request("/v1/translate", b"[" * _SIZE),
        Request("/v1/translate", b'{"texts": ' + b"[" * half + b"]" * half + b"}"),
        Request("/translate", b'{"q":' * (_SIZE // 5)),
        Request("/v1/generate", b'{"prompts": "a", "json_schema": %s}' % (b'{"a":' * 3_000_000)),
        Request(
            "/v1/generate",
            b'{"prompts": "a", "json_schema": %s1%s}' % (b'{"not":' * 20_000, b"}" * 20_000),
        ),
    ]


@requests("json-numbers", "numbers of 19 million digits, and with exponents of as many", at_once=2)
def _numbers(_: random.Random) -> list[Request]:
    digits = b"9" * _SIZE
    return [
        Request("/v1/translate", b'{"texts": "a", "num_beams": %s}' % digits),
        Request("/translate", b'{"q": %s}' % digits),
        Request("/v1/generate", b'{"prompts": "a", "temperature": 1e%s}' % digits),
        Request("/v1/generate", b'{"prompts": "a", "temperature": 0.%s}' % digits),
        Request("/v1/embeddings", b'{"input": [%s]}' % digits),
        Request("/hf/generate/example-gpt", b'{"inputs": "a", "parameters": {"x": %s}}' % digits),
    ]


@requests("json-escapes", "3 million escapes, lone surrogates, UTF-16 and UTF-32", at_once=2)
def _escapes(_: random.Random) -> list[Request]:
    return [
        Request("/v1/translate", b'{"texts": "%s"}' % (b"\\u0061" * 3_000_000)),
        Request("/v1/translate", b'{"texts": "%s"}' % (b"\\ud800" * 3_000_000)),
        Request("/translate", b'{"q": "%s"}' % (b"\\ud800" * 3_000_000)),
        Request("/translate", ('{"q": "%s"}' % ("a" * 4_000_000)).encode("utf-32")),
        Request("/v1/translate", b'{"texts": "%s"}' % (b"\xff" * _SIZE)),
        Request("/v1/translate", b'{"texts": "%s"}' % (b"\0" * _SIZE)),
        Request("/v1/translate", b" " * _SIZE),
    ]


@requests("gzip", "a body packed a thousand times smaller, with its Content-Encoding")
def _gzip(_: random.Random) -> list[Request]:
    packed = gzip.compress(b'{"texts": "%s"}' % (b"a" * 100_000_000), 1)
    return [Request(path, packed, headers={"content-encoding": "gzip"}) for path in _KEYED]


@requests("forms", "forms of 6 million fields and of 6 million escapes, without a key", at_once=2)
def _forms(_: random.Random) -> list[Request]:
    shapes = (b"a&" * 9_000_000, b"q=a&" * 4_500_000, b"q=" + b"%61" * 6_000_000, b"=" * _SIZE)
    return [
        Request(path, shape, kind=_FORM, is_keyed=is_keyed)
        for shape in shapes
        for path in ("/translate", "/detect")
        for is_keyed in (False, True)
    ]


def _part(name: str, content: bytes, *headers: str) -> bytes:
    lines = [f"--{_BOUNDARY}", f'content-disposition: form-data; name="{name}"', *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content + b"\r\n"


_END = f"--{_BOUNDARY}--\r\n".encode()


@requests("multipart-parts", "multipart forms of 200,000 parts and files", at_once=2, is_short=True)
def _parts(_: random.Random) -> list[Request]:
    fields = _part("texts", b"a") * 200_000 + _END
    files = (
        f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="images"; filename="a"\r\n\r\n\r\n'
    ).encode() * 150_000 + _END
    paths = ("/v1/caption", "/v1/classify", "/translate_file", "/translate")
    return [Request(path, body, kind=_MULTIPART) for path in paths for body in (fields, files)] + [
        Request("/translate_file", fields, kind=_MULTIPART, is_keyed=False)
    ]


@requests("multipart-headers", "parts with 500,000 headers, or one of 15 MB", at_once=2)
def _part_headers(_: random.Random) -> list[Request]:
    many = _part("a", b"", *(f"x-{n}: 1" for n in range(500_000))) + _END
    long = _part("a", b"", "x-long: " + "a" * 15_000_000) + _END
    named = _part("a" * 15_000_000, b"") + _END
    escaped = _part("\\" * 7_000_000 + '"' * 7_000_000, b"") + _END
    paths = ("/v1/caption", "/translate_file")
    return [
        Request(path, body, kind=_MULTIPART)
        for path in paths
        for body in (many, long, named, escaped)
    ]


@requests("multipart-boundaries", "nearly boundaries, nested forms, a preamble of 19 MB", at_once=2)
def _boundaries(_: random.Random) -> list[Request]:
    nearly = b"\r\n--b-" * (_SIZE // 6)
    nested = (
        _part("a", b"", f"content-type: {_MULTIPART}".replace("=b", f"={n}")) for n in range(50_000)
    )
    shapes = (
        b"--b\r\n\r\n" + nearly,
        _part("images", nearly) + _END,
        b"".join(nested),
        b"x" * _SIZE + b"\r\n" + _END,
        b"--b" + b"\r" * _SIZE,
        _END + b"\r\n" * (_SIZE // 2),
    )
    return [
        *(Request("/v1/caption", shape, kind=_MULTIPART) for shape in shapes),
        *(Request("/translate_file", shape, kind=_MULTIPART) for shape in shapes),
        Request("/v1/caption", b"a", kind="multipart/form-data; boundary=" + "-" * 60_000),
    ]


_MODEL = "example-es-en"
_KINDS = ["urls", "emails", "placeholders", "tags"]


def _translate(text: str, **fields: object) -> Request:
    return Request.of("/v1/translate", {"texts": text, "model": _MODEL, **fields})


def _libre(text: str, **fields: object) -> Request:
    return Request.of("/translate", {"q": text, "source": "es", "target": "en", **fields})


@requests(
    "combining-marks",
    "0.5 MB of alternating combining marks, with a glossary",
    finding=4,
    is_short=True,
)
def _marks(_: random.Random) -> list[Request]:
    marks = "a" + "\u0301\u0323" * 125_000
    return [
        _translate(marks, glossary={"mundo": "globe"}),
        _translate("\u0323\u0301" * 60_000, do_not_translate=["a"]),
        _translate("hola", glossary={"a" + "\u0301\u0323" * 90: "b"}),
        Request.of(
            "/v1/glossaries/marks",
            {"terms": {f"a{n}" + "\u0301\u0323" * 90: "b" for n in range(1000)}},
            method="PUT",
        ),
        _libre(marks),
        Request.of("/detect", {"q": marks}),
    ]


@requests(
    "normalisation", "Hangul, Tibetan, compositions and ligatures that grow, 0.5 MB each", at_once=2
)
def _normalisation(rng: random.Random) -> list[Request]:
    marks = "".join(
        chr(rng.choice((0x0F71, 0x0F72, 0x0F74, 0x0F80, 0x3099, 0x05B0))) for _ in range(9)
    )
    shapes = (
        "\u1112\u1161\u11ab", "\uac01", "\u0f40" + marks, "\ufdfa", "\u0958", "\u1e9b\u0323", "İ",
        "\u200b", "\u202e\u202d", "👨\u200d👩\u200d👧\u200d👦", "\U000e0041",
        "\u0345\u0314\u0301",
    )  # fmt: skip
    glossary = {"mundo": "globe", "ﷺ": "x"}
    return [
        request
        for shape in shapes
        for text in (shape * (250_000 // len(shape)),)
        for request in (_translate(text, glossary=glossary), _translate(text))
    ]


@requests("normalisation-admitted", "1900 characters of odd Unicode in each of 32 texts", at_once=4)
def _admitted(_: random.Random) -> list[Request]:
    shapes = ("a\u0301\u0323", "\u0f40\u0f71\u0f72\u0f80", "\ufdfa", "👨\u200d👩", "\u200b", "İ")
    return [
        Request.of(
            path,
            {field: [(shape * 1900)[:1900]] * 32, "model": model},
        )
        for shape in shapes
        for path, field, model in (
            ("/v1/translate", "texts", _MODEL),
            ("/v1/embed", "texts", "example-bert-embed"),
            ("/v1/tag", "texts", "example-bert-tags"),
        )
    ]


@requests(
    "markup-words",
    "HTML with 1 and 3 MB of words between inline tags",
    finding=5,
    is_short=True,
    at_once=2,
)
def _markup(_: random.Random) -> list[Request]:
    return [
        _libre("<p>" + "hola <b>mundo</b> " * 60_000 + "</p>", format="html"),
        _libre("<p>" + "hola " * 200_000 + "</p>", format="html"),
        _libre("<p>" + "hola <b>mundo</b> " * 180_000 + "</p>", format="html"),
        _libre("<p>" + "a" * 3_000_000 + "<b>b</b></p>", format="html"),
        _libre("<p>" + "a " * 1500 + "<b>b</b> " * 300 + "</p>", format="html"),
    ]


@requests(
    "markup-shapes", "pages of 19 MB: tags, attributes, entities, nesting, comments", at_once=2
)
def _shapes(_: random.Random) -> list[Request]:
    size = 15_000_000
    shapes = (
        "<b>" * (size // 3),
        "<b>" * 100_000 + "hola" + "</b>" * 100_000,
        "<p " + "a=b " * (size // 4) + ">hola</p>",
        "<p a='" + "b" * size + "'>hola</p>",
        "&amp;" * (size // 5),
        "&#x" + "1" * size + ";",
        "&" * size,
        "<!--" * (size // 4),
        "<" * size,
        "<![CDATA[" * (size // 9),
        "<script>" + "</scrip" * (size // 7),
        "<p>hola</p>" * (size // 11),
        "<a><p>" * 200_000,
        "<table><tr><td>" * 100_000,
        "<i>a</i>" * 20_000,
        "<p>" + "<b><i>" * 200 + "hola" + "</i></b>" * 200 + "</p>",
    )
    return [_libre(shape, format="html") for shape in shapes]


@requests(
    "sentences-long", "texts of 2 to 19 MB to be divided into sentences", finding=6, at_once=2
)
def _sentences(_: random.Random) -> list[Request]:
    return [
        _translate("El mundo no es suficiente, " * 75_000),
        _translate("a. " * 6_300_000),
        _translate("a" * 19_000_000),
        _translate("." * 19_000_000),
        _translate("¿" * 9_000_000),
        _translate("a.b" * 600_000),
        _translate("\n" * 19_000_000),
        _translate("hola " * 400_000, glossary={"x" * 199: "y"}),
        _libre("a. " * 6_000_000),
        _libre("Sr. " * 4_000_000),
        _libre(["a " * 900] * 10_000),
    ]


@requests("words-long", "texts of one word, as long as is admitted and longer", at_once=2)
def _words(_: random.Random) -> list[Request]:
    models = ("example-bert-embed", "example-bert-sentiment", "example-bert-tags")
    paths = ("/v1/embed", "/v1/classify", "/v1/tag")
    return [
        request
        for size in (1000, 20_000, 500_000)
        for request in (
            _translate("x" * size),
            _translate("漢" * size),
            _translate("9" * size),
            *(
                Request.of(path, {"texts": "q" * size, "model": model})
                for path, model in zip(paths, models, strict=True)
            ),
            Request.of("/v1/generate", {"prompts": "z" * size, "model": "example-gpt"}),
        )
    ]


@requests(
    "terms", "1000 terms of 200 characters in texts that nearly have them", finding=6, at_once=2
)
def _terms(_: random.Random) -> list[Request]:
    alike = {f"{'a ' * 97}{n:05}": "b" for n in range(1000)}
    prefixes = {" ".join(["a"] * n): "b" for n in range(1, 100)}
    text = "a " * 1500
    return [
        _translate(text, glossary=alike),
        _translate(text, glossary=prefixes),
        _translate([text] * 32, glossary=alike),
        _translate("a " * 250_000, glossary=alike),
        _translate("a " * 250_000, do_not_translate=list(alike)),
        _translate("A" * 3000, glossary={"A" * n: "b" for n in range(1, 200)}),
        _translate(text, glossary={f"t{n}": "b" for n in range(1_000_000)}),
        _translate("hola", glossary={"hola": "b" * 5_000_000}),
        _translate("hola " * 300, glossary={"hola": "b" * 200}),
    ]


@requests("kinds", "texts that nearly are addresses, placeholders and tags", at_once=2)
def _kinds(_: random.Random) -> list[Request]:
    shapes = (
        "http://", "a@", "a.a@a.", "{", "{{", "${", "%(", "%1$", "<", "<b ", "&", "&#", "www.",
        "http://a(", "a" * 50 + "@", "<b a='", "http://a.a.", "%", "{a}", "a@b.c ",
    )  # fmt: skip
    return [
        _translate((shape * size)[:size], do_not_translate_kinds=_KINDS)
        for shape in shapes
        for size in (4_000, 1_000_000)
    ]


@requests("products", "as many texts, labels and pairs as one request may have", at_once=2)
def _products(_: random.Random) -> list[Request]:
    texts, label = ["hola " * 300] * 32, [f"label {n}" for n in range(1000)]
    return [
        Request.of("/v1/rerank", {"query": "a " * 250, "documents": texts}),
        Request.of("/v1/rerank", {"query": "a", "documents": ["b"] * 100_000}),
        Request.of("/v1/answer", {"question": "a " * 250, "passages": texts, "n": 20}),
        Request.of(
            "/v1/answer",
            {"question": "a", "passages": "b " * 4000, "stride": 380, "max_answer_tokens": 128},
        ),
        Request.of("/v1/classify", {"texts": [["a " * 200, "b " * 200]] * 32}),
        Request.of("/v1/classify", {"texts": texts, "model": "example-bert-sentiment"}),
        Request.of("/similarity", {"inputs": {"source_sentence": "a", "sentences": texts * 30}}),
        Request.of(
            "/hf/example-bert-sentiment",
            {"inputs": texts, "parameters": {"candidate_labels": label}},
        ),
        Request.of("/v1/fill-mask", {"texts": ["[MASK] " * 100] * 32, "top_k": 1000}),
        Request.of("/v1/fill-mask", {"texts": "[MASK]" * 1_000_000}),
        Request.of("/v1/embed", {"texts": texts, "model": "example-bert-embed"}),
        Request.of("/v1/embeddings", {"model": "example-bert-embed", "input": [1] * 4_000_000}),
        Request.of("/v1/embeddings", {"model": "example-bert-embed", "input": [[1]] * 2_000_000}),
        Request.of("/v1/score", {"prompts": texts, "continuations": ["a"] * 32}),
    ]


@requests("detect", "19 MB in a language to be identified", at_once=2)
def _detect(_: random.Random) -> list[Request]:
    shapes = ("hola ", "a", "\n", "漢", "é", "a. ")
    made = [Request.of("/detect", {"q": shape * (6_000_000 // len(shape))}) for shape in shapes]
    made += [
        Request.of("/translate", {"q": shape * 3_000_000, "source": "auto", "target": "en"})
        for shape in shapes
    ]
    made.append(Request.of("/detect", {"q": ["hola"] * 2_000_000}))
    return made
