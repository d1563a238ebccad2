"""`history-seq2seq-*`, `history-attention`, `history-transformer`: translators of the gazette."""
