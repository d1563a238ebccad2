"""Fields of `config.json` and names of weights, for the files of models."""
