"""Language models whose prompts hold images."""
