#!/bin/bash
#SBATCH --job-name=RUN_NAME
#SBATCH --account=abc@v100
#SBATCH --partition=gpu_p2
#SBATCH --qos=qos_gpu-dev
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=3
#SBATCH --gres=gpu:1
#SBATCH --time=22
#SBATCH --output=RUN_FOLDER/logs/%j_0_log.out
#SBATCH --error=RUN_FOLDER/logs/%j_0_log.err
#SBATCH --open-mode=append
#SBATCH --hint=nomultithread

export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun needs it since Slurm 22.05
export COURSE_RUN_FOLDER=RUN_FOLDER
srun --unbuffered --output RUN_FOLDER/logs/%j_%t_log.out --error RUN_FOLDER/logs/%j_%t_log.err PYTHON -uP -m course.jobs.supervise RUN_FOLDER
