#!/bin/bash
# A training whose updates run on two hosts of eight GPUs each; see docs/how-to/several-gpus.md. Not run by us.
#
#     sbatch deploy/slurm.sh
#
# GRADUS_HOME lies on a file system that all hosts share. The first host runs the training, with sampling and scoring;
# the others take part in its updates and end with it.
#SBATCH --job-name=gradus
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
set -euo pipefail

export GRADUS_HOME=${GRADUS_HOME:?set it to a folder that all hosts share}
RUN=${RUN:-qwen2.5-7b-2x8}
FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RUN FIRST

srun --kill-on-bad-exit=1 bash -c '
if [ "$SLURM_NODEID" -eq 0 ]; then
  exec gradus train qwen2.5-7b-8gpu --run "$RUN" --set update.launch.hosts=2 --set "update.launch.rendezvous=$FIRST:29400"
fi
exec gradus join "$RUN"
'
