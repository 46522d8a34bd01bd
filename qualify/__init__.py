"""Qualification: measure what bounded restore claims, and keep the evidence.

- observation: what was seen of one restore, raw. checks: what must hold of it.
- evidence: the file of a run. recorder: writes it row by row. machine: where and what.
- bench, synthetic: restores by a real engine, and by a client without a model.
- experiments: what is measured. profiles: at which sizes. external: on a running stack.
- accounting, accounting_specs: what a window of a model takes, from its config.json.
- report, plots, paper: the evidence as a page, beside the paper's figures.
"""
