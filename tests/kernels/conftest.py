"""Shared by the tests of kernels."""

import shutil

import pytest

from banyan.kernels.native import build


@pytest.fixture(scope="session")
def native() -> None:
    """Tests that need the compiled library: skipped without a compiler, and only then."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    assert build.library() is not None
