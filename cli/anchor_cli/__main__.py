"""Runs the command line as `python -m anchor_cli`, which does the same as `anchor`."""

import sys

from anchor_cli.main import main

sys.exit(main())
