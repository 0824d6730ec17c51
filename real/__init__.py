"""Real robots: interface, safety, control loop, drivers."""
