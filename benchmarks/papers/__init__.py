"""Scripts that make the papers' tables of networks: `python -m benchmarks.papers benchmarks/experiments/NAME.toml`."""
