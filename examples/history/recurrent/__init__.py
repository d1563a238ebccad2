"""`history-rnn-*`: tags, sentiment, languages and language models by recurrent networks."""
