"""Our tasks and policies for LeRobot's commands: `--env.discover_packages_path=robopolicy.lerobot_plugin`.

LeRobot imports this package with all of its modules, and each registers what it has: the env type "robopolicy"
(`--env.type=robopolicy --env.task=pick`), and the policy type "robopolicy" of directories that `robopolicy export`
writes (`--policy.path=<directory>`). LeRobot finds classes by the names of modules: configuration_, modeling_,
processor_.
"""
