"""How tokens are chosen from logits: greedy, beam search, sampling, and their processors."""
