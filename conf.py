"""Sphinx configuration: ``sphinx-build -c . docs build/html``. The logic lives in docs/_ext."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from docs._ext.support.galleries import NAMES as GALLERIES

# -- Project -----------------------------------------------------------------

project = "TorchRL Field Manual"
author = "the TorchRL Field Manual contributors"
copyright = "2026, the TorchRL Field Manual contributors"
release = version = installed("torchrl")

# -- Extensions --------------------------------------------------------------

extensions = [
    # built in
    "sphinx.ext.autodoc",
    "sphinx.ext.extlinks",
    "sphinx.ext.napoleon",
    # third party
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    # ours
    "docs._ext.evidence",
    "docs._ext.gallery",
    "docs._ext.records",
    "docs._ext.site",
    "docs._ext.source",
    "docs._ext.symptoms",
]

# -- RST ---------------------------------------------------------------------

nitpicky = True
exclude_patterns = [
    "_ext",
    "_static",
    "_templates",
    "reference/api/notes",  # included by the API pages
    "**/GALLERY_HEADER.rst",
]
templates_path = ["docs/_templates"]
highlight_language = "python"

extlinks = {"thread": ("https://github.com/pytorch/rl/issues/%s", "pytorch/rl#%s")}

# -- API pages ---------------------------------------------------------------

maximum_signature_line_length = 88
# As a list: the methods that matter have an entry of their own below the class.
napoleon_custom_sections = [("Methods", "params_style")]
napoleon_use_ivar = True
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# -- Gallery -----------------------------------------------------------------

# Only strings, numbers and lists: an object in here makes Sphinx rewrite every page.
sphinx_gallery_conf = {
    "examples_dirs": [f"../{name}" for name in GALLERIES],
    "gallery_dirs": list(GALLERIES),
    "filename_pattern": r"\.py$",  # everything runs, no plot_ prefix
    "ignore_pattern": r"__init__\.py|conftest\.py",
    "subsection_order": "docs._ext.gallery.order.topic_position",
    "within_subsection_order": "docs._ext.gallery.order.TutorialPosition",
    "image_scrapers": ["docs._ext.gallery.figures.save"],
    "reset_argv": "docs._ext.gallery.guard.start_tutorial",
    "reset_modules": [
        "matplotlib",
        "docs._ext.gallery.figures.use_style",
        "docs._ext.gallery.guard.finish_tutorial",
    ],
    "reset_modules_order": "both",
    "backreferences_dir": "tutorials/_backreferences",
    "doc_module": ("torchrl", "tensordict"),
    "min_reported_time": 1e9,  # run time differs from build to build
    "write_computation_times": False,
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
}

# Imported once for all tutorials and scripts: importing costs more than most of them do.
PRELOAD = [
    "gymnasium",
    "matplotlib.pyplot",
    "torchrl.collectors",
    "torchrl.data",
    "torchrl.envs",
    "torchrl.modules",
    "torchrl.objectives.value",
]
gallery_preload = evidence_preload = PRELOAD

tutorial_time_limit = 180  # seconds of wall time, on a busy machine too: it bounds a hang
tutorial_cpu_budget = 15  # seconds of processor time, checked by make test
# script: (seconds, at most 30, "reason")
tutorial_cpu_budgets = {
    "tutorials/collectors/batch_shapes.py": (
        30,
        "its workers come from a server that imports TorchRL again",
    ),
    "tutorials/recurrent/sequence_training.py": (
        30,
        "it trains three seeds with and without memory",
    ),
    "tutorials/recurrent/triton_kernels.py": (
        30,
        "Triton's interpreter needs a process that imports all again",
    ),
}
# A warning is an error in a tutorial. "regular expression": "why readers may ignore it"
tutorial_warnings_allowed = {
    r"The \.grad attribute of a Tensor that is not a leaf Tensor is being accessed": (
        "Dynamo looks at it while it traces a scan; readers do not see it, because Dynamo hides it"
    ),
}

# -- HTML --------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "TorchRL Field Manual"
html_static_path = ["docs/_static"]
html_css_files = ["field-manual.css"]
html_js_files = [("search-box.js", {"defer": "defer"})]
html_additional_pages = {"search": "search.html"}
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
# Nobody copies what a check prints; each button on the debugging map delays its first sight.
copybutton_selector = "div.highlight pre:not(.symptom .highlight-none pre)"
# Nor a prompt, or what is printed below it.
copybutton_prompt_text = r">>> |\.\.\.(?: |$)|\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
template_bridge = "docs._ext.site.html_fixes.Templates"
html_theme_options = {
    "article_footer_items": ["page-stamp"],
    "article_header_end": ["copy-markdown"],
    "logo": {
        "text": "TorchRL Field Manual",
        "image_light": "docs/_static/logo.svg",
        "image_dark": "docs/_static/logo.svg",
    },
    "navbar_start": ["navbar-logo", "torchrl-version"],
    "navbar_persistent": ["search-button"],  # ours, in docs/_templates
    "primary_sidebar_end": [],  # no advertisements
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "footer_start": ["copyright", "independent"],
    "footer_end": ["theme-version"],
}
html_context = {"default_mode": "auto"}
