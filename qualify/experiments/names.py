"""The experiments, and what they have in common, as evidence and report call them."""

LADDER = "1 whole-plan ladder"
SWEEP = "2 scaling sweep"
LAW = "3 capacity law"
FAILURES = "4 failure matrix"
FILES = "5 file-system A/B"
ACCOUNTING = "6 registration accounting"
TIME = "7 time"

ALL = (LADDER, SWEEP, LAW, FAILURES, FILES, ACCOUNTING, TIME)

COMPUTED = "L1 bytes per chunk, computed"
GIVEN = "L1 bytes per chunk, by the source"
"""What the server has registered, or what the paper says."""
