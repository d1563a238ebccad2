"""The outputs of our network beside those of its reference, on the same random inputs.

The reference computes each row alone and unpadded; ours computes the rows as one ragged, padded
batch, through the modules that are exported. Everything follows from the roles of the graphs'
inputs and outputs: no architecture is named.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.architecture import Graphs
from export.layers.attention.attention import within
from export.layers.images.vision import checked_shape
from export.models.detectors.grounding_dino_layers import DELIMITERS
from inference.bundle.inputs import ImageSpec, PromptImages, TileCanvas
from inference.bundle.manifest import Graph, Role
from inference.bundle.manifest import Tensor as Port
from inference.tasks.shared.length_buckets import fixed_width
from tests.export.conftest import TwinPair
from tests.export.models.interleaved import (
    IMAGES,
    normalised,
    planted,
    prompt_images,
    prompt_inputs,
    types_of_tokens,
)
from tests.export.sources import (
    flattened_patches,
    random_patches,
    region_inputs,
    spatial_patches,
)
from tests.export.step_calls import StepCalls, feeds, outputs_of, prefill, teacher_forced
from tests.export.twins import twin_of

Expected = tuple[Tensor, Tensor | None, Tensor | None]
"""Of one row: logits (T, V), attention (T, S), annotations (S, D); a paper gives all three."""
Comparison = tuple[str, Tensor, Tensor]
"""(place, wanted, given)."""

SOURCE_LENGTHS = (7, 4, 1)
_FIELDS = {Role.LOGITS: "logits", Role.HIDDEN: "last_hidden_state", Role.EMBEDDING: "pooler_output"}
"""Fields of `transformers`' outputs, where a twin names none."""
TARGET_LENGTH = 6
_LENGTHS = {
    Role.SOURCE_TOKENS: Role.SOURCE,
    Role.TOKENS: Role.LENGTHS,
    Role.SEGMENTS: Role.LENGTHS,
}
"""Padded inputs → the lengths of their rows."""


@dataclass(frozen=True)
class Inputs:
    """Random inputs of three rows, by role; right-padded."""

    by_role: Mapping[Role, Tensor]
    target: Tensor
    """(3, T) decoder input tokens."""
    reads_instructions: bool = False
    """Whether the source is what images are read for; SOURCE has the images' positions."""
    images: tuple[int, ...] = (1, 1, 1)
    """Of each row, where PIXELS has those of all rows."""

    def row(self, index: int) -> dict[Role, Tensor]:
        """One row's inputs, without padding."""
        row = {role: value[index : index + 1] for role, value in self.by_role.items()}
        if Role.PIXELS in row:
            start, stop = sum(self.images[:index]), sum(self.images[: index + 1])
            row[Role.PIXELS] = self.by_role[Role.PIXELS][start:stop]
        read = dict(_LENGTHS)
        if self.reads_instructions:
            read[Role.SOURCE_TOKENS] = Role.LENGTHS
        for tokens, lengths in read.items():
            if tokens in row:
                row[tokens] = row[tokens][:, : int(row[lengths])]
        return row


def compare(
    pair: TwinPair, network: nn.Module | None = None, graphs: Graphs | None = None
) -> Iterator[Comparison]:
    """Every output that a twin's reference has too.

    Args:
        network: Ours, when not the twin's own (a planted fault).
    """
    graphs = graphs or pair.architecture.graphs(network or pair.network, pair.prepared.image)
    compared = _generator if "step" in graphs.lowerings else _stateless
    with torch.no_grad():
        yield from compared(pair, graphs)


def difference(want: Tensor, got: Tensor) -> float:
    """Largest difference over the largest magnitude."""
    assert want.shape == got.shape
    return ((want - got).abs().max() / want.abs().max()).item()


def random_inputs(pair: TwinPair, graphs: Graphs) -> Inputs:
    """The same for every call; of texts, the last token is the tokenizer's end token."""
    generator = torch.Generator().manual_seed(0)
    optional = torch.Generator().manual_seed(1)  # what few graphs read leaves the rest as it was
    held: PromptImages | None = graphs.fields.get("source_image")
    further = 0 if held is None else held.tokens - 1  # the last row is an image alone
    lengths = torch.tensor(SOURCE_LENGTHS, dtype=torch.int32) + further
    shape = (len(lengths), int(lengths.max()))
    tokens = torch.randint(3, min(60, graphs.source_vocabulary or 60), shape, generator=generator)
    if "step" not in graphs.lowerings and pair.prepared.tokenizer is not None:
        end = pair.prepared.tokenizer.eos_token_id
        assert end is not None
        tokens[torch.arange(len(lengths)), lengths.long() - 1] = end
    if any(each.graph.output(Role.TOKEN_LOGITS) for each in graphs.lowerings.values()):
        ends = [token for token in DELIMITERS if token < (graphs.source_vocabulary or 0)]
        if ends:  # of the labels that a text holds
            drawn = torch.tensor(ends)[torch.randint(0, len(ends), shape, generator=optional)]
            tokens = torch.where(torch.rand(shape, generator=optional) < 0.4, drawn, tokens)
    by_role = {
        Role.SOURCE_TOKENS: tokens,
        Role.TOKENS: tokens,
        Role.SOURCE: lengths,
        Role.LENGTHS: lengths,
        Role.SEGMENTS: torch.randint(0, 2, shape, generator=optional),
        Role.POSITIONS: torch.tensor([[0, 6, 3, 3], [3, 0, 1, 2], [0, 0, 0, 0]]),
        Role.CHOICES: torch.randint(0, 60, (len(lengths), 3), generator=optional),
    }
    for lowering in graphs.lowerings.values():
        width = fixed_width(lowering.graph)
        if width is not None:  # every text is padded to it
            tokens[~within(lengths, shape[1])] = pair.prepared.tokenizer.pad_token_id
            padding = (0, width - shape[1])
            pad_token = pair.prepared.tokenizer.pad_token_id
            by_role[Role.TOKENS] = nn.functional.pad(tokens, padding, value=pad_token)
    image = pair.prepared.image
    if image is not None:
        by_role[Role.PIXELS] = torch.randint(
            0, 256, (len(lengths), *image.shape), generator=generator, dtype=torch.uint8
        )
        if image.regions is not None:
            by_role[Role.PIXELS] = torch.rand((len(lengths), *image.shape), generator=optional)
    for lowering in graphs.lowerings.values():
        for role in (Role.CONDITIONS, Role.HIDDEN):
            port = lowering.graph.input(role)
            if port is not None:
                sizes = [2 if isinstance(size, str) else size for size in port.shape[1:]]
                by_role[role] = torch.randn((len(lengths), *sizes), generator=optional)
        if (frames := lowering.graph.frames) is not None:
            shape = (len(lengths), frames, *image.shape)
            drawn = torch.randint(0, 256, shape, generator=optional, dtype=torch.uint8)
            by_role[Role.PIXELS] = drawn
    if has_patches(graphs):
        drawn = [random_patches(number, image.shape) for number in range(len(lengths))]
        by_role[Role.PIXELS] = torch.from_numpy(np.stack(drawn))
    vocabulary = pair.vocabulary_size(graphs) if "step" in graphs.lowerings else 1
    images = prompt_images(pair)
    length = TARGET_LENGTH
    if images is not None:  # an image too large for the positions is refused by the reference
        most = pair.source.configuration.limits.max_total_tokens or images.tokens + 2
        length = max(length, min(images.tokens + 2, most))
    target = torch.randint(0, vocabulary, (len(lengths), length), generator=generator)
    if images is not None and image is not None:
        target = planted(target, images)
        is_canvas = isinstance(images.grid, TileCanvas)
        size = checked_shape(image, images, 1) if is_canvas else image.shape
        shape = (len(lengths), IMAGES, *size)
        by_role[Role.PIXELS] = torch.randint(0, 256, shape, generator=optional, dtype=torch.uint8)
        counts = (target == images.token_id).sum(dim=1) // images.tokens
        by_role[Role.SOURCE] = (counts * images.positions).int()
    counts = (1, 1, 1)
    if held is not None:  # the first row's is behind a token
        tokens[tokens == held.token_id] = 3
        tokens[0, 1 : 1 + held.tokens] = tokens[2, : held.tokens] = held.token_id
        if graphs.lowerings["admit"].graph.input(Role.PIXELS).shape[0] == "I":
            tokens[0, 1 + held.tokens] = pair.source.configuration.images.end
            tokens[0, 2 + held.tokens : 2 + 2 * held.tokens] = held.token_id
            tokens[1, int(lengths[1]) :] = held.token_id  # of padding, which is not read
            counts = (2, 0, 1)
        else:
            tokens[1, : held.tokens] = held.token_id
    start = graphs.fields.get("instruction_start")
    if start is not None:  # in front of each source, the last row's the shortest
        words = start + torch.randint(3, 60, (len(lengths), 3), generator=optional)
        by_role[Role.SOURCE_TOKENS] = torch.cat([words, tokens], dim=1)
        by_role[Role.SOURCE] = lengths + words.shape[1]
    is_apart = pair.architecture.reads_instructions and start is None
    return Inputs(by_role, target, is_apart, counts)


def has_patches(graphs: Graphs) -> bool:
    """Whether a model reads images as rows of patches."""
    reader = graphs.lowerings.get("admit") or graphs.lowerings.get("image")
    pixels = reader.graph.input(Role.PIXELS) if reader else None
    return pixels is not None and pixels.dtype == "float32"


def _generator(pair: TwinPair, graphs: Graphs) -> Iterator[Comparison]:
    inputs = random_inputs(pair, graphs)
    references = _references(pair, inputs)
    logits, attention = teacher_forced(graphs, inputs.by_role, inputs.target)
    for row, (wanted, wanted_attention, _) in enumerate(references):
        yield f"row {row}, token by token", wanted, logits[row]
        if attention is not None and wanted_attention is not None:
            padding = attention.shape[-1] - wanted_attention.shape[-1]
            padded = nn.functional.pad(wanted_attention, (0, padding))
            yield f"attention of row {row}", padded, attention[row]
    for size in (1, 3, 6):
        whole = prefill(graphs, inputs.by_role, inputs.target[:, :size])
        if whole is not None:
            end, given = whole
            for row, (wanted, _, _) in enumerate(references):
                graph = graphs.lowerings["step"].graph
                if graph.whole_prompts or graph.whole_images:
                    wanted = _both_ways(pair, inputs, row, end)
                yield f"row {row}, {end} tokens at once", wanted[end - 1], given[row]
    held = StepCalls(graphs, inputs.by_role, inputs.target.shape).values
    for row, (_, _, read) in enumerate(references):
        if read is not None:
            yield f"annotations of row {row}", read, held["annotations"][row][: len(read)]


def _references(pair: TwinPair, inputs: Inputs) -> list[Expected]:
    """Reference outputs of each row, computed once per twin."""
    if not pair.expected:
        admit = pair.graphs().lowerings.get("admit")
        roles = {port.role for port in admit.graph.inputs} if admit else set()
        for index, target in enumerate(inputs.target):
            row = {role: value for role, value in inputs.row(index).items() if role in roles}
            pair.expected.append(_reference(pair, row, target))
    return pair.expected


def _both_ways(pair: TwinPair, inputs: Inputs, row: int, end: int) -> Tensor:
    """Reference logits of a row whose first tokens are a prompt, (T, V).

    What follows an image's tokens may not be a part of the prompt alone: `transformers` takes whole
    images, whose other tokens no logit of the prompt sees.
    """
    target = inputs.target[row]
    key = ("both ways", row, end)
    if key not in pair.wanted:
        source = {Role.PIXELS: inputs.row(row)[Role.PIXELS]}
        pair.wanted[key] = {"logits": _reference(pair, source, target, prompt=end)[0]}
    return pair.wanted[key]["logits"]


def _reference(
    pair: TwinPair, source: Mapping[Role, Tensor], target: Tensor, prompt: int = 1
) -> Expected:
    """One row through the reference.

    Args:
        source: Inputs of `admit`, (1, …) each; empty for a language model.
        target: (T,)
        prompt: Tokens that a model takes for one which reads prompts, or their images, in both
            directions.
    """
    image = pair.prepared.image
    if isinstance(pair.reference, nn.Module):
        named = transformers_inputs(source, image)
        if (images := prompt_images(pair)) is not None:
            assert image is not None
            pixels = source[Role.PIXELS][0]
            named = prompt_inputs(pair, pixels, target, image, images)
            if Role.SOURCE_TOKENS in source:
                count = len(named["pixel_values"])
                named["qformer_input_ids"] = source[Role.SOURCE_TOKENS].expand(count, -1)
            named |= types_of_tokens(pair, target[None], prompt)
        named |= instruction_inputs(pair, named)
        tokens = {target_name(pair.reference): target[None]}
        logits = pair.reference(**named, **tokens).logits[0]
        return logits[-len(target) :], None, None  # image positions may precede the text's
    if Role.PIXELS in source:
        pixels = normalised(source[Role.PIXELS], image)[0]
        read = pixels.permute(1, 2, 0).double().numpy()
    else:
        read = source[Role.SOURCE_TOKENS][0].tolist()
    logits, attention = pair.reference.decode(read, target.tolist())
    annotations = np.stack(pair.reference.annotations(read))
    logits, attention, annotations = (
        torch.from_numpy(value).float() for value in (logits, attention, annotations)
    )
    return logits, attention, annotations


def instruction_inputs(pair: TwinPair, named: Mapping[str, Any]) -> dict[str, Tensor]:
    """A source in two parts, where it begins with what its image is read for."""
    if not pair.architecture.reads_instructions or "input_ids" not in named:
        return {}
    start, ids = pair.reference.config.text_config.vocab_size, named["input_ids"]
    words = ids[ids >= start][None] - start
    return {"qformer_input_ids": words, "input_ids": ids[ids < start][None]}


def target_name(reference: Any) -> str:
    """The name of the decoder's input tokens in `transformers`."""
    names = inspect.signature(reference.forward).parameters
    config = getattr(reference, "config", None)  # references of our own have none
    # BLIP-2 has such a parameter over a decoder without an encoder too.
    is_decoder = "decoder_input_ids" in names and (config is None or has_source(config))
    return "decoder_input_ids" if is_decoder else "input_ids"


def has_source(config: Any) -> bool:
    """Whether a configuration of `transformers`, or its language model's, has an encoder.

    InstructBLIP's over T5 says so in the section alone.
    """
    inner = getattr(config, "text_config", config)
    return any(getattr(each, "is_encoder_decoder", False) for each in (config, inner))


def transformers_inputs(source: Mapping[Role, Tensor], image: ImageSpec | None) -> dict[str, Any]:
    """Inputs of `admit` under their names in `transformers`."""
    given: dict[str, Any] = {}
    if Role.PIXELS in source and source[Role.PIXELS].is_floating_point():
        given |= flattened_patches(source[Role.PIXELS])
    elif Role.PIXELS in source and len(source[Role.PIXELS]):
        given["pixel_values"] = normalised(source[Role.PIXELS], image)
    if Role.SOURCE_TOKENS in source:
        given["input_ids"] = source[Role.SOURCE_TOKENS]
    return given


def pixel_inputs(pixels: Tensor, image: ImageSpec | None) -> dict[str, Tensor]:
    """Images of a stateless model under their names in `transformers`."""
    if image is not None and image.regions is not None:
        return region_inputs(pixels, image.regions)
    if image is not None and image.resize == "patches":
        return spatial_patches(pixels, image)
    return {"pixel_values": normalised(pixels, image)}


def _stateless(pair: TwinPair, graphs: Graphs) -> Iterator[Comparison]:
    inputs = random_inputs(pair, graphs)
    roles = {port.role for lowering in graphs.lowerings.values() for port in lowering.graph.inputs}
    for key, lowering in graphs.lowerings.items():
        graph = lowering.graph
        given = outputs_of(graph, lowering.module(*feeds(graph, inputs.by_role)))
        read = roles - {Role.SEGMENTS} | {port.role for port in graph.inputs}
        for index in range(len(SOURCE_LENGTHS)):
            row = inputs.row(index)
            if Role.LENGTHS not in roles:  # padding is attended to
                row |= {role: inputs.by_role[role][index : index + 1] for role in _LENGTHS}
            wanted = _wanted(pair, key, graph, row, read)
            alone = {
                port.name: _unpadded(port, given[port.name][index : index + 1], row)
                for port in graph.outputs
            }
            for name, want, got in _compared(graph, wanted, alone):
                yield f"{key}, row {index}, {name}", want, got


def _wanted(
    pair: TwinPair, key: str, graph: Graph, row: Mapping[Role, Tensor], read: set[Role | None]
) -> dict[str, Tensor]:
    """What the reference gives for one row, computed once per twin and input."""
    inputs = _reference_inputs(pair, row, read)
    own = (Role.POSITIONS, Role.CHOICES, Role.CONDITIONS, Role.HIDDEN)
    further = [row[role] for role in own if role in row]
    values = [value.numpy().tobytes() for value in (*_tensors(inputs), *further)]
    place = (key, graph.model_dump_json(), *inputs, *values)
    if place not in pair.wanted:
        pair.wanted[place] = wanted_outputs(pair, key, graph, row, pair.reference(**inputs))
    return pair.wanted[place]


def _tensors(inputs: Mapping[str, Any]) -> Iterator[Tensor]:
    return (value for value in inputs.values() if isinstance(value, Tensor))


def _unpadded(port: Port, value: Tensor, row: Mapping[Role, Tensor]) -> Tensor:
    """An output of one row without padding, where values are undefined."""
    for axis, size in enumerate(port.shape):
        if size == "T":
            value = value.narrow(axis, 0, row[Role.TOKENS].shape[1])
    return value


def _compared(
    graph: Graph, wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> Iterator[Comparison]:
    """Outputs by name; best tokens by their scores, because nearly equal ones have no order."""
    if graph.output(Role.TOP_TOKENS):
        yield "scores by token", *_by_token(wanted, given)
    for port in graph.outputs:
        if port.role is not Role.TOP_TOKENS:
            yield port.name, wanted[port.name], given[port.name]


def _reference_inputs(
    pair: TwinPair, inputs: Mapping[Role, Tensor], roles: set[Role | None]
) -> dict[str, Any]:
    """Inputs of a stateless reference, of one row; without segments it takes all for 0."""
    wanted: dict[str, Any] = {}
    if Role.TOKENS in roles:
        tokens = inputs[Role.TOKENS]
        wanted["input_ids"] = tokens
    if Role.SEGMENTS in roles:
        wanted["token_type_ids"] = inputs[Role.SEGMENTS]
    if Role.PIXELS in roles:
        wanted |= pixel_inputs(inputs[Role.PIXELS], pair.prepared.image)
        if "interpolate_pos_encoding" in inspect.signature(pair.reference.forward).parameters:
            wanted["interpolate_pos_encoding"] = pair.is_resized
    return wanted


def wanted_outputs(
    pair: TwinPair, key: str, graph: Graph, inputs: Mapping[Role, Tensor], reference: Any
) -> dict[str, Tensor]:
    """A stateless graph's outputs by name, from those of its reference."""
    if graph.output(Role.TOP_TOKENS):
        outputs = _masked_tokens(graph, inputs, reference)
    elif graph.output(Role.MASKS):
        outputs = {Role.MASKS: _masks(pair, inputs)}
    elif graph.input(Role.HIDDEN):
        changed = pair.reference.change(inputs[Role.CONDITIONS], inputs[Role.HIDDEN])
        outputs = {Role.EMBEDDING: changed}
    elif graph.output(Role.HIDDEN) and graph.output(Role.EMBEDDING):
        outputs = {Role.EMBEDDING: reference["video_embeds"], Role.HIDDEN: reference["patches"]}
    elif graph.output(Role.TOKEN_LOGITS):
        logits = reference.logits[..., : inputs[Role.TOKENS].shape[1]]
        found = reference.enc_outputs_class.amax(dim=-1)
        best = found.topk(reference.pred_boxes.shape[1])
        outputs = {Role.BOXES: reference.pred_boxes, Role.TOKEN_LOGITS: logits}
        outputs |= {Role.CHOSEN: best.indices, Role.CHOSEN_SCORES: best.values}
    elif graph.output(Role.BOXES):
        outputs = _regions(pair.reference, reference)
    else:
        (role,) = {port.role for port in graph.outputs}
        assert role is not None
        field = twin_of(pair.source.checkpoint.config["model_type"]).outputs.get(key)
        if role is Role.EMBEDDING and "itm_score" in reference:
            outputs = {role: _contrasted(pair.reference, graph, inputs, reference)}
        elif role is Role.EMBEDDING and field is None and graph.input(Role.TOKENS):
            outputs = {role: _pooled(reference.last_hidden_state)}
        elif "start_logits" in reference:
            ends = reference.start_logits, reference.end_logits
            outputs = {role: torch.stack(ends, dim=-1)}
        else:
            outputs = {role: reference[field or _FIELDS[role]]}
            if role is Role.EMBEDDING and field != "conditional_embeddings":  # CLIPSeg's
                rows = outputs[role]
                if rows.shape[-2:] == (1, 1):  # of a grid of one cell
                    rows = rows.flatten(1)
                rows = rows.flatten(0, -2)  # OWL-ViT's are (images, labels, E)
                outputs[role] = nn.functional.normalize(rows, dim=-1)
    return {port.name: outputs[port.role] for port in graph.outputs if port.role is not None}


def _contrasted(model: Any, graph: Graph, inputs: Mapping[Role, Tensor], reference: Any) -> Tensor:
    """(1, E) of one image, or of one text alone: the sides of BLIP's contrastive score."""
    if graph.input(Role.PIXELS):
        vector = model.vision_proj(reference.last_hidden_state[:, 0])
    else:
        read = model.text_encoder(input_ids=inputs[Role.TOKENS]).last_hidden_state
        vector = model.text_proj(read[:, 0])
    return nn.functional.normalize(vector, dim=-1)


def _masks(pair: TwinPair, inputs: Mapping[Role, Tensor]) -> Tensor:
    """(1, K, height, width) of one image, from a call of the reference for each condition."""
    image = pair.prepared.image
    pixels, (conditions,) = normalised(inputs[Role.PIXELS], image), inputs[Role.CONDITIONS]
    masks = [
        pair.reference(pixel_values=pixels, conditional_embeddings=one[None]).logits
        for one in conditions
    ]
    return torch.stack([mask.reshape(mask.shape[-2:]) for mask in masks])[None]


def _regions(model: Any, reference: Any) -> dict[Role, Tensor]:
    """Boxes, and what scores them, of which the reference's logits are made."""
    patches, head = reference.image_embeds.flatten(1, 2), model.class_head
    scale = head.elu(head.logit_scale(patches)) + 1
    objectness = getattr(reference, "objectness_logits", None)  # of OWLv2
    return {
        Role.BOXES: reference.pred_boxes,
        Role.REGIONS: reference.class_embeds * scale,
        Role.REGION_BIASES: (head.logit_shift(patches) * scale).squeeze(-1),
        **({} if objectness is None else {Role.OBJECTNESS: objectness}),
    }


def _pooled(hidden: Tensor) -> Tensor:
    """The mean over one row's tokens, of length one: what a bare encoder is exported with."""
    mean = hidden.mean(dim=1)
    return mean / mean.norm()


def _masked_tokens(
    graph: Graph, inputs: Mapping[Role, Tensor], reference: Any
) -> dict[Role, Tensor]:
    """Probabilities at the positions, from the scores of the whole vocabulary everywhere."""
    both = "prediction_logits" in reference
    logits = reference.prediction_logits if both else reference.logits
    at = logits.softmax(-1)[:, inputs[Role.POSITIONS][0]]
    best = graph.output(Role.TOP_TOKENS)
    scores, tokens = at.topk(int(best.shape[-1]))
    chosen = at[..., inputs[Role.CHOICES][0]]
    return {Role.TOP_TOKENS: tokens, Role.TOP_SCORES: scores, Role.CHOICE_SCORES: chosen}


def _by_token(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(wanted, given) scores of the wanted best tokens, in the order of their ids."""
    both = []
    for side in (wanted, given):
        order = side["top_tokens"].sort(dim=-1).indices
        both.append(side["top_scores"].gather(-1, order))
    return both[0], both[1]
