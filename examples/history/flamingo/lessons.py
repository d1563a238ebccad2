"""The second stage of `history-flamingo`: reading words for colours and shapes from the shots.

Where a right word is in the prompt, the attention that finds it is supervised too: of the last
layer, the first head finds the word for a colour and the second that for a shape.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from examples.history.flamingo.model import AROUND, PLACE, labels
from examples.history.flamingo.picture_episodes import PLAIN_WORDS, Episode, Pool, lessons

MARKS = (AROUND, PLACE, AROUND)  # what the processor writes for an image between words
SPAN = len(MARKS) + 2  # tokens of a shot
_BEGIN, _IGNORED = 1, -100


class Lessons:
    """The loss of freshly drawn episodes, images given by their latents.

    Args:
        latents: (pictures, L, E), of the pool.
    """

    def __init__(self, model: Any, tokenizer: Any, pool: Pool, latents: Tensor, seed: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._latents = latents
        self._attributes = labels(pool)
        self._episodes = lessons(pool, seed)

    def loss(self, batch: int) -> Tensor:
        """Mean cross entropy of the words that can be known, and of the attention to them."""
        return self.losses(list(islice(self._episodes, batch))).sum()

    def losses(self, episodes: list[Episode]) -> Tensor:
        """(2,): of words and of attention."""
        longest = max(map(len, episodes))
        numbers = torch.tensor([_padded([one.picture for one in e], longest, 0) for e in episodes])
        ids = _padded_rows([self.tokens(one) for one in episodes], 0)
        truth = _padded_rows([self.labels(one) for one in episodes], _IGNORED)
        shot = (ids == self._id(PLACE)).cumsum(1)  # of each token, from 1
        found = self._model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),  # padding is behind
            perceiver_embeddings=self._latents[numbers],
            image_attention_mask=shot[..., None] == torch.arange(1, longest + 1),
            output_attentions=True,
            use_cache=False,
        )
        scores = found.logits.float().flatten(0, 1)
        words = nn.functional.cross_entropy(scores, truth.flatten(), ignore_index=_IGNORED)
        sources = self.sources(numbers, torch.tensor([len(one) for one in episodes]))
        return torch.stack([words, _miss(found.attentions[-1].float(), sources)])

    def tokens(self, episode: Episode) -> list[int]:
        """Ids of an episode as the processor writes it."""
        written = [part for shot in episode for part in (*MARKS, *shot.words)]
        return self._tokenizer.convert_tokens_to_ids(["<s>", *written])

    def labels(self, episode: Episode) -> list[int]:
        """What each token is to be followed by.

        A made-up word for what no shot above shows is no label; behind each shot the text may end.
        """
        wanted, seen = [_IGNORED] * _BEGIN, set(PLAIN_WORDS)
        for shot in episode:
            known = [word if word in seen else None for word in shot.words]
            ids = [_IGNORED if word is None else self._id(word) for word in known]
            wanted += [*[_IGNORED] * (len(MARKS) - 1), *ids, self._id("</s>")]
            seen.update(shot.words)
        return wanted

    def sources(self, numbers: Tensor, lengths: Tensor) -> Tensor:
        """(B, 2, T, T) bool: for both words of a shot, where the same ones of shots above are.

        Args:
            numbers: (B, I) of the pictures.
            lengths: (B,) shots.
        """
        count, longest = numbers.shape
        is_real = torch.arange(longest) < lengths[:, None]  # (B, I)
        above = torch.ones(longest, longest, dtype=torch.bool).tril(-1) & is_real[..., None]
        size = _BEGIN + SPAN * longest
        found = torch.zeros(count, 2, size, size, dtype=torch.bool)
        starts = _BEGIN + SPAN * torch.arange(longest)
        for index in range(2):
            shown = self._attributes[numbers][..., index]
            same = (shown[..., None] == shown[..., None, :]) & above  # (B, I, I)
            query = starts + len(MARKS) - 1 + index
            found[:, index, query[:, None], query[None] + 1] = same
        return found

    def _id(self, token: str) -> int:
        return self._tokenizer.convert_tokens_to_ids(token)


def _miss(attention: Tensor, sources: Tensor) -> Tensor:
    """Mean -log of the attention to right words, where there is one.

    Args:
        attention: (B, H, T, T).
        sources: (B, 2, T, T) bool.
    """
    right = (attention[:, :2] * sources).sum(-1)[sources.any(-1)]
    return -right.clamp(min=1e-6).log().mean() if len(right) else attention.sum() * 0


def _padded_rows(rows: list[list[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([_padded(row, longest, value) for row in rows])


def _padded(row: list[int], length: int, value: int) -> list[int]:
    return row + [value] * (length - len(row))
