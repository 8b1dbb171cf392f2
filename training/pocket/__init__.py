"""Makes the pocket model: training text, tokenizer, training, scores. Not part of the `banyan` package.

Run it from the repository root with `PYTHONPATH=training python -m pocket.train` (or `make pocket`).
"""
