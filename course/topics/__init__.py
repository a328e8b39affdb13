"""A folder for each subject, its pictures beside its numbers."""
