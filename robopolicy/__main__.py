"""`python -m robopolicy` is the `robopolicy` command."""

import sys

from robopolicy.cli import main

sys.exit(main())
