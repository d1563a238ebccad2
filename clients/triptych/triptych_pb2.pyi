from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AnswerRequest(_message.Message):
    __slots__ = ("question", "passages", "n", "max_answer_tokens", "max_window_tokens", "stride", "null_threshold", "align_to_words", "model")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_ANSWER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_WINDOW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    NULL_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    ALIGN_TO_WORDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    question: _containers.RepeatedScalarFieldContainer[str]
    passages: _containers.RepeatedScalarFieldContainer[str]
    n: int
    max_answer_tokens: int
    max_window_tokens: int
    stride: int
    null_threshold: float
    align_to_words: bool
    model: str
    def __init__(self, question: _Optional[_Iterable[str]] = ..., passages: _Optional[_Iterable[str]] = ..., n: _Optional[int] = ..., max_answer_tokens: _Optional[int] = ..., max_window_tokens: _Optional[int] = ..., stride: _Optional[int] = ..., null_threshold: _Optional[float] = ..., align_to_words: bool = ..., model: _Optional[str] = ...) -> None: ...

class AnswerResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Answers]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Answers, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Answers(_message.Message):
    __slots__ = ("answers", "null_score", "index", "error")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    NULL_SCORE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[FoundAnswer]
    null_score: float
    index: int
    error: ItemError
    def __init__(self, answers: _Optional[_Iterable[_Union[FoundAnswer, _Mapping]]] = ..., null_score: _Optional[float] = ..., index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ...) -> None: ...

class FoundAnswer(_message.Message):
    __slots__ = ("text", "score", "start", "end", "passage")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PASSAGE_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    start: int
    end: int
    passage: int
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., passage: _Optional[int] = ...) -> None: ...

class ItemError(_message.Message):
    __slots__ = ("type", "message", "field")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    field: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class CaptionRequest(_message.Message):
    __slots__ = ("model", "images", "prompt", "num_beams", "alternatives", "max_new_tokens", "return_attention", "stream", "length_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "no_repeat_ngram_size", "best_of", "early_stopping", "n")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_ATTENTION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    model: str
    images: _containers.RepeatedScalarFieldContainer[bytes]
    prompt: str
    num_beams: int
    alternatives: int
    max_new_tokens: int
    return_attention: bool
    stream: bool
    length_penalty: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    no_repeat_ngram_size: int
    best_of: int
    early_stopping: bool
    n: int
    def __init__(self, model: _Optional[str] = ..., images: _Optional[_Iterable[bytes]] = ..., prompt: _Optional[str] = ..., num_beams: _Optional[int] = ..., alternatives: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., return_attention: bool = ..., stream: bool = ..., length_penalty: _Optional[float] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., no_repeat_ngram_size: _Optional[int] = ..., best_of: _Optional[int] = ..., early_stopping: bool = ..., n: _Optional[int] = ...) -> None: ...

class CaptionResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Caption]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Caption, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Caption(_message.Message):
    __slots__ = ("index", "error", "text", "score", "alternatives", "attention", "finish_reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: ItemError
    text: str
    score: float
    alternatives: _containers.RepeatedCompositeFieldContainer[Alternative]
    attention: Attention
    finish_reason: str
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., text: _Optional[str] = ..., score: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ..., attention: _Optional[_Union[Attention, _Mapping]] = ..., finish_reason: _Optional[str] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("text", "score", "finish_reason")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    finish_reason: str
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ..., finish_reason: _Optional[str] = ...) -> None: ...

class Attention(_message.Message):
    __slots__ = ("tokens", "grid", "weights")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[str]
    grid: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, tokens: _Optional[_Iterable[str]] = ..., grid: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...

class ChatRequest(_message.Message):
    __slots__ = ("messages", "early_stopping", "n", "stop", "logprobs", "num_beams", "length_penalty", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "no_repeat_ngram_size", "best_of", "model", "stream", "choices", "regex", "json_schema", "images")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    early_stopping: bool
    n: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    logprobs: int
    num_beams: int
    length_penalty: float
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    no_repeat_ngram_size: int
    best_of: int
    model: str
    stream: bool
    choices: _containers.RepeatedScalarFieldContainer[str]
    regex: str
    json_schema: str
    images: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., early_stopping: bool = ..., n: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., logprobs: _Optional[int] = ..., num_beams: _Optional[int] = ..., length_penalty: _Optional[float] = ..., max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., no_repeat_ngram_size: _Optional[int] = ..., best_of: _Optional[int] = ..., model: _Optional[str] = ..., stream: bool = ..., choices: _Optional[_Iterable[str]] = ..., regex: _Optional[str] = ..., json_schema: _Optional[str] = ..., images: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Generation]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Generation, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("index", "error", "text", "finish_reason", "score", "logprobs", "alternatives", "prompt_logprobs", "is_incomplete")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IS_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: ItemError
    text: str
    finish_reason: str
    score: float
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    alternatives: _containers.RepeatedCompositeFieldContainer[Continuation]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprob]
    is_incomplete: bool
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., text: _Optional[str] = ..., finish_reason: _Optional[str] = ..., score: _Optional[float] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., alternatives: _Optional[_Iterable[_Union[Continuation, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprob, _Mapping]]] = ..., is_incomplete: bool = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "logprob", "top", "token_id", "bytes", "text_offset")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    token: str
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopToken]
    token_id: int
    bytes: _containers.RepeatedScalarFieldContainer[int]
    text_offset: int
    def __init__(self, token: _Optional[str] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopToken, _Mapping]]] = ..., token_id: _Optional[int] = ..., bytes: _Optional[_Iterable[int]] = ..., text_offset: _Optional[int] = ...) -> None: ...

class TopToken(_message.Message):
    __slots__ = ("token", "logprob", "token_id", "bytes")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    token: str
    logprob: float
    token_id: int
    bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token: _Optional[str] = ..., logprob: _Optional[float] = ..., token_id: _Optional[int] = ..., bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class Continuation(_message.Message):
    __slots__ = ("text", "finish_reason", "score", "logprobs", "is_incomplete")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    IS_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    text: str
    finish_reason: str
    score: float
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    is_incomplete: bool
    def __init__(self, text: _Optional[str] = ..., finish_reason: _Optional[str] = ..., score: _Optional[float] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., is_incomplete: bool = ...) -> None: ...

class PromptLogprob(_message.Message):
    __slots__ = ("token", "logprob", "top", "token_id", "bytes", "text_offset")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    token: str
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopToken]
    token_id: int
    bytes: _containers.RepeatedScalarFieldContainer[int]
    text_offset: int
    def __init__(self, token: _Optional[str] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopToken, _Mapping]]] = ..., token_id: _Optional[int] = ..., bytes: _Optional[_Iterable[int]] = ..., text_offset: _Optional[int] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("texts", "pairs", "images", "top_k", "stride", "return_attention", "model", "function_to_apply", "truncate", "truncation_direction")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    RETURN_ATTENTION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_TO_APPLY_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_DIRECTION_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    pairs: _containers.RepeatedCompositeFieldContainer[TextPair]
    images: _containers.RepeatedScalarFieldContainer[bytes]
    top_k: int
    stride: int
    return_attention: bool
    model: str
    function_to_apply: str
    truncate: bool
    truncation_direction: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., pairs: _Optional[_Iterable[_Union[TextPair, _Mapping]]] = ..., images: _Optional[_Iterable[bytes]] = ..., top_k: _Optional[int] = ..., stride: _Optional[int] = ..., return_attention: bool = ..., model: _Optional[str] = ..., function_to_apply: _Optional[str] = ..., truncate: bool = ..., truncation_direction: _Optional[str] = ...) -> None: ...

class TextPair(_message.Message):
    __slots__ = ("first", "second")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    first: str
    second: str
    def __init__(self, first: _Optional[str] = ..., second: _Optional[str] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Classes]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Classes, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Classes(_message.Message):
    __slots__ = ("labels", "attention", "index", "error", "truncated_characters")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[ClassScore]
    attention: _containers.RepeatedCompositeFieldContainer[Row]
    index: int
    error: ItemError
    truncated_characters: int
    def __init__(self, labels: _Optional[_Iterable[_Union[ClassScore, _Mapping]]] = ..., attention: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., truncated_characters: _Optional[int] = ...) -> None: ...

class ClassScore(_message.Message):
    __slots__ = ("label", "score")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class DetectRequest(_message.Message):
    __slots__ = ("images", "labels", "threshold", "top_k", "model", "text_threshold")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedScalarFieldContainer[bytes]
    labels: _containers.RepeatedScalarFieldContainer[str]
    threshold: float
    top_k: int
    model: str
    text_threshold: float
    def __init__(self, images: _Optional[_Iterable[bytes]] = ..., labels: _Optional[_Iterable[str]] = ..., threshold: _Optional[float] = ..., top_k: _Optional[int] = ..., model: _Optional[str] = ..., text_threshold: _Optional[float] = ...) -> None: ...

class DetectResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Detection]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Detection, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Detection(_message.Message):
    __slots__ = ("boxes", "width", "height", "index", "error", "finish_reason")
    BOXES_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    boxes: _containers.RepeatedCompositeFieldContainer[Box]
    width: int
    height: int
    index: int
    error: ItemError
    finish_reason: str
    def __init__(self, boxes: _Optional[_Iterable[_Union[Box, _Mapping]]] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., finish_reason: _Optional[str] = ...) -> None: ...

class Box(_message.Message):
    __slots__ = ("label", "score", "x_min", "y_min", "x_max", "y_max", "objectness")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    X_MIN_FIELD_NUMBER: _ClassVar[int]
    Y_MIN_FIELD_NUMBER: _ClassVar[int]
    X_MAX_FIELD_NUMBER: _ClassVar[int]
    Y_MAX_FIELD_NUMBER: _ClassVar[int]
    OBJECTNESS_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    x_min: float
    y_min: float
    x_max: float
    y_max: float
    objectness: float
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ..., x_min: _Optional[float] = ..., y_min: _Optional[float] = ..., x_max: _Optional[float] = ..., y_max: _Optional[float] = ..., objectness: _Optional[float] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("texts", "images", "normalize", "model", "prompt_name", "prompt", "truncate", "truncation_direction", "frame_counts")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_DIRECTION_FIELD_NUMBER: _ClassVar[int]
    FRAME_COUNTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    images: _containers.RepeatedScalarFieldContainer[bytes]
    normalize: bool
    model: str
    prompt_name: str
    prompt: str
    truncate: bool
    truncation_direction: str
    frame_counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., images: _Optional[_Iterable[bytes]] = ..., normalize: bool = ..., model: _Optional[str] = ..., prompt_name: _Optional[str] = ..., prompt: _Optional[str] = ..., truncate: bool = ..., truncation_direction: _Optional[str] = ..., frame_counts: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Embedding]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("embedding", "index", "error", "truncated_characters")
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    embedding: _containers.RepeatedScalarFieldContainer[float]
    index: int
    error: ItemError
    truncated_characters: int
    def __init__(self, embedding: _Optional[_Iterable[float]] = ..., index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., truncated_characters: _Optional[int] = ...) -> None: ...

class FillMaskRequest(_message.Message):
    __slots__ = ("texts", "targets", "top_k", "model", "truncate", "truncation_direction")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_DIRECTION_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    targets: _containers.RepeatedScalarFieldContainer[str]
    top_k: int
    model: str
    truncate: bool
    truncation_direction: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., targets: _Optional[_Iterable[str]] = ..., top_k: _Optional[int] = ..., model: _Optional[str] = ..., truncate: bool = ..., truncation_direction: _Optional[str] = ...) -> None: ...

class FillMaskResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[FilledMasks]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[FilledMasks, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class FilledMasks(_message.Message):
    __slots__ = ("masks", "index", "error", "truncated_characters")
    MASKS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    masks: _containers.RepeatedCompositeFieldContainer[MaskTokenList]
    index: int
    error: ItemError
    truncated_characters: int
    def __init__(self, masks: _Optional[_Iterable[_Union[MaskTokenList, _Mapping]]] = ..., index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., truncated_characters: _Optional[int] = ...) -> None: ...

class MaskToken(_message.Message):
    __slots__ = ("token", "token_id", "score", "text")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: int
    score: float
    text: str
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[int] = ..., score: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "prompts", "instruction", "examples", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "n", "best_of", "stop", "logprobs", "stream", "echo", "images", "choices", "regex", "json_schema")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompts: _containers.RepeatedScalarFieldContainer[str]
    instruction: str
    examples: _containers.RepeatedCompositeFieldContainer[Example]
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    num_beams: int
    length_penalty: float
    early_stopping: bool
    no_repeat_ngram_size: int
    n: int
    best_of: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    logprobs: int
    stream: bool
    echo: bool
    images: _containers.RepeatedScalarFieldContainer[bytes]
    choices: _containers.RepeatedScalarFieldContainer[str]
    regex: str
    json_schema: str
    def __init__(self, model: _Optional[str] = ..., prompts: _Optional[_Iterable[str]] = ..., instruction: _Optional[str] = ..., examples: _Optional[_Iterable[_Union[Example, _Mapping]]] = ..., max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., num_beams: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: bool = ..., no_repeat_ngram_size: _Optional[int] = ..., n: _Optional[int] = ..., best_of: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., logprobs: _Optional[int] = ..., stream: bool = ..., echo: bool = ..., images: _Optional[_Iterable[bytes]] = ..., choices: _Optional[_Iterable[str]] = ..., regex: _Optional[str] = ..., json_schema: _Optional[str] = ...) -> None: ...

class Example(_message.Message):
    __slots__ = ("input", "output")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    input: str
    output: str
    def __init__(self, input: _Optional[str] = ..., output: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Generation]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Generation, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("query", "documents", "top_n", "return_documents", "truncate", "model", "top_k", "truncation_direction")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    RETURN_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_DIRECTION_FIELD_NUMBER: _ClassVar[int]
    query: _containers.RepeatedScalarFieldContainer[str]
    documents: _containers.RepeatedScalarFieldContainer[str]
    top_n: int
    return_documents: bool
    truncate: bool
    model: str
    top_k: int
    truncation_direction: str
    def __init__(self, query: _Optional[_Iterable[str]] = ..., documents: _Optional[_Iterable[str]] = ..., top_n: _Optional[int] = ..., return_documents: bool = ..., truncate: bool = ..., model: _Optional[str] = ..., top_k: _Optional[int] = ..., truncation_direction: _Optional[str] = ...) -> None: ...

class RerankResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Ranking]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Ranking, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Ranking(_message.Message):
    __slots__ = ("results", "index", "error")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RankedDocument]
    index: int
    error: ItemError
    def __init__(self, results: _Optional[_Iterable[_Union[RankedDocument, _Mapping]]] = ..., index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ...) -> None: ...

class RankedDocument(_message.Message):
    __slots__ = ("index", "score", "text", "error", "truncated_characters")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    text: str
    error: ItemError
    truncated_characters: int
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ..., text: _Optional[str] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., truncated_characters: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("targets", "texts", "images", "with_end", "logprobs", "model")
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    WITH_END_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedScalarFieldContainer[str]
    texts: _containers.RepeatedScalarFieldContainer[str]
    images: _containers.RepeatedScalarFieldContainer[bytes]
    with_end: bool
    logprobs: int
    model: str
    def __init__(self, targets: _Optional[_Iterable[str]] = ..., texts: _Optional[_Iterable[str]] = ..., images: _Optional[_Iterable[bytes]] = ..., with_end: bool = ..., logprobs: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Score]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Score, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("score", "tokens", "logprobs", "index", "error")
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    score: float
    tokens: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    index: int
    error: ItemError
    def __init__(self, score: _Optional[float] = ..., tokens: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ...) -> None: ...

class SegmentRequest(_message.Message):
    __slots__ = ("images", "labels", "model")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedScalarFieldContainer[bytes]
    labels: _containers.RepeatedScalarFieldContainer[str]
    model: str
    def __init__(self, images: _Optional[_Iterable[bytes]] = ..., labels: _Optional[_Iterable[str]] = ..., model: _Optional[str] = ...) -> None: ...

class SegmentResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Segmentation]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Segmentation, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Segmentation(_message.Message):
    __slots__ = ("masks", "width", "height", "mask_width", "mask_height", "index", "error")
    MASKS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    MASK_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MASK_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    masks: _containers.RepeatedCompositeFieldContainer[Mask]
    width: int
    height: int
    mask_width: int
    mask_height: int
    index: int
    error: ItemError
    def __init__(self, masks: _Optional[_Iterable[_Union[Mask, _Mapping]]] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., mask_width: _Optional[int] = ..., mask_height: _Optional[int] = ..., index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ...) -> None: ...

class Mask(_message.Message):
    __slots__ = ("label", "mean_probability", "max_probability", "mask")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    MEAN_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    MAX_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    label: str
    mean_probability: float
    max_probability: float
    mask: str
    def __init__(self, label: _Optional[str] = ..., mean_probability: _Optional[float] = ..., max_probability: _Optional[float] = ..., mask: _Optional[str] = ...) -> None: ...

class TagRequest(_message.Message):
    __slots__ = ("texts", "aggregation", "return_outside", "stride", "model", "truncate", "truncation_direction")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    RETURN_OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_DIRECTION_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    aggregation: str
    return_outside: bool
    stride: int
    model: str
    truncate: bool
    truncation_direction: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., aggregation: _Optional[str] = ..., return_outside: bool = ..., stride: _Optional[int] = ..., model: _Optional[str] = ..., truncate: bool = ..., truncation_direction: _Optional[str] = ...) -> None: ...

class TagResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Tags]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Tags, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Tags(_message.Message):
    __slots__ = ("tokens", "index", "error", "truncated_characters")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TaggedToken]
    index: int
    error: ItemError
    truncated_characters: int
    def __init__(self, tokens: _Optional[_Iterable[_Union[TaggedToken, _Mapping]]] = ..., index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., truncated_characters: _Optional[int] = ...) -> None: ...

class TaggedToken(_message.Message):
    __slots__ = ("text", "start", "end", "label", "score")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    text: str
    start: int
    end: int
    label: str
    score: float
    def __init__(self, text: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., label: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class TranslateRequest(_message.Message):
    __slots__ = ("model", "texts", "source", "target", "num_beams", "alternatives", "length_penalty", "return_alignment", "stream", "glossary", "do_not_translate", "do_not_translate_kinds", "glossary_name", "divide_long_sentences", "n", "max_new_tokens", "return_attention", "via")
    class GlossaryEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAMS_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    RETURN_ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GLOSSARY_FIELD_NUMBER: _ClassVar[int]
    DO_NOT_TRANSLATE_FIELD_NUMBER: _ClassVar[int]
    DO_NOT_TRANSLATE_KINDS_FIELD_NUMBER: _ClassVar[int]
    GLOSSARY_NAME_FIELD_NUMBER: _ClassVar[int]
    DIVIDE_LONG_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_ATTENTION_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    source: str
    target: str
    num_beams: int
    alternatives: int
    length_penalty: float
    return_alignment: bool
    stream: bool
    glossary: _containers.ScalarMap[str, str]
    do_not_translate: _containers.RepeatedScalarFieldContainer[str]
    do_not_translate_kinds: _containers.RepeatedScalarFieldContainer[str]
    glossary_name: str
    divide_long_sentences: bool
    n: int
    max_new_tokens: int
    return_attention: bool
    via: str
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., num_beams: _Optional[int] = ..., alternatives: _Optional[int] = ..., length_penalty: _Optional[float] = ..., return_alignment: bool = ..., stream: bool = ..., glossary: _Optional[_Mapping[str, str]] = ..., do_not_translate: _Optional[_Iterable[str]] = ..., do_not_translate_kinds: _Optional[_Iterable[str]] = ..., glossary_name: _Optional[str] = ..., divide_long_sentences: bool = ..., n: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., return_attention: bool = ..., via: _Optional[str] = ...) -> None: ...

class TranslateResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Translation]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Translation, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Translation(_message.Message):
    __slots__ = ("index", "error", "text", "score", "alternatives", "alignment", "finish_reason", "divided_sentences")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    DIVIDED_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: ItemError
    text: str
    score: float
    alternatives: _containers.RepeatedCompositeFieldContainer[Alternative]
    alignment: Alignment
    finish_reason: str
    divided_sentences: int
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., text: _Optional[str] = ..., score: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ..., alignment: _Optional[_Union[Alignment, _Mapping]] = ..., finish_reason: _Optional[str] = ..., divided_sentences: _Optional[int] = ...) -> None: ...

class Alignment(_message.Message):
    __slots__ = ("source_tokens", "target_tokens", "weights")
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    source_tokens: _containers.RepeatedScalarFieldContainer[str]
    target_tokens: _containers.RepeatedScalarFieldContainer[str]
    weights: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, source_tokens: _Optional[_Iterable[str]] = ..., target_tokens: _Optional[_Iterable[str]] = ..., weights: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...

class ZeroShotRequest(_message.Message):
    __slots__ = ("model", "images", "labels", "templates", "top_k", "frame_counts")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    FRAME_COUNTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    images: _containers.RepeatedScalarFieldContainer[bytes]
    labels: _containers.RepeatedScalarFieldContainer[str]
    templates: _containers.RepeatedScalarFieldContainer[str]
    top_k: int
    frame_counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., images: _Optional[_Iterable[bytes]] = ..., labels: _Optional[_Iterable[str]] = ..., templates: _Optional[_Iterable[str]] = ..., top_k: _Optional[int] = ..., frame_counts: _Optional[_Iterable[int]] = ...) -> None: ...

class ZeroShotResponse(_message.Message):
    __slots__ = ("model", "data", "usage")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Classification]
    usage: Usage
    def __init__(self, model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Classification, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Classification(_message.Message):
    __slots__ = ("index", "error", "labels")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: ItemError
    labels: _containers.RepeatedCompositeFieldContainer[LabelScore]
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., labels: _Optional[_Iterable[_Union[LabelScore, _Mapping]]] = ...) -> None: ...

class LabelScore(_message.Message):
    __slots__ = ("label", "score", "cosine")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    cosine: float
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ..., cosine: _Optional[float] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("index", "error", "text", "finish_reason", "logprobs", "usage", "is_greedy")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    IS_GREEDY_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: ItemError
    text: str
    finish_reason: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    usage: Usage
    is_greedy: bool
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[ItemError, _Mapping]] = ..., text: _Optional[str] = ..., finish_reason: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., is_greedy: bool = ...) -> None: ...

class ModelList(_message.Message):
    __slots__ = ("object", "data", "refused")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    object: str
    data: _containers.RepeatedCompositeFieldContainer[Model]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedModel]
    def __init__(self, object: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[RefusedModel, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("id", "object", "owned_by", "created", "version", "architecture", "tasks", "languages", "precision", "default", "limits", "versions", "mask_token", "prompts", "language_codes", "inputs", "image_place")
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
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MASK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_CODES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_PLACE_FIELD_NUMBER: _ClassVar[int]
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
    versions: _containers.RepeatedScalarFieldContainer[int]
    mask_token: str
    prompts: _containers.RepeatedScalarFieldContainer[str]
    language_codes: _containers.RepeatedScalarFieldContainer[str]
    inputs: _containers.RepeatedCompositeFieldContainer[TaskInputs]
    image_place: str
    def __init__(self, id: _Optional[str] = ..., object: _Optional[str] = ..., owned_by: _Optional[str] = ..., created: _Optional[int] = ..., version: _Optional[int] = ..., architecture: _Optional[str] = ..., tasks: _Optional[_Iterable[str]] = ..., languages: _Optional[_Iterable[_Union[LanguagePair, _Mapping]]] = ..., precision: _Optional[str] = ..., default: bool = ..., limits: _Optional[_Union[ModelLimits, _Mapping]] = ..., versions: _Optional[_Iterable[int]] = ..., mask_token: _Optional[str] = ..., prompts: _Optional[_Iterable[str]] = ..., language_codes: _Optional[_Iterable[str]] = ..., inputs: _Optional[_Iterable[_Union[TaskInputs, _Mapping]]] = ..., image_place: _Optional[str] = ...) -> None: ...

class TaskInputs(_message.Message):
    __slots__ = ("task", "fields")
    TASK_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    task: str
    fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task: _Optional[str] = ..., fields: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelLimits(_message.Message):
    __slots__ = ("max_input_tokens", "max_total_tokens", "max_client_batch_size", "max_image_pixels", "max_labels", "max_stop_sequences", "max_best_of", "max_top_k", "max_targets", "max_candidates", "max_documents", "max_pair_characters", "max_prompt_images", "max_passages")
    MAX_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CLIENT_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_LABELS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_BEST_OF_FIELD_NUMBER: _ClassVar[int]
    MAX_TOP_K_FIELD_NUMBER: _ClassVar[int]
    MAX_TARGETS_FIELD_NUMBER: _ClassVar[int]
    MAX_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    MAX_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    MAX_PAIR_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_IMAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_PASSAGES_FIELD_NUMBER: _ClassVar[int]
    max_input_tokens: int
    max_total_tokens: int
    max_client_batch_size: int
    max_image_pixels: int
    max_labels: int
    max_stop_sequences: int
    max_best_of: int
    max_top_k: int
    max_targets: int
    max_candidates: int
    max_documents: int
    max_pair_characters: int
    max_prompt_images: int
    max_passages: int
    def __init__(self, max_input_tokens: _Optional[int] = ..., max_total_tokens: _Optional[int] = ..., max_client_batch_size: _Optional[int] = ..., max_image_pixels: _Optional[int] = ..., max_labels: _Optional[int] = ..., max_stop_sequences: _Optional[int] = ..., max_best_of: _Optional[int] = ..., max_top_k: _Optional[int] = ..., max_targets: _Optional[int] = ..., max_candidates: _Optional[int] = ..., max_documents: _Optional[int] = ..., max_pair_characters: _Optional[int] = ..., max_prompt_images: _Optional[int] = ..., max_passages: _Optional[int] = ...) -> None: ...

class RefusedModel(_message.Message):
    __slots__ = ("id", "version", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    version: int
    reason: str
    def __init__(self, id: _Optional[str] = ..., version: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ErrorBody(_message.Message):
    __slots__ = ("type", "message", "field")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    field: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class Glossary(_message.Message):
    __slots__ = ("name", "terms", "source", "target")
    class TermsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    name: str
    terms: _containers.ScalarMap[str, str]
    source: str
    target: str
    def __init__(self, name: _Optional[str] = ..., terms: _Optional[_Mapping[str, str]] = ..., source: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class GlossaryName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GlossaryInfo(_message.Message):
    __slots__ = ("name", "source", "target", "size", "modified")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    target: str
    size: int
    modified: float
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., size: _Optional[int] = ..., modified: _Optional[float] = ...) -> None: ...

class GlossaryList(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: _containers.RepeatedCompositeFieldContainer[GlossaryInfo]
    def __init__(self, data: _Optional[_Iterable[_Union[GlossaryInfo, _Mapping]]] = ...) -> None: ...

class ListGlossariesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MaskTokenList(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[MaskToken]
    def __init__(self, values: _Optional[_Iterable[_Union[MaskToken, _Mapping]]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Row(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class LanguagePair(_message.Message):
    __slots__ = ("source", "target")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...
