"""World models: dynamics, reward and success models, imagined environments, trust."""
