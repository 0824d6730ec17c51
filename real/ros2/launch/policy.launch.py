"""For a full ROS 2 installation:

    ros2 launch <this file> checkpoint:=runs/pick_residual wiring:=fr3 [namespace:=cell1] [python:=…]

Starts the policy node and configures it. Nothing moves before an operator enables and activates it:

    ros2 topic pub -r 50 /enable std_msgs/msg/Bool '{data: true}'
    ros2 lifecycle set /policy_node activate
"""

import launch
from launch.actions import DeclareLaunchArgument, EmitEvent, ExecuteProcess, RegisterEventHandler, TimerAction
from launch.event_handlers import OnProcessExit, OnProcessStart
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration, PythonExpression


def generate_launch_description() -> launch.LaunchDescription:
    """Launch the policy node, configured; the launch ends with it."""
    node = ExecuteProcess(
        cmd=[
            LaunchConfiguration("python"), "-m", "robopolicy.real.ros2.policy_node",
            "--checkpoint", LaunchConfiguration("checkpoint"),
            "--wiring", LaunchConfiguration("wiring"), "--options", LaunchConfiguration("options"),
            "--ros-args", "-r", ["__ns:=/", LaunchConfiguration("namespace")],
        ],
        output="screen",
    )  # fmt: skip
    name = PythonExpression(["'/' + '", LaunchConfiguration("namespace"), "/policy_node'.lstrip('/')"])
    configure = ExecuteProcess(cmd=["ros2", "lifecycle", "set", name, "configure"], output="screen")
    return launch.LaunchDescription(
        [
            DeclareLaunchArgument("checkpoint", description="run directory, checkpoint or policy directory"),
            DeclareLaunchArgument("wiring", default_value="fr3", description="preset in configs/robots/, or a file"),
            DeclareLaunchArgument(
                "options", default_value="{}", description="JSON: fields of DeployConfig, e.g. safety"
            ),
            DeclareLaunchArgument("namespace", default_value="", description="of the node, without a slash before it"),
            DeclareLaunchArgument("python", default_value="python3", description="that has robopolicy installed"),
            node,
            RegisterEventHandler(
                OnProcessStart(target_action=node, on_start=[TimerAction(period=5.0, actions=[configure])])
            ),
            RegisterEventHandler(OnProcessExit(target_action=node, on_exit=[EmitEvent(event=Shutdown())])),
        ]
    )
