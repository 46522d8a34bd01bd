"""What is measured: one module an experiment."""
