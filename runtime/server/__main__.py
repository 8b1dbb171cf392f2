"""`python -m banyan.runtime.server`: the server process (see worker.py)."""

import gc
import sys

gc.disable()  # for good: collections would take a sixth of the imports' time, and `main` needs no collector

from banyan.runtime.server.worker import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
