"""Task suites that others wrote, one file each; what they need is imported when one is made.

`./scripts/setup.sh suites` installs Meta-World and Gymnasium's, `./scripts/setup.sh bench` the others too.
"""
