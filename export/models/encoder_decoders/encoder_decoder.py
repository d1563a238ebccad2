"""BERT's or RoBERTa's encoder, and BERT, RoBERTa or GPT-2 as the decoder.

Paper: Rothe et al. 2020, "Leveraging Pre-trained Checkpoints for Sequence Generation Tasks", §2
(arXiv 1907.12461).
Checkpoints: `model_type: encoder-decoder`, such as `patrickvonplaten/bert2bert_cnn_daily_mail`.

Legend: B batch, S source positions, D the decoder's width, E the encoder's.

Differences from `transformers`: inference only; cross-attention keys and values are computed once;
all source tokens have segment 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, no_section
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.decoder_graphs.transformer import alignment, text_to_text_graphs
from export.layers.blocks import BASE
from export.layers.decoder import TransformerDecoder
from export.models.encoder_decoders.halves import TEXT_DECODERS, Half, find_half
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
class Config:
    """Both halves."""

    encoder: bert.Config
    decoder: Any
    encoder_half: Half
    decoder_half: Half

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


# --------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Source tokens → vectors of the decoder's width."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.network = config.encoder_half.build(config.encoder)
        self.projection: nn.Module = nn.Identity()
        if config.encoder.width != config.decoder.width:
            self.projection = nn.Linear(config.encoder.width, config.decoder.width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        return self.projection(self.network(tokens, lengths))


class EncoderDecoder(nn.Module):
    """Both halves."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        decoder = config.decoder_half.build(config.decoder)
        assert isinstance(decoder, TransformerDecoder)
        self.decoder = decoder


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    table = config.encoder_half.rename(config.encoder, "encoder.", "encoder.network.")
    table |= config.decoder_half.rename(config.decoder, "decoder.", "decoder.")
    table["enc_to_dec_proj"] = "encoder.projection"
    return Rename(table)


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
