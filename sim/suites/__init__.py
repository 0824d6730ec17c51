"""Task suites that others wrote, one file each; what they need is imported when one is made.

`./scripts/setup.sh suites` installs it.
"""
