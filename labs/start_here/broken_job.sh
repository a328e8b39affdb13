#!/bin/bash
#SBATCH --job-name=hello
#SBATCH --nodes=1
# SBATCH --gres=gpu:4
#SBATCH --ntasks-per-node=1
#SBATCH --time=1:30
#SBATCH --output=hello-%j.out

cd "$SLURM_SUBMIT_DIR"
#SBATCH --cpus-per-task=4

srun python hello.py
module load pytorch
