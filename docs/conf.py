"""The walk as a site: `make site` builds it from the committed outputs; nothing runs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # walk_pages

project = "PagedAttention, step by step"
author = "The authors of pa_tutorial"
extensions = ["myst_nb", "sphinx_copybutton", "walk_pages"]

root_doc = "README"
include_patterns = [
    "README.md",
    "COURSE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "notebooks/*",
    "pa_tutorial/**/README.md",
    "tests/README.md",
]

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3  # every section has a link
myst_url_schemes = ["http", "https", "mailto"]

html_theme = "furo"
html_title = project
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
copybutton_exclude = ".linenos, .gp, .go"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
