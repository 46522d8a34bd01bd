"""Tests of the queue itself: everything real but the upstreams, which are tiny."""
