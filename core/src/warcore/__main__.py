"""`python -m warcore` is `warcore`."""

from __future__ import annotations

import sys

from warcore.cli import main

sys.exit(main())
