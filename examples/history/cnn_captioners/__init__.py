"""`history-show-and-tell`, `history-show-attend-tell`, `history-cnn-transformer`: one CNN."""
