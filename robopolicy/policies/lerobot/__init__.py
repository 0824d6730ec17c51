"""LeRobot's policies in, ours out.

LeRobot directory     config.json · model.safetensors · policy_preprocessor.json · policy_postprocessor.json · their
                      statistics · train_config.json, where `lerobot-train` wrote it · robopolicy.json (metadata.py)
"""
