"""Safety limits that hold whatever the policy says. NumPy, numba and a QP solver: no torch, no ROS.

One idea: the filter publishes a command only together with a stop that is certified to stay inside every limit, and
keeps that stop. When no further command can be certified, or anything fails, it plays the stop.

Axes: N arms · n joints · S samples of a path · M poses · C capsules · P pairs.
"""

from robopolicy.real.safety.chain import Mode, SafetyChain
from robopolicy.real.safety.command_limiter import CommandLimiter
from robopolicy.real.safety.decision import Decision
from robopolicy.real.safety.errors import SafetyError
from robopolicy.real.safety.profile import Profile, load_profile, profile_names, read_profile
from robopolicy.real.safety.settings import Settings

__all__ = [
    "CommandLimiter", "Decision", "Mode", "Profile", "SafetyChain", "SafetyError", "Settings", "load_profile",
    "profile_names", "read_profile",
]  # fmt: skip
