"""What labs have recorded on machines with several GPUs."""
