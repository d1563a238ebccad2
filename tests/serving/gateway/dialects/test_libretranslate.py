"""`/translate`, `/detect`, `/languages`: LibreTranslate's API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from export.tokenizer.languages import aliases
from inference.bundle.inputs import AlignmentSpec
from inference.errors import DeadlineExceeded, Overloaded, Unavailable
from inference.tasks.shared.loaded_model import LoadedModel
from tests.serving.gateway.conftest import Gateway, MakeGateway, loaded
from tests.serving.gateway.http.test_page import served

KEY = "sesame"


def translator(name: str, *pairs: tuple[str, str], **fields: object) -> LoadedModel:
    return loaded(
        "translate", {"languages": list(pairs)}, name=name, parts={"generate": name}, **fields
    )


def many(name: str) -> LoadedModel:
    tokens = {
        "codes": {"eng_Latn": 10, "fra_Latn": 11, "zho_Hans": 12, "zho_Hant": 13},
        "aliases": {"en": ("eng_Latn",), "fr": ("fra_Latn",), "zh": ("zho_Hans", "zho_Hant")},
        "place": "before",
    }
    return loaded("translate", {"tokens": tokens}, name=name, parts={"generate": name})


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway(
        [translator("spanish", ("es", "en"), default=True), translator("french", ("en", "fr"))]
    )


async def post(gateway: Gateway, path: str, **fields: Any) -> httpx.Response:
    return await gateway.http.post(path, json=fields)


def error_of(response: httpx.Response) -> str:
    assert set(response.json()) == {"error"}
    assert "Traceback" not in response.text
    message: str = response.json()["error"]
    return message


async def test_text_and_list_of_texts(gateway: Gateway) -> None:
    one = await post(gateway, "/translate", q="hola", source="es", target="en")
    assert one.json() == {"translatedText": "hola"}
    asked = {"q": ["hola", "", "12", "a b"], "source": "es", "target": "en"}
    several = await gateway.http.post("/translate", json=asked)
    assert several.json() == {"translatedText": ["hola", "", "12", "a b"]}
    assert [call.model for call in gateway.inference.calls] == ["spanish"] * 3


async def test_form_is_read_as_json_is(gateway: Gateway) -> None:
    fields = {"q": ["hola", "a\r\nb"], "source": "es", "target": "en", "alternatives": "1"}
    for form in ({"data": fields}, {"data": fields, "files": {"unused": b""}}):
        response = await gateway.post("/translate", **form)
        assert response.json()["translatedText"] == ["hola", "a\nb"]
        assert response.json()["alternatives"] == [[], []]


async def test_form_may_hold_letters_as_they_are(gateway: Gateway) -> None:
    """As curl's `-d` sends them; `%` escapes mean what they mean, also beside them."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    content = "q=¿está%3F+sí&source=es&target=en".encode()
    response = await gateway.http.post("/translate", content=content, headers=headers)
    assert response.json() == {"translatedText": "¿está? sí"}


async def test_pair_of_languages_chooses_the_model(gateway: Gateway) -> None:
    for source, target, model in (("es", "en", "spanish"), ("EN-us", "fr", "french")):
        response = await post(gateway, "/translate", q="a", source=source, target=target)
        assert response.status_code == 200, response.text
        assert gateway.inference.calls[-1].model == model


async def test_two_models_translate_through_a_language_in_between(
    make_gateway: MakeGateway,
) -> None:
    pairs = [("es", "ca"), ("ca", "fr"), ("es", "en"), ("en", "fr"), ("fr", "de"), ("pt", "ca")]
    gateway = make_gateway([translator("".join(pair), pair) for pair in pairs])
    listed = {one["code"]: one["targets"] for one in (await gateway.http.get("/languages")).json()}
    assert listed["es"] == ["ca", "en", "es", "fr"]  # German is two languages farther
    assert listed["fr"] == ["de", "fr"]
    for source, models in (("es", ["esen", "enfr"]), ("pt", ["ptca", "cafr"])):
        gateway.inference.calls.clear()
        fields = {"q": ["a", "", "b c"], "source": source, "target": "fr", "alternatives": 1}
        response = await post(gateway, "/translate", **fields)
        assert response.json()["translatedText"] == ["a", "", "b c"]
        assert sorted({call.model for call in gateway.inference.calls}) == sorted(models)
        further = [one for one in gateway.inference.calls if one.options.num_return_sequences == 2]
        assert {one.model for one in further} == {models[1]}  # alternatives are the last model's
    gateway.inference.calls.clear()
    response = await post(gateway, "/translate", q="hola", source="es", target="de")
    assert (response.status_code, gateway.inference.calls) == (400, [])
    assert "supported are: ca, en, fr" in error_of(response)


async def test_page_through_a_language_in_between(gateway: Gateway) -> None:
    page = '<p>a <b>b</b> c</p><p translate="no">d</p>'
    asked = {"q": page, "source": "es", "target": "fr", "format": "html"}
    response = await post(gateway, "/translate", **asked)
    assert response.status_code == 200, response.text
    assert "d</p>" in response.json()["translatedText"]
    assert {call.model for call in gateway.inference.calls} == {"spanish", "french"}


async def test_text_in_the_target_language_stays_as_it_is(gateway: Gateway) -> None:
    response = await post(gateway, "/translate", q=" a  b ", source="fr", target="fr")
    assert response.json() == {"translatedText": " a  b "}
    assert gateway.inference.calls == []


async def test_models_of_many_languages_are_listed_by_short_codes(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway([many("all"), translator("pair", ("en", "fr"))])
    listed = {one["code"]: one for one in (await gateway.http.get("/languages")).json()}
    assert list(listed) == ["en", "fr", "zho_Hans", "zho_Hant"]
    assert listed["fr"]["name"] == "French"
    assert listed["fr"]["targets"] == ["en", "fr", "zho_Hans", "zho_Hant"]
    await post(gateway, "/translate", q="a", source="en", target="fr")
    assert gateway.inference.calls[-1].model == "pair"


async def test_alternatives_are_further_texts_that_differ(gateway: Gateway) -> None:
    response = await post(gateway, "/translate", q="a", source="es", target="en", alternatives=2)
    assert response.json() == {"translatedText": "a", "alternatives": []}  # the fake repeats
    options = gateway.inference.calls[-1].options
    assert (options.num_return_sequences, options.num_beams) == (3, 3)


async def test_source_is_identified_among_what_is_translated(gateway: Gateway) -> None:
    text = "Mi hermana trabaja en un restaurante."
    one = (await post(gateway, "/translate", q=text, source="auto", target="en")).json()
    assert one["detectedLanguage"]["language"] == "es"
    far = (await post(gateway, "/translate", q=text, source="auto", target="fr")).json()
    assert far["detectedLanguage"] == one["detectedLanguage"]
    assert one["detectedLanguage"]["confidence"] > 80
    two = (await post(gateway, "/translate", q=[text] * 2, source="auto", target="en")).json()
    assert two["detectedLanguage"] == [one["detectedLanguage"]] * 2
    # English is not translated into Spanish here: what is served decides.
    text = "My sister works in a restaurant."
    other = (await post(gateway, "/translate", q=text, source="auto", target="es")).json()
    assert other["detectedLanguage"]["language"] == "es"


SPANISH, ENGLISH = "El mundo no es suficiente.", "The world is not enough."


@pytest.mark.parametrize("form", ["text", "html"])
@pytest.mark.parametrize("texts", [[SPANISH, ENGLISH, "12", ""], [ENGLISH, SPANISH, SPANISH]])
async def test_source_of_each_text_of_a_list_is_identified(
    gateway: Gateway, form: str, texts: list[str]
) -> None:
    fields = {"source": "auto", "target": "en", "format": form, "alternatives": 1}
    answer = (await post(gateway, "/translate", q=texts, **fields)).json()
    assert answer["translatedText"] == texts  # the tiny model repeats its words
    assert len(answer["alternatives"]) == len(texts)
    found = [one["language"] for one in answer["detectedLanguage"]]
    assert [found[texts.index(text)] for text in (SPANISH, ENGLISH)] == ["es", "en"]
    read = gateway.inference.calls  # texts that are English already are not translated
    assert len(read) == texts.count(SPANISH)
    assert not any(one["confidence"] for one in answer["detectedLanguage"][2:] if len(texts) == 4)


@pytest.mark.parametrize("form", ["text", "html"])
async def test_errors_name_the_place_in_a_list_of_several_languages(
    gateway: Gateway, form: str
) -> None:
    fields = {"source": "auto", "target": "en", "format": form}
    texts = [ENGLISH, SPANISH, "hola amigo " * 8000]
    refused = await post(gateway, "/translate", q=texts, **fields)
    name = "q.2" if form == "text" else "segment.2"
    assert (refused.status_code, name in error_of(refused)) == (400, True)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("这个世界还不够大，我们需要更多时间。", "zho_Hans"),
        ("這個世界還不夠大，我們需要更多時間。", "zho_Hant"),
        ("Det er ikke nok for meg, sa han i går kveld.", "nob_Latn"),
        ("Ang kalibutan dili igo alang kanako ug kanimo.", "ceb_Latn"),
    ],
)
async def test_languages_are_identified_by_the_codes_of_models(
    make_gateway: MakeGateway, text: str, code: str
) -> None:
    own = {"zho_Hans", "zho_Hant", "nob_Latn", "ceb_Latn", "als_Latn"}
    tokens = {
        "codes": {"eng_Latn": 10, **{code: 11 + i for i, code in enumerate(sorted(own))}},
        "aliases": aliases(["eng_Latn", *own]),
        "place": "before",
    }
    model = loaded("translate", {"tokens": tokens}, name="all", parts={"generate": "all"})
    gateway = make_gateway([model])
    found = (await post(gateway, "/detect", q=text)).json()[0]["language"]
    listed = {one["code"] for one in (await gateway.http.get("/languages")).json()}
    assert found in listed
    assert model.sections["translate"].tokens.resolve(found, "source", "all") == code


async def test_candidates_come_best_first(gateway: Gateway) -> None:
    found = (await post(gateway, "/detect", q="Where is the old lamp?")).json()
    assert found[0]["language"] == "en"
    assert 50 < found[0]["confidence"] <= 100
    assert [one["confidence"] for one in found] == sorted(
        (one["confidence"] for one in found), reverse=True
    )
    assert (await post(gateway, "/detect", q="12:30")).json()[0]["confidence"] == 0
    several = await gateway.http.post("/detect", data={"q": ["Où est", "la vieille lampe ?"]})
    assert several.json()[0]["language"] == "fr"


async def test_no_translator_is_served(make_gateway: MakeGateway) -> None:
    gateway = make_gateway([])
    assert (await gateway.http.get("/languages")).json() == []
    assert (await gateway.http.get("/frontend/settings")).status_code == 200
    assert (await post(gateway, "/detect", q="a")).json() == []
    response = await post(gateway, "/translate", q="a", source="auto", target="en")
    assert (response.status_code, "supported are: none" in error_of(response)) == (400, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "q: Field required"),
        ({"q": "", "source": "es", "target": "en"}, "q"),
        ({"q": [], "source": "es", "target": "en"}, "q"),
        ({"q": 7, "source": "es", "target": "en"}, "q"),
        ({"q": "a", "target": "en"}, "source: Field required"),
        ({"q": "a", "source": "es"}, "target: Field required"),
        ({"q": "a", "source": "xx", "target": "en"}, "source is not supported"),
        ({"q": "a", "source": "es", "target": "xx"}, "target is not supported"),
        ({"q": "a", "source": "es", "target": "en", "format": "pdf"}, "format"),
        ({"q": "a", "source": "es", "target": "en", "alternatives": "x"}, "alternatives"),
        ({"q": "a", "source": "es", "target": "en", "alternatives": 16}, "alternatives"),
        ({"q": "a " * 5000, "source": "es", "target": "en"}, "q has"),
        ({"q": ["a", "1", "b " * 5000], "source": "es", "target": "en"}, "q.2 has"),
    ],
)
async def test_requests_are_refused_by_name_with_400(
    gateway: Gateway, fields: dict[str, Any], message: str
) -> None:
    response = await gateway.http.post("/translate", json=fields)
    assert (response.status_code, message in error_of(response)) == (400, True), response.text


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{", "application/json"),
        (b"[1]", "application/json"),
        (b"\xff", "application/json"),
        (b"q=%ff&source=es&target=en", "application/x-www-form-urlencoded"),
        (b"q=\xff&source=es&target=en", "application/x-www-form-urlencoded"),
        (b"q=a" + b"&x=a" * 1000, "application/x-www-form-urlencoded"),
        (b"--x\r\n", "multipart/form-data; boundary=x"),
        (b"--x\r\n", "multipart/form-data"),
        (b"hola", "text/plain"),
        (b"", ""),
    ],
)
async def test_bodies_that_cannot_be_read_are_refused(
    gateway: Gateway, content: bytes, kind: str
) -> None:
    headers = {"content-type": kind}
    response = await gateway.post("/translate", content=content, headers=headers, status=400)
    assert error_of(response)


async def test_failures_have_their_statuses(gateway: Gateway) -> None:
    failures = [
        (Overloaded("full", retry_after_s=2), 429, "Slowdown: full"),
        (Unavailable("down", retry_after_s=2), 503, "down"),
        (DeadlineExceeded("late"), 504, "late"),
        (ValueError("secret"), 500, "the gateway failed"),
    ]
    for failure, status, message in failures:
        gateway.inference.failures["spanish"] = failure
        response = await post(gateway, "/translate", q="a", source="es", target="en")
        assert (response.status_code, message in error_of(response)) == (status, True)
        assert response.headers.get("retry-after") == ("2" if status in (429, 503) else None)
        assert "secret" not in response.text


async def test_wrong_methods_and_large_bodies_have_the_same_form(make_gateway: MakeGateway) -> None:
    gateway = make_gateway([translator("spanish", ("es", "en"))])
    headers = {"content-type": "application/x-www-form-urlencoded"}
    escaped = await gateway.http.post("/translate", content=b"%41" * 300_001, headers=headers)
    assert (escaped.status_code, "send JSON" in error_of(escaped)) == (413, True)
    gateway = make_gateway([translator("spanish", ("es", "en"))], payload_limit=1024)
    assert error_of(await gateway.http.get("/translate"))
    response = await post(gateway, "/translate", q="a" * 2000, source="es", target="en")
    assert (response.status_code, "1024 bytes" in error_of(response)) == (413, True)


@pytest.mark.parametrize("path", ["/translate", "/detect"])
async def test_key_is_in_the_body_or_in_a_header(make_gateway: MakeGateway, path: str) -> None:
    gateway = make_gateway([translator("spanish", ("es", "en"))], api_key=KEY)
    fields = {"q": "hola", "source": "es", "target": "en"}
    for given, status in (
        ({}, 401),
        ({"api_key": ""}, 401),
        ({"api_key": "wrong"}, 403),
        ({"api_key": 7}, 403),
        ({"api_key": "schlüssel"}, 403),
    ):
        for body in ({"json": fields | given}, {"data": fields | given}):
            response = await gateway.http.post(path, **body)
            assert (response.status_code, "key" in error_of(response)) == (status, True)
    for body in ({"json": fields | {"api_key": KEY}}, {"data": fields | {"api_key": KEY}}):
        assert (await gateway.http.post(path, **body)).status_code == 200
    headers = {"authorization": f"Bearer {KEY}"}
    assert (await gateway.http.post(path, json=fields, headers=headers)).status_code == 200
    headers = {"authorization": "Bearer wrong"}
    assert (await gateway.http.post(path, json=fields, headers=headers)).status_code == 403


async def test_key_is_not_needed_to_list_languages(make_gateway: MakeGateway) -> None:
    gateway = make_gateway([translator("spanish", ("es", "en"))], api_key=KEY)
    assert [one["code"] for one in (await gateway.http.get("/languages")).json()] == ["en", "es"]
    settings = (await gateway.http.get("/frontend/settings")).json()
    assert settings["keyRequired"] is True
    assert settings["language"]["source"]["code"] == "auto"


async def test_metrics_have_the_route(gateway: Gateway) -> None:
    await post(gateway, "/translate", q="a", source="es", target="en")
    await post(gateway, "/translate", q="a")
    metrics = (await gateway.http.get("/metrics")).text
    assert 'triptych_request_count_total{route="/translate"} 2.0' in metrics
    assert 'triptych_request_inference_duration_seconds_count{route="/translate"} 1.0' in metrics


def test_the_client() -> None:
    with served(api_key=KEY) as address:
        client = LibreTranslateAPI(address, KEY)
        assert client.translate("a b", "es", "en") == "a b"
        assert {one["code"] for one in client.languages()} == {"en", "es"}
        assert client.detect("¿Dónde está la vieja lámpara?")[0]["language"] == "es"


async def test_html_keeps_everything_but_its_text(gateway: Gateway) -> None:
    source = '<p id="x">a <b>b</b> c</p>\n<script>d</script><br>\n<ul><li>e &amp; f</ul>12'
    fields = {"source": "es", "target": "en", "format": "html"}
    one = await post(gateway, "/translate", q=source, **fields)
    assert one.json() == {"translatedText": source}  # the tiny model repeats its words
    assert not any(call.options.return_alignment for call in gateway.inference.calls)
    both = await post(gateway, "/translate", q=[source, "12"], alternatives=1, **fields)
    assert both.json() == {"translatedText": [source, "12"], "alternatives": [[], []]}
    refused = await post(gateway, "/translate", q="<b>" * 60 + "a", **fields)
    assert (refused.status_code, "a paragraph has more" in error_of(refused)) == (400, True)
    many = await post(gateway, "/translate", q="<p>a" * 10_001, **fields)
    assert (many.status_code, "10000 paragraphs" in error_of(many)) == (413, True)
    many = await post(gateway, "/translate", q=["a"] * 10_001, **fields)
    assert (many.status_code, "q: " in error_of(many)) == (400, True)
    long = f"<p>a</p><p>{'a ' * 50}</p>"
    whole = await post(gateway, "/translate", q=long, **fields)
    assert whole.json() == {"translatedText": long}, "in parts that the model takes"
    endless = await post(gateway, "/translate", q=f"<p>a</p><p>{'a ' * 5000}</p>", **fields)
    assert (endless.status_code, "segment.1 has more than 4096" in error_of(endless)) == (400, True)


async def test_markup_is_placed_by_the_models_attention(make_gateway: MakeGateway) -> None:
    aligned = AlignmentSpec(over="tokens")
    gateway = make_gateway([translator("spanish", ("es", "en"), alignment=aligned)])
    fields = {"source": "es", "target": "en", "format": "html"}
    response = await post(gateway, "/translate", q="<p>a <b>b</b> c<p>d", **fields)
    assert response.json() == {"translatedText": "<p>a <b>b</b> c<p>d"}
    asked = [call.options.return_alignment for call in gateway.inference.calls]
    assert asked == [None, True]  # words without markup need no attention


@pytest.mark.parametrize("kind", ["text", "html"])
@pytest.mark.parametrize(
    ("texts", "named"), [("a" * 450_000, "{}"), (["uno", "a" * 450_000], "{}.1")]
)
async def test_texts_of_too_many_characters_are_refused_before_any_is_read(
    make_gateway: MakeGateway, kind: str, texts: str | list[str], named: str
) -> None:
    gateway = make_gateway([translator("spanish", ("es", "en"))])
    body = {"q": texts, "source": "es", "target": "en", "format": kind}
    response = await gateway.post("/translate", json=body, status=400)
    name = named.format("q" if kind == "text" else "segment")
    assert error_of(response).startswith(f"{name} has 450000 characters, at most 4096 tokens")
    assert gateway.inference.calls == []
