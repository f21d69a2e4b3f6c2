"""What several tests share."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("SITE_DIR", ROOT / "build" / "html"))
