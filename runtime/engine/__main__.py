import gc
import sys

gc.disable()  # a tenth of the imports' time is spent on objects that stay; `settle` turns it on again

from banyan.runtime.engine.process import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
