#!/bin/bash
#SBATCH --job-name=dlojz
#SBATCH --output=slurm/log/dlojz@JZ_%j_2nodes_4tasks_DATE.out
#SBATCH --error=slurm/log/dlojz@JZ_%j_2nodes_4tasks_DATE.err
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=16
#SBATCH --hint=nomultithread
#SBATCH --time=5:00:00
#SBATCH --qos=qos_gpu-dev
#SBATCH --partition=gpu_p5
#SBATCH --constraint=a100
#SBATCH --account=xyz@a100
#SBATCH --exclusive
#SBATCH --mail-user=me@home.org
#SBATCH --mail-type=ALL
#SBATCH --reservation=dlojz

export PATH=BIN:"$PATH"  # of the submitter; a module comes before it
export SLURM_KILL_BAD_EXIT=1  # a task that fails ends the others
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun of 22.05 and later needs it
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL
type module > /dev/null 2>&1 && module purge
module load arch/a100
if type module > /dev/null 2>&1; then module load pytorch-gpu/py3/1.11.0
else echo 'No module command here: went on without pytorch-gpu/py3/1.11.0'; fi
unset http_proxy

set -x
time srun python -u dlojz.py --batch-size 128
status=$?
date
exit $status
