"""Measure what the queue claims."""
