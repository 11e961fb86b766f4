"""`python -m anchor_cli` is `anchor`."""

import sys

from anchor_cli.main import main

sys.exit(main())
