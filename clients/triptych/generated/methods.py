"""Methods of the clients, generated from the tasks by `make proto`; do not edit."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from triptych.client.base_client import AwaitableClient, BlockingClient, awaiting, streaming
from triptych.images import Image
from triptych.messages import Chunk
from triptych.operation import fields_among, operation, stream_operation
from triptych.tasks.answer import TASK as ANSWER
from triptych.tasks.answer import AnswerResponse
from triptych.tasks.caption import TASK as CAPTION
from triptych.tasks.caption import CaptionResponse
from triptych.tasks.chat import TASK as CHAT
from triptych.tasks.chat import ChatResponse
from triptych.tasks.classify import TASK as CLASSIFY
from triptych.tasks.classify import ClassifyResponse
from triptych.tasks.detect import TASK as DETECT
from triptych.tasks.detect import DetectResponse
from triptych.tasks.embed import TASK as EMBED
from triptych.tasks.embed import EmbedResponse
from triptych.tasks.fill_mask import TASK as FILL_MASK
from triptych.tasks.fill_mask import FillMaskResponse
from triptych.tasks.generate import TASK as GENERATE
from triptych.tasks.generate import GenerateResponse
from triptych.tasks.rerank import TASK as RERANK
from triptych.tasks.rerank import RerankResponse
from triptych.tasks.score import TASK as SCORE
from triptych.tasks.score import ScoreResponse
from triptych.tasks.segment import TASK as SEGMENT
from triptych.tasks.segment import SegmentResponse
from triptych.tasks.tag import TASK as TAG
from triptych.tasks.tag import TagResponse
from triptych.tasks.translate import TASK as TRANSLATE
from triptych.tasks.translate import TranslateResponse
from triptych.tasks.zero_shot import TASK as ZERO_SHOT
from triptych.tasks.zero_shot import ZeroShotResponse


class BlockingMethods(BlockingClient):
    """A method for each task of the API."""

    def answer(
        self,
        question: str | Iterable[str],
        passages: str | Iterable[str],
        *,
        n: int = 1,
        max_answer_tokens: int = 15,
        max_window_tokens: int | None = None,
        stride: int | None = None,
        null_threshold: float | None = None,
        align_to_words: bool = True,
        model: str | None = None,
    ) -> AnswerResponse:
        """Find the answer to a question in passages.

        Windows and scores are those of the question-answering pipeline of `transformers` 4. The
        question with a part of a passage is a window. The score of an answer is the probability
        that it starts at its first token times that of its end at its last, among the tokens of the
        passage in that window and the token of the null answer.

        Args:
            question: What is to be answered.
            passages: Texts that answers are parts of, of any length, or documents as data URIs.
            n: Number of answers per question, best first, of which no two overlap.
            max_answer_tokens: Tokens of an answer, at most.
            max_window_tokens: Tokens of a window, with the question: by default 384, or what the
                model takes if less.
            stride: Tokens that two windows of a passage share: by default 128, or half a window if
                less.
            null_threshold: Also return the null answer, the empty text: it is before an answer
                where the logarithm of its score is more than this above that of the answer's. Never
                by default.
            align_to_words: Widen answers to whole words.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `question`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(ANSWER, AnswerResponse, **fields_among(locals())))

    def caption(
        self,
        images: Image | Iterable[Image],
        *,
        prompt: str | None = None,
        alternatives: int | None = None,
        return_attention: bool | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        no_repeat_ngram_size: int | None = None,
        best_of: int | None = None,
        early_stopping: bool | None = None,
        n: int | None = None,
        model: str | None = None,
    ) -> CaptionResponse:
        """Describe images in words.

        Parameters mean what they mean in `generate`: tokens are sampled when a sampling parameter
        is given. Without one, several captions of an image (`n`) are the best of a beam search.

        Args:
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            prompt: First words of the caption; of a model that answers instructions, the
                instruction. Its default: 'Describe this image.'.
            alternatives: Earlier name of `n`.
            return_attention: Return the attention of each token over the image patches.
            num_beams: Beam width; the checkpoint's own by default.
            length_penalty: Scores of hypotheses are divided by their length to this power.
            max_new_tokens: Maximum number of generated tokens, the end token included.
            temperature: Sampling temperature; 0 chooses the most likely token.
            top_k: Sample from this many most likely tokens; 0: from all.
            top_p: Nucleus sampling: cumulative probability to keep.
            min_p: Keep tokens with at least this fraction of the most likely one's probability.
            typical_p: Locally typical sampling (arXiv 2202.00666): cumulative probability to keep.
            repetition_penalty: Divides the logits of tokens in prompt and output; 1: no penalty.
            presence_penalty: Subtracted once from the logit of each generated token.
            frequency_penalty: Subtracted from a token's logit once per occurrence.
            logit_bias: Token id to the number added to its logit.
            seed: Sampling seed; the same seed gives the same tokens.
            no_repeat_ngram_size: No n-gram of this size may repeat; 0: no rule.
            best_of: Number of samples to draw; the best `n` are returned.
            early_stopping: Stop a beam search at its first `num_beams` hypotheses.
            n: Number of outputs per input, best first.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `images`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(CAPTION, CaptionResponse, **fields_among(locals())))

    def caption_stream(
        self,
        images: Image | Iterable[Image],
        *,
        prompt: str | None = None,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        no_repeat_ngram_size: int | None = None,
        model: str | None = None,
    ) -> Generator[Chunk, None, None]:
        """As `caption`, in chunks of text while it is generated.

        Chunks of several items are interleaved; each has the `index` of its item. Nothing is sent
        before the first chunk is read. Beams cannot stream.

        Args:
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            prompt: First words of the caption; of a model that answers instructions, the
                instruction. Its default: 'Describe this image.'.
            max_new_tokens: Maximum number of generated tokens, the end token included.
            temperature: Sampling temperature; 0 chooses the most likely token.
            top_k: Sample from this many most likely tokens; 0: from all.
            top_p: Nucleus sampling: cumulative probability to keep.
            min_p: Keep tokens with at least this fraction of the most likely one's probability.
            typical_p: Locally typical sampling (arXiv 2202.00666): cumulative probability to keep.
            repetition_penalty: Divides the logits of tokens in prompt and output; 1: no penalty.
            presence_penalty: Subtracted once from the logit of each generated token.
            frequency_penalty: Subtracted from a token's logit once per occurrence.
            logit_bias: Token id to the number added to its logit.
            seed: Sampling seed; the same seed gives the same tokens.
            no_repeat_ngram_size: No n-gram of this size may repeat; 0: no rule.
            model: Model name; optional where exactly one model fits.

        Returns:
            A generator of chunks; closing it aborts the request.

        Raises:
            TriptychError: See `triptych.errors`; nothing is retried after the first chunk.
        """
        return self.stream(stream_operation(CAPTION, **fields_among(locals())))

    def chat(
        self,
        messages: str | Iterable[str | Mapping[str, str] | tuple[str, str]],
        *,
        images: Image | Iterable[Image] | None = None,
        stop: str | Iterable[str] | None = None,
        logprobs: int | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        no_repeat_ngram_size: int | None = None,
        best_of: int | None = None,
        early_stopping: bool | None = None,
        n: int | None = None,
        choices: str | Iterable[str] | None = None,
        regex: str | None = None,
        json_schema: str | None = None,
        model: str | None = None,
    ) -> ChatResponse:
        """Answer a conversation, laid out by the model's own chat template.

        The messages are laid out by the checkpoint's own chat template, as `transformers` does it;
        a special token that a message writes out becomes that token. Images stand where messages
        have the model's `image_place`, e.g. `<image>`.

        Args:
            messages: The conversation so far, in order. Each is (role, content), a mapping of
                these, or a text.
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            stop: Stop strings; the answer ends before the first one.
            logprobs: Return log-probabilities of the tokens, and of this many most likely ones.
            num_beams: Beam width; the checkpoint's own by default.
            length_penalty: Scores of hypotheses are divided by their length to this power.
            max_new_tokens: Maximum number of generated tokens, the end token included.
            temperature: Sampling temperature; 0 chooses the most likely token.
            top_k: Sample from this many most likely tokens; 0: from all.
            top_p: Nucleus sampling: cumulative probability to keep.
            min_p: Keep tokens with at least this fraction of the most likely one's probability.
            typical_p: Locally typical sampling (arXiv 2202.00666): cumulative probability to keep.
            repetition_penalty: Divides the logits of tokens in prompt and output; 1: no penalty.
            presence_penalty: Subtracted once from the logit of each generated token.
            frequency_penalty: Subtracted from a token's logit once per occurrence.
            logit_bias: Token id to the number added to its logit.
            seed: Sampling seed; the same seed gives the same tokens.
            no_repeat_ngram_size: No n-gram of this size may repeat; 0: no rule.
            best_of: Number of samples to draw; the best `n` are returned.
            early_stopping: Stop a beam search at its first `num_beams` hypotheses.
            n: Number of outputs per input, best first.
            choices: Texts of which the output is one.
            regex: Regular expression that the whole output matches: Rust's syntax without
                look-around.
            json_schema: JSON Schema, as an object or as text, that the output is valid under.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `messages`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(CHAT, ChatResponse, **fields_among(locals())))

    def chat_stream(
        self,
        messages: str | Iterable[str | Mapping[str, str] | tuple[str, str]],
        *,
        images: Image | Iterable[Image] | None = None,
        stop: str | Iterable[str] | None = None,
        logprobs: int | None = None,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        no_repeat_ngram_size: int | None = None,
        choices: str | Iterable[str] | None = None,
        regex: str | None = None,
        json_schema: str | None = None,
        model: str | None = None,
    ) -> Generator[Chunk, None, None]:
        """As `chat`, in chunks of text while it is generated.

        Chunks of several items are interleaved; each has the `index` of its item. Nothing is sent
        before the first chunk is read. Beams cannot stream.

        Args:
            messages: The conversation so far, in order. Each is (role, content), a mapping of
                these, or a text.
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            stop: Stop strings; the answer ends before the first one.
            logprobs: Return log-probabilities of the tokens, and of this many most likely ones.
            max_new_tokens: Maximum number of generated tokens, the end token included.
            temperature: Sampling temperature; 0 chooses the most likely token.
            top_k: Sample from this many most likely tokens; 0: from all.
            top_p: Nucleus sampling: cumulative probability to keep.
            min_p: Keep tokens with at least this fraction of the most likely one's probability.
            typical_p: Locally typical sampling (arXiv 2202.00666): cumulative probability to keep.
            repetition_penalty: Divides the logits of tokens in prompt and output; 1: no penalty.
            presence_penalty: Subtracted once from the logit of each generated token.
            frequency_penalty: Subtracted from a token's logit once per occurrence.
            logit_bias: Token id to the number added to its logit.
            seed: Sampling seed; the same seed gives the same tokens.
            no_repeat_ngram_size: No n-gram of this size may repeat; 0: no rule.
            choices: Texts of which the output is one.
            regex: Regular expression that the whole output matches: Rust's syntax without
                look-around.
            json_schema: JSON Schema, as an object or as text, that the output is valid under.
            model: Model name; optional where exactly one model fits.

        Returns:
            A generator of chunks; closing it aborts the request.

        Raises:
            TriptychError: See `triptych.errors`; nothing is retried after the first chunk.
        """
        return self.stream(stream_operation(CHAT, **fields_among(locals())))

    def classify(
        self,
        texts: str | Iterable[str] | None = None,
        *,
        pairs: Iterable[tuple[str, str]] | None = None,
        images: Image | Iterable[Image] | None = None,
        top_k: int = 5,
        function_to_apply: str | None = None,
        stride: int | None = None,
        return_attention: bool | None = None,
        truncate: bool = False,
        truncation_direction: str = "right",
        model: str | None = None,
    ) -> ClassifyResponse:
        """Classify texts, pairs of texts or images by the model's own labels, best first.

        A text that is longer than the model takes is refused unless `truncate` or `stride` is
        given. With `stride` the score of a label is the mean of its scores in all windows. A model
        that reads an image with a text takes both: one for all of the others, or one for each.

        Args:
            texts: Texts to classify, or questions about the images.
            pairs: Pairs of texts, each a list of two in JSON. Each is (first, second).
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            top_k: Number of labels, at most.
            function_to_apply: softmax, sigmoid or none: how logits become scores; the model's by
                default.
            stride: Divide texts that are too long into windows that share this many tokens.
            return_attention: Return which parts of an image the class depends on.
            truncate: Cut texts that are longer than the model takes, instead of refusing them; of a
                pair, the longer text first.
            truncation_direction: With `truncate`: the end of a text that is cut off, right or left.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `texts`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(CLASSIFY, ClassifyResponse, **fields_among(locals())))

    def detect(
        self,
        images: Image | Iterable[Image],
        labels: str | Iterable[str] | None = None,
        *,
        threshold: float | None = None,
        text_threshold: float | None = None,
        top_k: int | None = None,
        model: str | None = None,
    ) -> DetectResponse:
        """Find things in images by labels given as text: a box and a score for each.

        Args:
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            labels: What to look for, e.g. `a red circle`. Without it a model that names things
                itself returns all that it finds.
            threshold: Least score of a box that is returned. Default: 0.1; 0.25 of a model that
                reads all labels as one text; 0 of a model that writes boxes into an answer.
            text_threshold: Least score of a word that is part of a box's label, of a model that
                reads all labels as one text; others ignore it. Default: 0.25.
            top_k: Return at most this many boxes of an image.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `images`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(DETECT, DetectResponse, **fields_among(locals())))

    def embed(
        self,
        texts: str | Iterable[str] | None = None,
        *,
        images: Image | Iterable[Image] | None = None,
        frame_counts: Iterable[int] | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = False,
        truncation_direction: str = "right",
        model: str | None = None,
    ) -> EmbedResponse:
        """Embed texts or images as vectors; their dot product is the cosine similarity.

        Args:
            texts: Texts to embed.
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            frame_counts: Number of frames of each item; by default each image is an item.
            normalize: Scale embeddings to unit length; false for models whose graphs do not.
            prompt_name: The model's prompt of this name is put before each text.
            prompt: Put before each text.
            truncate: Cut texts that are longer than the model takes, instead of refusing them; of a
                pair, the longer text first.
            truncation_direction: With `truncate`: the end of a text that is cut off, right or left.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `texts`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(EMBED, EmbedResponse, **fields_among(locals())))

    def fill_mask(
        self,
        texts: str | Iterable[str],
        *,
        targets: str | Iterable[str] | None = None,
        top_k: int = 5,
        truncate: bool = False,
        truncation_direction: str = "right",
        model: str | None = None,
    ) -> FillMaskResponse:
        """Fill the masked tokens of texts, the most likely tokens first.

        Each text holds the model's mask token once or several times; `GET /v1/models` lists it as
        `mask_token`. Every masked token is scored by itself, with the other ones masked.

        Args:
            texts: Texts with the model's mask token.
            targets: Score these tokens only; each is one token of the model.
            top_k: Number of tokens for each mask, at most.
            truncate: Cut texts that are longer than the model takes, instead of refusing them; of a
                pair, the longer text first.
            truncation_direction: With `truncate`: the end of a text that is cut off, right or left.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `texts`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(FILL_MASK, FillMaskResponse, **fields_among(locals())))

    def generate(
        self,
        prompts: str | Iterable[str],
        *,
        images: Image | Iterable[Image] | None = None,
        instruction: str | None = None,
        examples: Iterable[tuple[str, str]] | None = None,
        stop: str | Iterable[str] | None = None,
        logprobs: int | None = None,
        echo: bool | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        no_repeat_ngram_size: int | None = None,
        best_of: int | None = None,
        early_stopping: bool | None = None,
        n: int | None = None,
        choices: str | Iterable[str] | None = None,
        regex: str | None = None,
        json_schema: str | None = None,
        model: str | None = None,
    ) -> GenerateResponse:
        """Continue prompts, below an instruction and examples where given.

        With `instruction` or `examples` the prompts stand in the few-shot layout, and a line break
        ends the output; without them a prompt is used as it is written. Where an encoder reads the
        prompts (summaries, text to text), an instruction alone stands in front of each of them.

        Prompts of some models hold images: `<image>` in a text is a place for one, and `images`
        fill the places in the order in which they are written: examples first, then prompts. As
        multipart, `images` are files, each of the `examples` is JSON, and other fields are text.

        Args:
            prompts: Texts to continue.
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            instruction: Task description, placed before the examples.
            examples: Solved examples, in order. Each is (input, output).
            stop: Stop strings; the output ends before the first one.
            logprobs: Return log-probabilities of the tokens, and of this many most likely ones.
            echo: Return the prompt before each output, and with `logprobs` its tokens'
                log-probabilities as `prompt_logprobs`.
            num_beams: Beam width; the checkpoint's own by default.
            length_penalty: Scores of hypotheses are divided by their length to this power.
            max_new_tokens: Maximum number of generated tokens, the end token included.
            temperature: Sampling temperature; 0 chooses the most likely token.
            top_k: Sample from this many most likely tokens; 0: from all.
            top_p: Nucleus sampling: cumulative probability to keep.
            min_p: Keep tokens with at least this fraction of the most likely one's probability.
            typical_p: Locally typical sampling (arXiv 2202.00666): cumulative probability to keep.
            repetition_penalty: Divides the logits of tokens in prompt and output; 1: no penalty.
            presence_penalty: Subtracted once from the logit of each generated token.
            frequency_penalty: Subtracted from a token's logit once per occurrence.
            logit_bias: Token id to the number added to its logit.
            seed: Sampling seed; the same seed gives the same tokens.
            no_repeat_ngram_size: No n-gram of this size may repeat; 0: no rule.
            best_of: Number of samples to draw; the best `n` are returned.
            early_stopping: Stop a beam search at its first `num_beams` hypotheses.
            n: Number of outputs per input, best first.
            choices: Texts of which the output is one.
            regex: Regular expression that the whole output matches: Rust's syntax without
                look-around.
            json_schema: JSON Schema, as an object or as text, that the output is valid under.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `prompts`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(GENERATE, GenerateResponse, **fields_among(locals())))

    def generate_stream(
        self,
        prompts: str | Iterable[str],
        *,
        images: Image | Iterable[Image] | None = None,
        instruction: str | None = None,
        examples: Iterable[tuple[str, str]] | None = None,
        stop: str | Iterable[str] | None = None,
        logprobs: int | None = None,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        no_repeat_ngram_size: int | None = None,
        choices: str | Iterable[str] | None = None,
        regex: str | None = None,
        json_schema: str | None = None,
        model: str | None = None,
    ) -> Generator[Chunk, None, None]:
        """As `generate`, in chunks of text while it is generated.

        Chunks of several items are interleaved; each has the `index` of its item. Nothing is sent
        before the first chunk is read. Beams cannot stream.

        Args:
            prompts: Texts to continue.
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            instruction: Task description, placed before the examples.
            examples: Solved examples, in order. Each is (input, output).
            stop: Stop strings; the output ends before the first one.
            logprobs: Return log-probabilities of the tokens, and of this many most likely ones.
            max_new_tokens: Maximum number of generated tokens, the end token included.
            temperature: Sampling temperature; 0 chooses the most likely token.
            top_k: Sample from this many most likely tokens; 0: from all.
            top_p: Nucleus sampling: cumulative probability to keep.
            min_p: Keep tokens with at least this fraction of the most likely one's probability.
            typical_p: Locally typical sampling (arXiv 2202.00666): cumulative probability to keep.
            repetition_penalty: Divides the logits of tokens in prompt and output; 1: no penalty.
            presence_penalty: Subtracted once from the logit of each generated token.
            frequency_penalty: Subtracted from a token's logit once per occurrence.
            logit_bias: Token id to the number added to its logit.
            seed: Sampling seed; the same seed gives the same tokens.
            no_repeat_ngram_size: No n-gram of this size may repeat; 0: no rule.
            choices: Texts of which the output is one.
            regex: Regular expression that the whole output matches: Rust's syntax without
                look-around.
            json_schema: JSON Schema, as an object or as text, that the output is valid under.
            model: Model name; optional where exactly one model fits.

        Returns:
            A generator of chunks; closing it aborts the request.

        Raises:
            TriptychError: See `triptych.errors`; nothing is retried after the first chunk.
        """
        return self.stream(stream_operation(GENERATE, **fields_among(locals())))

    def rerank(
        self,
        query: str | Iterable[str],
        documents: str | Iterable[str],
        *,
        top_k: int | None = None,
        top_n: int | None = None,
        return_documents: bool = False,
        truncate: bool = False,
        truncation_direction: str = "right",
        model: str | None = None,
    ) -> RerankResponse:
        """Rank documents by their relevance to a query, best first.

        Args:
            query: What is looked for.
            documents: Texts to rank.
            top_k: Return only this many, the best ones.
            top_n: Earlier name of `top_k`.
            return_documents: Return the documents' texts.
            truncate: Cut texts that are longer than the model takes, instead of refusing them; of a
                pair, the longer text first.
            truncation_direction: With `truncate`: the end of a text that is cut off, right or left.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `query`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(RERANK, RerankResponse, **fields_among(locals())))

    def score(
        self,
        targets: str | Iterable[str],
        *,
        texts: str | Iterable[str] | None = None,
        images: Image | Iterable[Image] | None = None,
        with_end: bool | None = None,
        logprobs: int | None = None,
        model: str | None = None,
    ) -> ScoreResponse:
        """Score texts: their log-probabilities as translations, captions or continuations.

        A translator reads a source, a captioner an image, a language model a prompt. One text or
        image is for all targets; otherwise there is one for each.

        Args:
            targets: Texts to score, as outputs of the model.
            texts: Sources or prompts: one for all targets, or one for each.
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            with_end: Score the end token too; by default of translators and captioners.
            logprobs: Return log-probabilities of the tokens, and of this many most likely ones.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `targets`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(SCORE, ScoreResponse, **fields_among(locals())))

    def segment(
        self,
        images: Image | Iterable[Image],
        labels: str | Iterable[str],
        *,
        model: str | None = None,
    ) -> SegmentResponse:
        """Find things in images by labels given as text: a mask of probabilities for each.

        Args:
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            labels: What to look for, e.g. `a red circle`.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `images`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(SEGMENT, SegmentResponse, **fields_among(locals())))

    def tag(
        self,
        texts: str | Iterable[str],
        *,
        aggregation: str = "none",
        return_outside: bool = False,
        stride: int | None = None,
        truncate: bool = False,
        truncation_direction: str = "right",
        model: str | None = None,
    ) -> TagResponse:
        """Label the tokens of texts: names, parts of speech and the like.

        `aggregation` joins tokens to entities as the token-classification pipeline of
        `transformers`: `none` labels tokens; `simple` joins adjacent tokens of one entity; `first`,
        `average` and `max` first give each word the label of its first token, of its tokens'
        average, or of its most certain token. A text that is longer than the model takes is refused
        unless `truncate` or `stride` is given.

        Args:
            texts: Texts whose tokens are labelled.
            aggregation: none, simple, first, average or max.
            return_outside: Return tokens with the label O as well: those of no entity.
            stride: Divide texts that are too long into windows that share this many tokens.
            truncate: Cut texts that are longer than the model takes, instead of refusing them; of a
                pair, the longer text first.
            truncation_direction: With `truncate`: the end of a text that is cut off, right or left.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `texts`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(TAG, TagResponse, **fields_among(locals())))

    def translate(
        self,
        texts: str | Iterable[str],
        *,
        source: str | None = None,
        target: str | None = None,
        via: str | None = None,
        glossary: Mapping[str, str] | None = None,
        glossary_name: str | None = None,
        do_not_translate: str | Iterable[str] | None = None,
        do_not_translate_kinds: str | Iterable[str] | None = None,
        divide_long_sentences: bool | None = None,
        n: int | None = None,
        alternatives: int | None = None,
        max_new_tokens: int | None = None,
        return_attention: bool | None = None,
        return_alignment: bool | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        model: str | None = None,
    ) -> TranslateResponse:
        """Translate texts; paragraphs keep their line breaks.

        Args:
            texts: Paragraphs; split into sentences and rejoined.
            source: Source language: ISO 639, e.g. es, or the model's own code.
            target: Target language: ISO 639, e.g. en, or the model's own code.
            via: Language in between: one model translates into it, another from it. Needs `source`
                and `target`.
            glossary: Term of the source to its rendering in the translation.
            glossary_name: A glossary that is stored under this name; the terms of `glossary` count
                before its own.
            do_not_translate: Texts that are copied as they are: names, codes, placeholders.
            do_not_translate_kinds: Kinds of text that are copied: urls, emails, placeholders, tags.
            divide_long_sentences: false: refuse a sentence that is longer than the model takes. By
                default it is translated in parts, divided at clauses or spaces.
            n: Number of translations per text, best first.
            alternatives: Earlier name of `n`.
            max_new_tokens: Maximum number of generated tokens of each sentence, the end token
                included.
            return_attention: Return the attention of each token over the source tokens, as
                `alignment`.
            return_alignment: Earlier name of `return_attention`.
            num_beams: Beam width; the checkpoint's own by default.
            length_penalty: Scores of hypotheses are divided by their length to this power.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `texts`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(TRANSLATE, TranslateResponse, **fields_among(locals())))

    def translate_stream(
        self,
        texts: str | Iterable[str],
        *,
        source: str | None = None,
        target: str | None = None,
        via: str | None = None,
        glossary: Mapping[str, str] | None = None,
        glossary_name: str | None = None,
        do_not_translate: str | Iterable[str] | None = None,
        do_not_translate_kinds: str | Iterable[str] | None = None,
        divide_long_sentences: bool | None = None,
        max_new_tokens: int | None = None,
        model: str | None = None,
    ) -> Generator[Chunk, None, None]:
        """As `translate`, in chunks of text while it is generated.

        Chunks of several items are interleaved; each has the `index` of its item. Nothing is sent
        before the first chunk is read. Beams cannot stream.

        Args:
            texts: Paragraphs; split into sentences and rejoined.
            source: Source language: ISO 639, e.g. es, or the model's own code.
            target: Target language: ISO 639, e.g. en, or the model's own code.
            via: Language in between: one model translates into it, another from it. Needs `source`
                and `target`.
            glossary: Term of the source to its rendering in the translation.
            glossary_name: A glossary that is stored under this name; the terms of `glossary` count
                before its own.
            do_not_translate: Texts that are copied as they are: names, codes, placeholders.
            do_not_translate_kinds: Kinds of text that are copied: urls, emails, placeholders, tags.
            divide_long_sentences: false: refuse a sentence that is longer than the model takes. By
                default it is translated in parts, divided at clauses or spaces.
            max_new_tokens: Maximum number of generated tokens of each sentence, the end token
                included.
            model: Model name; optional where exactly one model fits.

        Returns:
            A generator of chunks; closing it aborts the request.

        Raises:
            TriptychError: See `triptych.errors`; nothing is retried after the first chunk.
        """
        return self.stream(stream_operation(TRANSLATE, **fields_among(locals())))

    def zero_shot(
        self,
        images: Image | Iterable[Image],
        labels: str | Iterable[str],
        *,
        frame_counts: Iterable[int] | None = None,
        templates: str | Iterable[str] | None = None,
        top_k: int | None = None,
        model: str | None = None,
    ) -> ZeroShotResponse:
        """Classify images among labels given as text, best first.

        Args:
            images: One or many: paths, bytes, open files, Pillow images, data URIs or base64.
            labels: Classes to choose from.
            frame_counts: Number of frames of each item; by default each image is an item.
            templates: Each contains {}; several are averaged. Default: 'a photo of a {}'.
            top_k: Return only this many labels, the best ones; scores stay those among all.
            model: Model name; optional where exactly one model fits.

        Returns:
            `data` of the response has one item per entry of `images`, in their order.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operation(ZERO_SHOT, ZeroShotResponse, **fields_among(locals())))


class AwaitableMethods(AwaitableClient):
    """A method for each task of the API."""

    answer = awaiting(BlockingMethods.answer)
    caption = awaiting(BlockingMethods.caption)
    caption_stream = streaming(BlockingMethods.caption_stream)
    chat = awaiting(BlockingMethods.chat)
    chat_stream = streaming(BlockingMethods.chat_stream)
    classify = awaiting(BlockingMethods.classify)
    detect = awaiting(BlockingMethods.detect)
    embed = awaiting(BlockingMethods.embed)
    fill_mask = awaiting(BlockingMethods.fill_mask)
    generate = awaiting(BlockingMethods.generate)
    generate_stream = streaming(BlockingMethods.generate_stream)
    rerank = awaiting(BlockingMethods.rerank)
    score = awaiting(BlockingMethods.score)
    segment = awaiting(BlockingMethods.segment)
    tag = awaiting(BlockingMethods.tag)
    translate = awaiting(BlockingMethods.translate)
    translate_stream = streaming(BlockingMethods.translate_stream)
    zero_shot = awaiting(BlockingMethods.zero_shot)
