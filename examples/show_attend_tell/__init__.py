"""`example-show-attend-tell`: captions of scenes by a CNN and an LSTM with attention."""
