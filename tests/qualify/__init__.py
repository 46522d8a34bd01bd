"""Tests of the tool that measures what the queue claims; they need no stack."""
