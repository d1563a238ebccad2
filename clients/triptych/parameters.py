"""Parameters of the tasks, above all of generation: each name, range and meaning exactly once.

The messages, the engine's rules (`serving/generation.py`), the command line and the documentation
all take them from here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

MAX_BEAMS = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_TOP_LOG_PROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_NEW_TOKENS = 1_000_000
MAX_RANK = 1_000_000
MAX_STRIDE = 4096

Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=0, le=MAX_RANK)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
TypicalP = Annotated[float, Field(gt=0, le=1)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]
LogitBias = Annotated[dict[TokenId, Bias], Field(max_length=MAX_LOGIT_BIASES)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Beams = Annotated[int, Field(ge=1, le=MAX_BEAMS)]
NgramSize = Annotated[int, Field(ge=0, le=MAX_RANK)]
NewTokens = Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)]
TopLogProbs = Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]

Stride = Annotated[
    int,
    Field(
        ge=0,
        le=MAX_STRIDE,
        description="Divide texts that are too long into windows that share this many tokens.",
    ),
]


class BeamParameters(BaseModel):
    """Width and scoring of a beam search; names and meanings are those of `transformers`."""

    num_beams: Beams | None = Field(
        default=None, description="Beam width; the checkpoint's own by default."
    )
    length_penalty: Penalty | None = Field(
        default=None,
        description="Scores of hypotheses are divided by their length to this power.",
    )


class GenerationParameters(BeamParameters):
    """How tokens are chosen; names and meanings are those of `transformers` and of OpenAI's API."""

    max_new_tokens: NewTokens | None = Field(
        default=None, description="Maximum number of generated tokens, the end token included."
    )
    temperature: Temperature | None = Field(
        default=None, description="Sampling temperature; 0 chooses the most likely token."
    )
    top_k: TopK | None = Field(
        default=None, description="Sample from this many most likely tokens; 0: from all."
    )
    top_p: TopP | None = Field(
        default=None, description="Nucleus sampling: cumulative probability to keep."
    )
    min_p: MinP | None = Field(
        default=None,
        description="Keep tokens with at least this fraction of the most likely one's probability.",
    )
    typical_p: TypicalP | None = Field(
        default=None,
        description="Locally typical sampling (arXiv 2202.00666): cumulative probability to keep.",
    )
    repetition_penalty: RepetitionPenalty | None = Field(
        default=None,
        description="Divides the logits of tokens in prompt and output; 1: no penalty.",
    )
    presence_penalty: Penalty | None = Field(
        default=None, description="Subtracted once from the logit of each generated token."
    )
    frequency_penalty: Penalty | None = Field(
        default=None, description="Subtracted from a token's logit once per occurrence."
    )
    logit_bias: LogitBias | None = Field(
        default=None, description="Token id to the number added to its logit."
    )
    seed: Seed | None = Field(
        default=None, description="Sampling seed; the same seed gives the same tokens."
    )
    no_repeat_ngram_size: NgramSize | None = Field(
        default=None, description="No n-gram of this size may repeat; 0: no rule."
    )
    best_of: Beams | None = Field(
        default=None, description="Number of samples to draw; the best `n` are returned."
    )
