"""The arm over ROS 2: a lifecycle node that runs a policy behind the limits, and a simulated arm to run it against.

`wiring`, `timeline`, `command_history`, `remote_arm` and `trajectory_stream` do not import ROS; the rest needs the
extra `ros`, or a ROS 2 installation that is sourced. Messages are stock types only.
"""
