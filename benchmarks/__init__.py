"""Measurements of the patched stack, for docs/results.md."""
