#!/bin/bash
#SBATCH --job-name=RUN_NAME
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --gres=gpu:2
#SBATCH --time=7
#SBATCH --output=RUN_FOLDER/logs/%j_0_log.out
#SBATCH --error=RUN_FOLDER/logs/%j_0_log.err
#SBATCH --open-mode=append

export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun needs it since Slurm 22.05
export COURSE_RUN_FOLDER=RUN_FOLDER
srun --unbuffered --output RUN_FOLDER/logs/%j_%t_log.out --error RUN_FOLDER/logs/%j_%t_log.err PYTHON -uP -m course.jobs.supervise RUN_FOLDER
