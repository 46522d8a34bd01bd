"""queue: this repository. upstream: upstream's own suites. integration, gpu: the built wheels."""
