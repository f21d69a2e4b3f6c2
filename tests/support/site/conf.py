"""The fixture site: the gallery extensions of the real one, on scripts that import no torch."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT))

project = "Fixture"
extensions = [
    "sphinx_gallery.gen_gallery",
    "docs._ext.gallery",
    "docs._ext.site.downloads",
    "docs._ext.site.parallel_read",
    "docs._ext.site.fingerprint",
    "docs._ext.site.markdown_twin",
    "docs._ext.site.search_index",
]
exclude_patterns = ["_ext"]
templates_path = ["docs/_templates"]
nitpicky = True
html_theme = "basic"
html_copy_source = False

gallery_stack = ["matplotlib"]
gallery_preload = ["matplotlib.pyplot"]
gallery_stack_probe = "json.decoder"
tutorial_time_grace = 1
tutorial_time_limit = 60  # as the real site: a busy machine is slow

sphinx_gallery_conf = {
    "examples_dirs": ["../tutorials", "../how-to"],
    "gallery_dirs": ["tutorials", "how-to"],
    "filename_pattern": r"\.py$",
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
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "download_all_examples": False,
    "show_signature": False,
}
