"""BERT's or RoBERTa's encoder, and BERT, RoBERTa or GPT-2 as the decoder.

Paper: Rothe et al. 2020, "Leveraging Pre-trained Checkpoints for Sequence Generation Tasks", §2
(arXiv 1907.12461).
Checkpoints: `model_type: encoder-decoder`, such as `patrickvonplaten/bert2bert_cnn_daily_mail`.

Differences from `transformers`: inference only; cross-attention keys and values are computed once;
all source tokens have segment 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.architecture import Architecture, no_section
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.decoder_graphs.transformer import alignment, text_to_text_graphs
from export.layers.blocks import BASE
from export.models.encoder_decoders.halves import (
    TEXT_DECODERS,
    EncoderDecoder,
    Half,
    Halves,
    find_half,
    rename,
)
from export.models.encoders import bert
from export.text_encoders.heads import HeadConfig, HeadKind
from inference.bundle.manifest import Limits


def _encoder(config: type[bert.Config], **defaults: int) -> Half:
    """An encoder without a head, whatever class the section names."""

    def read(reader: ConfigReader) -> Any:
        reader = ConfigReader(reader.values, reader.place, BASE | defaults)
        return reader.read(config, head=HeadConfig(HeadKind.BARE))

    return Half(read, bert.Encoder, _rename_encoder)


def _rename_encoder(_: Any, theirs: str, ours: str) -> dict[str, Entry]:
    table = Rename(bert.BERT.encoder_names() | {"pooler.dense": None}).prefixed(theirs, "")
    return {
        name: ours + own.removeprefix("encoder.") if isinstance(own, str) else own
        for name, own in table.items()
    }


ENCODERS: Mapping[str, Half] = {
    "bert": _encoder(bert.Config),
    "roberta": _encoder(bert.RobertaConfig, vocab_size=50265),
    "xlm-roberta": _encoder(bert.RobertaConfig),
    "camembert": _encoder(bert.RobertaConfig),
}

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config(Halves):
    """Both halves."""

    @property
    def limits(self) -> Limits:
        """Each half's position table bounds its side."""
        most = self.encoder.limits.max_input_tokens
        return Limits(max_input_tokens=most, max_total_tokens=self.decoder.positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; other encoders or decoders are refused by name."""
    reader = ConfigReader(values)
    reader.refuse_classes_but("EncoderDecoderModel")
    reader.refuse_unless(is_encoder_decoder=True)
    encoder, decoder = reader.section("encoder"), reader.section("decoder")
    decoder.refuse_unless(cross_attention_hidden_size=None)
    encoder_half, decoder_half = find_half(encoder, ENCODERS), find_half(decoder, TEXT_DECODERS)
    halves = encoder_half.read_config(encoder), decoder_half.read_config(decoder)
    return Config(*halves, encoder_half, decoder_half)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="encoder-decoder",
    tasks={"generate": no_section},
    read_config=read_config,
    build=EncoderDecoder,
    rename=rename,
    graphs=lambda model, image: text_to_text_graphs(model, model.encoder.network.tokens),
    details=lambda network: alignment(network.decoder),
)
