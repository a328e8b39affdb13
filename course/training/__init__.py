"""Modules that training scripts import."""
