import gc
import sys

gc.disable()  # collections would take a tenth of the imports' time; `settle` turns them on again

from banyan.runtime.engine.process import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
