"""The bridge between Slurm and Kubernetes: a batch job runs as pods on the nodes that Slurm chose.

Slurm owns queue, placement and accounting. In a bridge partition `job_submit.lua` puts a line in
front of the batch script, so that slurmd runs `client`, as the user, without any credential. It
hands the script to `bridged`, which knows the job from slurmctld, makes an Indexed Job of it and
holds the batch step until no pod is left. docs/bridge.md says what that means for users.
"""
