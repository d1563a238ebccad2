"""`example-bert*`: masked words, reviews, roles, ranked documents and paraphrases."""
