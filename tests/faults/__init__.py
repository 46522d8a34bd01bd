"""Random schedules of faults over the real components, checked by invariants."""
