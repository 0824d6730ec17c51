"""Our tasks, policies and limits for LeRobot's commands: `--env.discover_packages_path=robopolicy.lerobot_plugin`.

LeRobot imports this package with all of its modules, and each registers its class: the env type "robopolicy"
(`--env.type=robopolicy --env.task=pick`), the policy type "robopolicy" of directories that `robopolicy export` writes
(`--policy.path=<directory>`), and the robot type "robopolicy" (`--robot.type=robopolicy --robot.wiring=<file>`).
LeRobot finds classes by the names of modules: configuration_, modeling_, processor_; config_limited_robot and
limited_robot.
"""
