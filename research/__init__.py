"""Measurements that ran once on a borrowed machine; README.md lists them."""
