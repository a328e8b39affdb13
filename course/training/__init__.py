"""What training scripts import."""
