"""Tests of the tool that measures what the queue claims."""
