"""CTranslate2's folders: encoder-decoders of its `TransformerSpec`.

A folder has `model.bin`, vocabularies and, since version 3 of CTranslate2, `config.json`. It has no
tokenizer, unless its files were copied there (`--copy_files`). Networks and defaults of absent
variables are those of `src/models` and `src/layers` of CTranslate2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from export.checkpoint.foreign.conversion import (
    CONFIG,
    TRANSLATOR,
    Conversion,
    Vocabulary,
    copied,
    read_object,
    sentencepiece_models,
    sinusoids,
)
from export.checkpoint.foreign.ctranslate2_file import Variables
from inference.errors import CheckpointError

WEIGHTS = "model.bin"
_ACTIVATIONS = ("relu", "gelu_new", "silu", "gelu", "quick_gelu", "tanh")
"""By `common_spec.Activation`."""
_HEADS = {"TransformerBase": 8, "TransformerBig": 16, "TransformerSpec": 8}
"""Layout → heads, where the file does not state them."""
_IGNORED = {"embeddings_merge", "alignment_layer", "alignment_heads", "layernorm_embedding"}
"""Numbers that change no output, or state what the names of other variables do."""
_FLAGS = {"alibi", "alibi_use_positive_positions", "scale_alibi", "multi_query_attention"}
_FLAGS |= {"with_relative_position", "start_from_zero_embedding"}
"""Of what is not supported; zero in other models."""
_LANGUAGE = re.compile(r"__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")
_COMPUTED_POSITIONS = 1024
_OFFSET = 2
_HALF_PRECISION = 1e-2
"""How far sines of a file in bfloat16 are from those that are computed."""
_SIDES = ("encoder", "decoder")


def is_folder(folder: Path) -> bool:
    """Whether a folder is CTranslate2's: its vocabularies are beside `model.bin`."""
    return (folder / WEIGHTS).is_file() and any(folder.glob("*vocabulary*.*"))


def convert(
    folder: Path, package: Path | None = None, pair: tuple[str, str] | None = None
) -> Conversion:
    """A folder of CTranslate2's.

    Args:
        package: The folder that it lies in, where the tokenizer is.
        pair: Languages of source and target, where they are known.

    Raises:
        CheckpointError: it is damaged, or holds what our networks cannot compute.
    """
    variables = Variables(folder / WEIGHTS)
    if variables.spec not in _HEADS or variables.revision < 2:
        raise CheckpointError(
            f"{folder} holds CTranslate2's {variables.spec}, revision {variables.revision}; read "
            "are encoder-decoders (TransformerSpec from revision 2 on): export the checkpoint that "
            "it was made from"
        )
    is_t5 = not variables.has("encoder/layer_0/self_attention/layer_norm/beta")
    model = (_T5 if is_t5 else _Translator)(folder, variables)
    quantised = " and ".join(sorted(variables.kinds & {"int8", "int16"}))
    conversion = model.convert([folder] if package is None else [folder, package], pair)
    conversion.notes.extend([f"{WEIGHTS} holds {quantised}, which became floats"] * bool(quantised))
    return conversion


class _Model:
    """A folder, its variables and settings."""

    model_type: str

    def __init__(self, folder: Path, variables: Variables) -> None:
        self.folder = folder
        self.variables = variables
        self.settings = read_object(folder / CONFIG) if variables.version >= 6 else self._inner()
        plain = "encoder/embeddings/weight"  # before revision 4
        self.tables = (
            plain if variables.has(plain) else "encoder/embeddings_0/weight",
            "decoder/embeddings/weight",
        )
        self.width = variables.shape(self.tables[1])[-1]
        self.source, self.target = map(self._vocabulary, ("source", "target"), self.tables)
        self.layers = {side: self._count(side) for side in _SIDES}

    def convert(self, folders: Sequence[Path], pair: tuple[str, str] | None) -> Conversion:
        """The conversion to what `transformers` has."""
        files = {name: each for place in folders for name, each in copied(place).items()}
        ids = {token: number for number, token in reversed(list(enumerate(self.target)))}
        generation = {"eos_token_id": ids.get(self.token("eos_token", "</s>"))}
        start = self.settings.get("decoder_start_token")
        generation["decoder_start_token_id"] = ids.get(str(start))
        generation["pad_token_id"] = ids.get("<pad>", ids.get("<blank>"))
        given = {name: number for name, number in generation.items() if number is not None}
        return Conversion(self.config(), given, self.checked(self.tensors()), files)

    def config(self) -> dict[str, Any]:
        """`config.json`."""
        raise NotImplementedError

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names of `transformers` and values."""
        raise NotImplementedError

    def checked(self, tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The tensors; raises CheckpointError at their end where there are others, not read."""
        yield from tensors
        get = self.variables
        left = [
            name
            for name in get.unused()
            if (leaf := name.rsplit("/", 1)[-1]) not in _IGNORED
            and not (leaf in _FLAGS and get.scalar(name, 0) == 0)
        ]
        if left:
            shown = ", ".join(left[:3])
            raise CheckpointError(
                f"{self.folder}: {WEIGHTS} has what our networks do not compute: {shown}"
            )

    def linear(self, scope: str, *names: str) -> Iterator[tuple[str, Tensor]]:
        """A layer, or several in one, without biases where the file has none."""
        for leaf in ("weight", "bias"):
            if self.variables.has(f"{scope}/{leaf}"):
                whole = self.variables.tensor(f"{scope}/{leaf}")
                if len(whole) % len(names):
                    raise CheckpointError(f"{self.folder}: {scope} is not {len(names)} layers")
                for name, part in zip(names, whole.chunk(len(names)), strict=True):
                    yield f"{name}.{leaf}", part
            elif leaf == "weight":
                raise CheckpointError(f"{self.folder}: {WEIGHTS} has no variable {scope}/{leaf}")

    def number(self, name: str, default: float) -> float:
        """A number of both stacks, which files before revision 5 hold once.

        Raises:
            CheckpointError: the stacks differ.
        """
        once = self.variables.scalar(name, default)
        values = {self.variables.scalar(f"{side}/{name}", once) for side in _SIDES}
        if len(values) > 1:
            raise CheckpointError(f"{self.folder}: encoder and decoder differ in {name}")
        return values.pop()

    def token(self, name: str, default: str) -> str:
        """The text of a special token."""
        value = self.settings.get(name, default)
        if not isinstance(value, str):
            raise CheckpointError(f"{self.folder / CONFIG}: {name} must be a token, not {value!r}")
        return value

    def heads(self) -> int:
        """Heads of each layer."""
        return max(1, int(self.number("num_heads", _HEADS[self.variables.spec])))

    def activation(self) -> str:
        """The name of the non-linearity."""
        number = self.number("activation", 0)
        if number not in range(len(_ACTIVATIONS)):
            raise CheckpointError(f"{self.folder}: activation {number} is not supported")
        return _ACTIVATIONS[int(number)]

    def _inner(self) -> dict[str, Any]:
        """Settings that files before version 6 hold as variables."""
        get = self.variables
        texts = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        found: dict[str, Any] = {name: get.text(name, text) for name, text in texts.items()}
        start = found["bos_token" if get.scalar("with_target_bos", 1) else "eos_token"]
        is_given = get.scalar("user_decoder_start_tokens", 0)
        return found | {
            "add_source_bos": bool(get.scalar("with_source_bos", 0)),
            "add_source_eos": bool(get.scalar("with_source_eos", 0)),
            "decoder_start_token": None if is_given else start,
        }

    def _vocabulary(self, side: str, table: str) -> list[str]:
        """The tokens of one side, as many as its table has rows."""
        names = (f"{name}_vocabulary.{end}" for name in ("shared", side) for end in ("json", "txt"))
        found = next((path for name in names if (path := self.folder / name).is_file()), None)
        if found is None:
            raise CheckpointError(f"{self.folder} has no {side}_vocabulary.json")
        try:
            text = found.read_bytes().decode()
            tokens = json.loads(text) if found.suffix == ".json" else _lines(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{found} is damaged: {error}") from error
        if not isinstance(tokens, list) or not all(isinstance(each, str) for each in tokens):
            raise CheckpointError(f"{found} must be a list of tokens")
        if len(tokens) != self.variables.shape(table)[0]:
            raise CheckpointError(
                f"{found.name} has {len(tokens)} tokens and {table} "
                f"{self.variables.shape(table)[0]} rows"
            )
        return tokens

    def _count(self, side: str) -> int:
        count = 0
        while self.variables.has(f"{side}/layer_{count}/ffn/linear_0/weight"):
            count += 1
        return count


class _T5(_Model):
    """T5: norms without mean and bias, relative positions."""

    def config(self) -> dict[str, Any]:
        get, first = self.variables, "encoder/layer_0"
        is_gated = get.has(f"{first}/ffn/linear_0_noact/weight")
        heads, fused = self.heads(), get.shape(f"{first}/self_attention/linear_0/weight")[0]
        buckets = f"{first}/self_attention/relative_attention_bias"
        activation = self.activation()
        return {
            "model_type": "t5",
            "is_encoder_decoder": True,
            "d_model": self.width,
            "vocab_size": len(self.target),
            "num_layers": self.layers["encoder"],
            "num_decoder_layers": self.layers["decoder"],
            "num_heads": heads,
            "d_kv": fused // 3 // heads,
            "d_ff": get.shape(f"{first}/ffn/linear_0/weight")[0],
            "feed_forward_proj": f"gated-{activation}" if is_gated else activation,
            "is_gated_act": is_gated,
            "dense_act_fn": activation,
            "relative_attention_num_buckets": get.shape(buckets)[0],
            "relative_attention_max_distance": int(
                self.number("layer_0/self_attention/relative_attention_max_distance", 128)
            ),
            "layer_norm_epsilon": self.settings.get("layer_norm_epsilon") or 1e-6,
            "tie_word_embeddings": get.scalar("decoder/scale_outputs", 0) != 0,
        }

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        get = self.variables
        is_scaled, is_behind = self.number("scale_embeddings", 1), not self.number("pre_norm", 1)
        if not get.is_same(*self.tables) or is_scaled or is_behind:
            raise CheckpointError(
                f"{self.folder}: a T5 with two tables, scaled embeddings or norms behind its layers"
            )
        yield "shared.weight", get.tensor(self.tables[0])
        yield from self.linear("decoder/projection", "lm_head")
        for side in _SIDES:
            yield from self._norm(f"{side}/layer_norm", f"{side}.final_layer_norm")
            bias = get.tensor(f"{side}/layer_0/self_attention/relative_attention_bias")
            place = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            yield place, bias
            for number in range(self.layers[side]):
                yield from self._block(f"{side}/layer_{number}", f"{side}.block.{number}.layer")

    def _block(self, scope: str, block: str) -> Iterator[tuple[str, Tensor]]:
        has_cross, get = scope.startswith("decoder"), self.variables
        for name in ("self_attention", "attention")[: 1 + has_cross]:
            if get.scalar(f"{scope}/{name}/queries_scale", 0) != 1:
                raise CheckpointError(f"{self.folder}: scaled queries in a T5")
        distance = f"{scope}/self_attention/relative_attention_max_distance"
        get.scalar(distance, 0)  # that of the first layer, like the bias
        own = f"{block}.0.SelfAttention"
        yield from self.linear(f"{scope}/self_attention/linear_0", *(f"{own}.{n}" for n in "qkv"))
        yield from self.linear(f"{scope}/self_attention/linear_1", f"{own}.o")
        yield from self._norm(f"{scope}/self_attention/layer_norm", f"{block}.0.layer_norm")
        if has_cross:
            cross = f"{block}.1.EncDecAttention"
            yield from self.linear(f"{scope}/attention/linear_0", f"{cross}.q")
            yield from self.linear(f"{scope}/attention/linear_1", f"{cross}.k", f"{cross}.v")
            yield from self.linear(f"{scope}/attention/linear_2", f"{cross}.o")
            yield from self._norm(f"{scope}/attention/layer_norm", f"{block}.1.layer_norm")
        mlp = f"{block}.{1 + has_cross}"
        inner, is_gated = f"{mlp}.DenseReluDense", get.has(f"{scope}/ffn/linear_0_noact/weight")
        yield from self.linear(f"{scope}/ffn/linear_0", f"{inner}.{'wi_0' if is_gated else 'wi'}")
        if is_gated:
            yield from self.linear(f"{scope}/ffn/linear_0_noact", f"{inner}.wi_1")
        yield from self.linear(f"{scope}/ffn/linear_1", f"{inner}.wo")
        yield from self._norm(f"{scope}/ffn/layer_norm", f"{mlp}.layer_norm")

    def _norm(self, scope: str, name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", self.variables.tensor(f"{scope}/gamma")


class _Translator(_Model):
    """BART's network and its variants, whose norms have mean and bias."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Of a model that reads sentencepiece's pieces."""
        if self.settings.get("add_source_bos"):
            raise CheckpointError(
                f"{self.folder}: sources that begin with a token are not supported"
            )
        is_zero = self.variables.scalar("decoder/start_from_zero_embedding", 0)
        start = self.token("decoder_start_token", "<s>")
        # Conversions of OpenNMT alone read sources without an end, and begin with `<s>`; for those
        # of `transformers` its tokenizers add the end, whatever the file says.
        adds_end = bool(is_zero) or start != self.token("bos_token", "<s>")
        return Vocabulary(
            self.source,
            self.target,
            end=self.token("eos_token", "</s>"),
            unknown=self.token("unk_token", "<unk>"),
            start=None if is_zero else start,
            adds_end=bool(self.settings.get("add_source_eos", False)) or adds_end,
        )

    @cached_property
    def has_embedding_norm(self) -> bool:
        return self.variables.has("encoder/layernorm_embedding/gamma")

    @cached_property
    def is_norm_first(self) -> bool:
        """Whether norms are in front of layers."""
        return self.number("pre_norm", 1) != 0

    def convert(self, folders: Sequence[Path], pair: tuple[str, str] | None) -> Conversion:
        """As the base; without language codes, a translator with sentencepiece's models."""
        codes = sum(_LANGUAGE.fullmatch(token) is not None for token in self.target)
        pieces = sentencepiece_models(folders)
        has_fast = any((place / "tokenizer.json").is_file() for place in folders)
        if codes > 1 and self.is_norm_first:
            self.model_type = "mbart" if self.has_embedding_norm else "m2m_100"
        elif pieces is None and has_fast:
            self.model_type = "bart" if self.has_embedding_norm else "pegasus"
        else:
            self.model_type = TRANSLATOR
        if self.model_type == TRANSLATOR and pieces is None:
            raise CheckpointError(
                f"{self.folder} has no tokenizer, which CTranslate2 does not store: copy the files "
                "source.spm and target.spm, or sentencepiece.model, of its origin into the folder"
            )
        conversion = super().convert(folders, pair)
        if self.model_type == TRANSLATOR and pieces is not None:
            conversion.files = self.vocabulary.files(pieces, pair)
            conversion.generation = self.vocabulary.generation()
        elif self.model_type == "m2m_100" and not has_fast:
            ends = (n for n, token in enumerate(self.target) if _LANGUAGE.fullmatch(token))
            ids = {token: number for number, token in enumerate(self.target[: next(ends)])}
            conversion.files.setdefault("vocab.json", json.dumps(ids).encode())
        return conversion

    def config(self) -> dict[str, Any]:
        get, rows = self.variables, self.vocabulary.rows if self.is_translator else len
        config = {
            "model_type": self.model_type,
            "is_encoder_decoder": True,
            "d_model": self.width,
            "vocab_size": rows(self.source),
            "decoder_vocab_size": rows(self.target),
            "activation_function": self.activation(),
            "scale_embedding": self._is_scaled(),
            "max_position_embeddings": len(self._positions("encoder")),
            "normalize_before": self.is_norm_first,
            "normalize_embedding": self.has_embedding_norm,
            "add_final_layer_norm": get.has("encoder/layer_norm/gamma"),
            "layer_norm_eps": self.settings.get("layer_norm_epsilon") or 1e-5,
            "share_encoder_decoder_embeddings": get.is_same(*self.tables),
        }
        for side in _SIDES:
            config[f"{side}_layers"] = self.layers[side]
            config[f"{side}_attention_heads"] = self.heads()
            config[f"{side}_ffn_dim"] = get.shape(f"{side}/layer_0/ffn/linear_0/weight")[0]
        return config

    @property
    def is_translator(self) -> bool:
        """Whether our own type reads it, which has every form of the network."""
        return self.model_type == TRANSLATOR

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        get, extend = self.variables, self.vocabulary.extend if self.is_translator else _unchanged
        if get.is_same(*self.tables):
            yield "model.shared.weight", extend(get.tensor(self.tables[0]))
        else:
            for side, table in zip(_SIDES, self.tables, strict=True):
                yield f"model.{side}.embed_tokens.weight", extend(get.tensor(table))
        bias = torch.zeros(len(self.target))
        for name, value in self.linear("decoder/projection", "lm_head"):
            if name == "lm_head.weight":
                yield name, extend(value)
            else:
                bias = value
        if self.is_translator or bias.any():
            yield "final_logits_bias", extend(bias)[None]
        for side in _SIDES:
            yield from self._stack(side)

    def _stack(self, side: str) -> Iterator[tuple[str, Tensor]]:
        for norm in ("layer_norm", "layernorm_embedding"):
            if self.variables.has(f"{side}/{norm}/gamma"):
                yield from self._norm(f"{side}/{norm}", f"model.{side}.{norm}")
        positions = self._positions(side)
        if self.model_type in ("bart", "mbart"):
            positions = torch.cat([positions.new_zeros(_OFFSET, self.width), positions])
        if self.model_type != "m2m_100":
            yield f"model.{side}.embed_positions.weight", positions
        elif not positions.allclose(self._m2m_positions(len(positions)), atol=_HALF_PRECISION):
            raise CheckpointError(f"{self.folder}: positions that are not M2M-100's")
        for number in range(self.layers[side]):
            scope, layer = f"{side}/layer_{number}", f"model.{side}.layers.{number}"
            yield from self._attention(f"{scope}/self_attention", f"{layer}.self_attn", 3)
            if side == "decoder":
                yield from self._attention(f"{scope}/attention", f"{layer}.encoder_attn", 1)
            yield from self._biased(f"{scope}/ffn/linear_0", f"{layer}.fc1")
            yield from self._biased(f"{scope}/ffn/linear_1", f"{layer}.fc2")
            yield from self._norm(f"{scope}/ffn/layer_norm", f"{layer}.final_layer_norm")

    def _attention(self, scope: str, name: str, first: int) -> Iterator[tuple[str, Tensor]]:
        """Four layers, of which the first three, or the second and third, are stored as one."""
        if self.variables.has(f"{scope}/queries_scale"):
            raise CheckpointError(f"{self.folder}: scaled queries are not supported")
        inner = [f"{name}.{each}_proj" for each in "qkv"]
        groups = [inner[:first], inner[first:], [f"{name}.out_proj"]]
        for number, group in enumerate(filter(None, groups)):
            yield from self._biased(f"{scope}/linear_{number}", *group)
        yield from self._norm(f"{scope}/layer_norm", f"{name}_layer_norm")

    def _biased(self, scope: str, *names: str) -> Iterator[tuple[str, Tensor]]:
        """Layers, with biases of zero where the file has none."""
        yield from self.linear(scope, *names)
        if not self.variables.has(f"{scope}/bias"):
            rows = self.variables.shape(f"{scope}/weight")[0] // len(names)
            yield from ((f"{name}.bias", torch.zeros(rows)) for name in names)

    def _norm(self, scope: str, name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", self.variables.tensor(f"{scope}/gamma")
        yield f"{name}.bias", self.variables.tensor(f"{scope}/beta")

    def _positions(self, side: str) -> Tensor:
        name = f"{side}/position_encodings/encodings"
        if self.variables.has(name):
            return self.variables.tensor(name).float()
        return sinusoids(_COMPUTED_POSITIONS + 1, self.width)[1:]

    def _m2m_positions(self, count: int) -> Tensor:
        return sinusoids(count + _OFFSET, self.width)[_OFFSET:]

    def _is_scaled(self) -> bool:
        """Whether embeddings are multiplied by √D: by a flag, or by the factor itself."""
        old = self.number("embeddings/multiply_by_sqrt_depth", 1)
        factor, root = self.number("scale_embeddings", old), self.width**0.5
        place = "encoder/scale_embeddings"
        is_flag = not self.variables.has(place) or self.variables.kind(place) == "int8"
        if is_flag or factor == 1:
            return is_flag and factor != 0
        if abs(factor / root - 1) > 1e-5:
            raise CheckpointError(f"{self.folder}: embeddings times {factor} are not supported")
        return True


def _unchanged(table: Tensor) -> Tensor:
    return table


def _lines(text: str) -> list[str]:
    """Lines without their ends; those of Windows where all lines have them."""
    lines = text.removesuffix("\n").split("\n")
    is_windows = all(line.endswith("\r") for line in lines)
    return [line.removesuffix("\r") for line in lines] if is_windows else lines
