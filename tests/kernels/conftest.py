"""Makes `kernel_support` importable in the tests of kernels: reference checks, Triton's interpreter, compilation."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
