from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TranslateRequest(_message.Message):
    __slots__ = ("model", "texts", "source", "target", "num_beams", "alternatives", "length_penalty")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    source: str
    target: str
    num_beams: int
    alternatives: int
    length_penalty: float
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., num_beams: _Optional[int] = ..., alternatives: _Optional[int] = ..., length_penalty: _Optional[float] = ...) -> None: ...

class CaptionRequest(_message.Message):
    __slots__ = ("model", "images", "prompt", "num_beams", "alternatives", "max_new_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    images: _containers.RepeatedScalarFieldContainer[bytes]
    prompt: str
    num_beams: int
    alternatives: int
    max_new_tokens: int
    def __init__(self, model: _Optional[str] = ..., images: _Optional[_Iterable[bytes]] = ..., prompt: _Optional[str] = ..., num_beams: _Optional[int] = ..., alternatives: _Optional[int] = ..., max_new_tokens: _Optional[int] = ...) -> None: ...

class ZeroShotRequest(_message.Message):
    __slots__ = ("model", "images", "labels", "templates")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    model: str
    images: _containers.RepeatedScalarFieldContainer[bytes]
    labels: _containers.RepeatedScalarFieldContainer[str]
    templates: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., images: _Optional[_Iterable[bytes]] = ..., labels: _Optional[_Iterable[str]] = ..., templates: _Optional[_Iterable[str]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ItemError(_message.Message):
    __slots__ = ("type", "message", "field")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    field: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("text", "score")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class Translation(_message.Message):
    __slots__ = ("index", "error", "text", "score", "alternatives")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: ItemError
    text: str
    score: float
    alternatives: _containers.RepeatedCompositeFieldContainer[Alternative]
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., text: _Optional[str] = ..., score: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ...) -> None: ...

class Caption(_message.Message):
    __slots__ = ("index", "error", "text", "score", "alternatives")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: ItemError
    text: str
    score: float
    alternatives: _containers.RepeatedCompositeFieldContainer[Alternative]
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., text: _Optional[str] = ..., score: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ...) -> None: ...

class LabelScore(_message.Message):
    __slots__ = ("label", "score", "cosine")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    cosine: float
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ..., cosine: _Optional[float] = ...) -> None: ...

class Classification(_message.Message):
    __slots__ = ("index", "error", "labels")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: ItemError
    labels: _containers.RepeatedCompositeFieldContainer[LabelScore]
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., labels: _Optional[_Iterable[_Union[LabelScore, _Mapping]]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class TranslateResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Translation]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Translation, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class CaptionResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Caption]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Caption, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class ZeroShotResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Classification]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Classification, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class ModelLimits(_message.Message):
    __slots__ = ("max_input_tokens", "max_total_tokens", "max_client_batch_size", "max_image_pixels", "max_labels")
    MAX_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CLIENT_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_LABELS_FIELD_NUMBER: _ClassVar[int]
    max_input_tokens: int
    max_total_tokens: int
    max_client_batch_size: int
    max_image_pixels: int
    max_labels: int
    def __init__(self, max_input_tokens: _Optional[int] = ..., max_total_tokens: _Optional[int] = ..., max_client_batch_size: _Optional[int] = ..., max_image_pixels: _Optional[int] = ..., max_labels: _Optional[int] = ...) -> None: ...

class LanguagePair(_message.Message):
    __slots__ = ("source", "target")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("id", "object", "owned_by", "created", "version", "architecture", "tasks", "languages", "precision", "default", "limits")
    ID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    OWNED_BY_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    id: str
    object: str
    owned_by: str
    created: int
    version: int
    architecture: str
    tasks: _containers.RepeatedScalarFieldContainer[str]
    languages: _containers.RepeatedCompositeFieldContainer[LanguagePair]
    precision: str
    default: bool
    limits: ModelLimits
    def __init__(self, id: _Optional[str] = ..., object: _Optional[str] = ..., owned_by: _Optional[str] = ..., created: _Optional[int] = ..., version: _Optional[int] = ..., architecture: _Optional[str] = ..., tasks: _Optional[_Iterable[str]] = ..., languages: _Optional[_Iterable[_Union[LanguagePair, _Mapping]]] = ..., precision: _Optional[str] = ..., default: bool = ..., limits: _Optional[_Union[ModelLimits, _Mapping]] = ...) -> None: ...

class ModelList(_message.Message):
    __slots__ = ("object", "data")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    object: str
    data: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, object: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class ErrorBody(_message.Message):
    __slots__ = ("type", "message", "field")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    field: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...
