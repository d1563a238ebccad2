"""Trains `example-vqa`: a small LLaVA that answers questions about rendered scenes.

Built, trained and saved with `transformers`. The image tower is that of `example-clip` without its
last block; the language model, a Qwen2, is new. A row is a picture and a conversation about it.

    python -m examples.vqa.train
"""

import sys
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2Config,
    Qwen2Tokenizer,
)

from examples import checkpoint
from examples.chat.train import decoder_sizes, set_generation_defaults
from examples.scenes.rendering import SIDE, render
from examples.scenes.scene import scenes
from examples.training.checkpoint_folder import run_line, runs_of, save_half, training_flags
from examples.training.loop import Recipe, pixel_tensor, train
from examples.vqa.card import write_card
from examples.vqa.questions import Question, draw_questions
from examples.vqa.scores import MAX_ANSWER, accuracy, answerer_of

MODULE = "examples.vqa.train"
OUTPUT = checkpoint("example-vqa")
BEGIN, END, IMAGE = "<|im_start|>", "<|im_end|>", "<image>"
POSITIONS = 512
PATCH = 8  # of the tower of `example-clip`
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{{- '<image>' if part.type == 'image' else part.text }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
_IGNORED = -100
_VOCABULARY = 448
_TOKENIZER_SCENES = 6000
_TURNS = 6
_BATCH = 24
_PROGRESS_EVERY = 500  # steps


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    parser = training_flags(__doc__, OUTPUT, 3000)
    parser.add_argument("--resume", action="store_true", help="continue from the saved checkpoint")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    folder = arguments.output
    if arguments.resume:
        processor = LlavaProcessor.from_pretrained(folder)
        model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        model.generation_config._from_model_config = False
    else:
        processor = build_processor(arguments.seed)
        processor.save_pretrained(folder)
        model = build_model(processor.tokenizer)
    recipe = Recipe(arguments.steps, arguments.seed, _BATCH, peak_lr=1.5e-3)
    minutes = train(model, Conversations(model, processor, recipe).loss, recipe)
    save_half(model, folder)
    run = run_line(MODULE, arguments, "pictures", recipe.pictures, minutes)
    print(write_card(folder, runs_of(folder, run, is_resumed=arguments.resume)))


def build_processor(seed: int) -> LlavaProcessor:
    """The image recipe of `example-clip`, and a byte-level BPE learnt from questions."""
    rng = np.random.default_rng(seed)
    texts = (
        text
        for scene in scenes("train", _TOKENIZER_SCENES, seed)
        for question in islice(draw_questions(scene, rng), _TURNS)
        for text in (question.text, question.answer)
    )
    tokenizer = Qwen2Tokenizer().train_new_from_iterator(
        texts, _VOCABULARY, new_special_tokens=[BEGIN, END, IMAGE], show_progress=False
    )
    tokenizer.eos_token = END
    tokenizer.model_max_length = POSITIONS
    return LlavaProcessor(
        CLIPImageProcessorPil.from_pretrained(checkpoint("example-clip")),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        image_token=IMAGE,
        num_additional_image_tokens=1,
    )


def build_model(tokenizer: Qwen2Tokenizer) -> LlavaForConditionalGeneration:
    """An untrained Qwen2 of four layers behind a trained image tower of four."""
    clip: Any = CLIPModel.from_pretrained(checkpoint("example-clip"), dtype=torch.float32)
    vision = CLIPVisionConfig(**{**clip.config.vision_config.to_dict(), "num_hidden_layers": 4})
    text = Qwen2Config(**decoder_sizes(tokenizer), max_position_embeddings=POSITIONS)
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.get_vocab()[IMAGE],
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    missing = model.model.vision_tower.load_state_dict(
        clip.vision_model.state_dict(), strict=False
    ).missing_keys
    assert not missing, missing
    set_generation_defaults(model, tokenizer, MAX_ANSWER)
    return model


class Conversations:
    """The loss of the answers in freshly drawn conversations about freshly rendered pictures."""

    def __init__(
        self, model: LlavaForConditionalGeneration, processor: LlavaProcessor, recipe: Recipe
    ) -> None:
        self._model = model
        self._processor = processor
        self._scenes = scenes("train", sys.maxsize, recipe.seed)
        self._rng = np.random.default_rng([recipe.seed, 11])

    def loss(self, step: int) -> torch.Tensor:
        """Mean cross entropy over the answers of the next batch."""
        if step % _PROGRESS_EVERY == 0:
            self._report()
        pictures: list[Image.Image] = []
        rows: list[tuple[list[int], list[int]]] = []
        for index in range(_BATCH):
            scene = next(self._scenes)
            pictures.append(render(scene, step * _BATCH + index))
            drawn = list(islice(draw_questions(scene, self._rng), _TURNS))
            rows.append(row_of(drawn, self._processor))
        tokens, labels = (_padded(rows, place) for place in (0, 1))
        recipe = self._processor.image_processor
        return self._model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),  # padding is behind what is learnt
            pixel_values=pixel_tensor(pictures, recipe.image_mean, recipe.image_std),
            labels=labels,
        ).loss

    def _report(self) -> None:
        self._model.eval()
        with torch.no_grad():
            print(accuracy(answerer_of(self._model, self._processor), 200, seed=1), flush=True)
        self._model.train()


def row_of(drawn: list[Question], processor: Any) -> tuple[list[int], list[int]]:
    """Tokens of a conversation about one picture, and its labels: the answers and their ends."""
    tokens: list[int] = []
    labels: list[int] = []
    image = IMAGE * (SIDE // PATCH) ** 2
    for place, question in enumerate(drawn):
        asked = f"{'' if place else image}{question.text}"
        before = f"{BEGIN}user\n{asked}{END}\n{BEGIN}assistant\n"
        for text, is_learnt in ((before, False), (question.answer + END, True), ("\n", False)):
            ids = processor.tokenizer(text)["input_ids"]
            tokens += ids
            labels += ids if is_learnt else [_IGNORED] * len(ids)
    return tokens, labels


def _padded(rows: list[tuple[list[int], list[int]]], place: int) -> torch.Tensor:
    """(B, T) tokens (place 0) or labels (place 1)."""
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row[place]) for row in rows],
        batch_first=True,
        padding_value=_IGNORED if place else 0,
    )


if __name__ == "__main__":
    main()
