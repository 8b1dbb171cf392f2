import sys

from banyan.runtime.engine.process import main

sys.exit(main(sys.argv[1:]))
