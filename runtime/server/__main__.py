"""`python -m banyan.runtime.server`: the server process (see worker.py)."""

import sys

from banyan.runtime.server.worker import main

sys.exit(main(sys.argv[1:]))
