"""Trains `example-chat`: a small Qwen3 that answers conversations.

Built, trained and saved with `transformers`, with ChatML as its chat template. Rows are whole
conversations, all answers of which are learnt; the last steps have longer ones.

    python -m examples.chat.train

A small model knows nothing to talk about, so its answers are in the conversation: facts told some
turns before, in made-up names of several tokens, which it must copy. Copying is found late by
gradient descent alone, so two heads are initialised for it.
"""

from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

from examples import checkpoint
from examples.chat.card import write_card
from examples.chat.dialogues import dialogues
from examples.chat.scores import MAX_ANSWER, SPLITS, accuracy
from examples.gpt.scores import replier_of
from examples.gpt.train import IGNORED, label_loss
from examples.training.checkpoint_folder import run_line, save_half, training_flags
from examples.training.loop import Recipe, train

MODULE = "examples.chat.train"
OUTPUT = checkpoint("example-chat")
BEGIN, END = "<|im_start|>", "<|im_end|>"
POSITIONS = 512
TEMPLATE = """\
{%- for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant'] %}
{{- raise_exception('roles are system, user and assistant') }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- message.content + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
_VOCABULARY = 1024
_TOKENIZER_TEXTS = 6000
_TURNS = 7
_BATCH = 16
_ROW_TOKENS = 208
_LONG_SHARE = 0.15  # of the steps: rows of all positions
_PROGRESS_EVERY = 250  # steps


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    arguments = training_flags(__doc__, OUTPUT, 5000).parse_args()
    torch.manual_seed(arguments.seed)
    folder = arguments.output
    tokenizer = build_tokenizer(arguments.seed)
    tokenizer.save_pretrained(folder)
    model = build_model(tokenizer)
    recipe = Recipe(arguments.steps, arguments.seed, _BATCH, peak_lr=2e-3)
    minutes = train(model, Conversations(model, tokenizer, recipe).loss, recipe)
    save_half(model, folder)
    run = run_line(MODULE, arguments, "conversations", arguments.steps * _BATCH, minutes)
    print(write_card(folder, run))


def build_tokenizer(seed: int) -> Qwen2Tokenizer:
    """A byte-level BPE in Qwen's format with ChatML as its template, learnt from conversations."""
    texts = (
        message["content"]
        for dialogue in islice(dialogues(seed), _TOKENIZER_TEXTS)
        for message in dialogue.with_turns(_TURNS)
    )
    tokenizer = Qwen2Tokenizer().train_new_from_iterator(
        texts, _VOCABULARY, new_special_tokens=[BEGIN, END], show_progress=False
    )
    tokenizer.eos_token = END
    tokenizer.chat_template = TEMPLATE
    tokenizer.model_max_length = POSITIONS
    return tokenizer


def build_model(tokenizer: Qwen2Tokenizer) -> Qwen3ForCausalLM:
    """An untrained Qwen3 of four layers, with two key/value heads for four query heads."""
    config = Qwen3Config(
        **decoder_sizes(tokenizer),
        max_position_embeddings=POSITIONS,
        head_dim=32,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        attn_implementation="eager",  # type: ignore[call-arg]  # a field of every configuration
    )
    model = Qwen3ForCausalLM(config)
    initialise_induction_heads(model)
    set_generation_defaults(model, tokenizer, MAX_ANSWER)
    return model


def decoder_sizes(tokenizer: Qwen2Tokenizer) -> dict[str, Any]:
    """Fields of a configuration of four layers, with two key/value heads for four query heads."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.05,  # 0.02 is for a width of 1000 and more
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def set_generation_defaults(model: Any, tokenizer: Qwen2Tokenizer, longest: int) -> None:
    """Ends and length of an answer, for `generation_config.json`."""
    generation = model.generation_config
    generation._from_model_config = False  # else loaders treat the file as a copy of config.json
    generation.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    generation.pad_token_id = tokenizer.pad_token_id
    generation.max_new_tokens = longest


class Conversations:
    """The loss of freshly drawn conversations: of the assistant's messages."""

    def __init__(self, model: Qwen3ForCausalLM, tokenizer: Qwen2Tokenizer, recipe: Recipe) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._dialogues = dialogues(recipe.seed + 1)
        self._longer_from = recipe.steps * (1 - _LONG_SHARE)

    def loss(self, step: int) -> torch.Tensor:
        """Mean cross entropy over the next batch, of as many tokens in longer rows."""
        is_long = step > self._longer_from
        count, turns, length = (6, 18, POSITIONS) if is_long else (_BATCH, _TURNS, _ROW_TOKENS)
        batch: Any = self._tokenizer.apply_chat_template(
            [one.with_turns(turns) for one in islice(self._dialogues, count)],
            return_assistant_tokens_mask=True,
            return_dict=True,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=length,
        )
        if step % _PROGRESS_EVERY == 0:
            answer_all = replier_of(self._model, self._tokenizer)
            shares = {split: accuracy(answer_all, split, 50, seed=1) for split in SPLITS}
            print(shares, flush=True)
        tokens = batch["input_ids"]
        hidden = self._model.model(input_ids=tokens).last_hidden_state
        labels = tokens.where(batch["assistant_masks"].bool(), IGNORED)
        return label_loss(hidden, self._model.lm_head, labels)


if __name__ == "__main__":
    main()


# Induction heads as in `induction_heads`, but positions are rotary (Su et al. 2021, arXiv
# 2104.09864) and queries and keys are normalised: the pairs of dimensions that rotate fast find the
# preceding token, those that hardly rotate compare words.
#
# Legend: D width, K width of a head; pair i of a head is its dimensions i and i + K / 2.

_FAST = 4  # pairs
_SLOW_FROM = 6  # pairs
_CONSTANT = 0.2  # dimension 0 of every embedding: what queries for positions are made of
_SHARPNESS = 3.0
_MATCH = 2.0
_NOTE = 0.12
_COPY = 1.0
_OTHERS = 0.1  # gain of all other outputs, so that words are not lost among them


@torch.no_grad()
def initialise_induction_heads(model: Qwen3ForCausalLM) -> None:
    """Writes a head for the preceding token into layer 0, and one that matches it into layer 1."""
    config = model.config
    width = config.head_dim  # K
    half = width // 2
    fast = torch.tensor([*range(_FAST), *range(half, half + _FAST)])
    slow = torch.tensor([*range(_SLOW_FROM, half), *range(half + _SLOW_FROM, width)])
    rotary: Any = config.rope_parameters
    rates = rotary["rope_theta"] ** -(torch.arange(_FAST) / half)
    embeddings = model.model.embed_tokens.weight
    embeddings[:, 0] = _CONSTANT
    directions = torch.zeros(2 * len(slow), config.hidden_size)
    directions[:, 1:] = torch.linalg.qr(torch.randn(config.hidden_size - 1, 2 * len(slow))).Q.T
    word, note = directions.split(len(slow))  # of a word, and of the one before it

    for layer in model.model.layers:
        layer.self_attn.o_proj.weight *= _OTHERS
        layer.mlp.down_proj.weight *= _OTHERS
    first, second = (model.model.layers[index].self_attn for index in (0, 1))
    first.q_norm.weight[fast] = first.k_norm.weight[fast] = _SHARPNESS
    _rows(first.q_proj.weight, width)[fast, 0] = torch.cat([rates.cos(), -rates.sin()])
    _rows(first.k_proj.weight, width)[fast, 0] = torch.cat([torch.ones(_FAST), torch.zeros(_FAST)])
    _rows(first.v_proj.weight, width)[slow] = word
    _rows(first.o_proj.weight.T, width)[slow] = _NOTE * note

    second.q_norm.weight[slow] = second.k_norm.weight[slow] = _MATCH
    _rows(second.q_proj.weight, width)[slow] = word
    _rows(second.k_proj.weight, width)[slow] = note
    _rows(second.v_proj.weight, width)[slow] = word
    _rows(second.o_proj.weight.T, width)[slow] = _COPY * word


def _rows(weight: Tensor, width: int) -> Tensor:
    """The weights of the first head, (K, D), set to zero."""
    rows = weight[:width]
    rows.zero_()
    return rows
