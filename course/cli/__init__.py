"""The `course` command."""
