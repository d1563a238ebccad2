"""What `transformers` and our network say to the same question, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Graphs
from export.layers.attention import Rows
from serving.bundle import ImageSpec
from tests.export.conftest import Twin

Pair = tuple[str, Tensor, Tensor]
"""(what it is, wanted, given)."""


def compare(
    twin: Twin, network: nn.Module | None = None, graphs: Graphs | None = None
) -> Iterator[Pair]:
    """Every output of a twin, batched, ragged and padded.

    Args:
        network: Ours, when not the twin's own (a planted fault).
    """
    graphs = graphs or twin.architecture.graphs(network or twin.network, twin.prepared.image)
    network = network or twin.network
    with torch.no_grad():
        yield from _COMPARISONS[twin.architecture.name](twin, network, graphs)


def difference(want: Tensor, got: Tensor) -> float:
    """Largest difference over the largest magnitude."""
    assert want.shape == got.shape
    return ((want - got).abs().max() / want.abs().max()).item()


def _marian(twin: Twin, network: Any, graphs: Graphs) -> Iterator[Pair]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([7, 4, 1], dtype=torch.int32)
    source = torch.randint(1, 60, (3, 7), generator=generator)
    target = torch.randint(0, network.decoder.vocabulary_size, (3, 6), generator=generator)
    mask = (torch.arange(7)[None] < lengths[:, None]).long()
    want = twin.reference(source, attention_mask=mask, decoder_input_ids=target).logits
    memory = network.decoder.memorise(network.encoder(source, lengths))
    yield "batched", want, teacher_forced(network.decoder, target, memory, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = twin.reference(
            source[row : row + 1, :length], decoder_input_ids=target[row : row + 1]
        )
        yield f"padded against unpadded, row {row}", alone.logits, want[row : row + 1]


def _captioner(twin: Twin, network: Any, graphs: Graphs) -> Iterator[Pair]:
    generator = torch.Generator().manual_seed(0)
    image = twin.prepared.image
    assert image is not None
    pixels = torch.randint(0, 256, (3, *image.shape), generator=generator, dtype=torch.uint8)
    target = torch.randint(0, network.decoder.vocabulary_size, (3, 6), generator=generator)
    want = twin.reference(pixel_values=normalised(pixels, image), decoder_input_ids=target).logits
    memory = network.decoder.memorise(network.encoder(pixels))
    yield "batched", want, teacher_forced(network.decoder, target, memory, None)


def _gpt2(twin: Twin, network: Any, graphs: Graphs) -> Iterator[Pair]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, network.decoder.vocabulary_size, (3, 9), generator=generator)
    want = twin.reference(tokens).logits
    yield "batched", want, teacher_forced(network.decoder, tokens)
    alone = teacher_forced(network.decoder, tokens[1:2, :5])
    yield "alone and shorter", want[1:2, :5], alone


def _clip(twin: Twin, network: Any, graphs: Graphs) -> Iterator[Pair]:
    generator = torch.Generator().manual_seed(0)
    image = twin.prepared.image
    assert image is not None
    pixels = torch.randint(0, 256, (3, *image.shape), generator=generator, dtype=torch.uint8)
    lengths = torch.tensor([9, 5, 2], dtype=torch.int32)
    texts = torch.randint(3, 60, (3, 9), generator=generator)
    texts[torch.arange(3), lengths.long() - 1] = 63
    mask = (torch.arange(9)[None] < lengths[:, None]).long()
    want = twin.reference(texts, normalised(pixels, image), attention_mask=mask)
    yield "image", want.image_embeds, network.image(pixels)
    yield "text", want.text_embeds, network.text(texts, lengths)
    logits = network.logit_scale.exp() * network.image(pixels) @ network.text(texts, lengths).T
    yield "logits", want.logits_per_image, logits


def _bahdanau(twin: Twin, network: Any, graphs: Graphs) -> Iterator[Pair]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([7, 4, 1], dtype=torch.int32)
    source = torch.randint(0, 64, (3, 7), generator=generator)
    target = torch.randint(0, 64, (3, 6), generator=generator)
    annotations, keys, state = graphs.lowerings["admit"].module(source, lengths)
    steps = []
    for column in target.split(1, dim=1):
        logits, state, attention = graphs.lowerings["step"].module(
            column, lengths, state, annotations, keys
        )
        steps.append((logits, attention))
    scores, alignments = (torch.stack(each, dim=1) for each in zip(*steps, strict=True))
    for row, length in enumerate(lengths.tolist()):
        wanted = twin.reference.decode(source[row, :length].tolist(), target[row].tolist())
        logits, alignment = (torch.from_numpy(value).float() for value in wanted)
        yield f"row {row}", logits, scores[row]
        alignment = torch.nn.functional.pad(alignment, (0, source.shape[1] - length))
        yield f"alignment of row {row}", alignment, alignments[row]


def _show_attend_tell(twin: Twin, network: Any, graphs: Graphs) -> Iterator[Pair]:
    generator = torch.Generator().manual_seed(0)
    image = twin.prepared.image
    assert image is not None
    pixels = torch.randint(0, 256, (3, *image.shape), generator=generator, dtype=torch.uint8)
    target = torch.randint(0, 64, (3, 6), generator=generator)
    annotations, keys, *states = graphs.lowerings["admit"].module(pixels)
    steps = []
    for column in target.split(1, dim=1):
        step = graphs.lowerings["step"].module
        logits, *states, attention = step(column, *states, annotations, keys)
        steps.append((logits, attention))
    scores, alignments = (torch.stack(each, dim=1) for each in zip(*steps, strict=True))
    pictures = normalised(pixels, image).permute(0, 2, 3, 1).double().numpy()
    for row, picture in enumerate(pictures):
        seen = torch.from_numpy(twin.reference.annotations(picture)).float()
        yield f"annotations of row {row}", seen, annotations[row]
        wanted = twin.reference.decode(picture, target[row].tolist())
        logits, alignment = (torch.from_numpy(value).float() for value in wanted)
        yield f"row {row}", logits, scores[row]
        yield f"attention of row {row}", alignment, alignments[row]


_COMPARISONS = {
    "marian": _marian,
    "vision-encoder-decoder": _captioner,
    "gpt2": _gpt2,
    "clip": _clip,
    "bahdanau": _bahdanau,
    "show-attend-tell": _show_attend_tell,
}


def teacher_forced(decoder: Any, target: Tensor, *looked_at: Any) -> Tensor:
    """Logits at every position, (R, T, V), from one call on an empty cache.

    Args:
        looked_at: Memory and source lengths, where there is a source.
    """
    count, length = target.shape
    heads = decoder.heads
    empty = torch.zeros(count, heads.count, length, heads.cache_width)
    rows = Rows(
        torch.full((count,), length, dtype=torch.int32),
        torch.tensor(length, dtype=torch.int32),
        torch.full((count,), length - 1),
    )
    past = [(empty, empty)] * decoder.layers
    hidden, _ = decoder(target, rows, past, *looked_at)
    return decoder.logits(hidden.flatten(0, 1)).view(count, length, -1)


def normalised(pixels: Tensor, image: ImageSpec) -> Tensor:
    """What `transformers`' image processors make of prepared pixels."""
    scaled = pixels.float() * image.rescale
    return ((scaled - torch.tensor(image.mean)) / torch.tensor(image.std)).permute(0, 3, 1, 2)
