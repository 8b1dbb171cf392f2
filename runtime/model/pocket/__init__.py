"""The models that ship with Banyan: `pocket`, the default model, and `draft`, a smaller draft model for it."""

from pathlib import Path

names = ["draft", "pocket"]


def path(name: str = "pocket") -> Path:
    """The folder of a shipped model, in Hugging Face format."""
    if name not in names:
        raise ValueError(f"unknown shipped model {name!r}; choose one of {', '.join(names)}")
    return Path(__file__).parent / "weights" / name
