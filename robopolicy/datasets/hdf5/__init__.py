"""Trajectories that others keep in HDF5 (robomimic, Minari, ManiSkill), for `robopolicy convert`; a module a format."""
