"""How the documentation is built: `make docs` writes docs/_build, with warnings as errors.

Nothing is fetched while it is built, and the pages fetch nothing when they are read.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

from anchorlib import __version__  # noqa: E402  # the version stands in one place

project = "anchorlib"
author = "The anchorlib developers"
version = release = __version__
project_copyright = "The anchorlib developers"

extensions = ["myst_parser", "sphinx.ext.autodoc", "plain_docstrings", "command_help", "notebooks"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
smartquotes = False  # "all" is what is typed

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# Of frameworks only the names are needed: importing them takes longer than all the rest.
autodoc_mock_imports = ["accelerate", "lightning", "pytorch_lightning", "transformers"]
maximum_signature_line_length = 80
add_module_names = False
made_by_the_library = {"anchorlib.Run", "anchorlib.Series", "anchorlib.Session"}

html_theme = "furo"
html_title = f"anchorlib {__version__}"
html_copy_source = False
html_static_path = ["style"]
html_css_files = ["site.css"]
html_show_sphinx = False
