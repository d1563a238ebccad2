"""Tests of the example world: its grammars, its data and its scores."""
