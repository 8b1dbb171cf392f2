"""`python -m banyan`: the `banyan` command."""

import sys

from banyan.cli.main import main

sys.exit(main())
