"""Every bad request gets its status and the one error body; none a stack trace, none a hang."""

import base64
import json

import httpx
import pytest

from tests.inference.tiny_models import image_file
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of

RED = base64.b64encode(image_file("red")).decode()
PART = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\xfe\r\n--x--'
JSON = {"content-type": "application/json"}


async def post(gateway: Gateway, path: str, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await gateway.http.post(f"/v1/{path}", content=content, headers=JSON)


MALFORMED = {
    "empty": b"",
    "cut off": b'{"texts": ["a"',
    "not UTF-8": b'{"texts": "\xff\xfe"}',
    "lone surrogate": b'{"texts": "\\ud800"}',
    "words": b"hello",
    "deep": b"[" * 100_000,
    "two values": b"{} {}",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_json_is_400(gateway: Gateway, body: bytes) -> None:
    response = await post(gateway, "translate", body)
    assert response.status_code == 400
    assert error_of(response)["type"] == "malformed_body"


WRONG = {
    "list": ("translate", [], None),
    "null": ("translate", None, None),
    "beams as bool": ("translate", {"texts": "a", "num_beams": True}, "num_beams"),
    "image as number": ("caption", {"images": [1]}, "images.0"),
    "labels as text": ("zero-shot", {"images": RED, "labels": "red"}, "labels"),
    "image address": ("caption", {"images": "https://example.com/a.png"}, "images.0"),
    "half a pair": ("classify", {"pairs": [{"first": "a"}]}, "pairs.0.second"),
}


@pytest.mark.parametrize(("path", "body", "field"), WRONG.values(), ids=WRONG)
async def test_wrong_field_is_422_and_named(
    gateway: Gateway, path: str, body: object, field: str | None
) -> None:
    response = await post(gateway, path, body)
    assert response.status_code == 422
    error = error_of(response)
    assert error["type"] == "invalid_request"
    assert error.get("field") == field


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "11", "-10.5"])
async def test_number_that_is_none_or_out_of_range_is_refused(
    gateway: Gateway, number: str
) -> None:
    body = b'{"texts": "a", "length_penalty": %s}' % number.encode()
    response = await post(gateway, "translate", body)
    assert response.status_code == 422
    assert error_of(response)["field"] == "length_penalty"


async def test_error_never_repeats_the_users_text(gateway: Gateway) -> None:
    secret = "hunter2"
    for body in ({"texts": [secret, 1]}, {"texts": {"x": secret}}, {"texts": "a", "model": secret}):
        response = await post(gateway, "translate", body)
        assert response.status_code >= 400
        assert secret not in response.text


@pytest.mark.parametrize("text", ["not base64!", "data:image/png,raw", "====", "ñ"])
async def test_text_that_is_no_base64_is_415(gateway: Gateway, text: str) -> None:
    assert (await post(gateway, "caption", {"images": text})).status_code == 415


async def test_task_without_model_is_404(make_gateway: MakeGateway) -> None:
    gateway = make_gateway([])
    response = await post(gateway, "caption", {"images": RED})
    assert (response.status_code, error_of(response)["type"]) == (404, "unknown_model")


@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing", "/v1/translate/", "/v1", "/v1/%00"])
async def test_unknown_path_is_404(gateway: Gateway, path: str) -> None:
    response = await gateway.http.get(path)
    assert (response.status_code, error_of(response)["type"]) == (404, "unknown_route")


@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [
        ("GET", "/v1/translate", "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/health", "GET, HEAD"),
        ("OPTIONS", "/v1/glossaries/a", "DELETE, GET, PUT"),
    ],
)
async def test_wrong_method_is_405_with_all_that_are_allowed(
    gateway: Gateway, verb: str, path: str, allowed: str
) -> None:
    response = await gateway.http.request(verb, path)
    assert (response.status_code, error_of(response)["type"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == allowed


async def test_body_is_counted_whatever_length_is_declared(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(payload_limit=1024)
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 100
            yield b" " * 100

    response = await gateway.http.post("/v1/translate", content=endless(), headers=JSON)
    assert (response.status_code, error_of(response)["type"]) == (413, "payload_too_large")
    assert sent < 3000


async def test_body_declared_too_large_is_refused_unread(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(payload_limit=1024)

    async def unread():
        raise AssertionError("the body was read")
        yield b""

    headers = {**JSON, "content-length": "1025"}
    response = await gateway.http.post("/v1/translate", content=unread(), headers=headers)
    assert response.status_code == 413


@pytest.mark.parametrize("path", ["/v1/caption", "/v1/zero-shot"])
async def test_large_upload_is_413(make_gateway: MakeGateway, path: str) -> None:
    gateway = make_gateway(payload_limit=1024)
    response = await gateway.http.post(path, files=[("images", ("x.png", bytes(5000)))])
    assert (response.status_code, error_of(response)["type"]) == (413, "payload_too_large")


MULTIPART = {"content-type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "multipart/form-data"}, b"--x\r\n"),
        (MULTIPART, b"not multipart at all"),
        (MULTIPART, PART),
    ],
)  # fmt: skip
async def test_damaged_multipart_is_refused(gateway: Gateway, headers: dict, body: bytes) -> None:
    response = await gateway.http.post("/v1/caption", content=body, headers=headers)
    assert response.status_code in {400, 422}
    assert error_of(response)["type"] in {"malformed_body", "invalid_request"}


@pytest.mark.parametrize("values", [b'"texts": [%b1]' % (b"1," * 200_000), b'"a": 1,' * 200_000])
async def test_body_of_very_many_values_is_refused_unread(gateway: Gateway, values: bytes) -> None:
    """Each wrong value costs a kilobyte: 20 MB of them, 10 GB and a minute."""
    body = b'{%b "texts": ["a"]}' % (values.rstrip(b",") + b",")
    response = await gateway.http.post("/v1/translate", content=body, headers=JSON)
    assert (response.status_code, error_of(response)["type"]) == (413, "payload_too_large")


async def test_case_of_a_content_type_does_not_matter(gateway: Gateway) -> None:
    headers = {"content-type": "Multipart/Form-Data; boundary=x"}
    response = await gateway.http.post("/v1/caption", content=b"--x--\r\n", headers=headers)
    assert (response.status_code, error_of(response)["field"]) == (422, "images")


async def test_multipart_is_not_for_translation(gateway: Gateway) -> None:
    response = await gateway.http.post("/v1/translate", files={"texts": b"hola"})
    assert (response.status_code, error_of(response)["type"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_json_under_another_content_type_is_415(gateway: Gateway, kind: str | None) -> None:
    """A page of any site may make a browser send these."""
    headers = {"content-type": kind} if kind else {}
    for path in ("/v1/translate", "/v1/caption", "/v1/completions", "/hf/translate/tiny"):
        response = await gateway.http.post(path, content=b'{"texts": "a"}', headers=headers)
        assert response.status_code in (404, 415), path
        if path.startswith("/v1/t"):
            assert "content-type: application/json" in error_of(response)["message"]
    assert not gateway.inference.calls


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
async def test_content_types_of_json(gateway: Gateway, kind: str) -> None:
    headers = {"content-type": kind}
    body = b'{"texts": "a"}'
    response = await gateway.http.post("/v1/translate", content=body, headers=headers)
    assert response.status_code == 200


async def test_multipart_without_images_is_422(gateway: Gateway) -> None:
    response = await gateway.http.post("/v1/caption", files={"other": b"x"})
    assert (response.status_code, error_of(response)["field"]) == (422, "other")


async def test_multipart_number_that_is_none_is_422(gateway: Gateway) -> None:
    files, data = [("images", ("x.png", image_file("red")))], {"num_beams": "many"}
    response = await gateway.http.post("/v1/caption", files=files, data=data)
    assert (response.status_code, error_of(response)["field"]) == (422, "num_beams")


@pytest.mark.parametrize(
    ("examples", "status", "field"),
    [
        ("no object", 422, "examples"),
        ('{"input": "a"}', 422, "examples.1.output"),
        ('{"input": "a", "output": "b", "c": [%s]}' % ("1," * 200_000 + "1"), 413, None),
    ],
)  # fmt: skip
async def test_bad_object_of_a_form_is_refused(
    gateway: Gateway, examples: str, status: int, field: str | None
) -> None:
    data = {"prompts": "a", "examples": ['{"input": "a", "output": "b"}', examples]}
    files = [("images", ("x.png", image_file("red")))]
    response = await gateway.http.post("/v1/generate", files=files, data=data)
    assert (response.status_code, error_of(response).get("field")) == (status, field)


async def test_more_files_than_a_batch_are_refused(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_client_batch_size=2)
    files = [("images", ("x.png", image_file("red")))] * 3
    assert (await gateway.http.post("/v1/caption", files=files)).status_code == 422
    assert (await gateway.http.post("/v1/caption", files=files * 3)).status_code == 400


async def test_label_and_template_texts_beyond_admission_are_422(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_concurrent_tokens=100)
    body = {"images": RED, "labels": [f"l{number}" for number in range(50)]}
    response = await post(gateway, "zero-shot", body)
    assert response.status_code == 422
    assert "at most 100" in error_of(response)["message"]


async def test_bug_is_500_without_its_text(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.inference.failures["tiny-translate"] = ValueError("secret place")
    response = await post(gateway, "translate", {"texts": "hola"})
    assert (response.status_code, error_of(response)["type"]) == (500, "internal")
    assert "secret place" not in response.text
    assert "secret place" in caplog.text
    assert response.headers["x-request-id"] in caplog.text


async def test_repeated_field_of_a_form_is_refused_by_name(gateway: Gateway) -> None:
    files = [
        ("images", ("a.png", image_file("red"))),
        ("prompt", (None, "a")),
        ("prompt", (None, "b")),
    ]
    response = await gateway.http.post("/v1/caption", files=files)
    assert response.status_code == 422
    assert error_of(response)["field"] == "prompt"
    assert "2 times" in error_of(response)["message"]
