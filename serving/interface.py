"""The tensors that cross between gateway and Triton, for both kinds of model.

Generators (backend `autoregressive`, decoupled, `max_batch_size: 0`): one request is one sequence;
a stream may carry many, told apart by their ids. Inputs, all without a batch dimension; absent ones
are left out:

| input          | dtype, shape          | meaning                                               |
|----------------|-----------------------|-------------------------------------------------------|
| `source_ids`   | INT64 (S,)            | encoder tokens, special tokens included               |
| `pixels`       | UINT8 (height, width, 3) | prepared picture                                   |
| `prompt_ids`   | INT64 (T,)            | decoder tokens after the model's own start tokens     |
| `options`      | BYTES (1,)            | `serving.generation.Overrides` as JSON; may be `{}`   |

Responses: while streaming, pieces with `token_ids` only; the last response holds the rest (and
`token_ids` of the last piece). A piece of a stream that asked for log-probabilities carries
`log_probs`, `top_ids` and `top_log_probs` of its own tokens (N = 1, L = n); so does the last
response, for all tokens. N hypotheses, best first, L the longest:

| output          | dtype, shape | meaning                                                         |
|-----------------|--------------|-----------------------------------------------------------------|
| `token_ids`     | INT64 (n,)   | newly chosen tokens (streams), else empty                       |
| `sequences`     | INT64 (N, L) | generated tokens, end token included, padded with -1            |
| `scores`        | FP32 (N,)    | sum of processed log-probabilities over length^length_penalty   |
| `finish_reason` | BYTES (N,)   | `stop` or `length`                                              |
| `log_probs`     | FP32 (N, L)  | of the tokens of `sequences`, if asked; padded with 0           |
| `top_ids`       | INT64 (N, L, K) | the K best tokens at each place, if asked; padded with -1    |
| `top_log_probs` | FP32 (N, L, K)  | theirs                                                       |
| `alignment`     | FP32 (N, L, S)  | what each token looked at, if asked; padded with 0           |
| `usage`         | INT32 (2,)   | prompt (source) tokens, generated tokens over all hypotheses    |

A client that loses interest sends the request once more on the same stream, with the same request
id and the parameter `abort`: both end, without a further response, before the next step.

Log-probabilities are those that `scores` sums up: after penalties, bias and bans, at temperature 1
and before truncation (`serving.generation.Generation.top_log_probs`). With `top_log_probs: 0` there
are no `top_ids`.

An error of a user's making comes back as a Triton error whose text is `<wire name>: <message>`
(`serving.errors`), so that the gateway can answer with the right status.

Stateless parts (backend `onnxruntime`) use the graph's own names: CLIP `pixels` UINT8
(B, height, width, 3) → `embedding` FP32 (B, D), normalised; `token_ids` INT64 (B, T) and
`lengths` INT32 (B,) → `embedding` FP32 (B, D), normalised.
"""

from __future__ import annotations

SOURCE_IDS = "source_ids"
PIXELS = "pixels"
PROMPT_IDS = "prompt_ids"
OPTIONS = "options"
ABORT = "abort"
"""A parameter of the request, not a tensor."""

TOKEN_IDS = "token_ids"
SEQUENCES = "sequences"
SCORES = "scores"
FINISH_REASON = "finish_reason"
LOG_PROBS = "log_probs"
TOP_IDS = "top_ids"
TOP_LOG_PROBS = "top_log_probs"
ALIGNMENT = "alignment"
USAGE = "usage"

LENGTHS = "lengths"
EMBEDDING = "embedding"

NO_TOKEN = -1
