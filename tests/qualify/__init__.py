"""Tests of the qualification that need no stack."""
