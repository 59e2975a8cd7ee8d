"""The walk as a site: `make site` builds it from the committed outputs; nothing runs."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # walk_pages, front_page

project = "PagedAttention, step by step"
author = "the contributors of this project"
copyright = f"2026 {author}"  # in the footer of every page, as in NOTICE
extensions = ["myst_nb", "sphinx_copybutton", "walk_pages", "front_page"]

root_doc = "README"
include_patterns = ["*.md", "notebooks/*"]
include_patterns += ["pa_tutorial/**/README.md", "simt/README.md", "simt/*/README.md"]
include_patterns += ["tests/README.md", "pa_tutorial/exercises/window/TASKS.md"]

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3  # every section has a link

html_theme = "furo"
html_title = project
html_static_path = ["site.css", "answers.js"]
html_static_path += ["../figures/paging.svg", "../figures/blank_to_right.svg"]
html_css_files = ["site.css"]
html_js_files = ["answers.js"]
html_baseurl = os.environ.get("SITE_URL", "")  # with its last slash: for pictures of shared links
html_copy_source = False
html_show_search_summary = False  # it would be fetched, which files on a disk refuse
html_math_renderer = "mathml"
