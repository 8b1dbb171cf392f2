"""`python -m banyan.runtime.gateway`: the HTTP process (see process.py)."""

import sys

from banyan.runtime.gateway.process import main

sys.exit(main(sys.argv[1:]))
