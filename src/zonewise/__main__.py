"""``python -m zonewise`` is ``zonewise``."""

import sys

from zonewise.cli.main import main

sys.exit(main())
