"""The protobuf messages are twins of the pydantic ones: names, types, presence, every value."""

import inspect
import sys
import types
import typing
from typing import Any, get_args, get_origin

import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from triptych import messages
from triptych import triptych_pb2 as pb
from triptych.client.conversion import TWINS, from_proto, to_proto
from triptych.glossaries import messages as glossaries
from triptych.messages import MAX_BEAMS, Continuation, Generation
from triptych.tasks import TASKS
from triptych.tasks.caption import Attention, Caption, CaptionRequest, CaptionResponse
from triptych.tasks.classify import ClassifyRequest, TextPair
from triptych.tasks.fill_mask import FilledMasks, MaskToken
from triptych.tasks.generate import Example, GenerateRequest, GenerateResponse
from triptych.tasks.rerank import RerankRequest
from triptych.tasks.translate import Alignment, TranslateRequest, TranslateResponse, Translation
from triptych.tasks.zero_shot import Classification, LabelScore, ZeroShotRequest, ZeroShotResponse

HTTP_ONLY = {messages.ErrorResponse, glossaries.GlossaryUpload}
SCALARS = {
    int: {Field.TYPE_INT32, Field.TYPE_INT64},
    float: {Field.TYPE_DOUBLE},
    bool: {Field.TYPE_BOOL},
    str: {Field.TYPE_STRING},
}
pairs = pytest.mark.parametrize(
    ("message", "twin"), TWINS.items(), ids=[message.__name__ for message in TWINS]
)


def bare(info: FieldInfo) -> tuple[Any, bool, bool]:
    """The type inside optional and list, whether it is a list, and whether it may be None."""
    kind: Any = info.annotation
    optional = get_origin(kind) in (typing.Union, types.UnionType)
    if optional:
        (kind,) = (part for part in get_args(kind) if part is not types.NoneType)
    if get_origin(kind) is typing.Annotated:
        kind = get_args(kind)[0]
    repeated = get_origin(kind) is list
    if repeated:
        (kind,) = get_args(kind)
    if get_origin(kind) is typing.Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is typing.Literal:
        kind = type(get_args(kind)[0])
    return kind, repeated, optional


def assert_map(field: Any, key: type, value: type) -> None:
    entry = field.message_type
    assert entry.GetOptions().map_entry, field.name
    assert entry.fields_by_name["key"].type in SCALARS[key], field.name
    assert entry.fields_by_name["value"].type in SCALARS[value], field.name


BASES = {"Message", "ClosedMessage", "Request", "StreamRequest", "Item", "Response"}


def test_every_message_of_the_wire_has_a_twin() -> None:
    modules = [
        messages,
        glossaries,
        *(sys.modules[task.request.__module__] for task in TASKS.values()),
    ]
    public = {
        kind
        for module in modules
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__
        and name.partition("[")[0] not in BASES
        and not name.endswith("Parameters")
    }
    assert public - HTTP_ONLY == set(TWINS)


def test_every_message_of_the_proto_has_a_twin() -> None:
    alone = {"ListModelsRequest", "LanguagePair", "Row", "MaskTokenList"}
    assert set(pb.DESCRIPTOR.message_types_by_name) - alone == {kind.__name__ for kind in TWINS}


@pairs
def test_twins_have_the_same_fields(message: type[BaseModel], twin: type[Message]) -> None:
    assert set(twin.DESCRIPTOR.fields_by_name) == set(message.model_fields)


@pairs
def test_twins_agree_on_types_and_presence(message: type[BaseModel], twin: type[Message]) -> None:
    for name, info in message.model_fields.items():
        field = twin.DESCRIPTOR.fields_by_name[name]
        kind, repeated, optional = bare(info)
        if get_origin(kind) is dict:
            assert_map(field, *(get_args(part)[0] for part in get_args(kind)))
            continue
        assert field.is_repeated == repeated, name
        if not repeated and field.message_type is None:
            has_default = issubclass(message, messages.Request) and not info.is_required()
            assert field.has_presence == (optional or has_default), name
        if kind == list[str]:
            assert field.message_type.name == "LanguagePair", name
        elif kind == list[float]:
            assert field.message_type.name == "Row", name
        elif get_origin(kind) is list:
            (values,) = field.message_type.fields
            assert (values.name, values.is_repeated) == ("values", True), name
            assert values.message_type is TWINS[get_args(kind)[0]].DESCRIPTOR, name
        elif field.message_type is not None:
            assert TWINS[kind].DESCRIPTOR is field.message_type, name
        elif name == "images":
            assert field.type == Field.TYPE_BYTES
        else:
            assert field.type in SCALARS[kind], name


def test_the_service_has_a_method_for_each_task() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Triptych"].methods
    signatures = {m.name: (m.input_type.name, m.output_type.name) for m in methods}
    expected = {
        "ListModels": ("ListModelsRequest", "ModelList"),
        "PutGlossary": ("Glossary", "GlossaryInfo"),
        "GetGlossary": ("GlossaryName", "Glossary"),
        "ListGlossaries": ("ListGlossariesRequest", "GlossaryList"),
        "DeleteGlossary": ("GlossaryName", "GlossaryInfo"),
    }
    for task in TASKS.values():
        expected[task.verb] = (task.request.__name__, task.response.__name__)
        if task.streams:
            expected[f"{task.verb}Stream"] = (task.request.__name__, "Chunk")
    assert signatures == expected
    assert {"Translate", "TranslateStream", "Caption", "ZeroShot", "Generate"} < set(signatures)
    assert {m.name for m in methods if m.server_streaming} == {
        name for name in signatures if name.endswith("Stream")
    }


CHOSEN = messages.TokenLogprob(
    token="b", logprob=-0.5, top=[messages.TopToken(token="b", logprob=-0.5)]
)
RED = MaskToken(token="red", token_id=3, score=0.5, text="x")
FULL = [
    TranslateRequest(
        model="m", texts=["a", "ñ"], source="es", target="en", num_beams=4, n=2,
        length_penalty=0.1, return_attention=True, max_new_tokens=9, stream=False,
    ),
    TranslateRequest(texts=["a"]),
    CaptionRequest(
        images=["aGVsbG8="], prompt="a", num_beams=2, n=1, max_new_tokens=9,
        return_attention=False, stream=True, top_p=0.5, seed=7, logit_bias={7: 1.5},
    ),
    GenerateRequest(
        model="m", prompts=["a", "b\n"], instruction="", max_new_tokens=7, temperature=0.0,
        examples=[Example(input="x", output="ñ"), Example(input="", output="")],
        top_k=0, top_p=0.5, min_p=0.0, typical_p=1.0, repetition_penalty=1.5, presence_penalty=-2.0,
        frequency_penalty=0.25, logit_bias={7: -100.0, 0: 0.0}, seed=2**63 - 1, num_beams=1,
        length_penalty=-0.5, early_stopping=False, no_repeat_ngram_size=3, n=2, best_of=4,
        stop=["\n", "end"], logprobs=0, stream=True,
    ),
    GenerateRequest(prompts=["a"]),
    ZeroShotRequest(images=["aGVsbG8="], labels=["x"], templates=["{}", "a {}"]),
    ZeroShotRequest(images=["aGVsbG8="], labels=["x", "y"]),
    TranslateResponse(
        model="m",
        data=[
            Translation(
                index=0,
                text="",
                score=0.0,
                alternatives=[messages.Alternative(text="b", score=-0.1)],
                alignment=Alignment(
                    source_tokens=["a", "</s>"], target_tokens=["b"], weights=[[0.1, 0.9]]
                ),
            ),
            Translation(
                index=1, error=messages.ItemError(type="too_long", message="9 > 8", field="texts")
            ),
        ],
        usage=messages.Usage(prompt_tokens=3, completion_tokens=4),
    ),
    CaptionResponse(
        model="m",
        data=[
            Caption(
                index=0, text="a b", score=-1.0,
                attention=Attention(
                    tokens=["a", " b"], grid=[1, 2], weights=[[0.25, 0.75], [0.0, 1.0]]
                ),
            )
        ],
    ),
    GenerateResponse(
        model="m",
        data=[
            Generation(
                index=0, text="b", finish_reason="stop", score=-0.5, logprobs=[CHOSEN],
                alternatives=[
                    Continuation(
                        text="b", finish_reason="stop", score=-0.5, logprobs=[CHOSEN]
                    ),
                    Continuation(text="", finish_reason="length"),
                ],
            ),
            Generation(index=1, error=messages.ItemError(type="too_long", message="no")),
        ],
        usage=messages.Usage(prompt_tokens=1),
    ),
    messages.Chunk(index=3, text="b", logprobs=[CHOSEN]),
    messages.Chunk(index=3, finish_reason="length", usage=messages.Usage(completion_tokens=2)),
    messages.Chunk(index=1, error=messages.ItemError(type="overloaded", message="busy")),
    ZeroShotResponse(
        model="m",
        data=[
            Classification(
                index=0, labels=[LabelScore(label="x", score=1.0, cosine=-0.25)]
            )
        ],
    ),
    messages.ModelList(
        data=[
            messages.Model(
                id="m",
                version=3,
                architecture="marian",
                tasks=["translate"],
                inputs=[messages.TaskInputs(task="translate", fields=["texts"])],
                languages=[["es", "en"], ["en", "es"]],
                precision="fp32",
                default=True,
                limits=messages.ModelLimits(max_input_tokens=0, max_image_pixels=2**40),
            )
        ]
    ),
    messages.ErrorBody(type="too_long", message="no"),
    ClassifyRequest(pairs=[TextPair(first="a", second="b"), ["c", "d"]]),
    FilledMasks(index=1, masks=[[RED, RED], [], [RED]]),
]  # fmt: skip


@pytest.mark.parametrize("message", FULL, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: BaseModel) -> None:
    twin = TWINS[type(message)]
    received = twin.FromString(to_proto(message).SerializeToString())
    assert from_proto(received, type(message)) == message


def test_images_are_raw_bytes_over_grpc() -> None:
    request = CaptionRequest(images=["data:image/png;base64,aGVsbG8=", "aGVs\nbG8="])
    assert list(typing.cast(pb.CaptionRequest, to_proto(request)).images) == [b"hello", b"hello"]


@pytest.mark.parametrize("image", ["data:image/png,hello", "a!b"])
def test_invalid_base64_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="base64"):
        to_proto(CaptionRequest(images=[image]))


@pytest.mark.parametrize(
    ("fields", "named"),
    [({}, "texts"), ({"texts": ["a"], "num_beams": MAX_BEAMS + 1}, "num_beams")],
)
def test_a_request_that_breaks_the_rules_of_the_message_is_refused(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValidationError, match=named):
        from_proto(pb.TranslateRequest(**fields), TranslateRequest)


FIRST_VERSION = [
    (
        GenerateRequest(
            model="m", prompts=["a", "ñ"], instruction="i", max_new_tokens=7, temperature=0.5,
            examples=[Example(input="x", output="y")], top_k=3, top_p=0.25, min_p=0.0,
            typical_p=1.0, repetition_penalty=1.5, presence_penalty=-2.0, frequency_penalty=0.25,
            logit_bias={7: -100.0}, seed=2**63 - 1, num_beams=1, length_penalty=-0.5,
            early_stopping=False, no_repeat_ngram_size=3, n=2, best_of=4, stop=["\n"], logprobs=0,
            stream=True,
        ),
        "0a016d1201611202c3b11a016922060a0178120179280731000000000000e03f380341000000000000d03f49"
        "000000000000000051000000000000f03f59000000000000f83f6100000000000000c069000000000000d03f"
        "720b08071100000000000059c078ffffffffffffffff7f8001018901000000000000e0bf900100980103a001"
        "02a80104b201010ab80100c00101",
    ),
    (
        CaptionResponse(
            model="m",
            data=[
                Caption(
                    index=1, text="a", score=-1.0,
                    alternatives=[messages.Alternative(text="b", score=-2.0)],
                    attention=Attention(tokens=["a"], grid=[1, 2], weights=[[0.25, 0.75]]),
                ),
                Caption(index=0, error=messages.ItemError(type="t", message="m", field="f")),
            ],
            usage=messages.Usage(prompt_tokens=3, completion_tokens=4),
        ),
        "0a016d123908011a016121000000000000f0bf2a0c0a01621100000000000000c0321b0a0161120201021a12"
        "0a10000000000000d03f000000000000e83f120b12090a017412016d1a01661a0408031004",
    ),
    (
        messages.ModelList(
            data=[
                messages.Model(
                    id="i", created=5, version=2, architecture="a", tasks=["translate"],
                    languages=[["es", "en"]], precision="fp32", default=True,
                    limits=messages.ModelLimits(max_input_tokens=9, max_best_of=1),
                )
            ]
        ),
        "0a046c697374123e0a016912056d6f64656c1a087472697074796368200528023201613a097472616e736c61"
        "746542080a0265731202656e4a046670333250015a0408093801",
    ),
]  # fmt: skip
"""Messages, and their bytes as clients of the first version write them."""


@pytest.mark.parametrize(("message", "old"), FIRST_VERSION, ids=lambda x: type(x).__name__)
def test_bytes_of_the_first_version_are_read(message: BaseModel, old: str) -> None:
    assert from_proto(TWINS[type(message)].FromString(bytes.fromhex(old)), type(message)) == message


def test_an_earlier_name_keeps_its_number_and_is_read_as_the_current_one() -> None:
    """What a client that knows the earlier names only sends: the numbers are the published ones."""
    sent = b"\x12\x01a\x30\x03\x40\x01"  # 2: "a", 6: 3, 8: true
    request = from_proto(pb.TranslateRequest.FromString(sent), TranslateRequest)
    assert request == TranslateRequest(texts=["a"], n=3, return_attention=True)
    ranked = pb.RerankRequest(query=["a"], documents=["b"], top_n=2)
    assert from_proto(ranked, RerankRequest).top_k == 2
