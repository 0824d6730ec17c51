"""`python -m robopolicy` is the `robopolicy` command."""

import sys

from robopolicy.cli.main import main

sys.exit(main())
