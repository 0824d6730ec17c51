"""The functions of `import robopolicy as rp`. They call those that the command line calls."""
