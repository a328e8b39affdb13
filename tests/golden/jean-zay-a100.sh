#!/bin/bash

# Parameters
#SBATCH --account=abc@a100
#SBATCH --constraint=a100
#SBATCH --cpus-per-task=8
#SBATCH --error=RUN_FOLDER/logs/%j_0_log.err
#SBATCH --exclusive
#SBATCH --gres=gpu:a100:8
#SBATCH --hint=nomultithread
#SBATCH --job-name=RUN_NAME
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --open-mode=append
#SBATCH --output=RUN_FOLDER/logs/%j_0_log.out
#SBATCH --partition=gpu_p5
#SBATCH --reservation='my course'
#SBATCH --signal=USR2@1
#SBATCH --time=93

# setup
module load arch/a100
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun needs it since Slurm 22.05
export COURSE_RUN_FOLDER=RUN_FOLDER

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output RUN_FOLDER/logs/%j_%t_log.out --error RUN_FOLDER/logs/%j_%t_log.err PYTHON -P -u -m submitit.core._submit RUN_FOLDER/logs
